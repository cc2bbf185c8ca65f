//! The SQL of every engine: the tables, and the statements of each change and each question.
//!
//! The statements are such as SQLite, PostgreSQL and its relatives take: keys are bytes, so that every engine sorts them
//! alike; no UPSERT, no stored procedures, no notifications, no sequences, no advisory locks.
//!
//! They are right where each statement sees what was committed before it (READ COMMITTED), and where a transaction sees
//! one state of all (a stronger isolation): two changes of one key meet in the same row of `versions`, which the second
//! finds changed, or in the unique index of the newest versions, which refuses it. Whoever removes a bucket owns its row,
//! and whoever changes something in it holds that row. So it is with a run: the change that ends it
//! owns its row, and its changes hold it, so that none of them is made after its end.

use protocol::id::ChunkId;

use crate::object_manifest::{Kind, ObjectManifest, VersionId};
use crate::{Amends, Catalog, CatalogError, Change, Condition, Part, RETURNED, Refused, Row, Run, Start, Upload};

/// The format of the tables. A program that knows only older ones must not use them.
pub(crate) const FORMAT: i64 = 1;

/// The tables, a statement each, as SQLite writes types.
pub(crate) const TABLES: [&str; 6] = [
    "CREATE TABLE IF NOT EXISTS buckets (name TEXT NOT NULL PRIMARY KEY, manifest BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS versions (
       bucket TEXT NOT NULL, key BLOB NOT NULL, age BLOB NOT NULL, newest INTEGER NOT NULL, object INTEGER NOT NULL,
       plain INTEGER NOT NULL, manifest BLOB NOT NULL, record BLOB NOT NULL, PRIMARY KEY (bucket, key, age)) WITHOUT ROWID",
    "CREATE UNIQUE INDEX IF NOT EXISTS newest ON versions (bucket, key) WHERE newest = 1",
    "CREATE TABLE IF NOT EXISTS uploads (
       id BLOB NOT NULL PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, record BLOB NOT NULL)",
    "CREATE INDEX IF NOT EXISTS upload_keys ON uploads (bucket, key, id)",
    "CREATE TABLE IF NOT EXISTS parts (
       upload BLOB NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL, micros INTEGER NOT NULL,
       checksums TEXT NOT NULL, entries BLOB NOT NULL, PRIMARY KEY (upload, number)) WITHOUT ROWID",
];

/// Tables and an index that older files do not have.
pub(crate) const ADDED_TABLES: [&str; 3] = [
    "CREATE TABLE IF NOT EXISTS runs (
       id BLOB NOT NULL PRIMARY KEY, settled INTEGER NOT NULL, lease INTEGER NOT NULL, ended INTEGER NOT NULL)",
    // Per bucket and slot of keys: up to when versions were removed. What is put later must be later than that.
    "CREATE TABLE IF NOT EXISTS removed (
       bucket TEXT NOT NULL, slot INTEGER NOT NULL, micros INTEGER NOT NULL, PRIMARY KEY (bucket, slot))",
    // A list of objects passes over any number of delete markers.
    "CREATE INDEX IF NOT EXISTS present ON versions (bucket, key) WHERE newest = 1 AND object = 1",
];

/// A value of a statement's parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

use Value::{Bytes, Int, Text};

/// The columns of one row, counted from 0.
pub(crate) trait Columns {
    fn int(&self, at: usize) -> Result<i64, CatalogError>;
    fn text(&self, at: usize) -> Result<String, CatalogError>;
    fn bytes(&self, at: usize) -> Result<Vec<u8>, CatalogError>;
}

/// What is done with each row.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&dyn Columns) -> Result<(), CatalogError>;

