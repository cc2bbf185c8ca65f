//! What was synced survives every crash; what is damaged is never returned.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use store::backend::{Backend, CrashBackend, FileBackend, MemoryBackend};
use store::{Options, ReadError, Recovery, Store, StoreError, WriteError};

fn options() -> Options {
    Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed }
}

fn payload(rng: &mut Rng, longest: u64) -> Bytes {
    (0..rng.below(longest) + 1).map(|_| rng.next_u64() as u8).collect()
}

fn open(disk: &CrashBackend) -> Store {
    opened(disk).0
}

fn opened(disk: &CrashBackend) -> (Store, Recovery) {
    Store::open(Box::new(disk.clone()), options()).expect("opens")
}

/// What the segment files take of the disk.
fn files(disk: &CrashBackend) -> u64 {
    let files = disk.list().expect("lists").into_iter();
    files.filter(|(name, _)| name.starts_with("segment-")).map(|(_, len)| len).sum()
}

/// Opens a store that met crashes and no damage.
fn undamaged(disk: &CrashBackend, seed: u64) -> Store {
    let (store, recovery) = opened(disk);
    assert_eq!((recovery.damaged, recovery.gaps), (vec![], vec![]), "seed {seed}: a crash was taken for damage");
    store
}

#[test]
fn synced_chunks_survive_crashes_in_every_seed() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let disk = CrashBackend::new();
        let mut durable: BTreeMap<ChunkId, Bytes> = BTreeMap::new();
        let mut removed: Vec<Bytes> = Vec::new();
        for life in 0..4 {
            let store = undamaged(&disk, seed);
            for (id, bytes) in &durable {
                assert_eq!(store.read(id).as_ref(), Ok(bytes), "seed {seed}, life {life}");
            }
            let mut pending = BTreeMap::new();
            for _ in 0..rng.below(60) {
                match rng.below(10) {
                    0 => {
                        store.sync().expect("syncs");
                        durable.append(&mut pending);
                    }
                    1 => {
                        if let Some(id) = durable.keys().nth(rng.below(durable.len() as u64) as usize).copied() {
                            store.remove(&id).expect("removes");
                            removed.extend(durable.remove(&id));
                            durable.append(&mut pending);
                        }
                    }
                    3 if rng.chance(1, 2) => store.prepare_segment().expect("prepares"),
                    2 => {
                        let broken_off = rng.chance(1, 4);
                        let mut pause = |_| if broken_off { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                        store.compact(&mut pause).expect("compacts");
                        store.sync().expect("syncs");
                        durable.append(&mut pending);
                    }
                    _ => {
                        let again = if rng.chance(1, 3) { removed.pop() } else { None };
                        let bytes = again.unwrap_or_else(|| payload(&mut rng, 3_000));
                        let id = ChunkId::of_payload(&bytes);
                        match store.append(&id, &[bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..)], 0) {
                            Ok(()) => drop(pending.insert(id, bytes)),
                            Err(error) => assert_eq!(error, WriteError::NoSpace, "seed {seed}"),
                        }
                    }
                }
            }
            for id in pending.keys() {
                // Rolling to a new segment syncs the old one, so some may be visible; none may be wrong.
                assert!(matches!(store.read(id), Ok(_) | Err(ReadError::Missing)), "seed {seed}");
            }
            let space = store.space();
            assert_eq!(space.used, files(&disk), "seed {seed}");
            assert!(space.used <= space.capacity, "seed {seed}: {space:?}");
            drop(store);
            disk.crash(rng.next_u64());
            let store = undamaged(&disk, seed);
            for (id, bytes) in &pending {
                match store.read(id) {
                    Ok(read) => assert_eq!(read, *bytes, "seed {seed}"),
                    Err(error) => assert_eq!(error, ReadError::Missing, "seed {seed}"),
                }
            }
            for id in pending.keys().filter(|id| store.contains(id).is_some()).copied().collect::<Vec<_>>() {
                durable.insert(id, pending.remove(&id).expect("it is there"));
            }
            assert_eq!(store.chunks(), durable.len() as u64, "seed {seed}");
        }
    }
}

