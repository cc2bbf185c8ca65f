//! What damage on the medium takes with it, and what is reported of it.

use bytes::Bytes;
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend};
use store::{Gap, Options, Recovery, Store, StoreError};

const SEGMENT: &str = "segment-00000001";

fn open(disk: &CrashBackend) -> (Store, Recovery) {
    let options =
        Options { capacity: 4 << 20, reserve: 0, segment_size: 64 << 10, cluster: 7, target: 3, secret: 0x5eed };
    Store::open(Box::new(disk.clone()), options).expect("opens")
}

/// What is reported of gaps: segment, offset, bytes, records.
fn extents(gaps: &[Gap]) -> Vec<(u32, u64, u64, u64)> {
    gaps.iter().map(|gap| (gap.segment, gap.offset, gap.bytes, gap.records)).collect()
}

fn chunk(n: u32, len: usize) -> Bytes {
    Bytes::from([&n.to_le_bytes()[..], &vec![n as u8; len - 4]].concat())
}

fn id(n: u32, len: usize) -> ChunkId {
    ChunkId::of_payload(&chunk(n, len))
}

fn put(store: &Store, n: u32, len: usize) {
    store.append(&id(n, len), &[chunk(n, len)], 0).expect("room");
    store.sync().expect("syncs");
}

/// Flips one bit.
fn flip(disk: &CrashBackend, name: &str, at: u64) {
    let mut byte = [0];
    disk.read_at(name, at, &mut byte).expect("reads");
    disk.write_at(name, at, &[byte[0] ^ 4]).expect("writes");
    disk.sync(name).expect("syncs");
}

#[test]
fn a_damaged_tombstone_costs_itself_alone() {
    // Every byte of its header, in the newest segment and in one whose payload is not looked at any more.
    for (at, old) in (0..64).flat_map(|at| [(at, false), (at, true)]) {
        let disk = CrashBackend::new();
        let (store, _) = open(&disk);
        (0..20).for_each(|n| put(&store, n, 1_000));
        (0..20).for_each(|n| store.remove(&id(n, 1_000)).expect("removes"));
        if old {
            (100..110).for_each(|n| put(&store, n, 40_000));
        }
        drop(store);
        // The sixth of them.
        flip(&disk, SEGMENT, 64 + 20 * 1_088 + 5 * 64 + at);
        for start in 0..3 {
            let (store, recovery) = open(&disk);
            assert_eq!(extents(&recovery.gaps), [(1, 64 + 20 * 1_088 + 5 * 64, 64, 1)], "byte {at}, start {start}");
            assert_eq!((store.damaged(), recovery.cut), ((1, true), vec![]));
            let back: Vec<u32> = (0..20).filter(|n| store.contains(&id(*n, 1_000)).is_some()).collect();
            assert!(back == [5], "byte {at}, start {start}: {back:?} are back");
        }
    }
}

/// Twenty chunks in the first segment, and some in the next when it is to be an older one.
fn filled(others: u32) -> CrashBackend {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    (0..20).for_each(|n| put(&store, n, 1_000));
    (0..others).for_each(|n| put(&store, 100 + n, 60_000));
    disk
}

/// Which of the twenty chunks are not here.
fn missing(store: &Store) -> Vec<u32> {
    (0..20).filter(|n| store.read(&id(*n, 1_000)) != Ok(chunk(*n, 1_000))).collect()
}

#[test]
fn a_damaged_header_is_told_with_its_place_and_counted() {
    // Its magic, its id, its length, and all of a sector.
    for (at, len) in [(0, 1), (10, 1), (41, 1), (0, 512)] {
        for others in [0, 1, 4] {
            let disk = filled(others);
            let begin = 64 + 7 * 1_088;
            disk.write_at(SEGMENT, begin + at, &vec![0xff; len]).expect("writes");
            disk.sync(SEGMENT).expect("syncs");
            for _ in 0..3 {
                let (store, recovery) = open(&disk);
                assert_eq!(missing(&store), [7]);
                assert_eq!((extents(&recovery.gaps), recovery.cut), (vec![(1, begin, 1_088, 1)], vec![]));
                assert_eq!(store.damaged(), (1, true));
                put(&store, 50, 2_000);
            }
        }
    }
}

