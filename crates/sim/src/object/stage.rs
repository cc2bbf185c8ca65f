//! Stacks for the blocking code of gateways, on the thread of their world.
//!
//! A task runs until it waits for an answer; then the world goes on, and gives the task its turn when the answer is there.
//! What a task asks for is taken in the order in which it asked, so that a run repeats. A task whose gateway dies is unwound
//! from where it waits.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use generator::{Generator, Gn};
use object::catalog::{CatalogError, Change};
use object::clean::Report;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{Busy, Discard, Discarded, Fetched, Found, GetError, Marked, PutError, Scope, Stored};
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
pub(crate) enum Ask {
    /// With whether it is a removal.
    Put(ChunkId, Bytes, bool),
    Get(ChunkId),
    List(Scope, Vec<u8>),
    Renew(ChunkId),
    Mark,
    Discard(Discard),
    /// A change of the catalog.
    Change(Box<Change>),
    /// The way to the catalog for a question.
    Question,
    Sleep(Span),
    /// Nothing: a look of a cleaner is over.
    Looked(Report),
}

/// What the world answers.
pub(crate) enum Answer {
    Put(Result<Stored, PutError>),
    Get(Result<Fetched, GetError>),
    List(Result<Found, Busy>),
    Renew(Result<bool, Busy>),
    Mark(Result<Marked, Busy>),
    Discard(Result<Discarded, Busy>),
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
pub(crate) struct Desk {
    next: Ticket,
    pub(crate) asked: Vec<(Ticket, NodeId, Ask)>,
    answered: BTreeMap<Ticket, Answer>,
    /// Of the task that runs.
    pub(crate) local: Local,
    pub(crate) rng: Rng,
    pub(crate) history: History,
}

impl Desk {
    pub(crate) fn new(rng: Rng) -> Self {
        let (local, history) = (Local::default(), History::default());
        Self { next: 0, asked: Vec::new(), answered: BTreeMap::new(), local, rng, history }
    }
}

enum Turn {
    Work(Job),
    GoOn,
    Die,
}

enum Back {
    Waits(Ticket),
    Ended,
    Panicked(String),
}

/// What unwinds a task whose gateway is dead.
struct Killed;

/// A stack that does one task after the other.
struct Worker(Generator<'static, Turn, Back>);

thread_local! {
    /// Idle workers of the thread that drives worlds, one after the other.
    static CREW: RefCell<Vec<Worker>> = const { RefCell::new(Vec::new()) };
}

/// A worker gives its turn back, and waits for the next one.
#[allow(deprecated, reason = "what replaces it must be handed down to where a task waits, through the product's code")]
fn give_back(back: Back) -> Option<Turn> {
    generator::yield_(back)
}

#[allow(deprecated, reason = "the other side of `give_back`")]
fn first_turn() -> Option<Turn> {
    generator::get_yield()
}

fn work() -> Back {
    let mut turn = first_turn();
    while let Some(Turn::Work(job)) = turn {
        turn = give_back(match catch_unwind(AssertUnwindSafe(job)) {
            Ok(()) => Back::Ended,
            Err(panic) if panic.is::<Killed>() => Back::Ended,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Back::Panicked(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned())
            }
        });
    }
    Back::Ended
}

impl Worker {
    fn hire() -> Self {
        CREW.with_borrow_mut(Vec::pop).unwrap_or_else(|| Self(Gn::new_opt(STACK / size_of::<usize>(), work)))
    }

    fn turn(&mut self, turn: Turn) -> Back {
        self.0.raw_send(Some(turn)).unwrap_or_else(|| Back::Panicked("its stack is gone".to_owned()))
    }

