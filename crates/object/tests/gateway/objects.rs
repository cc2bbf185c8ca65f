//! Objects over chunks in memory and a catalog in a file.

use std::collections::VecDeque;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use catalog::entry::SEAL_BLOCK;
use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId};
use catalog::{Condition, Refused, Row, Sqlite};
use object::ChunkService;
use object::manifest::Entry;
use object::objects::{ObjectError, Objects, Reader, Sealed, Source};
use object::rebuild::{Comparison, Manifests};
use object::seal::DataKey;
use protocol::id::ChunkId;
use protocol::initiator::ChunkPut;
use protocol::redundancy::Redundancy;

use crate::memory::Memory;

const MIB: usize = 1 << 20;

/// Bytes in pieces; what goes wrong comes after them.
struct Pieces {
    pieces: VecDeque<Bytes>,
    broken: bool,
    wrong: bool,
    key: Option<DataKey>,
    digested: Vec<u8>,
}

impl Pieces {
    fn of(bytes: &[u8], size: usize) -> Self {
        let pieces = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
        Self { pieces, broken: false, wrong: false, key: None, digested: vec![] }
    }
}

impl Source for Pieces {
    fn next(&mut self) -> Result<Option<Bytes>, Box<dyn Error + Send + Sync>> {
        let next = self.pieces.pop_front();
        if next.is_none() && self.broken { Err("it broke off".into()) } else { Ok(next) }
    }

    fn digest(&mut self, bytes: &Bytes) {
        self.digested.extend_from_slice(bytes);
    }

    fn key(&self) -> Option<DataKey> {
        self.key.clone()
    }

