//! Whether targets that were down for long may be taken out of the cluster map by a plan, without a person who looks at
//! it.
//!
//! What was acknowledged has copies in as many failure domains as puts were content with. Some of these domains may be
//! out of the map already, and until their copies were made again, the only copies left may be on the target that goes
//! next. So all targets that go before everything is whole count together.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{Epoch, GroupId, NodeId};
use crate::limits;
use crate::map::{ClusterMap, MapError, TargetEntry};
use crate::planner::Plan;
use crate::redundancy::Redundancy;
use crate::wire::HealthReport;

/// What speaks against taking a target out, as far as was seen: the targets that went and of whose copies some may not
/// have been made again, and those that are sought as they may have the last copy of something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    epoch: Option<Epoch>,
    /// The targets of that map, and their failure domains; none of those that [moved](ClusterMap::with_moved).
    present: BTreeMap<NodeId, Option<u16>>,
    /// Those that are not in it any more.
    gone: BTreeMap<NodeId, Option<u16>>,
    /// The groups that were not seen whole by that map.
    open: BTreeSet<GroupId>,
    /// For each target, the targets from which it waits for an answer, since what was damaged on its disk was found
    /// nowhere else, until it says otherwise. For a target that is not here this is not known.
    sought: BTreeMap<NodeId, Vec<NodeId>>,
}

impl Seen {
    /// The targets of the map in use say how their groups are.
    pub fn look(&mut self, map: &ClusterMap, reports: &[(NodeId, HealthReport)]) {
        if self.epoch != Some(map.epoch) {
            self.gone = self.gone_by(map);
            self.present = map.targets().map(|target| (target.id, lasting_domain(map, target.id))).collect();
            self.open = map.group_ids().collect();
            self.epoch = Some(map.epoch);
        }
        // A target that has not looked yet since it was started still misses what it missed before.
        for (id, nowhere) in reports.iter().filter_map(|(id, report)| Some((id, report.nowhere.as_ref()?))) {
            self.sought.insert(*id, nowhere.silent.clone());
        }
        self.sought.retain(|id, _| map.target(*id).is_some());
        // A steward that reports by an earlier map may have counted copies that are out now. A group need not be whole
        // at the same time as others: the chunks that it had when it was whole have their copies.
        let current = reports.iter().filter(|(_, report)| report.epoch == map.epoch);
        for (group, health) in current.flat_map(|(_, report)| &report.groups) {
            if health.whole {
                self.open.remove(group);
            }
        }
        if self.open.is_empty() {
            self.gone.clear();
        }
    }

    fn gone_by(&self, map: &ClusterMap) -> BTreeMap<NodeId, Option<u16>> {
        let all = self.gone.iter().chain(&self.present);
        all.filter(|(id, _)| map.target(**id).is_none()).map(|(id, domain)| (*id, *domain)).collect()
    }

    /// The targets that seek what may be on these alone, and those that have not said yet whether they do. Targets of
    /// the same domains, which may be silent as well, are not asked: they have nothing that is not on others, too.
    fn seekers(&self, map: &ClusterMap, out: &[NodeId]) -> (Vec<NodeId>, Vec<NodeId>) {
        let domains: Vec<u16> = out.iter().filter_map(|id| map.domain(*id)).collect();
        let names = |sought: &Vec<NodeId>| sought.len() >= limits::SOUGHT || sought.iter().any(|id| out.contains(id));
        let seekers = self.sought.iter().filter(|(_, sought)| names(sought)).map(|(id, _)| *id).collect();
        let is_unheard =
            |target: &&TargetEntry| !self.sought.contains_key(&target.id) && !domains.contains(&target.domain);
        (seekers, map.targets().filter(is_unheard).map(|target| target.id).collect())
    }

    /// The earlier targets whose last copies may be on these, from which they could be made again.
    fn before(&self, present: &ClusterMap, out: &[NodeId]) -> BTreeMap<NodeId, Option<u16>> {
        let is_known = |group: &GroupId| self.epoch == Some(present.epoch) && !self.open.contains(group);
        let mut open = present.group_ids().filter(|group| !is_known(group));
        let gone = self.gone_by(present);
        if gone.is_empty() || !open.any(|group| present.keepers(group).iter().any(|id| out.contains(id))) {
            return BTreeMap::new();
        }
        gone
    }
}

