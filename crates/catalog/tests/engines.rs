//! What every engine of the catalog must do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Barrier;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};
use catalog::{
    Catalog, CatalogError, Change, Condition, Part, Postgres, Refused, Row, Run, Sqlite, Start, Upload, all_buckets,
};

fn row(kind: Kind, bucket: &str, key: &str, micros: u64, null: bool) -> Row {
    let mut record = ObjectManifest::new(kind, bucket, key, VersionId::new(micros, 1));
    record.null = null;
    record.etag = micros.to_string();
    let manifest = record.chunk().0;
    Row { record, manifest }
}

fn put(catalog: &dyn Catalog, row: Row, condition: Condition) -> Option<Refused> {
    refused(catalog.change(Change::Put(row, condition)))
}

fn refused(outcome: Result<(), CatalogError>) -> Option<Refused> {
    match outcome {
        Ok(()) => None,
        Err(CatalogError::Refused(refused)) => Some(refused),
        Err(other) => panic!("{other}"),
    }
}

fn erasure(key: &str, row: &Row) -> Change {
    let (version, manifest) = (row.record.version, row.manifest);
    Change::Erase { bucket: "b".to_owned(), key: key.to_owned(), version, manifest, run: 0 }
}

fn keys(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.record.key.as_str()).collect()
}

fn with_bucket(catalog: &dyn Catalog) {
    catalog.change(Change::CreateBucket(row(Kind::Bucket, "b", "", 1, false))).unwrap();
}

fn buckets_come_and_go(catalog: &dyn Catalog) {
    assert_eq!(put(catalog, row(Kind::Object, "b", "k", 1, true), Condition::Always), Some(Refused::NoBucket));
    with_bucket(catalog);
    let again = Change::CreateBucket(row(Kind::Bucket, "b", "", 2, false));
    assert_eq!(refused(catalog.change(again)), Some(Refused::BucketExists));
    let (first, changed) = (row(Kind::Bucket, "b", "", 1, false).manifest, row(Kind::Bucket, "b", "", 3, false));
    catalog.change(Change::SetBucket(changed.clone(), first)).unwrap();
    let late = |name| refused(catalog.change(Change::SetBucket(row(Kind::Bucket, name, "", 4, false), first)));
    assert_eq!((late("b"), late("c")), (Some(Refused::Changed), Some(Refused::NoBucket)));
    assert_eq!(catalog.bucket("b").unwrap(), Some(changed.clone()));
    assert_eq!(catalog.buckets("", 9).unwrap(), [changed]);
    assert_eq!(put(catalog, row(Kind::Object, "b", "k", 1, true), Condition::Always), None);
    let delete = || refused(catalog.change(Change::DeleteBucket("b".to_owned(), VersionId::default())));
    assert_eq!(delete(), Some(Refused::NotEmpty));
    catalog.change(erasure("k", &row(Kind::Object, "b", "k", 1, true))).unwrap();
    assert_eq!(delete(), None);
    assert_eq!(delete(), Some(Refused::NoBucket));
    for name in ["b", "B", "a", "C"] {
        catalog.change(Change::CreateBucket(row(Kind::Bucket, name, "", 1, false))).unwrap();
    }
    for n in 0..150 {
        catalog.change(Change::CreateBucket(row(Kind::Bucket, &format!("n{n}"), "", 1, false))).unwrap();
    }
    let mut names: Vec<_> = all_buckets(catalog).map(|row| row.unwrap().record.bucket).collect();
    names.sort();
    assert_eq!(names[..4], ["B", "C", "a", "b"]);
    names.dedup();
    assert_eq!(names.len(), 154, "each is read once");
    assert_eq!(catalog.buckets("", 3).unwrap().len(), 3);
}

