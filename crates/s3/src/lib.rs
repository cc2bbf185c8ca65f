//! S3 over HTTP: buckets, objects and versions.
//!
//! `s3s` does the wire: signatures, XML, streaming bodies. This crate says what the operations mean, in terms of
//! [`object::objects::Objects`]. All work on bytes, the verifying of signed bodies as well, is done on threads that may
//! block; the async threads only carry it. What is not supported is refused, by `http::access` before an operation begins,
//! or by the default of `s3s::S3`, which answers `NotImplemented`.
//!
//! The modules are layers. Each uses only those after it: `http`, `ops`, `state`, `rules`.

mod http;
mod ops;
mod rules;
mod state;

pub use crate::http::{Certificate, Counts, Server, Settings, Watch, serve_pages, without_port};
pub use crate::rules::encryption::KMS_DEFAULT_KEY;
pub use crate::rules::holders::{ChunkHolders, HOLDERS, MOST_CHUNKS, ObjectHolders, PieceHolders};
pub use crate::rules::storage_class::StorageClasses;
pub use crate::state::keys::{KeyError, KeyService, Keyring};
pub use crate::state::users::{User, Users, UsersError};
