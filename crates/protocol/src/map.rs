//! The cluster map and what follows from it: cells, negotiating groups, and the ranking of a group for one chunk.
//!
//! Targets are dealt into cells of (at least) as many targets as copies, in distinct failure domains as far as the map
//! allows; a negotiating group is a few consecutive cells of the ring of cells. All of it is computed from the map, so
//! nobody stores or looks up where a chunk is.

use core::fmt;
use std::sync::Arc;

use crate::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId};
use crate::limits;
use crate::rng::mix;

/// One target as the map knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// Its id, below [`NodeId::FIRST_INITIATOR`].
    pub id: NodeId,
    /// The failure domain: copies of one chunk are kept in distinct ones.
    pub domain: u16,
    /// Bytes it may hold, which weighs its group in the placement.
    pub capacity: u64,
}

/// The targets of a cluster and how chunks are laid over them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Version of this map: a larger one is newer.
    pub epoch: Epoch,
    /// Copies of every chunk.
    pub copies: u8,
    /// The fewest copies that this map or an earlier one had: what was put then has no more.
    fewest: u8,
    /// Shared, so that a copy of the map costs nothing.
    cells: Arc<[Vec<TargetEntry>]>,
    /// Targets that were in other failure domains when they took what they hold, in order.
    moved: Arc<[NodeId]>,
    /// Where each target is, by its id: cell and place.
    places: Arc<[(NodeId, u32, u32)]>,
    /// How often each group draws for a chunk: its capacity in sixteenths of the largest.
    draws: Arc<[u64]>,
    /// What a chunk's key is mixed with for each draw, group by group: nothing that depends on the map alone is mixed twice.
    salts: Arc<[u64]>,
    /// Cells in a group.
    group_cells: usize,
    /// Cells from the first of a group to the first of the next.
    step: usize,
    /// Places of a cell in a member mask: the size of the largest cell.
    stride: u32,
}

/// Some targets, named by their places in consecutive cells: bit `stride * i + j` is member `j` of cell `cell + i`.
/// The address of a multicast group is computed from this; nothing is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSet {
    /// The first cell.
    pub cell: u32,
    /// The members, relative to the first cell.
    pub mask: u32,
}

/// Why a map cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapError {
    /// Copies must be 1 to [`limits::COPIES`].
    Copies(u8),
    /// Two targets have one id.
    DuplicateId(NodeId),
    /// An id at or above [`NodeId::FIRST_INITIATOR`].
    IdTooLarge(NodeId),
    /// Fewer failure domains with a target than copies.
    TooFewDomains {
        /// Copies asked for.
        copies: u8,
        /// Targets in the map.
        targets: usize,
        /// Distinct domains among them.
        domains: usize,
    },
    /// A group whose targets are in fewer failure domains than copies: its puts could never succeed.
    UnevenDomains {
        /// Copies asked for.
        copies: u8,
        /// Distinct domains in the group.
        domains: usize,
        /// Its targets.
        members: Vec<NodeId>,
    },
    /// More members in a group than a mask has bits.
    GroupTooLarge {
        /// Cells to a group.
        cells: usize,
        /// Targets in the largest cell.
        stride: u32,
    },
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(n) => write!(f, "copies = {n}: choose 1 to {}", limits::COPIES),
            Self::DuplicateId(id) => {
                write!(f, "two targets have the id {}: give each its own", id.0)
            }
            Self::IdTooLarge(id) => {
                write!(f, "target id {} is too large: choose one below {}", id.0, NodeId::FIRST_INITIATOR)
            }
            Self::TooFewDomains { copies, targets, domains } => write!(
                f,
                "{copies} copies need {copies} failure domains, but the {targets} targets are in {domains}: add targets or \
                 domains, or ask for fewer copies"
            ),
            Self::UnevenDomains { copies, domains, members } => write!(
                f,
                "{copies} copies need {copies} failure domains in every group, but the group of the targets {} has \
                 {domains}: spread the targets evenly over the domains, raise group_cells, or ask for fewer copies",
                members.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(", ")
            ),
            Self::GroupTooLarge { cells, stride } => write!(
                f,
                "a group of {cells} cells of up to {stride} targets is larger than {}: lower group_cells",
                limits::GROUP_MEMBERS
            ),
        }
    }
}

impl core::error::Error for MapError {}