fn versions_replace_or_join_each_other(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let object = |micros, null| row(Kind::Object, "b", "k", micros, null);
    for (micros, null) in [(1, true), (2, false), (3, true), (4, false)] {
        assert_eq!(put(catalog, object(micros, null), Condition::Always), None);
    }
    let all = |from: &Start| -> Vec<(u64, bool)> {
        let rows = catalog.versions("b", from, 10).unwrap();
        rows.iter().map(|(row, newest)| (row.record.version.micros(), *newest)).collect()
    };
    assert_eq!(all(&Start::Key(vec![])), [(4, true), (3, false), (2, false)]);
    assert_eq!(all(&Start::Version(b"k".to_vec(), VersionId::new(4, 1))), [(3, false), (2, false)]);
    let stale = put(catalog, object(4, false), Condition::Always);
    assert_eq!(stale, Some(Refused::Stale(VersionId::new(4, 1))));
    assert_eq!(catalog.version("b", "k", None).unwrap(), Some(object(3, true)));
    assert_eq!(catalog.version("b", "k", Some(VersionId::new(3, 1))).unwrap(), None, "it has the name null");
    assert_eq!(catalog.version("b", "k", Some(VersionId::new(2, 1))).unwrap(), Some(object(2, false)));
    assert_eq!(put(catalog, row(Kind::Marker, "b", "k", 5, false), Condition::Always), None);
    assert_eq!(catalog.newest("b", "k").unwrap().unwrap().record.kind, Kind::Marker);
    assert_eq!(catalog.objects("b", &Start::Key(vec![]), 10).unwrap(), []);
    let erase = |row: Row| refused(catalog.change(erasure("k", &row)));
    assert_eq!(erase(row(Kind::Marker, "b", "k", 5, false)), None);
    assert_eq!(catalog.objects("b", &Start::Key(vec![]), 10).unwrap(), [object(4, false)]);
    let other = Row { manifest: object(9, false).manifest, ..object(4, false) };
    assert_eq!(erase(other), Some(Refused::Changed));
    assert_eq!((erase(object(4, false)), erase(object(4, false))), (None, Some(Refused::NoVersion)));
    assert_eq!(catalog.newest("b", "k").unwrap(), Some(object(3, true)));
    let mut revised = object(3, true);
    revised.record.attributes.insert("a".to_owned(), "1".to_owned());
    revised.manifest = revised.record.chunk().0;
    let was = object(3, true).manifest;
    let revise = |row| refused(catalog.change(Change::Revise(row, was)));
    assert_eq!(revise(revised.clone()), None);
    assert_eq!(catalog.newest("b", "k").unwrap(), Some(revised.clone()));
    assert_eq!((revise(revised), revise(object(9, true))), (Some(Refused::Changed), Some(Refused::NoVersion)));
}

fn conditions_are_decided_by_the_newest_version(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let put = |micros, condition| put(catalog, row(Kind::Object, "b", "k", micros, false), condition);
    let tag = |micros: u64| Condition::Matches(micros.to_string());
    assert_eq!(put(1, tag(1)), Some(Refused::NoVersion));
    assert_eq!(put(1, Condition::Present), Some(Refused::NoVersion));
    assert_eq!(put(1, Condition::Absent), None);
    assert_eq!(put(2, Condition::Absent), Some(Refused::Condition));
    assert_eq!(put(2, tag(1)), None);
    assert_eq!(put(3, tag(1)), Some(Refused::Condition));
    assert_eq!(put(3, Condition::Present), None);
    catalog.change(Change::Put(row(Kind::Marker, "b", "k", 4, false), Condition::Always)).unwrap();
    assert_eq!(put(5, tag(3)), Some(Refused::NoVersion));
    assert_eq!(put(5, Condition::Absent), None);
    assert_eq!(put(6, Condition::Newest(VersionId::new(4, 1))), Some(Refused::Condition));
    assert_eq!(put(6, Condition::Newest(VersionId::new(5, 1))), None);
}

