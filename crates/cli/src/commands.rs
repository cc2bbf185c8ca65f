//! What each command does.

use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::fs::Mode;

use crate::api::FileInfo;
use crate::args::{Args, Command, GetArgs, PutArgs, StatArgs, TableArgs};
use crate::client::{Gateway, open_source};
use crate::output::{self, byte_bar, json, line};
use crate::{bench, catalog, clean, layout, log, numbers, objects, roles, simulate, up};

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let quiet = !matches!(args.command, Command::Target(_) | Command::Gateway(_));
    // What a cluster keeps is its owner's alone. What a user asks for, and reports, have the modes that the user wants.
    if !matches!(args.command, Command::Get(_) | Command::Sim(_)) {
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
    }
    // `s3s` calls every refused request an error of ours.
    log::start(if quiet { "warn" } else { "info,s3s=off" });
    match args.command {
        Command::Up(args) => up::run(&args),
        Command::Target(args) => roles::target(&args),
        Command::Gateway(args) => roles::gateway(&args),
        Command::Put(args) => put(&args),
        Command::Get(args) => get(&args),
        Command::Stat(args) => stat(&args),
        Command::Ls(args) => list(&args),
        Command::Status(args) => status(&args),
        Command::User(command) => objects::user(&command),
        Command::Catalog(command) => catalog::run(&command),
        Command::Clean(args) => clean::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(command) => simulate::run(&command),
    }
}

fn gateway(table: &TableArgs) -> anyhow::Result<Gateway> {
    ensure!(table.timeout > 0, "--timeout 0 waits for nothing: give at least 1 second");
    let advice = format!(
        "start the cluster with `{} up` (where it runs, that may just be starting the gateway again), or name another with \
         --config",
        output::program()
    );
    let address = layout::gateway_address(&table.config)?;
    Ok(Gateway::at(&address, &table.config, Duration::from_secs(table.timeout), advice))
}

fn put(args: &PutArgs) -> anyhow::Result<()> {
    let (source, size) = open_source(&args.file)?;
    let default = args.file.file_name().filter(|name| *name != "-").and_then(|name| name.to_str());
    let name = args.name.as_deref().or(default).context("what is read has no name: give one with --name")?;
    let gateway = gateway(&args.table)?;
    let bar = byte_bar(&shortened(name), size);
    let report = gateway.put(name, &mut bar.wrap_read(source), size)?;
    bar.finish_and_clear();
    if args.table.json {
        return json(&report);
    }
    let file = &report.file;
    if report.chunks_there > 0 && report.chunks_there >= file.chunks {
        let size = numbers::size(file.size);
        return line(&format!("stored {:?}: {size}; its {} chunks were stored already", file.name, file.chunks));
    }
    line(&format!(
        "stored {:?}: {} in {} chunks, {:.1} MB/s, chunk p50 {:.1} ms, p99 {:.1} ms",
        file.name,
        numbers::size(file.size),
        file.chunks,
        report.mb_per_s,
        report.chunk_p50_ms,
        report.chunk_p99_ms
    ))
}

fn get(args: &GetArgs) -> anyhow::Result<()> {
    let gateway = gateway(&args.table)?;
    let bar = byte_bar(&shortened(&args.name), Some(0));
    let default = args.name.rsplit('/').next().filter(|last| !last.is_empty()).unwrap_or(&args.name);
    let path = args.output.clone().unwrap_or_else(|| default.into());
    let to_stdout = path.as_os_str() == "-";
    let report = if to_stdout {
        gateway.get(&args.name, &mut std::io::stdout().lock(), &bar)?
    } else {
        gateway.get_to(&args.name, &path, &bar)?
    };
    bar.finish_and_clear();
    if args.table.json && !to_stdout {
        return json(&report);
    }
    let text = format!(
        "read {:?}: {} verified, {:.1} MB/s, in {}",
        report.file.name,
        numbers::size(report.file.size),
        report.mb_per_s,
        path.display()
    );
    if to_stdout { Ok(()) } else { line(&text) }
}

