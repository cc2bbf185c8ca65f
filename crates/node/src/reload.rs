//! The cluster map that a node uses, and the file in which a newer one may be.

use std::sync::{Arc, PoisonError, RwLock};

use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};

use crate::config::ClusterConfig;

/// The file is not read more often than this, however many others use a newer map.
const PAUSE: Span = Span::from_secs(1);

/// The map in use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MapInUse {
    config: Arc<RwLock<ClusterConfig>>,
    look_at: Instant,
}

impl MapInUse {
    pub(crate) fn new(config: &ClusterConfig) -> Self {
        Self { config: Arc::new(RwLock::new(config.clone())), look_at: Instant::ZERO }
    }

    pub(crate) fn get(&self) -> ClusterConfig {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Others use a newer map: whether it is time to look into the file.
    pub(crate) fn is_time(&mut self, now: Instant) -> bool {
        let is_time = now >= self.look_at;
        if is_time {
            self.look_at = now + PAUSE;
        }
        is_time
    }

    /// Reads the file; what is newer there is in use from now on. `who` is for the log.
    pub(crate) fn reload(&self, who: &str) -> Option<(ClusterConfig, ClusterMap)> {
        let old = self.get();
        let path = old.path.display();
        let (config, map) = match ClusterConfig::load(&old.path).and_then(|config| Ok((config.map()?, config))) {
            Ok((map, config)) => (config, map),
            Err(error) => {
                tracing::warn!("{who} goes on with the cluster map of epoch {}: {error}", old.epoch);
                return None;
            }
        };
        if config.cluster != old.cluster {
            tracing::warn!("{who} stays in its cluster {:?}: {path} names {:?}", old.cluster, config.cluster);
            return None;
        }
        if config.epoch <= old.epoch {
            let (found, used) = (config.epoch, old.epoch);
            tracing::warn!("{who} uses the cluster map of epoch {used}; {path} has {found}: put a newer one there");
            return None;
        }
        tracing::info!("{who} uses the cluster map of epoch {}", config.epoch);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config.clone();
        Some((config, map))
    }
}
