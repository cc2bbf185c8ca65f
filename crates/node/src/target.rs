//! A target as a process: its store behind three threads (one verifies what is to be written, one commits in groups, one
//! reads), its loop in front.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use protocol::id::{NodeId, OpId};
use protocol::machine::{Completion, Effect, WriteFailure};
use protocol::target::{Event, Request, Setup, Target};
use protocol::time::Instant;
pub use store::IDENTITY;
use store::backend::FileBackend;
use store::{GROUP, Gap, Options, Read, ReadError, Recovery, Report, Store, Trouble, Work, Write, WriteError};

use crate::atomic_file;
use crate::config::{ClusterConfig, TargetConfig};
use crate::event_loop::{self, Host, Mail, Mailbox};
use crate::metrics::TargetMetrics;
use crate::permissions::PermissionFixes;
use crate::reload::MapInUse;
use crate::sockets;
use crate::{NodeError, io, random};

/// Segments are this long, or a sixteenth of the capacity.
const SEGMENT: u64 = 64 << 20;

/// How often a segment is sought that is more than half dead.
const COMPACT_EVERY: Duration = Duration::from_secs(5);
/// Bytes a second that compaction moves, so that it stays behind puts and gets.
const COMPACT_RATE: u64 = 16 << 20;

/// A running target.
#[derive(Debug)]
pub struct TargetNode {
    mailbox: Mailbox<Request>,
    threads: Vec<JoinHandle<()>>,
    metrics: Arc<TargetMetrics>,
    map: MapInUse,
}

struct TargetHost {
    id: NodeId,
    store: Arc<Store>,
    writes: Sender<Write>,
    reads: Sender<Read>,
    map: MapInUse,
    mailbox: Mailbox<Request>,
    metrics: Arc<TargetMetrics>,
}

impl Host<Target> for TargetHost {
    fn effect(&mut self, op: OpId, effect: Effect) -> Option<Completion> {
        // The threads end only after this one: their ends of the channels are there.
        match self.store.work(op, effect) {
            Work::Done(completion) => return Some(completion),
            Work::Write(write) => drop(self.writes.send(write)),
            Work::Read(read) => drop(self.reads.send(read)),
        }
        None
    }

    fn reload(&mut self) {
        let (id, metrics, mailbox) = (self.id, Arc::clone(&self.metrics), self.mailbox.clone());
        self.map.look(format!("target {}", id.0), move |config, map| {
            if map.target(id).is_none() {
                tracing::warn!("target {}: it is not in the cluster map any more: stop it", id.0);
            }
            metrics.set_epoch(config.epoch);
            mailbox.send(Mail::Map(Box::new(config), Request::Map(map)));
        });
    }

    fn event(&mut self, now: Instant, event: Event) {
        self.metrics.event(now, &event);
        match event {
            Event::Corrupt { id } => {
                tracing::error!("target {}: dropped the copy of {id}, which was damaged; check the disk", self.id.0);
            }
            Event::DiskFailed => tracing::error!(
                "target {}: its disk failed a write: it takes no more chunks, and serves those that it has; replace the \
                 disk, or restart the target if the disk is well again",
                self.id.0
            ),
            Event::NewerMap(newer) => {
                if self.map.hear_of(now, newer) {
                    self.mailbox.send(Mail::Reload);
                }
            }
            other => tracing::trace!("target {}: {other:?}", self.id.0),
        }
    }

    fn settled(&mut self, machine: &Target) {
        self.metrics.set_in_progress(machine.in_progress());
    }
}

