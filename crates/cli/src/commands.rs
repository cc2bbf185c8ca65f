//! Runs a command, and prints the status.

use rustix::fs::Mode;

use crate::api::{FewerInfo, Status, SwitchInfo, TargetInfo};
use crate::args::{Args, ClusterCommand, Command, PlanArgs, TableArgs};
use crate::client::Gateway;
use crate::output::{self, json, line};
use crate::watch::WITHOUT_SWITCH;
use crate::{
    bench, catalog, clean, keys, local_cluster, log, memory, migrate, objects, plan, rewrite, roles, simulate, units,
    up, users,
};

/// Groups that a line names at most.
const GROUPS: usize = 12;

/// Events that are shown at most.
const EVENTS: usize = 8;
/// Puts with fewer copies are spoken of for so many seconds after the last.
const LATELY: u64 = 60;

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let quiet = !matches!(args.command, Command::Target(_) | Command::Switch(_) | Command::Gateway(_));
    // What a cluster keeps is its owner's alone. What a user asks for, and reports, have the modes that the user wants.
    if !matches!(args.command, Command::Get(_) | Command::Sim(_)) {
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    // `s3s` calls every refused request an error of ours.
    log::start(if quiet { "warn" } else { "info,s3s=off" });
    if !matches!(args.command, Command::Sim(_)) {
        memory::keep_pages_small();
    }
    match args.command {
        Command::Up(args) => up::run(&args),
        Command::Target(args) => roles::target(&args),
        Command::Switch(args) => roles::switch(&args),
        Command::Gateway(args) => roles::gateway(&args),
        Command::Put(args) => objects::put(&args),
        Command::Get(args) => objects::get(&args),
        Command::Stat(args) => objects::stat(&args),
        Command::Ls(args) => objects::list(&args),
        Command::Rm(args) => objects::remove(&args),
        Command::Mb(args) => objects::make_bucket(&args),
        Command::Rb(args) => objects::remove_bucket(&args),
        Command::Rewrite(args) => rewrite::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Status(args) => status(&args),
        Command::User(command) => users::user(&command),
        Command::Key(command) => keys::key(&command),
        Command::Catalog(command) => catalog::run(&command),
        Command::Cluster(command) => cluster(command),
        Command::Clean(args) => clean::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(command) => simulate::run(&command),
    }
}

/// Changes the cluster map, or says how it is.
fn cluster(command: ClusterCommand) -> anyhow::Result<()> {
    let none = PlanArgs::default;
    let args = match command {
        ClusterCommand::Show(args) => return plan::show(&args),
        ClusterCommand::Pause(args) => return plan::pause(&args, true),
        ClusterCommand::Resume(args) => return plan::pause(&args, false),
        ClusterCommand::Plan(args) => args,
        ClusterCommand::Add { file, change } => change.plan(PlanArgs { add: Some(file), ..none() }),
        ClusterCommand::Drain { targets, change } => change.plan(PlanArgs { drain: targets, ..none() }),
        ClusterCommand::Restore { targets, change } => change.plan(PlanArgs { restore: targets, ..none() }),
        ClusterCommand::Remove { targets, change } => change.plan(PlanArgs { remove: targets, ..none() }),
        ClusterCommand::Replace { old, new, add, change } => {
            change.plan(PlanArgs { replace: vec![(old, new)], add, ..none() })
        }
        ClusterCommand::Weight { capacities, change } => change.plan(PlanArgs { capacity: capacities, ..none() }),
    };
    plan::run(&args)
}

/// What silent targets may hide, for the cluster's copies and for each storage class of which it is more.
fn say_out_of_reach(status: &Status) -> anyhow::Result<()> {
    let hidden = |what: &str, groups: &[u32]| {
        let named: Vec<String> = groups.iter().take(GROUPS).map(u32::to_string).collect();
        let more = if groups.len() > GROUPS { " and more" } else { "" };
        line(&format!(
            "out of reach: targets that are silent may hold all of {what} in {} of {} groups ({}{more}): start them",
            groups.len(),
            status.groups.len(),
            named.join(", ")
        ))
    };
    if !status.out_of_reach.is_empty() {
        hidden("some chunks", &status.out_of_reach)?;
    }
    for (name, class) in status.classes.iter().filter(|(_, class)| class.out_of_reach != status.out_of_reach) {
        if !class.out_of_reach.is_empty() {
            hidden(&format!("some objects of class {name} ({})", class.redundancy), &class.out_of_reach)?;
        }
    }
    Ok(())
}

/// Whether puts are acknowledged with fewer copies just now.
fn say_fewer(status: &Status) -> anyhow::Result<()> {
    match status.fewer_copies {
        FewerInfo { puts, seconds_ago: Some(ago) } if ago < LATELY => line(&format!(
            "fewer copies: {puts} puts were acknowledged with fewer copies than are wanted, but {} at least, as failure domains are \
             down, the last {ago} s ago: the rest is made when they are back",
            status.min_copies
        )),
        _ => Ok(()),
    }
}

/// What is said when nothing is missing.
const WHOLE: &str = "whole: every chunk has all its copies";

