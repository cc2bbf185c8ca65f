//! What a catalog is made right by: a catalog that is there knows better than the manifests what it was asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId};
use catalog::{Catalog, CatalogError, Change, Condition, Postgres, Row, Sqlite, Start, Transient};
use object::Entry;
use object::objects::Objects;
use object::rebuild::{Authority, Comparison, Manifests};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::redundancy::Redundancy;

use crate::memory::{All, Memory};
use crate::world::{Gateway, World, leave_all};

fn sorted(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|row| (row.record.key.clone(), row.record.version));
    rows
}

impl Gateway {
    /// Amends the catalog; how much is added, brought back, removed and changed.
    fn amend(&self, authority: Authority) -> [usize; 4] {
        let manifests = Manifests::read(&*self.memory).unwrap();
        let all = manifests.amendment(&*self.catalog, authority).unwrap();
        self.catalog.amend(&all.amends).unwrap();
        [&all.adds, &all.brings_back, &all.removes, &all.changes].map(Vec::len)
    }
}

#[test]
fn an_intact_catalog_is_not_told_what_was_not_made() {
    let world = World::new();
    let gateway = world.start();
    leave_all(&gateway);
    let (rows, bucket) = (gateway.rows(), gateway.catalog.bucket("b").unwrap());
    let upload = catalog::Upload {
        id: gateway.objects.next_version(),
        record: ObjectManifest::new(Kind::Object, "b", "u", VersionId::default()),
    };
    gateway.catalog.change(Change::StartUpload(upload.clone())).unwrap();
    assert_eq!(gateway.compare().differences, [""; 0]);
    let run = gateway.run().id;
    for buried in [false, true] {
        if buried {
            gateway.bury(run);
        }
        assert_eq!(gateway.amend(Authority::Catalog), [0; 4]);
        assert_eq!((gateway.rows(), gateway.catalog.bucket("b").unwrap()), (rows.clone(), bucket.clone()));
    }
    assert_eq!(gateway.catalog.upload(upload.id).unwrap(), Some(upload), "uploads stay");
    // The consequences of believing the manifests alone are reported.
    let [adds, back, removes, changes] = gateway.amend(Authority::Manifests);
    assert_eq!((adds, back > 0, removes > 0, changes > 0), (0, true, true, true));
    assert_eq!(sorted(gateway.rows()), sorted(world.rebuilt()));
}

/// Puts and erases a few versions, has all that cleaned, and brings back the manifests from an old copy of a disk.
fn come_back(gateway: &Gateway) -> Vec<ChunkId> {
    let rows = [("old", true), ("kept", false)].map(|(key, null)| gateway.put(key, null, 7));
    let before = gateway.memory.chunks.lock().unwrap().clone();
    rows.iter().for_each(|row| assert!(gateway.objects.erase(row).unwrap()));
    gateway.put("stays", true, 8);
    gateway.objects.heartbeat().unwrap();
    gateway.passes(6);
    assert!(rows.iter().all(|row| !gateway.has(row.manifest)));
    gateway.memory.chunks.lock().unwrap().extend(before);
    rows.iter().map(|row| row.manifest).collect()
}

#[test]
fn what_was_removed_does_not_come_back_with_an_old_disk() {
    let world = World::new();
    let gateway = world.start();
    come_back(&gateway);
    let rows = gateway.rows();
    let found = gateway.compare();
    assert_eq!((found.differences.len(), found.amendable, found.lost), (2, 0, 0), "{found:?}");
    assert_eq!(gateway.amend(Authority::Catalog), [0; 4]);
    assert_eq!(gateway.rows(), rows);
    assert_eq!(gateway.amend(Authority::Manifests), [0, 2, 0, 0]);
    assert_eq!(gateway.rows().len(), rows.len() + 2);
}

#[test]
fn a_row_that_was_lost_is_brought_back_by_who_asks_for_it() {
    let world = World::new();
    let gateway = world.start();
    gateway.put("k", false, 1);
    let row = gateway.put("k", false, 2);
    gateway.objects.heartbeat().unwrap();
    let rows = gateway.rows();
    let lose = rusqlite::Connection::open(world.path("catalog")).unwrap();
    let lost = lose.execute("DELETE FROM versions WHERE newest = 1", []).unwrap();
    lose.execute("UPDATE versions SET newest = 1", []).unwrap();
    assert_eq!(lost, 1);
    let found = gateway.compare();
    assert_eq!((found.differences.len(), found.amendable, found.lost), (1, 0, 0), "{found:?}");
    assert!(found.differences[0].contains(&row.record.version.to_string()), "{found:?}");
    assert_eq!(gateway.amend(Authority::Catalog), [0; 4]);
    assert_eq!(gateway.amend(Authority::Manifests), [0, 1, 0, 0]);
    assert_eq!(gateway.rows(), rows);
    assert_eq!(gateway.catalog.newest("b", "k").unwrap(), Some(row));
    assert_eq!(gateway.compare(), Comparison::default());
}

