//! What reached the disk without being made durable: after a crash it is whole, or it is gone for good.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use store::backend::{Backend, CrashBackend};
use store::{IDENTITY, Options, ReadError, Store, StoreError};

fn options() -> Options {
    Options { capacity: 4 << 20, reserve: 0, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed }
}

fn open(disk: &CrashBackend) -> Store {
    Store::open(Box::new(disk.clone()), options()).expect("opens").0
}

/// Opens a store that met no damage.
fn open_undamaged(disk: &CrashBackend, seed: u64) -> Store {
    let (store, recovery) = Store::open(Box::new(disk.clone()), options()).expect("opens");
    assert_eq!((recovery.damaged, recovery.gaps), (vec![], vec![]), "seed {seed}: a crash was taken for damage");
    store
}

fn append(store: &Store, bytes: &Bytes) -> ChunkId {
    let id = ChunkId::of_payload(bytes);
    store.append(&id, std::slice::from_ref(bytes), 0).expect("room");
    id
}

/// Every chunk that a store calls its own, it can read.
fn check(store: &Store, durable: &BTreeMap<ChunkId, Bytes>, seed: u64) {
    for (id, bytes) in durable {
        assert_eq!(store.read(id).as_ref(), Ok(bytes), "seed {seed}: what was durable is not there");
    }
    for id in store.list(&[], None, usize::MAX).0 {
        let bytes = store.read(&id).unwrap_or_else(|error| panic!("seed {seed}: {id:?} is called a copy: {error}"));
        assert!(id.matches([&bytes[..]]), "seed {seed}");
    }
}

#[test]
fn what_a_crash_tore_is_never_taken_for_a_copy_however_old_it_is() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let disk = CrashBackend::new();
        let mut durable = BTreeMap::new();
        let fresh = |rng: &mut Rng| -> Bytes { (0..=rng.below(9_000)).map(|_| rng.next_u64() as u8).collect() };
        for _ in 0..3 {
            let store = open_undamaged(&disk, seed);
            for _ in 0..rng.below(3) {
                let bytes = fresh(&mut rng);
                durable.insert(append(&store, &bytes), bytes);
            }
            store.sync().expect("syncs");
            // Written, and not synced when the power goes.
            let unsynced: Vec<Bytes> = (0..=rng.below(2)).map(|_| fresh(&mut rng)).collect();
            disk.set_fail_sync(true);
            for bytes in &unsynced {
                // One that needs a new segment fails: the old one is to be synced first.
                let id = ChunkId::of_payload(bytes);
                let _ = store.append(&id, std::slice::from_ref(bytes), 0);
            }
            assert!(store.sync().is_err());
            disk.set_fail_sync(false);
            drop(store);
            disk.crash(rng.next_u64());
            let store = open_undamaged(&disk, seed);
            check(&store, &durable, seed);
            // Whoever got no acknowledgement puts it again, in the same order, at least some of it.
            for bytes in unsynced.into_iter().take(rng.below(3) as usize) {
                let id = append(&store, &bytes);
                durable.insert(id, bytes);
                store.sync().expect("syncs");
            }
            // Later segments: the payload of this one is not checked any more when the store is opened.
            if rng.chance(2, 3) {
                for _ in 0..20 {
                    let bytes = Bytes::from([&rng.next_u64().to_le_bytes()[..], &[3; 7_000]].concat());
                    durable.insert(append(&store, &bytes), bytes);
                    store.sync().expect("syncs");
                }
            }
            drop(store);
            disk.crash(rng.next_u64());
            check(&open_undamaged(&disk, seed), &durable, seed);
        }
    }
}

#[test]
fn a_power_cut_right_after_compaction_brings_nothing_back_and_takes_nothing() {
    for seed in 0..20 {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let chunk = |n: u8| Bytes::from(vec![n; 3_000]);
        let id = |n: u8| ChunkId::of_payload(&chunk(n));
        let put = |n| {
            append(&store, &chunk(n));
            store.sync().expect("syncs");
        };
        // Ten chunks fill a segment. The tombstones of two chunks of the first are in the second, of which all is dead.
        (0..20).for_each(put);
        [0, 1].iter().chain(&(10..20).collect::<Vec<_>>()).for_each(|n| store.remove(&id(*n)).expect("removes"));
        put(20);
        // Put again, and not synced: it is not to be taken for removed.
        append(&store, &chunk(1));
        let won = store.compact(&mut |_| ControlFlow::Continue(())).expect("compacts");
        assert!(won.is_some_and(|won| won >= 10 * 3_072), "{won:?}");
        assert_eq!(store.read(&id(1)), Ok(chunk(1)));
        disk.crash(seed);
        let store = open_undamaged(&disk, seed);
        assert_eq!(store.contains(&id(0)), None, "a removed chunk came back");
        assert!((1..10).chain([20]).all(|n| store.read(&id(n)) == Ok(chunk(n))));
        assert_eq!(store.chunks(), 10);
    }
}

