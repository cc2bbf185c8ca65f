//! The cluster map, and the next one: `reservoir cluster`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use node::ClusterConfig;
use node::config::{TargetConfig, problem};
use protocol::id::{GroupId, NodeId};
use protocol::redundancy::Redundancy;
use serde::{Deserialize, Serialize};

use crate::api::Status;
use crate::args::{PlanArgs, TableArgs};
use crate::client::Gateway;
use crate::gateway_file::S3File;
use crate::output::{self, json, line};
use crate::{gateway_file, local_cluster, units};

/// A file with targets alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Added {
    #[serde(rename = "target")]
    targets: Vec<TargetConfig>,
}

/// What a plan says.
#[derive(Serialize)]
struct Report {
    /// Of the next map.
    epoch: u32,
    cells: u32,
    groups: u32,
    /// All copies of all chunks.
    stored_bytes: u64,
    /// What has to move until everything is where the map has it.
    moved_bytes: u64,
    /// What of it is found only by the layout before, until it has moved.
    strayed_bytes: u64,
    /// Whether some chunks are looked for in another group than before.
    regroups: bool,
    targets: Vec<Row>,
    /// What each target's port carries, as far as the map says.
    link_mbps: u64,
    written: bool,
}

impl Report {
    /// Which target has the most to move, and how many seconds its port takes for that at the least.
    fn least_time(&self) -> (u32, u64) {
        let busiest = self.targets.iter().max_by_key(|row| row.leaves_bytes.max(row.arrives_bytes));
        let bytes = busiest.map_or(0, |row| row.leaves_bytes.max(row.arrives_bytes));
        (busiest.map_or(0, |row| row.id), bytes.div_ceil((self.link_mbps * 125_000).max(1)))
    }
}

/// The map as `reservoir cluster show` has it.
#[derive(Serialize)]
struct ShownMap {
    cluster: String,
    epoch: u32,
    copies: u8,
    cells: u32,
    groups: u32,
    /// Whether it leads to the layout before as well.
    carries_previous: bool,
    targets: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    id: u32,
    domain: String,
    address: String,
    capacity: String,
    drained: bool,
    groups: Vec<u32>,
}

#[derive(Serialize)]
struct Row {
    id: u32,
    leaves_bytes: u64,
    arrives_bytes: u64,
}

/// Runs `reservoir cluster plan`.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let path = &args.rules.table.config;
    let (text, present) = local_cluster::read_text(path)?;
    let s3 = gateway_file::load_if_there(path)?.and_then(|file| file.s3);
    let stored = stored(args)?;
    if args.new {
        return lay_out_anew(args, (&text, &present), stored);
    }
    let wished = wish(args, &present)?;
    let classes = s3.as_ref().map(S3File::redundancies).transpose()?.unwrap_or_default();
    if stored > 0 && !args.rules.drop_copies {
        ensure_copies_stay(args, &present, &classes)?;
    }
    let most = classes.values().copied().max().unwrap_or(Redundancy::Copies(wished.copies));
    let (next, plan) = present.plan(&wished, &places(args, &present, &wished)?, most, stored, args.level)?;
    if let Some(s3) = s3 {
        s3.storage_classes(&plan.map).context("a storage class could not be kept under the next map")?;
    }
    if args.write {
        ensure!(
            args.forget_previous || !plan.forgets || nothing_strays(args, &present),
            "the map has a layout before it ([previous]), where some of what is stored may still be, and the next one would forget \
             that: nothing is written; wait until `reservoir status` says that every chunk has all its copies, or write it with \
             --forget-previous"
        );
        // Nodes that use the present map take this for leave to forget.
        let settled = if plan.forgets { Some(present.epoch) } else { next.settled };
        write((&text, &present), &ClusterConfig { settled, ..next.clone() })?;
    }
    let row = |(id, moves): (&NodeId, &protocol::planner::moves::Move)| Row {
        id: id.0,
        leaves_bytes: moves.leaves,
        arrives_bytes: moves.arrives,
    };
    let report = Report {
        epoch: next.epoch,
        cells: plan.map.cells(),
        groups: plan.map.groups(),
        stored_bytes: stored,
        moved_bytes: plan.moves.bytes(),
        strayed_bytes: plan.moves.strays,
        regroups: plan.regroups,
        targets: plan.moves.targets.iter().map(row).collect(),
        link_mbps: present.protocol.link_mbps,
        written: args.write,
    };
    if args.rules.table.json { json(&report) } else { print(&report, path, plan.forgets) }
}

