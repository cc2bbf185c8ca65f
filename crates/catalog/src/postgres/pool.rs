//! A few connections, what is done again on them, and when that ends.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::postgres::error::SqlState;
use ::postgres::types::ToSql;
use ::postgres::{Client, Row, Statement};

use super::{Address, PATIENCE};
use crate::CatalogError;
use crate::sql::{Columns, Db, Each, Value, broken};

/// Connections of one gateway.
const CONNECTIONS: usize = 16;
/// Statements that are kept prepared on a connection.
const STATEMENTS: usize = 64;
/// The longest rest before something is tried again, after another's change was in the way, or the connection was lost.
const REST: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));

/// What became of a transaction and its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fate {
    /// An error would come again.
    #[default]
    Final,
    /// It had no effect, and may succeed when it is done again.
    Again,
    /// It had no effect; the connection is of no use any more, another one may be.
    Lost,
    /// The connection is of no use any more, and whether the transaction had its effect is not known.
    Unknown,
}

/// What an error means to a transaction whose commit was not asked for.
pub(crate) fn fate_of(error: &::postgres::Error) -> Fate {
    let Some(code) = error.code() else { return Fate::Lost };
    match *code {
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::UNIQUE_VIOLATION => {
            Fate::Again
        }
        // Two make one table at once.
        SqlState::DUPLICATE_TABLE | SqlState::DUPLICATE_OBJECT => Fate::Again,
        // A server that became a standby, and tables that were altered.
        SqlState::READ_ONLY_SQL_TRANSACTION | SqlState::FEATURE_NOT_SUPPORTED | SqlState::TOO_MANY_CONNECTIONS => {
            Fate::Lost
        }
        // Connections that break, transactions that stood still, and servers that stop or start.
        _ if ["08", "25P", "57P"].iter().any(|class| code.code().starts_with(class)) => Fate::Lost,
        _ => Fate::Final,
    }
}

/// An error in one line.
pub(crate) fn words(error: &::postgres::Error) -> String {
    let words = match error.as_db_error() {
        Some(words) => words.message().to_owned(),
        None => match std::error::Error::source(error) {
            Some(cause) => cause.to_string(),
            None => error.to_string(),
        },
    };
    words.replace('\n', " ")
}

/// A connection with its prepared statements.
pub(crate) struct Session {
    client: Client,
    statements: BTreeMap<String, Statement>,
    fate: Fate,
    /// It does not return to the pool.
    forgotten: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("fate", &self.fate).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, statements: BTreeMap::new(), fate: Fate::Final, forgotten: false }
    }

    fn fail(&mut self, error: &::postgres::Error) -> CatalogError {
        self.fate = fate_of(error);
        broken(words(error))
    }

    /// Runs statements without parameters.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<(), CatalogError> {
        self.client.batch_execute(sql).map_err(|error| self.fail(&error))
    }

    /// Runs a statement; how many rows it changed.
    pub(crate) fn change(&mut self, sql: &str, with: &[Value<'_>]) -> Result<u64, CatalogError> {
        let done = self.prepared(sql).and_then(|statement| self.client.execute(&statement, &parameters(with)));
        done.map_err(|error| self.fail(&error))
    }

    /// The first row of a SELECT.
    pub(crate) fn first(&mut self, sql: &str) -> Result<Option<Row>, CatalogError> {
        let rows = self.client.query(sql, &[]).map_err(|error| self.fail(&error))?;
        Ok(rows.into_iter().next())
    }

    /// The first column of a SELECT, of numbers.
    pub(crate) fn numbers(&mut self, sql: &str, with: &[Value<'_>]) -> Result<Vec<i64>, CatalogError> {
        let rows = self.prepared(sql).and_then(|statement| self.client.query(&statement, &parameters(with)));
        let rows = rows.map_err(|error| self.fail(&error))?;
        Ok(rows.into_iter().map(|row| row.get(0)).collect())
    }

    /// The first column of a SELECT.
    pub(crate) fn texts(&mut self, sql: &str) -> Result<Vec<String>, CatalogError> {
        let rows = self.client.query(sql, &[]).map_err(|error| self.fail(&error))?;
        Ok(rows.into_iter().map(|row| row.get(0)).collect())
    }

    /// Does `work` in a transaction. Each of its statements sees what was committed before; `sql.rs` says why that is
    /// enough.
    pub(crate) fn transaction(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")?;
        match work(self) {
            Ok(()) => self.commit(),
            Err(error) => {
                // Where that fails, the server ends the transaction with its connection.
                self.forgotten = self.fate == Fate::Lost || self.client.batch_execute("ROLLBACK").is_err();
                Err(error)
            }
        }
    }

    fn commit(&mut self) -> Result<(), CatalogError> {
        self.client.batch_execute("COMMIT").map_err(|error| {
            self.fate = match fate_of(&error) {
                // The server says that it did not.
                Fate::Again => Fate::Again,
                _ => Fate::Unknown,
            };
            broken(words(&error))
        })
    }

    fn prepared(&mut self, sql: &str) -> Result<Statement, ::postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&sql.replace('?', "$"))?;
        if self.statements.len() >= STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }
}

