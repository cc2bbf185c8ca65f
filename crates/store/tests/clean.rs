//! What nothing refers to goes, durably; what was promised in time stays.

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use store::backend::CrashBackend;
use store::{Bug, Options, ReadError, Step, Store, WriteError};

fn open(disk: &CrashBackend) -> Store {
    let options =
        Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };
    Store::open(Box::new(disk.clone()), options).expect("opens").0
}

fn put(store: &Store, bytes: &'static [u8], promise: u32) -> ChunkId {
    let id = ChunkId::of_payload(bytes);
    store.append(&id, &[Bytes::from_static(bytes)], promise).expect("room");
    store.sync().expect("syncs");
    id
}

#[test]
fn a_chunk_goes_when_two_looks_condemn_it() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let id = put(&store, b"one", 0);
    assert_eq!(store.discard(&[id], 1, 0).dropped, 0, "the first pass condemns");
    assert_eq!(store.discard(&[id], 1, 0).dropped, 0, "and does so again");
    assert_eq!(store.discard(&[id], 4, 0).dropped, 0, "so does that of another cleaner");
    let done = store.discard(&[ChunkId::of_payload(b"not here"), id], 5, 3);
    assert_eq!((done.dropped, done.bytes, done.failed), (2, 128, None));
    assert_eq!(store.read(&id), Err(ReadError::Missing));
    disk.crash(1);
    assert_eq!(open(&disk).read(&id), Err(ReadError::Missing), "it came back after a crash");
}

#[test]
fn what_is_promised_stays() {
    let store = open(&CrashBackend::new());
    let [asked, written] = [put(&store, b"asked", 0), put(&store, b"written", 0)];
    assert_eq!(store.discard(&[asked, written], 1, 0).dropped, 0);
    // Somebody hears "have it", and somebody else puts it again.
    assert_eq!(store.promise(&asked, 2), Some(5));
    assert_eq!(put(&store, b"written", 2), written);
    assert_eq!(store.discard(&[asked, written], 2, 1).dropped, 0);
    // The promise undid the condemnation as well: it takes two more passes.
    assert_eq!(store.discard(&[asked, written], 3, 2).dropped, 0);
    assert_eq!(store.discard(&[asked, written], 4, 3).dropped, 3);
    assert_eq!(store.promise(&asked, 4), None);
    // What is put again behind the tombstone is there.
    put(&store, b"asked", 4);
    assert_eq!(store.read(&asked).as_deref(), Ok(&b"asked"[..]));
}

#[test]
fn a_promise_before_the_first_sync_counts() {
    let store = open(&CrashBackend::new());
    let id = ChunkId::of_payload(b"twice");
    for promise in [0, 2] {
        store.append(&id, &[Bytes::from_static(b"twice")], promise).expect("room");
    }
    store.sync().expect("syncs");
    assert_eq!(store.space().written, 128, "it was written twice");
    for mark in [2, 3] {
        assert_eq!(store.discard(&[id], mark, mark - 1).dropped, 0, "the second put was promised after mark 2");
    }
    assert_eq!(store.discard(&[id], 4, 3).dropped, 1);
}

#[test]
fn what_is_put_after_a_mark_is_not_condemned_by_its_pass() {
    let store = open(&CrashBackend::new());
    let id = put(&store, b"new", 2);
    for mark in [2, 3] {
        assert_eq!(store.discard(&[id], mark, mark - 1).dropped, 0, "mark {mark}");
    }
    assert_eq!(store.discard(&[id], 4, 3).dropped, 1);
}

