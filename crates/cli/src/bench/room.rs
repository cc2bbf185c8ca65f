//! How much a benchmark may put, and what becomes of it afterwards.

use anyhow::{Context, ensure};
use object::ChunkService;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{Discard, Mark};
use protocol::redundancy::{Piece, Redundancy};

use super::Bench;
use crate::node_cluster::NodeCluster;
use crate::units;

/// Of the room that there is, a measurement takes no more than three quarters: chunks do not fall evenly on the targets.
const USED: (u64, u64) = (3, 4);
/// A measurement that may put less than this says nothing.
const LEAST: u64 = 64 << 20;
/// Chunks in one discard.
const BATCH: usize = 1_024;

/// Chunks that were put, with their holders.
pub(super) type Put = Vec<(ChunkId, Vec<NodeId>)>;

/// Bytes on disks for each byte that is put; headers are not counted.
pub(super) fn stored_per_byte(redundancy: Redundancy) -> f64 {
    match redundancy {
        Redundancy::Copies(copies) => f64::from(copies.max(1)),
        Redundancy::Code(code) => code.stored_per_byte(),
    }
}

impl Bench {
    /// The payload that each of so many measurements may put, in chunks or objects of this size. An error when that is too
    /// little.
    pub(super) fn room(
        &self,
        cluster: &NodeCluster,
        measurements: usize,
        size: usize,
        redundancy: Redundancy,
    ) -> anyhow::Result<u64> {
        let status = crate::gateway::Cluster::status(cluster)?;
        let mut free: u64 = status.targets.iter().filter_map(|target| target.free).sum();
        if let Some(directory) = &self.directory {
            // All of its targets share one file system.
            let space =
                rustix::fs::statvfs(directory.path()).context("the room for the benchmark cannot be found out")?;
            free = free.min(space.f_bavail.saturating_mul(space.f_frsize));
        }
        let stored = stored_per_byte(redundancy);
        let each = (free as f64 / stored) as u64 / USED.1 * USED.0 / measurements.max(1) as u64;
        let least = LEAST.max(size as u64);
        ensure!(
            each >= least,
            "there is too little room: the targets take {} more, and each of {measurements} measurements needs {} for what it \
             puts, kept as {}: free some, or measure fewer --sizes and --transports",
            units::size(free),
            units::size((least as f64 * stored) as u64 * USED.1 / USED.0),
            redundancy
        );
        Ok(each)
    }

    /// Has what was put dropped from a cluster that goes on: nobody refers to it. A cluster that was made for the benchmark
    /// goes as a whole.
    pub(super) fn forget(&self, cluster: &NodeCluster, put: &Put) {
        if self.directory.is_some() || put.is_empty() {
            return;
        }
        if let Err(error) = discard(cluster, put) {
            crate::output::say!(
                "reservoir: what the benchmark put could not be dropped: {error:#}; the cluster's cleaning takes it, a grace \
                 time from now"
            );
        }
    }
}

/// Condemns and drops chunks that only this process knows of: no grace time has to pass between.
fn discard(cluster: &NodeCluster, put: &Put) -> anyhow::Result<()> {
    let put: Put = put.iter().flat_map(each).collect();
    let mut since: Option<Mark> = None;
    for _ in 0..2 {
        let marked = cluster.mark().wait()?;
        silent(&marked.silent)?;
        for chunks in put.chunks(BATCH) {
            let discard = Discard { mark: marked.mark, since, chunks: chunks.to_vec() };
            silent(&cluster.discard(discard).wait()?.silent)?;
        }
        since = Some(marked.mark);
    }
    Ok(())
}

/// What is dropped of a chunk: each of its pieces, if it has any.
fn each((id, holders): &(ChunkId, Vec<NodeId>)) -> Put {
    let pieces = id.code().map(|code| (0..code.fragments()).map(|piece| id.of_piece(Piece(piece as u8))).collect());
    pieces.unwrap_or_else(|| vec![*id]).into_iter().map(|id| (id, holders.clone())).collect()
}

fn silent(targets: &[NodeId]) -> anyhow::Result<()> {
    let names: Vec<String> = targets.iter().map(|target| target.0.to_string()).collect();
    ensure!(names.is_empty(), "targets {} are silent, or know a newer cluster map", names.join(", "));
    Ok(())
}
