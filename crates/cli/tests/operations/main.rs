//! What an operator does with running clusters, and what happens to them. These tests wait for most of their time: in one program more of
//! them run at once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

#[path = "../common/client.rs"]
mod client;
#[path = "../common/mod.rs"]
mod common;

mod authority;
mod carriers;
mod clean;
mod coded;
mod disks;
mod domains;
mod down;
mod gateways;
mod idle;
mod ipv6;
mod join;
mod kills;
mod level;
mod metrics;
mod moves;
mod operator;
mod plan;
mod reload;
mod silence;
mod strangers;
