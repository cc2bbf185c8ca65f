//! What every engine of the catalog must do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Barrier;

use object::catalog::{Catalog, CatalogError, Change, Condition, Part, Refused, Row, Sqlite, Start, Upload};
use object::record::{Kind, Record, VersionId};

fn row(kind: Kind, bucket: &str, key: &str, micros: u64, null: bool) -> Row {
    let mut record = Record::new(kind, bucket, key, VersionId::new(micros, 1));
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
    let changed = row(Kind::Bucket, "b", "", 3, false);
    catalog.change(Change::SetBucket(changed.clone())).unwrap();
    assert_eq!(catalog.bucket("b").unwrap(), Some(changed.clone()));
    assert_eq!(catalog.buckets().unwrap(), [changed]);
    assert_eq!(put(catalog, row(Kind::Object, "b", "k", 1, true), Condition::Always), None);
    let delete = || refused(catalog.change(Change::DeleteBucket("b".to_owned())));
    assert_eq!(delete(), Some(Refused::NotEmpty));
    let (bucket, key) = ("b".to_owned(), "k".to_owned());
    catalog.change(Change::Erase { bucket, key, version: VersionId::new(1, 1) }).unwrap();
    assert_eq!(delete(), None);
    assert_eq!(delete(), Some(Refused::NoBucket));
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
    let erase = |micros| {
        let version = VersionId::new(micros, 1);
        catalog.change(Change::Erase { bucket: "b".to_owned(), key: "k".to_owned(), version }).unwrap();
    };
    erase(5);
    assert_eq!(catalog.objects("b", &Start::Key(vec![]), 10).unwrap(), [object(4, false)]);
    erase(4);
    erase(4);
    assert_eq!(catalog.newest("b", "k").unwrap(), Some(object(3, true)));
    let mut revised = object(3, true);
    revised.record.attributes.insert("a".to_owned(), "1".to_owned());
    catalog.change(Change::Revise(revised.clone())).unwrap();
    assert_eq!(catalog.newest("b", "k").unwrap(), Some(revised));
    assert_eq!(refused(catalog.change(Change::Revise(object(9, true)))), Some(Refused::NoVersion));
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
        Upload { id, record: Record::new(Kind::Object, "b", key, id) }
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
    assert_eq!(refused(catalog.change(Change::DeleteBucket("b".to_owned()))), Some(Refused::NotEmpty));
    let done = Change::Complete(row(Kind::Object, "b", "a", 5, true), Condition::Always, id);
    catalog.change(done.clone()).unwrap();
    assert_eq!(refused(catalog.change(done)), Some(Refused::NoUpload));
    assert_eq!(catalog.part(id, 2).unwrap(), None);
    let late = Change::PutPart(id, part(3, "w"));
    assert_eq!(refused(catalog.change(late)), Some(Refused::NoUpload));
    catalog.change(Change::EndUpload(all[1].id)).unwrap();
    assert_eq!(refused(catalog.change(Change::EndUpload(all[1].id))), Some(Refused::NoUpload));
}

/// Of many who create one key at once, one succeeds; and of many who replace one version, one.
fn one_of_many_wins(catalog: &dyn Catalog) {
    with_bucket(catalog);
    let race = |first: u64, condition: &Condition| {
        let start = Barrier::new(8);
        let wins: usize = std::thread::scope(|scope| {
            let one = |n: u64| {
                let (start, condition) = (&start, condition.clone());
                scope.spawn(move || {
                    start.wait();
                    let row = row(Kind::Object, "b", "k", first + n, true);
                    usize::from(put(catalog, row, condition).is_none())
                })
            };
            let all: Vec<_> = (0..8).map(one).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(wins, 1);
        catalog.newest("b", "k").unwrap().unwrap().record.etag
    };
    let tag = race(10, &Condition::Absent);
    race(100, &Condition::Matches(tag));
}

#[test]
fn sqlite_conforms() {
    let suite: [fn(&dyn Catalog); 6] = [
        buckets_come_and_go,
        versions_replace_or_join_each_other,
        conditions_are_decided_by_the_newest_version,
        keys_are_in_the_order_of_their_bytes,
        uploads_keep_their_parts,
        one_of_many_wins,
    ];
    for test in suite {
        let place = tempfile::tempdir().unwrap();
        test(&Sqlite::open(&place.path().join("catalog")).unwrap());
    }
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
