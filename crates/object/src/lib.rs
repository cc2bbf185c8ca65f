//! Files as chunks.
//!
//! A file is split into payload chunks; a manifest chunk names them, and is the only thing that makes a version of a
//! name visible: it is put last. All versions of a name live in one negotiating group, and their ids sort by time, so
//! one question to one group finds the newest ([`newest`]). Nothing else is stored, so nothing else can disagree.
//!
//! This crate knows no sockets: whoever has a [`ChunkService`] can store files. The format of a manifest is documented
//! byte by byte in `docs/manifest.md` and made in [`manifest`].

use std::time::Duration;

mod bug;
pub mod catalog;
pub mod clean;
mod error;
pub mod file;
mod host;
pub mod manifest;
pub mod objects;
pub mod rebuild;
pub mod record;
mod removal;
mod runs;
mod service;
mod unanswered;

/// How long a put may take unless something else is asked for: half the grace time of cleaning.
pub const LIMIT: Duration = Duration::from_secs(12 * 3_600);

pub use bug::Bug;
pub use error::Error;
pub use file::{Listing, PutOptions, Version, get_file, list, newest, open, put_file};
pub use host::{Host, System};
pub use manifest::{Entry, Manifest};
pub use runs::{BEAT, Pace};
pub use service::{ChunkService, Pending, ServiceError};
