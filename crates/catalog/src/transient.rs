//! A catalog in memory, which ends with its process: the statements of the embedded engine, without its file.

use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use crate::sql::{Engine, apply};
use crate::sqlite::{keep_statements, make_tables};
use crate::{CatalogError, Change};

/// A catalog of one connection, which is used by one thread at a time.
#[derive(Debug)]
pub struct Transient {
    connection: Mutex<Connection>,
    trusts_ended_runs: bool,
}

impl Transient {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> Result<Self, CatalogError> {
        let connection = Connection::open_in_memory()?;
        keep_statements(&connection)?;
        make_tables(&connection)?;
        Ok(Self { connection: Mutex::new(connection), trusts_ended_runs: false })
    }

    /// The same with a defect, if that is wished: it takes changes of runs that have ended. For proof that checkers notice.
    #[must_use]
    pub fn trusting_ended_runs(self, trusts_ended_runs: bool) -> Self {
        Self { trusts_ended_runs, ..self }
    }
}

impl Engine for Transient {
    type Db<'a> = &'a Connection;

    fn write(&self, change: Change) -> Result<(), CatalogError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction()?;
        if self.trusts_ended_runs {
            // Only 1 counts as ended.
            transaction.execute("UPDATE runs SET ended = 2 WHERE ended = 1", [])?;
        }
        apply(&mut &*transaction, &change)?;
        if self.trusts_ended_runs {
            transaction.execute("UPDATE runs SET ended = 1 WHERE ended = 2", [])?;
        }
        Ok(transaction.commit()?)
    }

    fn read<T>(&self, read: impl Fn(&mut &Connection) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        read(&mut &*self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