fn parameters<'a>(with: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    let one = |value: &'a Value<'a>| -> &'a (dyn ToSql + Sync) {
        match value {
            Value::Int(number) => number,
            Value::Text(text) => text,
            Value::Bytes(bytes) => bytes,
        }
    };
    with.iter().map(one).collect()
}

impl Columns for Row {
    fn int(&self, at: usize) -> Result<i64, CatalogError> {
        self.try_get(at).map_err(|error| broken(words(&error)))
    }

    fn text(&self, at: usize) -> Result<String, CatalogError> {
        self.try_get(at).map_err(|error| broken(words(&error)))
    }

    fn bytes(&self, at: usize) -> Result<Vec<u8>, CatalogError> {
        self.try_get(at).map_err(|error| broken(words(&error)))
    }
}

impl Db for Session {
    const HOLD: &'static str = " FOR KEY SHARE";
    const OWN: &'static str = " FOR UPDATE";
    const BY_PRESENT: &'static str = "";

    fn run(&mut self, sql: &str, with: &[Value<'_>]) -> Result<u64, CatalogError> {
        self.change(sql, with)
    }

    fn rows(&mut self, sql: &str, with: &[Value<'_>], each: Each<'_>) -> Result<(), CatalogError> {
        let rows = self.prepared(sql).and_then(|statement| self.client.query(&statement, &parameters(with)));
        let rows = rows.map_err(|error| self.fail(&error))?;
        rows.iter().try_for_each(|row| each(row))
    }
}

/// Connections that are free, and how many there are.
#[derive(Debug, Default)]
struct Free {
    idle: Vec<Session>,
    open: usize,
}

/// The connections of a gateway.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) address: Address,
    free: Mutex<Free>,
    freed: Condvar,
}

impl Pool {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, free: Mutex::default(), freed: Condvar::new() }
    }

    /// Does `work` on a connection, again where that helps.
    pub(crate) fn attempt<T>(&self, work: impl Fn(&mut Session) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        let (session, done) = self.keep(work)?;
        self.give_back(session);
        Ok(done)
    }

    /// As [`Pool::attempt`], and the connection as well.
    pub(crate) fn keep<T>(
        &self,
        work: impl Fn(&mut Session) -> Result<T, CatalogError>,
    ) -> Result<(Session, T), CatalogError> {
        let deadline = Instant::now() + PATIENCE;
        for round in 0_u32.. {
            let (error, fate) = match self.take(deadline) {
                Err((error, fate)) => (error, fate),
                Ok(mut session) => {
                    session.fate = Fate::Final;
                    let done = work(&mut session);
                    let fate = session.fate;
                    let error = match done {
                        Ok(done) => return Ok((session, done)),
                        Err(error) => self.failure(error, fate),
                    };
                    if matches!(fate, Fate::Lost | Fate::Unknown) {
                        session.forgotten = true;
                        self.drop_idle();
                    }
                    self.give_back(session);
                    (error, fate)
                }
            };
            let rest = match fate {
                Fate::Final | Fate::Unknown => return Err(error),
                _ if Instant::now() >= deadline => return Err(error),
                Fate::Again => REST.0,
                Fate::Lost => REST.1,
            };
            self.rest(round, rest);
        }
        Err(self.address.failed("is tried no more"))
    }

    fn failure(&self, error: CatalogError, fate: Fate) -> CatalogError {
        match (error, fate) {
            (CatalogError::Engine(why), Fate::Unknown) => self.address.failed(format!(
                "broke off while a change was made ({why}): it may have been made or not; see that the database runs"
            )),
            (CatalogError::Engine(why), _) => {
                self.address.failed(format!("failed: {why}: look at the database's log and at its disk"))
            }
            (other, _) => other,
        }
    }

    /// Waits before something is tried again: longer each time, and never as long as others that wait.
    fn rest(&self, round: u32, most: Duration) {
        let most = most.min(Duration::from_millis(1 << round.min(10)));
        let share = getrandom::u32().unwrap_or_default() % 1_024;
        std::thread::sleep(most * (share + 1) / 1_024);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, deadline: Instant) -> Result<Session, (CatalogError, Fate)> {
        let mut free = self.lock();
        loop {
            if let Some(session) = free.idle.pop() {
                return Ok(session);
            }
            if free.open < CONNECTIONS {
                free.open += 1;
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = format!("answers too slowly: all {CONNECTIONS} connections are in use");
                return Err((self.address.failed(why), Fate::Final));
            }
            free = self.freed.wait_timeout(free, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(free);
        self.address.connect().inspect_err(|_| self.close_one())
    }

    fn give_back(&self, session: Session) {
        if session.forgotten {
            drop(session);
            return self.close_one();
        }
        self.lock().idle.push(session);
        self.freed.notify_one();
    }

    fn close_one(&self) {
        self.lock().open -= 1;
        self.freed.notify_one();
    }

    /// Closes what waits for work: a server that was lost for one connection was lost for all.
    fn drop_idle(&self) {
        let idle = {
            let mut free = self.lock();
            free.open -= free.idle.len();
            std::mem::take(&mut free.idle)
        };
        drop(idle);
        self.freed.notify_all();
    }
}
