//! The rules of S3: what follows from a request and a record, without asking anybody.

pub(crate) mod acl;
pub(crate) mod attributes;
pub(crate) mod caller;
pub(crate) mod checksums;
pub(crate) mod context;
pub(crate) mod cors;
pub(crate) mod encryption;
pub(crate) mod envelope;
pub(crate) mod error;
pub(crate) mod form;
pub(crate) mod headers;
pub(crate) mod holders;
pub(crate) mod lifecycle;
pub(crate) mod lock;
pub(crate) mod messages;
pub(crate) mod ownership;
pub(crate) mod policy;
pub(crate) mod preconditions;
pub(crate) mod query;
pub(crate) mod storage_class;
pub(crate) mod tags;
pub(crate) mod versioning;

/// The region of this cluster: the default of every client.
pub(crate) const REGION: &str = "us-east-1";
