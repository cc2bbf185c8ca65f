//! The cluster map that a node uses, and the file in which a newer one may be.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};

use crate::config::ClusterConfig;

/// The file is not read more often than this, however many others use a newer map.
const PAUSE: Span = Span::from_secs(1);

/// The map in use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MapInUse {
    used: Arc<RwLock<(ClusterConfig, ClusterMap)>>,
    look_at: Instant,
}

impl MapInUse {
    pub(crate) fn new(config: &ClusterConfig, map: &ClusterMap) -> Self {
        Self { used: Arc::new(RwLock::new((config.clone(), map.clone()))), look_at: Instant::ZERO }
    }

    fn used(&self) -> RwLockReadGuard<'_, (ClusterConfig, ClusterMap)> {
        self.used.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> ClusterConfig {
        self.used().0.clone()
    }

    pub(crate) fn map(&self) -> ClusterMap {
        self.used().1.clone()
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
        let (old, used) = self.used().clone();
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
        let map = match follow(&map, &used) {
            Ok(map) => map,
            Err(moved) => {
                tracing::warn!(
                    "{who} goes on with the cluster map of epoch {}: in {path} the targets {moved} share a failure domain                      with others that were in another: write `moved = true` to them there",
                    old.epoch
                );
                return None;
            }
        };
        tracing::info!("{who} uses the cluster map of epoch {}", config.epoch);
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = (config.clone(), map.clone());
        Some((config, map))
    }
}

/// The map after the one in use, or the targets that changed their failure domain without a word of it in the file: a
/// process that begins with that would take copies for apart that may be in one domain.
fn follow(map: &ClusterMap, used: &ClusterMap) -> Result<ClusterMap, String> {
    let after = map.clone().after(used);
    let unsaid = after.moved().filter(|id| map.moved().all(|said| said != *id));
    let unsaid: Vec<String> = unsaid.map(|id| id.0.to_string()).collect();
    if unsaid.is_empty() { Ok(after) } else { Err(unsaid.join(", ")) }
}

#[cfg(test)]
mod tests {
    use protocol::id::{ClusterId, Epoch, NodeId};
    use protocol::map::TargetEntry;

    use super::*;

    fn map(epoch: u32, domains: &[u16]) -> ClusterMap {
        let entry = |(id, domain): (u32, &u16)| TargetEntry { id: NodeId(id), domain: *domain, capacity: 1 << 30 };
        let targets = (1..).zip(domains).map(entry).collect();
        ClusterMap::new(ClusterId(1), Epoch(epoch), 2, 3, targets).expect("a good map")
    }

    #[test]
    fn who_comes_into_the_domain_of_others_must_be_said_to() {
        let used = map(1, &[1, 1, 2, 2, 3, 3]);
        assert!(follow(&map(2, &[7, 7, 8, 8, 9, 9]), &used).is_ok(), "only the names changed");
        let joined = map(2, &[1, 2, 2, 2, 3, 3]);
        assert_eq!(follow(&joined, &used), Err("2".to_owned()));
        let said = follow(&joined.with_moved([NodeId(2)]), &used).expect("it is said");
        assert_eq!(said.span(&[2, 3, 4].map(NodeId)), 2);
        // A later map must say so too: whoever begins with that one knows no earlier.
        assert_eq!(follow(&map(3, &[1, 2, 2, 2, 3, 3]), &said), Err("2".to_owned()));
    }
}
