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

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId, OpId};
use protocol::machine::{Completion, Effect, WriteFailure};
use protocol::target::{Event, Request, Setup, Target};
use protocol::time::Instant;
pub use store::IDENTITY;
use store::backend::FileBackend;
use store::{GROUP, Gap, Options, ReadError, Recovery, Store, WriteError};

use crate::config::{ClusterConfig, TargetConfig};
use crate::metrics::TargetMetrics;
use crate::net::Net;
use crate::port::{self, Host, Mail, Mailbox};
use crate::private::Tightened;
use crate::reload::MapInUse;
use crate::{NodeError, io, random};

/// Segments are this long, or a sixteenth of the capacity.
const SEGMENT: u64 = 64 << 20;

/// How often a segment is looked for that is more than half dead.
const COMPACT_EVERY: Duration = Duration::from_secs(5);
/// Bytes a second that compaction moves, so that it stays behind puts and gets.
const COMPACT_RATE: u64 = 16 << 20;

/// A running target.
#[derive(Debug)]
pub struct TargetNode {
    mailbox: Mailbox<Request>,
    threads: Vec<JoinHandle<()>>,
    metrics: Arc<TargetMetrics>,
}

enum Write {
    Chunk { op: OpId, id: ChunkId, pieces: Vec<Bytes>, verify: bool, promise: u32, removal: bool },
    Discard { op: OpId, ids: Vec<ChunkId>, mark: u32, since: u32 },
}

impl Write {
    /// The operation, if it is of a chunk whose bytes are not those that its id names.
    fn damaged(&self) -> Option<OpId> {
        match self {
            Self::Chunk { op, id, pieces, verify: true, .. } => {
                (!id.matches(pieces.iter().map(|piece| &piece[..]))).then_some(*op)
            }
            Self::Chunk { .. } | Self::Discard { .. } => None,
        }
    }
}

