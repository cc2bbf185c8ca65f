//! The cluster map: the nodes that there are, and what follows from the layout of the cells: the negotiating group of a
//! chunk, the ranking of a group for one chunk, the member sets that have multicast addresses, and what silence may
//! hide.

mod document;
mod error;
mod silence;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::goal::Goal;
use crate::id::{ChunkId, ClusterId, Epoch, GroupId, NodeId};
use crate::limits;
use crate::placement::deal;
use crate::placement::{Cell, Layout, Placement, fold};
use crate::redundancy::Redundancy;
use crate::rng::mix;
use crate::time::Span;

pub use crate::placement::TargetEntry;
pub use document::MapDocument;
pub use error::MapError;

/// The targets of a cluster and how chunks are laid over them. Shared: a copy of the map costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap(Arc<Contents>);

/// What is kept for maintenance where nothing else is said, in percent.
const MAINTENANCE_FLOOR: u8 = 2;

/// What a [`ClusterMap`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Version of this map: a larger one is newer.
    pub epoch: Epoch,
    /// Copies of every chunk.
    pub copies: u8,
    /// The fewest failure domains that a put under this map is acknowledged with, when no more are alive.
    min_copies: u8,
    /// The same of earlier maps, when that was fewer: what was put then may have no more.
    fewest_before: u8,
    /// What is kept for maintenance of the time of each disk and port, in percent.
    maintenance_floor: u8,
    /// Whether copies stay where they are for now.
    moves_paused: bool,
    /// For how long a target that said that it stops is not down.
    restart_within: Option<Span>,
    /// Those that aggregate.
    aggregators: Arc<[NodeId]>,
    /// Every target, by id. What is long is shared with the maps that are made of this one.
    targets: Arc<[TargetEntry]>,
    /// Targets that were in other failure domains when they took what they hold, in order.
    moved: Arc<[NodeId]>,
    /// Whether neighbouring groups share cells: for the maker of the next map.
    overlap: bool,
    placement: Arc<Placement>,
    previous: Option<Arc<Placement>>,
    /// The targets of each cell, in the order of the ring.
    cells: Arc<[Vec<TargetEntry>]>,
    /// Bits of a mask in a multicast address; `None` where member sets have none.
    mask_bits: Option<u32>,
    document: Option<MapDocument>,
}

/// Some targets, named by their places in consecutive cells: bit `n` is the target at place `n` of the cell `cell` and of
/// those that follow it in the ring, one after the other. The address of a multicast group is computed from this; nothing
/// is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberSet {
    /// The id of the first cell.
    pub cell: u32,
    /// The members, relative to the first cell.
    pub mask: u32,
}

impl core::ops::Deref for ClusterMap {
    type Target = Contents;

    fn deref(&self) -> &Contents {
        &self.0
    }
}

impl ClusterMap {
    /// The first map of a cluster: lays `targets` out in cells of about `copies` targets and groups of (at most)
    /// `group_cells` cells.
    ///
    /// # Errors
    /// When the targets cannot hold the copies apart; see [`MapError`].
    pub fn new(
        cluster: ClusterId,
        epoch: Epoch,
        copies: u8,
        group_cells: usize,
        targets: Vec<TargetEntry>,
    ) -> Result<Self, MapError> {
        let targets = checked(copies, targets)?;
        let layout = deal::first(&targets, copies, group_cells, true)?;
        Self::build(cluster, epoch, copies, targets, layout)
    }

    /// The map of a cluster whose file names no cells, since it was dealt anew at each change: each chunk is in the group in
    /// which it was.
    ///
    /// # Errors
    /// When the targets cannot hold the copies apart; see [`MapError`].
    pub fn taken_over(
        cluster: ClusterId,
        epoch: Epoch,
        copies: u8,
        group_cells: usize,
        overlap: bool,
        targets: Vec<TargetEntry>,
    ) -> Result<Self, MapError> {
        let targets = checked(copies, targets)?;
        let layout = deal::before(&targets, copies, group_cells, overlap)?;
        Ok(Self::build(cluster, epoch, copies, targets, layout)?.with_overlap(overlap))
    }

