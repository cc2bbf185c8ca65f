//! Changes that a gateway began and never answered, because it was killed: they are no differences, the cleaner takes their
//! manifests, and a catalog that is made again then has exactly what was acknowledged.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod memory;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memory::{All, Memory};
use object::ChunkService;
use object::catalog::{Catalog, Change, Condition, Refused, Row, Run, Sqlite, Start};
use object::clean::Cleaning;
use object::objects::Objects;
use object::rebuild::{Comparison, Manifests};
use object::record::{Body, Kind, Record, VersionId};
use protocol::id::ChunkId;

const MIB: usize = 1 << 20;

/// A gateway over chunks in memory and a catalog in a file.
struct Gateway {
    memory: Arc<Memory>,
    catalog: Arc<Sqlite>,
    objects: Objects,
}

impl Gateway {
    fn start(memory: &Arc<Memory>, catalog: &Path) -> Self {
        let catalog = Arc::new(Sqlite::open(catalog).unwrap());
        let service = Arc::clone(memory) as Arc<dyn ChunkService + Send + Sync>;
        let objects = Objects::new(service, Arc::clone(&catalog) as Arc<dyn Catalog>);
        Self { memory: Arc::clone(memory), catalog, objects }
    }

    fn put(&self, key: &str, null: bool, fill: u8) -> Row {
        let mut record = Record::new(Kind::Object, "b", key, VersionId::default());
        record.null = null;
        self.objects.put(record, &Condition::Always, &mut All(Some(vec![fill; 2 * MIB].into()))).unwrap()
    }

    fn run(&self) -> Run {
        let id = self.objects.next_version().run();
        self.catalog.runs().unwrap().into_iter().find(|run| run.id == id).unwrap()
    }

    /// Ends the run of a gateway that is gone, as others do who find it silent.
    fn bury(&self, run: u64) {
        let Run { until, .. } = self.catalog.runs().unwrap().into_iter().find(|known| known.id == run).unwrap();
        self.catalog.change(Change::EndRun { run, until }).unwrap();
    }

    /// Stores a manifest and does not tell the catalog, as a gateway that is killed between.
    fn leave(&self, record: &Record) -> ChunkId {
        let (id, bytes) = record.chunk();
        self.memory.put(id, bytes).wait().unwrap();
        id
    }

    fn looks(&self, count: usize) {
        let mut cleaning = Cleaning::new(&*self.memory, &*self.catalog, false);
        for _ in 0..count {
            assert_eq!(cleaning.look(&mut || true).problem, None);
        }
    }

    fn compare(&self) -> Comparison {
        Manifests::read(&*self.memory).unwrap().compare(&*self.catalog).unwrap()
    }

    fn has(&self, id: ChunkId) -> bool {
        self.memory.chunks.lock().unwrap().contains_key(&id)
    }

    fn rows(&self) -> Vec<Row> {
        let rows = self.catalog.versions("b", &Start::Key(vec![]), 100).unwrap();
        rows.into_iter().map(|(row, _)| row).collect()
    }
}

