//! The embedded engine. One thread writes, and commits what waits in one durable transaction; readers have connections
//! of their own.
//!
//! The statements are such as PostgreSQL and its relatives take too: keys are bytes, so that every engine sorts them
//! alike; no UPSERT, no stored procedures, no notifications.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use protocol::id::ChunkId;
use rusqlite::{Connection, OptionalExtension, Params, Transaction, TransactionBehavior, params};

use super::{Catalog, CatalogError, Change, Condition, Part, Refused, Row, Start, Upload};
use crate::record::{Kind, Record, VersionId};

/// Changes in one transaction at most.
const BATCH: usize = 256;
/// Connections for reading that are kept open.
const READERS: usize = 8;
/// How long a change of another process is waited for, milliseconds.
const BUSY_MS: u64 = 10_000;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS buckets (
  name TEXT NOT NULL PRIMARY KEY, manifest BLOB NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS versions (
  bucket TEXT NOT NULL, key BLOB NOT NULL, age BLOB NOT NULL, newest INTEGER NOT NULL, object INTEGER NOT NULL,
  plain INTEGER NOT NULL, manifest BLOB NOT NULL, record BLOB NOT NULL, PRIMARY KEY (bucket, key, age)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS newest ON versions (bucket, key) WHERE newest = 1;
CREATE TABLE IF NOT EXISTS uploads (
  id BLOB NOT NULL PRIMARY KEY, bucket TEXT NOT NULL, key BLOB NOT NULL, record BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS upload_keys ON uploads (bucket, key, id);
CREATE TABLE IF NOT EXISTS parts (
  upload BLOB NOT NULL, number INTEGER NOT NULL, size INTEGER NOT NULL, etag TEXT NOT NULL, micros INTEGER NOT NULL,
  checksums TEXT NOT NULL, entries BLOB NOT NULL, PRIMARY KEY (upload, number)) WITHOUT ROWID;
";

type Reply = SyncSender<Result<(), CatalogError>>;

/// A catalog in a file of SQLite.
#[derive(Debug)]
pub struct Sqlite {
    path: PathBuf,
    readers: Mutex<Vec<Connection>>,
    /// Taken when this is dropped, so that the writer ends.
    changes: Option<Sender<(Change, Reply)>>,
    writer: Option<JoinHandle<()>>,
}

impl From<rusqlite::Error> for CatalogError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error.to_string())
    }
}

fn broken(what: impl std::fmt::Display) -> CatalogError {
    CatalogError::Engine(what.to_string())
}

/// Versions newest first: the id turned round.
fn age(version: VersionId) -> [u8; 16] {
    (!version.0).to_be_bytes()
}

impl Sqlite {
    /// Opens the catalog in this file; makes one when there is none.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        let connection = connect(path)?;
        connection.execute_batch(TABLES)?;
        let (changes, queue) = channel();
        let writer = std::thread::Builder::new()
            .name("catalog".into())
            .spawn(move || write_loop(connection, &queue))
            .map_err(broken)?;
        Ok(Self { path: path.to_owned(), readers: Mutex::default(), changes: Some(changes), writer: Some(writer) })
    }

    /// Makes many changes, a batch in each transaction: for a catalog that nobody uses yet.
    ///
    /// # Errors
    /// When one of them may not be made, or the engine failed.
    pub fn change_all(&self, changes: impl Iterator<Item = Change>) -> Result<(), CatalogError> {
        let stopped = || broken("its writer has stopped");
        let sender = self.changes.as_ref().ok_or_else(stopped)?;
        let mut flight = std::collections::VecDeque::new();
        for change in changes {
            if flight.len() >= 2 * BATCH {
                land(&mut flight)?;
            }
            let (reply, answer) = sync_channel(1);
            sender.send((change, reply)).map_err(|_| stopped())?;
            flight.push_back(answer);
        }
        while !flight.is_empty() {
            land(&mut flight)?;
        }
        Ok(())
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = kept.map_or_else(|| connect(&self.path), Ok)?;
        let outcome = read(&connection);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS {
            readers.push(connection);
        }
        outcome
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.changes.take();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Waits for the oldest change.
fn land(flight: &mut std::collections::VecDeque<Receiver<Result<(), CatalogError>>>) -> Result<(), CatalogError> {
    let Some(answer) = flight.pop_front() else { return Ok(()) };
    answer.recv().map_err(|_| broken("its writer has stopped"))?
}

fn connect(path: &Path) -> Result<Connection, CatalogError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn write_loop(mut connection: Connection, queue: &Receiver<(Change, Reply)>) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH {
            let Ok(next) = queue.try_recv() else { break };
            batch.push(next);
        }
        match commit(&mut connection, &batch) {
            Ok(outcomes) => {
                for ((_, reply), outcome) in batch.iter().zip(outcomes) {
                    let _ = reply.send(outcome.map_err(CatalogError::Refused));
                }
            }
            Err(error) => batch.iter().for_each(|(_, reply)| drop(reply.send(Err(error.clone())))),
        }
    }
}

