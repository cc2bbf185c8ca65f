//! A gateway over chunks in memory, and what one leaves that is killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};
use catalog::{Catalog, Change, Condition, Row, Run, Sqlite, Start};
use object::ChunkService;
use object::clean::Cleaning;
use object::objects::Objects;
use object::rebuild::{Comparison, Manifests};
use protocol::id::ChunkId;
use protocol::initiator::ChunkPut;

use crate::memory::{All, Memory};

pub(crate) const MIB: usize = 1 << 20;

/// A gateway over chunks in memory and a catalog in a file.
pub(crate) struct Gateway {
    pub(crate) memory: Arc<Memory>,
    pub(crate) catalog: Arc<Sqlite>,
    pub(crate) objects: Objects,
}

impl Gateway {
    pub(crate) fn start(memory: &Arc<Memory>, catalog: &Path) -> Self {
        let catalog = Arc::new(Sqlite::open(catalog).unwrap());
        let service = Arc::clone(memory) as Arc<dyn ChunkService + Send + Sync>;
        let objects = Objects::new(service, Arc::clone(&catalog) as Arc<dyn Catalog>);
        Self { memory: Arc::clone(memory), catalog, objects }
    }

    pub(crate) fn put(&self, key: &str, null: bool, fill: u8) -> Row {
        let mut record = ObjectManifest::new(Kind::Object, "b", key, VersionId::default());
        record.null = null;
        self.objects.put(record, &Condition::Always, &mut All(Some(vec![fill; 2 * MIB].into()))).unwrap().row
    }

    /// An object of one chunk.
    pub(crate) fn small(&self, key: &str, fill: u8) -> Row {
        let record = ObjectManifest::new(Kind::Object, "b", key, VersionId::default());
        let bytes = vec![fill; 300 << 10];
        self.objects.put(record, &Condition::Always, &mut All(Some(bytes.into()))).unwrap().row
    }

    pub(crate) fn run(&self) -> Run {
        let id = self.objects.next_version().run();
        self.catalog.runs().unwrap().into_iter().find(|run| run.id == id).unwrap()
    }

    /// Ends the run of a gateway that is gone, as others do that find it silent.
    pub(crate) fn bury(&self, run: u64) {
        let Run { until, .. } = self.catalog.runs().unwrap().into_iter().find(|known| known.id == run).unwrap();
        self.catalog.change(Change::EndRun { run, until }).unwrap();
    }

    /// Stores a manifest and does not tell the catalog, as a gateway that is killed between.
    pub(crate) fn leave(&self, record: &ObjectManifest) -> ChunkId {
        let (id, bytes) = record.chunk();
        self.memory.put(ChunkPut::new(id, bytes)).wait().unwrap();
        id
    }

    pub(crate) fn passes(&self, count: usize) {
        let mut cleaning = Cleaning::new(&*self.memory, &*self.catalog, false);
        for _ in 0..count {
            assert_eq!(cleaning.run_pass(&mut || true).problem, None);
        }
    }

    pub(crate) fn compare(&self) -> Comparison {
        Manifests::read(&*self.memory).unwrap().compare(&*self.catalog).unwrap()
    }

    pub(crate) fn has(&self, id: ChunkId) -> bool {
        self.memory.chunks.lock().unwrap().contains_key(&id)
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        let rows = self.catalog.versions("b", &Start::Key(vec![]), 100).unwrap();
        rows.into_iter().map(|(row, _)| row).collect()
    }
}

pub(crate) struct World {
    pub(crate) memory: Arc<Memory>,
    place: tempfile::TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { memory: Arc::default(), place: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn start(&self) -> Gateway {
        let gateway = Gateway::start(&self.memory, &self.path("catalog"));
        if gateway.catalog.bucket("b").unwrap().is_none() {
            gateway.objects.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
        }
        gateway
    }

    /// The versions of a catalog made from the manifests.
    pub(crate) fn rebuilt(&self) -> Vec<Row> {
        let fresh = self.path("fresh");
        Manifests::read(&*self.memory).unwrap().write(&fresh).unwrap();
        Gateway::start(&self.memory, &fresh).rows()
    }
}

/// A change of every kind, each begun by this gateway and left: manifests, and how many of them count.
pub(crate) fn leave_all(gateway: &Gateway) -> Vec<ChunkId> {
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
    let marker = ObjectManifest::new(Kind::Marker, "b", "marked", stamp());
    let mut revised = gateway.objects.whole(&tagged).unwrap();
    let begun = stamp();
    revised.revision = begun.micros();
    revised.attributes.insert("begun".to_owned(), begun.to_string());
    let erasure = |row: &Row| {
        let old = &row.record;
        let mut record = ObjectManifest::new(Kind::Removal, "b", &old.key, old.version.next());
        (record.removes, record.revision, record.null) = (old.version, old.revision, old.null);
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