#[test]
fn a_flipped_byte_is_found_and_never_returned() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let disk = CrashBackend::new();
        let store = open(&disk);
        let chunks: Vec<Bytes> = (0..20).map(|_| payload(&mut rng, 2_000)).collect();
        for bytes in &chunks {
            store.append(&ChunkId::of_payload(bytes), std::slice::from_ref(bytes), 0).expect("room");
        }
        store.sync().expect("syncs");
        assert!(disk.flip_byte(seed));
        let mut bad = 0;
        for bytes in &chunks {
            match store.read(&ChunkId::of_payload(bytes)) {
                Ok(read) => assert_eq!(read, bytes, "seed {seed}"),
                Err(error) => {
                    assert_eq!(error, ReadError::Corrupt, "seed {seed}");
                    bad += 1;
                }
            }
        }
        let scrubbed = store.scrub(None, u64::MAX);
        assert_eq!((scrubbed.bad.len(), scrubbed.next), (bad, None), "seed {seed}");
        for id in scrubbed.bad {
            assert_eq!(store.contains(&id), None);
        }
    }
}

#[test]
fn rot_that_is_met_at_the_start_is_told_from_a_torn_write() {
    let chunk = |n: u8| Bytes::from(vec![n; 5_000]);
    let id = |n: u8| ChunkId::of_payload(&chunk(n));
    // Three groups, each made durable by a sync of its own, in one segment or in two.
    for (groups, segments) in [([2_u8, 2, 1], 1), ([2, 4, 2], 2)] {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let mut chunks = 0;
        for group in groups {
            for _ in 0..group {
                store.append(&id(chunks), &[chunk(chunks)], 0).expect("room");
                chunks += 1;
            }
            store.sync().expect("syncs");
        }
        drop(store);
        assert_eq!(files(&disk), segments * (32 << 10));
        for rotten in 0..chunks {
            let disk = copy(&disk);
            let place = locate(&disk, &chunk(rotten)[..64]);
            disk.write_at(&place.0, place.1, b"rot").expect("writes");
            disk.sync(&place.0).expect("syncs");
            let (store, recovery) = opened(&disk);
            // The last group may have been written and not synced.
            let sure = rotten < groups[0] + groups[1];
            let found = if sure { &recovery.damaged } else { &recovery.torn };
            assert_eq!(found[..], [id(rotten)], "{groups:?}: {rotten}: {recovery:?}");
            assert_eq!(recovery.torn.len() + recovery.damaged.len(), 1);
            let others = (0..chunks).filter(|n| *n != rotten);
            assert!(others.into_iter().all(|n| store.read(&id(n)) == Ok(chunk(n))), "{rotten} hides others");
            drop(store);
            let (store, recovery) = opened(&disk);
            assert_eq!((store.chunks(), recovery.torn, recovery.damaged), (u64::from(chunks) - 1, vec![], vec![]));
        }
    }
}

/// A disk with the same files.
fn copy(disk: &CrashBackend) -> CrashBackend {
    let other = CrashBackend::new();
    for (name, len) in disk.list().expect("lists") {
        let mut bytes = vec![0; len as usize];
        disk.read_at(&name, 0, &mut bytes).expect("reads");
        other.create(&name, len).expect("creates");
        other.write_at(&name, 0, &bytes).expect("writes");
        other.sync(&name).expect("syncs");
    }
    other
}

/// The file and place of these bytes.
fn locate(disk: &CrashBackend, bytes: &[u8]) -> (String, u64) {
    let found = disk.list().expect("lists").into_iter().find_map(|(name, len)| {
        let mut all = vec![0; len as usize];
        disk.read_at(&name, 0, &mut all).expect("reads");
        let at = all.windows(bytes.len()).position(|window| window == bytes)?;
        Some((name, at as u64))
    });
    found.expect("it is on the disk")
}

#[test]
fn a_bad_copy_that_cannot_be_struck_out_does_not_count_and_is_reported() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let bytes = Bytes::from(vec![7; 3_000]);
    let id = ChunkId::of_payload(&bytes);
    store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
    store.sync().expect("syncs");
    let place = locate(&disk, &bytes[..64]);
    disk.write_at(&place.0, place.1, b"rot").expect("writes");
    disk.set_fail_sync(true);
    let scrubbed = store.scrub(None, u64::MAX);
    assert_eq!(scrubbed.bad, [id]);
    assert!(matches!(scrubbed.failed, Some(WriteError::Io(_))), "{scrubbed:?}");
    assert_eq!((store.contains(&id), store.space().dead), (None, store.space().written));
}