/// What has too few copies, what is done about it, and what happened last.
fn say_health(status: &Status) -> anyhow::Result<()> {
    let health = &status.health;
    if health.at_risk > 0 || health.strayed > 0 {
        let what = if health.at_risk > 0 { "at risk" } else { "moving" };
        line(&format!("{what}: {}", health.healing_text()))?;
    } else if health.whole {
        line(if health.nowhere > 0 { "whole: every chunk that is anywhere has all its copies" } else { WHOLE })?;
    } else if health.unknown_groups > 0 {
        let (unknown, all) = (health.unknown_groups, status.groups.len());
        line(&format!("copies: of {unknown} of {all} groups nobody says yet whether chunks have all their copies"))?;
    } else if status.targets.iter().any(|target| !target.alive) {
        line("copies: nothing lacked any when that was looked at last; what silent targets hold is not known")?;
    } else {
        line("copies: being counted")?;
    }
    health.missing_texts().iter().try_for_each(|text| line(text))?;
    if health.moving > 0 {
        let (chunks, bytes) = (health.moved_chunks, units::size(health.moved_bytes));
        line(&format!(
            "levelling: {} chunks are being put on emptier targets, after {chunks} with {bytes}",
            health.moving
        ))?;
    }
    if status.moves_paused {
        line("copies stay where they are: `reservoir cluster resume` lets them move again")?;
    }
    status.down.texts().try_for_each(|text| line(&text))?;
    status.down.held.iter().try_for_each(|held| line(held))?;
    let last = status.history.len().saturating_sub(EVENTS);
    status.history[last..].iter().try_for_each(|event| line(&format!("{}  {}", event.at, event.what)))
}

fn say_switch(switch: &SwitchInfo) -> anyhow::Result<()> {
    let how = if switch.alive { "up".to_owned() } else { format!("silent: {WITHOUT_SWITCH}") };
    line(&format!("switch {} at {} is {how}", switch.id, switch.address))
}

fn state(target: &TargetInfo) -> &'static str {
    match (target.alive, target.drained) {
        (false, _) => "silent",
        (true, true) => "drained",
        (true, false) => "up",
    }
}

/// What the table says of a target.
fn row(target: &TargetInfo) -> Vec<String> {
    let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
    let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), units::size);
    let mut cells =
        vec![target.id.to_string(), state(target).to_owned(), output::shortened(&target.domain), number(target.chunks)];
    cells.extend([target.live, target.dead, target.reclaimed, target.free].map(size));
    let more = if target.damaged_more == Some(true) { "+" } else { "" };
    cells.push(format!("{}{more}", number(target.damaged)));
    cells
}

fn status(args: &TableArgs) -> anyhow::Result<()> {
    let gateway = Gateway::of(args)?;
    let status = gateway.status()?;
    if args.config.exists()
        && let Err(error) = local_cluster::read(&args.config)
    {
        crate::output::say!(
            "reservoir: what runs goes on with the map that it has, but would not start again: {error:#}"
        );
    }
    if args.json {
        return json(&status);
    }
    let multicast = if status.multicast { "with multicast" } else { "without multicast" };
    line(&format!(
        "cluster {:?}, map epoch {}, {}, {} {multicast}, gateway {}",
        status.cluster,
        status.epoch,
        status.kept(),
        status.transport,
        gateway.base()
    ))?;
    if let Some(newer) = status.newer_epoch {
        line(&format!(
            "others use a newer cluster map, of epoch {newer}, and this gateway cannot take it over: its log says why; until it can, \
             it can hardly store or read anything"
        ))?;
    }
    let header = ["target", "state", "domain", "chunks", "live", "dead", "reclaimed", "free", "damaged"];
    output::table(&header, status.targets.iter().map(row).collect())?;
    for target in &status.targets {
        if let Some(silence) = &target.silence {
            line(&format!("target {} is silent: {}", target.id, silence.text))?;
        }
    }
    status.switches.iter().try_for_each(say_switch)?;
    say_out_of_reach(&status)?;
    let damaged = &status.damaged;
    if damaged.copies > 0 {
        let least = if damaged.at_least { "at least " } else { "" };
        let n = damaged.copies;
        let now = if status.health.whole && status.health.nowhere == 0 {
            "others were made in their place".to_owned()
        } else {
            format!("up to {n} chunks have fewer than {} copies until these are made again", status.copies)
        };
        line(&format!(
            "damage: {least}{n} copies were damaged and dropped, and are not back at their targets: {now}; check the disks"
        ))?;
    }
    say_fewer(&status)?;
    say_health(&status)?;
    let cleaning = &status.cleaning;
    if cleaning.passes > 0 {
        line(&format!(
            "cleaning: {} passes, {} copies dropped, {}; the last found {} chunks that nothing refers to",
            cleaning.passes,
            cleaning.copies,
            units::size(cleaning.bytes),
            cleaning.unreferenced
        ))?;
    }
    match &cleaning.problem {
        Some(problem) => line(&format!("cleaning: the last pass was not finished: {problem}")),
        None => Ok(()),
    }
}
