//! A layout while it is changed, step by step.

use std::collections::{BTreeMap, BTreeSet};

use super::Wish;
use crate::id::NodeId;
use crate::limits;
use crate::map::{ClusterMap, TargetEntry, mask_room};
use crate::placement::{Cell, Layout, Shares, deal};
use crate::redundancy::Redundancy;

/// The part of what a group is due that it may have more or less. Where groups share cells, a target's load is the mean of several.
const SLACK: u32 = 4;
/// The same where they share none.
const SLACK_DISJOINT: u32 = 6;

pub(super) struct Draft {
    layout: Layout,
    /// The cells that there were.
    before: BTreeSet<u32>,
    /// Those that are to be in cells.
    targets: BTreeMap<NodeId, TargetEntry>,
    /// How chunks are kept that are put with no redundancy of their own.
    redundancy: Redundancy,
    /// What every group must be able to keep.
    most: Redundancy,
    overlap: bool,
    /// Whether member sets are to have addresses.
    addressed: bool,
    /// Whether shares are to go where there is room for them.
    level: bool,
}

impl Draft {
    /// The present layout with the targets of the wish in its cells.
    pub(super) fn of(map: &ClusterMap, wish: &Wish, redundancy: Redundancy) -> Self {
        let mut layout = map.placement().layout().clone();
        let other = (layout.group_cells, map.overlap()) != (wish.group_cells, wish.overlap);
        if other && !wish.overlap {
            // Only cells that are dealt for it make whole groups.
            layout = deal::first(&wish.active(), wish.copies, wish.group_cells, false).unwrap_or(layout);
        }
        layout.group_cells = wish.group_cells.max(1);
        let targets = wish.active().into_iter().map(|target| (target.id, target)).collect();
        let most = redundancy.max(wish.most);
        let (overlap, addressed) = (wish.overlap, map.has_addresses());
        let before = map.placement().layout().cells.iter().map(|cell| cell.id).collect();
        let mut draft = Self { layout, before, targets, redundancy, most, overlap, addressed, level: wish.level };
        if other {
            draft.divide();
        }
        draft.exchange(map, wish);
        draft
    }

    /// Repairs groups that cannot serve, where that is possible.
    pub(super) fn settle(mut self) -> Option<Layout> {
        if self.overlap { self.settle_overlapping() } else { self.settle_disjoint() }?;
        self.collapse();
        while self.layout.shares < deal::SHARES_PER_GROUP / 2 * self.leads().len() as u32 {
            self.double()?;
        }
        // While cells only grow and shrink, all stays where it is.
        if self.level || self.layout.cells.iter().any(|cell| !self.before.contains(&cell.id)) {
            self.level();
        }
        Some(self.layout)
    }

    /// Takes out targets that leave, and puts in those that join.
    fn exchange(&mut self, map: &ClusterMap, wish: &Wish) {
        let placed: Vec<NodeId> = self.layout.cells.iter().flat_map(|cell| cell.targets.iter().copied()).collect();
        let going: Vec<NodeId> = placed.iter().filter(|id| !self.targets.contains_key(id)).copied().collect();
        let placed: BTreeSet<NodeId> = placed.into_iter().collect();
        let mut coming: Vec<NodeId> = self.targets.keys().filter(|id| !placed.contains(id)).copied().collect();
        let mut instead = BTreeMap::new();
        for old in &going {
            let wished = wish.replacements.get(old).and_then(|new| coming.iter().position(|id| id == new));
            if let Some(nth) = wished {
                instead.insert(*old, coming.remove(nth));
            }
        }
        for old in &going {
            let domain = wish.targets.get(old).or(map.target(*old)).map(|target| target.domain);
            let alike = coming.iter().position(|id| Some(self.targets[id].domain) == domain);
            if let Some(nth) = alike.filter(|_| !instead.contains_key(old)) {
                instead.insert(*old, coming.remove(nth));
            }
        }
        for cell in &mut self.layout.cells {
            let stays = |id: &NodeId| self.targets.contains_key(id).then_some(*id).or(instead.get(id).copied());
            cell.targets = cell.targets.iter().filter_map(stays).collect();
        }
        for id in coming {
            let place = if self.overlap { self.room_for(id) } else { self.room_in_disjoint(id) };
            self.layout.cells[place].targets.push(id);
            // The next newcomer fills up a cell that was split, before another cell is split.
            if self.overlap { self.split_cells() } else { self.split_groups() }
        }
    }

