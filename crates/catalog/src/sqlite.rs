//! The embedded engine. One thread writes. It commits all changes that wait in one durable transaction. Readers have
//! connections of their own.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, TransactionBehavior, params_from_iter};

use crate::sql::{ADDED_TABLES, Columns, Db, Each, Engine, FORMAT, TABLES, Value, amend, apply, broken};
use crate::{Amends, CatalogError, Change, Refused};

/// Changes in one transaction at most.
const BATCH: usize = 256;
/// Connections for reading that are kept open.
const READERS: usize = 8;
/// How long a change of another process is waited for, milliseconds.
const BUSY_MS: u64 = 10_000;

/// Where SQLite keeps the format of an application's tables.
const FORMAT_PRAGMA: &str = "user_version";

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
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            _ => Self::Engine(error.to_string()),
        }
    }
}

impl Sqlite {
    /// Opens the catalog in this file, or makes one when there is none. Checks the whole file first, as damage could hide rows
    /// later without an error.
    ///
    /// # Errors
    /// When the file cannot be used, is damaged, or has a format that this program does not know.
    pub fn open(path: &Path) -> Result<Self, CatalogError> {
        // Names of objects are not for every user of this machine. The files beside it get the same mode.
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(broken)?;
        let connection = connect(path)?;
        check_format(&connection)?;
        check_integrity(&connection)?;
        make_tables(&connection)?;
        let (changes, queue) = channel();
        let writer = std::thread::Builder::new()
            .name("catalog".into())
            .spawn(move || write_loop(connection, &queue))
            .map_err(broken)?;
        Ok(Self { path: path.to_owned(), readers: Mutex::default(), changes: Some(changes), writer: Some(writer) })
    }

    /// Makes the catalog say this, in one transaction.
    ///
    /// # Errors
    /// When the engine failed. Then everything stays as it was.
    pub fn amend(&self, amends: &Amends) -> Result<(), CatalogError> {
        let mut connection = connect(&self.path)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        amend(&mut &*transaction, amends)?;
        Ok(transaction.commit()?)
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
                wait_for_oldest(&mut flight)?;
            }
            let (reply, answer) = sync_channel(1);
            sender.send((change, reply)).map_err(|_| stopped())?;
            flight.push_back(answer);
        }
        while !flight.is_empty() {
            wait_for_oldest(&mut flight)?;
        }
        Ok(())
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

/// Waits for the oldest change in flight.
fn wait_for_oldest(
    flight: &mut std::collections::VecDeque<Receiver<Result<(), CatalogError>>>,
) -> Result<(), CatalogError> {
    let Some(answer) = flight.pop_front() else { return Ok(()) };
    answer.recv().map_err(|_| broken("its writer has stopped"))?
}

/// The format of the tables; 0 when there are none, or when they were made before the format had a number.
fn format_of(connection: &Connection) -> Result<i64, CatalogError> {
    Ok(connection.pragma_query_value(None, FORMAT_PRAGMA, |row| row.get(0))?)
}

/// Refuses a catalog that a newer program made.
fn check_format(connection: &Connection) -> Result<(), CatalogError> {
    match format_of(connection)? {
        0..=FORMAT => Ok(()),
        format => Err(CatalogError::Unavailable(format!(
            "has format {format}, and this program knows up to {FORMAT}: use a newer reservoir"
        ))),
    }
}

/// Makes the tables that are missing, and writes their format down.
pub(crate) fn make_tables(connection: &Connection) -> Result<(), CatalogError> {
    TABLES.iter().chain(&ADDED_TABLES).try_for_each(|sql| connection.execute_batch(sql))?;
    // Only where it is another: to write it waits for whoever else writes.
    if format_of(connection)? != FORMAT {
        connection.pragma_update(None, FORMAT_PRAGMA, FORMAT)?;
    }
    Ok(())
}

/// Has SQLite check its file: the pages, the order of the rows, and whether the indexes name all of them.
fn check_integrity(connection: &Connection) -> Result<(), CatalogError> {
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if found == "ok" { Ok(()) } else { Err(CatalogError::Damaged(found.replace('\n', ": "))) }
}

fn connect(path: &Path) -> Result<Connection, CatalogError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS))?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Statements are parsed once. Their plans do not depend on parameters: otherwise each list would be parsed again for its limit.
pub(crate) fn keep_statements(connection: &Connection) -> Result<(), CatalogError> {
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
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
        outcomes.push(match apply(&mut &*transaction, change) {
            Ok(()) => Ok(()),
            Err(CatalogError::Refused(refused)) => Err(refused),
            Err(error) => return Err(error),
        });
    }
    transaction.commit()?;
    Ok(outcomes)
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Self::Int(number) => ValueRef::Integer(number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl Columns for rusqlite::Row<'_> {
    fn int(&self, at: usize) -> Result<i64, CatalogError> {
        Ok(self.get(at)?)
    }

    fn text(&self, at: usize) -> Result<String, CatalogError> {
        Ok(self.get(at)?)
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, CatalogError> {
        Ok(self.get(at)?)
    }
}

impl Db for &Connection {
    // A writer has the whole file.
    const HOLD: &'static str = "";
    const OWN: &'static str = "";
    const BY_PRESENT: &'static str = " INDEXED BY present";

    fn run(&mut self, sql: &str, with: &[Value<'_>]) -> Result<u64, CatalogError> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(with))? as u64)
    }

    fn rows(&mut self, sql: &str, with: &[Value<'_>], each: Each<'_>) -> Result<(), CatalogError> {
        let mut statement = self.prepare_cached(sql)?;
        let mut rows = statement.query(params_from_iter(with))?;
        while let Some(row) = rows.next()? {
            each(row)?;
        }
        Ok(())
    }
}

impl Engine for Sqlite {
    type Db<'a> = &'a Connection;

    fn write(&self, change: Change) -> Result<(), CatalogError> {
        let (reply, answer) = sync_channel(1);
        let stopped = || broken("its writer has stopped");
        self.changes.as_ref().ok_or_else(stopped)?.send((change, reply)).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }

    fn read<T>(&self, read: impl Fn(&mut &Connection) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = kept.map_or_else(|| connect(&self.path), Ok)?;
        let outcome = read(&mut &connection);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < READERS {
            readers.push(connection);
        }
        outcome
    }
}
