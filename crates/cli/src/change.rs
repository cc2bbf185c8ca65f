//! The next cluster map, for what is asked for: which targets come, go or are given another capacity. It reads and writes nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use node::ClusterConfig;
use node::config::TargetConfig;
use protocol::id::NodeId;
use protocol::planner::Plan;
use protocol::proposer::Proposed;
use protocol::redundancy::Redundancy;

use crate::api::Status;
use crate::units;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Targets that come.
    pub(crate) add: Vec<TargetConfig>,
    /// Those that are to take no chunks any more.
    pub(crate) drain: Vec<u32>,
    /// Those that are to take chunks again.
    pub(crate) restore: Vec<u32>,
    /// Those that go.
    pub(crate) remove: Vec<u32>,
    /// Those that go, and who takes their places.
    pub(crate) replace: Vec<(u32, u32)>,
    /// Other capacities.
    pub(crate) capacity: Vec<(u32, String)>,
    /// Another number of copies.
    pub(crate) copies: Option<u8>,
    /// Another number of cells in a group.
    pub(crate) group_cells: Option<u8>,
    /// Whether groups are to share cells.
    pub(crate) overlap: Option<bool>,
    /// Whether chunks are to be divided by the capacities again.
    pub(crate) level: bool,
}

/// What is stored.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Bytes of all copies of all chunks.
    pub(crate) bytes: u64,
    /// Bytes of the targets of which that is known.
    by_target: BTreeMap<u32, u64>,
}

impl Stored {
    /// So many bytes; how they are spread is not known.
    pub(crate) const fn bytes(bytes: u64) -> Self {
        Self { bytes, by_target: BTreeMap::new() }
    }

    /// As a gateway says. Of what silent targets hold nobody knows: about as much as others.
    pub(crate) fn of(status: &Status) -> anyhow::Result<Self> {
        let live = status.targets.iter().filter_map(|target| Some((target.id, target.live?)));
        let by_target: BTreeMap<u32, u64> = live.collect();
        let known = by_target.len() as u64;
        ensure!(
            known > 0,
            "how much is stored is not known, as all targets are silent: start them, or say it with --stored"
        );
        let (sum, silent) = (by_target.values().sum::<u64>(), status.targets.len() as u64 - known);
        Ok(Self { bytes: sum + sum / known * silent, by_target })
    }

    /// What a target of this map has. Of what is not known it has a part like that of its capacity.
    fn on(&self, present: &ClusterConfig, id: u32) -> u64 {
        self.by_target.get(&id).copied().unwrap_or_else(|| {
            let all: u64 = present.targets.iter().map(|target| capacity(present, target)).sum();
            let own = present.targets.iter().find(|target| target.id == id);
            let own = own.map_or(0, |target| capacity(present, target));
            (u128::from(self.bytes) * u128::from(own) / u128::from(all.max(1))) as u64
        })
    }
}

/// What a change has to respect.
pub(crate) struct Rules<'r> {
    /// What is stored.
    pub(crate) stored: &'r Stored,
    /// How objects of the storage classes are kept.
    pub(crate) classes: &'r BTreeMap<String, Redundancy>,
    /// Whether targets may go that may have every copy of some objects.
    pub(crate) drop_copies: bool,
}

/// The map that follows the present one.
pub(crate) fn next(
    present: &ClusterConfig,
    change: &Change,
    rules: &Rules<'_>,
) -> anyhow::Result<(ClusterConfig, Plan)> {
    let wished = wish(change, present)?;
    if rules.stored.bytes > 0 && !rules.drop_copies {
        ensure_copies_stay(change, present, rules.classes)?;
    }
    let most = rules.classes.values().copied().max().unwrap_or(Redundancy::Copies(wished.copies));
    let replacements = replacements(change, present, &wished)?;
    let (next, plan) = present.plan(&wished, &replacements, most, rules.stored.bytes, change.level)?;
    ensure_room(change, present, &next, rules.stored)?;
    // Nodes that use the present map take this for leave to forget.
    let settled = if plan.forgets { Some(present.epoch) } else { next.settled };
    let highest = |config: &ClusterConfig| config.targets.iter().map(|target| target.id).max();
    let goes = |target: &TargetConfig| next.targets.iter().all(|other| other.id != target.id);
    let gave = present.last_id.is_some() || present.targets.iter().any(goes);
    let last_id = present.last_id.max(highest(present)).filter(|_| gave);
    Ok((readable(ClusterConfig { settled, last_id, ..next }, present)?, plan))
}