#[test]
fn tombstones_stay_while_they_bury_something_and_go_afterwards() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let chunk = |n: u32| Bytes::from(vec![n as u8; 3_000 + n as usize]);
    let id = |n: u32| ChunkId::of_payload(&chunk(n));
    let put = |store: &Store, n| {
        store.append(&id(n), &[chunk(n)], 0).expect("room");
        store.sync().expect("syncs");
    };
    let compact = |store: &Store| {
        while store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").is_some() {}
    };
    // Ten chunks fill a segment. Of the first one two are removed: too few for it to be emptied.
    (0..10).for_each(|n| put(&store, n));
    (10..20).for_each(|n| put(&store, n));
    [0, 1].iter().for_each(|n| store.remove(&id(*n)).expect("removes"));
    // The segments with the tombstones are emptied, again and again.
    for round in 1..6 {
        let new = round * 20..round * 20 + 30;
        new.clone().filter(|n| *n >= 20).for_each(|n| put(&store, n));
        new.for_each(|n| store.remove(&id(n)).expect("removes"));
        compact(&store);
    }
    drop(store);
    disk.crash(1);
    let store = open(&disk);
    assert_eq!(store.chunks(), 18, "a removed chunk came back, or one that was not is gone");
    assert!((2..20).all(|n| store.read(&id(n)) == Ok(chunk(n))));
    // Nothing is buried any more: after the first segment the tombstones go as well.
    (2..20).for_each(|n| store.remove(&id(n)).expect("removes"));
    (200..220).for_each(|n| put(&store, n));
    compact(&store);
    drop(store);
    disk.crash(2);
    let store = open(&disk);
    let (space, tombstone) = (store.space(), 64);
    assert_eq!(store.chunks(), 20);
    assert!(space.dead < 20 * tombstone, "of 170 tombstones too many are left: {space:?}");
}

#[test]
fn a_segment_that_cannot_be_emptied_is_in_no_others_way() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let chunk = |n: u8| Bytes::from(vec![n; 3_000]);
    let id = |n: u8| ChunkId::of_payload(&chunk(n));
    // Ten chunks fill a segment.
    for n in 0..25 {
        store.append(&id(n), &[chunk(n)], 0).expect("room");
        store.sync().expect("syncs");
    }
    // More of the first segment is dead than of the second, but what is left of it has rotted.
    (1..9).chain(11..18).for_each(|n| store.remove(&id(n)).expect("removes"));
    let place = locate(&disk, &chunk(0)[..64]);
    disk.write_at(&place.0, place.1, b"rot").expect("writes");
    let before = files(&disk);
    let won = store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts");
    assert!(won.is_some() && files(&disk) < before, "{won:?}");
    assert_eq!((store.read(&id(0)), store.read(&id(10))), (Err(ReadError::Corrupt), Ok(chunk(10))));
    // The scrub strikes it out, and its segment follows.
    assert_eq!(store.scrub(None, u64::MAX).bad, [id(0)]);
    assert!(store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").is_some());
    assert_eq!(store.chunks(), 25 - 15 - 1);
}

#[test]
fn the_files_never_take_more_than_the_capacity() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let chunk = |n: u32| Bytes::from([&n.to_le_bytes()[..], &[1; 2_000]].concat());
    let id = |n: u32| ChunkId::of_payload(&chunk(n));
    let mut held = Vec::new();
    for round in 0..3 {
        for n in round * 1_000.. {
            if n % 3 == 0 {
                store.prepare_segment().expect("prepares, or has no room for it");
            }
            let free = store.space().free;
            match store.append(&id(n), &[chunk(n)], 0) {
                Ok(()) => held.push(n),
                Err(error) => {
                    assert_eq!(error, WriteError::NoSpace);
                    assert!(free < 2_112, "{free} bytes were called free");
                    break;
                }
            }
            assert!(free >= 2_112, "{free} bytes were called free");
            assert_eq!(store.space().used, files(&disk));
        }
        store.sync().expect("syncs");
        let space = store.space();
        assert!(
            space.used <= space.capacity - (32 << 10) && space.written > space.capacity * 8 / 10,
            "{space:?}, round {round}"
        );
        // Tombstones and compaction find room on the full disk, and do not leave the room that they took.
        let (gone, kept): (Vec<u32>, Vec<u32>) = held.drain(..).partition(|n| n % 4 != 0);
        gone.iter().for_each(|n| store.remove(&id(*n)).expect("removes"));
        assert!(files(&disk) <= space.capacity);
        while store
            .compact(&mut |_| {
                assert!(files(&disk) <= space.capacity);
                ControlFlow::Continue(())
            })
            .expect("compacts")
            .is_some()
        {}
        assert!(store.space().used <= space.capacity * 2 / 3, "{:?}", store.space());
        assert!(kept.iter().all(|n| store.read(&id(*n)) == Ok(chunk(*n))));
        held = kept;
    }
}

