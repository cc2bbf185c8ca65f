//! The cluster map, and the next one: `reservoir cluster`.

use std::fs;

use anyhow::{Context, ensure};
use node::ClusterConfig;
use node::config::{TargetConfig, problem};
use protocol::id::{GroupId, NodeId};
use protocol::proposer::Proposed;
use serde::{Deserialize, Serialize};

use crate::api::Status;
use crate::args::{PlanArgs, ShowArgs};
use crate::authority::{self, Decided, MapAuthority};
use crate::change::{self, Change, Rules, Stored};
use crate::client::Gateway;
use crate::gateway_file::S3File;
use crate::output::{self, json, line};
use crate::{gateway_file, units};

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
    /// Whether the next map says anything else than the present one; if not, none is written.
    changes: bool,
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
    /// Where its maps are decided.
    decided: String,
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
    let authority = authority::of_operator(path, args.rules.catalog.url.as_deref())?;
    let present = authority.newest()?;
    let s3 = gateway_file::load_if_there(path)?.and_then(|file| file.s3);
    let stored = stored(args)?;
    if args.new {
        return lay_out_anew(args, &*authority, &present, stored.bytes);
    }
    let classes = s3.as_ref().map(S3File::redundancies).transpose()?.unwrap_or_default();
    let rules = Rules { stored: &stored, classes: &classes, drop_copies: args.rules.drop_copies };
    let (next, plan) = change::next(&present, &asked_for(args, &present)?, &rules)?;
    if let Some(s3) = s3 {
        s3.storage_classes(&plan.map).context("a storage class could not be kept under the next map")?;
    }
    let changes = !change::changes_nothing(&present, &next);
    if args.write && changes {
        ensure!(
            args.forget_previous || !plan.forgets || nothing_strays(args, &present),
            "the map has a layout before it ([previous]), where some of what is stored may still be, and the next one would forget \
             that: nothing is written; wait until `reservoir status` says that every chunk has all its copies, or write it with \
             --forget-previous"
        );
        decide(args, &*authority, &present, &next)?;
    }
    let row = |(id, moves): (&NodeId, &protocol::planner::moves::Move)| Row {
        id: id.0,
        leaves_bytes: moves.leaves,
        arrives_bytes: moves.arrives,
    };
    let report = Report {
        epoch: if changes { next.epoch } else { present.epoch },
        cells: plan.map.cells(),
        groups: plan.map.groups(),
        stored_bytes: stored.bytes,
        moved_bytes: plan.moves.bytes(),
        strayed_bytes: plan.moves.strays,
        regroups: plan.regroups,
        targets: plan.moves.targets.iter().map(row).collect(),
        link_mbps: present.protocol.link_mbps,
        changes,
        written: args.write && changes,
    };
    if args.rules.table.json { json(&report) } else { print(&report, &authority.location(), plan.forgets) }
}

/// Writes the layout of a new cluster for one that is empty.
fn lay_out_anew(
    args: &PlanArgs,
    authority: &dyn MapAuthority,
    present: &ClusterConfig,
    stored: u64,
) -> anyhow::Result<()> {
    ensure!(
        stored == 0,
        "{} are stored, which would not be found any more: --new is for clusters that are empty",
        units::size(stored)
    );
    let next = present.clone().with_first_layout()?;
    let epoch = present.epoch.saturating_add(1);
    // Nothing is stored, so no layout before this one is needed.
    let next = ClusterConfig { epoch, settled: Some(epoch), ..next };
    if args.write {
        decide(args, authority, present, &next)?;
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
            changes: true,
            written: args.write,
        });
    }
    line(&format!(
        "epoch {}: the layout of a new cluster, {} groups in {} cells",
        next.epoch,
        map.groups(),
        map.cells()
    ))?;
    line(&done(&authority.location(), args.write))
}

/// What became of the plan.
fn done(place: &str, written: bool) -> String {
    if written {
        format!(
            "decided {place}, which all take over by themselves; targets that are new need a store, and to be started"
        )
    } else {
        "nothing is written: that does the same command with --write, or without --dry-run".to_owned()
    }
}

fn print(report: &Report, place: &str, forgets: bool) -> anyhow::Result<()> {
    if !report.changes {
        return line(&format!("nothing to do: the cluster map of epoch {} says so already", report.epoch));
    }
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
    line(&done(place, report.written))
}

