//! Whether targets that were down for long may be taken out of the cluster map by a plan, with nobody who looks at it.

use core::fmt;

use crate::id::{Epoch, NodeId};
use crate::map::{ClusterMap, MapError};
use crate::planner::Plan;
use crate::redundancy::Redundancy;

/// Why they stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stays {
    /// Every copy of something may be on them that is kept so; `None` is as the map says.
    LastCopies(Option<Redundancy>),
    /// The next map could not keep something apart.
    TooFewDomains(MapError),
    /// The next map would forget where something may still be.
    Forgets,
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LastCopies(_) => f.write_str("all that there is of some objects may be on it"),
            Self::TooFewDomains(error) => error.fmt(f),
            Self::Forgets => f.write_str(
                "the map has a layout before it, where some of what is stored may still be, and the next one would forget that",
            ),
        }
    }
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
) -> Result<(), Stays> {
    let ways: Vec<Redundancy> = ways.into_iter().collect();
    let all = [None].into_iter().chain(ways.iter().copied().map(Some));
    if let Some(own) = all.into_iter().find(|own| present.may_hide_kept(out, *own)) {
        return Err(Stays::LastCopies(own));
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
    use crate::id::ClusterId;
    use crate::map::TargetEntry;
    use crate::planner::{self, Wish};

    /// Two targets a domain.
    fn map() -> ClusterMap {
        let entry = |n: u32| TargetEntry { id: NodeId(n), domain: (n / 2) as u16, capacity: 1 << 30 };
        ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, (0..10).map(entry).collect()).expect("a good map")
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

    #[test]
    fn those_stay_that_may_have_every_copy_of_something() {
        let map = map();
        let one = [NodeId(2), NodeId(3)];
        assert_eq!(check(&map, &one, &plan(&map, &one), [], None), Ok(()), "one domain");
        let single = Redundancy::Copies(1);
        assert_eq!(check(&map, &one, &plan(&map, &one), [single], None), Err(Stays::LastCopies(Some(single))));
        let two = [NodeId(2), NodeId(5)];
        assert_eq!(
            check(&map, &two, &plan(&map, &two), [], None),
            Err(Stays::LastCopies(None)),
            "two of three are enough"
        );
    }

    #[test]
    fn nothing_is_forgotten_before_all_is_where_it_belongs() {
        let map = map();
        let out = [NodeId(2)];
        let plan = Plan { forgets: true, ..plan(&map, &out) };
        assert_eq!(check(&map, &out, &plan, [], None), Err(Stays::Forgets));
        assert_eq!(check(&map, &out, &plan, [], Some(Epoch(0))), Err(Stays::Forgets));
        assert_eq!(check(&map, &out, &plan, [], Some(Epoch(1))), Ok(()));
        let many = Redundancy::Copies(5);
        let refused = check(&map, &out, &plan, [many], Some(Epoch(1)));
        assert_eq!(refused.is_err(), plan.map.can_keep(many).is_err());
    }
}
