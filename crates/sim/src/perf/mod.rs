//! Performance runs: how fast a cluster is, not whether it is right (that is [`swarm`](crate::swarm)'s).
//!
//! The machines are driven through their contract and with their encoded messages; payload is not made, only its sizes
//! count, and messages are charged for what they would weigh. [`run`] takes a [`Setup`] and gives an [`Outcome`].

mod chance;
mod cluster;
mod many;
mod queue;
mod setup;
mod stats;

pub use cluster::run;
pub use many::{cores, run_all};
pub use setup::{Bounds, Load, Mode, Quirks, Setup, Slow};
pub use stats::{Estimate, Load as LoadSpread, Outcome};
