//! Changes that a gateway began and never answered, because it was killed: they are no differences, the cleaner takes their
//! manifests, and a catalog that is made again then has exactly what was acknowledged.

use std::collections::BTreeSet;

use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId};
use catalog::{Catalog, Change, Refused, Row, Run};
use object::rebuild::Comparison;
use protocol::id::ChunkId;

use crate::world::{Gateway, MIB, World, leave_all};

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
    let Comparison { differences, harmless, remarks, .. } = gateway.compare();
    assert_eq!((differences, remarks, harmless.len()), (vec![], vec![], left.len()), "{harmless:?}");
    assert!(harmless.iter().all(|line| line.ends_with("was not made, or is under way")), "{harmless:?}");
    // Nobody knows yet that it is gone, and it may go on.
    gateway.passes(4);
    assert!(left.iter().all(|id| gateway.has(*id)));
    gateway.bury(run);
    gateway.passes(1);
    assert!(left.iter().all(|id| gateway.has(*id)), "gone before the grace time was over");
    gateway.passes(2);
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
    // The fresh catalog knows of no run: what has a row stays, and what lost it is reported.
    let fresh = Gateway::start(&world.memory, &world.path("fresh"));
    fresh.passes(3);
    assert!(fresh.has(id) && fresh.has(row.manifest));
    assert_eq!(fresh.compare(), Comparison::default());
}

#[test]
fn a_lost_row_is_a_difference_once_its_change_is_settled() {
    let world = World::new();
    let gateway = world.start();
    let row = gateway.put("k", false, 1);
    gateway.objects.heartbeat().unwrap();
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
    next.passes(4);
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
    // Acknowledged, and begun before the backup counted anything later as settled.
    let after = first.put("k", false, 2);
    let second = world.start();
    let last = second.put("k", false, 3);
    drop((first, second));
    let restored = Gateway::start(&world.memory, &world.path("backup"));
    assert_eq!(restored.rows(), std::slice::from_ref(&before));
    restored.bury(run);
    restored.put("other", false, 4);
    let found = restored.compare();
    assert_eq!((found.differences.len(), found.harmless.len()), (2, 0), "{found:?}");
    restored.passes(4);
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
    other.passes(4);
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
    gateway.objects.create_bucket(ObjectManifest::new(Kind::Bucket, "gone", "", VersionId::default())).unwrap();
    let before: BTreeSet<ChunkId> = gateway.memory.chunks.lock().unwrap().keys().copied().collect();
    gateway.objects.delete_bucket(&bucket("gone")).unwrap();
    assert_eq!(gateway.compare().differences, [""; 0]);
    // As if the gateway was killed before the last manifest.
    let is_last = |id: &ChunkId| {
        let bytes = gateway.memory.chunks.lock().unwrap()[id].clone();
        !before.contains(id) && ObjectManifest::decode(&bytes).is_ok_and(|record| record.kind == Kind::BucketRemoval)
    };
    let ids: Vec<ChunkId> = gateway.memory.chunks.lock().unwrap().keys().copied().collect();
    let last: Vec<ChunkId> = ids.into_iter().filter(is_last).collect();
    assert_eq!(last.len(), 1);
    gateway.memory.chunks.lock().unwrap().remove(&last[0]);
    assert_eq!(gateway.compare().differences, [""; 0]);
    gateway.objects.heartbeat().unwrap();
    assert_eq!(gateway.compare().differences, [""; 0]);
    // A row of a bucket that is lost is one.
    gateway.objects.create_bucket(ObjectManifest::new(Kind::Bucket, "lost", "", VersionId::default())).unwrap();
    gateway.catalog.change(Change::DeleteBucket("lost".to_owned(), VersionId::default())).unwrap();
    gateway.objects.heartbeat().unwrap();
    assert_eq!(gateway.compare().differences.len(), 1);
}

/// An object of one chunk travels with its manifest: a gateway that is killed may leave the one without the other.
#[test]
fn a_manifest_whose_chunk_never_came_is_harmless_and_lost_bytes_are_a_difference() {
    let world = World::new();
    let gateway = world.start();
    let kept = gateway.small("kept", 1);
    let mut left = gateway.objects.whole(&kept).unwrap();
    (left.version, left.key) = (gateway.objects.next_version(), "left".to_owned());
    left.revision = left.version.micros();
    let Body::Chunks(entries) = &mut left.body else { panic!("no chunk") };
    entries[0].id = ChunkId::of_payload(b"what never came");
    gateway.leave(&left);
    let Comparison { differences, harmless, remarks, .. } = gateway.compare();
    assert_eq!((differences, remarks, harmless.len()), (vec![], vec![], 1), "{harmless:?}");
    assert!(harmless[0].starts_with("b/left: version "), "{harmless:?}");
    // A version that was acknowledged, and whose bytes are nowhere.
    let Body::Chunks(entries) = gateway.objects.whole(&kept).unwrap().body else { panic!("no chunk") };
    gateway.memory.chunks.lock().unwrap().remove(&entries[0].id);
    let Comparison { differences, harmless, .. } = gateway.compare();
    assert_eq!((differences.len(), harmless.len()), (1, 1), "{differences:?}");
    assert!(differences[0].starts_with("b/kept: the bytes of version "), "{differences:?}");
}
