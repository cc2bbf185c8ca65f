//! Memory in large pages for the simulation of a large cluster.
//!
//! What happens next happens to any of thousands of nodes, so each step touches memory that the processor has not seen for a
//! while, and to find where it is takes as long as to fetch it. In pages of 2 MiB that is known: a fifth less time.

use std::env::{args_os, var_os};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use sim::perf::Setup;

/// Nodes for which it is worth while.
const NODES: u32 = 2_000;

/// How the C library is told, which is when a program starts: to ask for large pages, and for many at once.
const VARIABLE: &str = "GLIBC_TUNABLES";
const TUNABLES: &str = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=268435456";

/// Starts this program once more with memory in large pages, if one of the clusters is large. Returns if it runs with them
/// already, or if that cannot be: the run is slower then, and comes to the same.
pub(super) fn restart_with(setups: &[Setup]) {
    let is_large = setups.iter().any(|setup| setup.targets.saturating_add(setup.initiators) >= NODES);
    if is_large && cfg!(target_os = "linux") && var_os(VARIABLE).is_none() {
        let error = Command::new("/proc/self/exe").args(args_os().skip(1)).env(VARIABLE, TUNABLES).exec();
        crate::output::say!("reservoir: no large pages, so this takes longer: {error}");
    }
}
