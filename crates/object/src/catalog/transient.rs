//! A catalog in memory, which ends with its process: the statements of the embedded engine, without its file.

use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::sql::{Engine, LATER, TABLES, apply};
use super::sqlite::keep_statements;
use super::{CatalogError, Change};
use crate::bug::Bug;

/// A catalog of one connection, which is used by one thread at a time.
#[derive(Debug)]
pub struct Transient {
    connection: Mutex<Connection>,
    bug: Option<Bug>,
}

impl Transient {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> Result<Self, CatalogError> {
        let connection = Connection::open_in_memory()?;
        keep_statements(&connection)?;
        TABLES.iter().chain(&LATER).try_for_each(|sql| connection.execute_batch(sql))?;
        Ok(Self { connection: Mutex::new(connection), bug: None })
    }

    /// The same with a planted defect.
    #[must_use]
    pub fn planted(self, bug: Option<Bug>) -> Self {
        Self { bug, ..self }
    }
}

impl Engine for Transient {
    type Db<'a> = &'a Connection;

    fn write(&self, change: Change) -> Result<(), CatalogError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let transaction = connection.transaction()?;
        let trusts = self.bug == Some(Bug::TrustEnded);
        if trusts {
            // Only 1 counts as ended.
            transaction.execute("UPDATE runs SET ended = 2 WHERE ended = 1", [])?;
        }
        apply(&mut &*transaction, &change)?;
        if trusts {
            transaction.execute("UPDATE runs SET ended = 1 WHERE ended = 2", [])?;
        }
        Ok(transaction.commit()?)
    }

    fn read<T>(&self, read: impl Fn(&mut &Connection) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        read(&mut &*self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
