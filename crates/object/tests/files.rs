//! Files over an in-memory chunk service.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::atomic::Ordering;

use bytes::Bytes;
use object::{Error, PutOptions, get_file, list, newest, put_file};
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::Scope;

mod memory;

use memory::{Memory, map};

fn small(entries: usize) -> PutOptions {
    PutOptions { chunk_size: 100, pipeline: 4, entries, ..PutOptions::default() }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn every_size_comes_back() {
    // Three entries fit a manifest: up to 300 bytes direct, up to 900 indirect.
    for length in [0, 1, 99, 100, 101, 200, 299, 300, 301, 600, 601, 899, 900] {
        let memory = Memory::default();
        let data = content(length);
        let mut count = 0;
        let version = put_file(&memory, "f", &mut &data[..], &small(3), &mut |_| count += 1).unwrap();
        assert_eq!(version.manifest.size, length as u64);
        assert_eq!(version.manifest.indirect, length > 300, "{length}");
        assert!(count > version.manifest.chunks());
        assert!(memory.most.load(Ordering::SeqCst) <= 5, "more in flight than the pipeline allows");
        let mut back = vec![];
        let read = get_file(&memory, "f", &mut back, 3).unwrap();
        assert_eq!(back, data, "{length}");
        assert_eq!(read.id, version.id);
    }
}

#[test]
fn too_large_for_one_level_is_refused() {
    let memory = Memory::default();
    let outcome = put_file(&memory, "f", &mut &content(901)[..], &small(3), &mut |_| ());
    assert!(matches!(outcome, Err(Error::TooLarge(_))), "{outcome:?}");
    assert!(matches!(newest(&memory, "f"), Err(Error::NotFound(_))), "a failed put is visible");
}

#[test]
fn versions_increase_and_the_newest_is_read() {
    let memory = Memory::default();
    let mut last = 0;
    for round in 0..20_u8 {
        let data = vec![round; 150];
        let version = put_file(&memory, "f", &mut &data[..], &small(9), &mut |_| ()).unwrap();
        assert!(version.manifest.created_ms > last);
        last = version.manifest.created_ms;
        let mut back = vec![];
        get_file(&memory, "f", &mut back, 2).unwrap();
        assert_eq!(back, data);
    }
    put_file(&memory, "other", &mut &b"x"[..], &small(9), &mut |_| ()).unwrap();
    let listing = list(&memory, 2).unwrap();
    assert_eq!(listing.files.keys().collect::<Vec<_>>(), ["f", "other"]);
    assert_eq!(listing.files["f"].manifest.created_ms, last);
    assert!(!listing.incomplete && listing.unreadable.is_empty());
}

#[test]
fn as_many_silent_targets_as_copies_refuse() {
    let mut memory = Memory::default();
    put_file(&memory, "f", &mut &b"abc"[..], &small(9), &mut |_| ()).unwrap();
    memory.silent = vec![NodeId(4), NodeId(5)];
    newest(&memory, "f").unwrap();
    memory.silent.push(NodeId(6));
    assert!(matches!(newest(&memory, "f"), Err(Error::Silent { .. })));
    assert!(list(&memory, 2).unwrap().incomplete);
}

#[test]
fn a_name_without_versions_is_not_found_only_when_the_silent_hide_nothing() {
    let mut memory = Memory::default();
    assert!(matches!(newest(&memory, "f"), Err(Error::NotFound(_))));
    memory.silent = vec![NodeId(3), NodeId(4)];
    assert!(matches!(newest(&memory, "f"), Err(Error::NotFound(_))));
    memory.silent.push(NodeId(2));
    assert!(matches!(newest(&memory, "f"), Err(Error::Silent { .. })));
    assert!(matches!(put_file(&memory, "f", &mut &b"abc"[..], &small(9), &mut |_| ()), Err(Error::Silent { .. })));
}

/// Three servers of three targets each: what was acknowledged is on all of them.
#[test]
fn a_silent_server_hides_nothing() {
    let mut memory = Memory { map: Some(map(&[1, 1, 1, 2, 2, 2, 3, 3, 3])), ..Memory::default() };
    let id = put_file(&memory, "f", &mut &b"abc"[..], &small(9), &mut |_| ()).unwrap().id;
    memory.silent = [1, 2, 3].map(NodeId).to_vec();
    memory.holders = Some([4, 7].map(NodeId).to_vec());
    assert_eq!(newest(&memory, "f").unwrap().id, id);
    assert!(!list(&memory, 2).unwrap().incomplete);
    assert!(matches!(newest(&memory, "g"), Err(Error::NotFound(_))));
    // With one of the second as well two servers are not known, with one of each three.
    memory.silent.push(NodeId(4));
    memory.holders = Some(vec![NodeId(7)]);
    assert_eq!(newest(&memory, "f").unwrap().id, id);
    memory.silent = [1, 4, 7].map(NodeId).to_vec();
    for name in ["f", "g"] {
        assert!(matches!(newest(&memory, name), Err(Error::Silent { .. })), "{name}");
    }
    assert!(list(&memory, 2).unwrap().incomplete);
    // Three of one server that were on three before may have all the copies.
    memory.map = memory.map.map(|map| map.with_moved([NodeId(2), NodeId(3)]));
    memory.silent = [1, 2, 3].map(NodeId).to_vec();
    assert!(matches!(newest(&memory, "f"), Err(Error::Silent { .. })));
}

/// Two targets of one server have a copy, and one of another: that is two that are apart.
#[test]
fn copies_in_one_domain_make_no_version_whole() {
    let mut memory = Memory { map: Some(map(&[1, 1, 1, 2, 2, 2, 3, 3, 3])), ..Memory::default() };
    let id = put_file(&memory, "f", &mut &b"abc"[..], &small(9), &mut |_| ()).unwrap().id;
    memory.most.store(0, Ordering::SeqCst);
    memory.holders = Some([1, 2, 4].map(NodeId).to_vec());
    assert_eq!(newest(&memory, "f").unwrap().id, id);
    assert_eq!(memory.most.load(Ordering::SeqCst), 1, "it was not put again");
    memory.full = true;
    assert!(matches!(newest(&memory, "f"), Err(Error::Put { .. })));
}

#[test]
fn a_version_with_too_few_copies_is_made_whole_before_it_is_read() {
    let mut memory = Memory::default();
    put_file(&memory, "f", &mut &b"old"[..], &small(9), &mut |_| ()).unwrap();
    let id = put_file(&memory, "f", &mut &b"new"[..], &small(9), &mut |_| ()).unwrap().id;
    memory.few.lock().unwrap().insert(id, 1);
    let version = newest(&memory, "f").unwrap();
    assert_eq!((version.id, version.holders.len()), (id, 3));
    assert!(memory.few.lock().unwrap().is_empty(), "it was not put again");

    // No copy can be made: an error, and neither this version nor an older one.
    memory.few.lock().unwrap().insert(id, 2);
    memory.full = true;
    let outcome = newest(&memory, "f");
    assert!(matches!(&outcome, Err(Error::Put { id: failed, .. }) if *failed == id), "{outcome:?}");

    // A silent target may hold the missing copy: what was promised stays readable.
    memory.silent = vec![NodeId(4)];
    assert_eq!(newest(&memory, "f").unwrap().id, id);
    // Two of four are silent: three copies cannot be had, so nobody tries to make them.
    memory.silent = vec![NodeId(3), NodeId(4)];
    let before = memory.most.swap(0, Ordering::SeqCst);
    assert_eq!(newest(&memory, "f").unwrap().holders.len(), 2);
    assert!(before > 0 && memory.most.load(Ordering::SeqCst) == 0, "a put that must fail was tried");
}

/// What needs nobody's silence waits for nobody; what rests on silence, on that of all patience.
#[test]
fn only_what_rests_on_silence_waits_for_the_silent() {
    let mut memory = Memory { silent: vec![NodeId(4)], ..Memory::default() };
    let asked = |memory: &Memory| {
        let asked = core::mem::take(&mut *memory.scopes.lock().unwrap());
        asked.iter().map(|scope| matches!(scope, Scope::LiveOf(_))).collect::<Vec<bool>>()
    };
    let (brief, patient) = (true, false);
    let id = put_file(&memory, "f", &mut &b"new"[..], &small(9), &mut |_| ()).unwrap().id;
    newest(&memory, "f").unwrap();
    // A copy is missing: another is made.
    memory.few.lock().unwrap().insert(id, 2);
    assert_eq!(newest(&memory, "f").unwrap().holders.len(), 3);
    assert_eq!(asked(&memory), [brief; 3]);
    // None can be made; the silent one may have it.
    memory.few.lock().unwrap().insert(id, 2);
    memory.full = true;
    newest(&memory, "f").unwrap();
    assert_eq!(asked(&memory), [brief, patient]);
    assert!(matches!(newest(&memory, "other"), Err(Error::NotFound(_))));
    assert_eq!(asked(&memory), [brief, patient]);
    // It says in the end that it has not.
    memory.slow = memory.silent.clone();
    assert!(matches!(newest(&memory, "f"), Err(Error::Put { id: failed, .. }) if failed == id));
}

#[test]
fn a_missing_chunk_and_a_foreign_manifest_are_errors() {
    let memory = Memory::default();
    let version = put_file(&memory, "f", &mut &content(250)[..], &small(9), &mut |_| ()).unwrap();
    memory.chunks.lock().unwrap().remove(&version.manifest.entries[1].id);
    let outcome = get_file(&memory, "f", &mut std::io::sink(), 2);
    assert!(matches!(outcome, Err(Error::Get { .. })), "{outcome:?}");
    let junk = Bytes::from_static(b"not a manifest");
    let id = ChunkId::of_manifest("g", 5, &junk);
    memory.chunks.lock().unwrap().insert(id, junk);
    assert!(matches!(newest(&memory, "g"), Err(Error::Manifest { .. })));
    assert_eq!(list(&memory, 2).unwrap().unreadable.len(), 1);
}

#[test]
fn a_wrong_whole_file_hash_is_found() {
    let memory = Memory::default();
    let version = put_file(&memory, "f", &mut &content(250)[..], &small(9), &mut |_| ()).unwrap();
    let mut lying = version.manifest;
    lying.entries.swap(0, 1);
    lying.created_ms += 1;
    let bytes = Bytes::from(lying.encode());
    memory.chunks.lock().unwrap().insert(ChunkId::of_manifest("f", lying.created_ms, &bytes), bytes);
    let outcome = get_file(&memory, "f", &mut std::io::sink(), 2);
    assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{outcome:?}");
}

#[test]
fn a_clock_that_was_set_back_loses_no_overwrite() {
    let memory = Memory::default();
    let mut ahead = put_file(&memory, "f", &mut &b"old"[..], &small(9), &mut |_| ()).unwrap().manifest;
    // As if put by a gateway whose clock was a day ahead.
    ahead.created_ms += 86_400_000;
    let bytes = Bytes::from(ahead.encode());
    memory.chunks.lock().unwrap().insert(ChunkId::of_manifest("f", ahead.created_ms, &bytes), bytes);
    for (after, data) in [(1, b"one"), (2, b"two")] {
        let version = put_file(&memory, "f", &mut &data[..], &small(9), &mut |_| ()).unwrap();
        assert_eq!(version.manifest.created_ms, ahead.created_ms + after);
        let mut back = vec![];
        get_file(&memory, "f", &mut back, 2).unwrap();
        assert_eq!(back, data);
    }
    // Nothing comes after the last time: a put that would be lost is refused.
    ahead.created_ms = (1 << 48) - 1;
    let bytes = Bytes::from(ahead.encode());
    memory.chunks.lock().unwrap().insert(ChunkId::of_manifest("f", ahead.created_ms, &bytes), bytes);
    let outcome = put_file(&memory, "f", &mut &b"three"[..], &small(9), &mut |_| ());
    assert!(matches!(outcome, Err(Error::Clock(_))), "{outcome:?}");
}

#[test]
fn unusable_names_and_chunk_sizes_are_refused() {
    let memory = Memory::default();
    for name in ["", "a\nb", &"x".repeat(1025)] {
        assert!(matches!(newest(&memory, name), Err(Error::Name(_))), "{name:?}");
    }
    for chunk_size in [0, (8 << 20) + 1] {
        let options = PutOptions { chunk_size, ..PutOptions::default() };
        let outcome = put_file(&memory, "f", &mut &b"x"[..], &options, &mut |_| ());
        assert!(matches!(outcome, Err(Error::ChunkSize(_))));
    }
}
