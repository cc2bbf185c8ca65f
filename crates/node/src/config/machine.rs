//! The settings of a node's machine, from the cluster's configuration and the interface.

use std::net::IpAddr;

use protocol::config::Config;
use protocol::time::Span;
use protocol::wire::DATA_HEADER;

use crate::payload_cipher::OVERHEAD;

use super::{ClusterConfig, IP_UDP, MulticastChoice, of_family};

/// How often targets look whether all chunks have their copies.
const CENSUS_INTERVAL: Span = Span::from_secs(10);
/// How often targets ask each other whether they are there.
const WATCH_INTERVAL: Span = Span::from_secs(1);

/// Payload bytes in a datagram for an MTU. Hashing goes fastest over whole blocks of 16 KiB, then over whole KiB: where
/// little of the datagram is lost by it, payload is cut there.
fn payload_per_datagram(mtu: u32, is_ipv6: bool, is_encrypted: bool) -> usize {
    let headers = DATA_HEADER + if is_encrypted { OVERHEAD } else { 0 };
    let most = (mtu - of_family(is_ipv6, IP_UDP)) as usize - headers;
    [16 << 10, 1 << 10].into_iter().map(|block| most / block * block).find(|cut| *cut * 4 >= most * 3).unwrap_or(most)
}

impl ClusterConfig {
    /// The configuration of the machine of the node at `address`.
    #[must_use]
    pub fn protocol(&self, address: IpAddr) -> Config {
        Config {
            transport: self.protocol.transport,
            lead_gets: self.protocol.lead_gets,
            multicast: self.network.multicast() != MulticastChoice::Off,
            depth: self.protocol.depth,
            choosy: self.protocol.choosy,
            per_datagram: payload_per_datagram(self.network.mtu(address), address.is_ipv6(), self.network.encrypt),
            census_interval: CENSUS_INTERVAL,
            watch_interval: WATCH_INTERVAL,
            ..Config::of_link(self.protocol.link_mbps.saturating_mul(125_000))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_cut_where_hashing_is_fast() {
        let sizes = |is_ipv6| [1_500, 9_000, 65_535].map(|mtu| payload_per_datagram(mtu, is_ipv6, false));
        assert_eq!(sizes(false), [1_500 - 28 - DATA_HEADER, 8_192, 49_152]);
        assert_eq!(sizes(true), [1_500 - 48 - DATA_HEADER, 8_192, 49_152]);
        assert_eq!(payload_per_datagram(1_500, false, true), 1_500 - 28 - DATA_HEADER - OVERHEAD);
        assert_eq!(payload_per_datagram(9_000, true, true), 8_192);
    }
}