impl TargetNode {
    /// Opens the store and starts the target's threads.
    ///
    /// # Errors
    /// The directory, the store, or the address cannot be had.
    pub fn start(config: &ClusterConfig, id: u32) -> Result<Self, NodeError> {
        let target = config.targets.iter().find(|t| t.id == id).ok_or(NodeError::NoSuchTarget(id))?;
        let map = config.map_to_hand_on()?;
        let (store, recovery) = open_store(config, target)?;
        let chunks = recovery.chunks;
        let mut carrier = sockets::open(config, target.address, NodeId(id))?;
        let free = store.space().free;
        let setup = Setup { id: NodeId(id), map: map.clone(), free, chunks, seed: random()?, bug: None };
        let machine = Target::new(setup, config.protocol(target.address.ip()));
        let metrics = Arc::new(TargetMetrics::new(id, Arc::clone(&store), carrier.metrics().clone()));
        metrics.set_epoch(map.epoch.0);
        metrics.recovered(&recovery);
        let threads = "lower the load on this host, or raise its limits";
        let in_use = MapInUse::new(config, &map);
        let (mailbox, mail) = Mailbox::new().map_err(io("starting a target", threads))?;
        let (writes, arrived) = channel();
        let (verified, write_queue) = sync_channel(GROUP);
        let (reads, read_queue) = channel();
        let delay = Duration::from_millis(target.write_delay_ms);
        let spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name).spawn(work).map_err(io("starting a thread", threads))
        };
        let [verifier, writer, reader, keeper] = std::array::from_fn(|_| Arc::clone(&store));
        let (bell, rings) = sync_channel(1);
        let [hash_mail, write_mail, read_mail, space_mail, own] = std::array::from_fn(|_| mailbox.clone());
        let mut host = TargetHost {
            id: NodeId(id),
            store,
            writes,
            reads,
            map: in_use.clone(),
            mailbox: mailbox.clone(),
            metrics: Arc::clone(&metrics),
        };
        let (counted, watched) = (Arc::clone(&metrics), Arc::clone(&metrics));
        let event_loop = Box::new(move || {
            if let Err(error) = event_loop::run(machine, &mut *carrier, &mail, &own, &mut host) {
                tracing::error!("target {id}: its loop ended: {error}; restart it");
            }
        });
        let threads = vec![
            spawn(format!("loop-{id}"), event_loop)?,
            spawn(format!("hash-{id}"), Box::new(move || hash_loop(&verifier, &arrived, &verified, &hash_mail)))?,
            spawn(
                format!("write-{id}"),
                Box::new(move || write_loop(&writer, &write_queue, &write_mail, delay, &bell, &counted)),
            )?,
            spawn(format!("space-{id}"), Box::new(move || space_loop(id, &keeper, &rings, &space_mail, &watched)))?,
            spawn(format!("read-{id}"), Box::new(move || read_loop(&reader, &read_queue, &read_mail)))?,
        ];
        mailbox.send(Mail::Request(Request::Presence { here: true }));
        tracing::info!("target {id} is ready on {} with {chunks} chunks", target.address);
        Ok(Self { mailbox, threads, metrics, map: in_use })
    }

    /// Says that it stops, finishes the writes under way and ends.
    pub fn stop(self) {
        self.mailbox.send(Mail::Request(Request::Presence { here: false }));
        self.mailbox.send(Mail::Stop);
        for thread in self.threads {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }

    /// Checks whether there is a newer cluster map.
    pub fn reload(&self) {
        self.mailbox.send(Mail::Reload);
    }

    /// The epoch of the cluster map in use.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.map.get().epoch
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> Arc<TargetMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Whether its loop still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

fn open_store(config: &ClusterConfig, target: &TargetConfig) -> Result<(Arc<Store>, Recovery), NodeError> {
    let backend = open_dir(config, target)?;
    let mut tightened = PermissionFixes::default();
    tightened.file(&config.base().join(&config.key_file));
    tightened.directory(&dir_of(config, target), is_of_store);
    tightened.log();
    let store_error = |cause| NodeError::Store { id: target.id, cause };
    let (store, recovery) = Store::open(Box::new(backend), options(config, target)?).map_err(store_error)?;
    // Before the first write, so that it does not wait for it.
    if let Err(error) = store.prepare_segment() {
        tracing::warn!("target {}: cannot prepare a segment: {error}", target.id);
    }
    for id in &recovery.torn {
        tracing::warn!(
            "target {}: the record of {id}, among the last that were written, is not whole and was struck out: a crash \
             cut it off before it was acknowledged, unless the disk has damaged it since",
            target.id
        );
    }
    if let Some(error) = &recovery.forgetful {
        let id = target.id;
        tracing::error!(
            "target {id}: that copies were damaged could not be noted, so status forgets it at the next start: {error}"
        );
    }
    for gap in &recovery.cut {
        tracing::warn!(
            "target {}: segment {} ends at offset {} with {} bytes that are no whole record: a crash cut them off before \
             they were acknowledged, unless the disk has damaged them since",
            target.id,
            gap.segment,
            gap.offset,
            gap.bytes
        );
    }
    recovery.gaps.iter().for_each(|gap| log_gap(target.id, gap));
    for id in &recovery.damaged {
        tracing::error!("target {}: dropped the copy of {id}, which was damaged; check the disk", target.id);
    }
    Ok((Arc::new(store), recovery))
}

/// Logs that a place of a segment cannot be read.
fn log_gap(id: u32, gap: &Gap) {
    let Gap { segment, offset, bytes, records, .. } = gap;
    let lost = match records {
        0 => "no record is known to be lost".to_owned(),
        n => format!("at least {n} records are lost, of which nothing else is known"),
    };
    tracing::error!(
        "target {id}: segment {segment} is damaged at offset {offset}: {bytes} bytes cannot be read or are not there; \
         {lost}; check the disk"
    );
}

fn options(config: &ClusterConfig, target: &TargetConfig) -> Result<Options, NodeError> {
    let capacity = config.capacity(target)?;
    Ok(Options {
        capacity,
        reserve: capacity / 32,
        segment_size: SEGMENT.min(capacity / 16).max(16 << 20),
        cluster: config.map()?.cluster.0,
        target: target.id,
        secret: random()?,
    })
}

fn dir_of(config: &ClusterConfig, target: &TargetConfig) -> PathBuf {
    config.base().join(&target.data)
}

/// Whether a file of this name in a target's directory belongs to its store.
fn is_of_store(name: &OsStr) -> bool {
    name == IDENTITY || name == "lock" || name.to_string_lossy().starts_with("segment-")
}

fn has_store(dir: &Path) -> bool {
    // What cannot be examined is not known to be missing: the error of opening it says more.
    dir.join(IDENTITY).try_exists().unwrap_or(true)
}

/// The directory of a store, for this process alone. One without a store is refused: the disk that it is on may not be
/// mounted, and an empty store in its place would say of every chunk that there is none.
fn open_dir(config: &ClusterConfig, target: &TargetConfig) -> Result<FileBackend, NodeError> {
    let (id, dir) = (target.id, dir_of(config, target));
    if !has_store(&dir) {
        return Err(NodeError::NoStore { id, dir, config: config.path.clone() });
    }
    lock_dir(&dir, id)
}

fn lock_dir(dir: &Path, id: u32) -> Result<FileBackend, NodeError> {
    FileBackend::open(dir).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::WouldBlock => NodeError::InUse { id, dir: dir.to_owned() },
        _ => {
            let what = format!("target {id}: opening its directory {}", dir.display());
            io(what, "make it writable for this user")(cause)
        }
    })
}