    /// A target that was named to take another's place, when its groups would have too few domains there.
    pub(super) fn misplaced(&self, map: &ClusterMap, wish: &Wish) -> Option<(NodeId, NodeId)> {
        let lacks = |(old, new): &(&NodeId, &NodeId)| {
            let cell = map.placement().layout().cells.iter().find(|cell| cell.targets.contains(old));
            let is_it = |place: &usize| {
                let here = &self.layout.cells[*place];
                here.targets.contains(new) && cell.is_some_and(|cell| cell.id == here.id)
            };
            let place = (0..self.layout.cells.len()).find(is_it);
            let groups = place.map(|place| self.groups_with(place)).unwrap_or_default();
            map.target(**old).map(|target| target.domain) != self.domain(**new)
                && groups.into_iter().any(|lead| !self.serves(lead))
        };
        wish.replacements.iter().find(lacks).map(|(old, new)| (*old, *new))
    }

    /// The cell for a newcomer when groups share none: the group that has the most bytes for its capacity gives it some.
    fn room_in_disjoint(&self, id: NodeId) -> usize {
        let domain = self.domain(id);
        let capacity = |id: NodeId| u128::from(self.capacity(id));
        let rank = |place: usize| {
            let groups = self.groups_with(place);
            let members: Vec<NodeId> = groups.iter().flat_map(|lead| self.layout.group(*lead)).collect();
            let shares: u32 = groups.iter().map(|lead| self.layout.cells[*lead].shares.len()).sum();
            let room = members.iter().map(|id| capacity(*id)).sum::<u128>() + capacity(id).max(1);
            let fill = (u128::from(shares) << 64) / room;
            let alike = members.iter().filter(|other| self.domain(**other) == domain).count();
            let size = self.layout.cells[place].targets.len();
            (groups.len(), alike, core::cmp::Reverse(fill), size, place)
        };
        (0..self.layout.cells.len()).min_by_key(|place| rank(*place)).unwrap_or(0)
    }

    /// The cell for a newcomer: where its domain is least, then of the smallest, in the smallest groups.
    fn room_for(&self, id: NodeId) -> usize {
        let (domain, most) = (self.domain(id), self.most());
        let alike = |place: &usize| {
            self.layout.cells[*place].targets.iter().filter(|other| self.domain(**other) == domain).count()
        };
        let rank = |place: usize| {
            let groups = self.groups_with(place);
            let sizes: Vec<usize> = groups.iter().map(|lead| self.layout.group(*lead).count()).collect();
            let near: usize = groups.iter().flat_map(|lead| self.layout.window(*lead)).map(|at| alike(&at)).sum();
            let full = sizes.iter().any(|size| *size >= most);
            let size = self.layout.cells[place].targets.len();
            (full, alike(&place), size, sizes.iter().sum::<usize>(), near, place)
        };
        (0..self.layout.cells.len()).min_by_key(|place| rank(*place)).unwrap_or(0)
    }

    fn settle_overlapping(&mut self) -> Option<()> {
        // Empty cells are dropped, small ones merged when a neighbour has room.
        let mut place = 0;
        while place < self.layout.cells.len() {
            let cells = self.layout.cells.len();
            let size = self.layout.cells[place].targets.len();
            let into = self.smaller_neighbour(place);
            let merged = size + self.layout.cells[into].targets.len();
            let fits = merged < 2 * self.pieces() && self.widest_with(place) + self.widest_cell() <= self.most();
            if cells > 1 && (size == 0 || 2 * size <= self.pieces() && fits) {
                self.merge(place, into);
                place = 0;
            } else {
                place += 1;
            }
        }
        while let Some(lead) = self.leads().into_iter().find(|lead| !self.serves(*lead)) {
            if self.layout.cells.len() <= self.layout.group_cells {
                return None;
            }
            // With two of its cells in one, the group reaches one cell further.
            let size = |place: &usize| self.layout.cells[*place].targets.len();
            let smallest = self.layout.window(lead).min_by_key(size)?;
            let into = self.smaller_neighbour(smallest);
            let crowded = size(&smallest) + size(&into) >= 2 * self.pieces();
            if !crowded || !self.borrow(lead) {
                self.merge(smallest, into);
            }
        }
        self.split_cells();
        Some(())
    }