#[test]
fn a_move_that_a_crash_tore_takes_nothing_away() {
    for seed in 0..60 {
        let disk = CrashBackend::new();
        let store = open(&disk);
        let chunk = |n: u8| Bytes::from(vec![n; 3_000]);
        let id = |n: u8| ChunkId::of_payload(&chunk(n));
        let put = |store: &Store, n| {
            append(store, &chunk(n));
            store.sync().expect("syncs");
        };
        (0..12).for_each(|n| put(&store, n));
        (2..10).for_each(|n| store.remove(&id(n)).expect("removes"));
        disk.set_fail_sync(true);
        assert!(store.compact(&mut |_| ControlFlow::Continue(())).is_err());
        disk.set_fail_sync(false);
        drop(store);
        disk.crash(seed);
        // At first what was torn is struck out; then it is known as struck out, and at last among older segments.
        for round in 0..4 {
            let store = open_undamaged(&disk, seed);
            for n in [0, 1, 10, 11] {
                assert_eq!(store.read(&id(n)), Ok(chunk(n)), "seed {seed}, start {round}");
            }
            if round > 0 {
                (0..20).for_each(|n| put(&store, round * 20 + n));
            }
        }
    }
}

#[test]
fn what_was_not_believed_once_is_never_believed() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    // The second record ends with a block of 4,096 bytes, and the third begins with the next.
    let [first, second, third] = [vec![0; 64], vec![1; 3_840], vec![2; 5_000]].map(Bytes::from);
    let ids = [&first, &second, &third].map(|bytes| append(&store, bytes));
    store.sync().expect("syncs");
    drop(store);
    // The second lost its header, the third some of its payload.
    for at in [192, 4_096 + 1_000] {
        disk.write_at("segment-00000001", at, b"torn").expect("writes");
    }
    let (store, recovery) = Store::open(Box::new(disk.clone()), options()).expect("opens");
    assert_eq!((recovery.chunks, recovery.torn, recovery.damaged), (1, vec![ids[2]], vec![]));
    append(&store, &second);
    store.sync().expect("syncs");
    for n in 0..4 {
        append(&store, &Bytes::from(vec![10 + n; 20_000]));
        store.sync().expect("syncs");
    }
    drop(store);
    let store = open(&disk);
    assert_eq!(ids.map(|id| store.contains(&id)), [Some(64), Some(3_840), None]);
    assert_eq!((store.read(&ids[0]), store.read(&ids[1])), (Ok(first), Ok(second)));
}

#[test]
fn a_tombstone_in_the_last_bytes_of_a_segment_counts() {
    let disk = CrashBackend::new();
    let options = Options { segment_size: 128 << 10, ..options() };
    let open = || Store::open(Box::new(disk.clone()), options.clone()).expect("opens").0;
    let store = open();
    let small = append(&store, &Bytes::from_static(b"small"));
    // It fills the second segment up to the last 64 bytes.
    let large = append(&store, &Bytes::from(vec![1; (128 << 10) - 3 * 64]));
    store.remove(&small).expect("removes");
    drop(store);
    assert_eq!(disk.list().expect("lists").len(), 3, "two segments and the identity");
    let store = open();
    assert_eq!((store.contains(&small), store.read(&large).is_ok()), (None, true));
}

#[test]
fn a_first_start_that_was_cut_off_can_be_made_again() {
    for torn in [0, 10, 32] {
        let disk = CrashBackend::new();
        disk.create(IDENTITY, torn).expect("creates");
        let store = open(&disk);
        let id = append(&store, &Bytes::from_static(b"kept"));
        store.sync().expect("syncs");
        drop(store);
        assert_eq!(open(&disk).read(&id).as_deref(), Ok(&b"kept"[..]), "{torn} bytes");
    }
}

