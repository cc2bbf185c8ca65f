//! Each machine and each type by itself, and what nodes say to each other: one program, as one is built much faster than thirty.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod answers;
mod bounds;
mod choosy;
mod clean;
mod common;
mod drops;
mod events;
mod goal;
mod hedge;
mod holders;
mod hostile;
mod leader;
mod leader_hostile;
mod maintenance;
mod map;
mod messenger;
mod multicast;
mod newer_map;
mod patience;
mod pieces;
mod placement;
mod port;
mod previous;
mod scrub;
mod stale;
mod stall;
mod surplus;
mod turns;
mod twice;
mod unavailable;
mod watch;
mod wire;
