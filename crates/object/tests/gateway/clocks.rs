//! Gateways whose clocks differ, or step back: what was removed by one that is ahead does not take along what another puts
//! later.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use catalog::object_manifest::{Kind, ObjectManifest, VersionId};
use catalog::{Catalog, Condition, Row, Sqlite};
use object::objects::Objects;
use object::rebuild::{Comparison, Manifests};
use object::{ChunkService, Host, RunTiming, System};

use crate::memory::{All, Memory};

/// A machine whose wall clock stands at this many seconds.
#[derive(Debug)]
struct Stopped(u64, System);

impl Host for Stopped {
    fn elapsed(&self) -> Duration {
        self.1.elapsed()
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(self.0)
    }

    fn random(&self) -> u64 {
        self.1.random()
    }
}

struct Two {
    memory: Arc<Memory>,
    catalog: Arc<Sqlite>,
    ahead: Objects,
    behind: Objects,
}

impl Two {
    fn new(place: &Path) -> Self {
        let (memory, catalog) = (Arc::<Memory>::default(), Arc::new(Sqlite::open(&place.join("catalog")).unwrap()));
        let gateway = |seconds| {
            let service = Arc::clone(&memory) as Arc<dyn ChunkService + Send + Sync>;
            let host = Arc::new(Stopped(seconds, System::default()));
            Objects::new(service, Arc::clone(&catalog) as Arc<dyn Catalog>).on(host, RunTiming::default())
        };
        let (ahead, behind) = (gateway(2_000_000_000), gateway(1_000_000_000));
        ahead.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
        Self { memory, catalog, ahead, behind }
    }

    /// What the manifests say is what the catalog says, and so does a catalog that is made from them, where the next version
    /// of `k` is later than all before it.
    fn check(&self, place: &Path) {
        let manifests = Manifests::read(&*self.memory).unwrap();
        assert_eq!(manifests.compare(&*self.catalog).unwrap(), Comparison::default());
        let fresh = place.join("fresh");
        manifests.write(&fresh).unwrap();
        let fresh = Arc::new(Sqlite::open(&fresh).unwrap());
        assert_eq!(fresh.newest("b", "k").unwrap(), self.catalog.newest("b", "k").unwrap());
        let service = Arc::clone(&self.memory) as Arc<dyn ChunkService + Send + Sync>;
        let host = Arc::new(Stopped(1_000_000_000, System::default()));
        let again = Objects::new(service, Arc::clone(&fresh) as Arc<dyn Catalog>).on(host, RunTiming::default());
        put(&again, 3);
        let manifests = Manifests::read(&*self.memory).unwrap();
        assert_eq!(manifests.compare(&*fresh).unwrap().differences, Vec::<String>::new());
    }
}

fn put(objects: &Objects, fill: u8) -> Row {
    let mut record = ObjectManifest::new(Kind::Object, "b", "k", VersionId::default());
    record.null = true;
    objects.put(record, &Condition::Always, &mut All(Some(Bytes::from(vec![fill; 9])))).unwrap().row
}

#[test]
fn what_is_put_after_a_removal_comes_after_it() {
    let place = tempfile::tempdir().unwrap();
    let two = Two::new(place.path());
    let removed = put(&two.ahead, 1);
    assert!(two.ahead.erase(&removed).unwrap());
    let row = put(&two.behind, 2);
    two.check(place.path());
    assert!(row.record.version > removed.record.version);
}

#[test]
fn a_catalog_that_is_made_again_knows_what_was_removed() {
    let place = tempfile::tempdir().unwrap();
    let two = Two::new(place.path());
    let removed = put(&two.ahead, 1);
    assert!(two.ahead.erase(&removed).unwrap());
    two.check(place.path());
}

#[test]
fn a_bucket_that_is_made_after_its_removal_comes_after_it() {
    let place = tempfile::tempdir().unwrap();
    let two = Two::new(place.path());
    let bucket = two.catalog.bucket("b").unwrap().unwrap();
    two.ahead.delete_bucket(&bucket).unwrap();
    two.behind.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
    put(&two.behind, 2);
    two.check(place.path());
}
