//! With how few copies something is acknowledged while failure domains are down, and what silence may hide therefore.

use std::collections::BTreeSet;

use super::ClusterMap;
use crate::id::NodeId;
use crate::placement::Placement;
use crate::redundancy::Redundancy;

/// The fewest copies of what is kept with several copies of its own, whatever is down.
const LEAST: usize = 2;

/// With how few of so many copies a put is acknowledged where nothing else is said: one may lack when two remain.
pub(super) const fn min_copies_of(copies: u8) -> u8 {
    if copies > 2 { copies - 1 } else { copies }
}

impl ClusterMap {
    /// The same, whose puts are acknowledged with so few copies when no more failure domains are alive; one at least, and no more
    /// than all.
    #[must_use]
    pub fn with_min_copies(mut self, min_copies: u8) -> Self {
        let contents = self.contents();
        contents.min_copies = min_copies.clamp(1, contents.copies);
        self
    }

    /// The same, under an earlier map of which chunks had so few copies: silence that could hide one of those counts.
    #[must_use]
    pub fn with_fewest(mut self, copies: u8) -> Self {
        let contents = self.contents();
        contents.fewest_before = contents.fewest_before.min(copies);
        self
    }

    /// With how few copies or pieces a put of this is acknowledged when no more failure domains are alive; `None` is
    /// kept as the map says. A chunk with a redundancy of its own may lack as many copies as the map allows to be
    /// missing. But of several copies at least two are always made, and of a code at least one piece more than it can
    /// be read from.
    #[must_use]
    pub fn least(&self, own: Option<Redundancy>) -> usize {
        let few = self.min_copies.min(self.copies);
        match own {
            None => usize::from(few),
            Some(own) => {
                let least = own.pieces().min(own.enough() - 1 + LEAST);
                own.pieces().saturating_sub(usize::from(self.copies - few)).max(least)
            }
        }
    }

    /// The fewest copies with which something was acknowledged under this map or an earlier one, as far as it is known: of
    /// what is kept as the map says, or else with a number of copies of its own.
    #[must_use]
    pub fn fewest(&self, own: Option<Redundancy>) -> Redundancy {
        let fewest = match own {
            None => self.min_copies.min(self.fewest_before) as usize,
            Some(own) => own.as_copies(own.pieces()).min(LEAST),
        };
        Redundancy::Copies(fewest as u8)
    }

    /// The fewest copies of earlier maps, if that is known.
    #[must_use]
    pub fn fewest_before(&self) -> u8 {
        self.fewest_before
    }

    /// The most failure domains that these targets may have been in: each that is not in the map, or has
    /// [moved](Self::with_moved), counts for one of its own. No chunk has more acknowledged copies on them.
    #[must_use]
    pub fn most_domains(&self, targets: &[NodeId]) -> usize {
        let stays = |id: &NodeId| self.domain(*id).is_some() && self.moved.binary_search(id).is_err();
        let (known, alone): (Vec<NodeId>, Vec<NodeId>) = targets.iter().partition(|id| stays(id));
        let alone: BTreeSet<NodeId> = alone.into_iter().collect();
        self.count_domains(&known) + alone.len()
    }

    /// Whether these targets, when they are silent, may be the only ones that know of something that was acknowledged,
    /// which had copies in as many distinct domains as a put was content with then. Silence that hides nothing is as
    /// good as an answer. This is about what was put with the redundancy of the map;
    /// [`may_hide_kept`](Self::may_hide_kept) is about what was put with a redundancy of its own.
    #[must_use]
    pub fn may_hide(&self, silent: &[NodeId]) -> bool {
        self.may_hide_kept(silent, None)
    }

    /// The same of what was put with its own redundancy; `None` is as the map says.
    #[must_use]
    pub fn may_hide_kept(&self, silent: &[NodeId], own: Option<Redundancy>) -> bool {
        self.fewest(own).is_met(self.most_domains(silent))
    }

    /// The groups, by their places among [all](Self::group_ids), in which some chunk that is kept so (`None` is as the
    /// map says) may be on these silent targets alone. The chunk is with the group, or where it was by the layout
    /// before. A target that was taken out since then does not answer any more either.
    #[must_use]
    pub fn out_of_reach(&self, silent: &[NodeId], own: Option<Redundancy>) -> Vec<usize> {
        let hides = |of: &Placement, place: usize| {
            let group: Vec<NodeId> = of.layout().group(place).collect();
            let is_away = |id: &NodeId| silent.contains(id) || self.target(*id).is_none();
            let away: Vec<NodeId> = group.iter().copied().filter(is_away).collect();
            group.iter().any(|id| silent.contains(id)) && self.may_hide_kept(&away, own)
        };
        let now = self.placement.leads().iter().map(|place| *place as usize);
        let mut places: BTreeSet<usize> = now.filter(|place| hides(&self.placement, *place)).collect();
        if let Some(previous) = self.previous() {
            let before: BTreeSet<usize> = previous.layout().leads().filter(|place| hides(previous, *place)).collect();
            // Mostly no target is silent.
            let pairs = if before.is_empty() { BTreeSet::new() } else { previous.pairs(&self.placement) };
            places.extend(pairs.into_iter().filter(|(from, _)| before.contains(from)).map(|(_, to)| to));
        }
        (0..)
            .zip(self.placement.leads())
            .filter(|(_, place)| places.contains(&(**place as usize)))
            .map(|(n, _)| n)
            .collect()
    }
}
