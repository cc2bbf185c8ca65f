//! What comes between two steps of a store: each meeting happens in the middle of a call to the disk.

use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend};
use store::{Options, ReadError, Store, WriteError};

const SEGMENT: u64 = 32 << 10;

/// What a disk is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Create,
    Read,
    Sync,
}

type Meet = Box<dyn FnMut(Operation, &str) -> io::Result<()> + Send>;

/// A disk on which something else happens in the middle, and which may fail because of it.
#[derive(Clone)]
struct Meeting {
    disk: CrashBackend,
    meet: Arc<Mutex<Option<Meet>>>,
    room: Option<u64>,
    /// Reads so far.
    reads: Arc<AtomicUsize>,
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

impl Meeting {
    fn new() -> Self {
        Self { disk: CrashBackend::new(), meet: Arc::default(), room: None, reads: Arc::default() }
    }

    /// From now on `meet` is called before everything that is asked, but not by what it does itself.
    fn set(&self, meet: impl FnMut(Operation, &str) -> io::Result<()> + Send + 'static) {
        *self.meet.lock().expect("no panic") = Some(Box::new(meet));
    }

    fn ask(&self, asked: Operation, name: &str) -> io::Result<()> {
        let meet = self.meet.lock().expect("no panic").take();
        let Some(mut meet) = meet else { return Ok(()) };
        let answer = meet(asked, name);
        self.meet.lock().expect("no panic").get_or_insert(meet);
        answer
    }

    fn open(&self, capacity: u64) -> Arc<Store> {
        let options =
            Options { capacity, reserve: SEGMENT, segment_size: SEGMENT, cluster: 7, target: 3, secret: 0x5eed };
        Arc::new(Store::open(Box::new(self.clone()), options).expect("opens").0)
    }

    /// The segment files.
    fn segments(&self) -> Vec<String> {
        let names = self.disk.list().expect("lists").into_iter().map(|(name, _)| name);
        names.filter(|name| name.starts_with("segment-")).collect()
    }
}

impl Backend for Meeting {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.disk.list()
    }

    fn create(&self, name: &str, len: u64) -> io::Result<()> {
        self.ask(Operation::Create, name)?;
        self.disk.create(name, len)
    }

    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.ask(Operation::Read, name)?;
        self.disk.read_at(name, offset, buffer)
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.write_at(name, offset, bytes)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.ask(Operation::Sync, name)?;
        self.disk.sync(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn room(&self) -> Option<u64> {
        self.room
    }
}

fn chunk(n: u32) -> Bytes {
    Bytes::from([&n.to_le_bytes()[..], &[1; 3_000]].concat())
}

fn id(n: u32) -> ChunkId {
    ChunkId::of_payload(&chunk(n))
}

fn append(store: &Store, n: u32) {
    store.append(&id(n), &[chunk(n)], 0).expect("room");
}

fn put(store: &Store, n: u32) {
    append(store, n);
    store.sync().expect("syncs");
}

#[test]
fn a_writer_that_is_faster_than_the_preparation_of_a_segment_leaves_no_file_behind() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    // Ten chunks fill a segment.
    (0..6).for_each(|n| put(&store, n));
    assert!(store.wants_segment());
    let writer = Arc::clone(&store);
    disk.set(move |asked, _| {
        if asked == Operation::Create {
            (6..12).for_each(|n| put(&writer, n));
        }
        Ok(())
    });
    store.prepare_segment().expect("prepares");
    *disk.meet.lock().expect("no panic") = None;
    assert_eq!(disk.segments(), ["segment-00000001", "segment-00000003"]);
    assert_eq!(store.space().used, 2 * SEGMENT);
    (12..40).for_each(|n| put(&store, n));
    let store = disk.open(1 << 20);
    assert!((0..40).all(|n| store.read(&id(n)) == Ok(chunk(n))));
}

#[test]
fn a_chunk_that_moves_while_it_is_read_is_read_in_its_new_place() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    (0..20).for_each(|n| put(&store, n));
    (1..10).for_each(|n| store.remove(&id(n)).expect("removes"));
    let compactor = Arc::clone(&store);
    let moved = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&moved);
    disk.set(move |_, _| {
        if !done.swap(true, Ordering::Relaxed) {
            compactor.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").expect("something is won");
        }
        Ok(())
    });
    assert_eq!(store.read(&id(0)), Ok(chunk(0)));
    assert!(moved.load(Ordering::Relaxed) && !disk.segments().contains(&"segment-00000001".to_owned()));
}