#[test]
fn payload_that_imitates_records_is_not_believed_when_the_header_before_it_rots() {
    let id = |text: &str| ChunkId::of_payload(text.as_bytes());
    // A record of "wrong" with other bytes and a tombstone of "kept", as this build would write them, and newer than what
    // is there.
    let forge = CrashBackend::new();
    let store = open(&forge);
    (0..10).for_each(|_| store.remove(&id("nothing")).expect("removes"));
    store.append(&id("wrong"), &[Bytes::from_static(b"other bytes")], 0).expect("room");
    store.remove(&id("kept")).expect("removes");
    let mut forged = vec![0; 192];
    forge.read_at("segment-00000001", 64 + 10 * 64, &mut forged).expect("reads");
    // Once the header rots among the last segments, whose payload is checked, and once among the older ones.
    for old in [false, true] {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let (kept, forged) = (Bytes::from_static(b"kept"), Bytes::from(forged.clone()));
        let put = |store: &Store, bytes: &Bytes| {
            store.append(&ChunkId::of_payload(bytes), std::slice::from_ref(bytes), 0).expect("room");
            store.sync().expect("syncs");
        };
        put(&store, &forged);
        put(&store, &kept);
        if old {
            (0..4).for_each(|n| put(&store, &Bytes::from(vec![n; 20_000])));
        }
        drop(store);
        disk.write_at("segment-00000001", 64, b"rot").expect("writes");
        for n in 0..4 {
            let store = open(&disk);
            assert_eq!(store.contains(&id("wrong")), None, "start {n}");
            assert_eq!(store.read(&id("kept")).as_ref(), Ok(&kept), "start {n}");
            // Two segments more.
            [20_000, 20_001].iter().for_each(|len| put(&store, &Bytes::from(vec![100 + n; *len])));
        }
    }
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let mut rng = Rng::new(1);
    let mut kept = Vec::new();
    loop {
        let bytes: Bytes = (0..9_000).map(|_| rng.next_u64() as u8).collect();
        let id = ChunkId::of_payload(&bytes);
        match store.append(&id, std::slice::from_ref(&bytes), 0) {
            Ok(()) => kept.push((id, bytes)),
            Err(error) => {
                assert_eq!(error, WriteError::NoSpace);
                break;
            }
        }
    }
    store.sync().expect("syncs");
    assert!(kept.len() > 50 && store.space().free < 9_064);
    assert!(kept.iter().all(|(id, bytes)| store.read(id).as_ref() == Ok(bytes)));
    for (id, _) in &kept {
        store.remove(id).expect("tombstones use the reserve");
    }
    while store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").is_some() {}
    assert!(store.space().written <= kept.len() as u64 * 64, "{:?}", store.space());
}

#[test]
fn after_a_failed_sync_nothing_is_called_durable() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let bytes = Bytes::from_static(b"never acknowledged");
    let id = ChunkId::of_payload(&bytes);
    store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
    disk.set_fail_sync(true);
    assert!(matches!(store.sync(), Err(WriteError::Io(_))));
    disk.set_fail_sync(false);
    assert!(matches!(store.append(&id, &[bytes], 0), Err(WriteError::Io(_))));
    assert_eq!(store.contains(&id), None);
}

