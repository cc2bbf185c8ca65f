//! Datagrams in and out: addresses for ids, sealing, and what waits for the socket.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::machine::{Body, Destination, Transmit};
use protocol::map::{ClusterMap, MemberSet};
use protocol::wire::{DropReason, Opener, Sealer, datagrams, is_data};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::config::ClusterConfig;
use crate::{NodeError, io};

/// Bytes of socket buffer to ask for.
const SOCKET_BUFFER: usize = 4 << 20;
/// Multicast groups on one socket: Linux allows 20 by default.
const PER_SOCKET: usize = 18;
/// Initiators whose address is remembered.
const BOOK: usize = 4_096;
/// Bytes that may wait for the socket.
const BACKLOG: usize = 256 << 20;

/// Counters of one node's network, for metrics.
#[derive(Clone, Debug, Default)]
pub struct NetStats {
    /// Datagrams and bytes sent.
    pub sent: (u64, u64),
    /// Datagrams and bytes received.
    pub received: (u64, u64),
    /// Datagrams dropped, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
}

/// The sockets of one node.
#[derive(Debug)]
pub struct Net {
    unicast: Socket,
    groups: Vec<Socket>,
    map: ClusterMap,
    multicast_port: u16,
    book: BTreeMap<NodeId, SocketAddrV4>,
    learned: VecDeque<NodeId>,
    sealer: Sealer,
    opener: Opener,
    backlog: VecDeque<(Bytes, Bytes, SockAddr)>,
    waiting: usize,
    scratch: Vec<u8>,
    /// What was counted.
    pub stats: NetStats,
}

/// The address of a member set: 239.0.0.0/8 with the cell and the mask in the lower 24 bits, the highest of them set.
/// `None` when they do not fit: then this set has no multicast.
#[must_use]
pub fn multicast_address(map: &ClusterMap, set: MemberSet) -> Option<Ipv4Addr> {
    let bits = map.mask_bits();
    let cells = 32 - map.cells().saturating_sub(1).leading_zeros();
    if bits + cells > 23 {
        return None;
    }
    let low = 1 << 23 | set.cell << bits | set.mask;
    Some(Ipv4Addr::from(239 << 24 | low))
}

/// Whether every member set of this map has a multicast address.
#[must_use]
pub fn has_addresses(map: &ClusterMap) -> bool {
    multicast_address(map, MemberSet { cell: 0, mask: 0 }).is_some()
}

