//! Clients of the gateways that put, get, list and remove, remember what was acknowledged, and check every answer.

mod endpoint;
mod names;

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use testkit::{Cluster, Namespace};
use ureq::Agent;

use endpoint::{Endpoint, agent};
use names::{Names, name_of, part, prefix_of};

/// Pause after an operation that failed, or for which there is nothing yet.
const PAUSE: Duration = Duration::from_millis(10);
/// Clients that read everything back, on each gateway's host.
const READERS: usize = 4;
/// How often they ask for an object, and their pause after an error.
const ASKED: u8 = 5;
const AGAIN: Duration = Duration::from_secs(2);

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Put,
    Get,
    List,
    Remove,
    /// A get of what was removed.
    Absence,
}

/// What was not as it should be.
#[derive(Clone, Debug)]
pub(crate) enum Problem {
    /// There was no answer, or an error.
    Failed(String),
    /// The answer is not what was put, or not what must be there.
    Wrong(String),
}

impl Display for Problem {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(why) => write!(formatter, "it failed: {why}"),
            Self::Wrong(why) => write!(formatter, "it is wrong: {why}"),
        }
    }
}

/// One operation.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// When it was due: what a client waits for the one before counts.
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) problem: Option<Problem>,
}

impl Op {
    pub(crate) fn took(&self) -> Duration {
        self.ended - self.begun
    }

    pub(crate) fn is_good(&self) -> bool {
        self.problem.is_none()
    }
}

/// What some clients do, on each gateway's host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) kind: Kind,
    /// So many operations at once at most.
    pub(crate) clients: usize,
    /// How many begin in a second, at random moments; `None`: one after the other without a pause.
    pub(crate) per_second: Option<f64>,
}

impl Work {
    pub(crate) const fn without_pause(kind: Kind, clients: usize) -> Self {
        Self { kind, clients, per_second: None }
    }
}

