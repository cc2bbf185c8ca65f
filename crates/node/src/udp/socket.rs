//! Sockets of a node: their addresses, interfaces and groups.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use protocol::id::{ClusterId, NodeId};
use protocol::map::{ClusterMap, MemberSet};
use quinn_udp::{UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::{ClusterConfig, MulticastChoice};
use crate::{NodeError, io};

/// Bytes of socket buffer to ask for.
pub(super) const SOCKET_BUFFER: usize = 4 << 20;
/// Multicast groups on one socket. Linux allows 20 over IPv4 by default; over IPv6 as many as fit into the memory that a
/// socket may have for options, which is some 400 where that is least.
const PER_SOCKET: (usize, usize) = (18, 256);
/// Groups do not leave the link.
const HOPS: u32 = 1;

/// The traffic class of control: DSCP EF, which switches that know it put before what waits for the same port. Payload has none.
pub(super) const EXPEDITED: u32 = 46 << 2;

const ADVICE: &str = "lower the load on this host, or raise its limits";

/// A socket, and what the kernel can do for it.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(super) socket: Socket,
    pub(super) offload: UdpSocketState,
    /// The traffic class of what it sends next, but for runs of payload, which have none.
    class: u32,
}

impl OpenSocket {
    fn new(socket: Socket) -> std::io::Result<Self> {
        let offload = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, offload, class: 0 })
    }

    /// Has what is sent next marked, or not.
    pub(super) fn mark(&mut self, class: u32, is_ipv6: bool) {
        if self.class == class {
            return;
        }
        // A host that refuses this has unmarked datagrams, which go as well.
        let _ = if is_ipv6 { self.socket.set_tclass_v6(class) } else { self.socket.set_tos_v4(class) };
        self.class = class;
    }
}

/// The multicast address of a member set; `None` when this map has none. Over IPv4 it is in 239.0.0.0/8, with the set's
/// number in the lower 24 bits. Over IPv6 it is transient and site-local, with the cluster and then the number, whose highest
/// bit is set as RFC 3307 has it for groups that nobody assigned: `ff15::CCCC:CCCC:8NNN:NNNN`. Switches distinguish groups
/// by the lower 32 bits at least.
#[must_use]
pub fn group_address(map: &ClusterMap, set: MemberSet, ipv6: bool) -> Option<IpAddr> {
    let number = map.number(set)?;
    if !ipv6 {
        return Some(Ipv4Addr::from(239 << 24 | number).into());
    }
    let ClusterId(cluster) = map.cluster;
    let low = u128::from(cluster) << 32 | u128::from(1_u32 << 31 | number);
    Some(Ipv6Addr::from(0xff15_u128 << 112 | low).into())
}

/// Whether every member set of this map has a multicast address.
#[must_use]
pub fn has_addresses(map: &ClusterMap) -> bool {
    map.has_addresses()
}

/// The socket that sends, and receives what is addressed to this node.
pub(super) fn unicast_socket(config: &ClusterConfig, address: SocketAddr) -> Result<OpenSocket, NodeError> {
    let socket = open(address, false).map_err(io(
        format!("listening on {address}"),
        "stop the program that uses the port, or change the address in the cluster map",
    ))?;
    let interface = config.network.interface.unwrap_or(address.ip());
    send_multicast_on(&socket, interface).map_err(io(
        format!("using {interface} for multicast"),
        "set `interface` to an address of this host, of the same family as the targets', or leave it out",
    ))?;
    let unicast = OpenSocket::new(socket).map_err(io(format!("setting up the socket of {address}"), ADVICE))?;
    if let Err(error) = unicast.offload.enable_transport_errors(UdpSockRef::from(&unicast.socket)) {
        tracing::warn!("the network does not report here why a target is silent: {error}");
    }
    Ok(unicast)
}

fn send_multicast_on(socket: &Socket, interface: IpAddr) -> std::io::Result<()> {
    match interface {
        IpAddr::V4(address) => {
            socket.set_multicast_if_v4(&address)?;
            socket.set_multicast_loop_v4(true)?;
            socket.set_multicast_ttl_v4(HOPS)
        }
        IpAddr::V6(address) => {
            socket.set_multicast_if_v6(index(address)?)?;
            socket.set_multicast_loop_v6(true)?;
            socket.set_multicast_hops_v6(HOPS)
        }
    }
}

