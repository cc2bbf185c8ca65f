//! Performance runs: how fast a cluster is, not whether it is right (that is [`swarm`](crate::swarm)'s).
//!
//! The machines are driven through their contract and with their encoded messages; payload is not made, only its sizes
//! count, and messages are charged for what they would weigh. [`run`] takes a [`Setup`] and gives an [`Outcome`];
//! [`Scenario`] reads a setup from a file, and [`paper`] has those of the papers' tables and figures.

mod chance;
mod disk;
mod driver;
mod many;
mod node;
pub mod paper;
mod queue;
mod scenario;
mod setup;
mod stats;
mod stock;
mod summary;

pub use driver::run;
pub use many::{cores, run_all};
pub use scenario::{Change, LATE_FRAMES, STAGGERED_START, Scenario, ScenarioError, TIME_UNITS};
pub use setup::profile::{Crashes, Measured, Profile};
pub use setup::repair::{Loss, Lost, Mended, Need, bound};
pub use setup::{Bounds, Costs, Cpu, DiskTimes, Load, Machines, Mode, Paper, Quirks, Setup, Slow};
pub use stats::{Estimate, Load as LoadSpread, Outcome};
pub use summary::{Metric, summary};
