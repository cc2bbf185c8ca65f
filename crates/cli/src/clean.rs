//! Cleaning: in the background of a gateway, and as a command.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::bail;
use catalog::Catalog;
use object::clean::{Cleaning, Report};
use serde::Serialize;

use crate::api::CleanInfo;
use crate::args::CleanArgs;
use crate::background::{self, Background, Pauses};
use crate::catalog::CatalogLocation;
use crate::gateway_file::{self, CleanFile};
use crate::local_cluster;
use crate::node_cluster::NodeCluster;
use crate::output::{json, line};
use crate::units;

/// Starts a gateway's cleaner, unless the file says that it does not clean.
pub(crate) fn start(
    file: CleanFile,
    cluster: &Arc<NodeCluster>,
    catalog: Arc<dyn Catalog>,
) -> anyhow::Result<Option<Background>> {
    if file.pause_seconds == 0 {
        return Ok(None);
    }
    let cluster = Arc::clone(cluster);
    let clean = move |pauses: &Pauses| {
        let goes_on = |seconds| pauses.rest(Duration::from_secs(seconds));
        let mut cleaning = Cleaning::new(&*cluster, &*catalog, false);
        let cleaned = cluster.cleaned();
        // A gateway that was just started has other things to do, and its targets may not be there yet.
        while goes_on(file.pause_seconds) {
            let report = cleaning.run_pass(&mut || goes_on(file.grace_seconds));
            note(&mut cleaned.lock().unwrap_or_else(PoisonError::into_inner), report);
        }
    };
    background::start("cleaner", clean).map(Some)
}

fn note(info: &mut CleanInfo, report: Report) {
    let pass = report.pass;
    info.passes += 1;
    info.copies += pass.copies;
    info.bytes += pass.bytes;
    if pass.copies > 0 {
        tracing::info!("cleaning dropped {} copies of {} bytes that nothing refers to", pass.copies, pass.bytes);
    }
    match &report.problem {
        None => info.unreferenced = pass.unreferenced,
        Some(problem) if info.problem != report.problem => tracing::warn!("cleaning goes on later: {problem}"),
        Some(_) => {}
    }
    info.problem = report.problem;
}

/// What `reservoir clean` found and did.
#[derive(Serialize)]
struct Done {
    unreferenced: u64,
    copies: u64,
    bytes: u64,
}

/// Runs `reservoir clean`: two passes, with a grace time between.
pub(crate) fn run(args: &CleanArgs) -> anyhow::Result<()> {
    let config = &args.table.config;
    let file = gateway_file::load(config)?;
    let grace = args.grace.unwrap_or(file.clean.grace_seconds);
    let cluster = NodeCluster::start(&local_cluster::read(config)?, None, false, None)?;
    let catalog = CatalogLocation::of(config, &args.catalog, file.s3.as_ref()).open_existing(&cluster)?;
    let mut cleaning = Cleaning::new(&cluster, &*catalog, args.dry_run);
    let mut report = cleaning.run_pass(&mut || true);
    if !args.dry_run && report.problem.is_none() {
        let found = report.pass.unreferenced;
        crate::output::say!("reservoir: nothing refers to {found} chunks; those that may go do so in {grace} s");
        report = cleaning.run_pass(&mut || {
            std::thread::sleep(Duration::from_secs(grace));
            true
        });
    }
    // The figures of a pass that was not finished say nothing.
    if let Some(problem) = report.problem {
        bail!("the pass was not finished: {problem}; try again when that is mended");
    }
    let pass = report.pass;
    if args.table.json {
        json(&Done { unreferenced: pass.unreferenced, copies: pass.copies, bytes: pass.bytes })?;
    } else {
        let bytes = units::size(pass.bytes);
        line(&format!("nothing refers to {} chunks; {} copies dropped, {bytes}", pass.unreferenced, pass.copies))?;
    }
    Ok(())
}