    fn seal(&mut self, size: u64) -> Result<Sealed, Box<dyn Error + Send + Sync>> {
        assert_eq!(self.digested.len() as u64, size);
        if self.wrong { Err("it is not what was declared".into()) } else { Ok(Sealed::default()) }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn record(key: &str) -> ObjectManifest {
    let mut record = ObjectManifest::new(Kind::Object, "b", key, VersionId::default());
    record.null = true;
    record
}

fn objects(memory: &Arc<Memory>, place: &Path) -> Arc<Objects> {
    let catalog = Sqlite::open(&place.join("catalog")).unwrap();
    let service = Arc::clone(memory) as Arc<dyn ChunkService + Send + Sync>;
    let objects = Arc::new(Objects::new(service, Arc::new(catalog)));
    if !memory.full {
        objects.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
    }
    objects
}

fn read(objects: &Arc<Objects>, row: &Row, range: Range<u64>) -> Vec<u8> {
    read_with(objects, row, range, None)
}

fn read_with(objects: &Arc<Objects>, row: &Row, range: Range<u64>, key: Option<DataKey>) -> Vec<u8> {
    let mut reader = Reader::with_key(objects, row, range, key).unwrap();
    let mut bytes = vec![];
    while let Some(piece) = reader.piece().unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

#[test]
fn what_rides_in_its_manifest_can_be_larger() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = Arc::into_inner(objects(&memory, place.path())).unwrap();
    let objects = Arc::new(objects.with_inline(128 << 10));
    for (length, chunks) in [(128 << 10, 1), ((128 << 10) + 1, 2)] {
        let before = memory.chunks.lock().unwrap().len();
        let bytes = content(length);
        let row = objects.put(record("k"), &Condition::Always, &mut Pieces::of(&bytes, 50_000)).unwrap().row;
        assert_eq!(memory.chunks.lock().unwrap().len() - before, chunks, "{length} bytes");
        assert!(read(&objects, &row, 0..u64::MAX) == bytes);
    }
}

#[test]
fn without_room_ahead_chunks_go_one_by_one() {
    for (ahead, most) in [(0, 1), (MIB, 2), (2 * MIB, 3)] {
        let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
        let objects = Arc::into_inner(objects(&memory, place.path())).unwrap();
        let objects = Arc::new(objects.with_ahead(ahead));
        memory.most.store(0, Ordering::SeqCst);
        let bytes = content(6 * MIB + 5);
        // A second one finds what the first gave back.
        for key in ["k", "l"] {
            let row = objects.put(record(key), &Condition::Always, &mut Pieces::of(&bytes, 300_000)).unwrap().row;
            assert!(read(&objects, &row, 0..u64::MAX) == bytes);
            assert!(read(&objects, &row, 1_000_000..3_000_000) == bytes[1_000_000..3_000_000]);
        }
        assert_eq!(memory.most.load(Ordering::SeqCst), most, "with {ahead} bytes");
    }
}

#[test]
fn every_size_and_range_comes_back() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    for length in [0, 1, 65_536, 65_537, MIB - 1, MIB, MIB + 1, 3 * MIB + 5] {
        let data = content(length);
        let row = objects.put(record("k"), &Condition::Always, &mut Pieces::of(&data, 70_001)).unwrap().row;
        assert_eq!(row.record.size, length as u64);
        assert_eq!(objects.catalog().newest("b", "k").unwrap(), Some(row.clone()));
        let end = length as u64;
        for range in [0..end, 0..end / 2, end / 3..end, MIB as u64 - 1..MIB as u64 + 1, end..end] {
            let cut = range.start.min(end) as usize..range.end.min(end) as usize;
            if cut.start <= cut.end {
                assert!(read(&objects, &row, range.clone()) == data[cut], "{range:?} of {length}");
            }
        }
    }
    assert!(memory.most.load(Ordering::SeqCst) <= 4, "more in flight than the pipeline allows");
}

#[test]
fn a_range_of_a_coded_object_reads_the_fragments_that_have_it() {
    let encrypted = Some(DataKey::random().unwrap());
    for (code, key) in ["2+1", "4+2", "8+3"].into_iter().flat_map(|code| [(code, &None), (code, &encrypted)]) {
        let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
        let objects = objects(&memory, place.path());
        let redundancy: Redundancy = code.parse().unwrap();
        let Redundancy::Code(of) = redundancy else { panic!("{redundancy:?}") };
        for length in [65_537, 100_001, MIB, 2 * MIB + 70_000] {
            let data = content(length);
            let mut record = record("k");
            record.set_redundancy(Some(redundancy));
            let mut source = Pieces::of(&data, 70_001);
            source.key.clone_from(key);
            let row = objects.put(record, &Condition::Always, &mut source).unwrap().row;
            let fragment = of.fragment_len(length.min(MIB));
            for start in [0, 1, length / 3, fragment - 1, fragment, length - 7] {
                for more in [1, 6, fragment, length] {
                    let range = start..(start + more).min(length);
                    memory.fetched.store(0, Ordering::SeqCst);
                    assert!(
                        read_with(&objects, &row, range.start as u64..range.end as u64, key.clone())
                            == data[range.clone()],
                        "{range:?}"
                    );
                    // And the manifest, each time; what is encrypted by whole blocks, and of each chunk the first fragment.
                    let sealed = key.as_ref().map_or(0, |_| (range.len() / MIB + 2) * fragment + 2 * SEAL_BLOCK);
                    let most = 4_096 + range.len() + 2 * fragment + sealed;
                    let fetched = memory.fetched.load(Ordering::SeqCst);
                    assert!(fetched <= most, "{fetched} bytes for {range:?} of {length}, {code}");
                }
            }
        }
    }
}

#[test]
fn more_chunks_than_a_manifest_names_are_found_by_their_indexes() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    let chunks: Vec<Bytes> = [&b"a"[..], b"bb", b"ccc"].map(Bytes::copy_from_slice).to_vec();
    let entries: Vec<Entry> = chunks.iter().map(|c| Entry::new(ChunkId::of_payload(c), c.len() as u32)).collect();
    for (entry, chunk) in entries.iter().zip(&chunks) {
        memory.put(ChunkPut::new(entry.id, chunk.clone())).wait().unwrap();
    }
    let parts = 8_334;
    let body = objects.join((0..parts).map(|_| Ok(entries.clone())), None).unwrap();
    assert!(matches!(&body, Body::Indexed(indexes) if indexes.len() == 3));
    let data = b"abbccc".repeat(parts);
    let new = ObjectManifest { body, size: data.len() as u64, ..record("k") };
    let row = objects.publish(new, &Condition::Always).unwrap().row;
    let end = data.len() as u64;
    for range in [0..10, 19_990..20_010, 39_999..40_001, end - 5..end, 0..end] {
        assert!(read(&objects, &row, range.clone()) == data[range.start as usize..range.end as usize], "{range:?}");
    }
}