/// Makes all changes, or none when the engine fails. A refusal comes before anything was written for its change.
fn commit(connection: &mut Connection, batch: &[(Change, Reply)]) -> Result<Vec<Result<(), Refused>>, CatalogError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut outcomes = Vec::with_capacity(batch.len());
    for (change, _) in batch {
        outcomes.push(match apply(&transaction, change) {
            Ok(()) => Ok(()),
            Err(CatalogError::Refused(refused)) => Err(refused),
            Err(error) => return Err(error),
        });
    }
    transaction.commit()?;
    Ok(outcomes)
}

fn run(db: &Connection, sql: &str, with: impl Params) -> Result<usize, CatalogError> {
    Ok(db.prepare_cached(sql)?.execute(with)?)
}

fn exists(db: &Connection, sql: &str, with: impl Params) -> Result<bool, CatalogError> {
    Ok(db.prepare_cached(sql)?.exists(with)?)
}

fn apply(db: &Transaction<'_>, change: &Change) -> Result<(), CatalogError> {
    match change {
        Change::CreateBucket(row) => {
            if bucket(db, &row.record.bucket)?.is_some() {
                return Err(Refused::BucketExists.into());
            }
            let (manifest, record) = stored(row);
            run(
                db,
                "INSERT INTO buckets (name, manifest, record) VALUES (?1, ?2, ?3)",
                params![row.record.bucket, manifest, record],
            )?;
        }
        Change::SetBucket(row) => {
            let (manifest, record) = stored(row);
            let sql = "UPDATE buckets SET manifest = ?2, record = ?3 WHERE name = ?1";
            if run(db, sql, params![row.record.bucket, manifest, record])? == 0 {
                return Err(Refused::NoBucket.into());
            }
        }
        Change::DeleteBucket(name) => delete_bucket(db, name)?,
        Change::Put(row, condition) => put(db, row, condition)?,
        Change::Revise(row) => {
            let (manifest, record) = stored(row);
            let sql = "UPDATE versions SET manifest = ?4, record = ?5 WHERE bucket = ?1 AND key = ?2 AND age = ?3";
            let r = &row.record;
            if run(db, sql, params![r.bucket, r.key.as_bytes(), age(r.version), manifest, record])? == 0 {
                return Err(Refused::NoVersion.into());
            }
        }
        Change::Erase { bucket, key, version } => erase(db, bucket, key, *version)?,
        Change::StartUpload(upload) => start_upload(db, upload)?,
        Change::PutPart(upload, part) => put_part(db, *upload, part)?,
        Change::EndUpload(upload) => end_upload(db, *upload)?,
        Change::Complete(row, condition, upload) => {
            if self::upload(db, *upload)?.is_none() {
                return Err(Refused::NoUpload.into());
            }
            put(db, row, condition)?;
            end_upload(db, *upload)?;
        }
    }
    Ok(())
}

