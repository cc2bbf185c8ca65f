//! The second driver of the machines: whole clusters on an event queue, with faults, from one seed.
//!
//! [`swarm`] draws a scenario from a seed, [`world`] runs it over the same machines, the same encoded and sealed
//! messages and the same store as the daemons, [`check`] judges from outside. `docs/simulation.md` explains the output.

pub mod aggregators;
pub mod check;
pub mod cleaning;
mod disk;
pub mod disks;
pub mod excuse;
pub mod governing;
mod heap;
pub mod linear;
pub mod messenger;
mod net;
mod object;
pub mod parity;
pub mod perf;
pub mod planted;
mod runner;
pub mod swarm;
pub mod theory;
mod threads;
pub mod topology;
mod trace;
mod world;

pub use excuse::{Excuse, Excuses};
pub use governing::{Governed, Governing};
pub use object::Objects;
pub use planted::PlantedBug;
pub use runner::{Report, check_seeds, replay, run_seed};
pub use swarm::Scenario;

/// How one seed ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// A rolling hash of everything that happened: equal for equal seeds, on every build.
    pub digest: u64,
    /// Puts acknowledged.
    pub puts: u32,
    /// Gets that returned the right bytes.
    pub gets: u32,
    /// Events handled.
    pub events: u64,
    /// What excused something that was missing.
    pub excuses: Excuses,
    /// What happened to the disks.
    pub disks: disks::Seen,
    /// Copies that were put on emptier targets.
    pub moved: u32,
    /// Chunks that aggregators passed on.
    pub passed: u32,
    /// What became of cluster maps that gateways proposed.
    pub governed: Governed,
    /// What went wrong, if anything.
    pub failure: Option<String>,
}
