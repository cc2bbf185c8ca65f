//! What a copy is kept for is written with it, and outlives what happens to the copy.

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::promise::Promise;
use protocol::redundancy::{Redundancy, Wanted};
use store::backend::{Backend, CrashBackend};
use store::{IDENTITY, Options, Store};

const TWO: Redundancy = Redundancy::Copies(2);
const THREE: Redundancy = Redundancy::Copies(3);

fn open(disk: &CrashBackend) -> Store {
    let options =
        Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };
    Store::open(Box::new(disk.clone()), options).expect("opens").0
}

fn for_what(asked: Option<Redundancy>) -> Promise {
    Promise { mark: 0, wanted: Wanted::of(asked), restores: false }
}

fn put(store: &Store, bytes: &'static [u8], asked: Option<Redundancy>) -> ChunkId {
    let id = ChunkId::of_payload(bytes);
    store.append(&id, &[Bytes::from_static(bytes)], for_what(asked)).expect("room");
    store.sync().expect("syncs");
    id
}

#[test]
fn a_copy_that_is_kept_for_less_is_none_until_it_is_written_again() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let id = put(&store, b"shared", Some(TWO));
    assert_eq!(store.promise(&id, for_what(Some(TWO))), Some(6));
    assert_eq!(store.promise(&id, for_what(Some(THREE))), None);
    assert_eq!(store.promise(&id, for_what(None)), None, "the map may say more than two");
    let written = store.space().written;
    put(&store, b"shared", Some(TWO));
    assert_eq!(store.space().written, written, "nothing new is wanted");
    put(&store, b"shared", None);
    put(&store, b"shared", Some(THREE));
    assert!(store.space().written > written);
    for store in [store, open(&disk)] {
        for asked in [None, Some(TWO), Some(THREE)] {
            assert_eq!(store.promise(&id, for_what(asked)), Some(6), "{asked:?}");
        }
        assert_eq!(store.promise(&id, for_what(Redundancy::copies(4))), None);
        assert_eq!(store.wanted(&id), Some(Wanted::of(Some(THREE)).and(Wanted::BY_MAP)));
        assert_eq!((store.chunks(), store.read(&id).as_deref()), (1, Ok(&b"shared"[..])));
    }
}

/// Two puts in one group, before either is durable.
#[test]
fn what_waits_for_a_sync_is_kept_for_both() {
    let store = open(&CrashBackend::new());
    let id = ChunkId::of_payload(b"twice");
    for asked in [Some(TWO), None, Some(THREE), None] {
        store.append(&id, &[Bytes::from_static(b"twice")], for_what(asked)).expect("room");
    }
    store.sync().expect("syncs");
    assert_eq!(store.wanted(&id), Some(Wanted::of(Some(THREE)).and(Wanted::BY_MAP)));
}

#[test]
fn a_promise_to_one_who_wants_more_keeps_the_copy_that_is_written_again() {
    let store = open(&CrashBackend::new());
    let id = put(&store, b"kept", Some(TWO));
    assert_eq!(store.discard(&[id], 1, 0).dropped, 0, "it is condemned");
    let promise = Promise { mark: 1, wanted: Wanted::of(Some(THREE)), restores: false };
    store.append(&id, &[Bytes::from_static(b"kept")], promise).expect("room");
    store.sync().expect("syncs");
    assert_eq!(store.discard(&[id], 2, 1).dropped, 0, "somebody counts on it since");
    assert_eq!(store.discard(&[id], 3, 2).dropped, 1);
}

#[test]
fn what_is_kept_for_more_than_those_that_stay_is_not_let_go() {
    let store = open(&CrashBackend::new());
    let ids = [put(&store, b"for two", Some(TWO)), put(&store, b"for three", Some(THREE))];
    let dropped = |most| store.discard_kept_for(&ids, 9, 9, Some(Wanted::of(Some(most)))).dropped;
    assert_eq!(dropped(TWO), 1, "the other is kept for three");
    assert_eq!(dropped(THREE), 2);
}

#[test]
fn compaction_keeps_what_copies_are_kept_for() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let kept = put(&store, b"for three", Some(THREE));
    // As many dead bytes as a compaction wants to see, in the same segment.
    let gone: Vec<ChunkId> = (0..28_u8)
        .map(|n| {
            let bytes = vec![n; 1_000];
            let id = ChunkId::of_payload(&bytes);
            store.append(&id, &[bytes.into()], 0).expect("room");
            store.sync().expect("syncs");
            id
        })
        .collect();
    gone.iter().for_each(|id| store.remove(id).expect("removes"));
    put(&store, Box::leak(vec![7_u8; 20_000].into_boxed_slice()), None);
    let won = store.compact(&mut |_| std::ops::ControlFlow::Continue(())).expect("compacts");
    assert!(won.is_some(), "nothing was moved");
    assert_eq!(store.wanted(&kept), Some(Wanted::of(Some(THREE))));
    drop(store);
    assert_eq!(open(&disk).wanted(&kept), Some(Wanted::of(Some(THREE))));
}

#[test]
fn a_store_of_the_format_before_is_read_and_has_the_present_one_from_then_on() {
    let disk = CrashBackend::new();
    let id = put(&open(&disk), b"old", None);
    let mut identity = [0; 32];
    disk.read_at(IDENTITY, 0, &mut identity).expect("reads");
    let present = identity;
    identity[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &identity[..28]) as u32;
    identity[28..].copy_from_slice(&crc.to_le_bytes());
    disk.write_at(IDENTITY, 0, &identity).expect("writes");
    let store = open(&disk);
    assert_eq!((store.wanted(&id), store.read(&id).as_deref()), (Some(Wanted::BY_MAP), Ok(&b"old"[..])));
    disk.read_at(IDENTITY, 0, &mut identity).expect("reads");
    assert_eq!(identity, present);
    disk.crash(1);
    assert_eq!(open(&disk).wanted(&id), Some(Wanted::BY_MAP));
}