fn delete_bucket(db: &Transaction<'_>, name: &str) -> Result<(), CatalogError> {
    if bucket(db, name)?.is_none() {
        return Err(Refused::NoBucket.into());
    }
    if exists(db, "SELECT 1 FROM versions WHERE bucket = ?1 LIMIT 1", params![name])?
        || exists(db, "SELECT 1 FROM uploads WHERE bucket = ?1 LIMIT 1", params![name])?
    {
        return Err(Refused::NotEmpty.into());
    }
    run(db, "DELETE FROM buckets WHERE name = ?1", params![name])?;
    Ok(())
}

fn put(db: &Transaction<'_>, row: &Row, condition: &Condition) -> Result<(), CatalogError> {
    let record = &row.record;
    let (bucket_name, key) = (&record.bucket, record.key.as_bytes());
    if bucket(db, bucket_name)?.is_none() {
        return Err(Refused::NoBucket.into());
    }
    let newest = newest(db, bucket_name, key)?;
    let object = newest.as_ref().map(|row| &row.record).filter(|record| record.kind == Kind::Object);
    match (condition, object) {
        (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {}
        (Condition::Matches(etag), Some(object)) if object.etag == *etag => {}
        (Condition::Matches(_) | Condition::Present, None) => return Err(Refused::NoVersion.into()),
        (Condition::Absent | Condition::Matches(_), Some(_)) => return Err(Refused::Condition.into()),
    }
    if let Some(newest) = newest {
        if newest.record.version >= record.version {
            return Err(Refused::Stale(newest.record.version).into());
        }
        run(
            db,
            "UPDATE versions SET newest = 0 WHERE bucket = ?1 AND key = ?2 AND newest = 1",
            params![bucket_name, key],
        )?;
    }
    if record.null {
        run(db, "DELETE FROM versions WHERE bucket = ?1 AND key = ?2 AND plain = 1", params![bucket_name, key])?;
    }
    let (manifest, bytes) = stored(row);
    run(
        db,
        "INSERT INTO versions (bucket, key, age, newest, object, plain, manifest, record) \
         VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7)",
        params![
            bucket_name,
            key,
            age(record.version),
            i64::from(record.kind == Kind::Object),
            i64::from(record.null),
            manifest,
            bytes
        ],
    )?;
    Ok(())
}

fn erase(db: &Transaction<'_>, bucket: &str, key: &str, version: VersionId) -> Result<(), CatalogError> {
    let key = key.as_bytes();
    run(db, "DELETE FROM versions WHERE bucket = ?1 AND key = ?2 AND age = ?3", params![bucket, key, age(version)])?;
    if newest(db, bucket, key)?.is_none() {
        let sql = "SELECT age FROM versions WHERE bucket = ?1 AND key = ?2 ORDER BY age LIMIT 1";
        let next: Option<Vec<u8>> =
            db.prepare_cached(sql)?.query_row(params![bucket, key], |row| row.get(0)).optional()?;
        if let Some(next) = next {
            let sql = "UPDATE versions SET newest = 1 WHERE bucket = ?1 AND key = ?2 AND age = ?3";
            run(db, sql, params![bucket, key, next])?;
        }
    }
    Ok(())
}

fn start_upload(db: &Transaction<'_>, upload: &Upload) -> Result<(), CatalogError> {
    let record = &upload.record;
    if bucket(db, &record.bucket)?.is_none() {
        return Err(Refused::NoBucket.into());
    }
    run(
        db,
        "INSERT INTO uploads (id, bucket, key, record) VALUES (?1, ?2, ?3, ?4)",
        params![upload.id.0.to_be_bytes(), record.bucket, record.key.as_bytes(), record.encode()],
    )?;
    Ok(())
}

fn put_part(db: &Transaction<'_>, id: VersionId, part: &Part) -> Result<(), CatalogError> {
    if upload(db, id)?.is_none() {
        return Err(Refused::NoUpload.into());
    }
    let id = id.0.to_be_bytes();
    run(db, "DELETE FROM parts WHERE upload = ?1 AND number = ?2", params![id, part.number])?;
    run(
        db,
        "INSERT INTO parts (upload, number, size, etag, micros, checksums, entries) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![id, part.number, part.size as i64, part.etag, part.micros as i64, part.checksums, part.entries],
    )?;
    Ok(())
}

fn end_upload(db: &Transaction<'_>, id: VersionId) -> Result<(), CatalogError> {
    let id = id.0.to_be_bytes();
    run(db, "DELETE FROM parts WHERE upload = ?1", params![id])?;
    if run(db, "DELETE FROM uploads WHERE id = ?1", params![id])? == 0 {
        return Err(Refused::NoUpload.into());
    }
    Ok(())
}

fn stored(row: &Row) -> ([u8; ChunkId::LEN], Vec<u8>) {
    (row.manifest.encode(), row.record.clone().row().encode())
}

/// A row from the columns `manifest` and `record`, which are the first.
fn row_of(columns: &rusqlite::Row<'_>) -> Result<Row, CatalogError> {
    let (manifest, record): ([u8; ChunkId::LEN], Vec<u8>) = (columns.get(0)?, columns.get(1)?);
    Ok(Row {
        record: Record::decode(&record).map_err(broken)?,
        manifest: ChunkId::decode(&manifest).ok_or_else(|| broken("an impossible chunk id"))?,
    })
}

fn one(db: &Connection, sql: &str, with: impl Params) -> Result<Option<Row>, CatalogError> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(with)?;
    rows.next()?.map(row_of).transpose()
}

