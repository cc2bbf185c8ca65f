//! What tests share: a rack of servers, and a server of PostgreSQL.
//!
//! [`Postgres`] is a server of PostgreSQL of a test's own.
//!
//! [`Rack`] is a rack of servers on one machine: each server a network namespace, joined by a cable (a veth pair) to a
//! switch (a bridge with multicast snooping, in a namespace of its own). What runs on it are real processes with real
//! sockets; nothing of it reaches the machine's own network.
//!
//! [`Cluster`] runs the real binary on it, a target or a gateway on each server; the program `rack` of this crate measures
//! such clusters and breaks things in them.
//!
//! [`Rack::build`] makes it, dropping it takes all of it down, and a rack whose process died is removed by the next
//! [`Rack::build`]. Cables are cut and datagrams lost on demand. All of it needs root and the commands `ip`,
//! `tc` and `bridge`; [`Rack::obstacle`] says what is missing, so that a test can skip itself with a reason.
//!
//! [`find_or_install`] brings programs that tests drive and a new machine lacks.

mod cluster;
mod command;
mod fault;
mod package;
mod postgres;
mod process;
mod rack;

pub use cluster::{Carrier, Cluster, Plan, SWITCH_CABLES, remove_own_places, remove_stale_places, wait_until};
pub use package::{find_or_install, in_path, may_install};
pub use postgres::Postgres;
pub use process::Process;
pub use rack::{Namespace, Rack, Shape, remove_own, remove_stale};
