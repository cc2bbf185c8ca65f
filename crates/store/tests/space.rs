//! What the files take is known, also after a restart, and what is dead is won back.

use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend, FileBackend};
use store::{Options, Store, WriteError};

const SEGMENT: u64 = 32 << 10;

fn open(disk: &CrashBackend) -> Store {
    let options =
        Options { capacity: 1 << 20, reserve: 0, segment_size: SEGMENT, cluster: 7, target: 3, secret: 0x5eed };
    Store::open(Box::new(disk.clone()), options).expect("opens").0
}

fn chunk(n: u32, len: usize) -> Bytes {
    Bytes::from([&n.to_le_bytes()[..], &vec![1; len - 4]].concat())
}

fn put(store: &Store, bytes: &Bytes) -> ChunkId {
    let id = ChunkId::of_payload(bytes);
    store.append(&id, std::slice::from_ref(bytes), 0).expect("room");
    store.sync().expect("syncs");
    id
}

fn compact(store: &Store) -> u64 {
    std::iter::from_fn(|| store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts")).sum()
}

#[test]
fn fill_is_the_same_after_a_restart() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let ids: Vec<ChunkId> = (0..25).map(|n| put(&store, &chunk(n, 3_000))).collect();
    ids[5..8].iter().for_each(|id| store.remove(id).expect("removes"));
    put(&store, &chunk(5, 3_000));
    let before = store.space();
    // Three segments are begun. A record of 3,000 bytes takes 3,072 with its header, a tombstone 64.
    assert_eq!((before.used, before.written, before.dead), (3 * SEGMENT, 26 * 3_072 + 3 * 64, 3 * 3_072 + 3 * 64));
    // Of 32 segments three are the reserve; the last that is begun has six chunks and three tombstones.
    assert_eq!(before.free, 26 * (SEGMENT - 64) + SEGMENT - 64 - (6 * 3_072 + 3 * 64));
    drop(store);
    assert_eq!(open(&disk).space(), before);
}

#[test]
fn after_a_restart_tombstones_go_as_soon_as_they_bury_nothing() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    // Ten chunks fill a segment; those of the first stay.
    let kept: Vec<ChunkId> = (0..10).map(|n| put(&store, &chunk(n, 3_000))).collect();
    let gone: Vec<ChunkId> = (10..60).map(|n| put(&store, &chunk(n, 3_000))).collect();
    // Ten tombstones for each: they fill a segment.
    gone.iter().cycle().take(500).for_each(|id| store.remove(id).expect("removes"));
    drop(store);
    let store = open(&disk);
    // It is closed by those behind it.
    let more: Vec<ChunkId> = (60..80).map(|n| put(&store, &chunk(n, 3_000))).collect();
    assert!(compact(&store) >= 50 * 3_072);
    assert!(store.space().dead < 100 * 64, "tombstones that bury nothing stay: {:?}", store.space());
    drop(store);
    let store = open(&disk);
    assert!(kept.iter().chain(&more).all(|id| store.read(id).is_ok()));
    assert_eq!(store.chunks(), 30);
}

#[test]
fn tombstones_that_bury_something_are_not_moved_about() {
    // 170 records fill a segment. Less than half of each of four goes; the tombstones fill most of a fifth, or nearly half.
    for part in [8, 6] {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let ids: Vec<ChunkId> = (0..680).map(|n| put(&store, &chunk(n, 100))).collect();
        ids.iter().enumerate().filter(|(n, _)| n % 17 < part).for_each(|(_, id)| store.remove(id).expect("removes"));
        // It is closed by those behind it.
        (1_000..1_020).for_each(|n| {
            put(&store, &chunk(n, 3_000));
        });
        assert_eq!(store.compact(&mut |_| ControlFlow::Continue(())), Ok(None));
        drop(store);
        assert_eq!(open(&disk).compact(&mut |_| ControlFlow::Continue(())), Ok(None), "after a restart");
    }
}