#[test]
fn chunks_are_compressed_when_that_is_worth_it() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let plain = objects(&memory, place.path());
    let packing = Objects::new(
        Arc::clone(&memory) as Arc<dyn ChunkService + Send + Sync>,
        Arc::new(Sqlite::open(&place.path().join("other")).unwrap()),
    );
    let packing = Arc::new(packing.compressing(true));
    packing.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
    // Text, noise, and text again, each some chunks long.
    let text: Vec<u8> = (0..2 * MIB).map(|n| b"some words that come again and again. "[n % 38]).collect();
    let mut noise = vec![0; 2 * MIB];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    let data = [&text[..], &noise, &text[..MIB / 2]].concat();
    let stored = || memory.chunks.lock().unwrap().values().map(Bytes::len).sum::<usize>();
    let before = stored();
    let row = packing.put(record("k"), &Condition::Always, &mut Pieces::of(&data, 70_001)).unwrap().row;
    assert!(stored() - before < 2 * MIB + MIB / 8, "{} bytes are stored", stored() - before);
    let Body::Chunks(entries) = &packing.whole(&row).unwrap().body else { panic!("{row:?}") };
    let packed: Vec<bool> = entries.iter().map(Entry::is_packed).collect();
    assert_eq!(packed, [true, true, false, false, true]);
    let end = data.len() as u64;
    let mib = MIB as u64;
    for range in [0..end, 5..6, mib - 1..mib + 1, 2 * mib - 7..2 * mib + 7, 4 * mib - 1..end, end - 1..end] {
        assert!(read(&packing, &row, range.clone()) == data[range.start as usize..range.end as usize], "{range:?}");
        // A gateway that does not compress reads it all the same.
        assert!(read(&plain, &row, range.clone()) == data[range.start as usize..range.end as usize], "{range:?}");
    }
    // The same content is stored once.
    let before = stored();
    packing.put(record("again"), &Condition::Always, &mut Pieces::of(&data, 9_999)).unwrap();
    assert!(stored() - before < 2_000, "{} bytes more", stored() - before);
    let manifests = Manifests::read(&*memory).unwrap();
    assert_eq!(manifests.compare(packing.catalog()).unwrap(), Comparison::default());
    // A part of an upload as well, and what its chunks are joined to.
    let written = packing.write(&mut Pieces::of(&text, 9_999), None).unwrap();
    let Body::Chunks(entries) = written.body else { panic!("a part is chunks") };
    let body = packing.join((0..3).map(|_| Ok(entries.clone())), None).unwrap();
    let joined = ObjectManifest { body, size: 3 * text.len() as u64, ..record("joined") };
    let row = packing.publish(joined, &Condition::Always).unwrap().row;
    assert!(read(&packing, &row, 0..row.record.size) == text.repeat(3));
}

#[test]
fn a_chunk_that_does_not_unpack_is_an_error() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    for (stored, plain) in [(&b"no frame"[..], 100), (&zstd::bulk::compress(&[7; 50], 1).unwrap(), 100)] {
        let entry = Entry { plain, ..Entry::new(ChunkId::of_payload(stored), stored.len() as u32) };
        memory.put(ChunkPut::new(entry.id, Bytes::copy_from_slice(stored))).wait().unwrap();
        let new = ObjectManifest { body: Body::Chunks(vec![entry]), size: u64::from(plain), ..record("k") };
        let row = objects.publish(new, &Condition::Always).unwrap().row;
        let error = Reader::new(&objects, &row, 0..5).unwrap().piece().unwrap_err();
        assert!(matches!(error, ObjectError::Manifest { .. }), "{error}");
    }
}

