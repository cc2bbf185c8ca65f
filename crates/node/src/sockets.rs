//! A node's sockets, of the carrier that its cluster has.

use std::net::SocketAddr;

use protocol::id::NodeId;

use crate::NodeError;
use crate::carrier::Carrier;
use crate::config::{CarrierChoice, ClusterConfig};
use crate::tcp::Tcp;
use crate::udp::Udp;

/// Those of a node at `address`.
pub(crate) fn open(
    config: &ClusterConfig,
    address: SocketAddr,
    id: NodeId,
) -> Result<Box<dyn Carrier + Send>, NodeError> {
    Ok(match config.network.carrier {
        CarrierChoice::Udp => Box::new(Udp::open(config, address, id)?),
        CarrierChoice::Tcp => Box::new(Tcp::open(config, address, id)?),
    })
}
