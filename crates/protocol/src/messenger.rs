//! How a messenger over connections (TCP) shares its work: which worker serves a connection, when a connection moves to
//! another worker, and which of several connections to a node takes the next message.
//!
//! A worker is a thread that serves some connections: it reads, verifies and hands on what comes over them. The drivers have
//! threads and sockets, or simulate them; what is decided is decided here. A driver opens and closes connections in a
//! [`Pool`], records what was done for each, asks at [`Pool::deadline`] for the moves, and makes them. [`Lanes`] says over
//! which connection to send, and [`Order`] restores one order of what came over several.
//!
//! The paper meant in this module is "Performance Optimization of Communication Subsystem in Scale-out Distributed Storage"
//! (Song and others), section III.

mod lanes;
mod order;
mod pool;

use core::fmt;
use core::str::FromStr;

pub use lanes::{Choice, Lanes};
pub use order::{Disorder, Order};
pub use pool::{ConnectionId, Done, Move, Pool, Refused};

use crate::time::Span;

/// How connections are spread over workers, and moved between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The paper's original: each new connection goes to the next worker, and stays there.
    RoundRobin,
    /// Each new connection goes to the worker that has fewest, and stays there.
    Fewest,
    /// The paper's balancer (section III A): every 5 s one connection may move, by bytes.
    Bytes,
    /// Time at work decides, ten times a second.
    Work,
}

/// A policy with its name.
#[derive(Clone, Copy, Debug)]
pub struct NamedPolicy {
    /// In files and on the command line.
    pub name: &'static str,
    /// What it is.
    pub policy: Policy,
    /// The same in words, for help.
    pub description: &'static str,
}

impl Policy {
    /// All of them.
    pub const NAMED: [NamedPolicy; 4] = [
        NamedPolicy {
            name: "round-robin",
            policy: Self::RoundRobin,
            description: "Each new connection goes to the next worker, and stays there",
        },
        NamedPolicy {
            name: "fewest",
            policy: Self::Fewest,
            description: "Each new connection goes to the worker with the fewest connections, and stays there",
        },
        NamedPolicy {
            name: "bytes",
            policy: Self::Bytes,
            description: "Every 5 s one connection moves from the worker with the most bytes to that with the fewest, when \
                they differ by half of the most",
        },
        NamedPolicy {
            name: "work",
            policy: Self::Work,
            description: "Ten times a second connections move from workers that work much to those that work little",
        },
    ];

    /// How often connections may move; none where they stay.
    #[must_use]
    pub const fn period(self) -> Option<Span> {
        match self {
            Self::RoundRobin | Self::Fewest => None,
            Self::Bytes => Some(Span::from_secs(5)),
            Self::Work => Some(Span::from_millis(100)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.iter().find(|named| named.policy == *self);
        f.write_str(named.map_or("?", |named| named.name))
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(String);

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Policy::NAMED.map(|named| named.name).join(", ");
        write!(f, "there is no messenger policy `{}`: choose one of {names}", self.0)
    }
}

impl core::error::Error for UnknownPolicy {}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let named = Self::NAMED.iter().find(|named| named.name == name);
        named.map(|named| named.policy).ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_as_it_is_written() {
        for named in Policy::NAMED {
            assert_eq!(named.name.parse(), Ok(named.policy));
            assert_eq!(named.policy.to_string(), named.name);
        }
        let wrong = "rr".parse::<Policy>().map_err(|why| why.to_string());
        let why = "there is no messenger policy `rr`: choose one of round-robin, fewest, bytes, work";
        assert_eq!(wrong, Err(why.to_owned()));
    }
}
