//! What a process may not have is not the disk's fault.

use bytes::Bytes;
use protocol::id::ChunkId;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::backend::FileBackend;
use store::{Options, Store};

fn chunk(n: u32) -> Bytes {
    Bytes::from(n.to_le_bytes().repeat(1_000))
}

fn put(store: &Store, n: u32) -> Result<(), store::WriteError> {
    store.append(&ChunkId::of_payload(&chunk(n)), &[chunk(n)], 0)?;
    store.sync()
}

// One test: limits are those of the whole process.
#[test]
fn without_descriptors_writes_fail_and_go_on_when_there_are_some_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let options =
        Options { capacity: 4 << 20, reserve: 0, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed };
    let backend = FileBackend::open(dir.path()).expect("opens");
    let (store, _) = Store::open(Box::new(backend), options).expect("opens");
    (0..5).for_each(|n| put(&store, n).expect("room"));
    store.prepare_segment().expect("room");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).expect("may be lowered");
    // Into the segment in use, and into the one that was made ahead.
    let stored = (5..).take_while(|n| put(&store, *n).is_ok()).count() as u32 + 5;
    let (write, ahead) = (put(&store, 100), store.prepare_segment());
    setrlimit(Resource::Nofile, before).expect("may be raised");
    for error in [write, ahead].map(|result| result.expect_err("no descriptor is left").to_string()) {
        assert!(error.contains("file descriptor") && error.contains("limit is 3"), "{error}");
    }
    // Seven fill a segment.
    assert_eq!(stored, 14);
    (100..150).for_each(|n| put(&store, n).expect("the disk is well"));
    assert!((0..stored).chain(100..150).all(|n| store.read(&ChunkId::of_payload(&chunk(n))) == Ok(chunk(n))));
}