/// Why they stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// Every copy of something may be on them that is kept so; `None` is as the map says.
    LastCopies(Option<Redundancy>),
    /// The next map could not keep something apart.
    TooFewDomains(MapError),
    /// The next map would forget where something may still be.
    Forgets,
    /// Every copy of something may be on them and on these, which went before it was seen that all was made again that they had.
    Earlier(Vec<NodeId>),
    /// Copies were damaged on these, and no other target is found to have the chunks.
    Sought(Vec<NodeId>),
    /// These have not said yet whether they seek something.
    Unheard(Vec<NodeId>),
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LastCopies(_) => f.write_str("all that there is of some objects may be on it"),
            Self::TooFewDomains(error) => error.fmt(f),
            Self::Forgets => f.write_str(
                "the map has a layout before it, where some of what is stored may still be, and the next one would forget that",
            ),
            Self::Earlier(gone) => {
                let gone = Listed(gone);
                write!(f, "copies of what {gone} had are still being made, and it may have the last of some")
            }
            Self::Unheard(targets) => {
                let targets = Listed(targets);
                write!(f, "it may have the last copies of chunks that were damaged on {targets}, of which nothing was heard yet")
            }
            Self::Sought(seekers) => {
                let seekers = Listed(seekers);
                write!(f, "it may have the last copies of chunks that were damaged on {seekers}, and are on no target that answers")
            }
        }
    }
}

/// Targets, in a sentence.
struct Listed<'a>(&'a [NodeId]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.0.iter().map(|id| id.0.to_string()).collect();
        write!(f, "{} {}", if ids.len() == 1 { "target" } else { "targets" }, ids.join(", "))
    }
}

/// In which domain all copies of a target count; none of one that counts for itself.
fn lasting_domain(map: &ClusterMap, id: NodeId) -> Option<u16> {
    map.domain(id).filter(|_| map.moved().all(|moved| moved != id))
}

