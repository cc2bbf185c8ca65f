//! Cluster maps as gateways decide them: a table beside those of the catalog, which is the same for all of them.

use super::Postgres;
use super::pool::Session;
use crate::CatalogError;
use crate::sql::Value;

/// The maps, as every gateway makes them.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS maps (
  epoch BIGINT NOT NULL PRIMARY KEY, document BYTEA NOT NULL, who TEXT NOT NULL, micros BIGINT NOT NULL)";
/// Maps that are kept: the newest, and those before it.
const KEPT: u32 = 100;

/// A cluster map that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedMap {
    /// Its epoch.
    pub epoch: u32,
    /// The map, as nodes hand it to each other.
    pub document: Vec<u8>,
    /// The node that proposed it.
    pub decided_by: String,
    /// When, microseconds since 1970.
    pub micros: u64,
}

impl Postgres {
    /// The epoch of the newest map; `None` when none was decided.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub fn newest_map_epoch(&self) -> Result<Option<u32>, CatalogError> {
        self.pool.attempt(newest)
    }

    /// The newest map; `None` when none was decided.
    ///
    /// # Errors
    /// When the database cannot be used.
    pub fn newest_map(&self) -> Result<Option<DecidedMap>, CatalogError> {
        self.pool.attempt(|session| {
            let sql = "SELECT epoch, document, who, micros FROM maps WHERE epoch = (SELECT MAX(epoch) FROM maps)";
            let row = session.first(sql)?;
            let map = |row: ::postgres::Row| DecidedMap {
                epoch: row.get::<_, i64>(0) as u32,
                document: row.get(1),
                decided_by: row.get(2),
                micros: row.get::<_, i64>(3) as u64,
            };
            Ok(row.map(map))
        })
    }

    /// Decides a map, if that of epoch `after` is the newest still (`None`: if none was decided). Whether it did: of several who ask for
    /// one epoch, one succeeds.
    ///
    /// # Errors
    /// When the database cannot be used, or broke off: then it may have been decided or not.
    pub fn decide_map(&self, after: Option<u32>, map: &DecidedMap) -> Result<bool, CatalogError> {
        let decided = std::cell::Cell::new(false);
        self.pool.attempt(|session| {
            session.transaction(|session| {
                decided.set(false);
                if after.is_some_and(|after| map.epoch <= after) {
                    return Ok(());
                }
                // Another that decides after this one waits here, and finds a newer one then.
                if let Some(after) = after {
                    let sql = "SELECT epoch FROM maps WHERE epoch = ?1 FOR UPDATE";
                    if session.numbers(sql, &[Value::Int(after.into())])?.is_empty() {
                        return Ok(());
                    }
                }
                if newest(session)? != after {
                    return Ok(());
                }
                // Another one of this epoch, which is being decided, refuses it by the key: then this is done again, and finds that.
                let sql = "INSERT INTO maps (epoch, document, who, micros) VALUES (?1, ?2, ?3, ?4)";
                let micros = i64::try_from(map.micros).unwrap_or(i64::MAX);
                let (epoch, document, who) =
                    (i64::from(map.epoch), Value::Bytes(&map.document), Value::Text(&map.decided_by));
                session.change(sql, &[Value::Int(epoch), document, who, Value::Int(micros)])?;
                session.change("DELETE FROM maps WHERE epoch <= ?1", &[Value::Int(epoch - i64::from(KEPT))])?;
                decided.set(true);
                Ok(())
            })
        })?;
        Ok(decided.get())
    }
}

/// The epoch of the newest map.
fn newest(session: &mut Session) -> Result<Option<u32>, CatalogError> {
    let row = session.first("SELECT MAX(epoch) FROM maps")?;
    Ok(row.and_then(|row| row.get::<_, Option<i64>>(0)).map(|epoch| epoch as u32))
}