/// Writes the layout of a new cluster for one that is empty.
fn lay_out_anew(args: &PlanArgs, (text, present): (&str, &ClusterConfig), stored: u64) -> anyhow::Result<()> {
    ensure!(
        stored == 0,
        "{} are stored, which would not be found any more: --new is for clusters that are empty",
        units::size(stored)
    );
    let path = &args.rules.table.config;
    let next = present.clone().with_first_layout()?;
    let epoch = present.epoch.saturating_add(1);
    // Nothing is stored, so no layout before this one is needed.
    let next = ClusterConfig { epoch, settled: Some(epoch), ..next };
    if args.write {
        write((text, present), &next)?;
    }
    let map = next.map()?;
    if args.rules.table.json {
        return json(&Report {
            epoch: next.epoch,
            cells: map.cells(),
            groups: map.groups(),
            stored_bytes: stored,
            moved_bytes: 0,
            strayed_bytes: 0,
            regroups: true,
            targets: vec![],
            link_mbps: present.protocol.link_mbps,
            written: args.write,
        });
    }
    line(&format!(
        "epoch {}: the layout of a new cluster, {} groups in {} cells",
        next.epoch,
        map.groups(),
        map.cells()
    ))?;
    line(&done(path, args.write))
}

/// What became of the plan.
fn done(path: &Path, written: bool) -> String {
    if written {
        format!(
            "written to {}, which all take over by themselves: make the stores of new targets, and start them",
            path.display()
        )
    } else {
        "nothing is written: do that with --write".to_owned()
    }
}

fn print(report: &Report, path: &Path, forgets: bool) -> anyhow::Result<()> {
    let row = |row: &Row| vec![row.id.to_string(), units::size(row.leaves_bytes), units::size(row.arrives_bytes)];
    output::table(&["target", "leaves", "arrives"], report.targets.iter().map(row).collect())?;
    let size = units::size;
    line(&format!(
        "epoch {}: {} groups in {} cells; of {} stored, {} would have to move, {} of it from where only the layout before has it",
        report.epoch,
        report.groups,
        report.cells,
        size(report.stored_bytes),
        size(report.moved_bytes),
        size(report.strayed_bytes)
    ))?;
    if report.strayed_bytes > 0 {
        line(
            "such chunks are found by the layout before, which the map carries until the next such change, and put where the next map \
             has them: `reservoir status` says when that is done",
        )?;
    }
    if forgets {
        line("the map has one layout before it: that of the present [previous] is forgotten")?;
    }
    if report.moved_bytes > 0 {
        let (most, seconds) = report.least_time();
        line(&format!(
            "at {} Mb/s (link_mbps) for each target that takes {} at the least: target {most} has the most to do",
            report.link_mbps,
            units::time(seconds)
        ))?;
    }
    line(&done(path, report.written))
}

/// Runs `reservoir cluster show`.
pub(crate) fn show(args: &TableArgs) -> anyhow::Result<()> {
    let config = local_cluster::read(&args.config)?;
    let map = config.map()?;
    let groups_of = |id: u32| {
        let is_in = |group: &GroupId| map.members(*group).any(|member| member.id.0 == id);
        map.group_ids().filter(is_in).map(|group| group.0).collect::<Vec<_>>()
    };
    let row = |target: &TargetConfig| Shown {
        id: target.id,
        domain: target.domain.clone(),
        address: target.address.to_string(),
        capacity: target.capacity.clone(),
        drained: target.drain,
        groups: groups_of(target.id),
    };
    let shown = ShownMap {
        cluster: config.cluster.clone(),
        epoch: config.epoch,
        copies: config.copies,
        cells: map.cells(),
        groups: map.groups(),
        carries_previous: map.previous().is_some(),
        targets: config.targets.iter().map(row).collect(),
    };
    if args.json {
        return json(&shown);
    }
    let cells = |target: &Shown| {
        let groups: Vec<String> = target.groups.iter().map(u32::to_string).collect();
        let state = if target.drained { "drained" } else { "" };
        let (domain, address) = (output::shortened(&target.domain), target.address.clone());
        vec![target.id.to_string(), domain, address, target.capacity.clone(), groups.join(" "), state.to_owned()]
    };
    output::table(
        &["target", "domain", "address", "capacity", "groups", ""],
        shown.targets.iter().map(cells).collect(),
    )?;
    let previous =
        if shown.carries_previous { "; the layout before is carried, for what did not move yet" } else { "" };
    line(&format!(
        "cluster {:?}, map epoch {}, {} copies, {} groups in {} cells{previous}",
        shown.cluster, shown.epoch, shown.copies, shown.groups, shown.cells
    ))
}

