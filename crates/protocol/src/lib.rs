//! The protocol of Reservoir as pure state machines.
//!
//! Nothing here opens a socket or a file, reads a clock, starts a thread, draws randomness or awaits: time, seeds,
//! datagrams and completions come in as arguments, and everything to be done goes out as values (see [`machine`]).
//! The daemon and the simulator are two drivers of this one code.
//!
//! Where to look: [`id`], [`time`], [`map`] and [`placement`] for the words; [`wire`] for datagrams, byte by byte;
//! [`calendar`] for reservations; [`initiator`] and [`target`] for the two machines; [`limits`] for the bounds that several parts share.

#![deny(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::iter_over_hash_type,
    clippy::float_arithmetic,
    reason = "the machines must be deterministic on every build; clippy.toml beside this crate gives each reason"
)]

pub mod aggregator;
pub mod calendar;
pub mod census;
mod choose;
pub mod choosy;
pub mod cleaner;
pub mod config;
pub mod detector;
pub mod estimate;
mod flat_map;
pub mod goal;
pub mod health;
pub mod id;
pub mod initiator;
pub mod limits;
pub mod machine;
pub mod map;
mod map_fetch;
pub mod messenger;
pub mod overview;
pub mod placement;
pub mod planner;
pub mod promise;
pub mod proposer;
pub mod redundancy;
pub mod rng;
pub mod size;
pub mod steward;
pub mod take_out;
pub mod target;
pub mod time;
pub mod transfer;
pub mod transport;
pub mod wire;
