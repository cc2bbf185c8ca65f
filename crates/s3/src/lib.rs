//! The S3 face: buckets, objects and versions over HTTP.
//!
//! `s3s` does the wire: signatures, XML, streaming bodies. This crate says what the operations mean, in terms of
//! [`object::objects::Objects`]. All work on bytes, the verifying of signed bodies as well, is done on threads that may
//! block; the async threads only carry it. What is not supported is refused, by [`access`] before an operation is asked,
//! or by the default of `s3s::S3`, which answers `NotImplemented`.

mod access;
mod attributes;
mod body;
mod bucket;
mod bucket_tags;
mod chunks;
mod connection;
mod cors;
mod delete;
mod error;
mod etag;
mod face;
mod form;
mod get;
mod host;
mod lifecycle;
mod list;
mod lobby;
mod lock;
mod multipart;
mod policy;
mod pulse;
mod put;
mod refusals;
mod region;
mod senseless;
mod serve;
mod signature;
mod sums;
mod tagging;
mod tls;
mod turn;
mod unread;
mod users;
mod version2;
mod versions;
mod who;

pub use connection::serve_pages;
pub use serve::{Counts, Server, Settings, Watch};
pub use tls::Certificate;
pub use users::{User, Users, UsersError};