#[test]
fn a_lost_catalog_and_an_older_one_get_what_they_do_not_know_of() {
    let world = World::new();
    let gateway = world.start();
    let gone = gateway.put("gone", true, 1);
    let first = gateway.put("k", true, 1);
    for name in ["catalog", "catalog-wal"] {
        std::fs::copy(world.path(name), world.path(&format!("old-{name}"))).unwrap();
    }
    assert!(gateway.objects.erase(&gone).unwrap());
    let second = gateway.put("k", true, 2);
    let third = world.start().put("other", false, 3);
    let rows = gateway.rows();
    gateway.objects.heartbeat().unwrap();
    gateway.passes(6);
    assert!(!gateway.has(first.manifest) && !gateway.has(gone.manifest), "replaced and removed, and cleaned");
    let empty = Gateway::start(&world.memory, &world.path("empty"));
    assert_eq!(empty.compare().amendable, 3, "{:?}", empty.compare());
    assert_eq!(empty.amend(Authority::Catalog), [3, 0, 0, 0]);
    assert_eq!(empty.rows(), rows);
    let old = Gateway::start(&world.memory, &world.path("old-catalog"));
    assert_eq!(old.rows().len(), 2);
    assert_eq!(old.amend(Authority::Catalog), [2, 0, 2, 0]);
    assert_eq!(old.rows(), [second, third]);
    assert_eq!(old.compare(), Comparison::default());
}

#[test]
fn a_version_whose_bytes_or_manifest_are_lost_stays() {
    let world = World::new();
    let gateway = world.start();
    let row = gateway.put("k", true, 1);
    let single = gateway.small("single", 2);
    gateway.objects.heartbeat().unwrap();
    let rows = gateway.rows();
    let catalog::object_manifest::Body::Chunks(entries) = gateway.objects.whole(&single).unwrap().body else {
        panic!()
    };
    gateway.memory.chunks.lock().unwrap().remove(&entries[0].id);
    gateway.memory.chunks.lock().unwrap().remove(&row.manifest);
    let found = gateway.compare();
    assert_eq!((found.differences.len(), found.amendable, found.lost), (2, 0, 2), "{found:?}");
    assert_eq!(gateway.amend(Authority::Catalog), [0; 4]);
    assert_eq!(gateway.rows(), rows);
    assert_eq!(gateway.amend(Authority::Manifests), [0, 0, 2, 0]);
    let found = gateway.compare();
    assert_eq!((found.differences.len(), found.harmless.len(), found.remarks.len()), (0, 0, 1), "{found:?}");
}

#[test]
fn what_a_known_run_broke_off_is_no_cause_for_alarm() {
    let world = World::new();
    let gateway = world.start();
    let mut left = gateway.objects.whole(&gateway.small("kept", 1)).unwrap();
    (left.version, left.key) = (gateway.objects.next_version(), "left".to_owned());
    left.revision = left.version.micros();
    let catalog::object_manifest::Body::Chunks(entries) = &mut left.body else { panic!("no chunk") };
    entries[0].id = ChunkId::of_payload(b"what never came");
    gateway.leave(&left);
    let manifests = Manifests::read(&*gateway.memory).unwrap();
    let all = manifests.amendment(&*gateway.catalog, Authority::Catalog).unwrap();
    assert_eq!(all.remarks, [""; 0]);
    let nothing = Sqlite::open(&world.path("nothing")).unwrap();
    let all = manifests.amendment(&nothing, Authority::Catalog).unwrap();
    assert_eq!(all.remarks.len(), 1, "{:?}", all.remarks);
}

/// Whether its only copy is lost, or on a silent target, cannot be known.
#[test]
fn a_chunk_with_one_copy_is_not_missed_while_one_is_silent() {
    let mut memory = Memory { silent: vec![NodeId(1)], ..Memory::default() };
    let one = Redundancy::copies(1);
    for (redundancy, certain) in [(None, true), (one, false)] {
        let mut record = ObjectManifest::new(Kind::Object, "b", "k", VersionId::new(1, 1));
        let gone = ChunkId::of_payload(b"with the one who is silent");
        record.set_redundancy(redundancy);
        (record.size, record.body) = (7, Body::Chunks(vec![Entry::new(gone, 7)]));
        let (id, bytes) = record.chunk();
        memory.chunks = Mutex::new(BTreeMap::from([(id, bytes)]));
        let read = Manifests::read(&memory);
        assert_eq!(read.is_ok(), certain, "{redundancy:?}: {read:?}");
    }
}

