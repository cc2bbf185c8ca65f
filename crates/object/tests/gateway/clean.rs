//! What nothing refers to goes after two passes; what a file, a version or an upload refers to stays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId, encode_entries};
use catalog::{Catalog, Change, Condition, Part, Row, Sqlite, Upload};
use object::ChunkService;
use object::clean::{Cleaning, Report};
use object::objects::{ObjectError, Objects};
use object::rebuild::{Comparison, Manifests};
use protocol::cleaner::Unfinished;
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::ChunkPut;

use crate::memory::{All, Memory};

const MIB: usize = 1 << 20;

struct World {
    memory: Arc<Memory>,
    catalog: Arc<Sqlite>,
    objects: Objects,
}

impl World {
    fn new(place: &Path) -> Self {
        let world = Self::over(Arc::default(), &place.join("catalog"));
        world.objects.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
        world
    }

    fn over(memory: Arc<Memory>, catalog: &Path) -> Self {
        let catalog = Arc::new(Sqlite::open(catalog).unwrap());
        let service = Arc::clone(&memory) as Arc<dyn ChunkService + Send + Sync>;
        let objects = Objects::new(service, Arc::clone(&catalog) as Arc<dyn Catalog>);
        Self { memory, catalog, objects }
    }

    fn put(&self, key: &str, null: bool, fill: u8, length: usize) -> Row {
        let mut record = ObjectManifest::new(Kind::Object, "b", key, VersionId::default());
        record.null = null;
        let bytes = (0..length).map(|n| fill ^ (n / MIB) as u8).collect::<Vec<u8>>();
        self.objects.put(record, &Condition::Always, &mut All(Some(bytes.into()))).unwrap().row
    }

    fn held(&self, kind: ChunkKind) -> usize {
        self.memory.chunks.lock().unwrap().keys().filter(|id| id.kind() == kind).count()
    }

    fn passes(&self, count: usize) -> Report {
        let mut cleaning = Cleaning::new(&*self.memory, &*self.catalog, false);
        let mut last = Report::default();
        for _ in 0..count {
            last = cleaning.run_pass(&mut || true);
            assert_eq!(last.problem, None);
        }
        last
    }

    /// What the manifests say is what the catalog says.
    fn check(&self) {
        let manifests = Manifests::read(&*self.memory).unwrap();
        assert_eq!(manifests.compare(&*self.catalog).unwrap(), Comparison::default());
    }
}

#[test]
fn what_is_named_stays_and_the_rest_goes() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    let shared = world.put("shared", true, 1, 3 * MIB);
    world.put("twin", true, 1, 3 * MIB);
    let inline = world.put("small", true, 2, 100);
    let gone = world.put("gone", true, 3, 40 * MIB);
    world.memory.put_file("file", 1, &[5; 3 * MIB], MIB, None);
    let part = world.objects.write(&mut All(Some(Bytes::from(vec![6; 2 * MIB]))), None).unwrap();
    let Body::Chunks(entries) = part.body else { panic!("no chunks") };
    let id = world.objects.next_version();
    let record = ObjectManifest::new(Kind::Object, "b", "upload", VersionId::default());
    world.catalog.change(Change::StartUpload(Upload { id, record })).unwrap();
    let [etag, checksums] = [String::new(), String::new()];
    let part = Part { number: 1, size: 1, etag, micros: 1, checksums, entries: encode_entries(&entries) };
    world.catalog.change(Change::PutPart(id, part)).unwrap();
    // 3 shared, 40 of which two parts of 16 are the same bytes, 1 of the file, 1 of the part.
    let before = (world.held(ChunkKind::Payload), world.held(ChunkKind::Manifest));
    assert_eq!(world.passes(3).pass.copies, 0, "something was dropped that is referred to");
    assert_eq!((world.held(ChunkKind::Payload), world.held(ChunkKind::Manifest)), before);
    for row in [&shared, &inline, &gone] {
        world.objects.erase(row).unwrap();
    }
    assert_eq!(world.held(ChunkKind::Manifest), before.1 + 3);
    let report = world.passes(2);
    assert!(report.pass.copies > 100, "{report:?}");
    // The bytes of "gone" go, and three manifests; what says that they are gone outlives them.
    assert_eq!(world.held(ChunkKind::Payload), 3 + 1 + 1);
    assert_eq!(world.held(ChunkKind::Manifest), before.1);
    world.check();
    world.passes(2);
    assert_eq!(world.held(ChunkKind::Manifest), before.1 - 3);
    world.check();
    world.catalog.change(Change::EndUpload(id)).unwrap();
    world.passes(2);
    assert_eq!(world.held(ChunkKind::Payload), 4);
    // Made again from what is left, the catalog is the same.
    let fresh = place.path().join("fresh");
    Manifests::read(&*world.memory).unwrap().write(&fresh).unwrap();
    World::over(Arc::clone(&world.memory), &fresh).check();
    assert_eq!(world.catalog.newest("b", "twin").unwrap().unwrap().record.size, 3 << 20);
}

