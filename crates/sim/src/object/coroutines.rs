//! Stacks for the blocking code of gateways, on the thread of their world.
//!
//! A task runs until it waits for an answer; then the world goes on, and resumes the task when the answer is there.
//! What a task asks for is taken in the order in which it asked, so that a run repeats. A task whose gateway dies is unwound
//! from where it waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use catalog::{CatalogError, Change};
use generator::{Generator, Gn};
use object::clean::Report;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Fetched, GetError, PutError, Query, QueryAnswer, Stored};
use protocol::redundancy::Pieces;
use protocol::rng::Rng;
use protocol::time::Span;

use super::history::History;

/// Names what was asked for.
pub(crate) type Ticket = u64;
/// Names a task.
pub(crate) type TaskId = u64;
type Job = Box<dyn FnOnce() + Send>;

/// Bytes of a worker's stack; only what is used of it is in memory.
const STACK: usize = 1 << 20;

/// What a task asks of the world.
pub(crate) enum TaskRequest {
    Put(ChunkPut),
    Get(ChunkId, Vec<NodeId>, Option<Pieces>),
    Query(Query),
    /// A change of the catalog.
    Change(Box<Change>),
    /// The way to the catalog for a question.
    Question,
    Sleep(Span),
    /// Nothing: a pass of a cleaner is over.
    PassOver(Report),
}

/// What the world answers.
pub(crate) enum Answer {
    Put(Result<Stored, PutError>),
    Get(Result<Fetched, GetError>),
    Query(QueryAnswer),
    Catalog(Result<(), CatalogError>),
    Slept,
}

/// What a gateway has of its machine now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Local {
    pub(crate) elapsed: Duration,
    pub(crate) wall: Duration,
    /// Which cluster map it uses.
    pub(crate) map: usize,
    /// True time, which only the history sees.
    pub(crate) now: u64,
    /// Whether all faults are over.
    pub(crate) healed: bool,
}

/// What tasks and world share.
pub(crate) struct TaskQueues {
    next: Ticket,
    pub(crate) submitted: Vec<(Ticket, NodeId, TaskRequest)>,
    answered: BTreeMap<Ticket, Answer>,
    /// Of the task that runs.
    pub(crate) local: Local,
    pub(crate) rng: Rng,
    pub(crate) history: History,
}

impl TaskQueues {
    pub(crate) fn new(rng: Rng) -> Self {
        let (local, history) = (Local::default(), History::default());
        Self { next: 0, submitted: Vec::new(), answered: BTreeMap::new(), local, rng, history }
    }
}

enum Resume {
    Work(Job),
    Continue,
    Die,
}

enum Yield {
    Waiting(Ticket),
    Ended,
    Panicked(String),
}

/// What unwinds a task whose gateway is dead.
struct Killed;

/// A stack that does one task after the other.
struct Worker(Generator<'static, Resume, Yield>);

thread_local! {
    /// Idle workers of the thread that drives worlds, one after the other.
    static IDLE: RefCell<Vec<Worker>> = const { RefCell::new(Vec::new()) };
}

/// Suspends a worker until it is resumed.
#[allow(deprecated, reason = "what replaces it must be handed down to where a task waits, through the product's code")]
fn suspend(back: Yield) -> Option<Resume> {
    generator::yield_(back)
}

#[allow(deprecated, reason = "the other side of `suspend`")]
fn first_resume() -> Option<Resume> {
    generator::get_yield()
}

fn work() -> Yield {
    let mut next = first_resume();
    while let Some(Resume::Work(job)) = next {
        next = suspend(match catch_unwind(AssertUnwindSafe(job)) {
            Ok(()) => Yield::Ended,
            Err(panic) if panic.is::<Killed>() => Yield::Ended,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Yield::Panicked(
                    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned(),
                )
            }
        });
    }
    Yield::Ended
}

impl Worker {
    fn take_idle() -> Self {
        IDLE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self(Gn::new_opt(STACK / size_of::<usize>(), work)))
    }

    fn resume(&mut self, with: Resume) -> Yield {
        self.0.raw_send(Some(with)).unwrap_or_else(|| Yield::Panicked("its stack is gone".to_owned()))
    }

    fn put_back(self) {
        // At the end of the thread there is no idle any more: then the worker ends as well.
        let _ = IDLE.try_with(|idle| idle.borrow_mut().push(self));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.resume(Resume::Die);
    }
}

struct Task {
    worker: Worker,
    node: NodeId,
    /// Before it runs first.
    job: Option<Job>,
}

