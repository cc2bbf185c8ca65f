//! The cluster map that a node uses, and where newer ones come from: other nodes, which hand them on, and its own file.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use protocol::machine::NewerMap;
use protocol::map::{ClusterMap, MapDocument};
use protocol::planner;
use protocol::time::{Instant, Span};

use crate::config::{ClusterConfig, ConfigError};

/// The file is not read more often than this, however many others use a newer map.
const PAUSE: Span = Span::from_secs(1);

/// What stands in the way of a newer map is logged again after so long.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The map in use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct MapInUse {
    used: Arc<RwLock<(ClusterConfig, ClusterMap)>>,
    next_check: Instant,
    /// What another node handed on, until it is looked at.
    offered: Arc<Mutex<Option<MapDocument>>>,
    /// The newest epoch that others are known to use.
    newest_epoch: Arc<AtomicU32>,
    /// The last warning about a map that cannot be used, and when it was logged.
    last_warning: Arc<Mutex<Option<(String, std::time::Instant)>>>,
    /// One looks at a time.
    looking: Arc<Mutex<()>>,
}

impl MapInUse {
    pub(crate) fn new(config: &ClusterConfig, map: &ClusterMap) -> Self {
        let used = Arc::new(RwLock::new((config.clone(), map.clone())));
        Self {
            used,
            next_check: Instant::ZERO,
            offered: Arc::default(),
            newest_epoch: Arc::default(),
            last_warning: Arc::default(),
            looking: Arc::default(),
        }
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
        Some(self.newest_epoch.load(Ordering::Relaxed)).filter(|newest| *newest > self.used().0.epoch)
    }

    /// Others use a newer map, which one of them may have handed on: whether it is time to [look](Self::reload) at that, or at the file.
    pub(crate) fn hear_of(&mut self, now: Instant, newer: NewerMap) -> bool {
        let (NewerMap::Here { epoch, .. } | NewerMap::Needed { epoch }) = newer;
        self.newest_epoch.fetch_max(epoch.0, Ordering::Relaxed);
        if let NewerMap::Here { document, .. } = newer {
            *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(document);
            return true;
        }
        let is_time = now >= self.next_check;
        if is_time {
            self.next_check = now + PAUSE;
        }
        is_time
    }

    /// Has a thread [look](Self::reload) and say what it found: a map is kept on the disk before it is used, and a node's loop, in which
    /// all that it sends and receives has its time, does not wait for disks.
    pub(crate) fn look(&self, node: String, found: impl FnOnce(ClusterConfig, ClusterMap) + Send + 'static) {
        let (this, name) = (self.clone(), node.clone());
        let look = move || {
            let _alone = this.looking.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((config, map)) = this.reload(&node) {
                found(config, map);
            }
        };
        // What was offered is looked at the next time.
        if let Err(error) = std::thread::Builder::new().name("map".to_owned()).spawn(look) {
            self.warn(format!("{name} cannot look for a newer cluster map now (starting a thread: {error}): lower the load on this host"));
        }
    }

