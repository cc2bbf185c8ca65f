//! HTTP: connections, and requests and answers before and after an operation.

mod access;
mod address;
mod caller;
mod chunks;
mod connection;
mod cors;
mod drain_body;
mod form;
mod host;
mod idle_timeout;
mod invalid_range;
mod metadata;
mod region;
mod request_ids;
mod serve;
mod signature;
mod sigv2;
mod tls;

pub use connection::serve_pages;
pub use host::without_port;
pub use serve::{Counts, Server, Settings, Watch};
pub use tls::Certificate;
