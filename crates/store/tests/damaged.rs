//! What was dropped as damaged is remembered until it is here again, or nothing refers to it.

use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend};
use store::{Bug, Options, ReadError, Recovery, Store};

const OPTIONS: Options =
    Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };

fn open(disk: &CrashBackend) -> (Store, Recovery) {
    Store::open(Box::new(disk.clone()), OPTIONS).expect("opens")
}

fn chunk(n: u32) -> (ChunkId, Bytes) {
    let bytes = Bytes::from(n.to_le_bytes().repeat(500));
    (ChunkId::of_payload(&bytes), bytes)
}

fn put(store: &Store, n: u32) {
    let (id, bytes) = chunk(n);
    store.append(&id, &[bytes], 0).expect("room");
    store.sync().expect("syncs");
}

/// Damages a chunk on the disk.
fn rot(disk: &CrashBackend, n: u32) {
    let (_, bytes) = chunk(n);
    let found = disk.list().expect("lists").into_iter().find_map(|(name, len)| {
        let mut all = vec![0; len as usize];
        disk.read_at(&name, 0, &mut all).expect("reads");
        Some((name, all.windows(bytes.len()).position(|window| window == bytes)? as u64))
    });
    let (name, at) = found.expect("it is on the disk");
    disk.write_at(&name, at + 100, b"rot").expect("writes");
    disk.sync(&name).expect("syncs");
}

/// How many are missed, also by a store that is opened again.
fn missed(disk: &CrashBackend, store: Store) -> u64 {
    let (before, more) = store.damaged();
    drop(store);
    disk.crash(1);
    let (store, recovery) = open(disk);
    assert_eq!((store.damaged(), more, recovery.missed), ((before, false), false, vec![]));
    before
}

#[test]
fn what_a_scrub_drops_is_missed_until_it_is_put_again() {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    (0..8).for_each(|n| put(&store, n));
    store.remove(&chunk(7).0).expect("removes");
    assert_eq!(store.damaged(), (0, false), "what was removed is not missed");
    [2, 3].iter().for_each(|n| rot(&disk, *n));
    assert_eq!(store.read(&chunk(2).0), Err(ReadError::Corrupt));
    assert_eq!(store.scrub(None, u64::MAX).bad.len(), 2);
    assert_eq!(missed(&disk, store), 2);
    let (store, _) = open(&disk);
    put(&store, 2);
    assert_eq!(missed(&disk, store), 1);
    // Nothing refers to the other any more.
    let (store, _) = open(&disk);
    assert_eq!(store.discard(&[chunk(3).0, chunk(4).0], 1, 0).dropped, 0);
    assert_eq!(missed(&disk, store), 0);
}

#[test]
fn what_is_put_again_beside_a_discard_stays() {
    for bug in [None, Some(Bug::DropPutAgain)] {
        let disk = CrashBackend::new();
        let (store, _) = Store::open_planted(Box::new(disk.clone()), OPTIONS, bug).expect("opens");
        (0..2).for_each(|n| put(&store, n));
        rot(&disk, 1);
        assert_eq!(store.scrub(None, u64::MAX).bad.len(), 1);
        // In one group of writes: nothing referred to the chunk when the cleaner looked.
        let (id, bytes) = chunk(1);
        store.append(&id, &[bytes], 1).expect("room");
        assert_eq!(store.discard(&[id], 1, 0).failed, None);
        store.sync().expect("syncs");
        for store in [store, open(&disk).0] {
            assert_eq!((store.contains(&id).is_some(), store.damaged().0), (bug.is_none(), 0));
        }
    }
}

#[test]
fn what_is_found_at_the_start_is_missed() {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    (0..4).for_each(|n| put(&store, n));
    drop(store);
    rot(&disk, 1);
    let (store, recovery) = open(&disk);
    assert_eq!((recovery.damaged, recovery.forgetful), (vec![chunk(1).0], None));
    assert_eq!(store.contains(&chunk(1).0), None);
    assert_eq!(missed(&disk, store), 1);
}

#[test]
fn compaction_moves_what_is_missed() {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    (0..8).for_each(|n| put(&store, n));
    rot(&disk, 2);
    assert_eq!(store.scrub(None, u64::MAX).bad.len(), 1);
    // The segments with the damaged record and with what says so are emptied, again and again.
    for round in 1..6 {
        let new = round * 20..round * 20 + 30;
        new.clone().for_each(|n| put(&store, n));
        new.for_each(|n| store.remove(&chunk(n).0).expect("removes"));
        (0..8).filter(|n| *n != 2 && round == 1).for_each(|n| store.remove(&chunk(n).0).expect("removes"));
        while store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts").is_some() {}
    }
    assert!(store.space().reclaimed > 100_000, "{:?}", store.space());
    assert_eq!(missed(&disk, store), 1);
}