/// Whether `plan`, which was made from the `present` map, may take out these targets. Objects are kept as the map says, or in one of
/// these other ways. `settled` is the map by which all was where it belongs when that was seen last.
///
/// # Errors
/// Why not.
pub fn check(
    present: &ClusterMap,
    out: &[NodeId],
    plan: &Plan,
    ways: impl IntoIterator<Item = Redundancy>,
    settled: Option<Epoch>,
    seen: &Seen,
) -> Result<(), Stays> {
    let ways: Vec<Redundancy> = ways.into_iter().collect();
    let all = || [None].into_iter().chain(ways.iter().copied().map(Some));
    if let Some(own) = all().find(|own| present.may_hide_kept(out, *own)) {
        return Err(Stays::LastCopies(own));
    }
    let (seekers, unheard) = seen.seekers(present, out);
    if !seekers.is_empty() {
        return Err(Stays::Sought(seekers));
    }
    if !unheard.is_empty() {
        return Err(Stays::Unheard(unheard));
    }
    let gone = seen.before(present, out);
    let with: BTreeSet<u16> = out.iter().filter_map(|id| lasting_domain(present, *id)).collect();
    let others: BTreeSet<u16> = gone.values().flatten().copied().filter(|domain| !with.contains(domain)).collect();
    let more = others.len() + gone.values().filter(|domain| domain.is_none()).count();
    let domains = present.most_domains(out) + more;
    if more > 0 && all().any(|own| present.fewest(own).is_met(domains)) {
        return Err(Stays::Earlier(gone.into_keys().collect()));
    }
    for way in ways {
        plan.map.can_keep(way).map_err(Stays::TooFewDomains)?;
    }
    if plan.forgets && settled != Some(present.epoch) {
        return Err(Stays::Forgets);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::health::Health;
    use crate::id::ClusterId;
    use crate::map::TargetEntry;
    use crate::planner::{self, Wish};
    use crate::wire::Nowhere;

    /// Two targets a domain.
    fn map() -> ClusterMap {
        of(10)
    }

    fn of(targets: u32) -> ClusterMap {
        let entry = |n: u32| TargetEntry { id: NodeId(n), domain: (n / 2) as u16, capacity: 1 << 30 };
        ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, (0..targets).map(entry).collect()).expect("a good map")
    }

    fn plan(map: &ClusterMap, out: &[NodeId]) -> Plan {
        let wish = Wish {
            targets: map.targets().filter(|t| !out.contains(&t.id)).map(|t| (t.id, t.clone())).collect(),
            drained: BTreeSet::new(),
            replacements: BTreeMap::new(),
            copies: map.copies,
            most: map.redundancy(),
            group_cells: map.group_cells(),
            overlap: map.overlap(),
            level: false,
        };
        planner::plan(map, &wish, 0).expect("a next map")
    }

    /// No target went before, and all targets say that they seek nothing. (Of a map that is none of those that are used
    /// here.)
    fn none() -> Seen {
        let sought = (0..200).map(|id| (NodeId(id), Vec::new())).collect();
        Seen { sought, ..Seen::default() }
    }

    /// A steward says so of all these groups.
    fn says(map: &ClusterMap, epoch: Epoch, groups: impl Fn(GroupId) -> bool, whole: bool) -> (NodeId, HealthReport) {
        let health = Health { whole, ..Health::default() };
        let groups = map.group_ids().filter(|group| groups(*group)).map(|group| (group, health)).collect();
        (NodeId(0), HealthReport { groups, ..HealthReport::of(epoch) })
    }

    #[test]
    fn those_stay_that_may_have_every_copy_of_something() {
        let map = map();
        let one = [NodeId(2), NodeId(3)];
        assert_eq!(check(&map, &one, &plan(&map, &one), [], None, &none()), Ok(()), "one domain");
        let single = Redundancy::Copies(1);
        assert_eq!(check(&map, &one, &plan(&map, &one), [single], None, &none()), Err(Stays::LastCopies(Some(single))));
        let two = [NodeId(2), NodeId(5)];
        assert_eq!(
            check(&map, &two, &plan(&map, &two), [], None, &none()),
            Err(Stays::LastCopies(None)),
            "two of three are enough"
        );
    }

    #[test]
    fn nothing_is_forgotten_before_all_is_where_it_belongs() {
        let map = map();
        let out = [NodeId(2)];
        let plan = Plan { forgets: true, ..plan(&map, &out) };
        assert_eq!(check(&map, &out, &plan, [], None, &none()), Err(Stays::Forgets));
        assert_eq!(check(&map, &out, &plan, [], Some(Epoch(0)), &none()), Err(Stays::Forgets));
        assert_eq!(check(&map, &out, &plan, [], Some(Epoch(1)), &none()), Ok(()));
        let many = Redundancy::Copies(5);
        let refused = check(&map, &out, &plan, [many], Some(Epoch(1)), &none());
        assert_eq!(refused.is_err(), plan.map.can_keep(many).is_err());
    }

    #[test]
    fn who_goes_next_waits_until_what_an_earlier_one_had_is_made_again() {
        let first = of(60).with_min_copies(2);
        let mut earlier = none();
        earlier.look(&first, &[]);
        let next = plan(&first, &[NodeId(2)]).map;
        let (here, there) = ([NodeId(3)], [NodeId(5)]);
        let checks = |earlier: &Seen, out: &[NodeId]| check(&next, out, &plan(&next, out), [], None, earlier);
        let waits = Err(Stays::Earlier(vec![NodeId(2)]));
        // A map that was decided a moment ago was not looked at yet.
        assert_eq!(checks(&earlier, &there), waits);
        assert_eq!(checks(&earlier, &here), Ok(()), "of the same domain");
        assert_eq!(checks(&none(), &there), Ok(()), "nobody is known to be gone");
        // What was found by the map before says nothing, nor do groups that are not whole.
        let all = |_| true;
        let old = says(&next, Epoch(1), all, true);
        earlier.look(&next, &[old, says(&next, Epoch(2), all, false)]);
        assert_eq!(checks(&earlier, &there), waits);
        assert!(waits.clone().unwrap_err().to_string().starts_with("copies of what target 2 had are still being made"));
        // Groups become whole one after the other. Those of the next one count.
        let has = |group: GroupId| next.keepers(group).contains(&there[0]);
        assert!(next.group_ids().any(has) && !next.group_ids().all(has), "{}", next.groups());
        earlier.look(&next, &[says(&next, Epoch(2), |group| !has(group), true)]);
        assert_eq!(checks(&earlier, &there), waits);
        let mut own = earlier.clone();
        own.open = next.group_ids().filter(|group| !has(*group)).collect();
        assert_eq!(checks(&own, &there), Ok(()));
        earlier.look(&next, &[says(&next, Epoch(2), has, true)]);
        assert_eq!((checks(&earlier, &there), earlier.gone.len()), (Ok(()), 0));
    }

    #[test]
    fn so_many_domains_may_go_one_after_the_other_as_have_not_all_copies_of_anything() {
        let first = map().with_min_copies(3);
        let mut earlier = none();
        earlier.look(&first, &[]);
        let next = plan(&first, &[NodeId(2)]).map.with_min_copies(3);
        earlier.look(&next, &[]);
        let out = [NodeId(5)];
        assert_eq!(check(&next, &out, &plan(&next, &out), [], None, &earlier), Ok(()));
        let two = [Redundancy::Copies(2)];
        let refused = check(&next, &out, &plan(&next, &out), two, None, &earlier);
        assert_eq!(refused, Err(Stays::Earlier(vec![NodeId(2)])));
        let last = plan(&next, &out).map.with_min_copies(3);
        earlier.look(&last, &[]);
        let out = [NodeId(8)];
        let refused = check(&last, &out, &plan(&last, &out), [], None, &earlier);
        assert_eq!(refused, Err(Stays::Earlier(vec![NodeId(2), NodeId(5)])));
    }

    #[test]
    fn who_may_have_the_last_copy_of_something_stays_until_that_is_found() {
        let map = map();
        let mut seen = none();
        let seeks = |by: u32, silent: &[u32]| {
            let silent = silent.iter().copied().map(NodeId).collect();
            (
                NodeId(by),
                HealthReport { nowhere: Some(Nowhere { lost: 0, sought: 1, silent }), ..HealthReport::of(map.epoch) },
            )
        };
        let checks = |seen: &Seen, out: u32| check(&map, &[NodeId(out)], &plan(&map, &[NodeId(out)]), [], None, seen);
        seen.look(&map, &[seeks(4, &[2]), seeks(6, &[2, 8])]);
        let stays = checks(&seen, 2);
        assert_eq!(stays, Err(Stays::Sought(vec![NodeId(4), NodeId(6)])));
        assert!(stays.is_err_and(|stays| stays.to_string().contains("on targets 4, 6, and are on no target")));
        assert_eq!(checks(&seen, 3), Ok(()), "nobody seeks that one");
        // A target that does not answer may still miss it.
        seen.look(&map, &[seeks(4, &[])]);
        assert_eq!(checks(&seen, 2), Err(Stays::Sought(vec![NodeId(6)])));
        seen.look(&map, &[seeks(6, &[])]);
        assert_eq!(checks(&seen, 2), Ok(()));
    }

    #[test]
    fn who_has_not_looked_since_it_was_started_missed_what_it_missed_before() {
        let map = map();
        let says = |by: u32, nowhere: Option<Vec<u32>>| {
            let of = |ids: Vec<u32>| Nowhere { lost: 0, sought: 1, silent: ids.into_iter().map(NodeId).collect() };
            (NodeId(by), HealthReport { nowhere: nowhere.map(of), ..HealthReport::of(map.epoch) })
        };
        let checks = |seen: &Seen| check(&map, &[NodeId(2)], &plan(&map, &[NodeId(2)]), [], None, seen);
        let mut seen = none();
        seen.look(&map, &[says(4, Some(vec![2]))]);
        seen.look(&map, &[says(4, None)]);
        assert_eq!(checks(&seen), Err(Stays::Sought(vec![NodeId(4)])));
        // A gateway that was just started.
        let mut fresh = Seen::default();
        let others = |id: &u32| *id != 4;
        fresh.look(&map, &(0..10).filter(others).map(|id| says(id, Some(vec![]))).collect::<Vec<_>>());
        assert_eq!(checks(&fresh), Err(Stays::Unheard(vec![NodeId(4)])));
        fresh.look(&map, &[says(4, None)]);
        assert_eq!(checks(&fresh), Err(Stays::Unheard(vec![NodeId(4)])));
        fresh.look(&map, &[says(4, Some(vec![]))]);
        assert_eq!(checks(&fresh), Ok(()));
        // A target that cannot name all that are silent may mean any of them.
        fresh.look(&map, &[says(4, Some((20..28).collect()))]);
        assert_eq!(checks(&fresh), Err(Stays::Sought(vec![NodeId(4)])));
    }
}