fn keys_are_in_the_order_of_their_bytes(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let mut all = ["a", "B", "a/b", "a b", "ä", "z", "🦀", "\u{ff61}", "a\u{1}", "aa"].map(str::to_owned);
    for (n, key) in all.iter().enumerate() {
        assert_eq!(put(catalog, row(Kind::Object, "b", key, n as u64 + 1, true), Condition::Always), None);
    }
    all.sort_unstable();
    let mut found = vec![];
    let mut start = Start::Key(vec![]);
    loop {
        let page = catalog.objects("b", &start, 3).unwrap();
        let Some(last) = page.last() else { break };
        start = Start::After(last.record.key.clone().into_bytes());
        found.extend(keys(&page).into_iter().map(str::to_owned));
    }
    assert_eq!(found, all);
    assert_eq!(keys(&catalog.objects("b", &Start::Key(b"a/".to_vec()), 1).unwrap()), ["a/b"]);
    assert_eq!(keys(&catalog.objects("b", &Start::Key(b"a\xff".to_vec()), 1).unwrap()), ["z"]);
    assert_eq!(catalog.objects("other", &Start::Key(vec![]), 3).unwrap(), []);
}

fn uploads_keep_their_parts(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let upload = |n: u64, key| {
        let id = VersionId::new(n, 0);
        Upload { id, record: ObjectManifest::new(Kind::Object, "b", key, id) }
    };
    let all = [upload(1, "a"), upload(2, "b"), upload(3, "b")];
    for upload in &all {
        catalog.change(Change::StartUpload(upload.clone())).unwrap();
    }
    assert_eq!(catalog.uploads("b", &Start::Key(vec![]), 9).unwrap(), all);
    assert_eq!(catalog.uploads("b", &Start::After(b"a".to_vec()), 9).unwrap(), all[1..]);
    assert_eq!(catalog.uploads("b", &Start::Version(b"b".to_vec(), all[1].id), 9).unwrap(), all[2..]);
    assert_eq!(catalog.upload(all[1].id).unwrap(), Some(all[1].clone()));
    let part = |number, etag: &str| Part {
        number,
        size: 7,
        etag: etag.to_owned(),
        micros: 9,
        checksums: String::new(),
        entries: vec![number as u8],
    };
    let id = all[0].id;
    for part in [part(2, "x"), part(1, "y"), part(2, "z")] {
        catalog.change(Change::PutPart(id, part)).unwrap();
    }
    let listed = |after| catalog.parts(id, after, 9).unwrap().iter().map(|p| p.etag.clone()).collect::<Vec<_>>();
    assert_eq!((listed(0), listed(1)), (vec!["y".to_owned(), "z".to_owned()], vec!["z".to_owned()]));
    assert_eq!(catalog.part(id, 2).unwrap(), Some(part(2, "z")));
    let done = Change::Complete(row(Kind::Object, "b", "a", 5, true), Condition::Always, id);
    catalog.change(done.clone()).unwrap();
    assert_eq!(refused(catalog.change(done)), Some(Refused::NoUpload));
    assert_eq!(catalog.part(id, 2).unwrap(), None);
    let late = Change::PutPart(id, part(3, "w"));
    assert_eq!(refused(catalog.change(late)), Some(Refused::NoUpload));
    catalog.change(Change::EndUpload(all[1].id)).unwrap();
    assert_eq!(refused(catalog.change(Change::EndUpload(all[1].id))), Some(Refused::NoUpload));
    // An upload under way does not keep its bucket, and a bucket of the same name does not get it back.
    catalog.change(Change::PutPart(all[2].id, part(1, "x"))).unwrap();
    catalog.change(erasure("a", &row(Kind::Object, "b", "a", 5, true))).unwrap();
    catalog.change(Change::DeleteBucket("b".to_owned(), VersionId::default())).unwrap();
    with_bucket(catalog);
    assert_eq!(
        (catalog.uploads("b", &Start::Key(vec![]), 9).unwrap(), catalog.upload(all[2].id).unwrap()),
        (vec![], None)
    );
    assert_eq!((catalog.part(all[2].id, 1).unwrap(), catalog.parts(all[2].id, 0, 9).unwrap()), (None, vec![]));
    let late = Change::PutPart(all[2].id, part(2, "y"));
    assert_eq!(refused(catalog.change(late)), Some(Refused::NoUpload));
}

