//! The first layout of a cluster, and that of a cluster whose map had none.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cell, Layout, Shares, TargetEntry};
use crate::id::NodeId;
use crate::limits;
use crate::rng::mix;

/// Most draws of a group.
pub(crate) const DRAWS: u64 = 16;
/// Least shares for each group: as evenly are chunks divided.
pub(crate) const SHARES_PER_GROUP: u32 = 32;

/// There are fewer failure domains than copies that are to be kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFewDomains {
    pub(crate) copies: u8,
    pub(crate) targets: usize,
    pub(crate) domains: usize,
}

/// The layout of a new cluster: each group has shares by its capacity. Neighbouring groups overlap in all cells but one, or
/// in none: then cells are dealt so that they make whole groups.
pub(crate) fn first(
    targets: &[TargetEntry],
    copies: u8,
    group_cells: usize,
    overlap: bool,
) -> Result<Layout, TooFewDomains> {
    let (size, all) = (usize::from(copies), targets.len());
    let cells = if overlap {
        overlapping(targets, copies, group_cells)?
    } else {
        let count = disjoint_cells(all, size, group_cells);
        let mut cells = cells(targets, copies, count)?;
        // One after the other is dealt to another group, so that a server's targets are in many.
        let (span, groups) = (group_cells.max(1).min(count), count / group_cells.max(1).min(count));
        (0..count).map(|place| core::mem::take(&mut cells[place % span * groups + place / span])).collect()
    };
    let cells = ring(cells);
    let mut layout = Layout { group_cells: group_cells.max(1), shares: 1, drawn: Vec::new(), cells };
    divide(&mut layout, targets, overlap);
    Ok(layout)
}

/// The layout of a cluster that was dealt anew at each change of its map: each chunk's group is what it was.
pub(crate) fn before(
    targets: &[TargetEntry],
    copies: u8,
    group_cells: usize,
    overlap: bool,
) -> Result<Layout, TooFewDomains> {
    let cells = ring(cells(targets, copies, targets.len() / usize::from(copies))?);
    let mut layout = Layout { group_cells: group_cells.max(1), shares: 1, drawn: Vec::new(), cells };
    divide(&mut layout, targets, overlap);
    let leads = leads(&layout, overlap);
    if leads.len() == 1 {
        return Ok(layout);
    }
    let weights = weights(&layout, &leads, capacity(targets));
    let largest = u128::from(weights.iter().copied().max().unwrap_or(0).max(1));
    let draws = |weight: &u64| (u128::from(*weight) * u128::from(DRAWS)).div_ceil(largest).max(1) as u8;
    layout.drawn = weights.iter().map(draws).collect();
    layout.cells.iter_mut().for_each(|cell| cell.shares = Shares::default());
    let mut next = 0;
    for (lead, draws) in leads.into_iter().zip(&layout.drawn) {
        layout.cells[lead].shares = Shares::run(next, u32::from(*draws));
        next += u32::from(*draws);
    }
    layout.shares = next.max(1);
    Ok(layout)
}

/// What keys are mixed with for the draws of each group.
pub(crate) fn salts(drawn: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let salts = |(group, draws): (u64, &u8)| (0..u64::from(*draws)).map(move |draw| mix(group << 8 | draw));
    (0..).zip(drawn).flat_map(salts)
}

/// Gives every group its shares by capacity, whichever group had them.
pub(crate) fn divide<'a>(layout: &mut Layout, targets: impl IntoIterator<Item = &'a TargetEntry>, overlap: bool) {
    let leads = leads(layout, overlap);
    while layout.shares < SHARES_PER_GROUP.saturating_mul(leads.len() as u32).min(limits::SHARES) {
        layout.shares *= 2;
    }
    layout.cells.iter_mut().for_each(|cell| cell.shares = Shares::default());
    let mut first = 0;
    let weights = weights(layout, &leads, capacity(targets));
    for (lead, count) in leads.iter().zip(apportion(layout.shares, &weights)) {
        layout.cells[*lead].shares = Shares::run(first, count);
        first += count;
    }
}