/// A connection, or a transaction on it. Parameters are `?1`, `?2` and so on.
pub(crate) trait Db {
    /// Ends a SELECT whose row must stay until the transaction ends.
    const HOLD: &'static str;
    /// Ends a SELECT whose row nobody else may hold, change or remove until the transaction ends.
    const OWN: &'static str;
    /// Behind the table of versions in a SELECT of objects: which index to use, where the engine would take another.
    const BY_PRESENT: &'static str;
    /// Runs a statement; how many rows it changed.
    fn run(&mut self, sql: &str, with: &[Value<'_>]) -> Result<u64, CatalogError>;
    /// Runs a SELECT.
    fn rows(&mut self, sql: &str, with: &[Value<'_>], each: Each<'_>) -> Result<(), CatalogError>;
}

/// Connections, and how changes are made over them.
pub(crate) trait Engine: Send + Sync {
    /// One of its connections.
    type Db<'a>: Db;
    /// Makes a change in a transaction, durably.
    fn write(&self, change: Change) -> Result<(), CatalogError>;
    /// Asks. Each statement sees all that was acknowledged before it began.
    fn read<T>(&self, read: impl Fn(&mut Self::Db<'_>) -> Result<T, CatalogError>) -> Result<T, CatalogError>;
}

pub(crate) fn broken(what: impl std::fmt::Display) -> CatalogError {
    CatalogError::Engine(what.to_string())
}

/// Versions newest first: the id turned round.
fn age(version: VersionId) -> [u8; 16] {
    (!version.0).to_be_bytes()
}

/// Makes a change. A refusal comes before anything was written.
pub(crate) fn apply<D: Db>(db: &mut D, change: &Change) -> Result<(), CatalogError> {
    match change {
        Change::CreateBucket(row) => {
            let name = &row.record.bucket;
            hold_run(db, row.record.begun().run())?;
            if bucket(db, name)?.is_some() {
                return Err(Refused::BucketExists.into());
            }
            check_removed(db, &row.record)?;
            insert_bucket(db, row)
        }
        Change::SetBucket(row, was) => set_bucket(db, row, *was),
        Change::DeleteBucket(name, version) => {
            delete_bucket(db, name)?;
            note_removed(db, name, "", *version)
        }
        Change::Put(row, condition) => put(db, row, condition),
        Change::Revise(row, was) => revise(db, row, *was),
        Change::Erase { bucket, key, version, manifest, run } => {
            hold_run(db, *run)?;
            erase(db, bucket, key, *version, *manifest)?;
            note_removed(db, bucket, key, *version)
        }
        Change::Removed { bucket, key, version } => note_removed(db, bucket, key, *version),
        Change::StartUpload(upload) => {
            let record = &upload.record;
            hold_bucket(db, &record.bucket)?;
            let sql = "INSERT INTO uploads (id, bucket, key, record) VALUES (?1, ?2, ?3, ?4)";
            let id = upload.id.0.to_be_bytes();
            let with = [Bytes(&id), Text(&record.bucket), Bytes(record.key.as_bytes()), Bytes(&record.encode())];
            db.run(sql, &with).map(drop)
        }
        Change::PutPart(upload, part) => put_part(db, *upload, part),
        Change::EndUpload(upload) => {
            let id = take_upload(db, *upload, D::OWN)?;
            end_upload(db, id)
        }
        Change::Complete(row, condition, upload) => {
            let id = take_upload(db, *upload, D::OWN)?;
            put(db, row, condition)?;
            end_upload(db, id)
        }
        Change::Heartbeat { run, settled, until, reported } => {
            notice_return(db, *run, *reported)?;
            heartbeat(db, *run, *settled, *until)
        }
        Change::EndRun { run, until } => end_run(db, *run, *until),
    }
}

/// The run has not ended, and does not until the transaction does. One that the catalog does not know cannot end.
fn hold_run<D: Db>(db: &mut D, run: u64) -> Result<(), CatalogError> {
    let sql = format!("SELECT ended FROM runs WHERE id = ?1{}", D::HOLD);
    let ended = many(db, &sql, &[Bytes(&run.to_be_bytes())], |row| row.int(0))?;
    if ended == [1] { Err(Refused::Ended.into()) } else { Ok(()) }
}

/// When a catalog does not know any more what this run reported, it is an older one, and says so from now on.
fn notice_return(db: &mut impl Db, run: u64, reported: u64) -> Result<(), CatalogError> {
    let lease = many(db, "SELECT lease FROM runs WHERE id = ?1", &[Bytes(&run.to_be_bytes())], |row| row.int(0))?;
    if lease.first().map_or(0, |lease| *lease as u64) >= reported {
        return Ok(());
    }
    let (id, reported) = (RETURNED.to_be_bytes(), Int(reported as i64));
    if db.run("UPDATE runs SET lease = ?2 WHERE id = ?1 AND lease < ?2", &[Bytes(&id), reported])? == 0
        && !exists(db, "SELECT id FROM runs WHERE id = ?1", &[Bytes(&id)])?
    {
        db.run("INSERT INTO runs (id, settled, lease, ended) VALUES (?1, 0, ?2, 1)", &[Bytes(&id), reported])?;
    }
    Ok(())
}

fn heartbeat(db: &mut impl Db, run: u64, settled: u64, until: u64) -> Result<(), CatalogError> {
    let (id, settled, until) = (run.to_be_bytes(), Int(settled as i64), Int(until as i64));
    let with = [Bytes(&id), settled, until];
    if db.run("UPDATE runs SET settled = ?2, lease = ?3 WHERE id = ?1 AND ended = 0", &with)? > 0 {
        return Ok(());
    }
    if exists(db, "SELECT id FROM runs WHERE id = ?1", &with[..1])? {
        return Err(Refused::Ended.into());
    }
    db.run("INSERT INTO runs (id, settled, lease, ended) VALUES (?1, ?2, ?3, 0)", &with).map(drop)
}

fn end_run<D: Db>(db: &mut D, run: u64, until: u64) -> Result<(), CatalogError> {
    let id = run.to_be_bytes();
    let lease = format!("SELECT lease FROM runs WHERE id = ?1{}", D::OWN);
    let lease = many(db, &lease, &[Bytes(&id)], |row| row.int(0))?;
    if lease != [until as i64] {
        return Err(Refused::Changed.into());
    }
    db.run("UPDATE runs SET ended = 1 WHERE id = ?1", &[Bytes(&id)]).map(drop)
}

fn run_of(columns: &dyn Columns) -> Result<Run, CatalogError> {
    let id = <[u8; 8]>::try_from(columns.bytes(0)?).map_err(|_| broken("an impossible id of a run"))?;
    let [settled, until] = [columns.int(1)? as u64, columns.int(2)? as u64];
    Ok(Run { id: u64::from_be_bytes(id), settled, until, ended: columns.int(3)? == 1 })
}

fn exists(db: &mut impl Db, sql: &str, with: &[Value<'_>]) -> Result<bool, CatalogError> {
    let mut found = false;
    db.rows(sql, with, &mut |_| {
        found = true;
        Ok(())
    })?;
    Ok(found)
}

/// Where it is kept how far versions of this key were removed: so many places that removals seldom meet in one.
fn slot(key: &str) -> Value<'static> {
    Int(blake3::hash(key.as_bytes()).as_bytes()[0].into())
}

/// A version of this key was removed. The manifest that says so counts for earlier null versions as well, also for one that
/// is put later by a gateway whose clock is behind: therefore none may be.
fn note_removed(db: &mut impl Db, bucket: &str, key: &str, version: VersionId) -> Result<(), CatalogError> {
    let with = [Text(bucket), slot(key), Int(version.micros() as i64)];
    if db.run("UPDATE removed SET micros = ?3 WHERE bucket = ?1 AND slot = ?2 AND micros < ?3", &with)? == 0
        && !exists(db, "SELECT micros FROM removed WHERE bucket = ?1 AND slot = ?2", &with[..2])?
    {
        db.run("INSERT INTO removed (bucket, slot, micros) VALUES (?1, ?2, ?3)", &with)?;
    }
    Ok(())
}

/// Whether this record is later than what was removed before it.
fn check_removed(db: &mut impl Db, record: &ObjectManifest) -> Result<(), CatalogError> {
    let sql = "SELECT micros FROM removed WHERE bucket = ?1 AND slot = ?2";
    let removed = many(db, sql, &[Text(&record.bucket), slot(&record.key)], |row| row.int(0))?;
    match removed.first().map(|micros| *micros as u64).filter(|micros| record.version.micros() <= *micros) {
        Some(micros) => Err(Refused::Stale(VersionId::new(micros, 0)).into()),
        None => Ok(()),
    }
}

/// The bucket is there, and stays until the transaction ends.
fn hold_bucket<D: Db>(db: &mut D, name: &str) -> Result<(), CatalogError> {
    let sql = format!("SELECT name FROM buckets WHERE name = ?1{}", D::HOLD);
    if exists(db, &sql, &[Text(name)])? { Ok(()) } else { Err(Refused::NoBucket.into()) }
}

fn set_bucket(db: &mut impl Db, row: &Row, was: ChunkId) -> Result<(), CatalogError> {
    let name = &row.record.bucket;
    hold_run(db, row.record.begun().run())?;
    let (manifest, record) = stored(row);
    let sql = "UPDATE buckets SET manifest = ?2, record = ?3 WHERE name = ?1 AND manifest = ?4";
    let changed = db.run(sql, &[Text(name), Bytes(&manifest), Bytes(&record), Bytes(&was.encode())])?;
    if changed > 0 {
        return Ok(());
    }
    Err(if bucket(db, name)?.is_some() { Refused::Changed } else { Refused::NoBucket }.into())
}

fn delete_bucket<D: Db>(db: &mut D, name: &str) -> Result<(), CatalogError> {
    let sql = format!("SELECT name FROM buckets WHERE name = ?1{}", D::OWN);
    if !exists(db, &sql, &[Text(name)])? {
        return Err(Refused::NoBucket.into());
    }
    if exists(db, "SELECT bucket FROM versions WHERE bucket = ?1 LIMIT 1", &[Text(name)])? {
        return Err(Refused::NotEmpty.into());
    }
    // Parts that are put at this moment hold their upload's row.
    exists(db, &format!("SELECT id FROM uploads WHERE bucket = ?1{}", D::OWN), &[Text(name)])?;
    end_uploads(db, name)?;
    db.run("DELETE FROM buckets WHERE name = ?1", &[Text(name)]).map(drop)
}

fn put(db: &mut impl Db, row: &Row, condition: &Condition) -> Result<(), CatalogError> {
    let record = &row.record;
    let (name, key) = (Text(&record.bucket), Bytes(record.key.as_bytes()));
    hold_run(db, record.begun().run())?;
    hold_bucket(db, &record.bucket)?;
    loop {
        let newest = newest(db, &record.bucket, record.key.as_bytes())?;
        condition.check(newest.as_ref())?;
        if record.null {
            // After the question for the newest, so that a removal of which that knows counts.
            check_removed(db, record)?;
        }
        let Some(newest) = newest else { break };
        let newest = newest.record.version;
        if newest >= record.version {
            return Err(Refused::Stale(newest).into());
        }
        let sql = "UPDATE versions SET newest = 0 WHERE bucket = ?1 AND key = ?2 AND age = ?3 AND newest = 1";
        // It is no longer the newest when another gateway's change came first: look again.
        if db.run(sql, &[name, key, Bytes(&age(newest))])? > 0 {
            break;
        }
    }
    if record.null {
        // Not one that is the newest: another gateway put it since this one looked, and the insertion must meet it.
        db.run("DELETE FROM versions WHERE bucket = ?1 AND key = ?2 AND plain = 1 AND newest = 0", &[name, key])?;
    }
    insert(db, row, true)
}

fn insert(db: &mut impl Db, row: &Row, newest: bool) -> Result<(), CatalogError> {
    let record = &row.record;
    let (name, key, age) = (Text(&record.bucket), Bytes(record.key.as_bytes()), age(record.version));
    let (manifest, bytes) = stored(row);
    let sql = "INSERT INTO versions (bucket, key, age, newest, object, plain, manifest, record) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    let flags = [newest, record.kind == Kind::Object, record.null].map(|flag| Int(i64::from(flag)));
    let with = [&[name, key, Bytes(&age)], &flags[..], &[Bytes(&manifest), Bytes(&bytes)]].concat();
    db.run(sql, &with).map(drop)
}

/// Makes the catalog say this, also where the runs that began it have ended.
pub(crate) fn amend(db: &mut impl Db, amends: &Amends) -> Result<(), CatalogError> {
    for (name, row) in &amends.buckets {
        db.run("DELETE FROM buckets WHERE name = ?1", &[Text(name)])?;
        if let Some(row) = row {
            insert_bucket(db, row)?;
            continue;
        }
        end_uploads(db, name)?;
    }
    for (bucket, key, rows) in &amends.keys {
        db.run("DELETE FROM versions WHERE bucket = ?1 AND key = ?2", &[Text(bucket), Bytes(key.as_bytes())])?;
        for (at, row) in rows.iter().enumerate() {
            insert(db, row, at + 1 == rows.len())?;
        }
    }
    amends.removed.iter().try_for_each(|(bucket, key, version)| note_removed(db, bucket, key, *version))
}

fn insert_bucket(db: &mut impl Db, row: &Row) -> Result<(), CatalogError> {
    let sql = "INSERT INTO buckets (name, manifest, record) VALUES (?1, ?2, ?3)";
    let (manifest, record) = stored(row);
    db.run(sql, &[Text(&row.record.bucket), Bytes(&manifest), Bytes(&record)]).map(drop)
}

fn revise(db: &mut impl Db, row: &Row, was: ChunkId) -> Result<(), CatalogError> {
    let record = &row.record;
    hold_run(db, record.begun().run())?;
    hold_bucket(db, &record.bucket)?;
    let (manifest, bytes) = stored(row);
    let sql =
        "UPDATE versions SET manifest = ?4, record = ?5 WHERE bucket = ?1 AND key = ?2 AND age = ?3 AND manifest = ?6";
    let (age, was) = (age(record.version), was.encode());
    let key = [Text(&record.bucket), Bytes(record.key.as_bytes()), Bytes(&age)];
    let with = [&key[..], &[Bytes(&manifest), Bytes(&bytes), Bytes(&was)]].concat();
    if db.run(sql, &with)? > 0 {
        return Ok(());
    }
    Err(missing(db, &key)?.into())
}

/// Why a version, of this bucket, key and age, was not found with the manifest that it should have.
fn missing(db: &mut impl Db, key: &[Value<'_>]) -> Result<Refused, CatalogError> {
    let sql = "SELECT age FROM versions WHERE bucket = ?1 AND key = ?2 AND age = ?3";
    Ok(if exists(db, sql, key)? { Refused::Changed } else { Refused::NoVersion })
}

fn erase(db: &mut impl Db, bucket: &str, key: &str, version: VersionId, manifest: ChunkId) -> Result<(), CatalogError> {
    hold_bucket(db, bucket)?;
    let (name, key, age, manifest) = (Text(bucket), Bytes(key.as_bytes()), age(version), manifest.encode());
    let sql = "DELETE FROM versions WHERE bucket = ?1 AND key = ?2 AND age = ?3 AND manifest = ?4";
    if db.run(sql, &[name, key, Bytes(&age), Bytes(&manifest)])? == 0 {
        return Err(missing(db, &[name, key, Bytes(&age)])?.into());
    }
    loop {
        if exists(db, "SELECT age FROM versions WHERE bucket = ?1 AND key = ?2 AND newest = 1", &[name, key])? {
            return Ok(());
        }
        let sql = "SELECT age FROM versions WHERE bucket = ?1 AND key = ?2 ORDER BY age LIMIT 1";
        let Some(next) = many(db, sql, &[name, key], |row| row.bytes(0))?.pop() else { return Ok(()) };
        let sql = "UPDATE versions SET newest = 1 WHERE bucket = ?1 AND key = ?2 AND age = ?3";
        // It is gone when another gateway removed it meanwhile: the one before it is next.
        if db.run(sql, &[name, key, Bytes(&next)])? > 0 {
            return Ok(());
        }
    }
}

/// The upload is there, and stays (or is this transaction's own) until the transaction ends.
fn take_upload(db: &mut impl Db, id: VersionId, lock: &str) -> Result<[u8; 16], CatalogError> {
    let id = id.0.to_be_bytes();
    let there = exists(db, &format!("SELECT id FROM uploads WHERE id = ?1{lock}"), &[Bytes(&id)])?;
    if there { Ok(id) } else { Err(Refused::NoUpload.into()) }
}

fn put_part<D: Db>(db: &mut D, upload: VersionId, part: &Part) -> Result<(), CatalogError> {
    let id = take_upload(db, upload, D::HOLD)?;
    let (id, number) = (Bytes(&id), Int(part.number.into()));
    db.run("DELETE FROM parts WHERE upload = ?1 AND number = ?2", &[id, number])?;
    let sql = "INSERT INTO parts (upload, number, size, etag, micros, checksums, entries) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
    let (size, micros) = (Int(part.size as i64), Int(part.micros as i64));
    let with = [id, number, size, Text(&part.etag), micros, Text(&part.checksums), Bytes(&part.entries)];
    db.run(sql, &with).map(drop)
}

fn end_upload(db: &mut impl Db, id: [u8; 16]) -> Result<(), CatalogError> {
    db.run("DELETE FROM parts WHERE upload = ?1", &[Bytes(&id)])?;
    db.run("DELETE FROM uploads WHERE id = ?1", &[Bytes(&id)]).map(drop)
}

/// Ends all uploads of a bucket.
fn end_uploads(db: &mut impl Db, bucket: &str) -> Result<(), CatalogError> {
    db.run("DELETE FROM parts WHERE upload IN (SELECT id FROM uploads WHERE bucket = ?1)", &[Text(bucket)])?;
    db.run("DELETE FROM uploads WHERE bucket = ?1", &[Text(bucket)]).map(drop)
}

fn stored(row: &Row) -> ([u8; ChunkId::LEN], Vec<u8>) {
    (row.manifest.encode(), row.record.clone().row().encode())
}

/// A row from the columns `manifest` and `record`, which are the first. The one is the hash of the other, so that rot shows.
fn row_of(columns: &dyn Columns) -> Result<Row, CatalogError> {
    let damaged =
        |what: String| CatalogError::Damaged(format!("the record of a row is not that of its manifest: {what}"));
    let manifest = <[u8; ChunkId::LEN]>::try_from(columns.bytes(0)?).ok();
    let manifest = manifest.and_then(|id| ChunkId::decode(&id)).ok_or_else(|| damaged("an impossible id".into()))?;
    let bytes = columns.bytes(1)?;
    let record = ObjectManifest::decode(&bytes).map_err(|why| damaged(format!("{manifest}: {why}")))?;
    if record.is_of(manifest, &bytes) { Ok(Row { record, manifest }) } else { Err(damaged(manifest.to_string())) }
}

/// The row that was asked for by this name; an error when it has another.
fn check_name(row: Option<Row>, bucket: &str, key: &[u8]) -> Result<Option<Row>, CatalogError> {
    let is_other = |row: &Row| row.record.bucket != bucket || row.record.key.as_bytes() != key;
    match row.as_ref().filter(|row| is_other(row)) {
        Some(other) => Err(CatalogError::Damaged(format!("the row of {} has another name", other.manifest))),
        None => Ok(row),
    }
}

fn many<T>(
    db: &mut impl Db,
    sql: &str,
    with: &[Value<'_>],
    each: impl Fn(&dyn Columns) -> Result<T, CatalogError>,
) -> Result<Vec<T>, CatalogError> {
    let mut all = vec![];
    db.rows(sql, with, &mut |columns| {
        all.push(each(columns)?);
        Ok(())
    })?;
    Ok(all)
}

fn one(db: &mut impl Db, sql: &str, with: &[Value<'_>]) -> Result<Option<Row>, CatalogError> {
    Ok(many(db, sql, with, row_of)?.pop())
}

fn bucket(db: &mut impl Db, name: &str) -> Result<Option<Row>, CatalogError> {
    check_name(one(db, "SELECT manifest, record FROM buckets WHERE name = ?1", &[Text(name)])?, name, b"")
}

fn newest(db: &mut impl Db, bucket: &str, key: &[u8]) -> Result<Option<Row>, CatalogError> {
    let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND newest = 1";
    check_name(one(db, sql, &[Text(bucket), Bytes(key)])?, bucket, key)
}

fn upload_of(columns: &dyn Columns) -> Result<Upload, CatalogError> {
    let id = <[u8; 16]>::try_from(columns.bytes(0)?).map_err(|_| broken("an impossible upload id"))?;
    let record = ObjectManifest::decode(&columns.bytes(1)?).map_err(broken)?;
    Ok(Upload { id: VersionId(u128::from_be_bytes(id)), record })
}

/// A part from all columns but its entries.
fn part_of(columns: &dyn Columns) -> Result<Part, CatalogError> {
    Ok(Part {
        number: u32::try_from(columns.int(0)?).map_err(broken)?,
        size: columns.int(1)? as u64,
        etag: columns.text(2)?,
        micros: columns.int(3)? as u64,
        checksums: columns.text(4)?,
        entries: vec![],
    })
}

/// A page's limit as a database takes it.
fn page<'a>(limit: usize) -> Value<'a> {
    Int(i64::try_from(limit).unwrap_or(i64::MAX))
}

/// Where a page begins that does not begin within a key: the key, and how keys on it compare with it.
fn after(from: &Start) -> (&[u8], &'static str) {
    match from {
        Start::Key(key) => (key, ">="),
        Start::After(key) | Start::Version(key, _) => (key, ">"),
    }
}

impl<E: Engine> Catalog for E {
    fn change(&self, change: Change) -> Result<(), CatalogError> {
        self.write(change)
    }

    fn bucket(&self, name: &str) -> Result<Option<Row>, CatalogError> {
        self.read(|db| bucket(db, name))
    }

    fn buckets(&self, after: &str, limit: usize) -> Result<Vec<Row>, CatalogError> {
        // Databases sort texts by the rules of languages: the order counts for nothing but the next page.
        let sql = "SELECT manifest, record FROM buckets WHERE name > ?1 ORDER BY name LIMIT ?2";
        self.read(|db| many(db, sql, &[Text(after), page(limit)], row_of))
    }

    fn newest(&self, bucket: &str, key: &str) -> Result<Option<Row>, CatalogError> {
        self.read(|db| newest(db, bucket, key.as_bytes()))
    }

    fn version(&self, bucket: &str, key: &str, version: Option<VersionId>) -> Result<Option<Row>, CatalogError> {
        let with = [Text(bucket), Bytes(key.as_bytes())];
        let found = self.read(|db| match version {
            Some(version) => {
                let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND age = ?3";
                let found = one(db, sql, &[&with[..], &[Bytes(&age(version))]].concat())?;
                Ok(found.filter(|row| !row.record.null))
            }
            None => {
                let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND plain = 1";
                one(db, sql, &with)
            }
        })?;
        check_name(found, bucket, key.as_bytes())
    }

    fn objects(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Row>, CatalogError> {
        let ((key, compare), by) = (after(from), <E::Db<'_> as Db>::BY_PRESENT);
        let sql = format!(
            "SELECT manifest, record FROM versions{by} WHERE bucket = ?1 AND key {compare} ?2 AND newest = 1 \
             AND object = 1 ORDER BY key LIMIT ?3"
        );
        self.read(|db| many(db, &sql, &[Text(bucket), Bytes(key), page(limit)], row_of))
    }

    fn versions(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<(Row, bool)>, CatalogError> {
        let with_newest = |columns: &dyn Columns| Ok((row_of(columns)?, columns.int(2)? == 1));
        let mut found = vec![];
        if let Start::Version(key, version) = from {
            let sql = "SELECT manifest, record, newest FROM versions WHERE bucket = ?1 AND key = ?2 AND age > ?3 \
                       ORDER BY age LIMIT ?4";
            let with = [Text(bucket), Bytes(key), Bytes(&age(*version)), page(limit)];
            found = self.read(|db| many(db, sql, &with, with_newest))?;
        }
        let left = limit - found.len();
        if left > 0 {
            let (key, compare) = after(from);
            let sql = format!(
                "SELECT manifest, record, newest FROM versions WHERE bucket = ?1 AND key {compare} ?2 \
                 ORDER BY key, age LIMIT ?3"
            );
            found.extend(self.read(|db| many(db, &sql, &[Text(bucket), Bytes(key), page(left)], with_newest))?);
        }
        Ok(found)
    }

    fn upload(&self, id: VersionId) -> Result<Option<Upload>, CatalogError> {
        let sql = "SELECT id, record FROM uploads WHERE id = ?1";
        self.read(|db| Ok(many(db, sql, &[Bytes(&id.0.to_be_bytes())], upload_of)?.pop()))
    }

    fn uploads(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Upload>, CatalogError> {
        let mut found = vec![];
        if let Start::Version(key, id) = from {
            let sql = "SELECT id, record FROM uploads WHERE bucket = ?1 AND key = ?2 AND id > ?3 ORDER BY id LIMIT ?4";
            let with = [Text(bucket), Bytes(key), Bytes(&id.0.to_be_bytes()), page(limit)];
            found = self.read(|db| many(db, sql, &with, upload_of))?;
        }
        let left = limit - found.len();
        if left > 0 {
            let (key, compare) = after(from);
            let sql = format!(
                "SELECT id, record FROM uploads WHERE bucket = ?1 AND key {compare} ?2 ORDER BY key, id LIMIT ?3"
            );
            found.extend(self.read(|db| many(db, &sql, &[Text(bucket), Bytes(key), page(left)], upload_of))?);
        }
        Ok(found)
    }

    fn parts(&self, upload: VersionId, after: u32, limit: usize) -> Result<Vec<Part>, CatalogError> {
        let sql = "SELECT number, size, etag, micros, checksums FROM parts WHERE upload = ?1 AND number > ?2 \
                   ORDER BY number LIMIT ?3";
        let with = [Bytes(&upload.0.to_be_bytes()), Int(after.into()), page(limit)];
        self.read(|db| many(db, sql, &with, part_of))
    }

    fn part(&self, upload: VersionId, number: u32) -> Result<Option<Part>, CatalogError> {
        let sql = "SELECT number, size, etag, micros, checksums, entries FROM parts WHERE upload = ?1 AND number = ?2";
        let with = [Bytes(&upload.0.to_be_bytes()), Int(number.into())];
        let whole = |columns: &dyn Columns| Ok(Part { entries: columns.bytes(5)?, ..part_of(columns)? });
        Ok(self.read(|db| many(db, sql, &with, whole))?.pop())
    }

    fn runs(&self) -> Result<Vec<Run>, CatalogError> {
        self.read(|db| many(db, "SELECT id, settled, lease, ended FROM runs", &[], run_of))
    }
}
