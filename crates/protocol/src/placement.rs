//! Where chunks belong: the cells of a cluster, the groups that they make, and which share of all chunks each group has.
//!
//! A layout is written down and stays: [`deal`] makes the first one, and the [planner](crate::planner) makes the next from
//! the present one, so that little has to move. All chunks are divided into equal shares by their ids; a share belongs to a cell, and the group
//! that begins with this cell has its chunks.

pub(crate) mod deal;
mod shares;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ChunkId, NodeId};
use crate::limits;
use crate::rng::mix;

pub use shares::Shares;

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

/// Targets that are in the same groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its name, for as long as it exists: below [`limits::CELL_IDS`].
    pub id: u32,
    /// Its targets; their order is that of the bits in a member mask.
    pub targets: Vec<NodeId>,
    /// The shares of the group that begins with this cell; none: no group begins here.
    pub shares: Shares,
}

/// The ring of cells, and how chunks are divided among its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Cells in a group: a cell that has shares, and those that follow it in the ring.
    pub group_cells: usize,
    /// In how many equal shares all chunks are divided: a power of two, times the sum of `drawn` if there are any.
    pub shares: u32,
    /// Draws of each group of a map that was dealt anew at every change, by which its chunks found their groups: 1 to 16.
    /// Empty in a map that was not.
    pub drawn: Vec<u8>,
    /// The ring.
    pub cells: Vec<Cell>,
}

/// Why a layout cannot serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// There is no cell.
    NoCells,
    /// A cell's id is too large, or another cell has it.
    CellId(u32),
    /// A cell without targets.
    EmptyCell(u32),
    /// A target in two cells, or twice in one.
    Twice(NodeId),
    /// The number of shares does not fit the draws.
    Total {
        /// As written.
        shares: u32,
        /// The sum of the draws, or 1 if there are none.
        draws: u32,
    },
    /// Draws of no group, or of more than 16.
    Draws(u8),
    /// A share that is of no cell.
    Unowned(u32),
    /// A share that is of two cells, or is none of those there are.
    Owned(u32),
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCells => write!(f, "a layout without cells: restore it from another server"),
            Self::CellId(id) => {
                write!(f, "cell {id}: its id is not its own, or not below {}: give it another", limits::CELL_IDS)
            }
            Self::EmptyCell(id) => write!(f, "cell {id} has no targets: restore the layout from another server"),
            Self::Twice(id) => write!(f, "target {} is in two places of the layout: leave it in one", id.0),
            Self::Total { shares, draws } => write!(
                f,
                "shares = {shares}: write {draws} times a power of two, {} at most, as it was",
                limits::SHARES
            ),
            Self::Draws(n) => write!(f, "drawn = {n}: a group has 1 to 16 draws: restore the layout"),
            Self::Unowned(share) => write!(f, "share {share} belongs to no cell: restore the layout"),
            Self::Owned(share) => {
                write!(f, "share {share} belongs to two cells, or is none of those there are: restore the layout")
            }
        }
    }
}

impl core::error::Error for LayoutError {}

impl Layout {
    /// Checks what can be checked without the targets.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), LayoutError> {
        if self.cells.is_empty() {
            return Err(LayoutError::NoCells);
        }
        let (mut ids, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for cell in &self.cells {
            if cell.id >= limits::CELL_IDS || !ids.insert(cell.id) {
                return Err(LayoutError::CellId(cell.id));
            }
            if cell.targets.is_empty() {
                return Err(LayoutError::EmptyCell(cell.id));
            }
            if let Some(twice) = cell.targets.iter().find(|target| !targets.insert(**target)) {
                return Err(LayoutError::Twice(*twice));
            }
        }
        if let Some(wrong) = self.drawn.iter().find(|draws| !(1..=deal::DRAWS as u8).contains(draws)) {
            return Err(LayoutError::Draws(*wrong));
        }
        let draws = self.draws();
        let even = self.shares.is_multiple_of(draws) && (self.shares / draws).is_power_of_two();
        if !even || self.shares > limits::SHARES {
            return Err(LayoutError::Total { shares: self.shares, draws });
        }
        let mut owned = vec![false; self.shares as usize];
        for (first, last) in self.cells.iter().flat_map(|cell| cell.shares.ranges()) {
            for share in first..=last {
                match owned.get_mut(share as usize) {
                    Some(owned) if !*owned => *owned = true,
                    _ => return Err(LayoutError::Owned(share)),
                }
            }
        }
        owned.iter().position(|owned| !owned).map_or(Ok(()), |share| Err(LayoutError::Unowned(share as u32)))
    }

    /// Shares before they were doubled.
    fn draws(&self) -> u32 {
        self.drawn.iter().fold(0_u32, |sum, draws| sum.saturating_add(u32::from(*draws))).max(1)
    }