fn is_damaged<T>(outcome: Result<T, CatalogError>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(CatalogError::Damaged(why)) => !why.is_empty(),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn rot_in_the_file_is_met_at_the_start_or_by_who_reads_it() {
    let world = World::new();
    let gateway = world.start();
    let mut keys = vec![];
    for n in 0..300 {
        let key = format!("directory/object-{n:04}");
        gateway.small(&key, n as u8);
        keys.push(key);
    }
    drop(gateway);
    let path = world.path("catalog");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(db);
    let good = std::fs::read(&path).unwrap();
    let mut rng = protocol::rng::Rng::new(3);
    let (mut refused, mut met) = (0, 0);
    for round in 0..200 {
        let mut bad = good.clone();
        let at = rng.below(bad.len() as u64) as usize;
        if bad[at] == 0 {
            continue;
        }
        bad[at] ^= 1 << rng.below(8);
        let path = world.path(&format!("bad-{round}"));
        std::fs::write(&path, &bad).unwrap();
        match Sqlite::open(&path) {
            Err(error) => refused += usize::from(is_damaged::<()>(Err(error))),
            Ok(catalog) => {
                // Nothing is missing without a word.
                for key in &keys {
                    met += usize::from(is_damaged(catalog.newest("b", key).map(Option::unwrap)));
                }
                let listed = catalog.objects("b", &Start::Key(vec![]), 1_000);
                assert!(listed.as_ref().map_or(300, Vec::len) == 300, "byte {at}");
                met += usize::from(is_damaged(listed));
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
    println!("{refused} were refused, {met} questions met it");
    assert!(refused > 20 && met > 20, "{refused} {met}");
}

/// A gateway over PostgreSQL whose run has ended.
#[test]
fn a_shared_catalog_is_made_right_whoever_has_ended() {
    let Ok(server) = testkit::Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let memory = std::sync::Arc::<Memory>::default();
    let url = server.database().unwrap();
    let catalog = std::sync::Arc::new(Postgres::open(&url, None, "rebuild").unwrap());
    let gateway = || {
        let service = std::sync::Arc::clone(&memory) as std::sync::Arc<dyn object::ChunkService + Send + Sync>;
        Objects::new(service, std::sync::Arc::clone(&catalog) as std::sync::Arc<dyn Catalog>)
    };
    let first = gateway();
    first.create_bucket(ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default())).unwrap();
    let put = |objects: &Objects, key: &str| {
        let record = ObjectManifest::new(Kind::Object, "b", key, VersionId::default());
        let bytes = vec![1; 300 << 10];
        objects.put(record, &Condition::Always, &mut All(Some(bytes.into()))).unwrap().row
    };
    let [a, _, b] = ["k", "gone", "k"].map(|key| put(&first, key));
    first.erase(&catalog.newest("b", "gone").unwrap().unwrap()).unwrap();
    first.end().unwrap();
    let second = gateway();
    let c = put(&second, "l");
    let rows = || -> Vec<Row> {
        let rows = catalog.versions("b", &Start::Key(vec![]), 100).unwrap();
        rows.into_iter().map(|(row, _)| row).collect()
    };
    let all = [b, a, c.clone()];
    assert_eq!(rows(), all);
    for (authority, anew) in [(Authority::Catalog, false), (Authority::Manifests, true)] {
        for _ in 0..2 {
            let hold = catalog.hold().unwrap();
            let manifests = Manifests::read(&*memory).unwrap();
            let known: &dyn Catalog = if anew { &Transient::new().unwrap() } else { &*catalog };
            let amends = manifests.amendment(known, authority).unwrap().amends;
            assert_eq!(amends.keys.is_empty(), !anew, "{amends:?}");
            hold.amend(amends, anew).unwrap();
            assert_eq!(rows(), all);
            assert_eq!(manifests.compare(&*catalog).unwrap(), Comparison::default());
        }
    }
    // A row that was lost with an ended run, and one that is too much.
    catalog.change(Change::EndRun { run: c.record.version.run(), until: until(&*catalog, &c) }).unwrap();
    let lose =
        Change::Erase { bucket: "b".into(), key: "l".into(), version: c.record.version, manifest: c.manifest, run: 0 };
    catalog.change(lose).unwrap();
    let hold = catalog.hold().unwrap();
    let amendment = Manifests::read(&*memory).unwrap().amendment(&*catalog, Authority::Manifests).unwrap();
    assert_eq!(amendment.brings_back.len(), 1, "{amendment:?}");
    hold.amend(amendment.amends, false).unwrap();
    assert_eq!(rows(), all);
}

fn until(catalog: &dyn Catalog, row: &Row) -> u64 {
    let run = row.record.version.run();
    catalog.runs().unwrap().into_iter().find(|known| known.id == run).unwrap().until
}

#[test]
fn manifests_outside_of_their_groups_are_read_where_they_were_listed() {
    let mut world = World::new();
    let rows = {
        let gateway = world.start();
        gateway.put("k", false, 1);
        gateway.put("k", false, 2);
        gateway.rows()
    };
    Arc::get_mut(&mut world.memory).unwrap().elsewhere = Some(ChunkKind::Manifest);
    assert_eq!(sorted(world.rebuilt()), sorted(rows));
}