#[test]
fn a_chunk_that_cannot_be_dropped_while_its_segment_is_emptied_stays() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    (0..20).for_each(|n| put(&store, n));
    assert_eq!(store.discard(&[id(0)], 1, 0).dropped, 0, "the first pass condemns");
    // Most of the first segment is dead, and the second is full to the last byte.
    (2..10).for_each(|n| store.remove(&id(n)).expect("removes"));
    (0..23).for_each(|_| store.remove(&id(2)).expect("removes"));
    let (reads, compactor) = (Arc::clone(&disk.reads), Arc::clone(&store));
    let thread = Arc::new(Mutex::new(None));
    let (begun, mut over) = (Arc::clone(&thread), false);
    disk.set(move |asked, _| {
        if asked != Operation::Create || core::mem::replace(&mut over, true) {
            return Ok(());
        }
        // The chunk is not in the index at the moment. Its segment begins to be emptied; then its tombstone has no room.
        let (compactor, before) = (Arc::clone(&compactor), reads.load(Ordering::Relaxed));
        let compact = move || compactor.compact(&mut |_| ControlFlow::Continue(()));
        *begun.lock().expect("no panic") = Some(std::thread::spawn(compact));
        while reads.load(Ordering::Relaxed) == before {
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(io::ErrorKind::StorageFull.into())
    });
    let done = store.discard(&[id(0)], 2, 1);
    assert_eq!((done.dropped, done.failed), (0, Some(WriteError::NoSpace)));
    let compaction = thread.lock().expect("no panic").take().expect("it was begun");
    compaction.join().expect("no panic").expect("compacts");
    *disk.meet.lock().expect("no panic") = None;
    assert_eq!((store.read(&id(0)), store.read(&id(1))), (Ok(chunk(0)), Ok(chunk(1))));
    drop(store);
    let store = disk.open(1 << 20);
    assert_eq!((store.read(&id(0)), store.chunks()), (Ok(chunk(0)), 12));
}

#[test]
fn a_chunk_that_is_removed_while_its_segment_is_emptied_is_not_moved() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    let small = |n: u8| Bytes::from(vec![n; 100]);
    // A record takes 192 bytes: 170 fill a segment, three make a batch.
    let ids: Vec<ChunkId> = (0..=255).map(|n| ChunkId::of_payload(&small(n))).collect();
    for (n, id) in ids.iter().enumerate() {
        store.append(id, &[small(n as u8)], 0).expect("room");
        store.sync().expect("syncs");
    }
    ids[6..170].iter().for_each(|id| store.remove(id).expect("removes"));
    let mut first_six = ids[..6].to_vec();
    first_six.sort_unstable();
    // While the second of a batch is read, the first is removed.
    let (gone, remover, mut reads) = (first_six[0], Arc::clone(&store), 0);
    disk.set(move |asked, _| {
        reads += u32::from(asked == Operation::Read);
        if reads == 2 {
            remover.remove(&gone).expect("removes");
        }
        Ok(())
    });
    assert!(store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").is_some());
    *disk.meet.lock().expect("no panic") = None;
    for store in [store, disk.open(1 << 20)] {
        assert_eq!(store.contains(&gone), None, "it came back");
        assert!(first_six[1..].iter().chain(&ids[170..]).all(|id| store.read(id).is_ok()));
    }
}

#[test]
fn a_disk_that_fails_at_the_start_is_not_taken_for_one_that_lost_something() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    (0..3).for_each(|n| put(&store, n));
    drop(store);
    // Each of its reads fails once.
    for nth in 1.. {
        let mut reads = 0;
        disk.set(move |asked, _| {
            reads += u32::from(asked == Operation::Read);
            if asked == Operation::Read && reads == nth { Err(io::Error::other("the cable")) } else { Ok(()) }
        });
        let options =
            Options { capacity: 1 << 20, reserve: 0, segment_size: SEGMENT, cluster: 7, target: 3, secret: 0x5eed };
        let failed = Store::open(Box::new(disk.clone()), options).is_err();
        *disk.meet.lock().expect("no panic") = None;
        let store = disk.open(1 << 20);
        assert!((0..3).all(|n| store.read(&id(n)) == Ok(chunk(n))), "read {nth}");
        if !failed {
            assert!(nth > 5, "identity, headers and three payloads are read, and not in {} times", nth - 1);
            return;
        }
    }
}

#[test]
fn a_disk_that_does_not_read_is_no_proof_of_damage() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    (0..20).for_each(|n| put(&store, n));
    (2..10).for_each(|n| store.remove(&id(n)).expect("removes"));
    disk.set(|asked, _| if asked == Operation::Read { Err(io::Error::other("the cable")) } else { Ok(()) });
    assert_eq!(store.read(&id(0)), Err(ReadError::Io("the cable".to_owned())));
    let scrubbed = store.scrub(None, u64::MAX);
    assert_eq!((scrubbed.bad.len(), scrubbed.unreadable.len()), (0, 12));
    assert_eq!(store.compact(&mut |_| ControlFlow::Continue(())), Ok(None), "what cannot be read cannot be moved");
    *disk.meet.lock().expect("no panic") = None;
    assert!([0, 1].into_iter().chain(10..20).all(|n| store.read(&id(n)) == Ok(chunk(n))));
}

