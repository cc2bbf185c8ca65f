//! Clients of the gateway that put and get without a pause, and remember what was acknowledged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use testkit::{Cluster, Door};
use ureq::http::header::AUTHORIZATION;
use ureq::http::{HeaderValue, Request};
use ureq::middleware::MiddlewareNext;
use ureq::{Agent, SendBody};

/// Bytes of a file.
const FILE: usize = 1 << 20;
/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// Pause after one that failed.
const PAUSE: Duration = Duration::from_millis(10);

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get,
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) good: bool,
    /// (Of a put.) Targets that took copies.
    pub(crate) holders: Vec<u32>,
}

impl Op {
    pub(crate) fn took(&self) -> Duration {
        self.ended - self.begun
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Files are numbered.
    next: AtomicU64,
    acknowledged: Mutex<Vec<u64>>,
    ops: Mutex<Vec<Op>>,
    stop: AtomicBool,
}

/// The clients; they stand still until they are started.
#[derive(Debug)]
pub(crate) struct Clients {
    door: Arc<Door>,
    base: String,
    /// What shows that they may have files.
    leave: HeaderValue,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of a file: those of no two are alike.
fn content(number: u64) -> Vec<u8> {
    let mut state = number;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 8).to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(FILE / 8).flatten().collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Clients {
    pub(crate) fn new(cluster: &Cluster) -> anyhow::Result<Self> {
        let base = format!("{}/v1/files", cluster.http());
        let leave = HeaderValue::from_str(&cluster.leave())?;
        Ok(Self { door: Arc::new(cluster.rack().door(0)?), base, leave, shared: Arc::default(), threads: Vec::new() })
    }

    /// Puts and gets from now on.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.shared.stop.store(false, Ordering::SeqCst);
        for kind in [Kind::Put, Kind::Get] {
            let (door, base, shared) = (Arc::clone(&self.door), self.base.clone(), Arc::clone(&self.shared));
            let agent = agent(self.leave.clone());
            let work = move || {
                door.enter()?;
                while !shared.stop.load(Ordering::SeqCst) {
                    match kind {
                        Kind::Put => shared.put(&agent, &base),
                        Kind::Get => shared.get(&agent, &base),
                    }
                }
                Ok(())
            };
            let thread = std::thread::Builder::new().spawn(work).context("a client's thread cannot be started")?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// Ends what is under way; what was done since the start, in the order in which it ended.
    pub(crate) fn stop(&mut self) -> Vec<Op> {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(outcome) => outcome.unwrap_or_else(|error| eprintln!("rack: a client ended: {error:#}")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        let mut ops = std::mem::take(&mut *locked(&self.shared.ops));
        ops.sort_by_key(|op| op.ended);
        ops
    }

    /// Reads every file that was acknowledged: how many there are, and how many are as they were put.
    pub(crate) fn read_back(&self) -> anyhow::Result<(usize, usize)> {
        let (door, base, shared) = (Arc::clone(&self.door), self.base.clone(), Arc::clone(&self.shared));
        let agent = agent(self.leave.clone());
        let work = move || -> anyhow::Result<(usize, usize)> {
            door.enter()?;
            let numbers = locked(&shared.acknowledged).clone();
            Ok((numbers.len(), numbers.iter().filter(|number| holds(&agent, &base, **number)).count()))
        };
        std::thread::spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn agent(leave: HeaderValue) -> Agent {
    let show = move |mut request: Request<SendBody<'_>>, next: MiddlewareNext<'_>| {
        request.headers_mut().insert(AUTHORIZATION, leave.clone());
        next.handle(request)
    };
    Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None).middleware(show).build().into()
}

/// Whether a file is as it was put.
fn holds(agent: &Agent, base: &str, number: u64) -> bool {
    let read = || -> Result<Vec<u8>, ureq::Error> {
        agent.get(format!("{base}/f{number}")).call()?.body_mut().with_config().limit(2 * FILE as u64).read_to_vec()
    };
    read().is_ok_and(|bytes| bytes == content(number))
}

impl Shared {
    fn put(&self, agent: &Agent, base: &str) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let bytes = content(number);
        let begun = Instant::now();
        let put = || -> Result<Value, ureq::Error> {
            agent.put(format!("{base}/f{number}")).send(&bytes[..])?.body_mut().read_json()
        };
        let report = put();
        let took = report.as_ref().ok().and_then(|report| report["copies_by_target"].as_object());
        let holders = took.into_iter().flatten().filter_map(|(id, _)| id.parse().ok()).collect();
        if report.is_ok() {
            locked(&self.acknowledged).push(number);
        }
        self.note(Op { kind: Kind::Put, begun, ended: Instant::now(), good: report.is_ok(), holders });
    }

    fn get(&self, agent: &Agent, base: &str) {
        let begun = Instant::now();
        let number = {
            let acknowledged = locked(&self.acknowledged);
            let ops = locked(&self.ops).len();
            // One that was put at any time, another one each time.
            acknowledged.get((ops * 7_919) % acknowledged.len().max(1)).copied()
        };
        let Some(number) = number else { return std::thread::sleep(PAUSE) };
        let good = holds(agent, base, number);
        self.note(Op { kind: Kind::Get, begun, ended: Instant::now(), good, holders: Vec::new() });
    }

    fn note(&self, op: Op) {
        let good = op.good;
        locked(&self.ops).push(op);
        if !good {
            std::thread::sleep(PAUSE);
        }
    }
}