#[test]
fn several_records_that_cannot_be_read_are_counted_by_those_around_them() {
    let disk = filled(4);
    disk.write_at(SEGMENT, 64 + 7 * 1_088, &vec![0; 5 * 1_088]).expect("writes");
    let (store, recovery) = open(&disk);
    assert_eq!(
        (missing(&store), extents(&recovery.gaps)),
        ((7..12).collect(), vec![(1, 64 + 7 * 1_088, 5 * 1_088, 5)])
    );
    assert_eq!(store.space().dead, 5 * 1_088);
    drop(store);
    // The last one has lost its header.
    let disk = filled(4);
    flip(&disk, SEGMENT, 64 + 19 * 1_088);
    let (store, recovery) = open(&disk);
    assert_eq!((missing(&store), extents(&recovery.gaps)), (vec![19], vec![(1, 64 + 19 * 1_088, 1_088, 1)]));
    assert_eq!(store.space().dead, 1_088);
    drop(store);
    // In two places, each is counted by itself.
    let disk = filled(4);
    flip(&disk, SEGMENT, 64 + 7 * 1_088);
    disk.write_at(SEGMENT, 64 + 17 * 1_088, &vec![0xff; 3 * 1_088]).expect("writes");
    let (_, recovery) = open(&disk);
    let both = vec![(1, 64 + 7 * 1_088, 1_088, 1), (1, 64 + 17 * 1_088, 3 * 1_088, 3)];
    assert_eq!(extents(&recovery.gaps), both);
    // The last ones: only the next segment shows them.
    for others in [1, 4] {
        let disk = filled(others);
        disk.write_at(SEGMENT, 64 + 17 * 1_088, &vec![0; 3 * 1_088]).expect("writes");
        let (store, recovery) = open(&disk);
        // As nobody knows where they ended, all the rest of the file may have been written.
        let rest = (64 << 10) - (64 + 17 * 1_088);
        assert_eq!((missing(&store), extents(&recovery.gaps)), (vec![17, 18, 19], vec![(1, 64 + 17 * 1_088, rest, 3)]));
        assert_eq!((store.damaged(), store.space().dead), ((3, true), rest));
    }
}

#[test]
fn a_damaged_segment_header_is_told_and_takes_nothing_along() {
    // Its magic, its cluster, its number, its length, and its checksum.
    for (others, at) in [0, 4].into_iter().flat_map(|others| [0, 8, 16, 22, 61].map(|at| (others, at))) {
        let disk = filled(others);
        flip(&disk, SEGMENT, at);
        let (store, recovery) = open(&disk);
        assert_eq!((missing(&store), extents(&recovery.gaps)), (vec![], vec![(1, 0, 64, 0)]));
    }
    // That of a new segment, whose first record nothing says was durable: a crash may have cut both off.
    let disk = CrashBackend::new();
    put(&open(&disk).0, 1, 1_000);
    disk.write_at(SEGMENT, 0, b"XXXX").expect("writes");
    let (store, recovery) = open(&disk);
    assert_eq!((store.chunks(), extents(&recovery.cut), recovery.gaps), (1, vec![(1, 0, 64, 0)], vec![]));
    drop(store);
    let (store, recovery) = open(&disk);
    assert_eq!((store.chunks(), recovery.cut, recovery.gaps), (1, vec![], vec![]));
}

#[test]
fn a_segment_in_the_place_of_another_is_told_and_takes_nothing_else_along() {
    let disk = filled(4);
    let mut bytes = vec![0; 64 << 10];
    disk.read_at(SEGMENT, 0, &mut bytes).expect("reads");
    disk.write_at("segment-00000002", 0, &bytes).expect("writes");
    let (store, recovery) = open(&disk);
    assert_eq!((missing(&store), store.chunks()), (vec![], 23));
    let [gap] = recovery.gaps[..] else { panic!("{recovery:?}") };
    assert_eq!((gap.segment, gap.offset, store.damaged()), (2, 64, (1, true)));
}

#[test]
fn a_file_that_was_cut_is_reported() {
    let ten = 64 + 10 * 1_088;
    for (others, len) in [(4, ten + 7), (4, ten), (4, ten + 200), (0, ten + 7), (0, ten + 200), (0, 40_000)] {
        let disk = filled(others);
        let mut bytes = vec![0; len as usize];
        disk.read_at(SEGMENT, 0, &mut bytes).expect("reads");
        disk.remove(SEGMENT).expect("removes");
        disk.create(SEGMENT, len).expect("creates");
        disk.write_at(SEGMENT, 0, &bytes).expect("writes");
        disk.sync(SEGMENT).expect("syncs");
        let (store, recovery) = open(&disk);
        let [gap] = recovery.gaps[..] else { panic!("{others}, {len}: {recovery:?}") };
        assert_eq!((gap.segment, gap.offset + gap.bytes), (1, 64 << 10), "{others}, {len}");
        match (others, len) {
            (0, 40_000) => assert_eq!((missing(&store), gap.offset, gap.records), (vec![], 64 + 20 * 1_088, 0)),
            // No segment behind it shows how many there were.
            (0, _) => assert_eq!((missing(&store).len(), gap.offset), (10, 64 + 10 * 1_088)),
            _ => assert_eq!((missing(&store).len(), gap.offset, gap.records), (10, 64 + 10 * 1_088, 10)),
        }
        let space = store.space();
        assert!(space.written < space.used, "{others}, {len}: {space:?}");
    }
}

#[test]
fn a_segment_that_cannot_be_read_at_all_is_kept_and_reported() {
    let disk = filled(4);
    let mut bytes = vec![0; 64 << 10];
    disk.read_at(SEGMENT, 0, &mut bytes).expect("reads");
    disk.write_at(SEGMENT, 0, &bytes.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>()).expect("writes");
    let (store, recovery) = open(&disk);
    assert_eq!((missing(&store).len(), recovery.gaps.len(), store.damaged().1), (20, 1, true));
    assert!(disk.list().expect("lists").iter().any(|(name, _)| name == SEGMENT), "it was removed");
}

