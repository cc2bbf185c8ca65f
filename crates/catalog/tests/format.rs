//! The format of the catalog's file: that of today, that from before it had a number, and those to come.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;

use catalog::object_manifest::{Kind, ObjectManifest, VersionId};
use catalog::{Catalog, Change, Condition, Row, Sqlite, Start};
use rusqlite::Connection;

/// A file of the version that wrote no format number, as a gateway left it: bucket `old` with two versions of `a`, a version
/// and a delete marker of `b`, and an upload of `c` with one part.
const WITHOUT_NUMBER: &[u8] = include_bytes!("formats/0.sqlite");

fn format(path: &Path) -> i64 {
    Connection::open(path).unwrap().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

fn schema(path: &Path) -> String {
    let connection = Connection::open(path).unwrap();
    let mut statement =
        connection.prepare("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|sql| sql.unwrap().split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
}

#[test]
fn the_tables_are_frozen() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("catalog");
    drop(Sqlite::open(&path).unwrap());
    assert_eq!(format(&path), 1);
    let schema = schema(&path);
    assert_eq!(
        blake3::hash(schema.as_bytes()).to_hex().as_str(),
        "76824ae960896587f61fb2e8ebe42741d46779fa67868b316962189caf791ecb",
        "other tables are another format:\n{schema}"
    );
}

#[test]
fn a_file_without_a_number_is_taken_over_with_all_that_is_in_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("catalog");
    fs::write(&path, WITHOUT_NUMBER).unwrap();
    assert_eq!(format(&path), 0);
    for _ in 0..2 {
        let catalog = Sqlite::open(&path).unwrap();
        assert_eq!(format(&path), 1);
        assert_eq!(catalog.bucket("old").unwrap().unwrap().record.attributes["versioning"], "Enabled");
        let found: Vec<_> = catalog.versions("old", &Start::Key(vec![]), 9).unwrap();
        let found = found.iter().map(|(row, newest)| (&row.record, *newest));
        let found: Vec<_> = found.map(|(record, newest)| (&*record.key, record.kind, record.size, newest)).collect();
        let (object, marker) = (Kind::Object, Kind::Marker);
        let all =
            [("a", object, 6, true), ("a", object, 5, false), ("b", marker, 0, true), ("b", object, 300_000, false)];
        assert_eq!(found, all);
        let uploads = catalog.uploads("old", &Start::Key(vec![]), 9).unwrap();
        assert_eq!(uploads.len(), 1);
        assert_eq!(catalog.part(uploads[0].id, 1).unwrap().unwrap().size, 1_000);
        assert_eq!(catalog.runs().unwrap().len(), 1);
    }
    let catalog = Sqlite::open(&path).unwrap();
    let record = ObjectManifest::new(Kind::Object, "old", "a", VersionId::new(u64::MAX >> 1, 1));
    let row = Row { manifest: record.chunk().0, record };
    catalog.change(Change::Put(row.clone(), Condition::Present)).unwrap();
    assert_eq!(catalog.newest("old", "a").unwrap(), Some(row));
}

#[test]
fn a_newer_format_is_refused_and_left_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("catalog");
    drop(Sqlite::open(&path).unwrap());
    Connection::open(&path).unwrap().execute_batch("DROP TABLE removed; PRAGMA user_version = 2").unwrap();
    let error = Sqlite::open(&path).unwrap_err().to_string();
    assert_eq!(error, "the catalog has format 2, and this program knows up to 1: use a newer reservoir");
    assert!(!schema(&path).contains("removed") && format(&path) == 2);
}