#[test]
fn versions_that_others_take_the_place_of_go() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    (0..3).for_each(|n| drop(world.put("k", true, 10 + n, MIB)));
    let row = world.put("kept", false, 20, MIB);
    world.put("kept", false, 21, MIB);
    let row = world.objects.revise(&row, |record| record.etag = "other".to_owned()).unwrap();
    let bucket = world.catalog.bucket("b").unwrap().unwrap();
    world.objects.set_bucket(&bucket, |record| record.etag = "set".to_owned()).unwrap();
    world.passes(2);
    assert_eq!((world.held(ChunkKind::Payload), world.held(ChunkKind::Manifest)), (3, 4));
    assert!(world.objects.whole(&row).is_ok());
    world.check();
}

#[test]
fn an_empty_catalog_removes_nothing_that_stands() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    world.put("k", true, 1, 2 * MIB);
    world.put("k", true, 2, 2 * MIB);
    let long = world.put("long", false, 3, 40 * MIB);
    let marker = ObjectManifest::new(Kind::Marker, "b", "long", VersionId::default());
    world.objects.publish(marker, &Condition::Always).unwrap();
    let before = world.memory.chunks.lock().unwrap().len();
    let lost = World::over(Arc::clone(&world.memory), &place.path().join("empty"));
    assert_eq!(lost.passes(4).pass.unreferenced, 0);
    assert_eq!(world.memory.chunks.lock().unwrap().len(), before);
    // Nor does a manifest that says so, while the catalog contradicts.
    let mut erased = ObjectManifest::new(Kind::Removal, "b", "long", VersionId::new(u64::MAX >> 1, 1));
    erased.removes = long.record.version;
    let (id, bytes) = erased.chunk();
    world.memory.put(ChunkPut::new(id, bytes)).wait().unwrap();
    let kept = world.catalog.newest("b", "k").unwrap().unwrap();
    let mut erased = ObjectManifest::new(Kind::Removal, "b", "k", VersionId::new(u64::MAX >> 1, 1));
    erased.null = true;
    let (id, bytes) = erased.chunk();
    world.memory.put(ChunkPut::new(id, bytes)).wait().unwrap();
    world.passes(4);
    assert!(world.memory.chunks.lock().unwrap().contains_key(&kept.manifest));
    assert!(world.memory.chunks.lock().unwrap().contains_key(&long.manifest));
    assert!(world.objects.whole(&long).is_ok());
}

#[test]
fn a_removal_that_came_too_late_removes_nothing_of_what_was_revised() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    for (key, null) in [("k", false), ("null", true)] {
        let row = world.put(key, null, 1, 2 * MIB);
        let revised =
            world.objects.revise(&row, |record| drop(record.attributes.insert("x".into(), "y".into()))).unwrap();
        // Another gateway had not seen that yet, and the catalog refused its removal.
        assert!(!world.objects.erase(&row).unwrap());
        let lost = World::over(Arc::clone(&world.memory), &place.path().join(format!("empty-{key}")));
        lost.passes(4);
        let there = |id| world.memory.chunks.lock().unwrap().contains_key(&id);
        assert!(there(revised.manifest), "{key}");
        let Body::Chunks(entries) = &revised.record.body else { panic!("{:?}", revised.record.body) };
        assert!(entries.iter().all(|entry| there(entry.id)), "{key}");
    }
}

