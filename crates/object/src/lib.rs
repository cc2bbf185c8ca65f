//! Objects of buckets, as chunks.
//!
//! An object is split into payload chunks; a manifest chunk names them. The catalog makes a version visible, and can be made
//! again from the manifests.
//!
//! This crate knows no sockets of targets: whoever has a [`ChunkService`] can store objects. The formats of manifests are
//! documented byte by byte in `docs/manifest.md`.

use std::time::Duration;

mod bug;
pub mod clean;
pub mod files;
mod host;
mod incomplete_changes;
pub mod manifest;
pub mod objects;
pub mod rebuild;
mod removal;
mod runs;
pub mod seal;
mod service;

/// How long a put may take unless something else is asked for: half the grace time of cleaning.
pub const LIMIT: Duration = Duration::from_secs(12 * 3_600);

pub use bug::Bug;
pub use host::{Host, System};
pub use manifest::{Entry, Manifest};
pub use runs::{HEARTBEAT, RunTiming};
pub use service::{ChunkService, Pending, ServiceError};
