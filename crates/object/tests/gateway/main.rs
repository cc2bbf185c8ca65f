//! A gateway over chunks in memory: what becomes of its objects, its catalog and what was begun.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod clean;
mod clocks;
mod files;
mod incomplete_changes;
mod memory;
mod objects;
mod rebuild;
mod world;
