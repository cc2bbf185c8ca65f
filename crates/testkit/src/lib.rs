//! A rack of servers on one machine, for tests: each server a network namespace, joined by a cable (a veth pair) to a
//! switch (a bridge with multicast snooping, in a namespace of its own). What runs on it are real processes with real
//! sockets; nothing of it reaches the machine's own network.
//!
//! [`Rack::build`] makes it, dropping it takes all of it down, and a rack whose process died is removed by the next
//! [`Rack::build`]. Cables are cut and datagrams lost on demand. All of it needs root and the commands `ip`,
//! `tc` and `bridge`; [`Rack::obstacle`] says what is missing, so that a test can skip itself with a reason.
//!
//! [`find_or_install`] brings programs that tests drive and a new machine lacks.

mod command;
mod fault;
mod package;
mod process;
mod rack;

pub use package::{find_or_install, in_path};
pub use process::Process;
pub use rack::{Rack, Shape};