#[test]
fn what_fails_leaves_nothing_to_be_seen() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    let kept = objects.put(record("k"), &Condition::Always, &mut Pieces::of(b"kept", 9)).unwrap().row;
    for length in [10, 70_000, 3 * MIB] {
        let data = content(length);
        let mut broken = Pieces { broken: true, ..Pieces::of(&data, 9_999) };
        let error = objects.put(record("k"), &Condition::Always, &mut broken).unwrap_err();
        assert!(matches!(error, ObjectError::Source(_)), "{error}");
        let mut wrong = Pieces { wrong: true, ..Pieces::of(&data, 9_999) };
        assert!(objects.put(record("k"), &Condition::Always, &mut wrong).is_err());
        let refused = objects.put(record("k"), &Condition::Absent, &mut Pieces::of(&data, 9_999)).unwrap_err();
        assert_eq!(refused.refused(), Some(Refused::Condition));
    }
    assert_eq!(objects.catalog().newest("b", "k").unwrap(), Some(kept));
    let full = Arc::new(Memory { full: true, ..Memory::default() });
    let other = tempfile::tempdir().unwrap();
    let objects = self::objects(&full, other.path());
    let error = objects.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap_err();
    assert!(matches!(error, ObjectError::Chunk { .. }), "{error}");
    assert_eq!(objects.catalog().bucket("b").unwrap(), None);
}

#[test]
fn a_full_cluster_can_be_emptied() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    let put = |objects: &Arc<Objects>, key: &str, null| {
        let new = ObjectManifest { null, ..record(key) };
        objects.put(new, &Condition::Always, &mut Pieces::of(&content(10), 9_999)).map(|made| made.row)
    };
    let (null, version) = (put(&objects, "null", true).unwrap(), put(&objects, "versions", false).unwrap());
    let marker = |objects: &Arc<Objects>| {
        let marker = ObjectManifest { kind: Kind::Marker, null: false, ..record("versions") };
        objects.publish(marker, &Condition::Always).map(|made| made.row)
    };
    let hidden = marker(&objects).unwrap();
    assert!(memory.removals.lock().unwrap().is_empty());
    drop(objects);
    let memory = Arc::into_inner(memory).unwrap();
    let memory = Arc::new(Memory { full: true, ..memory });
    let objects = self::objects(&memory, place.path());
    assert!(matches!(put(&objects, "other", true), Err(ObjectError::Chunk { .. })));
    objects.erase(&null).unwrap();
    // A delete marker wins no room, and has none of what is kept for removals.
    assert!(matches!(marker(&objects), Err(ObjectError::Chunk { .. })));
    assert!([version, hidden].iter().all(|row| objects.erase(row).unwrap()));
    objects.delete_bucket(&objects.catalog().bucket("b").unwrap().unwrap()).unwrap();
    assert_eq!(memory.removals.lock().unwrap().len(), 5);
}

/// How the manifest is kept that was stored last of this kind.
fn kept(memory: &Memory, kind: Kind) -> Option<Redundancy> {
    let chunks = memory.chunks.lock().unwrap();
    let records = chunks.iter().filter_map(|(id, bytes)| Some((*id, ObjectManifest::decode(bytes).ok()?)));
    let (id, _) = records.filter(|(_, record)| record.kind == kind).max_by_key(|(_, record)| record.begun()).unwrap();
    memory.kept.lock().unwrap()[&id]
}

#[test]
fn what_says_that_an_object_is_gone_is_kept_as_often_as_the_object() {
    // The map says three copies, and can keep four.
    for (copies, removal) in [(None, None), (Some(2), None), (Some(3), None), (Some(4), Some(4)), (Some(5), None)] {
        let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
        let objects = objects(&memory, place.path());
        let (class, removal) = (copies.map(Redundancy::Copies), removal.map(Redundancy::Copies));
        let new = |key: &str, null| {
            let mut new = ObjectManifest { null, ..record(key) };
            new.set_redundancy(class);
            new
        };
        let put = |objects: &Objects, record| {
            let made = objects.put(record, &Condition::Always, &mut Pieces::of(&content(10), 9_999));
            made.map(|made| made.row)
        };
        let (erased, hidden) = (put(&objects, new("erased", true)).unwrap(), put(&objects, new("k", false)).unwrap());
        objects.erase(&erased).unwrap();
        assert_eq!(kept(&memory, Kind::Removal), removal, "of {class:?}");
        // A version without a class of its own in between: the null version is gone with the marker in its place.
        put(&objects, new("replaced", true)).unwrap();
        put(&objects, ObjectManifest { null: false, ..record("replaced") }).unwrap();
        for (key, null) in [("k", false), ("replaced", true)] {
            let marker = ObjectManifest { kind: Kind::Marker, null, ..record(key) };
            let marker = objects.publish(marker, &Condition::Always).unwrap().row;
            assert_eq!(kept(&memory, Kind::Marker), removal, "of {class:?}");
            objects.erase(&marker).unwrap();
            assert_eq!(kept(&memory, Kind::Removal), removal, "of {class:?}");
        }
        objects.erase(&hidden).unwrap();
        // One that comes too late to count is withdrawn.
        let objects = Arc::into_inner(objects).unwrap().with_limit(Duration::ZERO);
        assert!(matches!(put(&objects, new("late", false)), Err(ObjectError::TooSlow(_))));
        assert_eq!(kept(&memory, Kind::Removal), removal, "of {class:?}");
    }
}

