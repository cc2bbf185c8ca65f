//! What a node counts, as a page in the OpenMetrics text format that Prometheus reads.
//!
//! Counting is a relaxed atomic addition, or a short lock for what happens once a chunk. Machines count nothing: they
//! report events.

mod switch;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use protocol::id::ChunkId;
use protocol::initiator::{self, Fetched, Stored};
use protocol::machine::IgnoredReason;
use protocol::target;
use protocol::time::{Instant, Span};
use protocol::wire::{Answer, DropReason};
use store::{Recovery, Store};

use crate::arrivals::{Arrivals, MOST};

pub use switch::SwitchMetrics;

/// The media type of a page.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Counters distinguished by one label.
type Labelled = Family<[(&'static str, &'static str); 1], Counter>;

/// Datagrams and bytes of one kind in one direction.
#[derive(Clone, Debug)]
struct Traffic {
    datagrams: Counter,
    bytes: Counter,
}

impl Traffic {
    fn add(&self, datagrams: u64, bytes: u64) {
        self.datagrams.inc_by(datagrams);
        self.bytes.inc_by(bytes);
    }
}

/// What one node's sockets carry and drop, all of it datagrams. Clones share the counters.
#[derive(Clone, Debug)]
pub struct CarrierMetrics {
    datagrams: [Labelled; 2],
    bytes: [Labelled; 2],
    /// By direction, then by kind: control, data.
    traffic: [[Traffic; 2]; 2],
    dropped: Labelled,
    /// By the number of a socket's inode: what the kernel had dropped there when it was asked last.
    overflows: Arc<Mutex<BTreeMap<u64, u64>>>,
}

/// Why something is dropped that connections carry: a frame that waits for one that ends, or that has none to wait for; and why a connection
/// is ended.
const TCP: [&str; 5] = ["connection_lost", "no_connection", "malformed_frame", "stranger", "too_many_connections"];

/// The reason for which the kernel drops what the node has no time to take.
const OVERFLOW: &str = "receive_buffer";

impl Default for CarrierMetrics {
    fn default() -> Self {
        let (datagrams, bytes) =
            ([Labelled::default(), Labelled::default()], [Labelled::default(), Labelled::default()]);
        let traffic = |way: usize, kind| Traffic {
            datagrams: datagrams[way].get_or_create_owned(&[("kind", kind)]),
            bytes: bytes[way].get_or_create_owned(&[("kind", kind)]),
        };
        let traffic = [0, 1].map(|way| ["control", "data"].map(|kind| traffic(way, kind)));
        let dropped = Labelled::default();
        prepare(&dropped, "reason", &DropReason::ALL.map(DropReason::name));
        prepare(&dropped, "reason", &IgnoredReason::ALL.map(IgnoredReason::name));
        prepare(&dropped, "reason", &["no_address", "backlog", "send_failed", "not_encrypted", OVERFLOW]);
        prepare(&dropped, "reason", &TCP);
        Self { datagrams, bytes, traffic, dropped, overflows: Arc::default() }
    }
}

impl CarrierMetrics {
    /// Datagrams were handed to the kernel, of `bytes` in all.
    pub fn sent(&self, data: bool, datagrams: u64, bytes: u64) {
        self.traffic[0][usize::from(data)].add(datagrams, bytes);
    }

    /// Datagrams came in, of `bytes` in all, whether good or not.
    pub fn received(&self, data: bool, datagrams: u64, bytes: u64) {
        self.traffic[1][usize::from(data)].add(datagrams, bytes);
    }

    /// Datagrams were dropped.
    pub fn dropped(&self, reason: &'static str, datagrams: u64) {
        self.dropped.get_or_create(&[("reason", reason)]).inc_by(datagrams);
    }

    /// From now on the node receives at the sockets with these inodes.
    pub(crate) fn watch(&self, inodes: impl Iterator<Item = u64>) {
        self.count_overflows();
        let mut known = self.overflows.lock().unwrap_or_else(PoisonError::into_inner);
        *known = inodes.map(|inode| (inode, known.get(&inode).copied().unwrap_or_default())).collect();
    }