    /// The map with this layout. Targets that are in no cell are drained: they may hold chunks, and take none.
    ///
    /// # Errors
    /// When the layout is not of these targets, or does not hold the copies apart; see [`MapError`].
    pub fn with_layout(
        cluster: ClusterId,
        epoch: Epoch,
        copies: u8,
        targets: Vec<TargetEntry>,
        layout: Layout,
    ) -> Result<Self, MapError> {
        let targets = checked(copies, targets)?;
        layout.check().map_err(MapError::Layout)?;
        Self::build(cluster, epoch, copies, targets, layout)
    }

    fn build(
        cluster: ClusterId,
        epoch: Epoch,
        copies: u8,
        targets: Vec<TargetEntry>,
        layout: Layout,
    ) -> Result<Self, MapError> {
        let find = |cell: u32, id: NodeId| {
            let found = targets.binary_search_by_key(&id, |target| target.id).map(|at| targets[at].clone());
            found.map_err(|_| MapError::Stranger { cell, target: id })
        };
        let entries = |cell: &Cell| cell.targets.iter().map(|id| find(cell.id, *id)).collect();
        let cells = layout.cells.iter().map(entries).collect::<Result<Vec<Vec<TargetEntry>>, MapError>>()?;
        let mut map = Self(Arc::new(Contents {
            cluster,
            epoch,
            copies,
            min_copies: silence::min_copies_of(copies),
            fewest_before: limits::COPIES as u8,
            maintenance_floor: MAINTENANCE_FLOOR,
            moves_paused: false,
            restart_within: None,
            aggregators: Arc::default(),
            targets: targets.into(),
            moved: Arc::new([]),
            overlap: true,
            placement: Arc::new(Placement::of(layout)),
            previous: None,
            cells: cells.into(),
            mask_bits: None,
            document: None,
        }));
        map.check_groups()?;
        map.contents().mask_bits = map.address_bits();
        Ok(map)
    }

    /// To change it: a map of which there are copies is copied first.
    fn contents(&mut self) -> &mut Contents {
        Arc::make_mut(&mut self.0)
    }

    /// The same targets, laid out anew in groups that share no cell: each is busy with what one leader grants only. Neighbours
    /// that share cells even out the load better. To change this for a cluster moves the groups of most chunks.
    ///
    /// # Errors
    /// When a group would lack failure domains; see [`MapError`].
    pub fn with_disjoint_groups(self) -> Result<Self, MapError> {
        let layout = deal::first(&self.targets, self.copies, self.placement.layout().group_cells, false)?;
        let disjoint = Self::build(self.cluster, self.epoch, self.copies, self.targets.to_vec(), layout)?;
        Ok(disjoint.with_overlap(false).after(&self))
    }

    /// The same, when its next maps are to be made with groups that overlap, or not.
    #[must_use]
    pub fn with_overlap(mut self, overlap: bool) -> Self {
        self.contents().overlap = overlap;
        self
    }

    /// The same, after a map in which chunks were elsewhere.
    #[must_use]
    pub fn with_previous(mut self, previous: Option<Placement>) -> Self {
        self.contents().previous = previous.map(Arc::new);
        self
    }

    /// The same, in which these targets may have been in other failure domains when they took what they hold: copies that
    /// were apart may be in one domain now, so the silence of each of these counts for itself.
    #[must_use]
    pub fn with_moved(mut self, moved: impl IntoIterator<Item = NodeId>) -> Self {
        let all: BTreeSet<NodeId> = self.moved.iter().copied().chain(moved).collect();
        self.contents().moved = all.into_iter().collect();
        self
    }

    /// The same, which keeps so much of the time of each disk and port for maintenance, in percent.
    #[must_use]
    pub fn with_maintenance_floor(mut self, percent: u8) -> Self {
        self.contents().maintenance_floor = percent.min(100);
        self
    }

    /// The same, by which copies move to where the map has them, and to emptier targets, or stay for now where they are. What is lost is
    /// made again in any case.
    #[must_use]
    pub fn with_moves_paused(mut self, paused: bool) -> Self {
        self.contents().moves_paused = paused;
        self
    }

    /// The same, by which a target that said that it stops is not down for so long.
    #[must_use]
    pub fn with_restart_within(mut self, span: Span) -> Self {
        self.contents().restart_within = Some(span);
        self
    }

    /// The same, in which these aggregate what initiators put.
    #[must_use]
    pub fn with_aggregators(mut self, aggregators: impl IntoIterator<Item = NodeId>) -> Self {
        self.contents().aggregators = aggregators.into_iter().collect();
        self
    }