/// Whether a next map says what the present one says, so that it need not be decided.
pub(crate) fn changes_nothing(present: &ClusterConfig, next: &ClusterConfig) -> bool {
    let (settled, last_id, previous) = (present.settled, present.last_id, present.previous.clone());
    ClusterConfig { epoch: present.epoch, settled, last_id, previous, ..next.clone() }.is_same(present)
}

/// The map that follows the present one, when all that is stored is where that has it: it does not lead to the layout before.
pub(crate) fn without_previous(present: &ClusterConfig) -> anyhow::Result<ClusterConfig> {
    let (epoch, settled) = (present.epoch.saturating_add(1), Some(present.epoch));
    readable(ClusterConfig { epoch, settled, previous: None, ..present.clone() }, present)
}

/// The map that follows the present one, by which copies move, or stay where they are. `None` where it is so.
pub(crate) fn with_moves_paused(present: &ClusterConfig, paused: bool) -> anyhow::Result<Option<ClusterConfig>> {
    if present.moves_paused == paused {
        return Ok(None);
    }
    let epoch = present.epoch.saturating_add(1);
    readable(ClusterConfig { epoch, moves_paused: paused, ..present.clone() }, present).map(Some)
}

/// What nobody could read must not become the newest.
fn readable(next: ClusterConfig, present: &ClusterConfig) -> anyhow::Result<ClusterConfig> {
    let text = toml::to_string(&next).context("the next cluster map cannot be written")?;
    Ok(ClusterConfig::parse(&text, &present.path).map(|read| ClusterConfig { path: next.path, ..read })?)
}

/// The cluster as it is to be.
fn wish(change: &Change, present: &ClusterConfig) -> anyhow::Result<ClusterConfig> {
    let mut wished = present.clone();
    let (resized, replaced) = (change.capacity.iter().map(|(id, _)| id), change.replace.iter().map(|(old, _)| old));
    for id in change.drain.iter().chain(&change.restore).chain(&change.remove).chain(resized).chain(replaced) {
        ensure!(present.targets.iter().any(|target| target.id == *id), "there is no target {id} in the map");
    }
    let mut seen = BTreeSet::new();
    for id in change.drain.iter().chain(&change.restore).chain(&change.remove) {
        ensure!(seen.insert(id), "say once what becomes of target {id}: --drain, --restore or --remove");
    }
    wished.copies = change.copies.unwrap_or(wished.copies);
    wished.group_cells = change.group_cells.map_or(wished.group_cells, usize::from);
    wished.overlap = change.overlap.unwrap_or(wished.overlap);
    let goes = |id: u32| change.remove.contains(&id) || change.replace.iter().any(|(old, _)| *old == id);
    wished.targets.retain(|target| !goes(target.id));
    for target in &mut wished.targets {
        // A target that takes another's place takes chunks again.
        let returns = change.restore.contains(&target.id) || change.replace.iter().any(|(_, new)| *new == target.id);
        target.drain = change.drain.contains(&target.id) || target.drain && !returns;
        if let Some((_, size)) = change.capacity.iter().find(|(id, _)| *id == target.id) {
            target.capacity.clone_from(size);
            present.capacity(target).with_context(|| format!("--capacity {}={size}", target.id))?;
        }
    }
    for target in &change.add {
        present.capacity(target)?;
        ensure!(
            present.targets.iter().all(|other| other.id != target.id),
            "target {} is in the map: give the one that is added an id of its own",
            target.id
        );
        ensure!(
            present.last_id.is_none_or(|last| target.id > last),
            "target {} may have been in the map before, and no id is given twice: give the one that is added an id above {}",
            target.id,
            present.last_id.unwrap_or(0)
        );
        wished.targets.push(target.clone());
    }
    Ok(wished)
}