#[test]
fn the_manifests_say_all_that_the_catalog_says() {
    let (memory, place) = (Arc::new(Memory::default()), tempfile::tempdir().unwrap());
    let objects = objects(&memory, place.path());
    let put = |key: &str, null: bool, length: usize| {
        let new = ObjectManifest { null, ..record(key) };
        objects.put(new, &Condition::Always, &mut Pieces::of(&content(length), 9_999)).unwrap().row
    };
    put("replaced", true, 10);
    put("replaced", true, 100_000);
    objects.erase(&put("removed", true, 10)).unwrap();
    let old = put("versions", false, 10);
    put("versions", false, 2 * MIB);
    let marker = ObjectManifest { kind: Kind::Marker, null: false, ..record("versions") };
    let marker = objects.publish(marker, &Condition::Always).unwrap().row;
    objects.erase(&old).unwrap();
    let tagged = put("tagged", true, 70_000);
    let tagged = objects.revise(&tagged, |r| drop(r.attributes.insert("a".into(), "1".into()))).unwrap();
    let bucket = objects.catalog().bucket("b").unwrap().unwrap();
    objects.set_bucket(&bucket, |r| drop(r.attributes.insert("x".into(), "2".into()))).unwrap();
    objects.create_bucket(ObjectManifest::new(Kind::Bucket, "gone", "", VersionId::default())).unwrap();
    objects.delete_bucket(&objects.catalog().bucket("gone").unwrap().unwrap()).unwrap();
    // A put whose manifest was stored and whose payload was not.
    let mut unfinished = ObjectManifest { size: 9, version: objects.next_version(), ..record("replaced") };
    unfinished.body = Body::Chunks(vec![Entry::new(ChunkId::of_payload(b"nowhere"), 9)]);
    let (id, bytes) = unfinished.chunk();
    memory.put(ChunkPut::new(id, bytes)).wait().unwrap();

    let manifests = Manifests::read(&*memory).unwrap();
    let found = manifests.compare(objects.catalog()).unwrap();
    assert_eq!((found.differences.len(), found.harmless.len(), found.remarks.len()), (0, 1, 0), "{found:?}");
    assert_eq!(manifests.counts(), (1, 4));
    let fresh = place.path().join("fresh");
    manifests.write(&fresh).unwrap();
    let again = Sqlite::open(&fresh).unwrap();
    // This one does not know which run began what.
    let found = manifests.compare(&again).unwrap();
    assert_eq!((found.differences.len(), found.harmless.len(), found.remarks.len()), (0, 0, 1), "{found:?}");
    // A difference is found, whichever side it is on, of what is not under way any more.
    objects.erase(&marker).unwrap();
    objects.heartbeat().unwrap();
    assert_eq!(manifests.compare(objects.catalog()).unwrap().differences.len(), 1);
    let manifests = Manifests::read(&*memory).unwrap();
    assert_eq!(manifests.compare(objects.catalog()).unwrap().differences, [""; 0]);
    assert_eq!(manifests.compare(&again).unwrap().differences.len(), 1);
    objects.erase(&tagged).unwrap();
    assert!(
        read(&objects, &objects.catalog().newest("b", "replaced").unwrap().unwrap(), 0..100_000) == content(100_000)
    );
}