fn many<T>(
    db: &Connection,
    sql: &str,
    with: impl Params,
    each: impl Fn(&rusqlite::Row<'_>) -> Result<T, CatalogError>,
) -> Result<Vec<T>, CatalogError> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(with)?;
    let mut all = vec![];
    while let Some(columns) = rows.next()? {
        all.push(each(columns)?);
    }
    Ok(all)
}

fn bucket(db: &Connection, name: &str) -> Result<Option<Row>, CatalogError> {
    one(db, "SELECT manifest, record FROM buckets WHERE name = ?1", params![name])
}

fn newest(db: &Connection, bucket: &str, key: &[u8]) -> Result<Option<Row>, CatalogError> {
    let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND newest = 1";
    one(db, sql, params![bucket, key])
}

fn upload_of(columns: &rusqlite::Row<'_>) -> Result<Upload, CatalogError> {
    let (id, record): ([u8; 16], Vec<u8>) = (columns.get(0)?, columns.get(1)?);
    Ok(Upload { id: VersionId(u128::from_be_bytes(id)), record: Record::decode(&record).map_err(broken)? })
}

fn upload(db: &Connection, id: VersionId) -> Result<Option<Upload>, CatalogError> {
    let sql = "SELECT id, record FROM uploads WHERE id = ?1";
    Ok(many(db, sql, params![id.0.to_be_bytes()], upload_of)?.pop())
}

fn part_of(columns: &rusqlite::Row<'_>) -> Result<Part, CatalogError> {
    Ok(Part {
        number: columns.get(0)?,
        size: columns.get::<_, i64>(1)? as u64,
        etag: columns.get(2)?,
        micros: columns.get::<_, i64>(3)? as u64,
        checksums: columns.get(4)?,
        entries: columns.get(5)?,
    })
}