    /// Those that aggregate what initiators put.
    #[must_use]
    pub fn aggregators(&self) -> &[NodeId] {
        &self.aggregators
    }

    /// For how long a target that said that it stops is not down; `None`: as the configuration of the node that looks
    /// says.
    #[must_use]
    pub fn restart_within(&self) -> Option<Span> {
        self.restart_within
    }

    /// Whether copies stay where they are for now.
    #[must_use]
    pub fn moves_paused(&self) -> bool {
        self.moves_paused
    }

    /// What is kept for maintenance of the time of each disk and port, in percent.
    #[must_use]
    pub fn maintenance_floor(&self) -> u8 {
        self.maintenance_floor
    }

    /// The same, as it is handed to other nodes.
    #[must_use]
    pub fn with_document(mut self, document: Option<MapDocument>) -> Self {
        self.contents().document = document;
        self
    }

    /// As it is handed to other nodes; without, it is not.
    #[must_use]
    pub fn document(&self) -> Option<&MapDocument> {
        self.document.as_ref()
    }

    /// The same with another number of copies, for planted bugs: nothing is checked.
    #[must_use]
    pub(crate) fn with_copies(mut self, copies: u8) -> Self {
        self.contents().copies = copies;
        self
    }

    /// How chunks are kept that are put with no redundancy of their own.
    #[must_use]
    pub fn redundancy(&self) -> Redundancy {
        Redundancy::Copies(self.copies)
    }

    /// The targets that have [moved](Self::with_moved).
    pub fn moved(&self) -> impl Iterator<Item = NodeId> {
        self.moved.iter().copied()
    }

    /// The same after `older`: a target that now shares a domain with others that were in another one has
    /// [moved](Self::with_moved). So has a target that had moved before, while it is in the map. Of targets that came
    /// from different domains the larger number stayed. What was put with fewer copies still has no more
    /// ([`Self::with_fewest`]).
    #[must_use]
    pub fn after(self, older: &Self) -> Self {
        let mut from: std::collections::BTreeMap<u16, std::collections::BTreeMap<u16, Vec<NodeId>>> =
            Default::default();
        for target in self.targets() {
            if let Some(before) = older.domain(target.id) {
                from.entry(target.domain).or_default().entry(before).or_default().push(target.id);
            }
        }
        // A target that is not in the map counts for itself anyway, and one that comes later with its id holds nothing
        // of it.
        let mut moved: Vec<NodeId> = older.moved().filter(|id| self.target(*id).is_some()).collect();
        for mut parts in from.into_values() {
            let stayed = parts.iter().max_by_key(|(before, part)| (part.len(), core::cmp::Reverse(**before)));
            let stayed = stayed.map(|(before, _)| *before);
            stayed.map(|before| parts.remove(&before));
            moved.extend(parts.into_values().flatten());
        }
        self.with_moved(moved).with_fewest(older.min_copies.min(older.fewest_before))
    }

    /// Whether every group is small enough to be addressed, and has the failure domains that it needs.
    fn check_groups(&self) -> Result<(), MapError> {
        for group in self.group_ids() {
            let members = self.members(group).count();
            if members > limits::GROUP_MEMBERS {
                return Err(MapError::GroupTooLarge { cells: self.group_cells(), members });
            }
        }
        self.can_keep(self.redundancy())
    }

    /// Whether every group has as many failure domains as there are pieces: dealing and planning keep them apart as far as
    /// they can.
    ///
    /// # Errors
    /// [`MapError::UnevenDomains`]: puts to that group could never succeed.
    pub fn can_keep(&self, redundancy: Redundancy) -> Result<(), MapError> {
        for group in self.group_ids() {
            let domains = self.members(group).map(|t| t.domain).collect::<BTreeSet<u16>>().len();
            if !redundancy.is_met(domains) {
                let members = self.members(group).map(|t| t.id).collect();
                return Err(MapError::UnevenDomains { redundancy, domains, members });
            }
        }
        Ok(())
    }

    /// Every target, by id, those that are drained as well.
    pub fn targets(&self) -> impl Iterator<Item = &TargetEntry> {
        self.targets.iter()
    }

