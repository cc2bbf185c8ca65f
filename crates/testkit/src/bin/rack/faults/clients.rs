//! Clients of the gateway that put and get without a pause, and remember what was acknowledged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use jiff::Timestamp;
use rusty_s3::actions::S3Action;
use rusty_s3::{Bucket, Credentials, UrlStyle};
use testkit::{Cluster, Namespace};
use ureq::Agent;

/// Bytes of an object.
const SIZE: usize = 1 << 20;
const BUCKET: &str = "rack";
/// How long a signed address is good: longer than all of this takes.
const GOOD: Duration = Duration::from_secs(24 * 3_600);
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
}

impl Op {
    pub(crate) fn took(&self) -> Duration {
        self.ended - self.begun
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Objects are numbered.
    next: AtomicU64,
    acknowledged: Mutex<Vec<u64>>,
    ops: Mutex<Vec<Op>>,
    stop: AtomicBool,
}

/// The clients; they stand still until they are started.
#[derive(Debug)]
pub(crate) struct Clients {
    namespace: Arc<Namespace>,
    endpoint: Arc<Endpoint>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<anyhow::Result<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where objects are, for whoever has the keys.
#[derive(Debug)]
struct Endpoint {
    bucket: Bucket,
    keys: Credentials,
}

impl Endpoint {
    fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let (access, secret) = cluster.keys();
        let endpoint = cluster.s3().parse().context("the S3 address is none")?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, BUCKET, "us-east-1").context("the bucket is none")?;
        Ok(Self { bucket, keys: Credentials::new(access, secret) })
    }

    /// The address of an object, for what `action` asks.
    fn signed<'a>(&self, action: &impl S3Action<'a>) -> String {
        action.sign_with_time(GOOD, &Timestamp::now()).to_string()
    }

    fn make_bucket(&self, agent: &Agent) -> anyhow::Result<()> {
        let address = self.signed(&self.bucket.create_bucket(&self.keys));
        let answer = agent.put(address).config().http_status_as_error(false).build().send_empty()?;
        ensure!(
            answer.status().is_success() || answer.status() == 409,
            "the bucket cannot be made: {}",
            answer.status()
        );
        Ok(())
    }

    fn put(&self, agent: &Agent, number: u64, bytes: &[u8]) -> Result<(), ureq::Error> {
        let address = self.signed(&self.bucket.put_object(Some(&self.keys), &format!("o{number}")));
        agent.put(address).send(bytes).map(drop)
    }

    /// Whether an object is as it was put.
    fn holds(&self, agent: &Agent, number: u64) -> bool {
        let address = self.signed(&self.bucket.get_object(Some(&self.keys), &format!("o{number}")));
        let read = || -> Result<Vec<u8>, ureq::Error> {
            agent.get(address).call()?.body_mut().with_config().limit(2 * SIZE as u64).read_to_vec()
        };
        read().is_ok_and(|bytes| bytes == content(number))
    }
}

/// The bytes of an object: those of no two are alike.
fn content(number: u64) -> Vec<u8> {
    let mut state = number;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 8).to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(SIZE / 8).flatten().collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl Clients {
    pub(crate) fn new(cluster: &Cluster) -> anyhow::Result<Self> {
        let (namespace, endpoint) = (Arc::new(cluster.rack().namespace(0)?), Arc::new(Endpoint::of(cluster)?));
        let this = Self { namespace, endpoint, shared: Arc::default(), threads: Vec::new() };
        this.inside(|endpoint, _| endpoint.make_bucket(&agent()))?;
        Ok(this)
    }

    /// Does something on the gateway's host.
    fn inside<T: Send>(&self, work: impl FnOnce(&Endpoint, &Shared) -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        let (namespace, endpoint, shared) = (&self.namespace, &self.endpoint, &self.shared);
        let work = || {
            namespace.enter()?;
            work(endpoint, shared)
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Puts and gets from now on.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        self.shared.stop.store(false, Ordering::SeqCst);
        for kind in [Kind::Put, Kind::Get] {
            let (namespace, endpoint, shared) =
                (Arc::clone(&self.namespace), Arc::clone(&self.endpoint), Arc::clone(&self.shared));
            let agent = agent();
            let work = move || {
                namespace.enter()?;
                while !shared.stop.load(Ordering::SeqCst) {
                    match kind {
                        Kind::Put => shared.put(&agent, &endpoint),
                        Kind::Get => shared.get(&agent, &endpoint),
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

    /// Reads every object that was acknowledged: how many there are, and how many are as they were put.
    pub(crate) fn read_back(&self) -> anyhow::Result<(usize, usize)> {
        self.inside(|endpoint, shared| {
            let (agent, numbers) = (agent(), locked(&shared.acknowledged).clone());
            Ok((numbers.len(), numbers.iter().filter(|number| endpoint.holds(&agent, **number)).count()))
        })
    }
}

fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None).build().into()
}

impl Shared {
    fn put(&self, agent: &Agent, endpoint: &Endpoint) {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let bytes = content(number);
        let begun = Instant::now();
        let good = endpoint.put(agent, number, &bytes).is_ok();
        if good {
            locked(&self.acknowledged).push(number);
        }
        self.note(Op { kind: Kind::Put, begun, ended: Instant::now(), good });
    }

    fn get(&self, agent: &Agent, endpoint: &Endpoint) {
        let begun = Instant::now();
        let number = {
            let acknowledged = locked(&self.acknowledged);
            let ops = locked(&self.ops).len();
            // One that was put at any time, another one each time.
            acknowledged.get((ops * 7_919) % acknowledged.len().max(1)).copied()
        };
        let Some(number) = number else { return std::thread::sleep(PAUSE) };
        let good = endpoint.holds(agent, number);
        self.note(Op { kind: Kind::Get, begun, ended: Instant::now(), good });
    }

    fn note(&self, op: Op) {
        let good = op.good;
        locked(&self.ops).push(op);
        if !good {
            std::thread::sleep(PAUSE);
        }
    }
}