/// Whether a target's directory could be had now: a second process of one target should hear that, and not which of its
/// addresses is taken.
///
/// # Errors
/// [`NodeError::InUse`], [`NodeError::NoStore`], or the directory cannot be opened.
pub fn check_directory(config: &ClusterConfig, id: u32) -> Result<(), NodeError> {
    let target = config.targets.iter().find(|t| t.id == id).ok_or(NodeError::NoSuchTarget(id))?;
    open_dir(config, target).map(drop)
}

/// The targets of the map in whose directories there is no store, and those.
#[must_use]
pub fn without_store(config: &ClusterConfig) -> Vec<(u32, PathBuf)> {
    let all = config.targets.iter().map(|target| (target.id, dir_of(config, target)));
    all.filter(|(_, dir)| !has_store(dir)).collect()
}

/// Makes an empty store in a target's directory, and the directory, durably. Once: a target only starts where this was
/// done.
///
/// # Errors
/// [`NodeError::HasStore`], or the directory cannot be had or belongs to somebody else.
pub fn make_store(config: &ClusterConfig, id: u32) -> Result<(), NodeError> {
    let target = config.targets.iter().find(|t| t.id == id).ok_or(NodeError::NoSuchTarget(id))?;
    let dir = dir_of(config, target);
    if has_store(&dir) {
        return Err(NodeError::HasStore { id, dir });
    }
    if !dir.is_dir() {
        make_dir(&dir, id)?;
    }
    let backend = lock_dir(&dir, id)?;
    let made = Store::open(Box::new(backend), options(config, target)?);
    made.map(drop).map_err(|cause| NodeError::Store { id, cause })
}

/// Makes a target's directory, but not the tree above it: that is missing when a disk is not mounted.
fn make_dir(dir: &Path, id: u32) -> Result<(), NodeError> {
    // The name is durable before anything in it is acknowledged.
    let make = || {
        std::fs::DirBuilder::new().mode(0o700).create(dir)?;
        std::fs::File::open(atomic_file::directory(dir))?.sync_all()
    };
    make().map_err(io(
        format!("target {id}: making its directory {}", dir.display()),
        "mount its disk or make the directory above it",
    ))
}

/// Verifies chunks while those before them are written. Everything keeps its place.
fn hash_loop(store: &Store, queue: &Receiver<Write>, writer: &SyncSender<Write>, mailbox: &Mailbox<Request>) {
    event_loop::yield_to_event_loops();
    while let Ok(write) = queue.recv() {
        match write.verify() {
            // The writer ends only after this one.
            Ok(write) => drop(writer.send(write)),
            Err(op) => {
                let completion = Completion::Written { result: Err(WriteFailure::BadHash), free: store.space().free };
                mailbox.send(Mail::Done(op, completion));
            }
        }
    }
}