    /// The entry of one target.
    #[must_use]
    pub fn target(&self, id: NodeId) -> Option<&TargetEntry> {
        // Where ids count from 0 without gaps, a target's place is its number.
        let direct = self.targets.get(id.0 as usize).filter(|target| target.id == id);
        direct.or_else(|| self.targets.get(self.targets.binary_search_by_key(&id, |target| target.id).ok()?))
    }

    /// Where chunks belong.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Where they belonged by the layout before this one, when that was elsewhere.
    #[must_use]
    pub fn previous(&self) -> Option<&Placement> {
        self.previous.as_deref()
    }

    /// Whether neighbouring groups are to share cells.
    #[must_use]
    pub fn overlap(&self) -> bool {
        self.overlap
    }

    /// How many groups there are.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.placement.leads().len() as u32
    }

    /// The groups, in the order of the ring.
    pub fn group_ids(&self) -> impl ExactSizeIterator<Item = GroupId> + '_ {
        let cells = &self.placement.layout().cells;
        self.placement.leads().iter().map(|place| GroupId(cells[*place as usize].id))
    }

    /// The targets that may hold chunks of a group: its members, and those that had some of its chunks by the layout
    /// before.
    #[must_use]
    pub fn keepers(&self, group: GroupId) -> Vec<NodeId> {
        let mut keepers: Vec<NodeId> = self.members(group).map(|target| target.id).collect();
        if let (Some(previous), Some(place)) = (self.previous(), self.placement.cell_index(group.0)) {
            let pairs = self.placement.pairs(previous);
            let before = pairs.iter().filter(|(now, _)| *now == place);
            keepers.extend(before.flat_map(|(_, before)| previous.layout().group(*before)));
            keepers.retain(|keeper| self.target(*keeper).is_some());
        }
        keepers.sort_unstable();
        keepers.dedup();
        keepers
    }

    /// The targets that may hold a chunk: the members of its group, and those of this map where the layout before had
    /// it.
    pub fn may_hold(&self, id: &ChunkId) -> impl Iterator<Item = NodeId> + '_ {
        let before = self.previous().map(|previous| previous.targets_of(id)).unwrap_or_default();
        let before = before.into_iter().filter(|target| self.target(*target).is_some());
        self.members(self.group_of(id)).map(|member| member.id).chain(before)
    }

    /// Whether a group has this number.
    #[must_use]
    pub fn is_group(&self, group: GroupId) -> bool {
        let cells = &self.placement.layout().cells;
        self.placement.cell_index(group.0).is_some_and(|place| !cells[place].shares.is_empty())
    }

    /// Number of cells in the ring.
    #[must_use]
    pub fn cells(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Number of cells in a group.
    #[must_use]
    pub fn group_cells(&self) -> usize {
        self.placement.layout().group_cells.min(self.cells.len())
    }

    /// The negotiating group of a chunk: that which has its share of all chunks.
    #[must_use]
    pub fn group_of(&self, chunk: &ChunkId) -> GroupId {
        let cells = &self.placement.layout().cells;
        GroupId(cells.get(self.placement.lead_of(chunk)).map_or(0, |cell| cell.id))
    }

    /// The cells of a group; none when no cell has its number.
    fn window(&self, group: GroupId) -> impl Iterator<Item = usize> + use<> {
        let place = self.placement.cell_index(group.0);
        let (count, cells) = (self.cells.len().max(1), place.map_or(0, |_| self.group_cells()));
        (0..cells).map(move |n| (place.unwrap_or(0) + n) % count)
    }

    /// The targets of a group.
    pub fn members(&self, group: GroupId) -> impl Iterator<Item = &TargetEntry> {
        self.window(group).flat_map(|place| self.cells[place].iter())
    }

    /// A whole group as a member set.
    #[must_use]
    pub fn group_set(&self, group: GroupId) -> MemberSet {
        self.set_of(group, |_| true).unwrap_or(MemberSet { cell: group.0, mask: 0 })
    }

    /// The members of `group` that `keep` takes, in normal form: the first cell has a member, so that overlapping
    /// groups name the same targets alike. `None` when nobody is kept.
    #[must_use]
    pub fn set_of(&self, group: GroupId, keep: impl Fn(NodeId) -> bool) -> Option<MemberSet> {
        let (mut first, mut mask, mut bit) = (None, 0, 0);
        for place in self.window(group) {
            if first.is_none() {
                bit = 0;
            }
            for target in &self.cells[place] {
                if keep(target.id) {
                    first.get_or_insert(place);
                    mask |= 1_u32.checked_shl(bit).unwrap_or(0);
                }
                bit += 1;
            }
        }
        Some(MemberSet { cell: self.placement.layout().cells[first?].id, mask })
    }

    /// The targets that a member set names, in the order of its bits.
    pub fn resolve(&self, set: MemberSet) -> impl Iterator<Item = NodeId> + '_ {
        let all = self.members(GroupId(set.cell)).map(|target| target.id).zip(0..32_u32);
        all.filter(move |(_, bit)| set.mask >> bit & 1 == 1).map(|(id, _)| id)
    }

    /// A number below 2^24 for a member set, from which drivers compute its multicast address: the highest bit, the
    /// cell's id, the mask. `None` when they do not fit, or a group is so large that a target would have to listen to
    /// thousands of sets: then the sets of this map have none.
    #[must_use]
    pub fn number(&self, set: MemberSet) -> Option<u32> {
        self.mask_bits.map(|bits| 1 << 23 | set.cell << bits | set.mask)
    }

    /// Whether member sets have multicast addresses.
    #[must_use]
    pub fn has_addresses(&self) -> bool {
        self.mask_bits.is_some()
    }

    /// The mask has all bits that the ids of cells leave it: so a cell that grows changes no address of other cells.
    fn address_bits(&self) -> Option<u32> {
        let bits = mask_room(self.placement.layout().cells.iter().map(|cell| cell.id).max()?);
        let widest = self.group_ids().map(|group| self.members(group).count()).max()?;
        (widest as u32 <= bits).then_some(bits)
    }

    /// The most members of a group, other than all of it, that have a multicast address together: each is alone where sets have no
    /// [`number`](Self::number).
    #[must_use]
    pub fn most_addressed(&self) -> usize {
        if self.has_addresses() { self.copies as usize } else { 1 }
    }

    /// Every multicast set that `target` must listen to: each group it is in, and each subset of 2 to
    /// [`most_addressed`](Self::most_addressed) members of a group that it belongs to. None where sets have no [`number`](Self::number).
    #[must_use]
    pub fn memberships(&self, target: NodeId) -> Vec<MemberSet> {
        if !self.has_addresses() {
            return Vec::new();
        }
        let mut sets = BTreeSet::new();
        for group in self.group_ids() {
            let members: Vec<NodeId> = self.members(group).map(|t| t.id).collect();
            if !members.contains(&target) {
                continue;
            }
            sets.insert(self.group_set(group));
            for mask in 0_u32..1 << members.len() {
                let chosen = |id: NodeId| members.iter().position(|m| *m == id).is_some_and(|p| mask >> p & 1 == 1);
                if (2..=self.most_addressed()).contains(&(mask.count_ones() as usize)) && chosen(target) {
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

    /// In how many distinct failure domains these targets are: so many copies are apart. A target that is not in the map does not
    /// count.
    #[must_use]
    pub fn count_domains(&self, targets: &[NodeId]) -> usize {
        let mut seen: Vec<u16> = targets.iter().filter_map(|t| self.domain(*t)).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }

    /// What is reached of a redundancy when each of these targets has a copy.
    #[must_use]
    pub fn goal(&self, redundancy: Redundancy, holders: &[NodeId]) -> Goal {
        let mut goal = Goal::new(redundancy);
        for domain in holders.iter().filter_map(|holder| self.domain(*holder)) {
            goal.hold(redundancy.all(), domain);
        }
        goal
    }
}

/// Bits that a member mask may have in an address, beside ids of cells up to this one.
pub(crate) const fn mask_room(largest: u32) -> u32 {
    let room = 23_u32.saturating_sub(32 - largest.leading_zeros());
    if room < limits::ADDRESSED { room } else { limits::ADDRESSED }
}

/// Targets in the order of their ids.
fn checked(copies: u8, mut targets: Vec<TargetEntry>) -> Result<Vec<TargetEntry>, MapError> {
    Redundancy::copies(copies).ok_or(MapError::Copies(copies))?;
    targets.sort_by_key(|t| t.id);
    if let Some(pair) = targets.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(MapError::DuplicateId(pair[0].id));
    }
    match targets.iter().find(|t| t.id.is_initiator()) {
        Some(initiator) => Err(MapError::IdTooLarge(initiator.id)),
        None => Ok(targets),
    }
}