enum Read {
    Chunk { op: OpId, id: ChunkId },
    Scrub { op: OpId, after: Option<ChunkId>, max_bytes: u64 },
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
        match self.store.at_once(effect) {
            Ok(completion) => return Some(completion),
            // The threads end only after this one: their ends of the channels are there.
            Err(Effect::Write { id, pieces, verify, promise, removal }) => {
                drop(self.writes.send(Write::Chunk { op, id, pieces, verify, promise, removal }));
            }
            Err(Effect::Discard { ids, mark, since }) => {
                drop(self.writes.send(Write::Discard { op, ids, mark, since }))
            }
            Err(Effect::Read { id }) => drop(self.reads.send(Read::Chunk { op, id })),
            Err(Effect::Scrub { after, max_bytes }) => drop(self.reads.send(Read::Scrub { op, after, max_bytes })),
            Err(other) => unreachable!("{other:?} does not wait for the disk"),
        }
        None
    }

    fn reload(&mut self) -> Option<(ClusterConfig, Request)> {
        let (config, map) = self.map.reload(&format!("target {}", self.id.0))?;
        if map.target(self.id).is_none() {
            tracing::warn!("target {}: it is not in the cluster map any more: stop it", self.id.0);
        }
        self.metrics.set_epoch(config.epoch);
        Some((config, Request::Map(map)))
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
            Event::NeedMap { epoch } => {
                if self.map.is_time(now, epoch) {
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
        let map = config.map()?;
        let (store, recovery) = open_store(config, target)?;
        let chunks = recovery.chunks;
        let net = Net::open(config, target.address, NodeId(id))?;
        let free = store.space().free;
        let setup = Setup { id: NodeId(id), map: map.clone(), free, chunks, bug: None };
        let machine = Target::new(setup, config.protocol(*target.address.ip()));
        let metrics = Arc::new(TargetMetrics::new(id, Arc::clone(&store), net.metrics.clone()));
        metrics.set_epoch(map.epoch.0);
        metrics.recovered(&recovery);
        let threads = "lower the load on this host, or raise its limits";
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
            map: MapInUse::new(config, &map),
            mailbox: mailbox.clone(),
            metrics: Arc::clone(&metrics),
        };
        let (counted, watched) = (Arc::clone(&metrics), Arc::clone(&metrics));
        let port = Box::new(move || {
            if let Err(error) = port::run(machine, net, &mail, &own, &mut host) {
                tracing::error!("target {id}: its loop ended: {error}; restart it");
            }
        });
        let threads = vec![
            spawn(format!("port-{id}"), port)?,
            spawn(format!("hash-{id}"), Box::new(move || hash_loop(&verifier, &arrived, &verified, &hash_mail)))?,
            spawn(
                format!("write-{id}"),
                Box::new(move || write_loop(&writer, &write_queue, &write_mail, delay, &bell, &counted)),
            )?,
            spawn(format!("space-{id}"), Box::new(move || space_loop(id, &keeper, &rings, &space_mail, &watched)))?,
            spawn(format!("read-{id}"), Box::new(move || read_loop(&reader, &read_queue, &read_mail)))?,
        ];
        tracing::info!("target {id} is ready on {} with {chunks} chunks", target.address);
        Ok(Self { mailbox, threads, metrics })
    }

    /// Finishes the writes under way and ends.
    pub fn stop(self) {
        self.mailbox.send(Mail::Stop);
        for thread in self.threads {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }

    /// Looks whether there is a newer cluster map.
    pub fn reload(&self) {
        self.mailbox.send(Mail::Reload);
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
    let mut tightened = Tightened::default();
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
    recovery.gaps.iter().for_each(|gap| tell_gap(target.id, gap));
    for id in &recovery.damaged {
        tracing::error!("target {}: dropped the copy of {id}, which was damaged; check the disk", target.id);
    }
    Ok((Arc::new(store), recovery))
}

/// Says that a place of a segment cannot be read.
fn tell_gap(id: u32, gap: &Gap) {
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
        secret: random(),
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
    // What cannot be looked at is not known to be missing: to open it tells more.
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
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(above)?.sync_all()
    };
    make().map_err(io(
        format!("target {id}: making its directory {}", dir.display()),
        "mount its disk or make the directory above it",
    ))
}

/// Verifies chunks while those before them are written. Everything keeps its place.
fn hash_loop(store: &Store, queue: &Receiver<Write>, writer: &SyncSender<Write>, mailbox: &Mailbox<Request>) {
    port::after_ports();
    while let Ok(write) = queue.recv() {
        match write.damaged() {
            Some(op) => {
                let completion = Completion::Written { result: Err(WriteFailure::BadHash), free: store.space().free };
                mailbox.send(Mail::Done(op, completion));
            }
            // The writer ends only after this one.
            None => drop(writer.send(write)),
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
    port::after_ports();
    while let Ok(first) = queue.recv() {
        let mut group: Vec<Write> = std::iter::once(first).chain(queue.try_iter().take(GROUP - 1)).collect();
        let mut results: Vec<(OpId, Result<(), WriteFailure>)> = Vec::new();
        for write in group.drain(..) {
            match write {
                Write::Chunk { op, id, pieces, promise, removal, .. } => {
                    let append = if removal { Store::append_removal } else { Store::append };
                    let result = append(store, &id, &pieces, promise).map_err(|error| failure(&error));
                    results.push((op, result));
                }
                Write::Discard { op, ids, mark, since } => {
                    mailbox.send(Mail::Done(op, discard(store, &ids, mark, since)));
                }
            }
        }
        if results.is_empty() {
            continue;
        }
        let begun = std::time::Instant::now();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let synced = store.sync().map_err(|error| failure(&error));
        metrics.synced(begun.elapsed());
        let free = store.space().free;
        for (op, result) in results {
            mailbox.send(Mail::Done(op, Completion::Written { result: result.and(synced), free }));
        }
        if store.wants_segment() {
            // A full bell rings already.
            let _ = bell.try_send(());
        }
    }
}

fn discard(store: &Store, ids: &[ChunkId], mark: u32, since: u32) -> Completion {
    let done = store.discard(ids, mark, since);
    done.failed.iter().for_each(tell);
    done.into()
}

/// Keeps a segment ready ahead of the writer, wins back space, and tells how much there is: others may use the file system
/// as well.
fn space_loop(id: u32, store: &Store, bell: &Receiver<()>, mailbox: &Mailbox<Request>, metrics: &TargetMetrics) {
    port::after_ports();
    let mut full = None;
    let mut look = || {
        let why = store.nearly_full();
        if let Some(why) = why.as_ref().filter(|why| full.as_ref() != Some(*why)) {
            tracing::warn!("target {id}: it takes no more chunks soon, or now: {why}");
        }
        full = why;
        mailbox.send(Mail::Request(Request::Free(store.space().free)));
    };
    look();
    // Told once until it works again: on a full disk every write asks anew, and the log may be on that disk.
    let told = std::cell::Cell::new(false);
    let prepare = || match store.prepare_segment() {
        Ok(()) => told.set(false),
        Err(error) if !told.replace(true) => tracing::warn!("cannot prepare a segment: {error}"),
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
        look();
    }
}

fn failure(error: &WriteError) -> WriteFailure {
    tell(error);
    error.into()
}

fn tell(error: &WriteError) {
    match error {
        WriteError::NoSpace | WriteError::FileSystemFull => {}
        WriteError::Exhausted(why) => tracing::error!("a write failed: {why}"),
        WriteError::Io(problem) => tracing::error!("a write failed: {problem}; check the disk"),
    }
}

fn read_loop(store: &Store, queue: &Receiver<Read>, mailbox: &Mailbox<Request>) {
    port::after_ports();
    while let Ok(read) = queue.recv() {
        let (op, completion) = match read {
            Read::Chunk { op, id } => {
                let result = store.read(&id);
                match &result {
                    Err(ReadError::Corrupt) => {
                        tracing::warn!("the copy of {id} was found damaged when it was read; a scrub of it follows");
                    }
                    Err(ReadError::Exhausted(why)) => tracing::error!("reading {id} failed: {why}"),
                    Err(ReadError::Io(problem)) => tracing::error!("reading {id} failed: {problem}; check the disk"),
                    Ok(_) | Err(ReadError::Missing) => {}
                }
                (op, Completion::Read(result.map_err(|error| (&error).into())))
            }
            Read::Scrub { op, after, max_bytes } => {
                let scrubbed = store.scrub(after, max_bytes);
                let (next, bytes, bad) = (scrubbed.next, scrubbed.bytes, scrubbed.bad);
                for (id, problem) in &scrubbed.unread {
                    tracing::error!("reading {id} failed in a scrub: {problem}; check the disk");
                }
                let result = scrubbed.failed.map_or(Ok(()), |error| {
                    tracing::error!("damaged copies could not be struck out: {error}; the next start finds them again");
                    Err(failure(&error))
                });
                (op, Completion::Scrubbed { next, bytes, bad, result })
            }
        };
        mailbox.send(Mail::Done(op, completion));
    }
}