#[test]
fn what_a_crash_left_without_a_header_is_struck_out_and_never_taken_for_damage() {
    let disk = filled(0);
    // Two that were not acknowledged: the first has lost its header, the second was cut off.
    let at = 64 + 20 * 1_088;
    disk.write_at(SEGMENT, at + 512, &[7; 6_080]).expect("writes");
    disk.sync(SEGMENT).expect("syncs");
    let (store, recovery) = open(&disk);
    assert_eq!((extents(&recovery.cut), recovery.gaps, store.damaged()), (vec![(1, at, 6_592, 1)], vec![], (0, false)));
    assert_eq!(missing(&store), []);
    // One that is smaller than what was struck out, and one in the next segment.
    put(&store, 300, 100);
    put(&store, 301, 60_000);
    for start in 0..3 {
        let (store, recovery) = open(&disk);
        assert_eq!((recovery.cut, recovery.gaps), (vec![], vec![]), "start {start}");
        (0..2).for_each(|n| put(&store, 200 + 2 * start + n, 30_000));
        assert_eq!(missing(&store), []);
    }
}

#[test]
fn the_beginning_of_a_segment_that_a_failed_sync_dropped_is_struck_out_and_never_taken_for_damage() {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    put(&store, 1, 40_000);
    put(&store, 9, 100);
    // Three that were not acknowledged, the first two and the segment's header among what the kernel gave up writing.
    for (n, len) in [(2, 40_000), (3, 100), (4, 100)] {
        store.append(&id(n, len), &[chunk(n, len)], 0).expect("room");
    }
    store.sync().expect("syncs");
    drop(store);
    let lost = 64 + 40_064 + 192;
    disk.write_at("segment-00000002", 0, &vec![0; lost]).expect("writes");
    disk.sync("segment-00000002").expect("syncs");
    let (store, recovery) = open(&disk);
    assert_eq!((recovery.cut.len(), recovery.gaps, store.chunks()), (2, vec![], 3));
    for start in 0..3 {
        let (store, recovery) = open(&disk);
        assert_eq!((recovery.cut, recovery.gaps, store.chunks()), (vec![], vec![], 3 + start), "start {start}");
        put(&store, 5 + start as u32, 100);
    }
    // What is lost at the end of the segment before is noticed all the same.
    disk.write_at(SEGMENT, 64 + 40_064, &[0; 192]).expect("writes");
    assert_eq!(extents(&open(&disk).1.gaps), vec![(1, 64 + 40_064, (64 << 10) - 64 - 40_064, 1)]);
}

#[test]
fn a_copy_of_a_record_in_payload_is_not_taken_for_one() {
    let disk = CrashBackend::new();
    let (store, _) = open(&disk);
    put(&store, 1, 1_000);
    store.remove(&id(1, 1_000)).expect("removes");
    // The very records, as if somebody had got to see them, and tombstones of another store in their right places.
    let mut seen = vec![0; 2_048];
    disk.read_at(SEGMENT, 64, &mut seen).expect("reads");
    let other = CrashBackend::new();
    let options = Options { capacity: 4 << 20, reserve: 0, segment_size: 64 << 10, cluster: 7, target: 3, secret: 1 };
    let (forge, _) = Store::open(Box::new(other.clone()), options).expect("opens");
    (0..60).for_each(|_| forge.remove(&id(2, 1_000)).expect("removes"));
    let begin = 64 + 1_088 + 64 + 1_088;
    let mut forged = vec![0; 4_096];
    other.read_at(SEGMENT, 0, &mut forged).expect("reads");
    put(&store, 2, 1_000);
    let bytes = Bytes::from([&forged[begin + 64..], &seen[..]].concat());
    store.append(&ChunkId::of_payload(&bytes), &[bytes], 0).expect("room");
    store.sync().expect("syncs");
    put(&store, 3, 1_000);
    drop(store);
    flip(&disk, SEGMENT, begin as u64 + 10);
    let (store, recovery) = open(&disk);
    assert_eq!((recovery.gaps.len(), recovery.gaps[0].records), (1, 1));
    assert_eq!([1, 2, 3].map(|n| store.contains(&id(n, 1_000)).is_some()), [false, true, true]);
}

#[test]
fn segments_of_another_store_are_refused() {
    let (disk, other) = (filled(0), CrashBackend::new());
    let options = Options { capacity: 4 << 20, reserve: 0, segment_size: 64 << 10, cluster: 7, target: 3, secret: 1 };
    drop(Store::open(Box::new(other.clone()), options.clone()).expect("opens"));
    let mut identity = vec![0; 32];
    other.read_at(store::IDENTITY, 0, &mut identity).expect("reads");
    disk.write_at(store::IDENTITY, 0, &identity).expect("writes");
    let refused = Store::open(Box::new(disk.clone()), options).err();
    assert!(matches!(refused, Some(StoreError::Foreign { name }) if name == SEGMENT));
}