    /// Asks the kernel what it dropped since it was asked last, because a socket's buffer was full.
    pub(crate) fn count_overflows(&self) {
        let mut known = self.overflows.lock().unwrap_or_else(PoisonError::into_inner);
        for table in ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"] {
            // Without it there is nothing to count.
            let table = std::fs::read_to_string(table).unwrap_or_default();
            for (inode, drops) in table.lines().skip(1).filter_map(overflows_of) {
                if let Some(counted) = known.get_mut(&inode) {
                    self.dropped(OVERFLOW, drops.saturating_sub(*counted));
                    *counted = drops.max(*counted);
                }
            }
        }
    }

    fn register(&self, registry: &mut Registry) {
        for (way, n) in [("sent", 0), ("received", 1)] {
            let help = format!("Datagrams {way}, by kind");
            registry.register(format!("datagrams_{way}"), help, self.datagrams[n].clone());
            registry.register(
                format!("bytes_{way}"),
                format!("Bytes {way} in datagrams, by kind"),
                self.bytes[n].clone(),
            );
        }
        registry.register("dropped", "Datagrams dropped, by reason", self.dropped.clone());
    }
}

/// Inode and drops of a socket: the tenth and thirteenth column of the kernel's tables of UDP sockets.
fn overflows_of(line: &str) -> Option<(u64, u64)> {
    let mut columns = line.split_whitespace().skip(9);
    Some((columns.next()?.parse().ok()?, columns.nth(2)?.parse().ok()?))
}

fn seconds(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e9
}

/// A page of everything in `registry`.
fn page(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, registry).and_then(|()| encode_eof(&mut text));
    text
}

/// Lets series exist from the beginning, at zero.
fn prepare(family: &Labelled, label: &'static str, values: &[&'static str]) {
    values.iter().for_each(|value| drop(family.get_or_create(&[(label, *value)])));
}

fn count(family: &Labelled, label: &'static str, value: &'static str) {
    increment(&family.get_or_create(&[(label, value)]));
}

fn increment(counter: &Counter) {
    counter.inc();
}

fn counter(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    let gauge = Gauge::default();
    registry.register(name, help, gauge.clone());
    gauge
}

/// Seconds from 10 microseconds to 5 s.
fn histogram(registry: &mut Registry, name: &str, help: &str) -> Histogram {
    let histogram = Histogram::new(exponential_buckets(0.000_01, 2.0, 20));
    registry.register(name, help, histogram.clone());
    histogram
}

const fn answer_name(answer: &Answer) -> &'static str {
    match answer {
        Answer::Window(_) => "window",
        Answer::Part(_) => "part",
        Answer::HaveIt | Answer::HavePiece(_) => "have_it",
        Answer::NotHere => "not_here",
        Answer::Busy(_) => "busy",
        Answer::NoSpace => "no_space",
        Answer::Stale => "stale",
    }
}

fn bids(registry: &mut Registry, help: &str) -> Labelled {
    let bids = Labelled::default();
    prepare(&bids, "answer", &["window", "have_it", "not_here", "busy", "no_space", "stale"]);
    registry.register("bids", help, bids.clone());
    bids
}