/// Of many that create one key at once, one succeeds. So it is with many that replace one version.
fn one_of_many_wins(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let race = |key: &str, first: u64, condition: &Condition| {
        let start = Barrier::new(8);
        let wins: usize = std::thread::scope(|scope| {
            let one = |n: u64| {
                let (start, condition) = (&start, condition.clone());
                scope.spawn(move || {
                    start.wait();
                    let row = row(Kind::Object, "b", key, first + n, true);
                    usize::from(put(catalog, row, condition).is_none())
                })
            };
            let all: Vec<_> = (0..8).map(one).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(wins, 1, "{condition:?}");
        catalog.newest("b", key).unwrap().unwrap().record.etag
    };
    for key in 0..40 {
        let key = key.to_string();
        let tag = race(&key, 10, &Condition::Absent);
        race(&key, 100, &Condition::Matches(tag));
    }
}

/// Changes of few keys by many at once, over all `catalogs`: each answer is right, and in the end each key has one newest
/// version, which is the last of those that are left.
fn many_change_few_keys(catalogs: &[&dyn Catalog]) {
    with_bucket(catalogs[0]);
    let keys = ["x", "y", "z"];
    std::thread::scope(|scope| {
        for n in 0..8_u64 {
            let catalog = catalogs[n as usize % catalogs.len()];
            scope.spawn(move || {
                for round in 0..40_u64 {
                    let key = keys[(n + round) as usize % keys.len()];
                    let newest = catalog.newest("b", key).unwrap().map_or(0, |row| row.record.version.micros());
                    if (round + n) % 4 == 3 {
                        let Some(newest) = catalog.newest("b", key).unwrap() else { continue };
                        let outcome = refused(catalog.change(erasure(key, &newest)));
                        // The number of a version that went may be that of another meanwhile.
                        let may = matches!(outcome, None | Some(Refused::NoVersion | Refused::Changed));
                        assert!(may, "{outcome:?}");
                    } else {
                        let null = (round + n) % 3 == 0;
                        let row = row(Kind::Object, "b", key, newest + 1 + n, null);
                        assert!(matches!(put(catalog, row, Condition::Always), None | Some(Refused::Stale(_))));
                    }
                }
            });
        }
    });
    let all = catalogs[0].versions("b", &Start::Key(vec![]), 10_000).unwrap();
    for key in keys {
        let of: Vec<_> = all.iter().filter(|(row, _)| row.record.key == key).collect();
        assert_eq!(of.iter().filter(|(_, newest)| *newest).count(), usize::from(!of.is_empty()), "{key}");
        assert!(of.first().is_none_or(|(_, newest)| *newest), "{key}");
        assert!(of.iter().filter(|(row, _)| row.record.null).count() <= 1, "{key}");
    }
}

/// Buckets are removed and filled at once: no version is ever without a bucket.
fn buckets_are_not_removed_from_below_their_versions(catalogs: &[&dyn Catalog]) {
    for round in 1..30_u64 {
        with_bucket(catalogs[0]);
        let start = Barrier::new(2);
        let (removed, stored) = std::thread::scope(|scope| {
            let remove = scope.spawn(|| {
                start.wait();
                refused(catalogs[0].change(Change::DeleteBucket("b".to_owned(), VersionId::default())))
            });
            start.wait();
            let stored = put(catalogs[catalogs.len() - 1], row(Kind::Object, "b", "k", round, true), Condition::Always);
            (remove.join().unwrap(), stored)
        });
        match (removed, stored) {
            (None, Some(Refused::NoBucket)) => {}
            (Some(Refused::NotEmpty), None) => {
                catalogs[0].change(erasure("k", &row(Kind::Object, "b", "k", round, true))).unwrap();
                catalogs[0].change(Change::DeleteBucket("b".to_owned(), VersionId::default())).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Nothing of a run is made after its end, and the gateway that ended it sees all that was made before.
fn runs_end(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let heartbeat =
        |run, settled, until| refused(catalog.change(Change::Heartbeat { run, settled, until, reported: 0 }));
    let end = |run, until| refused(catalog.change(Change::EndRun { run, until }));
    let of = |run| catalog.runs().unwrap().into_iter().find(|known| known.id == run);
    assert_eq!((heartbeat(1, 5, 20), heartbeat(u64::MAX, 6, 30), heartbeat(1, 7, 40)), (None, None, None));
    assert_eq!(of(1), Some(Run { id: 1, settled: 7, until: 40, ended: false }));
    assert_eq!(of(u64::MAX), Some(Run { id: u64::MAX, settled: 6, until: 30, ended: false }));
    // It lives: it has come further than its ender knew.
    assert_eq!((end(1, 20), end(3, 0)), (Some(Refused::Changed), Some(Refused::Changed)));
    let object = row(Kind::Object, "b", "k", 10, true);
    assert_eq!(put(catalog, object.clone(), Condition::Always), None);
    assert_eq!(end(1, 40), None);
    assert_eq!(of(1), Some(Run { id: 1, settled: 7, until: 40, ended: true }));
    assert_eq!(heartbeat(1, 8, 50), Some(Refused::Ended));
    assert_eq!(put(catalog, row(Kind::Object, "b", "k", 11, true), Condition::Always), Some(Refused::Ended));
    let ended = |change| refused(catalog.change(change)) == Some(Refused::Ended);
    assert!(ended(Change::Revise(object.clone(), object.manifest)));
    assert!(ended(Change::CreateBucket(row(Kind::Bucket, "c", "", 11, false))));
    assert!(ended(Change::SetBucket(row(Kind::Bucket, "b", "", 11, false), object.manifest)));
    let Change::Erase { bucket, key, version, manifest, .. } = erasure("k", &object) else { panic!("no erasure") };
    let erase = |run| Change::Erase { bucket: bucket.clone(), key: key.clone(), version, manifest, run };
    assert!(ended(erase(1)));
    assert_eq!(catalog.newest("b", "k").unwrap(), Some(object));
    assert_eq!(refused(catalog.change(erase(u64::MAX))), None);
}

/// Whatever is made while a run ends is made before that: nobody finds a version that was not there at the end.
fn nothing_is_made_after_the_end(catalogs: &[&dyn Catalog]) {
    with_bucket(catalogs[0]);
    for round in 1..30_u64 {
        let object = |n: u64| {
            let mut row = row(Kind::Object, "b", &n.to_string(), round, true);
            row.record.version = VersionId::new(round, round);
            row.manifest = row.record.chunk().0;
            row
        };
        catalogs[0].change(Change::Heartbeat { run: round, settled: 0, until: round, reported: 0 }).unwrap();
        let start = Barrier::new(5);
        let (before, made) = std::thread::scope(|scope| {
            let one = |n: u64| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    match put(catalogs[n as usize % catalogs.len()], object(n), Condition::Always) {
                        None => true,
                        Some(Refused::Ended) => false,
                        other => panic!("{other:?}"),
                    }
                })
            };
            let puts: Vec<_> = (0..4).map(one).collect();
            start.wait();
            catalogs[0].change(Change::EndRun { run: round, until: round }).unwrap();
            let there = |n: &u64| {
                let newest = catalogs[0].newest("b", &n.to_string()).unwrap();
                newest.is_some_and(|row| row.record.version.run() == round)
            };
            let before: Vec<bool> = (0..4).map(|n| there(&n)).collect();
            (before, puts.into_iter().map(|put| put.join().unwrap()).collect::<Vec<_>>())
        });
        assert_eq!(before, made, "round {round}");
    }
}

const SUITE: [fn(&dyn Catalog); 10] = [
    buckets_come_and_go,
    versions_replace_or_join_each_other,
    conditions_are_decided_by_the_newest_version,
    keys_are_in_the_order_of_their_bytes,
    uploads_keep_their_parts,
    one_of_many_wins,
    runs_end,
    |catalog| nothing_is_made_after_the_end(&[catalog]),
    |catalog| many_change_few_keys(&[catalog]),
    |catalog| buckets_are_not_removed_from_below_their_versions(&[catalog]),
];

#[test]
fn sqlite_conforms() {
    for test in SUITE {
        let place = tempfile::tempdir().unwrap();
        test(&Sqlite::open(&place.path().join("catalog")).unwrap());
    }
}

/// A server; `None`, with the reason printed, where there can be none.
fn server() -> Option<testkit::Postgres> {
    testkit::Postgres::start().inspect_err(|why| println!("skipped: {why:#}")).ok()
}

fn open(url: &str) -> Postgres {
    Postgres::open(url, None, "test").unwrap()
}

#[test]
fn postgres_conforms() {
    let Some(server) = server() else { return };
    for test in SUITE {
        test(&open(&server.database().unwrap()));
    }
    let two: [fn(&[&dyn Catalog]); 3] =
        [many_change_few_keys, buckets_are_not_removed_from_below_their_versions, nothing_is_made_after_the_end];
    for test in two {
        let url = server.database().unwrap();
        test(&[&open(&url), &open(&url)]);
    }
}

#[test]
fn gateways_that_start_at_once_make_one_catalog() {
    let Some(server) = server() else { return };
    let url = server.database().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| open(&url));
        }
    });
    with_bucket(&open(&url));
    let other = Postgres::open(&url, None, "other").unwrap_err().to_string();
    assert!(other.contains("\"test\"") && other.contains("database of its own"), "{other}");
}