/// How a task stands after it ran.
pub(crate) enum Progress {
    Waiting,
    Ended,
    Panicked(String),
}

/// The world's side: all tasks.
pub(crate) struct Scheduler {
    pub(crate) queues: Arc<Mutex<TaskQueues>>,
    tasks: BTreeMap<TaskId, Task>,
    waiting: BTreeMap<Ticket, TaskId>,
    next: TaskId,
}

pub(crate) fn lock(queues: &Mutex<TaskQueues>) -> MutexGuard<'_, TaskQueues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scheduler {
    pub(crate) fn new(rng: Rng) -> Self {
        let queues = Arc::new(Mutex::new(TaskQueues::new(rng)));
        Self { queues, tasks: BTreeMap::new(), waiting: BTreeMap::new(), next: 0 }
    }

    /// A task of this gateway; it waits until it is resumed first.
    pub(crate) fn start(&mut self, node: NodeId, job: Job) -> TaskId {
        self.next += 1;
        self.tasks.insert(self.next, Task { worker: Worker::take_idle(), node, job: Some(job) });
        self.next
    }

    /// The gateway of a task that there is.
    pub(crate) fn node_of(&self, task: TaskId) -> Option<NodeId> {
        self.tasks.get(&task).map(|task| task.node)
    }

    /// Lets a task run until it waits or ends.
    pub(crate) fn resume(&mut self, id: TaskId, local: Local) -> Option<Progress> {
        let task = self.tasks.get_mut(&id)?;
        lock(&self.queues).local = local;
        let back = match task.job.take() {
            Some(job) => task.worker.resume(Resume::Work(job)),
            None => task.worker.resume(Resume::Continue),
        };
        Some(match back {
            Yield::Waiting(ticket) => {
                self.waiting.insert(ticket, id);
                Progress::Waiting
            }
            Yield::Ended => {
                self.tasks.remove(&id)?.worker.put_back();
                Progress::Ended
            }
            Yield::Panicked(why) => {
                self.tasks.remove(&id)?.worker.put_back();
                Progress::Panicked(why)
            }
        })
    }

    /// An answer: which task waits for it.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) -> Option<TaskId> {
        lock(&self.queues).answered.insert(ticket, answer);
        self.waiting.remove(&ticket)
    }

    /// Ends a task where it is.
    pub(crate) fn kill(&mut self, id: TaskId) {
        let Some(mut task) = self.tasks.remove(&id) else { return };
        self.waiting.retain(|_, waits| *waits != id);
        // One that has not begun needs no unwinding.
        if task.job.is_none() {
            let _ = task.worker.resume(Resume::Die);
        }
        task.worker.put_back();
    }

    /// Ends all tasks of a gateway.
    pub(crate) fn kill_all(&mut self, node: NodeId) {
        let all: Vec<TaskId> = self.tasks.iter().filter(|(_, task)| task.node == node).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.kill(id));
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let all: Vec<TaskId> = self.tasks.keys().copied().collect();
        all.into_iter().for_each(|id| self.kill(id));
    }
}

/// A task's side of the queues.
#[derive(Clone)]
pub(crate) struct TaskHandle {
    pub(crate) node: NodeId,
    pub(crate) queues: Arc<Mutex<TaskQueues>>,
}

impl TaskHandle {
    pub(crate) fn submit(&self, request: TaskRequest) -> Ticket {
        let mut queues = lock(&self.queues);
        queues.next += 1;
        let ticket = queues.next;
        queues.submitted.push((ticket, self.node, request));
        ticket
    }

    /// Blocks until the answer is there.
    pub(crate) fn wait(&self, ticket: Ticket) -> Answer {
        loop {
            if let Some(answer) = lock(&self.queues).answered.remove(&ticket) {
                return answer;
            }
            match suspend(Yield::Waiting(ticket)) {
                Some(Resume::Continue) => {}
                // Without the hook that prints panics: this is how a process dies.
                _ => resume_unwind(Box::new(Killed)),
            }
        }
    }

    pub(crate) fn sleep(&self, span: Span) {
        let ticket = self.submit(TaskRequest::Sleep(span));
        let _ = self.wait(ticket);
    }

    pub(crate) fn local(&self) -> Local {
        lock(&self.queues).local
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        lock(&self.queues).rng.below(bound)
    }

    /// Records something in the history.
    pub(crate) fn record<T>(&self, record: impl FnOnce(&mut History, u64) -> T) -> T {
        let mut queues = lock(&self.queues);
        let now = queues.local.now;
        record(&mut queues.history, now)
    }
}