struct World {
    memory: Arc<Memory>,
    place: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self { memory: Arc::default(), place: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn start(&self) -> Gateway {
        let gateway = Gateway::start(&self.memory, &self.path("catalog"));
        if gateway.catalog.bucket("b").unwrap().is_none() {
            gateway.objects.create_bucket(Record::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
        }
        gateway
    }

    /// The versions of a catalog made from the manifests.
    fn rebuilt(&self) -> Vec<Row> {
        let fresh = self.path("fresh");
        Manifests::read(&*self.memory).unwrap().write(&fresh).unwrap();
        Gateway::start(&self.memory, &fresh).rows()
    }
}

/// A change of every kind, each begun by this gateway and left: manifests, and how many of them count.
fn leave_all(gateway: &Gateway) -> Vec<ChunkId> {
    let stamp = || gateway.objects.next_version();
    let version = |row: &Row| {
        let mut record = gateway.objects.whole(row).unwrap();
        (record.version, record.etag) = (stamp(), "left".to_owned());
        record.revision = record.version.micros();
        record
    };
    let plain = gateway.put("plain", true, 1);
    let kept = gateway.put("kept", false, 2);
    let marked = gateway.put("marked", false, 3);
    let tagged = gateway.put("tagged", false, 4);
    let removed = gateway.put("removed", false, 5);
    let erased = gateway.put("erased", true, 6);
    let marker = Record::new(Kind::Marker, "b", "marked", stamp());
    let mut revised = gateway.objects.whole(&tagged).unwrap();
    let begun = stamp();
    revised.revision = begun.micros();
    revised.attributes.insert("begun".to_owned(), begun.to_string());
    let erasure = |row: &Row| {
        let old = &row.record;
        let mut record = Record::new(Kind::Erased, "b", &old.key, old.version.next());
        (record.erases, record.revision, record.null) = (old.version, old.revision, old.null);
        record.attributes.insert("begun".to_owned(), stamp().to_string());
        record
    };
    assert!(marked.record.version < marker.version);
    let mut bucket = gateway.catalog.bucket("b").unwrap().unwrap().record;
    bucket.version = stamp();
    bucket.attributes.insert("policy".to_owned(), "left".to_owned());
    let all = [version(&plain), version(&kept), marker, revised, erasure(&removed), erasure(&erased), bucket];
    all.iter().map(|record| gateway.leave(record)).collect()
}

#[test]
fn what_was_never_answered_is_no_difference_and_goes() {
    let world = World::new();
    let killed = world.start();
    let left = leave_all(&killed);
    let (run, rows) = (killed.run().id, killed.rows());
    let gateway = world.start();
    let later = gateway.put("later", true, 9);
    let rows = [rows, vec![later]].concat();
    let sorted = |mut rows: Vec<Row>| {
        rows.sort_by_key(|row| (row.record.key.clone(), row.record.version));
        rows
    };
    let Comparison { differences, harmless, remarks } = gateway.compare();
    assert_eq!((differences, remarks, harmless.len()), (vec![], vec![], left.len()), "{harmless:?}");
    assert!(harmless.iter().all(|line| line.ends_with("was never answered, or is under way")), "{harmless:?}");
    // Nobody knows yet that it is gone, and it may go on.
    gateway.looks(4);
    assert!(left.iter().all(|id| gateway.has(*id)));
    gateway.bury(run);
    gateway.looks(1);
    assert!(left.iter().all(|id| gateway.has(*id)), "gone before the grace time was over");
    gateway.looks(2);
    assert!(left.iter().all(|id| !gateway.has(*id)));
    assert_eq!(gateway.compare(), Comparison::default());
    assert_eq!(sorted(gateway.rows()), sorted(rows.clone()));
    assert_eq!(sorted(world.rebuilt()), sorted(rows.clone()), "a catalog made again has what was acknowledged");
    for row in &rows {
        assert_eq!(gateway.objects.whole(row).unwrap().size, 2 * MIB as u64);
    }
}

#[test]
fn a_catalog_that_is_made_again_before_that_keeps_all() {
    let world = World::new();
    let killed = world.start();
    let row = killed.put("k", false, 1);
    let mut left = killed.objects.whole(&row).unwrap();
    left.version = killed.objects.next_version();
    left.revision = left.version.micros();
    let id = killed.leave(&left);
    assert_eq!(world.rebuilt().iter().map(|row| row.manifest).collect::<Vec<_>>(), [id, row.manifest]);
    // The fresh catalog knows of no run: what has a row stays, and what lost it is named.
    let fresh = Gateway::start(&world.memory, &world.path("fresh"));
    fresh.looks(3);
    assert!(fresh.has(id) && fresh.has(row.manifest));
    assert_eq!(fresh.compare(), Comparison::default());
}

#[test]
fn a_lost_row_is_a_difference_once_its_change_is_settled() {
    let world = World::new();
    let gateway = world.start();
    let row = gateway.put("k", false, 1);
    gateway.objects.beat().unwrap();
    let Row { record, manifest } = row;
    let lose = Change::Erase { bucket: "b".into(), key: "k".into(), version: record.version, manifest, run: 0 };
    gateway.catalog.change(lose).unwrap();
    let names_it = |gateway: &Gateway| {
        let Comparison { differences, harmless, .. } = gateway.compare();
        assert!(
            harmless.is_empty() && differences.len() == 1 && differences[0].starts_with("b/k: "),
            "{differences:?}"
        );
    };
    names_it(&gateway);
    let run = gateway.run().id;
    let next = world.start();
    next.bury(run);
    names_it(&next);
    next.looks(4);
    assert!(next.has(manifest), "an acknowledged version was taken for one that was never answered");
}

#[test]
fn a_catalog_from_a_backup_withdraws_nothing() {
    let world = World::new();
    let (first, path) = (world.start(), world.path("catalog"));
    let before = first.put("k", false, 1);
    let run = first.run().id;
    std::fs::copy(&path, world.path("backup")).unwrap();
    std::fs::copy(path.with_extension("").with_file_name("catalog-wal"), world.path("backup-wal")).unwrap();
    // Acknowledged, and begun before the backup said that anything later was settled.
    let after = first.put("k", false, 2);
    let second = world.start();
    let last = second.put("k", false, 3);
    drop((first, second));
    let restored = Gateway::start(&world.memory, &world.path("backup"));
    assert_eq!(restored.rows(), std::slice::from_ref(&before));
    restored.bury(run);
    restored.put("other", false, 4);
    let found = restored.compare();
    assert_eq!((found.differences.len(), found.harmless.len()), (3, 0), "{found:?}");
    restored.looks(4);
    for row in [&before, &after, &last] {
        assert!(restored.has(row.manifest));
        assert!(restored.objects.whole(row).is_ok());
    }
    assert_eq!(world.rebuilt().len(), 4);
}

#[test]
fn a_gateway_that_was_taken_for_dead_goes_on_under_another_name() {
    let world = World::new();
    let (frozen, other) = (world.start(), world.start());
    frozen.put("k", true, 1);
    let run = frozen.run().id;
    other.bury(run);
    let thawed = frozen.put("k", true, 2);
    assert_ne!(thawed.record.version.run(), run);
    assert_eq!(other.catalog.newest("b", "k").unwrap(), Some(thawed.clone()));
    let run = frozen.run().id;
    other.bury(run);
    let error = frozen.objects.erase(&thawed).unwrap_err();
    assert_eq!(error.refused(), Some(Refused::Ended));
    // What it stored of that counts no more than what a killed one left.
    assert!(other.compare().differences.is_empty(), "{:?}", other.compare());
    assert!(frozen.objects.erase(&thawed).unwrap());
    other.looks(4);
    assert_eq!(other.compare(), Comparison::default());
    assert_eq!(world.rebuilt(), []);
}

#[test]
fn a_gateway_that_ends_leaves_nothing_open() {
    let world = World::new();
    let gateway = world.start();
    let row = gateway.put("k", true, 1);
    let run = gateway.run().id;
    gateway.objects.end().unwrap();
    let runs = gateway.catalog.runs().unwrap();
    let [Run { id, settled, ended, .. }] = runs[..] else { panic!("{runs:?}") };
    assert!(id == run && ended && settled > row.record.version.micros(), "{runs:?}");
    assert!(gateway.put("k", true, 2).record.version.run() != run);
}

#[test]
fn a_bucket_whose_removal_was_broken_off_is_no_difference() {
    let world = World::new();
    let gateway = Gateway::start(&world.memory, &world.path("a.db"));
    let bucket = |name: &str| gateway.catalog.bucket(name).unwrap().unwrap();
    gateway.objects.create_bucket(Record::new(Kind::Bucket, "gone", "", VersionId::default())).unwrap();
    let before: BTreeSet<ChunkId> = gateway.memory.chunks.lock().unwrap().keys().copied().collect();
    gateway.objects.delete_bucket(&bucket("gone")).unwrap();
    assert_eq!(gateway.compare().differences, [""; 0]);
    // As if the gateway was killed before the last manifest.
    let is_last = |id: &ChunkId| {
        let bytes = gateway.memory.chunks.lock().unwrap()[id].clone();
        !before.contains(id) && Record::decode(&bytes).is_ok_and(|record| record.kind == Kind::BucketGone)
    };
    let ids: Vec<ChunkId> = gateway.memory.chunks.lock().unwrap().keys().copied().collect();
    let last: Vec<ChunkId> = ids.into_iter().filter(is_last).collect();
    assert_eq!(last.len(), 1);
    gateway.memory.chunks.lock().unwrap().remove(&last[0]);
    assert_eq!(gateway.compare().differences, [""; 0]);
    gateway.objects.beat().unwrap();
    assert_eq!(gateway.compare().differences, [""; 0]);
    // A row of a bucket that is lost is one.
    gateway.objects.create_bucket(Record::new(Kind::Bucket, "lost", "", VersionId::default())).unwrap();
    gateway.catalog.change(Change::DeleteBucket("lost".to_owned(), VersionId::default())).unwrap();
    gateway.objects.beat().unwrap();
    assert_eq!(gateway.compare().differences.len(), 1);
}

/// An object of one chunk travels with its manifest: a gateway that is killed may leave the one without the other.
#[test]
fn a_manifest_whose_chunk_never_came_is_harmless_and_lost_bytes_are_a_difference() {
    let world = World::new();
    let gateway = world.start();
    let small = |key: &str, fill: u8| {
        let record = Record::new(Kind::Object, "b", key, VersionId::default());
        let bytes = vec![fill; 300 << 10];
        gateway.objects.put(record, &Condition::Always, &mut All(Some(bytes.into()))).unwrap()
    };
    let kept = small("kept", 1);
    let mut left = gateway.objects.whole(&kept).unwrap();
    (left.version, left.key) = (gateway.objects.next_version(), "left".to_owned());
    left.revision = left.version.micros();
    let Body::Chunks(entries) = &mut left.body else { panic!("no chunk") };
    entries[0].id = ChunkId::of_payload(b"what never came");
    gateway.leave(&left);
    let Comparison { differences, harmless, remarks } = gateway.compare();
    assert_eq!((differences, remarks, harmless.len()), (vec![], vec![], 1), "{harmless:?}");
    assert!(harmless[0].starts_with("b/left: version "), "{harmless:?}");
    // A version that was acknowledged, and whose bytes are nowhere.
    let Body::Chunks(entries) = gateway.objects.whole(&kept).unwrap().body else { panic!("no chunk") };
    gateway.memory.chunks.lock().unwrap().remove(&entries[0].id);
    let Comparison { differences, harmless, .. } = gateway.compare();
    assert_eq!((differences.len(), harmless.len()), (1, 1), "{differences:?}");
    assert!(differences[0].starts_with("b/kept: the bytes of version "), "{differences:?}");
}