/// The clients; they stand still until they are started.
#[derive(Debug)]
pub(crate) struct Clients {
    hosts: Vec<Arc<Namespace>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

/// What all of them share.
#[derive(Debug)]
struct Shared {
    endpoint: Endpoint,
    /// Bytes of an object.
    size: usize,
    names: Mutex<Names>,
    ops: Mutex<Vec<Op>>,
    chances: AtomicU64,
    stop: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that looks drawn, another one for each seed.
const fn mixed(seed: u64) -> u64 {
    let state = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// The bytes of an object: those of no two are alike.
fn content(number: u64, size: usize) -> Vec<u8> {
    let mut state = number;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 8).to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(size.div_ceil(8)).flatten().take(size).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Clients {
    /// On the hosts of the first `gateways`, with objects of `size` bytes, 8 at least.
    pub(crate) fn new(cluster: &Cluster, gateways: usize, size: usize) -> anyhow::Result<Self> {
        let hosts = (0..gateways).map(|host| cluster.rack().namespace(host).map(Arc::new)).collect::<Result<_, _>>()?;
        let shared = Shared {
            endpoint: Endpoint::of(cluster)?,
            size: size.max(8),
            names: Mutex::default(),
            ops: Mutex::default(),
            chances: AtomicU64::new(1),
            stop: AtomicBool::new(false),
        };
        let this = Self { hosts, shared: Arc::new(shared), threads: Vec::new() };
        cluster.rack().visit(0, || this.shared.endpoint.make_bucket(&agent()))??;
        Ok(this)
    }

    /// Has clients work from now on.
    pub(crate) fn start(&mut self, work: &[Work]) -> anyhow::Result<()> {
        self.shared.stop.store(false, Ordering::SeqCst);
        for host in &self.hosts {
            for work in work {
                let due = Arc::new(Mutex::new(Instant::now()));
                for _ in 0..work.clients {
                    let (host, shared, due, work) =
                        (Arc::clone(host), Arc::clone(&self.shared), Arc::clone(&due), *work);
                    let client = move || host.enter().map(|()| shared.work(work, &due));
                    let thread = std::thread::Builder::new().spawn(client);
                    self.threads.push(thread.context("a client's thread cannot be started")?);
                }
            }
        }
        Ok(())
    }

    /// Ends what is under way; what was done since it was taken last, in the order in which it ended.
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

    /// Objects that were acknowledged and not removed.
    pub(crate) fn present(&self) -> usize {
        locked(&self.shared.names).present().len()
    }

    /// Reads every object that was acknowledged and not removed: how many there are, and how many are as they were put. None that was
    /// removed may be there.
    pub(crate) fn read_back(&self) -> anyhow::Result<(usize, usize)> {
        let (present, removed) = {
            let names = locked(&self.shared.names);
            (names.present().to_vec(), names.removed().to_vec())
        };
        let next = AtomicU64::new(0);
        let read = || {
            let (agent, mut good) = (agent(), 0);
            let numbers = || next.fetch_add(1, Ordering::SeqCst) as usize;
            for n in std::iter::repeat_with(numbers).take_while(|n| *n < present.len() + removed.len()) {
                let (number, is_there) =
                    present.get(n).map_or_else(|| (removed[n - present.len()], false), |n| (*n, true));
                let expected = is_there.then(|| content(number, self.shared.size));
                let found = self.shared.get_at_last(&agent, number);
                let as_it_was = found.as_ref().is_ok_and(|found| *found == expected);
                if !as_it_was {
                    let state = if is_there { "put" } else { "removed" };
                    let found = match found {
                        Ok(None) => "it is not there".to_owned(),
                        Ok(Some(body)) => format!("it has {} bytes, and others", body.len()),
                        Err(problem) => problem.to_string(),
                    };
                    eprintln!("rack: {} is not as it was {state}: {found}", name_of(number));
                }
                good += usize::from(as_it_was);
            }
            good
        };
        let good: usize = std::thread::scope(|scope| {
            let readers = self.hosts.iter().flat_map(|host| std::iter::repeat_n(host, READERS));
            let readers: Vec<_> = readers.map(|host| scope.spawn(|| host.enter().map(|()| read()))).collect();
            let ended = readers.into_iter().map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            ended.sum::<anyhow::Result<usize>>()
        })?;
        Ok((present.len() + removed.len(), good))
    }
}

impl Shared {
    /// Gets an object, and asks again for a while when there is no answer: whether it is stored is what matters, and not whether the machine
    /// has a bad moment.
    fn get_at_last(&self, agent: &Agent, number: u64) -> Result<Option<Vec<u8>>, Problem> {
        let mut asked = 1;
        loop {
            let found = self.endpoint.get(agent, &name_of(number));
            if found.is_ok() || asked == ASKED {
                return found;
            }
            std::thread::sleep(AGAIN);
            asked += 1;
        }
    }

    fn work(&self, work: Work, due: &Mutex<Instant>) {
        let agent = agent();
        while !self.stop.load(Ordering::SeqCst) {
            let begun = work.per_second.map_or_else(Instant::now, |rate| {
                let at = {
                    let mut due = locked(due);
                    let at = *due;
                    *due += gap(self.chance(), rate);
                    at
                };
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                at
            });
            let done = match work.kind {
                Kind::Put => self.put(&agent),
                Kind::Get => self.get(&agent),
                Kind::List => self.list(&agent),
                Kind::Remove => self.remove(&agent),
                Kind::Absence => self.miss(&agent),
            };
            let Some(result) = done else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let problem = result.err();
            let failed = problem.is_some();
            locked(&self.ops).push(Op { kind: work.kind, begun, ended: Instant::now(), problem });
            if failed {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn chance(&self) -> u64 {
        mixed(self.chances.fetch_add(1, Ordering::SeqCst))
    }

    fn put(&self, agent: &Agent) -> Option<Result<(), Problem>> {
        let number = locked(&self.names).draw();
        let result = self.endpoint.put(agent, &name_of(number), &content(number, self.size));
        if result.is_ok() {
            locked(&self.names).was_put(number);
        }
        Some(result)
    }

    fn get(&self, agent: &Agent) -> Option<Result<(), Problem>> {
        let chance = self.chance();
        let number = {
            let names = locked(&self.names);
            let present = names.present();
            present[..].get(chance.checked_rem(present.len() as u64)? as usize).copied()?
        };
        let name = name_of(number);
        match self.endpoint.get(agent, &name) {
            Ok(Some(bytes)) if bytes == content(number, self.size) => Some(Ok(())),
            Ok(Some(_)) => Some(Err(Problem::Wrong(format!("{name} has other bytes than were put")))),
            // It may be removed meanwhile.
            Ok(None) if !locked(&self.names).is_present(number) => None,
            Ok(None) => Some(Err(Problem::Wrong(format!("{name} is not found, and acknowledged")))),
            Err(problem) => Some(Err(problem)),
        }
    }

    fn miss(&self, agent: &Agent) -> Option<Result<(), Problem>> {
        let chance = self.chance();
        let number = {
            let names = locked(&self.names);
            let removed = names.removed();
            removed[..].get(chance.checked_rem(removed.len() as u64)? as usize).copied()?
        };
        let name = name_of(number);
        Some(match self.endpoint.get(agent, &name) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(Problem::Wrong(format!("{name} is found, and removed"))),
            Err(problem) => Err(problem),
        })
    }

    fn remove(&self, agent: &Agent) -> Option<Result<(), Problem>> {
        let number = locked(&self.names).give_up(self.chance())?;
        let result = self.endpoint.remove(agent, &name_of(number));
        if result.is_ok() {
            locked(&self.names).was_removed(number);
        }
        Some(result)
    }

    fn list(&self, agent: &Agent) -> Option<Result<(), Problem>> {
        let part = part(self.chance());
        let expected = locked(&self.names).expect(part);
        Some(self.endpoint.list(agent, &prefix_of(part)).and_then(|listed| {
            let wrong = locked(&self.names).judge(&expected, &listed);
            wrong.map_or(Ok(()), |problem| Err(Problem::Wrong(problem)))
        }))
    }
}

/// How long from one operation to the next when so many begin in a second, each at a moment of its own.
fn gap(chance: u64, per_second: f64) -> Duration {
    let even = ((chance >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    Duration::from_secs_f64(-even.ln() / per_second)
}