fn stat(args: &StatArgs) -> anyhow::Result<()> {
    let file = gateway(&args.table)?.stat(&args.name)?;
    if args.table.json {
        return json(&file);
    }
    let rows = [
        ("name", file.name.clone()),
        ("size", format!("{} bytes ({})", file.size, numbers::size(file.size))),
        ("stored", format!("{} UTC", numbers::date(file.created_ms))),
        ("version", file.created_ms.to_string()),
        ("chunks", format!("{} of up to {}", file.chunks, numbers::size(file.chunk_size.into()))),
        ("BLAKE3", file.blake3.clone()),
        ("manifest", file.manifest.clone()),
        ("manifest on targets", join(&file.holders)),
    ];
    output::pairs(rows)
}

fn list(args: &TableArgs) -> anyhow::Result<()> {
    let list = gateway(args)?.list()?;
    if args.json {
        return json(&list);
    }
    let row = |file: &FileInfo| {
        vec![shortened(&file.name), numbers::size(file.size), numbers::date(file.created_ms), file.chunks.to_string()]
    };
    output::table(&["name", "size", "stored (UTC)", "chunks"], list.files.iter().map(row).collect())?;
    for (id, why) in &list.unreadable {
        crate::output::say!("reservoir: the manifest {id} is not shown: {why}");
    }
    if list.incomplete {
        let silent = join(&list.silent);
        crate::output::say!(
            "reservoir: targets {silent} are silent: files or newer versions may be missing here; start them"
        );
    }
    Ok(())
}

fn status(args: &TableArgs) -> anyhow::Result<()> {
    let gateway = gateway(args)?;
    let status = gateway.status()?;
    if args.config.exists()
        && let Err(error) = layout::load(&args.config)
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
        "cluster {:?}, map epoch {}, {} copies, {} {multicast}, gateway {}",
        status.cluster,
        status.epoch,
        status.copies,
        status.transport,
        gateway.base()
    ))?;
    if let Some(newer) = status.newer_epoch {
        line(&format!(
            "others use a newer cluster map, of epoch {newer}: put that `cluster.toml` where this gateway has its own; until then \
             it can hardly store or read anything"
        ))?;
    }
    let row = |target: &crate::api::TargetInfo| {
        let number = |n: Option<u64>| n.map_or("-".to_owned(), |n| n.to_string());
        let state = if target.alive { "up" } else { "silent" };
        let size = |bytes: Option<u64>| bytes.map_or("-".to_owned(), numbers::size);
        let mut cells = vec![target.id.to_string(), state.to_owned(), shortened(&target.domain), number(target.chunks)];
        cells.extend([target.live, target.dead, target.reclaimed, target.free].map(size));
        let more = if target.damaged_more == Some(true) { "+" } else { "" };
        cells.push(format!("{}{more}", number(target.damaged)));
        cells
    };
    let header = ["target", "state", "domain", "chunks", "live", "dead", "reclaimed", "free", "damaged"];
    output::table(&header, status.targets.iter().map(row).collect())?;
    for target in &status.targets {
        if let Some(silence) = &target.silence {
            line(&format!("target {} is silent: {}", target.id, silence.text))?;
        }
    }
    let damaged = &status.damaged;
    if damaged.copies > 0 {
        let least = if damaged.at_least { "at least " } else { "" };
        line(&format!(
            "damage: {least}{n} copies were damaged and dropped, and are not back at their targets: up to {n} chunks have fewer \
             than {} copies; check the disks, and put again what they hold",
            status.copies,
            n = damaged.copies
        ))?;
    }
    let cleaning = &status.cleaning;
    if cleaning.looks > 0 {
        line(&format!(
            "cleaning: {} looks, {} copies dropped, {}; the last found {} chunks that nothing refers to",
            cleaning.looks,
            cleaning.copies,
            numbers::size(cleaning.bytes),
            cleaning.unreferenced
        ))?;
    }
    match &cleaning.problem {
        Some(problem) => line(&format!("cleaning: the last look was not finished: {problem}")),
        None => Ok(()),
    }
}

/// Most characters of a name in a table.
const SHOWN: usize = 48;

/// A name for a table: of a long one the beginning and the end, which tell it best from others.
fn shortened(name: &str) -> String {
    let count = name.chars().count();
    if count <= SHOWN {
        return name.to_owned();
    }
    let (first, last) = (SHOWN * 2 / 3, SHOWN / 3 - 1);
    name.chars().take(first).chain(['…']).chain(name.chars().skip(count - last)).collect()
}

fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