    /// The places of the cells with which groups begin.
    pub(crate) fn leads(&self) -> impl Iterator<Item = usize> + '_ {
        self.cells.iter().enumerate().filter(|(_, cell)| !cell.shares.is_empty()).map(|(place, _)| place)
    }

    /// The places in the ring of the cells of the group that begins at this one.
    pub(crate) fn window(&self, place: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.cells.len().max(1);
        (0..self.group_cells.min(count)).map(move |n| (place + n) % count)
    }

    /// The targets of the group that begins at this place.
    pub(crate) fn group(&self, place: usize) -> impl Iterator<Item = NodeId> + '_ {
        self.window(place).flat_map(|at| self.cells[at].targets.iter().copied())
    }
}

/// A layout with what follows from it, so that a chunk's group is found by its share in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    layout: Layout,
    /// What a key is mixed with for each draw.
    salts: Vec<u64>,
    /// The place of the cell to which each share belongs.
    owners: Vec<u32>,
    /// The places of the cells with which groups begin.
    leads: Vec<u32>,
    /// The place of each cell, by its id.
    cell_indices: Vec<(u32, u32)>,
}

impl Placement {
    /// # Errors
    /// What is wrong with the layout.
    pub fn new(layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        Ok(Self::of(layout))
    }

    /// That of a layout that was checked, or made here.
    pub(crate) fn of(layout: Layout) -> Self {
        let mut owners = vec![0; layout.shares as usize];
        for (place, cell) in (0..).zip(&layout.cells) {
            for share in cell.shares.iter() {
                if let Some(owner) = owners.get_mut(share as usize) {
                    *owner = place;
                }
            }
        }
        let leads = layout.leads().map(|place| place as u32).collect();
        let cell_indices: BTreeMap<u32, u32> = layout.cells.iter().map(|cell| cell.id).zip(0..).collect();
        let salts = deal::salts(&layout.drawn).collect();
        Self { salts, owners, leads, cell_indices: cell_indices.into_iter().collect(), layout }
    }

    /// The layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The places of the cells with which groups begin.
    pub(crate) fn leads(&self) -> &[u32] {
        &self.leads
    }

    /// Where the cell with this id is.
    pub(crate) fn cell_index(&self, id: u32) -> Option<usize> {
        // Where ids count from 0 without gaps, a cell's place among them is its number.
        let direct = self.cell_indices.get(id as usize).filter(|(cell, _)| *cell == id);
        let (_, place) = match direct {
            Some(found) => *found,
            None => self.cell_indices[self.cell_indices.binary_search_by_key(&id, |(cell, _)| *cell).ok()?],
        };
        Some(place as usize)
    }

    /// The place of the cell with which a chunk's group begins.
    pub(crate) fn lead_of(&self, chunk: &ChunkId) -> usize {
        if let [only] = *self.leads {
            return only as usize;
        }
        self.owner(self.share_of(chunk))
    }

    /// The place of the cell that a share belongs to.
    pub(crate) fn owner(&self, share: u32) -> usize {
        self.owners.get(share as usize).map_or(0, |place| *place as usize)
    }

    /// The targets that keep a chunk.
    #[must_use]
    pub fn targets_of(&self, chunk: &ChunkId) -> Vec<NodeId> {
        self.layout.group(self.lead_of(chunk)).collect()
    }

    /// The groups of two layouts that have a chunk in common, by the places of the cells with which they begin.
    pub(crate) fn pairs(&self, other: &Self) -> BTreeSet<(usize, usize)> {
        if self.layout.drawn != other.layout.drawn {
            // They divide chunks in ways that have nothing to do with each other.
            return self.layout.leads().flat_map(|one| other.layout.leads().map(move |two| (one, two))).collect();
        }
        let total = self.layout.shares.max(other.layout.shares);
        let owner = |of: &Self, share: u32| of.owner(share / (total / of.layout.shares.max(1)));
        (0..total).map(|share| (owner(self, share), owner(other, share))).collect()
    }

    /// A chunk's share: its draw, and for each doubling another bit of its key.
    fn share_of(&self, chunk: &ChunkId) -> u32 {
        let key = fold(chunk.placement_key());
        // Among equals the last.
        let best = (0..).zip(&self.salts).max_by_key(|(_, salt)| mix(key ^ **salt));
        let draw = best.map_or(0, |(draw, _)| draw);
        let bits = (self.layout.shares / self.layout.draws()).trailing_zeros();
        // Scrambled once more: the draw was won by a number that these bits must not be taken from.
        draw << bits | (mix(mix(key)).checked_shr(64 - bits).unwrap_or(0)) as u32
    }
}

/// A placement key in 64 bits. Ids are hashes already, so any eight bytes serve.
pub(crate) fn fold(key: &[u8]) -> u64 {
    key.chunks(8).fold(0, |acc, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(acc ^ u64::from_le_bytes(word))
    })
}