impl Net {
    /// The sockets of a node that listens on `address`; a target (`id` in the map) joins its groups.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn open(config: &ClusterConfig, address: SocketAddrV4, id: NodeId) -> Result<Self, NodeError> {
        let map = config.map()?;
        let key = config.key()?;
        let unicast = socket(address, false).map_err(io(
            format!("listening on {address}"),
            "stop whoever uses the port, or change the address in the cluster map",
        ))?;
        let multicast = || -> std::io::Result<()> {
            unicast.set_multicast_if_v4(&config.network.interface)?;
            unicast.set_multicast_loop_v4(true)?;
            unicast.set_multicast_ttl_v4(1)
        };
        multicast().map_err(io(
            format!("using {} for multicast", config.network.interface),
            "set `interface` to an IPv4 address of this host",
        ))?;
        let mut groups = Vec::new();
        if !id.is_initiator() && config.network.multicast != crate::config::MulticastChoice::Off {
            match join(config, &map, id) {
                Ok(sockets) => groups = sockets,
                Err(error) => tracing::warn!("no multicast: {error}; going on with unicast"),
            }
        }
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let sequence = u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX / 2);
        let net = Self {
            book: config.targets.iter().map(|t| (NodeId(t.id), t.address)).collect(),
            opener: Opener::new(key, map.cluster),
            sealer: Sealer::new(key, sequence),
            unicast,
            groups,
            map,
            multicast_port: config.network.multicast_port,
            learned: VecDeque::new(),
            backlog: VecDeque::new(),
            waiting: 0,
            scratch: vec![0; 1 << 16],
            stats: NetStats::default(),
        };
        net.warn_of_small_buffers();
        Ok(net)
    }

    fn warn_of_small_buffers(&self) {
        // Linux doubles what is set, for its own bookkeeping.
        let got = self.unicast.recv_buffer_size().unwrap_or(0) / 2;
        if got < SOCKET_BUFFER {
            tracing::warn!(
                "the receive buffer is {got} bytes, {SOCKET_BUFFER} are wanted: datagrams may be lost under load; \
                 set net.core.rmem_max={SOCKET_BUFFER} with sysctl"
            );
        }
    }

    /// Every socket that receives, the one that sends first.
    pub fn sockets(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.unicast).chain(&self.groups)
    }

    /// Where this node is reached.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddrV4> {
        self.unicast.local_addr().ok().and_then(|address| address.as_socket_ipv4())
    }

    /// Whether anything waits for the socket to take it.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The next good datagram of one socket; `None` when there is none for now.
    pub fn receive(&mut self, socket: usize) -> Option<Bytes> {
        loop {
            let socket = if socket == 0 { &self.unicast } else { self.groups.get(socket - 1)? };
            let (len, from) = receive_from(socket, &mut self.scratch)?;
            self.stats.received.0 += 1;
            self.stats.received.1 += len as u64;
            match self.opener.open(Bytes::copy_from_slice(&self.scratch[..len])) {
                Ok(datagram) => {
                    if !is_data(&datagram) {
                        self.learn(&datagram, from);
                    }
                    return Some(datagram);
                }
                Err(reason) => self.count_drop(reason),
            }
        }
    }

    fn count_drop(&mut self, reason: DropReason) {
        *self.stats.dropped.entry(reason.name()).or_default() += 1;
    }

    /// Remembers where an initiator is, from an authenticated datagram.
    fn learn(&mut self, datagram: &Bytes, from: Option<SocketAddrV4>) {
        let Some(id) = datagram.get(12..16).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes) else { return };
        let (id, Some(from)) = (NodeId(id), from) else { return };
        if id.is_initiator() && self.book.insert(id, from).is_none() {
            self.learned.push_back(id);
            if self.learned.len() > BOOK {
                self.learned.pop_front().map(|oldest| self.book.remove(&oldest));
            }
        }
    }

    fn address(&self, to: Destination) -> Option<SockAddr> {
        let address = match to {
            Destination::Node(id) => *self.book.get(&id)?,
            Destination::Members(set) => SocketAddrV4::new(multicast_address(&self.map, set)?, self.multicast_port),
        };
        Some(address.into())
    }

    /// Sends, or keeps for when the socket takes more.
    pub fn send(&mut self, transmit: &Transmit) {
        let Some(address) = self.address(transmit.to) else {
            *self.stats.dropped.entry("no_address").or_default() += 1;
            return;
        };
        match &transmit.body {
            Body::Control(message) => {
                let sealed = self.sealer.seal(message);
                self.push(sealed, Bytes::new(), &address);
            }
            Body::Data(run) => {
                for (header, payload) in datagrams(run) {
                    self.push(Bytes::copy_from_slice(&header), payload, &address);
                }
            }
        }
    }

    fn push(&mut self, head: Bytes, payload: Bytes, address: &SockAddr) {
        if self.backlog.is_empty() && self.try_send(&head, &payload, address) {
            return;
        }
        let bytes = head.len() + payload.len();
        if self.waiting + bytes > BACKLOG {
            *self.stats.dropped.entry("backlog").or_default() += 1;
            return;
        }
        self.waiting += bytes;
        self.backlog.push_back((head, payload, address.clone()));
    }

    /// Whether it is done with: sent, or lost for good (which the protocol repairs).
    fn try_send(&mut self, head: &Bytes, payload: &Bytes, address: &SockAddr) -> bool {
        match self.unicast.send_to_vectored(&[IoSlice::new(head), IoSlice::new(payload)], address) {
            Ok(sent) => {
                self.stats.sent.0 += 1;
                self.stats.sent.1 += sent as u64;
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            // A dead peer's "refused", a cut cable: the datagram is lost, like any other.
            Err(_) => {
                *self.stats.dropped.entry("send_failed").or_default() += 1;
                true
            }
        }
    }

    /// Goes on with what waits.
    pub fn flush(&mut self) {
        while let Some((head, payload, address)) = self.backlog.pop_front() {
            if !self.try_send(&head, &payload, &address) {
                self.backlog.push_front((head, payload, address));
                return;
            }
            self.waiting -= head.len() + payload.len();
        }
    }
}

fn receive_from(socket: &Socket, scratch: &mut [u8]) -> Option<(usize, Option<SocketAddrV4>)> {
    loop {
        match rustix::net::recvfrom(socket, &mut *scratch, rustix::net::RecvFlags::DONTWAIT) {
            Ok((len, _, from)) => {
                let from = from.and_then(|address| SocketAddr::try_from(address).ok());
                let from = match from {
                    Some(SocketAddr::V4(from)) => Some(from),
                    _ => None,
                };
                return Some((len, from));
            }
            // An earlier datagram was refused by its host: says nothing of this one.
            Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

fn socket(address: SocketAddrV4, shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    if shared {
        socket.set_reuse_address(true)?;
        socket.set_multicast_all_v4(false)?;
    }
    socket.set_nonblocking(true)?;
    // The kernel gives what it may; too little is warned about.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    socket.bind(&SocketAddr::V4(address).into())?;
    Ok(socket)
}

/// Sockets that listen to every group that `id` is in.
fn join(config: &ClusterConfig, map: &ClusterMap, id: NodeId) -> std::io::Result<Vec<Socket>> {
    let addresses: Option<Vec<Ipv4Addr>> =
        map.memberships(id).into_iter().map(|set| multicast_address(map, set)).collect();
    let Some(addresses) = addresses else {
        return Err(std::io::Error::other("the cluster is too large for computed multicast addresses"));
    };
    let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, config.network.multicast_port);
    addresses
        .chunks(PER_SOCKET)
        .map(|some| {
            let socket = socket(any, true)?;
            for address in some {
                socket.join_multicast_v4(address, &config.network.interface)?;
            }
            Ok(socket)
        })
        .collect()
}

/// A UDP port of `interface` that nobody uses now.
///
/// # Errors
/// When there is none.
pub fn free_port(interface: Ipv4Addr) -> std::io::Result<u16> {
    UdpSocket::bind((interface, 0))?.local_addr().map(|address| address.port())
}
