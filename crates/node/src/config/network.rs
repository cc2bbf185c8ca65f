//! Section `[network]` of the cluster map.

use std::net::IpAddr;
use std::path::Path;

use protocol::id::NodeId;
use protocol::messenger::{Policy, UnknownPolicy};
use serde::{Deserialize, Serialize};

/// The smallest MTU that a link may have, over IPv4 and IPv6.
pub(super) const LEAST_MTU: (u32, u32) = (576, 1_280);
/// What every Ethernet carries; taken when the interface does not report it.
const SAFE_MTU: u32 = 1_500;

/// Section `[network]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Address of the interface on which this host's initiators and multicast are, of the targets' family. Left out, one
    /// file serves every host: a target uses its own address, an initiator the one from which the first target is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<IpAddr>,
    /// Whether to use multicast.
    pub multicast: MulticastChoice,
    /// UDP port of all multicast groups.
    pub multicast_port: u16,
    /// What carries messages and payload: `udp`, or `tcp` where the network does not want that. A cluster has one of them.
    #[serde(default, skip_serializing_if = "CarrierChoice::is_usual")]
    pub carrier: CarrierChoice,
    /// Over TCP: how many connections there may be to another node, in each direction. One more is made
    /// where none of them takes what is there.
    #[serde(skip_serializing_if = "is_one")]
    pub lanes: u8,
    /// Over TCP: how many threads read connections beside the node's loop; 0 when that reads them itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub workers: u8,
    /// How many a gateway has, and every other process that puts and gets, 0 too; left out, as many as `workers` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway_workers: Option<u8>,
    /// How connections are shared among them.
    #[serde(default, skip_serializing_if = "Balance::is_usual")]
    pub balance: Balance,
    /// Whether what goes between nodes is encrypted: over TCP all of it, with TLS 1.3; over UDP the payload, with AES-256-GCM. All
    /// nodes have to agree.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encrypt: bool,
    /// The path's MTU, bytes; that of the interface when it is left out. All servers must be able to receive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            interface: None,
            multicast: MulticastChoice::Auto,
            multicast_port: 7400,
            carrier: CarrierChoice::Udp,
            lanes: 1,
            workers: 0,
            gateway_workers: None,
            balance: Balance::default(),
            encrypt: false,
            mtu: None,
        }
    }
}

impl Network {
    /// Whether multicast is used: never over TCP, which has none.
    #[must_use]
    pub const fn multicast(&self) -> MulticastChoice {
        match self.carrier {
            CarrierChoice::Udp => self.multicast,
            CarrierChoice::Tcp => MulticastChoice::Off,
        }
    }

    /// Keeps how the nodes are connected, which no node changes while it runs. Whether that was to change.
    pub(crate) fn carry_on(&mut self, used: &Self) -> bool {
        let threads = |network: &Self| (network.workers, network.gateway_workers, network.balance);
        let of = |network: &Self| (network.carrier, network.encrypt, network.lanes, threads(network));
        let changes = of(self) != of(used);
        (self.carrier, self.encrypt, self.lanes, (self.workers, self.gateway_workers, self.balance)) = of(used);
        changes
    }

    /// How many threads of this node read connections beside its loop.
    pub(crate) fn workers_of(&self, id: NodeId) -> usize {
        let of_gateways = self.gateway_workers.filter(|_| id.is_initiator());
        of_gateways.unwrap_or(self.workers).into()
    }

    /// Bytes of an IP packet of the node at `address`: as configured, or else what its interface carries. Over TCP, which cuts what
    /// it carries by itself, the most.
    #[must_use]
    pub fn mtu(&self, address: IpAddr) -> u32 {
        if self.carrier == CarrierChoice::Tcp {
            return 65_535;
        }
        let least = of_family(address.is_ipv6(), LEAST_MTU);
        self.mtu.or_else(|| interface_mtu(address)).unwrap_or(SAFE_MTU).clamp(least, 65_535)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_false(is: &bool) -> bool {
    !*is
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_one(count: &u8) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(count: &u8) -> bool {
    *count == 0
}

/// A policy of the messenger, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Balance(pub Policy);

impl Balance {
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Balance {
    fn default() -> Self {
        Self(Policy::Work)
    }
}

impl TryFrom<String> for Balance {
    type Error = UnknownPolicy;

    fn try_from(name: String) -> Result<Self, UnknownPolicy> {
        name.parse().map(Self)
    }
}

impl From<Balance> for String {
    fn from(balance: Balance) -> Self {
        balance.0.to_string()
    }
}

/// The one for IPv4, or the one for IPv6.
pub(super) const fn of_family(is_ipv6: bool, (v4, v6): (u32, u32)) -> u32 {
    if is_ipv6 { v6 } else { v4 }
}

/// The MTU of the interface that has this address.
fn interface_mtu(address: IpAddr) -> Option<u32> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    let interface = interfaces.into_iter().find(|i| i.ip() == address)?;
    std::fs::read_to_string(Path::new("/sys/class/net").join(interface.name).join("mtu")).ok()?.trim().parse().ok()
}

/// Whether multicast is used. Where it reaches nobody any more, all is sent by unicast until it works again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MulticastChoice {
    /// Found out at start.
    Auto,
    /// Taken to work at the start.
    On,
    /// Never.
    Off,
}

/// What carries messages and payload between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CarrierChoice {
    /// Datagrams, with multicast where the network has it.
    #[default]
    Udp,
    /// Connections.
    Tcp,
}

impl CarrierChoice {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Udp, Self::Tcp];

    /// As the configuration has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }

    pub(super) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn how_nodes_are_connected_stays_while_they_run() {
        let used = Network { gateway_workers: Some(2), ..Network::default() };
        let mut newer = Network { gateway_workers: None, mtu: Some(9_000), ..used.clone() };
        assert!(newer.carry_on(&used), "it was to change");
        assert_eq!((newer.gateway_workers, newer.mtu), (Some(2), Some(9_000)));
        assert!(!newer.carry_on(&used));
    }

    #[test]
    fn the_loopback_interface_tells_its_mtu() {
        assert!(interface_mtu(Ipv4Addr::LOCALHOST.into()).is_some_and(|mtu| mtu >= 1_500));
    }
}
