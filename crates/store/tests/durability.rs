//! What was synced survives every crash; what is damaged is never returned.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use store::backend::{Backend, CrashBackend, FileBackend, MemoryBackend};
use store::{Options, ReadError, Store, StoreError, WriteError};

fn options() -> Options {
    Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3 }
}

fn payload(rng: &mut Rng, longest: u64) -> Bytes {
    (0..rng.below(longest) + 1).map(|_| rng.next_u64() as u8).collect()
}

fn open(disk: &CrashBackend) -> Store {
    Store::open(Box::new(disk.clone()), options()).expect("opens").0
}

#[test]
fn synced_chunks_survive_crashes_in_every_seed() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let disk = CrashBackend::new();
        let mut durable: BTreeMap<ChunkId, Bytes> = BTreeMap::new();
        let mut removed: Vec<Bytes> = Vec::new();
        for life in 0..4 {
            let store = open(&disk);
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
                        match store.append(&id, &[bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..)]) {
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
            drop(store);
            disk.crash(rng.next_u64());
            let store = open(&disk);
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
            store.append(&ChunkId::of_payload(bytes), std::slice::from_ref(bytes)).expect("room");
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
fn payload_that_imitates_records_is_not_believed_when_the_header_before_it_rots() {
    let id = |text: &str| ChunkId::of_payload(text.as_bytes());
    // A record of "wrong" with other bytes and a tombstone of "kept", as this build would write them.
    let forge = CrashBackend::new();
    let store = open(&forge);
    store.append(&id("wrong"), &[Bytes::from_static(b"other bytes")]).expect("room");
    store.remove(&id("kept")).expect("removes");
    let mut forged = vec![0; 192];
    forge.read_at("segment-00000001", 64, &mut forged).expect("reads");
    let disk = CrashBackend::new();
    let store = open(&disk);
    let (kept, forged) = (Bytes::from_static(b"kept"), Bytes::from(forged));
    store.append(&ChunkId::of_payload(&forged), std::slice::from_ref(&forged)).expect("room");
    store.append(&id("kept"), std::slice::from_ref(&kept)).expect("room");
    store.sync().expect("syncs");
    drop(store);
    disk.write_at("segment-00000001", 64, b"rot").expect("writes");
    // Once among the last segments, whose payload is checked, and then among the older ones.
    for n in 0..4 {
        let store = open(&disk);
        assert_eq!(store.contains(&id("wrong")), None, "start {n}");
        assert_eq!(store.read(&id("kept")).as_ref(), Ok(&kept), "start {n}");
        let more = Bytes::from(vec![n; 9]);
        store.append(&ChunkId::of_payload(&more), &[more]).expect("room");
        store.sync().expect("syncs");
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
        match store.append(&id, std::slice::from_ref(&bytes)) {
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
    assert!(store.space().used < 128 << 10, "{:?}", store.space());
}

#[test]
fn after_a_failed_sync_nothing_is_called_durable() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let bytes = Bytes::from_static(b"never acknowledged");
    let id = ChunkId::of_payload(&bytes);
    store.append(&id, std::slice::from_ref(&bytes)).expect("room");
    disk.set_fail_sync(true);
    assert!(matches!(store.sync(), Err(WriteError::Io(_))));
    disk.set_fail_sync(false);
    assert!(matches!(store.append(&id, &[bytes]), Err(WriteError::Io(_))));
    assert_eq!(store.contains(&id), None);
}

#[test]
fn an_append_that_fails_takes_along_what_was_not_synced_before_it() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let [first, second] = [vec![1; 20_000], vec![2; 20_000]].map(Bytes::from);
    let id = ChunkId::of_payload(&first);
    store.append(&id, &[first]).expect("room");
    disk.set_fail_sync(true);
    // It does not fit into the segment: what is in it is synced first, in vain.
    assert!(matches!(store.append(&ChunkId::of_payload(&second), &[second]), Err(WriteError::Io(_))));
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
        store.append(&id, std::slice::from_ref(&bytes)).expect("room");
        store.sync().expect("syncs");
        held.push((id, bytes));
        let used = store.space().used;
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
    store.append(&id, std::slice::from_ref(&bytes)).expect("room");
    store.sync().expect("syncs");
    assert_eq!(store.list(&id.encode()[..3], None, 10), (vec![id], false));
    assert_eq!(store.list(&id.encode()[..3], Some(&id), 10), (Vec::new(), false));
    drop(store);
    let backend = FileBackend::open(dir.path()).expect("opens");
    assert!(backend.list().expect("lists").len() >= 2);
    let (store, recovery) = Store::open(Box::new(backend), options()).expect("opens");
    assert_eq!((recovery.chunks, recovery.bytes, recovery.torn), (1, 10_000, Vec::new()));
    assert_eq!(store.read(&id), Ok(bytes));
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
        store.append(&id, std::slice::from_ref(&bytes)).expect("room");
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
            let said = result.map_err(|error| error.kind());
            (said, if failed { Vec::new() } else { buffer }, backend.list().expect("lists"))
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
    store.append(&id, std::slice::from_ref(&bytes)).expect("room");
    store.sync().expect("syncs");
    drop(store);
    let (store, recovery) = Store::open(Box::new(files), options()).expect("opens");
    assert_eq!((recovery.chunks, store.read(&id)), (1, Ok(bytes)));
}