#[test]
fn an_append_that_fails_takes_along_what_was_not_synced_before_it() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let [first, second] = [vec![1; 20_000], vec![2; 20_000]].map(Bytes::from);
    let id = ChunkId::of_payload(&first);
    store.append(&id, &[first], 0).expect("room");
    disk.set_fail_sync(true);
    // It does not fit into the segment: what is in it is synced first, in vain.
    assert!(matches!(store.append(&ChunkId::of_payload(&second), &[second], 0), Err(WriteError::Io(_))));
    disk.set_fail_sync(false);
    assert!(matches!(store.sync(), Err(WriteError::Io(_))), "the first append was never made durable");
    assert_eq!(store.contains(&id), None);
}

#[test]
fn restarts_go_on_where_writing_stopped() {
    let disk = CrashBackend::new();
    let mut held = Vec::new();
    for n in 0..100_u32 {
        let store = open(&disk);
        let bytes = Bytes::from(vec![n as u8; 40 + n as usize]);
        let id = ChunkId::of_payload(&bytes);
        store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
        store.sync().expect("syncs");
        held.push((id, bytes));
        let used = store.space().written;
        assert!(used < 100 * 256, "{used} bytes after {n} restarts");
    }
    let segments = disk.list().expect("lists").iter().filter(|(name, _)| name.starts_with("segment-")).count();
    assert_eq!(segments, 1);
    let store = open(&disk);
    assert!(held.iter().all(|(id, bytes)| store.read(id).as_ref() == Ok(bytes)));
}

#[test]
fn a_directory_of_another_target_is_refused() {
    let disk = CrashBackend::new();
    drop(open(&disk));
    let other = Store::open(Box::new(disk.clone()), Options { target: 4, ..options() });
    assert!(matches!(other, Err(StoreError::Other { found_target: 3, target: 4, .. })));
    let other = Store::open(Box::new(disk), Options { cluster: 8, ..options() });
    assert!(matches!(other, Err(StoreError::Other { found_cluster: 7, cluster: 8, .. })));
}

#[test]
fn real_files_are_found_again_and_locked() {
    let dir = tempfile::tempdir().expect("a directory");
    let bytes = Bytes::from(vec![5; 10_000]);
    let id = ChunkId::of_payload(&bytes);
    let backend = FileBackend::open(dir.path()).expect("opens");
    assert!(FileBackend::open(dir.path()).is_err(), "two stores in one directory");
    let (store, _) = Store::open(Box::new(backend), options()).expect("opens");
    store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
    store.sync().expect("syncs");
    assert_eq!(store.list(&id.encode()[..3], None, 10), (vec![id], false));
    assert_eq!(store.list(&id.encode()[..3], Some(&id), 10), (Vec::new(), false));
    drop(store);
    let backend = FileBackend::open(dir.path()).expect("opens");
    assert!(backend.list().expect("lists").len() >= 2);
    let (store, recovery) = Store::open(Box::new(backend), options()).expect("opens");
    assert_eq!(recovery, Recovery { chunks: 1, bytes: 10_000, ..Recovery::default() });
    assert_eq!(store.read(&id), Ok(bytes));
}

#[test]
fn files_are_read_to_their_end_and_not_behind_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let backends: [Box<dyn Backend>; 2] =
        [Box::new(FileBackend::open(dir.path()).expect("opens")), Box::new(MemoryBackend::default())];
    for backend in backends {
        backend.create("file", 8_192).expect("room");
        let bytes: Vec<u8> = (0..5_000_u32).map(|n| n as u8).collect();
        backend.write_at("file", 0, &bytes).expect("room");
        assert_eq!(backend.read("file", 3, 4_990).expect("is there"), bytes[3..4_993]);
        assert_eq!(backend.read("file", 8_190, 2).expect("is there"), [0, 0]);
        assert_eq!(backend.read("file", 8_190, 3).map_err(|error| error.kind()), Err(ErrorKind::UnexpectedEof));
        assert_eq!(backend.read("none", 0, 1).map_err(|error| error.kind()), Err(ErrorKind::NotFound));
    }
}

