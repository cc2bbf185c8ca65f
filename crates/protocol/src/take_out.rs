//! Whether targets that were down for long may be taken out of the cluster map by a plan, with nobody who looks at it.
//!
//! What was acknowledged has copies in as many failure domains as puts were content with. Some of these may be out of the map already,
//! and until they were made again, those that are left may be on who goes next. So those count together that go before all is whole.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{Epoch, GroupId, NodeId};
use crate::map::{ClusterMap, MapError};
use crate::planner::Plan;
use crate::redundancy::Redundancy;
use crate::wire::HealthReport;

/// Who went of whose copies some may not have been made again, as far as was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    epoch: Option<Epoch>,
    /// The targets of that map, and their failure domains; none of those that [moved](ClusterMap::with_moved).
    present: BTreeMap<NodeId, Option<u16>>,
    /// Those that are not in it any more.
    gone: BTreeMap<NodeId, Option<u16>>,
    /// The groups that were not seen whole by that map.
    open: BTreeSet<GroupId>,
}

impl Earlier {
    /// The targets of the map in use say how their groups are.
    pub fn look(&mut self, map: &ClusterMap, reports: &[(NodeId, HealthReport)]) {
        if self.epoch != Some(map.epoch) {
            self.gone = self.gone_by(map);
            self.present = map.targets().map(|target| (target.id, lasting_domain(map, target.id))).collect();
            self.open = map.group_ids().collect();
            self.epoch = Some(map.epoch);
        }
        // Who was asked by an earlier map may have counted copies that are out now. A group need not be whole at the same time as others:
        // what it had when it was has its copies.
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

    /// Those of whom these may have the last copies that could be made again.
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
                let ids: Vec<String> = gone.iter().map(|id| id.0.to_string()).collect();
                let (targets, all) = (if ids.len() == 1 { "target" } else { "targets" }, ids.join(", "));
                write!(f, "copies of what {targets} {all} had are still being made, and it may have the last of some")
            }
        }
    }
}

/// In which domain all copies of a target count; none of one that counts for itself.
fn lasting_domain(map: &ClusterMap, id: NodeId) -> Option<u16> {
    map.domain(id).filter(|_| map.moved().all(|moved| moved != id))
}

/// Whether `plan`, which was made from the `present` map, may take out these targets. Objects are kept as the map says, or in one of
/// these other ways. `settled` is the map by which all was where it belongs when that was seen last, and `earlier` knows who went before.
///
/// # Errors
/// Why not.
pub fn check(
    present: &ClusterMap,
    out: &[NodeId],
    plan: &Plan,
    ways: impl IntoIterator<Item = Redundancy>,
    settled: Option<Epoch>,
    earlier: &Earlier,
) -> Result<(), Stays> {
    let ways: Vec<Redundancy> = ways.into_iter().collect();
    let all = || [None].into_iter().chain(ways.iter().copied().map(Some));
    if let Some(own) = all().find(|own| present.may_hide_kept(out, *own)) {
        return Err(Stays::LastCopies(own));
    }
    let gone = earlier.before(present, out);
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
            places: BTreeMap::new(),
            copies: map.copies,
            most: map.redundancy(),
            group_cells: map.group_cells(),
            overlap: map.overlap(),
            level: false,
        };
        planner::plan(map, &wish, 0).expect("a next map")
    }

    fn none() -> Earlier {
        Earlier::default()
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
        let mut earlier = Earlier::default();
        earlier.look(&first, &[]);
        let next = plan(&first, &[NodeId(2)]).map;
        let (here, there) = ([NodeId(3)], [NodeId(5)]);
        let checks = |earlier: &Earlier, out: &[NodeId]| check(&next, out, &plan(&next, out), [], None, earlier);
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
        let mut earlier = Earlier::default();
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
}
