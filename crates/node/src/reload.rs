//! The cluster map that a node uses, and the file in which a newer one may be.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use protocol::id::Epoch;
use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};

use crate::config::ClusterConfig;

/// The file is not read more often than this, however many others use a newer map.
const PAUSE: Span = Span::from_secs(1);

/// What stands in the way of a newer map is said again after so long.
const SAID: Duration = Duration::from_secs(60);

/// The map in use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MapInUse {
    used: Arc<RwLock<(ClusterConfig, ClusterMap)>>,
    look_at: Instant,
    /// The newest epoch that others were heard to use.
    heard: Arc<AtomicU32>,
    /// What was said last of a map that cannot be used, and when.
    said: Arc<Mutex<Option<(String, std::time::Instant)>>>,
}

impl MapInUse {
    pub(crate) fn new(config: &ClusterConfig, map: &ClusterMap) -> Self {
        let used = Arc::new(RwLock::new((config.clone(), map.clone())));
        Self { used, look_at: Instant::ZERO, heard: Arc::default(), said: Arc::default() }
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

    /// The newest epoch that others use, if it is newer than the one in use here.
    pub(crate) fn newer(&self) -> Option<u32> {
        Some(self.heard.load(Ordering::Relaxed)).filter(|heard| *heard > self.used().0.epoch)
    }

    /// Others use a newer map, of this epoch: whether it is time to look into the file.
    pub(crate) fn is_time(&mut self, now: Instant, epoch: Epoch) -> bool {
        self.heard.fetch_max(epoch.0, Ordering::Relaxed);
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
                return self.stay(format!("{who} goes on with the cluster map of epoch {}: {error}", old.epoch));
            }
        };
        if config.cluster != old.cluster {
            return self
                .stay(format!("{who} stays in its cluster {:?}: {path} names {:?}", old.cluster, config.cluster));
        }
        if config.epoch <= old.epoch {
            let (found, used) = (config.epoch, old.epoch);
            return self.stay(format!(
                "{who} uses the cluster map of epoch {used}; {path} has {found}: put a newer one there"
            ));
        }
        let map = match follow(&map, &used) {
            Ok(map) => map,
            Err(unsaid) => {
                return self
                    .stay(format!("{who} goes on with the cluster map of epoch {}: in {path} {unsaid}", old.epoch));
            }
        };
        tracing::info!("{who} uses the cluster map of epoch {}", config.epoch);
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = (config.clone(), map.clone());
        Some((config, map))
    }

    /// Nothing changes, and the log says why, the same once a minute.
    fn stay<T>(&self, why: String) -> Option<T> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.as_ref().is_none_or(|(last, at)| *last != why || at.elapsed() >= SAID) {
            tracing::warn!("{why}");
            *said = Some((why, std::time::Instant::now()));
        }
        None
    }
}

/// The map after the one in use, or what the file does not say of the maps before it, and what to write there: a process that
/// begins with it would take copies for apart that may be in one domain, or silence for harmless that may hide what was put
/// with fewer copies.
fn follow(map: &ClusterMap, used: &ClusterMap) -> Result<ClusterMap, String> {
    let after = map.clone().after(used);
    let unsaid = after.moved().filter(|id| map.moved().all(|said| said != *id));
    let unsaid: Vec<String> = unsaid.map(|id| id.0.to_string()).collect();
    if !unsaid.is_empty() {
        return Err(format!(
            "the targets {} share a failure domain with others that were in another: write `moved = true` to them there",
            unsaid.join(", ")
        ));
    }
    if after.fewest() < map.fewest() {
        let fewest = after.fewest();
        return Err(format!(
            "chunks may have {fewest} copies from before (`copies` or `fewest_copies` of a map that was used): write \
             `fewest_copies = {fewest}` there"
        ));
    }
    Ok(after)
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
        let unsaid = follow(&joined, &used);
        assert!(unsaid.is_err_and(|why| why.starts_with("the targets 2 share a failure domain")));
        let said = follow(&joined.with_moved([NodeId(2)]), &used).expect("it is said");
        assert_eq!(said.span(&[2, 3, 4].map(NodeId)), 2);
        // A later map must say so too: whoever begins with that one knows no earlier.
        assert!(follow(&map(3, &[1, 2, 2, 2, 3, 3]), &said).is_err());
    }

    #[test]
    fn that_there_were_fewer_copies_must_be_said() {
        let used = map(1, &[1, 1, 2, 2, 3, 3]);
        let more = |epoch| {
            let targets = used.targets().cloned().collect();
            ClusterMap::new(ClusterId(1), Epoch(epoch), 3, 3, targets).expect("a good map")
        };
        let why = follow(&more(2), &used).err();
        assert!(why.is_some_and(|why| why.ends_with("write `fewest_copies = 2` there")));
        let said = follow(&more(2).with_fewest(2), &used).expect("it is said");
        // Two servers that are silent may have both copies of what was put before.
        assert!(said.may_hide(&[1, 3].map(NodeId)) && !said.may_hide(&[1, 2].map(NodeId)));
        assert!(follow(&more(3), &said).is_err(), "a later map must say so too");
        assert!(follow(&map(3, &[1, 1, 2, 2, 3, 3]), &said).is_ok());
    }
}
