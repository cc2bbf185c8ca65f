//! How a cluster is by all that its stewards say.

use std::collections::BTreeMap;

use crate::health::Lacks;
use crate::id::{Epoch, GroupId, NodeId};
use crate::wire::HealthReport;

/// What all stewards say of their groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overview {
    /// What has too few copies.
    pub lacks: Lacks,
    /// Groups of which no steward says anything.
    pub unknown_groups: usize,
    /// Whether all groups are known to lack nothing, nothing is under way, and no target is silent.
    pub whole: bool,
}

impl Overview {
    /// What these reports say of the groups of the map of this epoch. Where two speak of one group, the worse report
    /// counts. While a target is silent, the reports may be from before its silence; and what was found by another map
    /// says nothing of the groups of this epoch.
    pub fn of(
        epoch: Epoch,
        groups: impl Iterator<Item = GroupId>,
        reports: &[(NodeId, HealthReport)],
        is_silent: bool,
    ) -> Self {
        let mut known: BTreeMap<GroupId, (Lacks, bool)> = BTreeMap::new();
        let current = reports.iter().filter(|(_, report)| report.epoch == epoch);
        for (group, health) in current.flat_map(|(_, report)| &report.groups) {
            let (lacks, whole) = known.entry(*group).or_insert((health.lacks, true));
            *whole &= health.whole;
            if health.lacks.at_risk() > lacks.at_risk() {
                *lacks = health.lacks;
            }
        }
        let (mut all, mut whole, mut unknown_groups) = (Lacks::default(), true, 0);
        for group in groups {
            match known.get(&group) {
                Some((lacks, is_whole)) => {
                    all.add(lacks);
                    whole &= is_whole;
                }
                None => unknown_groups += 1,
            }
        }
        let quiet = reports.iter().all(|(_, report)| report.restoring == 0);
        whole &= !is_silent && unknown_groups == 0 && quiet && all.is_none();
        Self { lacks: all, unknown_groups, whole }
    }
}