#[test]
fn a_full_file_system_is_told_from_a_capacity_that_is_used_up() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    disk.set(|asked, _| if asked == Operation::Create { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) });
    assert_eq!(store.prepare_segment(), Err(WriteError::FileSystemFull));
    assert_eq!(store.append(&id(0), &[chunk(0)], 0), Err(WriteError::FileSystemFull));
    assert_eq!((store.contains(&id(0)), store.space().used), (None, 0));
    *disk.meet.lock().expect("no panic") = None;
    put(&store, 0);
    // What the file system still has is asked before: a segment for chunks, and the reserve, which is three.
    for (room, refused) in [(4 * SEGMENT, false), (4 * SEGMENT - 1, true), (0, true)] {
        let disk = Meeting { room: Some(room), ..Meeting::new() };
        let store = disk.open(1 << 20);
        assert_eq!(store.space().free > 0, !refused, "{room}: {:?}", store.space());
        assert_eq!(store.wants_segment(), !refused, "{room}");
        assert_eq!(store.nearly_full(), refused.then_some(WriteError::FileSystemFull), "{room}");
        let result = store.append(&id(0), &[chunk(0)], 0);
        assert_eq!(result.err(), refused.then_some(WriteError::FileSystemFull), "{room}");
    }
    let store = Meeting::new().open(4 * SEGMENT);
    put(&store, 0);
    assert_eq!(store.nearly_full(), None, "most of the segment is free");
    (1..10).for_each(|n| put(&store, n));
    assert_eq!(store.nearly_full(), Some(WriteError::NoSpace));
    assert_eq!(store.read(&id(99)), Err(ReadError::Missing));
}

#[test]
fn what_a_killed_process_left_unsynced_and_the_next_start_calls_a_copy_outlasts_a_power_cut() {
    for seed in 0..30 {
        let disk = Meeting::new();
        let store = disk.open(1 << 20);
        put(&store, 0);
        append(&store, 1);
        // The process is killed before its sync; what it wrote is with the kernel.
        disk.set(|asked, _| if asked == Operation::Sync { Err(io::Error::other("killed")) } else { Ok(()) });
        assert!(store.sync().is_err());
        *disk.meet.lock().expect("no panic") = None;
        drop(store);
        let store = disk.open(1 << 20);
        assert_eq!(store.read(&id(1)), Ok(chunk(1)));
        disk.disk.crash(seed);
        drop(store);
        assert_eq!(disk.open(1 << 20).read(&id(1)), Ok(chunk(1)), "seed {seed}");
    }
}

#[test]
fn a_chunk_that_is_put_again_while_a_scrub_reads_its_damaged_copy_stays() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    put(&store, 0);
    let (name, offset) = (disk.segments()[0].clone(), 2_000);
    disk.disk.write_at(&name, offset, &[7; 8]).expect("writes");
    assert_eq!(store.read(&id(0)), Err(ReadError::Corrupt));
    assert_eq!(store.discard(&[id(0)], 1, 0).dropped, 0, "the first pass condemns");
    let (other, mut over) = (Arc::clone(&store), false);
    disk.set(move |asked, _| {
        if asked == Operation::Read && !core::mem::replace(&mut over, true) {
            assert_eq!(other.discard(&[id(0)], 2, 1).dropped, 1);
            put(&other, 0);
        }
        Ok(())
    });
    // What it has read was bad, and is not there any more.
    let scrubbed = store.scrub(None, u64::MAX);
    *disk.meet.lock().expect("no panic") = None;
    assert_eq!((scrubbed.bad, scrubbed.failed), (vec![], None));
    for store in [store, disk.open(1 << 20)] {
        assert_eq!(store.read(&id(0)), Ok(chunk(0)));
    }
}

#[test]
fn a_damaged_copy_for_whose_tombstone_there_was_no_room_is_buried_when_there_is_some() {
    let disk = Meeting::new();
    let store = disk.open(1 << 20);
    // Ten chunks fill a segment, and no other can be made.
    (0..10).for_each(|n| put(&store, n));
    disk.set(|asked, _| if asked == Operation::Create { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) });
    while store.remove(&id(9)).is_ok() {}
    disk.disk.write_at(&disk.segments()[0], 2_000, &[7; 8]).expect("writes");
    let scrubbed = store.scrub(None, u64::MAX);
    assert!(scrubbed.bad == [id(0)] && scrubbed.failed.is_some(), "{scrubbed:?}");
    assert_eq!((store.contains(&id(0)), store.damaged()), (None, (1, false)));
    *disk.meet.lock().expect("no panic") = None;
    // It need not be met again.
    let scrubbed = store.scrub(Some(id(1)), 1);
    assert_eq!(scrubbed.failed, None, "{scrubbed:?}");
    let store = disk.open(1 << 20);
    assert_eq!((store.contains(&id(0)), store.damaged()), (None, (1, false)));
    put(&store, 0);
    assert_eq!((store.read(&id(0)), store.damaged()), (Ok(chunk(0)), (0, false)));
}