    /// Looks at what another node handed on, or else reads the file; what is newer there is in use from now on. `node` is for the
    /// log.
    fn reload(&self, node: &str) -> Option<(ClusterConfig, ClusterMap)> {
        let old = self.get();
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner).take();
        let found = match &offered {
            Some(document) => received(document, &old),
            None => ClusterConfig::load(&old.path),
        };
        match found.map_err(|error| error.to_string()).and_then(|found| self.follow(found, offered.is_some())) {
            Ok(Some((mut config, map))) => {
                if config.network.carry_on(&old.network) {
                    let path = old.path.display();
                    self.warn(format!(
                        "{node} goes on with the carrier that it has: what {path} says of `carrier` and `encrypt` counts when \
                         all nodes have been stopped and are started again, and of `lanes`, `workers`, `gateway_workers` and \
                         `balance` when this one is"
                    ));
                }
                let from = if offered.is_some() { ", which another node handed on" } else { "" };
                tracing::info!("{node} uses the cluster map of epoch {}{from}", config.epoch);
                *self.used.write().unwrap_or_else(PoisonError::into_inner) = (config.clone(), map.clone());
                Some((config, map))
            }
            Ok(None) => None,
            Err(problem) => {
                self.warn(format!("{node} goes on with the cluster map of epoch {}: {problem}", old.epoch));
                None
            }
        }
    }

    /// The map that was found, if it can follow the one in use; `None` when it need not. One that was handed on is in the file before it is in
    /// use: what starts here later begins with no older one.
    fn follow(&self, found: ClusterConfig, offered: bool) -> Result<Option<(ClusterConfig, ClusterMap)>, String> {
        let (old, used) = self.used().clone();
        let path = old.path.display();
        if found.cluster != old.cluster {
            return Err(format!("its cluster is {:?}, and {path} names {:?}", old.cluster, found.cluster));
        }
        if found.epoch <= old.epoch {
            let epoch = found.epoch;
            return if offered { Ok(None) } else { Err(format!("{path} has {epoch}: put a newer one there")) };
        }
        let map = found.map_to_hand_on().map_err(|error| error.to_string())?;
        if found.layout.is_none() && map.placement() != used.placement() {
            return Err(format!(
                "{path} has no [layout], and its targets are others: make the next map with `reservoir cluster plan`"
            ));
        }
        let map = find_all(&map, &used, found.settled).and_then(|()| follow(&map, &used)).map_err(|problem| {
            if offered { format!("in that of others {problem}") } else { format!("in {path} {problem}") }
        })?;
        if offered {
            keep(&found)?;
        }
        Ok(Some((found, map)))
    }

    /// Nothing changes, and the log says why, the same once a minute.
    fn warn(&self, why: String) {
        let mut warning = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if warning.as_ref().is_none_or(|(last, at)| *last != why || at.elapsed() >= WARN_INTERVAL) {
            tracing::warn!("{why}");
            *warning = Some((why, std::time::Instant::now()));
        }
    }
}

/// What another node handed on, or what is in the file by now if that is not older: somebody else may have put it there.
fn received(document: &MapDocument, used: &ClusterConfig) -> Result<ClusterConfig, ConfigError> {
    let file = ClusterConfig::load(&used.path).ok();
    let received = ClusterConfig::received(document, file.as_ref().unwrap_or(used))?;
    Ok(file.filter(|file| file.epoch >= received.epoch).unwrap_or(received))
}

/// Puts a map into its file, unless that has it already.
fn keep(map: &ClusterConfig) -> Result<(), String> {
    let (text, before) = ClusterConfig::load_text(&map.path).map_err(|error| error.to_string())?;
    if before.epoch >= map.epoch || map.replace((&text, before.epoch)).map_err(|error| error.to_string())? {
        return Ok(());
    }
    Err(format!("{} was changed meanwhile", map.path.display()))
}

/// Whether all that the map in use leads to is found by a newer one as well, on the targets that are left; else what to do. `settled`
/// is what the newer one says of layouts that are over.
fn find_all(map: &ClusterMap, used: &ClusterMap, settled: Option<u32>) -> Result<(), String> {
    let (epoch, settled) = (used.epoch.0, settled.unwrap_or(0));
    if settled > epoch {
        return Ok(());
    }
    if planner::hides([used.placement()], map) {
        return Err(format!(
            "[layout] and [previous] do not lead to all that is stored by the layout of epoch {epoch}: keep that layout as [previous], as \
             `reservoir cluster plan` does when it makes the next map"
        ));
    }
    if settled < epoch && planner::hides(used.previous(), map) {
        return Err(format!(
            "the layout before that of epoch {epoch} is forgotten, where some of what is stored may still be: keep [previous]; or put \
             such objects again, and make the next map with `reservoir cluster plan --write --forget-previous`"
        ));
    }
    Ok(())
}