    /// Splits cells that are too large, as far as that leaves groups with their domains.
    fn split_cells(&mut self) {
        let mut whole = BTreeSet::new();
        while let Some(cell) = self.to_split(&whole) {
            let place = self.layout.cells.iter().position(|other| other.id == cell);
            if !place.is_some_and(|place| self.split(place)) {
                whole.insert(cell);
            }
        }
    }

    /// A cell that is to be split, but for those that cannot.
    fn to_split(&self, whole: &BTreeSet<u32>) -> Option<u32> {
        let can = |place: &usize| {
            let cell = &self.layout.cells[*place];
            cell.targets.len() > 1 && !whole.contains(&cell.id)
        };
        let size = |place: &usize| (self.layout.cells[*place].targets.len(), core::cmp::Reverse(*place));
        let large = (0..self.layout.cells.len()).filter(can).filter(|place| size(place).0 >= 2 * self.pieces());
        let most = self.most();
        let full = self.leads().into_iter().filter(|lead| self.layout.group(*lead).count() > most);
        let crowded = full.flat_map(|lead| self.layout.window(lead)).filter(can);
        let place = large.max_by_key(size).or_else(|| crowded.max_by_key(size))?;
        Some(self.layout.cells[place].id)
    }

    /// Splits a cell, unless a group would lack domains.
    fn split(&mut self, place: usize) -> bool {
        let before = self.layout.clone();
        let Some(id) = self.unused() else { return false };
        let targets = self.halve(place);
        self.layout.cells.insert(place + 1, Cell { id, targets, shares: Shares::default() });
        let (count, span) = (self.layout.cells.len(), self.layout.group_cells);
        if count == span + 1 {
            self.divide();
        } else if count > span {
            // The groups with the cell, from the first to that of the new one.
            let leads: Vec<usize> = (0..=span).map(|n| (place + 2 + count - (span + 1) + n) % count).collect();
            self.pass_on(&leads);
        }
        let serves = self.leads().iter().all(|lead| self.serves(*lead));
        if !serves {
            self.layout = before;
        }
        serves
    }