#[test]
fn postgres_keeps_what_it_acknowledged_and_is_found_again() {
    let Some(mut server) = server() else { return };
    let catalog = open(&server.database().unwrap());
    with_bucket(&catalog);
    let object = row(Kind::Object, "b", "k", 1, true);
    assert_eq!(put(&catalog, object.clone(), Condition::Always), None);
    server.crash().unwrap();
    std::thread::scope(|scope| {
        // Asked while the server is away, answered when it is back.
        let asked = scope.spawn(|| catalog.newest("b", "k").unwrap());
        let next = scope.spawn(|| put(&catalog, row(Kind::Object, "b", "other", 1, true), Condition::Absent));
        server.start_again().unwrap();
        assert_eq!(asked.join().unwrap(), Some(object));
        assert_eq!(next.join().unwrap(), None);
    });
    server.crash().unwrap();
    let error = catalog.newest("b", "k").unwrap_err().to_string();
    assert!(error.starts_with("the catalog in postgres://") && error.contains("see that it runs"), "{error}");
}

#[test]
fn a_password_is_asked_for_and_not_repeated() {
    let Some(server) = server() else { return };
    let url = server.database().unwrap();
    let (before, after) = (url.split("://").next().unwrap(), url.split('@').nth(1).unwrap());
    let wrong = format!("{before}://reservoir:hush@{after}");
    let error = Postgres::open(&wrong, None, "test").unwrap_err().to_string();
    assert!(error.contains("PGPASSWORD") && !error.contains("hush"), "{error}");
    let without = format!("{before}://reservoir@{after}");
    Postgres::open(&without, Some(testkit::Postgres::PASSWORD), "test").unwrap();
    let missing = url.replace("catalog_", "missing_");
    let error = Postgres::open(&missing, None, "test").unwrap_err().to_string();
    assert!(error.contains("createdb"), "{error}");
}

#[test]
fn sqlite_keeps_what_it_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("catalog");
    let object = row(Kind::Object, "b", "k", 1, true);
    {
        let catalog = Sqlite::open(&path).unwrap();
        with_bucket(&catalog);
        assert_eq!(put(&catalog, object.clone(), Condition::Always), None);
        // Another process that reads sees it at once.
        assert_eq!(Sqlite::open(&path).unwrap().newest("b", "k").unwrap(), Some(object.clone()));
    }
    assert_eq!(Sqlite::open(&path).unwrap().newest("b", "k").unwrap(), Some(object));
}