/// Which target takes the place of which.
fn replacements(
    change: &Change,
    present: &ClusterConfig,
    wished: &ClusterConfig,
) -> anyhow::Result<BTreeMap<NodeId, NodeId>> {
    let takes_chunks = |of: &ClusterConfig, id: u32| of.targets.iter().any(|target| target.id == id && !target.drain);
    let (mut replacements, mut newcomers) = (BTreeMap::new(), BTreeSet::new());
    for (old, new) in &change.replace {
        let what = format!("--replace {old}={new}");
        ensure!(
            takes_chunks(present, *old),
            "{what}: target {old} is drained and has no place: remove it with --remove {old}"
        );
        ensure!(
            !takes_chunks(present, *new),
            "{what}: target {new} has a place already: name one that is added or was drained"
        );
        ensure!(
            takes_chunks(wished, *new),
            "{what}: target {new} is not in the map, or is to be drained: add it with --add FILE"
        );
        let once = replacements.insert(NodeId(*old), NodeId(*new)).is_none() && newcomers.insert(*new);
        ensure!(
            once && !change.drain.contains(old) && !change.remove.contains(old),
            "{what}: say once what becomes of a target"
        );
    }
    Ok(replacements)
}

/// Refuses to take out at once so many failure domains as some objects have copies: all of them may be there.
fn ensure_copies_stay(
    change: &Change,
    present: &ClusterConfig,
    classes: &BTreeMap<String, Redundancy>,
) -> anyhow::Result<()> {
    let map = present.map()?;
    let gone = change.remove.iter().copied().chain(change.replace.iter().map(|(old, _)| *old));
    // A map that leads to no layout before finds all without those that it has drained.
    let is_empty =
        |id: &u32| present.previous.is_none() && present.targets.iter().any(|target| target.id == *id && target.drain);
    let gone: BTreeSet<NodeId> = gone.filter(|id| !is_empty(id)).map(NodeId).collect();
    let all: Vec<NodeId> = gone.iter().copied().collect();
    let plain = ("the cluster's".to_owned(), None);
    let classes = classes.iter().map(|(name, redundancy)| (format!("those of class {name}"), Some(*redundancy)));
    let lost = [plain].into_iter().chain(classes).filter(|(_, own)| map.may_hide_kept(&all, *own));
    let lost: Vec<String> = lost.map(|(what, own)| format!("{what}, with {}", map.fewest(own))).collect();
    ensure!(
        lost.is_empty(),
        "targets {} are in {} failure domains, and some objects have no more copies ({}): all that there is of them may be on these \
         targets, and would be lost; take fewer out at once, or drain them, and take them out when the map forgets the layout before (a minute or so \
         after `reservoir status` says `whole`); --drop-copies lets it be lost",
        gone.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(", "),
        map.most_domains(&all),
        lost.join("; ")
    );
    Ok(())
}

fn capacity(config: &ClusterConfig, target: &TargetConfig) -> u64 {
    config.capacity(target).unwrap_or(0)
}

/// What chunks may take of a target: it keeps some of its capacity for what says that something is gone.
fn room(config: &ClusterConfig, target: &TargetConfig) -> u64 {
    let capacity = capacity(config, target);
    capacity - capacity / 32
}

/// Refuses a map with less room than there was when that is less than what is stored, on all targets or on one that takes another's place.
fn ensure_room(change: &Change, present: &ClusterConfig, next: &ClusterConfig, stored: &Stored) -> anyhow::Result<()> {
    let all = |of: &ClusterConfig| {
        let active = of.targets.iter().filter(|target| !target.drain);
        active.map(|target| room(of, target)).fold(0, u64::saturating_add)
    };
    let left = all(next);
    ensure!(
        left >= stored.bytes || left >= all(present),
        "the targets that take chunks would have room for {}, and {} are stored: add targets first",
        units::size(left),
        units::size(stored.bytes)
    );
    let size = |id: u32| next.targets.iter().find(|target| target.id == id).map(|target| room(next, target));
    for (old, new) in &change.replace {
        let (has, room) = (stored.on(present, *old), size(*new).unwrap_or(0));
        if room < has {
            bail!(
                "target {new} would have room for {}, and target {old}, whose place it is to take, has {}: use a larger disk, or \
                 remove {old} and add {new} beside the others",
                units::size(room),
                units::size(has)
            );
        }
    }
    for (id, to) in &change.capacity {
        let has = stored.by_target.get(id).copied().unwrap_or(0);
        let grows = present.targets.iter().any(|target| target.id == *id && size(*id) >= Some(room(present, target)));
        if let Some(room) = size(*id).filter(|room| *room < has && !grows) {
            bail!(
                "target {id} has {}, and would have room for {} with {to}: drain it first, or give it more",
                units::size(has),
                units::size(room)
            );
        }
    }
    Ok(())
}