/// The map after the one in use, or what the file does not say of the maps before it, and what to write there: a process that
/// begins with it would count copies as being in different domains that may be in one, or silence for harmless that may hide what was put
/// with fewer copies.
fn follow(map: &ClusterMap, used: &ClusterMap) -> Result<ClusterMap, String> {
    let after = map.clone().after(used);
    let missing = after.moved().filter(|id| map.moved().all(|listed| listed != *id));
    let missing: Vec<String> = missing.map(|id| id.0.to_string()).collect();
    if !missing.is_empty() {
        return Err(format!(
            "the targets {} share a failure domain with others that were in another: write `moved = true` to them there",
            missing.join(", ")
        ));
    }
    if after.fewest(None) < map.fewest(None) {
        let fewest = after.fewest(None);
        return Err(format!(
            "chunks may have {fewest} copies from before (`copies`, `min_copies` or `fewest_copies` of a map that was used): write \
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
    fn a_target_that_joins_the_domain_of_others_must_be_marked_as_moved() {
        let used = map(1, &[1, 1, 2, 2, 3, 3]);
        assert!(follow(&map(2, &[7, 7, 8, 8, 9, 9]), &used).is_ok(), "only the names changed");
        let joined = map(2, &[1, 2, 2, 2, 3, 3]);
        let problem = follow(&joined, &used);
        assert!(problem.is_err_and(|why| why.starts_with("the targets 2 share a failure domain")));
        let next = follow(&joined.with_moved([NodeId(2)]), &used).expect("the map says it");
        assert_eq!(next.most_domains(&[2, 3, 4].map(NodeId)), 2);
        // A later map must say so too: a node that begins with that one knows no earlier.
        assert!(follow(&map(3, &[1, 2, 2, 2, 3, 3]), &next).is_err());
        // One that takes the target out has nothing to say of it.
        let rest = next.targets().filter(|target| target.id != NodeId(2)).cloned().collect();
        let without = ClusterMap::new(ClusterId(1), Epoch(3), 2, 3, rest).expect("a good map");
        assert!(follow(&without, &next).is_ok_and(|map| map.moved().count() == 0));
    }

    #[test]
    fn fewer_copies_in_earlier_maps_must_be_stated() {
        let used = map(1, &[1, 1, 2, 2, 3, 3]);
        let more = |epoch| {
            let targets = used.targets().cloned().collect();
            ClusterMap::new(ClusterId(1), Epoch(epoch), 3, 3, targets).expect("a good map").with_min_copies(3)
        };
        let why = follow(&more(2), &used).err();
        assert!(why.is_some_and(|why| why.ends_with("write `fewest_copies = 2` there")));
        let next = follow(&more(2).with_fewest(2), &used).expect("the map says it");
        // Two servers that are silent may have both copies of what was put before.
        assert!(next.may_hide(&[1, 3].map(NodeId)) && !next.may_hide(&[1, 2].map(NodeId)));
        assert!(follow(&more(3), &next).is_err(), "a later map must say so too");
        assert!(follow(&map(3, &[1, 1, 2, 2, 3, 3]), &next).is_ok());
    }

    /// The next map, when these are drained.
    fn next(map: &ClusterMap, drained: &[u32]) -> planner::Plan {
        let layout = map.placement().layout();
        let wish = planner::Wish {
            targets: map.targets().map(|target| (target.id, target.clone())).collect(),
            drained: drained.iter().copied().map(NodeId).collect(),
            replacements: Default::default(),
            copies: map.copies,
            most: map.redundancy(),
            group_cells: layout.group_cells,
            overlap: map.overlap(),
            level: false,
        };
        planner::plan(map, &wish, 0).expect("a good map")
    }

    #[test]
    fn a_map_that_does_not_lead_to_what_is_stored_is_refused() {
        let first = map(1, &(0..24).collect::<Vec<u16>>());
        let second = next(&first, &[5]);
        assert!(second.regroups && !second.forgets);
        let second = second.map;
        assert_eq!(find_all(&second, &first, None), Ok(()));
        let forgotten = second.clone().with_previous(None);
        let why = find_all(&forgotten, &first, None).expect_err("target 5 would not be asked");
        assert!(why.contains("keep that layout as [previous], as `reservoir cluster plan` does"), "{why}");
        // The layout before is needed for as long as nobody says that it is not.
        let third = forgotten.clone();
        let why = find_all(&third, &second, None).expect_err("target 5 would not be asked");
        assert!(why.contains("keep [previous]; or put such objects again"), "{why}");
        assert!(find_all(&third, &second, Some(1)).is_err(), "that was said of the layout before");
        assert_eq!(find_all(&third, &second, Some(2)), Ok(()));
        assert_eq!(find_all(&third, &first, Some(2)), Ok(()), "nodes that did not see the second map take it as well");
        // To forget what came before takes nothing from the layout itself.
        let fourth = next(&second, &[5, 11]);
        assert!(fourth.forgets);
        assert!(find_all(&fourth.map, &second, None).is_err());
        assert_eq!(find_all(&fourth.map, &second, Some(2)), Ok(()));
        assert!(find_all(&fourth.map.with_previous(None), &second, Some(2)).is_err());
    }
}
