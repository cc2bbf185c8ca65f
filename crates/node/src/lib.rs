//! The driver of the daemons: sockets, timers and disks around the machines of `protocol`.
//!
//! A node is one thread with one loop ([`event_loop`]): it receives from a [`carrier`], hands to the machine, and does what the
//! machine says.
//! Disk and hashing run on threads beside it ([`target`], [`client`]). Nothing here decides anything about the protocol.

mod arrivals;
pub mod atomic_file;
pub mod carrier;
pub mod client;
pub mod clock;
pub mod config;
pub mod event_loop;
mod free_port;
mod gate;
mod map_file;
pub mod messenger;
pub mod metrics;
mod payload_cipher;
pub mod permissions;
pub mod reachability;
mod reload;
mod send_queue;
mod sockets;
pub mod switch;
pub mod target;
pub mod tcp;
pub mod udp;

pub use client::{Client, ClientOptions, Ticket};
pub use config::{ClusterConfig, ConfigError};
pub use free_port::{at_free_port, free_port};
pub use map_file::MapFile;

/// Why a node could not start or go on. Each says what to do. A cause stands in the message, and is therefore not the
/// `source` of the error as well: printing the chain would show it twice.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("target {id}: {cause}")]
    Store {
        /// Which target.
        id: u32,
        /// Why.
        cause: store::StoreError,
    },
    /// The target's directory holds no store: nobody made one there, or its disk is not mounted.
    #[error(
        "target {id}: there is no store in its directory {dir}: mount its disk; or, to begin with an empty one (copies \
         that were on the old one are missing then), make a store there with `reservoir target --config {config} --id {id} --new`",
        config = config.display()
    )]
    NoStore {
        /// Which target.
        id: u32,
        /// Its directory.
        dir: std::path::PathBuf,
        /// The cluster map.
        config: std::path::PathBuf,
    },
    /// A store was to be made where there is one.
    #[error("target {id}: there is a store in its directory {dir} already: start the target without --new")]
    HasStore {
        /// Which target.
        id: u32,
        /// Its directory.
        dir: std::path::PathBuf,
    },
    /// Another process has the target's directory.
    #[error(
        "target {id}: another process uses its directory {dir}: it is running already, or two targets have one `data`; \
         stop that process, or give each target its own"
    )]
    InUse {
        /// Which target.
        id: u32,
        /// Its directory.
        dir: std::path::PathBuf,
    },
    /// A directory, socket or thread could not be had.
    #[error("{what}: {cause}; {advice}")]
    Io {
        /// What was being done, on what.
        what: String,
        /// How it failed.
        cause: std::io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The map has no such target.
    #[error("the cluster map has no target {0}: use an id that it has, or add the target to it")]
    NoSuchTarget(u32),
    /// The map has no such switch.
    #[error("the cluster map has no switch {0}: use an id that it has, or add a [[switch]] to it")]
    NoSuchSwitch(u32),
    /// The node has stopped.
    #[error("the node has stopped: start it again")]
    Stopped,
}

pub(crate) fn io(what: impl Into<String>, advice: &'static str) -> impl FnOnce(std::io::Error) -> NodeError {
    let what = what.into();
    move |cause| NodeError::Io { what, cause, advice }
}

/// 64 bits that no other process has.
pub(crate) fn random() -> Result<u64, NodeError> {
    getrandom::u64().map_err(|error| io("asking the system for random numbers", "look at its log")(error.into()))
}