    /// Keeps every other of a cell's targets, domain by domain, and gives the others away.
    fn halve(&mut self, place: usize) -> Vec<NodeId> {
        let mut all = core::mem::take(&mut self.layout.cells[place].targets);
        all.sort_by_key(|id| (self.domain(*id), *id));
        let (keep, give): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(nth, _)| nth % 2 == 0);
        self.layout.cells[place].targets = keep.into_iter().map(|(_, id)| id).collect();
        give.into_iter().map(|(_, id)| id).collect()
    }

    /// Evens out the shares of groups that follow each other, the last of which is new: each passes on to the next what it has
    /// too many. So most copies of what goes to another group are where they are looked for.
    fn pass_on(&mut self, leads: &[usize]) {
        while leads.iter().map(|lead| self.layout.cells[*lead].shares.len()).sum::<u32>()
            < deal::SHARES_PER_GROUP / 2 * leads.len() as u32
        {
            if self.double().is_none() {
                break;
            }
        }
        let all = leads.iter().map(|lead| self.layout.cells[*lead].shares.len()).sum();
        let due = deal::apportion(all, &self.weights(leads));
        let mut passed = Shares::default();
        for (lead, due) in leads.iter().zip(due) {
            let shares = &mut self.layout.cells[*lead].shares;
            let next = shares.split_off(due.saturating_sub(passed.len()));
            shares.join(core::mem::replace(&mut passed, next));
        }
        if let Some(last) = leads.last() {
            self.layout.cells[*last].shares.join(passed);
        }
    }

    /// Puts a cell's targets and shares into another, beside it in the ring: every group keeps all that it had.
    fn merge(&mut self, place: usize, into: usize) {
        let cell = core::mem::take(&mut self.layout.cells[place].targets);
        let shares = core::mem::take(&mut self.layout.cells[place].shares);
        let neighbour = &mut self.layout.cells[into];
        neighbour.targets.extend(cell);
        neighbour.shares.join(shares);
        self.layout.cells.remove(place);
        self.collapse();
    }

    fn smaller_neighbour(&self, place: usize) -> usize {
        let count = self.layout.cells.len();
        let sides = [(place + count - 1) % count, (place + 1) % count];
        sides.into_iter().min_by_key(|side| self.layout.cells[*side].targets.len()).unwrap_or(place)
    }

    /// Groups apart grow, shrink, split and join as wholes.
    fn settle_disjoint(&mut self) -> Option<()> {
        for _ in 0..=self.targets.len() {
            let Some((lead, into)) = self.too_small() else { break };
            match into {
                Some(into) => self.join_groups(lead, into),
                None if self.borrow(lead) => {}
                None => {
                    let leads = self.leads();
                    let size = |other: &usize| self.layout.group(*other).count();
                    self.join_groups(lead, leads.into_iter().filter(|other| *other != lead).min_by_key(size)?);
                }
            }
        }
        self.fill_empty();
        self.split_groups();
        Some(())
    }

    /// Splits groups that are too large, as far as that leaves them with their domains.
    fn split_groups(&mut self) {
        let most = self.most();
        for _ in 0..self.targets.len() {
            let large = |lead: &usize| {
                let size = self.layout.group(*lead).count();
                size > most || size >= 2 * self.pieces() * self.layout.group_cells
            };
            let Some(lead) = self.leads().into_iter().find(large) else { break };
            let before = self.layout.clone();
            let split = self.split_group(lead);
            if split.is_none() || !self.leads().iter().all(|lead| self.serves(*lead)) {
                self.layout = before;
                break;
            }
        }
    }

    /// A group that is to join another, and the smallest that has room for it: one that has a quarter of what it could have, or less,
    /// or that lacks domains, or targets for its cells, whether or not there is room.
    fn too_small(&self) -> Option<(usize, Option<usize>)> {
        let leads = self.leads();
        if leads.len() < 2 {
            return None;
        }
        let size = |lead: usize| self.layout.group(lead).count();
        let room = |lead: usize| {
            let fits = |sum: usize| sum <= self.most() && sum < 2 * self.pieces() * self.layout.group_cells;
            let others = leads.iter().copied().filter(|other| *other != lead && fits(size(lead) + size(*other)));
            others.min_by_key(|other| size(*other))
        };
        let lacks = |lead: &usize| !self.serves(*lead) || size(*lead) < self.cells_of(*lead).len();
        let lacks = leads.iter().copied().find(lacks);
        let small = |lead: &usize| 2 * size(*lead) <= self.pieces() * self.layout.group_cells && room(*lead).is_some();
        lacks.or_else(|| leads.iter().copied().find(small)).map(|lead| (lead, room(lead)))
    }

    /// Takes a target for a group that lacks its domain from the largest cell elsewhere that can do without it.
    fn borrow(&mut self, lead: usize) -> bool {
        let window: BTreeSet<usize> = self.layout.window(lead).collect();
        let here: BTreeSet<Option<u16>> = self.layout.group(lead).map(|id| self.domain(id)).collect();
        let mut others: Vec<usize> = (0..self.layout.cells.len()).filter(|place| !window.contains(place)).collect();
        others.sort_by_key(|place| core::cmp::Reverse(self.layout.cells[*place].targets.len()));
        let size = |place: &usize| self.layout.cells[*place].targets.len();
        let Some(into) = window.iter().copied().min_by_key(size) else { return false };
        for place in others.into_iter().filter(|place| size(place) > 1).collect::<Vec<usize>>() {
            for nth in 0..self.layout.cells[place].targets.len() {
                let id = self.layout.cells[place].targets[nth];
                if here.contains(&self.domain(id)) {
                    continue;
                }
                self.layout.cells[place].targets.remove(nth);
                if self.groups_with(place).into_iter().all(|other| self.serves(other)) {
                    self.layout.cells[into].targets.push(id);
                    return true;
                }
                self.layout.cells[place].targets.insert(nth, id);
            }
        }
        false
    }

    /// The cells of a group up to the next one.
    fn cells_of(&self, lead: usize) -> Vec<usize> {
        let after = self.leads().into_iter().find(|other| *other > lead).unwrap_or(self.layout.cells.len());
        (lead..after).collect()
    }

    /// Puts a group into another, cell by cell.
    fn join_groups(&mut self, lead: usize, into: usize) {
        let (from, to) = (self.cells_of(lead), self.cells_of(into));
        for (nth, place) in from.iter().enumerate() {
            let targets = core::mem::take(&mut self.layout.cells[*place].targets);
            let shares = core::mem::take(&mut self.layout.cells[*place].shares);
            let cell = &mut self.layout.cells[to[nth % to.len()]];
            cell.targets.extend(targets);
            cell.shares.join(shares);
        }
        self.layout.cells.drain(lead..=from[from.len() - 1]);
        self.collapse();
    }

    /// Gives each empty cell a target from the largest cell of its group, and drops the cells for which there is none.
    fn fill_empty(&mut self) {
        while let Some(empty) = self.layout.cells.iter().position(|cell| cell.targets.is_empty()) {
            let lead = self.leads().into_iter().rfind(|lead| *lead <= empty).unwrap_or(0);
            let cells = self.cells_of(lead);
            if cells.iter().any(|place| self.layout.cells[*place].targets.len() > 1) {
                self.fill(empty, &cells);
            } else if self.layout.cells.len() > 1 {
                self.merge(empty, self.smaller_neighbour(empty));
            } else {
                return;
            }
        }
    }

    /// Splits a group in two: half of each domain, and of the shares. A group that is all the cells there are gets another cell
    /// first, until it has its number.
    fn split_group(&mut self, lead: usize) -> Option<()> {
        let cells = self.cells_of(lead);
        if self.layout.cells.len() < self.layout.group_cells {
            let largest = cells.into_iter().max_by_key(|place| self.layout.cells[*place].targets.len())?;
            let id = self.unused()?;
            let targets = self.halve(largest);
            if targets.is_empty() {
                return None;
            }
            self.layout.cells.insert(largest + 1, Cell { id, targets, shares: Shares::default() });
            return Some(());
        }
        let mut all: Vec<NodeId> =
            cells.iter().flat_map(|place| self.layout.cells[*place].targets.iter().copied()).collect();
        all.sort_by_key(|id| (self.domain(*id), *id));
        let leaving: Vec<NodeId> = all.into_iter().skip(1).step_by(2).collect();
        if leaving.len() < cells.len() {
            return None;
        }
        for place in &cells {
            self.layout.cells[*place].targets.retain(|id| !leaving.contains(id));
        }
        let after = cells.last()? + 1;
        for nth in 0..cells.len() {
            let targets = leaving.iter().skip(nth).step_by(cells.len()).copied().collect();
            let id = self.unused()?;
            self.layout.cells.insert(after + nth, Cell { id, targets, shares: Shares::default() });
        }
        while let Some(empty) = cells.iter().find(|place| self.layout.cells[**place].targets.is_empty()) {
            self.fill(*empty, &cells);
        }
        self.pass_on(&[lead, after]);
        Some(())
    }

    /// Moves a target from the largest of these cells into an empty one.
    fn fill(&mut self, empty: usize, cells: &[usize]) {
        let largest = cells.iter().max_by_key(|place| self.layout.cells[**place].targets.len());
        let moved = largest.and_then(|place| self.layout.cells[*place].targets.pop());
        self.layout.cells[empty].targets.extend(moved);
    }

    /// Where every group would have every cell, one is enough.
    fn collapse(&mut self) {
        let leads = self.leads();
        if self.layout.cells.len() <= self.layout.group_cells && leads.len() > 1 {
            for lead in &leads[1..] {
                let shares = core::mem::take(&mut self.layout.cells[*lead].shares);
                self.layout.cells[leads[0]].shares.join(shares);
            }
        }
    }

    /// Moves shares from groups that have too many for their capacity to those that have too few, until none is far from its due.
    fn level(&mut self) {
        let leads = self.leads();
        let due = deal::apportion(self.layout.shares, &self.weights(&leads));
        let slack = if self.overlap { SLACK } else { SLACK_DISJOINT };
        let has = |draft: &Self, nth: usize| i64::from(draft.layout.cells[leads[nth]].shares.len());
        let over = |draft: &Self, nth: usize| has(draft, nth) - i64::from(due[nth]);
        for nth in 0..leads.len() {
            let least = i64::from(due[nth] - due[nth] / slack);
            while has(self, nth) < least {
                let Some(from) = (0..leads.len()).max_by_key(|other| over(self, *other)) else { return };
                let count = over(self, from).min(least - has(self, nth));
                if count <= 0 {
                    break;
                }
                self.give(leads[from], leads[nth], count as u32);
            }
            let most = i64::from(due[nth] + due[nth] / slack).max(1);
            while has(self, nth) > most {
                let Some(to) = (0..leads.len()).min_by_key(|other| over(self, *other)) else { return };
                let count = (-over(self, to)).min(has(self, nth) - most);
                if count <= 0 {
                    break;
                }
                self.give(leads[nth], leads[to], count as u32);
            }
        }
    }

    fn give(&mut self, from: usize, to: usize, count: u32) {
        let shares = &mut self.layout.cells[from].shares;
        let passed = shares.split_off(shares.len().saturating_sub(count));
        self.layout.cells[to].shares.join(passed);
    }

    fn double(&mut self) -> Option<()> {
        self.layout.shares = self.layout.shares.checked_mul(2).filter(|shares| *shares <= limits::SHARES)?;
        self.layout.cells.iter_mut().for_each(|cell| cell.shares = cell.shares.doubled());
        Some(())
    }

    fn divide(&mut self) {
        deal::divide(&mut self.layout, self.targets.values(), self.overlap);
    }

    fn weights(&self, leads: &[usize]) -> Vec<u64> {
        deal::weights(&self.layout, leads, |id| self.capacity(id))
    }

    /// The places at which groups begin.
    fn leads(&self) -> Vec<usize> {
        self.layout.leads().collect()
    }

    /// Those whose groups have this cell.
    fn groups_with(&self, place: usize) -> Vec<usize> {
        let (count, span) = (self.layout.cells.len(), self.layout.group_cells);
        if count <= span {
            return self.leads();
        }
        let before = (0..span).map(|n| (place + count - n) % count);
        before.filter(|lead| !self.layout.cells[*lead].shares.is_empty()).collect()
    }

    fn widest_with(&self, place: usize) -> usize {
        self.groups_with(place).into_iter().map(|lead| self.layout.group(lead).count()).max().unwrap_or(0)
    }

    fn widest_cell(&self) -> usize {
        self.layout.cells.iter().map(|cell| cell.targets.len()).max().unwrap_or(0)
    }

    /// Most targets in a group.
    fn most(&self) -> usize {
        let largest = self.layout.cells.iter().map(|cell| cell.id).max().unwrap_or(0);
        if self.addressed { mask_room(largest) as usize } else { limits::GROUP_MEMBERS }
    }

    /// Whether a group has a failure domain for each piece.
    fn serves(&self, lead: usize) -> bool {
        let domains: BTreeSet<u16> = self.layout.group(lead).filter_map(|id| self.domain(id)).collect();
        self.most.is_met(domains.len())
    }

    /// How many pieces a chunk has, and a cell targets at least, as a rule.
    const fn pieces(&self) -> usize {
        self.redundancy.pieces()
    }

    /// A target's capacity in MiB: weights then fit 64 bits.
    fn capacity(&self, id: NodeId) -> u64 {
        self.targets.get(&id).map_or(0, |target| target.capacity >> 20)
    }

    fn domain(&self, id: NodeId) -> Option<u16> {
        self.targets.get(&id).map(|target| target.domain)
    }

    /// The lowest id that no cell has.
    fn unused(&self) -> Option<u32> {
        let ids: BTreeSet<u32> = self.layout.cells.iter().map(|cell| cell.id).collect();
        (0..limits::CELL_IDS).find(|id| !ids.contains(id))
    }
}