/// The places at which groups begin: everywhere, or so that no two share a cell (but the last, when they do not come out
/// even); one is enough where it has every cell.
pub(crate) fn leads(layout: &Layout, overlap: bool) -> Vec<usize> {
    let count = layout.cells.len();
    let step = if count <= layout.group_cells {
        count
    } else if overlap {
        1
    } else {
        layout.group_cells
    };
    (0..count).step_by(step.max(1)).collect()
}

/// The capacities of the groups that begin here, in the unit of a target's.
pub(crate) fn weights(layout: &Layout, leads: &[usize], capacity: impl Fn(NodeId) -> u64) -> Vec<u64> {
    leads.iter().map(|lead| layout.group(*lead).map(&capacity).fold(0, u64::saturating_add)).collect()
}

/// The capacity of each of these targets, in MiB.
fn capacity<'a>(targets: impl IntoIterator<Item = &'a TargetEntry>) -> impl Fn(NodeId) -> u64 {
    let capacity: BTreeMap<NodeId, u64> =
        targets.into_iter().map(|target| (target.id, target.capacity >> 20)).collect();
    move |id| capacity.get(&id).copied().unwrap_or(0)
}

/// Divides a number as these weights say, to the next whole one, and to one at least as far as it goes.
pub(crate) fn apportion(number: u32, weights: &[u64]) -> Vec<u32> {
    let even = weights.iter().all(|weight| *weight == 0);
    let weight = |weight: &u64| if even { 1 } else { u128::from(*weight) };
    let sum: u128 = weights.iter().map(weight).sum();
    let upto = |reached: u128| (u128::from(number) * reached / sum.max(1)) as u32;
    let mut reached = 0;
    let part = |w: &u64| {
        let before = upto(reached);
        reached += weight(w);
        upto(reached) - before
    };
    let mut parts: Vec<u32> = weights.iter().map(part).collect();
    while let Some(none) = parts.iter().position(|part| *part == 0) {
        let Some(most) = parts.iter_mut().max().filter(|most| **most > 1) else { break };
        *most -= 1;
        parts[none] = 1;
    }
    parts
}

/// So many cells as make whole groups: with `copies` targets to a cell or somewhat more, in groups that have addresses.
fn disjoint_cells(targets: usize, copies: usize, group_cells: usize) -> usize {
    let group = copies * group_cells.max(1);
    let most = if group <= limits::ADDRESSED as usize { limits::ADDRESSED as usize } else { limits::GROUP_MEMBERS };
    let groups = (targets / group).max(targets.div_ceil(most)).min(targets / group_cells.max(1));
    if groups <= 1 { (targets / copies).min(group_cells.max(1)) } else { groups * group_cells.max(1) }
}

/// Deals targets into so many cells: domain by domain, largest first, round the cells, so that a cell has two
/// targets of one domain only when the domain is larger than the number of cells.
fn cells(targets: &[TargetEntry], copies: u8, count: usize) -> Result<Vec<Vec<NodeId>>, TooFewDomains> {
    let mut domains: BTreeMap<u16, Vec<NodeId>> = BTreeMap::new();
    for target in targets {
        domains.entry(target.domain).or_default().push(target.id);
    }
    if domains.len() < usize::from(copies) {
        return Err(TooFewDomains { copies, targets: targets.len(), domains: domains.len() });
    }
    let mut cells: Vec<Vec<NodeId>> = vec![Vec::new(); count];
    let mut order: Vec<Vec<NodeId>> = domains.into_values().collect();
    order.sort_by_key(|d| core::cmp::Reverse(d.len()));
    let ring = cells.len();
    for (at, target) in order.into_iter().flatten().enumerate() {
        cells[at % ring].push(target);
    }
    Ok(cells)
}