#[test]
fn small_chunks_are_moved_in_batches_and_to_the_last() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    // A record takes 192 bytes: 170 fill a segment, three a batch of a 64th.
    let ids: Vec<ChunkId> = (0..400).map(|n| put(&store, &chunk(n, 100))).collect();
    let (kept, gone): (Vec<_>, Vec<_>) = ids[..170].iter().enumerate().partition(|(n, _)| n % 17 == 0);
    gone.iter().for_each(|(_, id)| store.remove(id).expect("removes"));
    let mut batches = Vec::new();
    let won = store.compact(&mut |bytes| {
        batches.push(bytes);
        ControlFlow::Continue(())
    });
    assert_eq!((won, store.space().reclaimed), (Ok(Some(160 * 192)), 160 * 192));
    // Ten are moved; the last of them fills no batch.
    assert_eq!(batches, [3 * 192, 3 * 192, 3 * 192, 192]);
    assert!(kept.iter().all(|(_, id)| store.read(id).is_ok()));
    drop(store);
    let store = open(&disk);
    assert!(kept.iter().all(|(_, id)| store.read(id).is_ok()) && gone.iter().all(|(_, id)| store.read(id).is_err()));
}

#[test]
fn what_the_disk_does_not_read_keeps_no_other_segment_from_being_emptied() {
    // Which segment has the sector, and whether a chunk, a tombstone or nothing that matters lies there, the seed decides.
    let mut refused = 0;
    for seed in 0..200 {
        let disk = CrashBackend::new();
        let store = open(&disk);
        // Ten chunks fill a segment. All but one of each go; the tombstones follow those of the next segment.
        for segment in 0..6 {
            let ids: Vec<ChunkId> = (0..10).map(|n| put(&store, &chunk(segment * 10 + n, 3_000))).collect();
            ids[1..].iter().for_each(|id| store.remove(id).expect("removes"));
        }
        let files = store.space().used / SEGMENT;
        assert!(disk.lose_sector(seed));
        let end = loop {
            match store.compact(&mut |_| ControlFlow::Continue(())) {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        refused += u32::from(end.is_err());
        // The six chunks that stay fill one, and one that cannot be read stays.
        let now = store.space().used / SEGMENT;
        assert!(now <= 2, "seed {seed}: {now} of {files} segments are left");
    }
    assert!((1..200).contains(&refused), "{refused} of 200 sectors lay where something is needed");
}

#[test]
fn a_scrub_goes_through_everything_a_stretch_at_a_time() {
    let store = open(&CrashBackend::new());
    let mut ids: Vec<ChunkId> = (0..150).map(|n| put(&store, &chunk(n, 1_000))).collect();
    ids.sort_unstable();
    for (most, each) in [(1, 1), (1_000, 1), (1_001, 2), (5_000, 5), (u64::MAX, 64)] {
        let mut after = None;
        for stretch in ids.chunks(each) {
            let scrubbed = store.scrub(after, most);
            assert_eq!((scrubbed.bytes, scrubbed.bad.len()), (1_000 * stretch.len() as u64, 0), "{most} bytes");
            if scrubbed.next.is_none() {
                assert_eq!(stretch.last(), ids.last(), "it ended before the end");
                break;
            }
            assert_eq!(scrubbed.next.as_ref(), stretch.last(), "{most} bytes");
            after = scrubbed.next;
        }
    }
}

#[test]
fn one_segment_is_prepared_when_the_one_in_use_is_half_full() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let files = || disk.list().expect("lists").iter().filter(|(name, _)| name.starts_with("segment-")).count();
    let mut wanted = Vec::new();
    for n in 0..20 {
        if store.wants_segment() {
            wanted.push(n);
        }
        let before = files();
        store.prepare_segment().expect("prepares");
        assert_eq!(files() - before, usize::from(wanted.last() == Some(&n)), "before chunk {n}");
        assert!(!store.wants_segment(), "before chunk {n}: one is enough");
        put(&store, &chunk(n, 3_000));
    }
    // Ten chunks fill a segment.
    assert_eq!((wanted, files()), (vec![0, 6, 16], 3));
    drop(store);
    // One that was prepared and not used goes at the next start.
    let store = open(&disk);
    assert_eq!((store.space().used, files()), (2 * SEGMENT, 2));
}

#[test]
fn the_reserve_is_not_for_chunks_and_no_record_is_longer_than_a_segment() {
    for (reserve, segments) in [(0, 7), (SEGMENT, 7), (4 * SEGMENT, 6)] {
        let options =
            Options { capacity: 10 * SEGMENT, reserve, segment_size: SEGMENT, cluster: 7, target: 3, secret: 0x5eed };
        let disk = CrashBackend::new();
        let (store, _) = Store::open(Box::new(disk.clone()), options).expect("opens");
        let long = chunk(0, SEGMENT as usize);
        assert_eq!(store.append(&ChunkId::of_payload(&long), &[long], 0), Err(WriteError::NoSpace));
        let mut ids = Vec::new();
        for n in 0.. {
            let bytes = chunk(n, 3_000);
            let id = ChunkId::of_payload(&bytes);
            if store.append(&id, &[bytes], 0).is_err() {
                break;
            }
            ids.push(id);
        }
        assert_eq!((ids.len(), store.space().used), (segments * 10, segments as u64 * SEGMENT), "reserve {reserve}");
        store.sync().expect("syncs");
        ids.iter().for_each(|id| store.remove(id).expect("tombstones use the reserve"));
        let full = ids.iter().cycle().take(10_000).find_map(|id| store.remove(id).err());
        assert_eq!((full, store.space().used), (Some(WriteError::NoSpace), 9 * SEGMENT), "the last is for compaction");
    }
}

#[test]
fn a_full_store_takes_removals_and_keeps_room_for_what_follows_them() {
    let disk = CrashBackend::new();
    let options =
        Options { capacity: 10 * SEGMENT, reserve: 0, segment_size: SEGMENT, cluster: 7, target: 3, secret: 0x5eed };
    let (store, _) = Store::open(Box::new(disk.clone()), options).expect("opens");
    let all = |first: u32, len, append: &dyn Fn(&ChunkId, Bytes) -> Result<(), WriteError>| {
        let ids = (first..).map_while(|n| {
            let id = ChunkId::of_payload(&chunk(n, len));
            append(&id, chunk(n, len)).is_ok().then_some(id)
        });
        let ids: Vec<ChunkId> = ids.collect();
        store.sync().expect("syncs");
        ids
    };
    let chunks = all(0, 3_000, &|id, bytes| store.append(id, &[bytes], 0));
    assert_eq!(store.space().used, 7 * SEGMENT);
    let removals = all(1_000, 300, &|id, bytes| store.append_removal(id, &[bytes], 0));
    // One segment of them, and what the last one of chunks had left.
    assert!(removals.len() >= 85 && store.space().used == 8 * SEGMENT, "{} removals", removals.len());
    assert_eq!(store.append(&chunks[0], &[], 0), Ok(()), "it is here");
    let other = chunk(9_999, 10);
    assert_eq!(store.append(&ChunkId::of_payload(&other), &[other], 0), Err(WriteError::NoSpace));
    // Tombstones have their own room, and compaction as well.
    chunks.iter().take(60).for_each(|id| store.remove(id).expect("room for tombstones"));
    assert!(compact(&store) > 0);
    assert!(store.space().free > 4 * SEGMENT, "{:?}", store.space());
    assert!(removals.iter().chain(&chunks[60..]).all(|id| store.read(id).is_ok()));
}

#[test]
fn a_file_system_tells_its_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let backend = FileBackend::open(dir.path()).expect("opens");
    assert!(backend.room().is_some_and(|room| room > 0));
}

#[test]
fn a_full_store_of_tiny_chunks_can_be_emptied() {
    // Live bytes for each tombstone: the fewer, the sooner tombstones fill the reserve.
    for len in [4, 70, 300, 3_000] {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let mut ids = Vec::new();
        for n in 0.. {
            let bytes = chunk(n, len);
            let id = ChunkId::of_payload(&bytes);
            if store.append(&id, &[bytes], 0).is_err() {
                break;
            }
            ids.push(id);
        }
        store.sync().expect("syncs");
        // In the order of their hashes: as many of each segment.
        ids.sort_unstable();
        for (n, id) in ids.iter().enumerate() {
            if store.remove(id).is_err() {
                assert!(compact(&store) > 0, "{len} bytes: nothing can be won with {n} of {} removed", ids.len());
                store.remove(id).expect("there is room again");
            }
        }
        compact(&store);
        assert!(store.space().free > store.space().capacity / 2, "{len} bytes: {:?}", store.space());
    }
}