#[test]
fn compaction_wins_back_space_on_real_files_while_others_write_and_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let backend = FileBackend::open(dir.path()).expect("opens");
    let options = Options { capacity: 64 << 20, reserve: 2 << 20, segment_size: 4 << 20, ..options() };
    let (store, _) = Store::open(Box::new(backend), options.clone()).expect("opens");
    let mut rng = Rng::new(3);
    let mut put = |store: &Store| {
        let bytes: Bytes = (0..200_000).map(|_| rng.next_u64() as u8).collect();
        let id = ChunkId::of_payload(&bytes);
        store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
        store.sync().expect("syncs");
        (id, bytes)
    };
    let mut chunks: Vec<(ChunkId, Bytes)> = (0..100).map(|_| put(&store)).collect();
    let (removed, kept): (Vec<_>, Vec<_>) = chunks.drain(..).enumerate().partition(|(n, _)| n % 5 != 0);
    removed.iter().for_each(|(_, (id, _))| store.remove(id).expect("removes"));
    chunks.extend(kept.into_iter().map(|(_, chunk)| chunk));
    let on_disk = || -> u64 {
        let entries = std::fs::read_dir(dir.path()).expect("a directory");
        entries.map(|e| e.expect("an entry").metadata().expect("a file").len()).sum()
    };
    let (before, dead) = (on_disk(), store.space().dead);
    assert!(dead > 15_000_000, "{:?}", store.space());
    let mut won = 0;
    loop {
        // New chunks come while it works: they are written in between, and everything stays readable.
        let mut new = Vec::new();
        let result = store.compact(&mut |bytes| {
            assert!(bytes <= 2 << 20, "a batch of {bytes} bytes holds up writes");
            new.push(put(&store));
            assert!(chunks.iter().all(|(id, bytes)| store.read(id).as_ref() == Ok(bytes)));
            ControlFlow::Continue(())
        });
        chunks.append(&mut new);
        match result.expect("compacts") {
            Some(bytes) => won += bytes,
            None => break,
        }
    }
    assert!(won > dead * 3 / 4, "{won} of {dead} dead bytes were won");
    assert!(store.space().dead < dead / 4 && on_disk() < before / 2, "{:?}, {} of {before}", store.space(), on_disk());
    drop(store);
    let backend = FileBackend::open(dir.path()).expect("opens");
    let (store, recovery) = Store::open(Box::new(backend), options).expect("opens");
    assert_eq!(recovery.chunks, chunks.len() as u64);
    assert!(chunks.iter().all(|(id, bytes)| store.read(id).as_ref() == Ok(bytes)));
    assert!(removed.iter().all(|(_, (id, _))| store.contains(id).is_none()), "a removed chunk came back");
}

#[test]
fn the_backends_behave_alike() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = FileBackend::open(dir.path()).expect("opens");
    let (memory, crash) = (MemoryBackend::new(), CrashBackend::new());
    let backends: [&dyn Backend; 3] = [&file, &memory, &crash];
    let mut rng = Rng::new(11);
    for step in 0..600 {
        let name = ["a", "b", "c"][rng.below(3) as usize];
        let (what, offset, len) = (rng.below(6), rng.below(3_000), rng.below(900) as usize);
        let bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let outcomes = backends.map(|backend| {
            let mut buffer = vec![0; len];
            let result = match what {
                0 => backend.create(name, offset),
                1 => backend.remove(name),
                2 => backend.sync(name),
                3 => backend.read_at(name, offset, &mut buffer),
                _ => backend.write_at(name, offset, &bytes),
            };
            let failed = result.is_err();
            let outcome = result.map_err(|error| error.kind());
            (outcome, if failed { Vec::new() } else { buffer }, backend.list().expect("lists"))
        });
        assert_eq!(outcomes[0], outcomes[1], "step {step}: {what} {name} {offset} {len}");
        assert_eq!(outcomes[0], outcomes[2], "step {step}: {what} {name} {offset} {len}");
    }
}

#[test]
fn a_store_in_memory_holds_chunks() {
    let files = MemoryBackend::new();
    let bytes = Bytes::from(vec![6; 9_000]);
    let id = ChunkId::of_payload(&bytes);
    let (store, _) = Store::open(Box::new(files.clone()), options()).expect("opens");
    store.append(&id, std::slice::from_ref(&bytes), 0).expect("room");
    store.sync().expect("syncs");
    drop(store);
    let (store, recovery) = Store::open(Box::new(files), options()).expect("opens");
    assert_eq!((recovery.chunks, store.read(&id)), (1, Ok(bytes)));
}