/// The cluster as it is to be.
fn wish(args: &PlanArgs, present: &ClusterConfig) -> anyhow::Result<ClusterConfig> {
    let mut wished = present.clone();
    let (resized, replaced) = (args.capacity.iter().map(|(id, _)| id), args.replace.iter().map(|(old, _)| old));
    for id in args.drain.iter().chain(&args.restore).chain(&args.remove).chain(resized).chain(replaced) {
        ensure!(present.targets.iter().any(|target| target.id == *id), "there is no target {id} in the map");
    }
    let mut named = BTreeSet::new();
    for id in args.drain.iter().chain(&args.restore).chain(&args.remove) {
        ensure!(named.insert(id), "say once what becomes of target {id}: --drain, --restore or --remove");
    }
    wished.copies = args.copies.unwrap_or(wished.copies);
    wished.group_cells = args.group_cells.map_or(wished.group_cells, usize::from);
    wished.overlap = args.overlap.unwrap_or(wished.overlap);
    let goes = |id: u32| args.remove.contains(&id) || args.replace.iter().any(|(old, _)| *old == id);
    wished.targets.retain(|target| !goes(target.id));
    for target in &mut wished.targets {
        target.drain = args.drain.contains(&target.id) || target.drain && !args.restore.contains(&target.id);
        if let Some((_, size)) = args.capacity.iter().find(|(id, _)| *id == target.id) {
            target.capacity.clone_from(size);
            present.capacity(target).with_context(|| format!("--capacity {}={size}", target.id))?;
        }
    }
    if let Some(path) = &args.add {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let added: Added = toml::from_str(&text).map_err(|error| {
            let what = problem(&text, &error);
            anyhow::anyhow!("{}: {what}: write sections [[target]] as in the configuration", path.display())
        })?;
        for target in added.targets {
            present.capacity(&target).with_context(|| format!("{} cannot be added", path.display()))?;
            ensure!(
                present.targets.iter().all(|other| other.id != target.id),
                "target {} is in the map, or was: give the one that is added an id of its own",
                target.id
            );
            wished.targets.push(target);
        }
    }
    Ok(wished)
}

/// Who takes whose place.
fn places(
    args: &PlanArgs,
    present: &ClusterConfig,
    wished: &ClusterConfig,
) -> anyhow::Result<BTreeMap<NodeId, NodeId>> {
    let takes_chunks = |of: &ClusterConfig, id: u32| of.targets.iter().any(|target| target.id == id && !target.drain);
    let (mut places, mut replacements) = (BTreeMap::new(), BTreeSet::new());
    for (old, new) in &args.replace {
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
            "{what}: target {new} would take no chunks: add it with --add FILE, or with --restore {new} if it is drained"
        );
        let once = places.insert(NodeId(*old), NodeId(*new)).is_none() && replacements.insert(*new);
        ensure!(
            once && !args.drain.contains(old) && !args.remove.contains(old),
            "{what}: say once what becomes of a target"
        );
    }
    Ok(places)
}

/// Bytes of all copies of all chunks. Of what silent targets hold nobody knows: about as much as others.
fn stored(args: &PlanArgs) -> anyhow::Result<u64> {
    if let Some(text) = &args.rules.stored {
        return node::config::parse_size(text).with_context(|| format!("--stored {text}: write a size like 20TiB"));
    }
    let status = status(args).context("how much is stored is not known: say it with --stored, or start the gateway")?;
    let known: Vec<u64> = status.targets.iter().filter_map(|target| target.live).collect();
    let silent = status.targets.len() - known.len();
    ensure!(
        !known.is_empty(),
        "how much is stored is not known, as all targets are silent: start them, or say it with --stored"
    );
    let sum: u64 = known.iter().sum();
    Ok(sum + sum / known.len() as u64 * silent as u64)
}

/// What the gateway says of the cluster.
fn status(args: &PlanArgs) -> anyhow::Result<Status> {
    Gateway::of(&args.rules.table)?.status()
}

/// Whether all that is stored is where the present map has it, by what is known of every group.
fn nothing_strays(args: &PlanArgs, present: &ClusterConfig) -> bool {
    status(args).is_ok_and(|status| status.epoch == present.epoch && status.health.whole)
}

/// Refuses to take out at once so many failure domains as some objects have copies: all of them may be there.
fn ensure_copies_stay(
    args: &PlanArgs,
    present: &ClusterConfig,
    classes: &BTreeMap<String, Redundancy>,
) -> anyhow::Result<()> {
    let map = present.map()?;
    let gone = args.remove.iter().copied().chain(args.replace.iter().map(|(old, _)| *old));
    let gone: BTreeSet<NodeId> = gone.map(NodeId).collect();
    let all: Vec<NodeId> = gone.iter().copied().collect();
    let plain = ("the cluster's".to_owned(), None);
    let classes = classes.iter().map(|(name, redundancy)| (format!("those of class {name}"), Some(*redundancy)));
    let lost = [plain].into_iter().chain(classes).filter(|(_, own)| map.may_hide_kept(&all, *own));
    let lost: Vec<String> = lost.map(|(what, own)| format!("{what}, with {}", map.fewest(own))).collect();
    ensure!(
        lost.is_empty(),
        "targets {} are in {} failure domains, and some objects have no more copies ({}): all that there is of them may be on these \
         targets, and would be lost; take fewer out at once, or --drain them and put such objects again, and then take them out with \
         --drop-copies",
        gone.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(", "),
        map.most_domains(&all),
        lost.join("; ")
    );
    Ok(())
}

/// Puts the next map in the place of the present one, which is kept, unless that is another by now.
fn write((was, present): (&str, &ClusterConfig), next: &ClusterConfig) -> anyhow::Result<()> {
    let written = next.replace((was, present.epoch)).context("the next map is not written")?;
    ensure!(written, "{} was changed meanwhile: nothing is written; plan again", next.path.display());
    Ok(())
}