#[test]
fn a_file_that_ends_within_a_record_loses_this_record_only() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let [first, second] = [vec![1; 1_000], vec![2; 1_000]].map(Bytes::from);
    let ids = [append(&store, &first), append(&store, &second)];
    store.sync().expect("syncs");
    let name = "segment-00000001";
    // The second record begins at 64 + 1,088 and ends with some bytes of padding.
    for (len, whole) in [(2_240, true), (2_216, true), (2_215, false), (2_000, false), (1_160, false)] {
        let short = CrashBackend::new();
        for (from, to) in [(IDENTITY, 32), (name, len)] {
            let mut bytes = vec![0; to as usize];
            disk.read_at(from, 0, &mut bytes).expect("reads");
            short.create(from, to).expect("creates");
            short.write_at(from, 0, &bytes).expect("writes");
            short.sync(from).expect("syncs");
        }
        for _ in 0..2 {
            let store = open(&short);
            assert_eq!(store.read(&ids[0]).as_ref(), Ok(&first), "{len} bytes");
            let wanted = if whole { Ok(&second) } else { Err(&ReadError::Missing) };
            assert_eq!(store.read(&ids[1]).as_ref(), wanted, "{len} bytes");
        }
    }
}

#[test]
fn what_is_behind_a_rotten_header_is_not_written_over() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let chunk = |n: u8| Bytes::from(vec![n; 1_000]);
    let ids: Vec<ChunkId> = (0..6).map(|n| append(&store, &chunk(n))).collect();
    store.sync().expect("syncs");
    drop(store);
    // The second record begins at 64 + 1,088.
    disk.write_at("segment-00000001", 1_152, b"rot").expect("writes");
    disk.sync("segment-00000001").expect("syncs");
    for round in 0..3 {
        let store = open(&disk);
        assert_eq!(store.contains(&ids[1]), None);
        let new = chunk(100 + round);
        append(&store, &new);
        store.sync().expect("syncs");
        for (n, id) in ids.iter().enumerate().filter(|(n, _)| *n != 1) {
            assert_eq!(store.read(id), Ok(chunk(n as u8)), "round {round}");
        }
        assert_eq!(store.chunks(), 6 + u64::from(round));
    }
}

#[test]
fn a_record_in_the_place_of_another_is_not_taken_for_it() {
    let disk = CrashBackend::new();
    let store = open(&disk);
    let chunks = [vec![1; 1_000], vec![2; 1_000], vec![3; 990]].map(Bytes::from);
    let ids = chunks.each_ref().map(|bytes| append(&store, bytes));
    store.sync().expect("syncs");
    // A disk that writes a block in the wrong place: the first record becomes the second, or the third.
    for other in [1, 2] {
        let mut record = vec![0; 1_088];
        disk.read_at("segment-00000001", 64 + other * 1_088, &mut record).expect("reads");
        disk.write_at("segment-00000001", 64, &record).expect("writes");
        assert_eq!(store.read(&ids[0]), Err(ReadError::Corrupt));
        assert_eq!(store.read(&ids[other as usize]).as_ref(), Ok(&chunks[other as usize]));
    }
    disk.write_at("segment-00000001", 64, &[0; 1_088]).expect("writes");
    assert_eq!(store.read(&ids[0]), Err(ReadError::Corrupt), "a write that was lost");
    assert_eq!(store.scrub(None, u64::MAX).bad, [ids[0]]);
}

#[test]
fn a_directory_of_another_format_or_with_a_damaged_identity_is_refused() {
    let disk = CrashBackend::new();
    append(&open(&disk), &Bytes::from_static(b"here"));
    let mut identity = vec![0; 32];
    disk.read_at(IDENTITY, 0, &mut identity).expect("reads");
    let reopen = |identity: &[u8]| {
        disk.write_at(IDENTITY, 0, identity).expect("writes");
        Store::open(Box::new(disk.clone()), options()).err()
    };
    let mut newer = identity.clone();
    newer[8..12].copy_from_slice(&4_u32.to_le_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &newer[..28]) as u32;
    newer[28..].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(reopen(&newer), Some(StoreError::Format { found: 4 })));
    let mut older = identity[..24].to_vec();
    older[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &older[..20]) as u32;
    older[20..].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(reopen(&older), Some(StoreError::Format { found: 1 })));
    for at in 0..32 {
        let mut damaged = identity.clone();
        damaged[at] ^= 1;
        assert!(matches!(reopen(&damaged), Some(StoreError::Identity)), "byte {at}");
    }
    assert!(reopen(&identity).is_none());
}
