//! What a target machine asks of its store: groups with one sync, and reports that say what became of each.

use bytes::Bytes;
use protocol::id::{ChunkId, OpId};
use protocol::machine::{Completion, Effect, ReadFailure, WriteFailure};
use store::backend::{CrashBackend, SyncFault};
use store::{Bug, Options, ReadError, Report, Store, Trouble, Work, Write};

const OPTIONS: Options =
    Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };

#[derive(Debug, Default)]
struct Recorder {
    done: Vec<(u64, Completion)>,
    troubles: Vec<Trouble>,
}

impl Report for Recorder {
    fn done(&mut self, op: OpId, completion: Completion) {
        self.done.push((op.0, completion));
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.troubles.push(trouble);
    }
}

impl Recorder {
    fn written(&self) -> Vec<(u64, Result<(), WriteFailure>)> {
        let result = |completion: &Completion| match completion {
            Completion::Written { result, .. } => *result,
            other => panic!("{other:?} is of no write"),
        };
        self.done.iter().map(|(op, completion)| (*op, result(completion))).collect()
    }
}

fn open(disk: &CrashBackend, bug: Option<Bug>) -> Store {
    Store::open_planted(Box::new(disk.clone()), OPTIONS, bug).expect("opens").0
}

/// The write of a payload, which the id names unless it is a false one.
fn write(store: &Store, op: u64, payload: &'static [u8], good: bool) -> (ChunkId, Write) {
    let id = ChunkId::of_payload(if good { payload } else { b"another" });
    let pieces = vec![Bytes::from_static(payload)];
    let effect = Effect::Write { id, pieces, verify: true, promise: 0.into(), removal: false };
    match store.work(OpId(op), effect) {
        Work::Write(write) => (id, write),
        other => panic!("{other:?} is no write"),
    }
}

#[test]
fn a_group_is_durable_with_its_sync_and_takes_no_more_than_it_may() {
    let disk = CrashBackend::new();
    let store = open(&disk, None);
    let (ids, writes): (Vec<ChunkId>, Vec<Write>) =
        [&b"one"[..], b"two", b"three"].into_iter().zip(1..).map(|(bytes, op)| write(&store, op, bytes, true)).unzip();
    let (mut waiting, mut recorder) = (writes.into_iter(), Recorder::default());
    let group = store.begin_group(waiting.by_ref(), 2, &mut recorder);
    assert_eq!((group.chunks().collect::<Vec<_>>(), group.bytes(), waiting.len()), (ids[..2].to_vec(), 6, 1));
    assert!(recorder.done.is_empty() && store.contains(&ids[0]).is_none(), "nothing is there before the sync");
    store.end_group(group, &mut recorder);
    assert_eq!(recorder.written(), [(1, Ok(())), (2, Ok(()))]);
    disk.crash(1);
    let there = ids.iter().map(|id| open(&disk, None).contains(id).is_some()).collect::<Vec<_>>();
    assert_eq!(there, [true, true, false]);
}

#[test]
fn bytes_that_are_not_the_ids_are_refused_ahead_or_within_the_group() {
    let store = open(&CrashBackend::new(), None);
    let bad = || write(&store, 5, b"payload", false).1;
    assert_eq!(bad().verify().expect_err("the bytes are others"), OpId(5));
    let (id, good) = write(&store, 6, b"payload", true);
    let mut recorder = Recorder::default();
    let group = store.begin_group([bad(), good.verify().expect("good")].into_iter(), 64, &mut recorder);
    store.end_group(group, &mut recorder);
    assert_eq!(recorder.written(), [(5, Err(WriteFailure::BadHash)), (6, Ok(()))]);
    assert_eq!((store.contains(&id), store.chunks()), (Some(7), 1));
}

#[test]
fn a_sync_that_fails_fails_its_group() {
    for (bug, reported) in [(None, Err(WriteFailure::Disk)), (Some(Bug::IgnoreFailedSync), Ok(()))] {
        let disk = CrashBackend::new();
        let store = open(&disk, bug);
        disk.set_sync_fault(Some(SyncFault::Always));
        let mut recorder = Recorder::default();
        let group = store.begin_group(std::iter::once(write(&store, 1, b"one", true).1), 64, &mut recorder);
        store.end_group(group, &mut recorder);
        assert_eq!(recorder.written(), [(1, reported)], "{bug:?}");
        assert!(matches!(recorder.troubles[..], [Trouble::Write(_)]), "{:?}", recorder.troubles);
    }
}

#[test]
fn a_discard_is_done_in_its_turn_and_needs_no_sync_of_the_group() {
    let store = open(&CrashBackend::new(), None);
    let (id, first) = write(&store, 1, b"one", true);
    let mut recorder = Recorder::default();
    let group = store.begin_group(std::iter::once(first), 64, &mut recorder);
    store.end_group(group, &mut recorder);
    for (op, mark, since, dropped) in [(2, 1, 0, 0), (3, 2, 1, 1)] {
        let Work::Write(discard) = store.work(OpId(op), Effect::Discard { ids: vec![id], mark, since, kept_for: None })
        else {
            panic!("a discard changes the store");
        };
        let mut recorder = Recorder::default();
        assert!(store.begin_group(std::iter::once(discard), 64, &mut recorder).is_empty());
        let [(_, Completion::Discarded { dropped: bits, .. })] = recorder.done[..] else { panic!("{recorder:?}") };
        assert_eq!(bits, dropped);
    }
    assert_eq!(store.contains(&id), None);
}

#[test]
fn a_read_that_fails_says_so_to_the_machine_and_to_the_log() {
    let store = open(&CrashBackend::new(), None);
    let id = ChunkId::of_payload(b"nobody put this");
    let Work::Read(read) = store.work(OpId(1), Effect::Read { id }) else { panic!("a read waits for the disk") };
    let mut recorder = Recorder::default();
    assert_eq!(store.answer(read, &mut recorder), 0);
    assert!(matches!(recorder.done[..], [(1, Completion::Read(Err(ReadFailure::Missing)))]), "{recorder:?}");
    assert_eq!(recorder.troubles, [Trouble::Read(id, ReadError::Missing)]);
    assert!(matches!(store.work(OpId(2), Effect::Usage), Work::Done(Completion::Used(_))));
}