/// Runs `reservoir cluster show`.
pub(crate) fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let authority = authority::of_operator(&args.table.config, args.catalog.url.as_deref())?;
    let config = authority.newest()?;
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
        decided: authority.location(),
        targets: config.targets.iter().map(row).collect(),
    };
    if args.table.json {
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
        "cluster {:?}, map epoch {}, {} copies, {} groups in {} cells{previous}; maps are decided {}",
        shown.cluster, shown.epoch, shown.copies, shown.groups, shown.cells, shown.decided
    ))
}

/// Runs `reservoir cluster pause` and `resume`.
pub(crate) fn pause(args: &ShowArgs, paused: bool) -> anyhow::Result<()> {
    let authority = authority::of_operator(&args.table.config, args.catalog.url.as_deref())?;
    let decided = authority::decide(&*authority, 3, |present| change::with_moves_paused(present, paused))?;
    ensure!(
        decided != Decided::Outrun,
        "the cluster map was changed by others meanwhile: nothing is written; do it again"
    );
    let epoch = authority.newest()?.epoch;
    if args.table.json {
        return json(&serde_json::json!({ "epoch": epoch, "moves_paused": paused }));
    }
    let how = match (paused, decided) {
        (true, Decided::Nothing) => "copies stay where they are already",
        (true, _) => "copies stay where they are until `reservoir cluster resume`; what is lost is made again",
        (false, Decided::Nothing) => "copies move already",
        (false, _) => "copies move again",
    };
    line(&format!("epoch {epoch}: {how}"))
}

/// What is asked for.
fn asked_for(args: &PlanArgs, present: &ClusterConfig) -> anyhow::Result<Change> {
    let mut add = vec![];
    if let Some(path) = &args.add {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let added: Added = toml::from_str(&text).map_err(|error| {
            let what = problem(&text, &error);
            anyhow::anyhow!("{}: {what}: write sections [[target]] as in the configuration", path.display())
        })?;
        for target in &added.targets {
            present.capacity(target).with_context(|| format!("{} cannot be added", path.display()))?;
        }
        add = added.targets;
    }
    Ok(Change {
        add,
        drain: args.drain.clone(),
        restore: args.restore.clone(),
        remove: args.remove.clone(),
        replace: args.replace.clone(),
        capacity: args.capacity.clone(),
        copies: args.copies,
        group_cells: args.group_cells,
        overlap: args.overlap,
        level: args.level,
    })
}

/// What is stored, as the command line or the gateway says.
fn stored(args: &PlanArgs) -> anyhow::Result<Stored> {
    if let Some(text) = &args.rules.stored {
        let bytes = protocol::size::parse(text);
        return bytes.map(Stored::bytes).with_context(|| format!("--stored {text}: write a size like 20TiB"));
    }
    let status = status(args).context("how much is stored is not known: say it with --stored, or start the gateway")?;
    Stored::of(&status)
}

/// What the gateway says of the cluster.
fn status(args: &PlanArgs) -> anyhow::Result<Status> {
    Gateway::of(&args.rules.table)?.status()
}

/// Whether all that is stored is where the present map has it, by what is known of every group.
fn nothing_strays(args: &PlanArgs, present: &ClusterConfig) -> bool {
    status(args).is_ok_and(|status| status.epoch == present.epoch && status.health.whole)
}

/// Has the next map decided, which was made from the present one.
fn decide(
    args: &PlanArgs,
    authority: &dyn MapAuthority,
    present: &ClusterConfig,
    next: &ClusterConfig,
) -> anyhow::Result<()> {
    let make = |newest: &ClusterConfig| {
        if !newest.is_same(present) {
            return Ok(None);
        }
        // Where nobody answers, nobody says that there is a newer one.
        let known = status(args).ok().map(|status| status.epoch.max(status.newer_epoch.unwrap_or(0)));
        ensure!(
            known <= Some(present.epoch),
            "the map of epoch {} {} is not the newest, as others use {}: nothing is written; wait until it is here, and plan again",
            present.epoch,
            authority.location(),
            known.unwrap_or(0)
        );
        Ok(Some(next.clone()))
    };
    ensure!(
        authority::decide(authority, 1, make)? == Decided::Changed,
        "the map of epoch {} {} was changed meanwhile: nothing is written; plan again, from what `reservoir cluster show` says now",
        present.epoch,
        authority.location()
    );
    Ok(())
}
