//! How copies get to targets: three choices that do not depend on each other, and the names of those combinations that
//! people choose from.

use core::fmt;
use core::str::FromStr;

/// How the targets of a chunk are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By consistent hashing: the first usable ones of the ranking, whatever their load.
    Ranked,
    /// By the bids of the negotiating group.
    Bids,
    /// By the leader of the group, which knows what it granted. What it cannot grant goes to bids.
    Leader,
}

/// How payload is carried to several targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// Once, by multicast, in a window that all of them keep. Becomes `Consecutive` where there is no multicast.
    Common,
    /// To one after the other, each in a window of its own.
    Consecutive,
}

/// How copies are placed and carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// How targets are selected.
    pub selection: Selection,
    /// How payload is carried.
    pub carriage: Carriage,
    /// Whether targets keep windows for it.
    pub reserved: bool,
}

/// A transport that has a name.
#[derive(Clone, Copy, Debug)]
pub struct NamedTransport {
    /// In files and on the command line.
    pub name: &'static str,
    /// What it is.
    pub transport: Transport,
    /// The same in words, for help.
    pub description: &'static str,
}

impl Transport {
    /// The conventional store.
    pub const HASH: Self = Self { selection: Selection::Ranked, carriage: Carriage::Consecutive, reserved: false };
    /// The paper's multicast version.
    pub const REPLICAST_M: Self = Self { selection: Selection::Bids, carriage: Carriage::Common, reserved: true };
    /// The paper's unicast version.
    pub const REPLICAST_H: Self = Self { selection: Selection::Bids, carriage: Carriage::Consecutive, reserved: true };
    /// The leader of a group grants windows for all of it.
    pub const LEADER: Self = Self { selection: Selection::Leader, carriage: Carriage::Common, reserved: true };

    /// Those that have a name.
    pub const NAMED: [NamedTransport; 4] = [
        NamedTransport {
            name: "hash",
            transport: Self::HASH,
            description: "No negotiation: the first targets of the hash ranking, unicast",
        },
        NamedTransport {
            name: "replicast-m",
            transport: Self::REPLICAST_M,
            description: "Negotiated; one transfer to all chosen targets by multicast (by unicast where there is none)",
        },
        NamedTransport {
            name: "replicast-h",
            transport: Self::REPLICAST_H,
            description: "Negotiated; consecutive unicast transfers",
        },
        NamedTransport {
            name: "leader",
            transport: Self::LEADER,
            description: "Negotiated by the leader of each group, which grants windows for all of it; multicast",
        },
    ];

    /// Whether the combination has a meaning. Bids and grants are windows, and so is what several targets have in common.
    #[must_use]
    pub fn is_sound(self) -> bool {
        self.reserved || self.selection == Selection::Ranked && self.carriage == Carriage::Consecutive
    }

    /// Whether targets are found by the hash ranking alone.
    #[must_use]
    pub fn is_ranked(self) -> bool {
        self.selection == Selection::Ranked
    }

    /// Whether one transfer serves several targets, where the network carries multicast.
    #[must_use]
    pub fn is_common(self) -> bool {
        self.carriage == Carriage::Common
    }
}

impl fmt::Display for Transport {
    /// Its name, or its choices.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|named| named.transport == *self) {
            Some(named) => f.write_str(named.name),
            None => {
                let reserved = if self.reserved { "reserved" } else { "unreserved" };
                write!(f, "{:?}, {:?}, {reserved}", self.selection, self.carriage)
            }
        }
    }
}

/// A name that no transport has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownTransport(String);

impl fmt::Display for UnknownTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Transport::NAMED.map(|named| named.name).join(", ");
        write!(f, "there is no transport `{}`: choose one of {names}", self.0)
    }
}

impl core::error::Error for UnknownTransport {}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<Self, UnknownTransport> {
        let named = Self::NAMED.iter().find(|named| named.name == name);
        named.map(|named| named.transport).ok_or_else(|| UnknownTransport(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_as_it_is_written() {
        for named in Transport::NAMED {
            assert_eq!(named.name.parse(), Ok(named.transport));
            assert_eq!(named.transport.to_string(), named.name);
            assert!(named.transport.is_sound());
        }
        let wrong = "Hash".parse::<Transport>().map_err(|why| why.to_string());
        let why = "there is no transport `Hash`: choose one of hash, replicast-m, replicast-h, leader";
        assert_eq!(wrong, Err(why.to_owned()));
        let unnamed = Transport { reserved: true, ..Transport::HASH };
        assert_eq!(unnamed.to_string(), "Ranked, Consecutive, reserved");
    }
}