/// The cells of a ring in which every group has a failure domain for each copy: with `copies` targets, or with more where domains
/// are of so different sizes that a small one is not in every group.
fn overlapping(targets: &[TargetEntry], copies: u8, group_cells: usize) -> Result<Vec<Vec<NodeId>>, TooFewDomains> {
    let domains: BTreeMap<NodeId, u16> = targets.iter().map(|target| (target.id, target.domain)).collect();
    let fewest = |cells: &[Vec<NodeId>]| fewest_domains(cells, &domains, group_cells);
    let best = |count| {
        let dealt = cells(targets, copies, count)?;
        let spread = spread(dealt.clone(), &domains, group_cells);
        Ok(if fewest(&spread) >= fewest(&dealt) { spread } else { dealt })
    };
    let most = targets.len() / usize::from(copies);
    let fewer = |count: &usize| Some(count - count.div_ceil(8)).filter(|count| *count > 0);
    let is_small = |count: &usize| targets.len().div_ceil(*count) * group_cells.min(*count) <= limits::GROUP_MEMBERS;
    for count in core::iter::successors(Some(most).filter(|most| *most > 0), fewer).take_while(is_small) {
        let cells = best(count)?;
        if fewest(&cells) >= usize::from(copies) {
            return Ok(cells);
        }
    }
    best(most)
}

/// Orders cells so that those of a group have as few failure domains in common as may be: when a target is lost, or a whole domain, what
/// it had is made again on many others, and each group has domains left.
fn spread(cells: Vec<Vec<NodeId>>, of: &BTreeMap<NodeId, u16>, group_cells: usize) -> Vec<Vec<NodeId>> {
    let count = cells.len();
    let domains = |cell: &[NodeId]| -> Vec<u16> { cell.iter().map(|id| of.get(id).copied().unwrap_or(0)).collect() };
    let with_domains = |cell: Vec<NodeId>| (domains(&cell), cell);
    let mut left: Vec<(Vec<u16>, Vec<NodeId>)> = cells.into_iter().map(with_domains).collect();
    let mut placed: Vec<(Vec<u16>, Vec<NodeId>)> = Vec::with_capacity(count);
    // Where each domain is last, from 1 on; 0 is nowhere yet.
    let most = left.iter().flat_map(|(domains, _)| domains).max().copied().unwrap_or(0);
    let mut last = vec![0; usize::from(most) + 1];
    while !left.is_empty() {
        // Those before it, and those after it where the ring closes.
        let before = placed.iter().rev().take(group_cells.saturating_sub(1));
        let after = placed.iter().take(group_cells.saturating_sub(left.len()));
        let near: Vec<u16> = before.chain(after).flat_map(|(domains, _)| domains).copied().collect();
        let common = |domains: &[u16]| domains.iter().filter(|domain| near.contains(domain)).count();
        let ago = |domains: &[u16]| domains.iter().map(|domain| last[usize::from(*domain)]).max().unwrap_or(0);
        // The first of those with the fewest, whose domains were placed longest ago.
        let keys = left.iter().map(|(domains, _)| (common(domains), ago(domains))).enumerate();
        let next = left.remove(keys.min_by_key(|(_, key)| *key).map_or(0, |(at, _)| at));
        next.0.iter().for_each(|domain| last[usize::from(*domain)] = placed.len() + 1);
        placed.push(next);
    }
    placed.into_iter().map(|(_, cell)| cell).collect()
}

/// How many failure domains that group has that has the fewest, when these are the cells of the ring.
fn fewest_domains(cells: &[Vec<NodeId>], of: &BTreeMap<NodeId, u16>, group_cells: usize) -> usize {
    let group = |first: usize| cells.iter().cycle().skip(first).take(group_cells.min(cells.len())).flatten();
    let domains = |first| group(first).filter_map(|id| of.get(id)).collect::<BTreeSet<_>>().len();
    (0..cells.len()).map(domains).min().unwrap_or(0)
}

fn ring(cells: Vec<Vec<NodeId>>) -> Vec<Cell> {
    (0..).zip(cells).map(|(id, targets)| Cell { id, targets, shares: Shares::default() }).collect()
}