/// A page's limit as the engine takes it.
fn page(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Catalog for Sqlite {
    fn change(&self, change: Change) -> Result<(), CatalogError> {
        let (reply, answer) = sync_channel(1);
        let stopped = || broken("its writer has stopped");
        self.changes.as_ref().ok_or_else(stopped)?.send((change, reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }

    fn bucket(&self, name: &str) -> Result<Option<Row>, CatalogError> {
        self.read(|db| bucket(db, name))
    }

    fn buckets(&self) -> Result<Vec<Row>, CatalogError> {
        self.read(|db| many(db, "SELECT manifest, record FROM buckets ORDER BY name", [], row_of))
    }

    fn newest(&self, bucket: &str, key: &str) -> Result<Option<Row>, CatalogError> {
        self.read(|db| newest(db, bucket, key.as_bytes()))
    }

    fn version(&self, bucket: &str, key: &str, version: Option<VersionId>) -> Result<Option<Row>, CatalogError> {
        let key = key.as_bytes();
        self.read(|db| match version {
            Some(version) => {
                let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND age = ?3";
                Ok(one(db, sql, params![bucket, key, age(version)])?.filter(|row| !row.record.null))
            }
            None => {
                let sql = "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key = ?2 AND plain = 1";
                one(db, sql, params![bucket, key])
            }
        })
    }

    fn objects(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Row>, CatalogError> {
        let (key, compare) = match from {
            Start::Key(key) => (key, ">="),
            Start::After(key) | Start::Version(key, _) => (key, ">"),
        };
        let sql = format!(
            "SELECT manifest, record FROM versions WHERE bucket = ?1 AND key {compare} ?2 AND newest = 1 \
             AND object = 1 ORDER BY key LIMIT ?3"
        );
        self.read(|db| many(db, &sql, params![bucket, key, page(limit)], row_of))
    }

    fn versions(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<(Row, bool)>, CatalogError> {
        let with_newest = |columns: &rusqlite::Row<'_>| Ok((row_of(columns)?, columns.get::<_, i64>(2)? == 1));
        let page_after = |compare: &str, key: &[u8], limit: usize| {
            let sql = format!(
                "SELECT manifest, record, newest FROM versions WHERE bucket = ?1 AND key {compare} ?2 \
                 ORDER BY key, age LIMIT ?3"
            );
            self.read(|db| many(db, &sql, params![bucket, key, page(limit)], with_newest))
        };
        match from {
            Start::Key(key) => page_after(">=", key, limit),
            Start::After(key) => page_after(">", key, limit),
            Start::Version(key, version) => {
                let sql = "SELECT manifest, record, newest FROM versions WHERE bucket = ?1 AND key = ?2 AND age > ?3 \
                           ORDER BY age LIMIT ?4";
                let with = params![bucket, key, age(*version), page(limit)];
                let mut rows = self.read(|db| many(db, sql, with, with_newest))?;
                if rows.len() < limit {
                    rows.extend(page_after(">", key, limit - rows.len())?);
                }
                Ok(rows)
            }
        }
    }

    fn upload(&self, id: VersionId) -> Result<Option<Upload>, CatalogError> {
        self.read(|db| upload(db, id))
    }

    fn uploads(&self, bucket: &str, from: &Start, limit: usize) -> Result<Vec<Upload>, CatalogError> {
        let (key, compare) = match from {
            Start::Key(key) => (key, ">="),
            Start::After(key) | Start::Version(key, _) => (key, ">"),
        };
        let sql =
            format!("SELECT id, record FROM uploads WHERE bucket = ?1 AND key {compare} ?2 ORDER BY key, id LIMIT ?3");
        let mut found = vec![];
        if let Start::Version(key, id) = from {
            let sql = "SELECT id, record FROM uploads WHERE bucket = ?1 AND key = ?2 AND id > ?3 ORDER BY id LIMIT ?4";
            let with = params![bucket, key, id.0.to_be_bytes(), page(limit)];
            found = self.read(|db| many(db, sql, with, upload_of))?;
        }
        let left = limit - found.len();
        if left > 0 {
            found.extend(self.read(|db| many(db, &sql, params![bucket, key, page(left)], upload_of))?);
        }
        Ok(found)
    }

    fn parts(&self, upload: VersionId, after: u32, limit: usize) -> Result<Vec<Part>, CatalogError> {
        let sql = "SELECT number, size, etag, micros, checksums, x'' FROM parts WHERE upload = ?1 AND number > ?2 \
                   ORDER BY number LIMIT ?3";
        self.read(|db| many(db, sql, params![upload.0.to_be_bytes(), after, page(limit)], part_of))
    }

    fn part(&self, upload: VersionId, number: u32) -> Result<Option<Part>, CatalogError> {
        let sql = "SELECT number, size, etag, micros, checksums, entries FROM parts WHERE upload = ?1 AND number = ?2";
        Ok(self.read(|db| many(db, sql, params![upload.0.to_be_bytes(), number], part_of))?.pop())
    }
}