#[test]
fn what_is_not_known_drops_nothing() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    let row = world.put("k", true, 1, 2 * MIB);
    world.objects.erase(&row).unwrap();
    let before = world.memory.chunks.lock().unwrap().len();
    // A manifest that this program cannot read may name anything.
    let mut bytes = b"RSVM\x09".to_vec();
    bytes.resize(100, 7);
    let bytes = Bytes::from(bytes);
    let strange = ChunkId::of_manifest("strange", 1, &bytes);
    world.memory.put(ChunkPut::new(strange, bytes)).wait().unwrap();
    let mut cleaning = Cleaning::new(&*world.memory, &*world.catalog, false);
    for _ in 0..3 {
        let report = cleaning.run_pass(&mut || true);
        assert!(report.problem.is_some_and(|problem| problem.contains("format 9")));
    }
    world.memory.chunks.lock().unwrap().remove(&strange);
    assert_eq!(world.memory.chunks.lock().unwrap().len(), before);
    // It does not stay in the way.
    world.passes(2);
    assert_eq!(world.held(ChunkKind::Payload), 0);
}

#[test]
fn a_silent_target_stops_a_pass() {
    let place = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory { silent: vec![NodeId(4)], ..Memory::default() });
    let world = World::over(memory, &place.path().join("catalog"));
    let orphan = Bytes::from_static(b"nobody names it");
    world.memory.put(ChunkPut::new(ChunkId::of_payload(&orphan), orphan)).wait().unwrap();
    let mut cleaning = Cleaning::new(&*world.memory, &*world.catalog, false);
    for _ in 0..3 {
        let report = cleaning.run_pass(&mut || true);
        assert_eq!(report.pass.unfinished, Some(Unfinished::Silent(vec![NodeId(4)])));
    }
    assert_eq!(world.held(ChunkKind::Payload), 1);
}

#[test]
fn a_copy_made_during_a_look_survives() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    let from = world.put("from", true, 1, 3 * MIB);
    let whole = world.objects.whole(&from).unwrap();
    world.objects.erase(&from).unwrap();
    let mut cleaning = Cleaning::new(&*world.memory, &*world.catalog, false);
    cleaning.run_pass(&mut || true);
    // It had read the source before that was erased, and its manifest comes when the pass has read all manifests.
    let copy = ObjectManifest { key: "copy".to_owned(), ..whole };
    for entry in match &copy.body {
        Body::Chunks(entries) => entries,
        other => panic!("{other:?}"),
    } {
        assert!(matches!(world.memory.renew(entry.id, None).wait(), Ok(true)));
    }
    cleaning.run_pass(&mut || true);
    assert_eq!(world.held(ChunkKind::Payload), 3);
    world.objects.publish(copy, &Condition::Always).unwrap();
    (0..4).for_each(|_| drop(cleaning.run_pass(&mut || true)));
    assert_eq!(world.held(ChunkKind::Payload), 3);
}

#[test]
fn a_put_that_takes_too_long_fails_and_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    let World { memory, catalog, objects } = world;
    let objects = objects.with_limit(Duration::ZERO);
    let record = ObjectManifest::new(Kind::Object, "b", "slow", VersionId::default());
    let put = objects.put(record, &Condition::Always, &mut All(Some(Bytes::from(vec![1; 2 * MIB]))));
    assert!(matches!(put, Err(ObjectError::TooSlow(_))), "{put:?}");
    assert_eq!(catalog.newest("b", "slow").unwrap(), None);
    let world = World { memory, catalog, objects };
    world.check();
    world.passes(4);
    assert_eq!((world.held(ChunkKind::Payload), world.held(ChunkKind::Manifest)), (0, 1));
}

#[test]
fn manifests_outside_of_their_groups_are_read_where_they_were_listed() {
    let place = tempfile::tempdir().unwrap();
    let world = World::new(place.path());
    world.put("long", false, 1, 40 * MIB);
    let gone = world.put("gone", true, 100, MIB);
    world.memory.put_file("file", 1, &[200; 2 * MIB], MIB, None);
    world.objects.erase(&gone).unwrap();
    let World { memory, catalog, objects } = world;
    drop(objects);
    let memory = Memory { elsewhere: Some(ChunkKind::Manifest), ..Arc::into_inner(memory).unwrap() };
    let mut cleaning = Cleaning::new(&memory, &*catalog, false);
    for _ in 0..2 {
        assert_eq!(cleaning.run_pass(&mut || true).problem, None);
    }
    let held = memory.chunks.lock().unwrap().keys().filter(|id| id.kind() == ChunkKind::Payload).count();
    assert_eq!(held, 40 + 1, "two chunks of the file are the same");
}