impl ClusterMap {
    /// Lays `targets` out in cells of about `copies` targets and groups of (at most) `group_cells` cells.
    ///
    /// # Errors
    /// When the targets cannot hold the copies apart; see [`MapError`].
    pub fn new(
        cluster: ClusterId,
        epoch: Epoch,
        copies: u8,
        group_cells: usize,
        mut targets: Vec<TargetEntry>,
    ) -> Result<Self, MapError> {
        if copies == 0 || usize::from(copies) > limits::COPIES {
            return Err(MapError::Copies(copies));
        }
        targets.sort_by_key(|t| t.id);
        if let Some(pair) = targets.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(MapError::DuplicateId(pair[0].id));
        }
        if let Some(t) = targets.iter().find(|t| t.id.is_initiator()) {
            return Err(MapError::IdTooLarge(t.id));
        }
        let cells = deal(targets, copies)?;
        let stride = cells.iter().map(Vec::len).max().unwrap_or(0) as u32;
        let group_cells = group_cells.clamp(1, cells.len().max(1));
        if group_cells as u32 * stride > limits::GROUP_MEMBERS as u32 {
            return Err(MapError::GroupTooLarge { cells: group_cells, stride });
        }
        let all =
            cells.iter().enumerate().flat_map(|(c, cell)| cell.iter().enumerate().map(move |(p, t)| (t.id, c, p)));
        let mut places: Vec<(NodeId, u32, u32)> = all.map(|(id, c, p)| (id, c as u32, p as u32)).collect();
        places.sort_unstable();
        let (cells, places) = (cells.into(), places.into());
        let mut map = Self {
            cluster,
            epoch,
            copies,
            fewest: copies,
            cells,
            moved: Arc::new([]),
            places,
            draws: Arc::new([]),
            salts: Arc::new([]),
            group_cells,
            step: 1,
            stride,
        };
        map.weigh();
        map.check_domains()?;
        Ok(map)
    }

    /// The same targets in groups that share no cell (but for the last one, when they do not come out even): each is busy
    /// with what one leader grants only. Neighbours that share cells even out the load better. To change this for a cluster
    /// moves the groups of most chunks.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.step = self.group_cells;
        self.weigh();
        self
    }

    /// The same, in which these targets may have been in other failure domains when they took what they hold: copies that
    /// were apart may be in one domain now, so the silence of each of these counts for itself.
    #[must_use]
    pub fn with_moved(mut self, moved: impl IntoIterator<Item = NodeId>) -> Self {
        let all: std::collections::BTreeSet<NodeId> = self.moved.iter().copied().chain(moved).collect();
        self.moved = all.into_iter().collect();
        self
    }

    /// The same, under an earlier map of which chunks had so few copies: silence that could hide one of those counts.
    #[must_use]
    pub fn with_fewest(mut self, copies: u8) -> Self {
        self.fewest = self.fewest.min(copies);
        self
    }

    /// The fewest copies that this map or an earlier one had, as far as it is known.
    #[must_use]
    pub const fn fewest(&self) -> u8 {
        self.fewest
    }

    /// Who has [moved](Self::with_moved).
    pub fn moved(&self) -> impl Iterator<Item = NodeId> {
        self.moved.iter().copied()
    }

    /// The same after `older`: who shares a domain now with others that were in another has [moved](Self::with_moved), and
    /// so has who had before. Of those that came from different domains the larger number stayed. What was put with fewer
    /// copies still has no more ([`Self::with_fewest`]).
    #[must_use]
    pub fn after(self, older: &Self) -> Self {
        let mut from: std::collections::BTreeMap<u16, std::collections::BTreeMap<u16, Vec<NodeId>>> =
            Default::default();
        for target in self.targets() {
            if let Some(before) = older.domain(target.id) {
                from.entry(target.domain).or_default().entry(before).or_default().push(target.id);
            }
        }
        let mut moved = older.moved.to_vec();
        for mut parts in from.into_values() {
            let stayed = parts.iter().max_by_key(|(before, part)| (part.len(), core::cmp::Reverse(**before)));
            let stayed = stayed.map(|(before, _)| *before);
            stayed.map(|before| parts.remove(&before));
            moved.extend(parts.into_values().flatten());
        }
        self.with_moved(moved).with_fewest(older.fewest)
    }

    fn weigh(&mut self) {
        let capacity = |g| self.members(GroupId(g)).map(|t| t.capacity >> 20).fold(0, u64::saturating_add);
        let weights: Vec<u64> = (0..self.groups()).map(capacity).collect();
        let largest = u128::from(weights.iter().copied().max().unwrap_or(0).max(1));
        self.draws = weights.iter().map(|weight| (u128::from(*weight) * 16).div_ceil(largest).max(1) as u64).collect();
        let salts = |(g, draws): (usize, &u64)| (0..*draws).map(move |d| mix((g as u64) << 8 | d));
        self.salts = self.draws.iter().enumerate().flat_map(salts).collect();
    }

    /// Dealing keeps domains apart as far as it can; this says whether that was far enough.
    fn check_domains(&self) -> Result<(), MapError> {
        for group in (0..self.groups()).map(GroupId) {
            let domains = self.members(group).map(|t| t.domain).collect::<std::collections::BTreeSet<u16>>().len();
            if domains < usize::from(self.copies) {
                let members = self.members(group).map(|t| t.id).collect();
                return Err(MapError::UnevenDomains { copies: self.copies, domains, members });
            }
        }
        Ok(())
    }

    /// Every target, cell by cell.
    pub fn targets(&self) -> impl Iterator<Item = &TargetEntry> {
        self.cells.iter().flatten()
    }

    /// The entry of one target.
    #[must_use]
    pub fn target(&self, id: NodeId) -> Option<&TargetEntry> {
        // Where ids count from 0 without gaps, a target's place is its number.
        let direct = self.places.get(id.0 as usize).filter(|(target, ..)| *target == id);
        let (_, cell, place) = match direct {
            Some(place) => *place,
            None => self.places[self.places.binary_search_by_key(&id, |(target, ..)| *target).ok()?],
        };
        self.cells[cell as usize].get(place as usize)
    }

    /// How many groups there are: one for each cell, a single one when it spans every cell, or so many that they are
    /// [`apart`](Self::apart).
    #[must_use]
    pub fn groups(&self) -> u32 {
        if self.group_cells == self.cells.len() { 1 } else { self.cells.len().div_ceil(self.step.max(1)) as u32 }
    }

    /// The first cell of a group.
    const fn first_cell(&self, group: GroupId) -> usize {
        (group.0 as usize).saturating_mul(self.step)
    }

    /// Number of cells in the ring.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Number of cells in a group.
    #[must_use]
    pub const fn group_cells(&self) -> usize {
        self.group_cells
    }

    /// Bits of a mask that a whole group takes.
    #[must_use]
    pub fn mask_bits(&self) -> u32 {
        self.stride * self.group_cells as u32
    }

    /// The negotiating group of a chunk: rendezvous hashing over the groups, weighted by capacity (a group draws once
    /// for each sixteenth of the largest group's capacity; the highest draw wins).
    #[must_use]
    pub fn group_of(&self, chunk: &ChunkId) -> GroupId {
        let groups = self.groups();
        if groups == 1 {
            return GroupId(0);
        }
        let key = fold(chunk.placement_key());
        let mut salts = &*self.salts;
        let mut best = (0, 0);
        for (group, draws) in (0..groups).zip(&*self.draws) {
            let (own, rest) = salts.split_at(*draws as usize);
            salts = rest;
            let score = own.iter().map(|salt| mix(key ^ salt)).fold(0, u64::max);
            // Among equals the last.
            if score >= best.0 {
                best = (score, group);
            }
        }
        GroupId(best.1)
    }

    /// The targets of a group.
    pub fn members(&self, group: GroupId) -> impl Iterator<Item = &TargetEntry> {
        let count = self.cells.len().max(1);
        (0..self.group_cells).flat_map(move |i| self.cells[(self.first_cell(group) + i) % count].iter())
    }

    /// A whole group as a member set.
    #[must_use]
    pub fn group_set(&self, group: GroupId) -> MemberSet {
        self.set_of(group, |_| true).unwrap_or(MemberSet { cell: self.first_cell(group) as u32, mask: 0 })
    }

    /// The members of `group` that `keep` takes, in normal form: the first cell has a member, so that overlapping
    /// groups name the same targets alike. `None` when nobody is kept.
    #[must_use]
    pub fn set_of(&self, group: GroupId, keep: impl Fn(NodeId) -> bool) -> Option<MemberSet> {
        let count = self.cells.len();
        let mut first = None;
        let mut mask = 0;
        for i in 0..self.group_cells {
            let cell = (self.first_cell(group) + i) % count.max(1);
            for (j, target) in self.cells[cell].iter().enumerate() {
                if keep(target.id) {
                    let start = *first.get_or_insert(i);
                    mask |= 1_u32 << ((i - start) as u32 * self.stride + j as u32);
                }
            }
        }
        let start = first?;
        Some(MemberSet { cell: ((self.first_cell(group) + start) % count) as u32, mask })
    }

    /// The targets that a member set names, in the order of its bits.
    pub fn resolve(&self, set: MemberSet) -> impl Iterator<Item = NodeId> + '_ {
        let count = self.cells.len() as u32;
        (0..32_u32).filter(move |bit| set.mask >> bit & 1 == 1).filter_map(move |bit| {
            let cell = (set.cell.checked_add(bit / self.stride.max(1))?).checked_rem(count)?;
            self.cells.get(cell as usize)?.get((bit % self.stride.max(1)) as usize).map(|t| t.id)
        })
    }

    /// A number below 2^24 for a member set, from which drivers compute its multicast address: the highest bit, the
    /// cell, the mask. `None` when they do not fit, or a group is so large that a target would have to listen to
    /// thousands of sets: then the sets of this map have none.
    #[must_use]
    pub fn number(&self, set: MemberSet) -> Option<u32> {
        let bits = self.mask_bits();
        let cells = 32 - self.cells().saturating_sub(1).leading_zeros();
        (bits <= limits::ADDRESSED && bits + cells <= 23).then(|| 1 << 23 | set.cell << bits | set.mask)
    }

    /// Every multicast set that `target` must listen to: each group it is in, and each subset of 2 to `copies`
    /// members of a group that it belongs to. None where sets have no [`number`](Self::number).
    #[must_use]
    pub fn memberships(&self, target: NodeId) -> Vec<MemberSet> {
        if self.mask_bits() > limits::ADDRESSED {
            return Vec::new();
        }
        let mut sets = std::collections::BTreeSet::new();
        for group in (0..self.groups()).map(GroupId) {
            let members: Vec<NodeId> = self.members(group).map(|t| t.id).collect();
            if !members.contains(&target) {
                continue;
            }
            sets.insert(self.group_set(group));
            for mask in 0_u32..1 << members.len() {
                let chosen = |id: NodeId| members.iter().position(|m| *m == id).is_some_and(|p| mask >> p & 1 == 1);
                if (2..=u32::from(self.copies)).contains(&mask.count_ones()) && chosen(target) {
                    sets.extend(self.set_of(group, chosen));
                }
            }
        }
        sets.into_iter().collect()
    }

    /// The targets of the chunk's group in the order in which consistent hashing prefers them for it.
    #[must_use]
    pub fn ranked(&self, chunk: &ChunkId) -> Vec<NodeId> {
        let members = self.members(self.group_of(chunk)).map(|t| t.id).collect();
        Self::ranked_among(chunk, members)
    }

    /// The same of these, which are the members of the chunk's group.
    pub(crate) fn ranked_among(chunk: &ChunkId, mut members: Vec<NodeId>) -> Vec<NodeId> {
        let key = fold(chunk.placement_key());
        members.sort_by_cached_key(|id| (core::cmp::Reverse(mix(key ^ mix(u64::from(id.0) | 1 << 40))), *id));
        members
    }

    /// The failure domain of a target, `None` when the map does not know it.
    #[must_use]
    pub fn domain(&self, id: NodeId) -> Option<u16> {
        self.target(id).map(|t| t.domain)
    }

    /// In how many distinct failure domains these targets are: so many copies are apart. Who is not in the map counts for
    /// nothing.
    #[must_use]
    pub fn domains(&self, targets: &[NodeId]) -> usize {
        let mut seen: Vec<u16> = targets.iter().filter_map(|t| self.domain(*t)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }

    /// In how many failure domains these targets were at most, each in one of its own that is not in the map or has
    /// [moved](Self::with_moved): of no chunk have they more copies that were acknowledged.
    #[must_use]
    pub fn span(&self, targets: &[NodeId]) -> usize {
        let stays = |id: &NodeId| self.domain(*id).is_some() && self.moved.binary_search(id).is_err();
        let (known, alone): (Vec<NodeId>, Vec<NodeId>) = targets.iter().partition(|id| stays(id));
        let alone: std::collections::BTreeSet<NodeId> = alone.into_iter().collect();
        self.domains(&known) + alone.len()
    }

    /// Whether these targets, when they are silent, may be all that know of something that was acknowledged: it had copies
    /// in as many distinct domains as there were copies then. Silence that hides nothing is as good as an answer.
    #[must_use]
    pub fn may_hide(&self, silent: &[NodeId]) -> bool {
        self.span(silent) >= usize::from(self.fewest)
    }
}

