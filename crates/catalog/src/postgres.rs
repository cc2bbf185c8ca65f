//! The engine for several gateways: PostgreSQL, or a database that speaks as it does.
//!
//! Each change is a transaction of its own on one of a few connections. What another gateway's change was in the way of
//! (a failed serialization, a deadlock, a unique key) is done again, and so is what a lost connection interrupted before
//! the commit was asked for. What became of a commit that was not answered nobody knows: that is an error.

mod maps;
mod pool;
mod tls;

use std::collections::BTreeSet;
use std::time::Duration;

use ::postgres::config::{Host, TargetSessionAttrs};
use ::postgres::error::SqlState;
use ::postgres::{Client, Config};

pub use self::maps::DecidedMap;
use self::pool::{Fate, Pool, Session, fate_of};
use self::tls::Tls;
use crate::sql::{ADDED_TABLES, Engine, FORMAT, TABLES, Value, amend, apply};
use crate::{Amends, CatalogError, Change};

/// Statements of a session that has just begun. A gateway that stands still must not keep others waiting for ever.
const BEGIN_SESSION: &str = "SET statement_timeout = 10000; SET idle_in_transaction_session_timeout = 10000";
/// The same for one that makes the whole catalog again, which takes as long as it takes.
const BEGIN_LONG: &str = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0";
/// How long a connection may take to be made, and how long sent bytes may stay unacknowledged.
const NETWORK: Duration = Duration::from_secs(5);
/// How long a change or a question is tried before it fails.
const PATIENCE: Duration = Duration::from_secs(15);

/// Says that the tables are complete, of which format they are, and of which cluster. It is made last.
const MARK: &str = "CREATE TABLE IF NOT EXISTS reservoir (
  one BIGINT NOT NULL PRIMARY KEY, format BIGINT NOT NULL, cluster TEXT NOT NULL)";

/// A catalog in a database of PostgreSQL that several gateways use.
#[derive(Debug)]
pub struct Postgres {
    pool: Pool,
}

/// How to make connections.
#[derive(Debug)]
struct Address {
    config: Config,
    tls: Tls,
    /// For messages: without the password.
    display: String,
}

impl Address {
    fn parse(url: &str, password: Option<&str>) -> Result<Self, CatalogError> {
        let unusable =
            || CatalogError::Unavailable("has no usable address: write postgres://USER@HOST/DATABASE".into());
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(unusable());
        }
        let (url, plan) = tls::take(url).map_err(CatalogError::Unavailable)?;
        // What is wrong is not repeated: it may be a part of the password.
        let mut config: Config = url.parse().map_err(|_| unusable())?;
        if let (None, Some(password)) = (config.get_password(), password) {
            config.password(password);
        }
        config.application_name("reservoir").connect_timeout(NETWORK).tcp_user_timeout(NETWORK);
        config.keepalives_idle(NETWORK).target_session_attrs(TargetSessionAttrs::ReadWrite);
        let tls = plan.apply(&mut config);
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => return Err(unusable()),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
        let display = format!("postgres://{}@{host}:{port}/{name}", config.get_user().unwrap_or_default());
        Ok(Self { config, tls, display })
    }

    /// A new session, or what is wrong and whether that may pass.
    fn connect(&self) -> Result<Session, (CatalogError, Fate)> {
        let begun = self.config.connect(self.tls.connector()).and_then(|mut client: Client| {
            client.batch_execute(BEGIN_SESSION)?;
            Ok(client)
        });
        begun.map(Session::new).map_err(|error| {
            let words = pool::words(&error);
            // A certificate does not become another one while somebody waits.
            let fate = if distrusted(&words) || unencrypted(&words) { Fate::Final } else { fate_of(&error) };
            (self.refused(&error, &words), fate)
        })
    }

    fn refused(&self, error: &::postgres::Error, words: &str) -> CatalogError {
        let advice = match error.code() {
            None if unencrypted(words) => "set ssl = on there, or sslmode=disable in the address",
            None if distrusted(words) => {
                "name the certificate of its authority in sslrootcert, and its host as that certificate does"
            }
            Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) if words.contains("no encryption") => {
                "set sslmode=require in the address"
            }
            Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                "correct the user, or give the password in PGPASSWORD"
            }
            Some(&SqlState::INVALID_CATALOG_NAME) => "make the database with `createdb`",
            Some(&SqlState::TOO_MANY_CONNECTIONS) => "raise its max_connections",
            Some(&SqlState::INSUFFICIENT_PRIVILEGE) => "make its user the owner of the database",
            _ => "see that it runs and that this machine may connect to it",
        };
        CatalogError::Unavailable(format!("in {} cannot be used: {words}: {advice}", self.display))
    }

    fn failed(&self, what: impl std::fmt::Display) -> CatalogError {
        CatalogError::Unavailable(format!("in {} {what}", self.display))
    }
}

/// Whether these words say that the server's certificate is not the one that the address asks for.
fn distrusted(words: &str) -> bool {
    words.contains("invalid peer certificate")
}

/// Whether these words say that the server encrypts no connections.
fn unencrypted(words: &str) -> bool {
    words.contains("server does not support TLS")
}