/// What a target counts.
#[derive(Debug)]
pub struct TargetMetrics {
    registry: Registry,
    store: Arc<Store>,
    net: CarrierMetrics,
    bids: Labelled,
    windows: Labelled,
    start_late: Histogram,
    start_early: Histogram,
    overrun: Histogram,
    repairs_asked: Counter,
    repairs_sent: Counter,
    copies: Counter,
    copy_bytes: Counter,
    write: Histogram,
    sync: Histogram,
    corrupt: Counter,
    last_corrupt: Family<[(&'static str, String); 1], Gauge>,
    torn: Counter,
    disk_failed: Gauge,
    discarded: [Counter; 2],
    restored: Counter,
    moved: [Counter; 2],
    let_go: [Counter; 2],
    compacted: Counter,
    in_progress: Gauge,
    /// Transfers that were offered, and those of them that have a window of their own.
    arrivals: [Mutex<Arrivals>; 2],
    intervals: Family<[(&'static str, &'static str); 2], Gauge>,
    met: Family<[(&'static str, &'static str); 1], Gauge>,
    epoch: Gauge,
    chunks: Gauge,
    missed: Gauge,
    gaps: Gauge,
    space: [Gauge; 5],
}

/// The names of both kinds of [`TargetMetrics::arrivals`], and of how many came.
const ARRIVALS: [&str; 2] = ["offered", "accepted"];
const CAME: [&str; MOST + 1] = ["0", "1", "2", "3", "4+"];

/// What is counted of chunks that were put on emptier targets.
const MOVED: [&str; 2] = ["moved_chunks", "moved_bytes"];

impl TargetMetrics {
    /// The counters of target `id`, all zero.
    #[must_use]
    pub fn new(id: u32, store: Arc<Store>, net: CarrierMetrics) -> Self {
        let label = (Cow::from("target"), Cow::from(id.to_string()));
        let mut registry = Registry::with_prefix_and_labels("reservoir_target", std::iter::once(label));
        let r = &mut registry;
        net.register(r);
        let windows = Labelled::default();
        prepare(&windows, "fate", &["accepted", "expired", "released"]);
        r.register("windows", "Reserved windows: accepted, expired unaccepted, given up", windows.clone());
        let last_corrupt = Family::default();
        let (intervals, met) = (Family::default(), Family::default());
        let help =
            "Intervals as long as the mean time between two of the last 4,096 transfers, by how many began in them";
        r.register("intervals", help, intervals.clone());
        r.register("met", "Of those transfers, begun before the time of an earlier one was over", met.clone());
        r.register("last_corrupt_copy", "The chunk whose copy here was last found damaged", last_corrupt.clone());
        let space = [
            gauge(r, "capacity_bytes", "Bytes that its segment files may take of the disk"),
            gauge(r, "used_bytes", "Bytes that they take, used or not"),
            gauge(r, "written_bytes", "Bytes written to them, dead ones included"),
            gauge(r, "dead_bytes", "Bytes written that nothing refers to any more"),
            gauge(r, "free_bytes", "Bytes that new chunks may take"),
        ];
        Self {
            bids: bids(r, "Bids sent, by what they answer"),
            windows,
            start_late: histogram(r, "start_late_seconds", "How long after the promised moment transfers began"),
            start_early: histogram(r, "start_early_seconds", "How long before the promised moment transfers began"),
            overrun: histogram(r, "overrun_seconds", "How long after the end of their windows transfers ended"),
            repairs_asked: counter(r, "repairs_asked", "Requests for missing ranges of copies on their way in"),
            repairs_sent: counter(r, "repairs_sent", "Missing ranges of copies on their way out sent again"),
            copies: counter(r, "copies_stored", "Copies made durable"),
            copy_bytes: counter(r, "copy_bytes_stored", "Bytes of copies made durable"),
            write: histogram(r, "write_seconds", "From handing a copy to the disk until it is durable"),
            sync: histogram(r, "fsync_seconds", "Time of the sync that makes a group of copies durable"),
            corrupt: counter(r, "corrupt_copies", "Copies that were found damaged on this disk, and dropped or lost"),
            last_corrupt,
            torn: counter(
                r,
                "torn_records",
                "Records that were not whole at the start, as a crash leaves the last ones",
            ),
            disk_failed: gauge(r, "disk_failed", "1 when a write has failed, so that no more chunks are taken"),
            restored: counter(r, "restored_chunks", "Chunks put again because they had too few copies"),
            moved: MOVED.map(|name| counter(r, name, "Chunks put on emptier targets, or their bytes")),
            let_go: [
                counter(r, "surplus_copies", "Copies dropped because there are enough others"),
                counter(r, "surplus_bytes", "Bytes of them"),
            ],
            discarded: [
                counter(r, "discarded_copies", "Copies dropped because nothing refers to them"),
                counter(r, "discarded_bytes", "Bytes of them"),
            ],
            compacted: counter(r, "compacted_bytes", "Bytes won back by compaction"),
            in_progress: gauge(r, "in_progress", "Copies on their way in or out"),
            arrivals: Default::default(),
            intervals,
            met,
            epoch: gauge(r, "map_epoch", "Epoch of the cluster map in use"),
            chunks: gauge(r, "chunks", "Chunks held"),
            missed: gauge(
                r,
                "damaged_chunks",
                "Chunks whose copy here was damaged and dropped, and is not here again; and records that cannot be read",
            ),
            gaps: gauge(r, "damaged_places", "Places of segments that the start found unreadable or missing"),
            space,
            store,
            net,
            registry,
        }
    }

    fn arrivals(&self, which: usize) -> std::sync::MutexGuard<'_, Arrivals> {
        self.arrivals[which].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The machine reported an event.
    pub(crate) fn event(&self, now: Instant, event: &target::Event) {
        let window = |fate| count(&self.windows, "fate", fate);
        match event {
            target::Event::Bid { answer } => {
                count(&self.bids, "answer", answer_name(answer));
                if let Some(slot) = answer.window() {
                    self.arrivals(0).add(now + slot.start, slot.length, None);
                }
            }
            target::Event::Accepted { id, start, length } => {
                window("accepted");
                self.arrivals(1).add(*start, *length, Some(*id));
            }
            target::Event::Expired => window("expired"),
            target::Event::Waiting { id } => self.arrivals(1).forget(*id),
            target::Event::Released { id } => {
                window("released");
                self.arrivals(1).forget(*id);
            }
            target::Event::Started { late_nanos } => {
                let histogram = if *late_nanos < 0 { &self.start_early } else { &self.start_late };
                histogram.observe(Duration::from_nanos(late_nanos.unsigned_abs()).as_secs_f64());
            }
            target::Event::Overrun { by } => self.overrun.observe(seconds(*by)),
            target::Event::Stored { bytes, took, .. } => {
                self.copies.inc();
                self.copy_bytes.inc_by(u64::from(*bytes));
                self.write.observe(seconds(*took));
            }
            target::Event::RepairAsked => increment(&self.repairs_asked),
            target::Event::RepairSent => increment(&self.repairs_sent),
            target::Event::Ignored(why) => self.net.dropped(why.name(), 1),
            target::Event::Corrupt { id } => self.damaged(id),
            target::Event::DiskFailed => {
                self.disk_failed.set(1);
            }
            target::Event::Restored { .. } => increment(&self.restored),
            target::Event::Moved { bytes, .. } => {
                increment(&self.moved[0]);
                self.moved[1].inc_by(*bytes);
            }
            target::Event::LetGo { bytes, .. } => {
                increment(&self.let_go[0]);
                self.let_go[1].inc_by(*bytes);
            }
            target::Event::Discarded { chunks, bytes } => {
                self.discarded[0].inc_by(u64::from(*chunks));
                self.discarded[1].inc_by(*bytes);
            }
            target::Event::NewerMap(_) => {}
        }
    }

    fn damaged(&self, id: &ChunkId) {
        self.corrupt.inc();
        // Only the last one is shown: a rotting disk must not fill the page.
        self.last_corrupt.clear();
        self.last_corrupt.get_or_create(&[("chunk", id.to_string())]).set(1);
    }

    /// What was struck out when the store was opened.
    pub(crate) fn recovered(&self, recovery: &Recovery) {
        recovery.damaged.iter().for_each(|id| self.damaged(id));
        self.torn.inc_by((recovery.torn.len() + recovery.cut.len()) as u64);
        self.corrupt.inc_by(recovery.gaps.iter().map(|gap| gap.records).sum());
        self.gaps.set(recovery.gaps.len() as i64);
    }

    /// A group of writes was made durable.
    pub(crate) fn synced(&self, took: Duration) {
        self.sync.observe(took.as_secs_f64());
    }

    /// Compaction won bytes back.
    pub(crate) fn compacted(&self, bytes: u64) {
        self.compacted.inc_by(bytes);
    }

    /// Copies on their way, now.
    pub(crate) fn set_in_progress(&self, copies: usize) {
        self.in_progress.inner().store(copies as i64, Ordering::Relaxed);
    }

    /// The map in use.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.epoch.set(i64::from(epoch));
    }

    /// Everything, now.
    #[must_use]
    pub fn page(&self) -> String {
        self.net.count_overflows();
        let space = self.store.space();
        let values = [space.capacity, space.used, space.written, space.dead, space.free];
        for (gauge, bytes) in self.space.iter().zip(values) {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.chunks.set(i64::try_from(self.store.chunks()).unwrap_or(i64::MAX));
        self.missed.set(i64::try_from(self.store.damaged().0).unwrap_or(i64::MAX));
        for (which, of) in ARRIVALS.into_iter().enumerate() {
            let spread = self.arrivals(which).spread();
            for (came, intervals) in CAME.into_iter().zip(spread.intervals) {
                self.intervals.get_or_create(&[("of", of), ("came", came)]).set(intervals as i64);
            }
            self.met.get_or_create(&[("of", of)]).set(spread.met as i64);
        }
        page(&self.registry)
    }
}

/// What an initiator counts.
#[derive(Debug)]
pub struct InitiatorMetrics {
    registry: Registry,
    net: CarrierMetrics,
    bids: Labelled,
    puts: Labelled,
    gets: Labelled,
    puts_with_fewer_copies: Counter,
    put_rounds: Counter,
    get_rounds: Counter,
    put: Histogram,
    get: Histogram,
    repairs_asked: Counter,
    repairs_sent: Counter,
    corrupt: Counter,
    epoch: Gauge,
}

impl InitiatorMetrics {
    /// Counters, all zero.
    #[must_use]
    pub fn new(net: &CarrierMetrics) -> Self {
        let mut registry = Registry::with_prefix("reservoir_initiator");
        let r = &mut registry;
        net.register(r);
        let (puts, gets) = (Labelled::default(), Labelled::default());
        prepare(&puts, "outcome", &["done", "failed"]);
        prepare(&gets, "outcome", &["done", "failed"]);
        r.register("puts", "Puts of chunks, by outcome", puts.clone());
        r.register("gets", "Gets of chunks, by outcome", gets.clone());
        Self {
            bids: bids(r, "Bids received, by what they answer"),
            puts,
            gets,
            puts_with_fewer_copies: counter(
                r,
                "puts_with_fewer_copies",
                "Puts that were acknowledged with fewer copies than wanted, as failure domains were down",
            ),
            put_rounds: counter(r, "put_rounds", "Negotiations that the finished puts needed"),
            get_rounds: counter(r, "get_rounds", "Negotiations that the finished gets needed"),
            put: histogram(r, "put_seconds", "From the request of a put to its last needed acknowledgement"),
            get: histogram(r, "get_seconds", "From the request of a get to the verified bytes"),
            repairs_asked: counter(r, "repairs_asked", "Requests for missing ranges of gets"),
            repairs_sent: counter(r, "repairs_sent", "Missing ranges of puts sent again"),
            corrupt: counter(r, "corrupt_copies", "Copies that arrived damaged"),
            epoch: gauge(r, "map_epoch", "Epoch of the cluster map in use"),
            net: net.clone(),
            registry,
        }
    }

    fn outcome<T, E>(family: &Labelled, result: &Result<T, E>) {
        count(family, "outcome", if result.is_ok() { "done" } else { "failed" });
    }

    /// The machine reported an event.
    pub(crate) fn event(&self, event: &initiator::Event) {
        match event {
            initiator::Event::Put { result, .. } => {
                Self::outcome(&self.puts, result);
                if let Ok(stored @ Stored { took, rounds, .. }) = result {
                    self.puts_with_fewer_copies.inc_by(u64::from(stored.lacks_copies()));
                    self.put_rounds.inc_by(u64::from(*rounds));
                    self.put.observe(seconds(*took));
                }
            }
            initiator::Event::Get { result, .. } => {
                Self::outcome(&self.gets, result);
                if let Ok(Fetched { took, rounds, .. }) = result {
                    self.get_rounds.inc_by(u64::from(*rounds));
                    self.get.observe(seconds(*took));
                }
            }
            initiator::Event::Bid { answer } => count(&self.bids, "answer", answer_name(answer)),
            initiator::Event::RepairAsked => increment(&self.repairs_asked),
            initiator::Event::RepairSent => increment(&self.repairs_sent),
            initiator::Event::Ignored(why) => self.net.dropped(why.name(), 1),
            initiator::Event::Hedged | initiator::Event::Multicast { .. } => {}
            initiator::Event::CorruptCopy { .. } => increment(&self.corrupt),
            initiator::Event::Pieces { .. } | initiator::Event::Query { .. } | initiator::Event::NewerMap(_) => {}
        }
    }

    /// The map in use.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.epoch.set(i64::from(epoch));
    }

    /// Everything, now.
    #[must_use]
    pub fn page(&self) -> String {
        self.net.count_overflows();
        page(&self.registry)
    }
}