/// The index of the interface that has this address; 0, which lets the kernel choose, for the unspecified one.
fn index(address: Ipv6Addr) -> std::io::Result<u32> {
    if address.is_unspecified() {
        return Ok(0);
    }
    let interfaces = if_addrs::get_if_addrs()?;
    let interface = interfaces.into_iter().find(|interface| interface.ip() == IpAddr::V6(address));
    interface.and_then(|interface| interface.index).ok_or_else(|| ErrorKind::AddrNotAvailable.into())
}

/// The sockets of the groups that the target at `address` is in; none where there is no multicast.
pub(super) fn group_sockets(
    config: &ClusterConfig,
    map: &ClusterMap,
    id: NodeId,
    address: IpAddr,
) -> Result<Vec<OpenSocket>, NodeError> {
    if id.is_initiator() || config.network.multicast == MulticastChoice::Off {
        return Ok(Vec::new());
    }
    let interface = config.network.interface.unwrap_or(address);
    let joined = join(config, map, id, interface).unwrap_or_else(|error| {
        tracing::warn!("no multicast: {error}; going on with unicast");
        Vec::new()
    });
    let open = |socket| OpenSocket::new(socket).map_err(io("setting up a multicast socket", ADVICE));
    joined.into_iter().map(open).collect()
}

/// Sockets that listen to every group that `id` is in.
fn join(config: &ClusterConfig, map: &ClusterMap, id: NodeId, interface: IpAddr) -> std::io::Result<Vec<Socket>> {
    let sets = map.memberships(id).into_iter();
    let groups: Option<Vec<IpAddr>> = sets.map(|set| group_address(map, set, interface.is_ipv6())).collect();
    let Some(groups) = groups else {
        return Err(std::io::Error::other("the cluster is too large for computed multicast addresses"));
    };
    let port = config.network.multicast_port;
    match interface {
        IpAddr::V4(interface) => {
            listen(&groups, PER_SOCKET.0, (Ipv4Addr::UNSPECIFIED, port).into(), |socket, group| {
                let IpAddr::V4(group) = group else { return Err(ErrorKind::Unsupported.into()) };
                socket.join_multicast_v4(&group, &interface)
            })
        }
        IpAddr::V6(interface) => {
            let index = index(interface)?;
            listen(&groups, PER_SOCKET.1, (Ipv6Addr::UNSPECIFIED, port).into(), |socket, group| {
                let IpAddr::V6(group) = group else { return Err(ErrorKind::Unsupported.into()) };
                socket.join_multicast_v6(&group, index)
            })
        }
    }
}

fn listen(
    groups: &[IpAddr],
    per_socket: usize,
    any: SocketAddr,
    join: impl Fn(&Socket, IpAddr) -> std::io::Result<()>,
) -> std::io::Result<Vec<Socket>> {
    let listening = |some: &[IpAddr]| {
        let socket = open(any, true)?;
        some.iter().try_for_each(|group| join(&socket, *group))?;
        Ok(socket)
    };
    groups.chunks(per_socket).map(listening).collect()
}

fn open(address: SocketAddr, shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // A cluster of the other family may use the same ports.
        socket.set_only_v6(true)?;
    }
    if shared {
        socket.set_reuse_address(true)?;
        // Else every socket on the port receives what is sent to every group that anyone on this host has joined.
        match address {
            SocketAddr::V4(_) => socket.set_multicast_all_v4(false)?,
            SocketAddr::V6(_) => socket.set_multicast_all_v6(false)?,
        }
    }
    socket.set_nonblocking(true)?;
    // The kernel gives what it may; too little is warned about.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&address.into())?;
    Ok(socket)
}

/// The address of this host's initiators: the configured one, or that from which the first reachable target is reached.
///
/// # Errors
/// When no target is.
pub fn initiator_interface(config: &ClusterConfig) -> Result<IpAddr, NodeError> {
    if let Some(interface) = config.network.interface {
        return Ok(interface);
    }
    let any = if config.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    // Connecting a UDP socket sends nothing: it asks the kernel for the route.
    let ask = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((any, 0))?;
        let mut outcome = Err(ErrorKind::NotFound.into());
        for target in &config.targets {
            outcome = socket.connect(target.address);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(io("finding the way to the targets", "set `interface` to an address of this host"))
}