impl Postgres {
    /// Opens the catalog of `cluster` in the database at `url`; makes its tables when there are none. `password` counts
    /// when the address has none.
    ///
    /// # Errors
    /// When the database cannot be used, or is another cluster's.
    pub fn open(url: &str, password: Option<&str>, cluster: &str) -> Result<Self, CatalogError> {
        let this = Self { pool: Pool::new(Address::parse(url, password)?) };
        let durable = this.pool.attempt(|session| session.texts("SHOW synchronous_commit"))?;
        if durable.iter().any(|how| how == "off") {
            let why = "would lose what was acknowledged: set synchronous_commit = on for its database";
            return Err(this.pool.address.failed(why));
        }
        let types = |sql: &str| sql.replace("BLOB", "BYTEA").replace("INTEGER", "BIGINT").replace(" WITHOUT ROWID", "");
        if this.mark()?.is_some() {
            for sql in ADDED_TABLES.into_iter().chain([maps::TABLE]) {
                this.pool.attempt(|session| session.execute(&types(sql)))?;
            }
        } else {
            for sql in TABLES.into_iter().chain(ADDED_TABLES).chain([maps::TABLE, MARK]) {
                // Another gateway may make it at the same moment: then this is tried again, and finds it.
                this.pool.attempt(|session| session.execute(&types(sql)))?;
            }
            // Of several that do this at once the first names the cluster.
            let sql = "INSERT INTO reservoir (one, format, cluster) SELECT 1, CAST(?1 AS BIGINT), CAST(?2 AS TEXT) \
                       WHERE NOT EXISTS (SELECT one FROM reservoir)";
            this.pool.attempt(|session| session.change(sql, &[Value::Int(FORMAT), Value::Text(cluster)]).map(drop))?;
        }
        let address = &this.pool.address;
        match this.mark()? {
            Some((FORMAT, name)) if name == cluster => Ok(this),
            Some((FORMAT, name)) => {
                Err(address.failed(format!("is that of cluster {name:?}: give each cluster a database of its own")))
            }
            Some((format, _)) => {
                Err(address.failed(format!("has format {format}, and this program knows {FORMAT}: update it")))
            }
            None => Err(address.failed("has tables of something else: give it a database of its own")),
        }
    }

    /// The format and the cluster; `None` while there are no tables.
    fn mark(&self) -> Result<Option<(i64, String)>, CatalogError> {
        self.pool.attempt(|session| {
            let sql = "SELECT 1 FROM information_schema.tables \
                       WHERE table_name = 'reservoir' AND table_schema = current_schema()";
            if session.first(sql)?.is_none() {
                return Ok(None);
            }
            let row = session.first("SELECT format, cluster FROM reservoir WHERE one = 1")?;
            Ok(row.map(|row| (row.get(0), row.get(1))))
        })
    }

    /// Keeps every gateway from changing any bucket, until the catalog was amended or this is dropped.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub fn hold(&self) -> Result<Hold, CatalogError> {
        let (session, buckets) = self.pool.keep(|session| {
            session.execute(BEGIN_LONG)?;
            session.execute("BEGIN ISOLATION LEVEL READ COMMITTED")?;
            session.texts("SELECT name FROM buckets FOR UPDATE")
        })?;
        Ok(Hold { session, buckets })
    }
}

/// The catalog while it is amended or made again: nobody else changes a bucket that is in it.
#[derive(Debug)]
pub struct Hold {
    /// Its transaction ends with the connection, without effect, when this is dropped.
    session: Session,
    buckets: Vec<String>,
}

impl Hold {
    /// Makes the catalog say this; `anew` in the place of all that was in it. A bucket that was made meanwhile stays with what
    /// is in it.
    ///
    /// # Errors
    /// When the database failed. Then everything stays as it was.
    pub fn amend(mut self, mut amends: Amends, anew: bool) -> Result<(), CatalogError> {
        amends.buckets.retain(|(name, row)| row.is_some() || self.buckets.contains(name));
        let made: BTreeSet<&String> = amends.buckets.iter().map(|(name, _)| name).chain(&self.buckets).collect();
        amends.keys.retain(|(bucket, ..)| made.contains(bucket));
        let session = &mut self.session;
        if anew {
            for name in &self.buckets {
                session.change("DELETE FROM buckets WHERE name = ?1", &[Value::Text(name)])?;
            }
            for table in ["versions", "uploads", "removed"] {
                session.execute(&format!("DELETE FROM {table} WHERE bucket NOT IN (SELECT name FROM buckets)"))?;
            }
            session.execute("DELETE FROM parts WHERE upload NOT IN (SELECT id FROM uploads)")?;
        }
        amend(session, &amends)?;
        session.execute("COMMIT")
    }
}

impl Engine for Postgres {
    type Db<'a> = Session;

    fn write(&self, change: Change) -> Result<(), CatalogError> {
        self.pool.attempt(|session| session.transaction(|session| apply(session, &change)))
    }

    fn read<T>(&self, read: impl Fn(&mut Session) -> Result<T, CatalogError>) -> Result<T, CatalogError> {
        self.pool.attempt(read)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn no_message_repeats_a_password() {
        for url in [
            "postgres://u:hush@127.0.0.1:1/d",
            "postgres://127.0.0.1:1/d?user=u&password=hush",
            "postgres://u:hu?sh=hush@127.0.0.1:1/d",
            "postgres:u:hush",
            "mysql://u:hush@h/d",
        ] {
            let text = match Address::parse(url, Some("hush")) {
                Ok(address) => match address.connect() {
                    Ok(_) => panic!("somebody listens on port 1"),
                    Err((error, _)) => format!("{error} {address:?}"),
                },
                Err(error) => error.to_string(),
            };
            assert!(!text.contains("hush"), "{text}");
            assert!(!text.contains('\n') && text.contains("postgres://"), "{text}");
        }
    }
}