#[test]
fn a_promise_during_compaction_is_kept() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let kept = put(&store, b"kept", 0);
    let mut rng = Rng::new(5);
    let filler: Vec<ChunkId> = (0..60)
        .map(|_| {
            let bytes: Bytes = (0..1_000).map(|_| rng.next_u64() as u8).collect();
            let id = ChunkId::of_payload(&bytes);
            store.append(&id, &[bytes], 0).expect("room");
            id
        })
        .collect();
    store.sync().expect("syncs");
    for mark in 1..3 {
        for page in filler.chunks(30) {
            let _ = store.discard(page, mark, mark - 1);
        }
    }
    assert_eq!(store.chunks(), 1);
    assert_eq!(store.discard(&[kept], 3, 2).dropped, 0);
    assert_eq!(store.promise(&kept, 4), Some(4));
    let before = store.space();
    while store.compact(&mut |_| std::ops::ControlFlow::Continue(())).expect("compacts").is_some() {}
    let after = store.space();
    assert!(after.reclaimed > 30_000 && after.used < before.used, "{after:?}");
    for mark in [4, 5] {
        assert_eq!(store.discard(&[kept], mark, mark - 1).dropped, 0, "its move forgot the promise");
    }
    assert_eq!(store.read(&kept).as_deref(), Ok(&b"kept"[..]));
}

/// Between the steps of a compaction a chunk is promised, and stays, whether it was moved already or not.
fn dropped_after_a_promise(bug: Option<Bug>) -> u32 {
    let disk = CrashBackend::new();
    let options =
        Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };
    let store = Store::open_planted(Box::new(disk.clone()), options, bug).expect("opens").0;
    let chunks: Vec<Bytes> = (0..30).map(|n| Bytes::from(vec![n; 2_000 + usize::from(n)])).collect();
    let ids: Vec<ChunkId> = chunks.iter().map(|bytes| ChunkId::of_payload(bytes)).collect();
    for (id, bytes) in ids.iter().zip(&chunks) {
        store.append(id, std::slice::from_ref(bytes), 0).expect("room");
        store.sync().expect("syncs");
    }
    ids[3..14].iter().for_each(|id| store.remove(id).expect("removes"));
    assert_eq!(store.discard(&ids[..3], 1, 0).dropped, 0);
    let mut compaction = store.compaction();
    assert!(matches!(store.step(&mut compaction), Ok(Step::Moved(_))));
    assert_eq!(store.space().reclaimed, 0, "one of three is moved");
    assert!(ids[..3].iter().all(|id| store.promise(id, 2).is_some()));
    while matches!(store.step(&mut compaction), Ok(Step::Moved(_))) {}
    assert!(store.space().reclaimed > 0);
    store.discard(&ids[..3], 2, 1).dropped.count_ones()
}

#[test]
fn a_promise_between_the_steps_of_a_compaction_is_kept() {
    assert_eq!(dropped_after_a_promise(None), 0);
    assert!(dropped_after_a_promise(Some(Bug::StaleStamps)) > 0);
}

#[test]
fn a_page_is_judged_chunk_by_chunk() {
    let store = open(&CrashBackend::new());
    let ids: Vec<ChunkId> = (0..34_u8).map(|n| put(&store, Box::leak(Box::new([n; 100])), 0)).collect();
    assert_eq!(store.discard(&ids, 1, 0).dropped, 0);
    store.promise(&ids[3], 1).expect("it is here");
    let done = store.discard(&ids, 2, 1);
    // What stands behind the 32nd was not judged.
    assert_eq!((done.dropped, done.bytes), (!(1 << 3), 31 * 192));
    let (left, _) = store.list(&[], None, 99);
    let mut kept = vec![ids[3], ids[32], ids[33]];
    kept.sort_unstable();
    assert_eq!(left, kept);
}

#[test]
fn a_chunk_whose_tombstone_failed_is_not_named_until_the_next_start() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let id = put(&store, b"one", 0);
    assert_eq!(store.discard(&[id], 1, 0).dropped, 0);
    disk.set_fail_sync(true);
    let done = store.discard(&[id], 2, 1);
    assert!(done.dropped == 0 && matches!(done.failed, Some(WriteError::Io(_))), "{done:?}");
    assert_eq!((store.list(&[], None, 9).0, store.promise(&id, 3)), (vec![], None));
    drop(store);
    // The tombstone was not acknowledged: it is there or not.
    disk.set_fail_sync(false);
    let read = open(&disk).read(&id);
    assert!(read.as_deref() == Ok(&b"one"[..]) || read == Err(ReadError::Missing), "{read:?}");
}