/// Commits in groups: everything that waits is appended, and one sync makes all of it durable.
fn write_loop(
    store: &Store,
    queue: &Receiver<Write>,
    mailbox: &Mailbox<Request>,
    delay: Duration,
    bell: &SyncSender<()>,
    metrics: &TargetMetrics,
) {
    event_loop::yield_to_event_loops();
    let mut reporter = Reporter(mailbox);
    while let Ok(first) = queue.recv() {
        let group = store.begin_group(std::iter::once(first).chain(queue.try_iter()), GROUP, &mut reporter);
        if group.is_empty() {
            continue;
        }
        let begun = std::time::Instant::now();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        store.end_group(group, &mut reporter);
        metrics.synced(begun.elapsed());
        if store.wants_segment() {
            // A full bell rings already.
            let _ = bell.try_send(());
        }
    }
}

fn read_loop(store: &Store, queue: &Receiver<Read>, mailbox: &Mailbox<Request>) {
    event_loop::yield_to_event_loops();
    while let Ok(read) = queue.recv() {
        store.answer(read, &mut Reporter(mailbox));
    }
}

/// Reports completions to the machine, and errors to the log.
struct Reporter<'a>(&'a Mailbox<Request>);

impl Report for Reporter<'_> {
    fn done(&mut self, op: OpId, completion: Completion) {
        self.0.send(Mail::Done(op, completion));
    }

    fn trouble(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Write(error) => log_write_error(&error),
            Trouble::Read(_, ReadError::Missing) => {}
            Trouble::Read(id, ReadError::Corrupt) => {
                tracing::warn!("the copy of {id} was found damaged when it was read; a scrub of it follows");
            }
            Trouble::Read(id, ReadError::Exhausted(why)) => tracing::error!("reading {id} failed: {why}"),
            Trouble::Read(id, ReadError::Io(problem)) => {
                tracing::error!("reading {id} failed: {problem}; check the disk");
            }
            Trouble::Scrub(id, problem) => {
                tracing::error!("reading {id} failed in a scrub: {problem}; check the disk");
            }
            Trouble::Strike(error) => {
                tracing::error!("damaged copies could not be struck out: {error}; the next start finds them again");
                log_write_error(&error);
            }
        }
    }
}

fn log_write_error(error: &WriteError) {
    match error {
        WriteError::NoSpace | WriteError::FileSystemFull => {}
        WriteError::Exhausted(why) => tracing::error!("a write failed: {why}"),
        WriteError::Io(problem) => tracing::error!("a write failed: {problem}; check the disk"),
    }
}

/// Keeps a segment ready ahead of the writer, wins back space, and reports how much there is: others may use the file system
/// as well.
fn space_loop(id: u32, store: &Store, bell: &Receiver<()>, mailbox: &Mailbox<Request>, metrics: &TargetMetrics) {
    event_loop::yield_to_event_loops();
    let mut full = None;
    let mut check_space = || {
        let why = store.nearly_full();
        if let Some(why) = why.as_ref().filter(|why| full.as_ref() != Some(*why)) {
            tracing::warn!("target {id}: it takes no more chunks soon, or now: {why}");
        }
        full = why;
        mailbox.send(Mail::Request(Request::Free(store.space().free)));
    };
    check_space();
    // Reported once until it works again: on a full disk every write asks anew, and the log may be on that disk.
    let warned = std::cell::Cell::new(false);
    let prepare = || match store.prepare_segment() {
        Ok(()) => warned.set(false),
        Err(error) if !warned.replace(true) => tracing::warn!("cannot prepare a segment: {error}"),
        Err(_) => {}
    };
    while !matches!(bell.recv_timeout(COMPACT_EVERY), Err(RecvTimeoutError::Disconnected)) {
        prepare();
        let pause = &mut |bytes: u64| {
            // The ring of a writer that needs a segment ends the pause.
            match bell.recv_timeout(Duration::from_micros(bytes * 1_000_000 / COMPACT_RATE)) {
                Err(RecvTimeoutError::Disconnected) => return ControlFlow::Break(()),
                Ok(()) | Err(RecvTimeoutError::Timeout) => prepare(),
            }
            ControlFlow::Continue(())
        };
        match store.compact(pause) {
            Ok(won) => won.into_iter().for_each(|bytes| metrics.compacted(bytes)),
            Err(error) => tracing::warn!("cannot compact a segment: {error}"),
        }
        check_space();
    }
}