/// Deals targets into `len / copies` cells: domain by domain, largest first, round the cells, so that a cell has two
/// targets of one domain only when the domain is larger than the number of cells.
fn deal(targets: Vec<TargetEntry>, copies: u8) -> Result<Vec<Vec<TargetEntry>>, MapError> {
    let count = targets.len();
    let mut domains: std::collections::BTreeMap<u16, Vec<TargetEntry>> = std::collections::BTreeMap::new();
    for target in targets {
        domains.entry(target.domain).or_default().push(target);
    }
    if domains.len() < usize::from(copies) {
        return Err(MapError::TooFewDomains { copies, targets: count, domains: domains.len() });
    }
    let mut cells: Vec<Vec<TargetEntry>> = vec![Vec::new(); count / usize::from(copies)];
    let mut order: Vec<Vec<TargetEntry>> = domains.into_values().collect();
    order.sort_by_key(|d| core::cmp::Reverse(d.len()));
    let ring = cells.len();
    for (at, target) in order.into_iter().flatten().enumerate() {
        cells[at % ring].push(target);
    }
    Ok(cells)
}

/// A placement key in 64 bits. Ids are hashes already, so any eight bytes serve.
fn fold(key: &[u8]) -> u64 {
    key.chunks(8).fold(0, |acc, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(acc ^ u64::from_le_bytes(word))
    })
}