    fn release(self) {
        // At the end of the thread there is no crew any more: then the worker ends as well.
        let _ = CREW.try_with(|crew| crew.borrow_mut().push(self));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.turn(Turn::Die);
    }
}

struct Task {
    worker: Worker,
    node: NodeId,
    /// Before its first turn.
    job: Option<Job>,
}

/// How a turn ended.
pub(crate) enum Went {
    Waits,
    Ended,
    Panicked(String),
}

/// The world's side: all tasks.
pub(crate) struct Stage {
    pub(crate) desk: Arc<Mutex<Desk>>,
    tasks: BTreeMap<TaskId, Task>,
    waiting: BTreeMap<Ticket, TaskId>,
    next: TaskId,
}

pub(crate) fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    pub(crate) fn new(rng: Rng) -> Self {
        let desk = Arc::new(Mutex::new(Desk::new(rng)));
        Self { desk, tasks: BTreeMap::new(), waiting: BTreeMap::new(), next: 0 }
    }

    /// A task of this gateway; it waits for its first turn.
    pub(crate) fn start(&mut self, node: NodeId, job: Job) -> TaskId {
        self.next += 1;
        self.tasks.insert(self.next, Task { worker: Worker::hire(), node, job: Some(job) });
        self.next
    }

    /// The gateway of a task that there is.
    pub(crate) fn node_of(&self, task: TaskId) -> Option<NodeId> {
        self.tasks.get(&task).map(|task| task.node)
    }

    /// Lets a task run until it waits or ends.
    pub(crate) fn turn(&mut self, id: TaskId, local: Local) -> Option<Went> {
        let task = self.tasks.get_mut(&id)?;
        lock(&self.desk).local = local;
        let back = match task.job.take() {
            Some(job) => task.worker.turn(Turn::Work(job)),
            None => task.worker.turn(Turn::GoOn),
        };
        Some(match back {
            Back::Waits(ticket) => {
                self.waiting.insert(ticket, id);
                Went::Waits
            }
            Back::Ended => {
                self.tasks.remove(&id)?.worker.release();
                Went::Ended
            }
            Back::Panicked(why) => {
                self.tasks.remove(&id)?.worker.release();
                Went::Panicked(why)
            }
        })
    }

    /// An answer: which task waits for it.
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) -> Option<TaskId> {
        lock(&self.desk).answered.insert(ticket, answer);
        self.waiting.remove(&ticket)
    }

    /// Ends a task where it is.
    pub(crate) fn kill(&mut self, id: TaskId) {
        let Some(mut task) = self.tasks.remove(&id) else { return };
        self.waiting.retain(|_, waits| *waits != id);
        // One that has not begun needs no unwinding.
        if task.job.is_none() {
            let _ = task.worker.turn(Turn::Die);
        }
        task.worker.release();
    }

    /// Ends all tasks of a gateway.
    pub(crate) fn kill_all(&mut self, node: NodeId) {
        let all: Vec<TaskId> = self.tasks.iter().filter(|(_, task)| task.node == node).map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.kill(id));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let all: Vec<TaskId> = self.tasks.keys().copied().collect();
        all.into_iter().for_each(|id| self.kill(id));
    }
}

/// A task's side of the desk.
#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) node: NodeId,
    pub(crate) desk: Arc<Mutex<Desk>>,
}

impl Hands {
    pub(crate) fn ask(&self, ask: Ask) -> Ticket {
        let mut desk = lock(&self.desk);
        desk.next += 1;
        let ticket = desk.next;
        desk.asked.push((ticket, self.node, ask));
        ticket
    }

    /// Blocks until the answer is there.
    pub(crate) fn wait(&self, ticket: Ticket) -> Answer {
        loop {
            if let Some(answer) = lock(&self.desk).answered.remove(&ticket) {
                return answer;
            }
            match give_back(Back::Waits(ticket)) {
                Some(Turn::GoOn) => {}
                // Without the hook that prints panics: this is how a process dies.
                _ => resume_unwind(Box::new(Killed)),
            }
        }
    }

    pub(crate) fn sleep(&self, span: Span) {
        let ticket = self.ask(Ask::Sleep(span));
        let _ = self.wait(ticket);
    }

    pub(crate) fn local(&self) -> Local {
        lock(&self.desk).local
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        lock(&self.desk).rng.below(bound)
    }

    /// Says something to the history.
    pub(crate) fn tell<T>(&self, tell: impl FnOnce(&mut History, u64) -> T) -> T {
        let mut desk = lock(&self.desk);
        let now = desk.local.now;
        tell(&mut desk.history, now)
    }
}
