//! Datagrams in and out: addresses for ids, sealing, and what waits for the socket.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};

use bytes::{BufMut, Bytes, BytesMut};
use protocol::id::NodeId;
use protocol::machine::{Body, DataRun, Destination, Transmit};
use protocol::map::{ClusterMap, MemberSet};
use protocol::time::{Instant, Span};
use protocol::wire::{DATA_HEADER, DropReason, Opened, Session, datagrams, is_answerable, is_data};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use socket2::{Domain, Protocol, Socket, Type};

use crate::backlog::{Backlog, Parcel};
use crate::config::ClusterConfig;
use crate::hearing::{Complaints, Hearing, Obstacle};
use crate::metrics::NetMetrics;
use crate::port::now;
use crate::{NodeError, io};

/// Bytes of socket buffer to ask for.
const SOCKET_BUFFER: usize = 4 << 20;
/// Multicast groups on one socket: Linux allows 20 by default.
const PER_SOCKET: usize = 18;
/// Initiators whose address is remembered.
const BOOK: usize = 4_096;
/// Parcels that are sent late before what has arrived has its turn.
const FLUSHED: usize = 256;
/// How far apart refusals are at least: what is sent to a node must not make it send as much.
const REFUSALS: Span = Span::from_millis(100);
/// Errors of earlier datagrams that are read at once, and times that a datagram is sent again because of them.
const ERRORS: usize = 64;
/// See [`ERRORS`].
const RETRIES: usize = 4;
/// Receive buffers that one call fills.
const BATCH: usize = 16;
/// Bytes of one: the largest datagram, or several that the kernel joined.
const BUFFER: usize = 1 << 16;
/// The most that one call hands to the kernel to send.
const LARGEST: usize = 65_507;

/// The sockets of one node.
#[derive(Debug)]
pub struct Net {
    /// The first sends, and receives what is addressed to this node; the others receive its groups.
    sockets: Vec<Port>,
    id: NodeId,
    map: ClusterMap,
    multicast_port: u16,
    book: BTreeMap<NodeId, SocketAddrV4>,
    learned: VecDeque<NodeId>,
    session: Session,
    backlog: Backlog,
    buffers: Vec<u8>,
    arrived: VecDeque<(Bytes, SocketAddr)>,
    /// When the last batch came.
    arrived_at: Instant,
    refused_at: Instant,
    complaints: Complaints,
    /// What was counted.
    pub metrics: NetMetrics,
    /// What was heard of each target.
    pub hearing: Hearing,
}

/// A socket, and what the kernel can do for it.
#[derive(Debug)]
struct Port {
    socket: Socket,
    offload: UdpSocketState,
}

impl Port {
    fn new(socket: Socket) -> std::io::Result<Self> {
        let offload = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { socket, offload })
    }
}

/// The address of a member set: 239.0.0.0/8 with its number in the lower 24 bits. `None` when this map has no multicast.
#[must_use]
pub fn multicast_address(map: &ClusterMap, set: MemberSet) -> Option<Ipv4Addr> {
    map.number(set).map(|low| Ipv4Addr::from(239 << 24 | low))
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
        let mut sockets = vec![unicast(config, address)?];
        sockets.extend(groups(config, &map, id, *address.ip())?);
        // No earlier process of this node hears anything any more: its address is ours.
        let began = now();
        let net = Self {
            book: config.targets.iter().map(|t| (NodeId(t.id), t.address)).collect(),
            session: Session::new(key, map.cluster, id, crate::random()),
            sockets,
            id,
            map,
            multicast_port: config.network.multicast_port,
            learned: VecDeque::new(),
            // As much as a target takes in at once; a larger burst is lost, as on a full wire, and repaired.
            backlog: Backlog::new(config.protocol(*address.ip()).receive_buffer),
            buffers: vec![0; BATCH * BUFFER],
            arrived: VecDeque::new(),
            arrived_at: began,
            refused_at: Instant::ZERO,
            complaints: Complaints::default(),
            metrics: NetMetrics::default(),
            hearing: Hearing::new(config, began),
        };
        net.warn_of_small_buffers();
        Ok(net)
    }

    /// Goes on with a newer map: its addresses, its groups, and this node's own address if that is another one.
    ///
    /// # Errors
    /// When a socket cannot be had: the old ones stay, and what they reach.
    pub fn reload(&mut self, config: &ClusterConfig) -> Result<(), NodeError> {
        let map = config.map()?;
        let own = config.targets.iter().find(|t| NodeId(t.id) == self.id).map(|t| t.address);
        if let Some(address) = own.filter(|address| Some(*address) != self.local()) {
            self.sockets[0] = unicast(config, address)?;
        }
        let address = self.local().map_or(Ipv4Addr::UNSPECIFIED, |address| *address.ip());
        let joined = groups(config, &map, self.id, address)?;
        self.sockets.truncate(1);
        self.sockets.extend(joined);
        self.book.extend(config.targets.iter().map(|t| (NodeId(t.id), t.address)));
        self.hearing.set(config);
        (self.map, self.multicast_port) = (map, config.network.multicast_port);
        Ok(())
    }

    fn warn_of_small_buffers(&self) {
        // Linux doubles what is set, for its own bookkeeping.
        let got = self.sockets[0].socket.recv_buffer_size().unwrap_or(0) / 2;
        if got < SOCKET_BUFFER {
            tracing::warn!(
                "the receive buffer is {got} bytes, {SOCKET_BUFFER} are wanted: datagrams may be lost under load; \
                 set net.core.rmem_max={SOCKET_BUFFER} with sysctl"
            );
        }
    }

    /// Every socket that receives, the one that sends first.
    pub fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.sockets.iter().map(|port| &port.socket)
    }

    /// Where this node is reached.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddrV4> {
        self.sockets[0].socket.local_addr().ok().and_then(|address| address.as_socket_ipv4())
    }

    /// Whether anything waits for the socket to take it.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Takes what has arrived on one socket, at most a batch, for [`Net::arrived`]. Whether there may be more.
    pub fn receive(&mut self, socket: usize) -> bool {
        let Some(port) = self.sockets.get(socket) else { return false };
        let mut buffers = self.buffers.chunks_mut(BUFFER);
        let mut slices: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
        let mut metas = [RecvMeta::default(); BATCH];
        let count = match port.offload.recv(UdpSockRef::from(&port.socket), &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return false,
            // An earlier datagram did not reach its host: says nothing of those that are here.
            Err(error) => return self.errors(Some(error.kind())) > 0,
        };
        self.arrived_at = now();
        for (meta, buffer) in metas.iter().zip(self.buffers.chunks(BUFFER)).take(count) {
            let joined = Bytes::copy_from_slice(&buffer[..meta.len]);
            // An empty one counts as well: it is malformed.
            for at in (0..meta.len.max(1)).step_by(meta.stride.max(1)) {
                let datagram = joined.slice(at..(at + meta.stride).min(meta.len));
                self.arrived.push_back((datagram, meta.addr));
            }
        }
        count == BATCH
    }

    /// The next good datagram of those that were received.
    pub fn arrived(&mut self) -> Option<Bytes> {
        while let Some((datagram, from)) = self.arrived.pop_front() {
            self.metrics.received(is_data(&datagram), 1, datagram.len() as u64);
            let answerable = is_answerable(&datagram);
            match self.session.open(self.arrived_at, datagram) {
                Ok(Opened::Good(datagram)) => {
                    if !is_data(&datagram) {
                        self.learn(&datagram, from);
                    }
                    return Some(datagram);
                }
                Ok(Opened::Between(replies)) => {
                    for head in replies {
                        self.push(Parcel { head, payload: Bytes::new(), segment: None, to: from });
                    }
                }
                Err(reason) => self.drop_arrived(reason, answerable, from),
            }
        }
        None
    }

    /// Counts what is dropped, and says why: in the log, to whom asks for the target that should be there, and to the other
    /// side where that may have no idea.
    fn drop_arrived(&mut self, reason: DropReason, answerable: bool, from: SocketAddr) {
        let at = self.arrived_at;
        self.metrics.dropped(reason.name());
        let target = self.hearing.met(from, Obstacle::Dropped(reason), at);
        self.complaints.dropped(reason, from, target, at);
        let strange = matches!(reason, DropReason::Version | DropReason::OtherCluster | DropReason::Forged);
        if strange && answerable && at.since(self.refused_at) >= REFUSALS {
            self.refused_at = at;
            let head = self.session.refusal();
            self.push(Parcel { head, payload: Bytes::new(), segment: None, to: from });
        }
    }

    /// Remembers where an initiator is, and that a target was heard, from an authenticated datagram.
    fn learn(&mut self, datagram: &Bytes, from: SocketAddr) {
        let Some(id) = datagram.get(12..16).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes) else { return };
        let (id, SocketAddr::V4(from)) = (NodeId(id), from) else { return };
        if !id.is_initiator() {
            return self.hearing.heard(id, self.arrived_at);
        }
        if self.book.insert(id, from).is_none() {
            self.learned.push_back(id);
            if self.learned.len() > BOOK {
                self.learned.pop_front().map(|oldest| self.book.remove(&oldest));
            }
        }
    }

    fn address(&self, to: Destination) -> Option<SocketAddr> {
        let address = match to {
            Destination::Node(id) => *self.book.get(&id)?,
            Destination::Members(set) => SocketAddrV4::new(multicast_address(&self.map, set)?, self.multicast_port),
        };
        Some(address.into())
    }

    /// Sends, or keeps for when the socket takes more.
    pub fn send(&mut self, transmit: &Transmit) {
        let Some(to) = self.address(transmit.to) else {
            return self.metrics.dropped("no_address");
        };
        match &transmit.body {
            Body::Control(message) => {
                let head = self.session.seal(message);
                self.push(Parcel { head, payload: Bytes::new(), segment: None, to });
            }
            Body::Data(run) => self.send_run(run, to),
        }
    }

    /// Sends a run with as few calls as the kernel allows.
    fn send_run(&mut self, run: &DataRun, to: SocketAddr) {
        let segment = DATA_HEADER + run.per_datagram;
        let at_once = self.sockets[0].offload.max_gso_segments().min(LARGEST / segment);
        if at_once < 2 || run.payload.len() <= run.per_datagram {
            for (header, payload) in datagrams(run) {
                self.push(Parcel { head: Bytes::copy_from_slice(&header), payload, segment: None, to });
            }
            return;
        }
        let mut rest = datagrams(run).peekable();
        while rest.peek().is_some() {
            let mut segments = BytesMut::with_capacity(at_once * segment);
            for (header, payload) in rest.by_ref().take(at_once) {
                segments.put_slice(&header);
                segments.put_slice(&payload);
            }
            let head = segments.freeze();
            self.push(Parcel { head, payload: Bytes::new(), segment: Some(segment), to });
        }
    }

    fn push(&mut self, parcel: Parcel) {
        if self.backlog.is_empty() && self.try_send(&parcel) {
            return;
        }
        if !self.backlog.push(parcel) {
            self.metrics.dropped("backlog");
        }
    }

    /// Whether it is done with: sent, or lost for good (which the protocol repairs).
    fn try_send(&mut self, parcel: &Parcel) -> bool {
        for _ in 0..RETRIES {
            match self.send_now(parcel) {
                Ok(()) => {
                    let count = parcel.segment.map_or(1, |segment| parcel.len().div_ceil(segment));
                    self.metrics.sent(is_data(&parcel.head), count as u64, parcel.len() as u64);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => {
                    // What is waiting there is of earlier datagrams, to others perhaps: this one was not sent.
                    if self.errors(Some(error.kind())) == 0 {
                        obstacle(error.kind()).map(|obstacle| self.hearing.met(parcel.to, obstacle, now()));
                        break;
                    }
                }
            }
        }
        // A cut cable, an interface that cannot cut segments (the socket state remembers that it cannot): lost, like any
        // other datagram.
        self.metrics.dropped("send_failed");
        true
    }

    /// Reads what became of earlier datagrams that did not reach anybody: how many. `first` is what a call was told.
    pub fn errors(&mut self, first: Option<ErrorKind>) -> usize {
        let socket = &self.sockets[0].socket;
        let (mut kind, mut count) = (first, 0);
        while count < ERRORS {
            // What stands first in the queue; reading it clears that.
            let next = socket.take_error().ok().flatten().map(|error| error.kind());
            kind = next.or(kind);
            let (mut byte, mut rest) = ([0], RecvAncillaryBuffer::default());
            let mut slices = [IoSliceMut::new(&mut byte)];
            let Ok(message) = recvmsg(socket, &mut slices, &mut rest, RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT) else {
                break;
            };
            count += 1;
            let to = message.address.and_then(|address| SocketAddrV4::try_from(address).ok());
            if let (Some(to), Some(obstacle)) = (to, kind.and_then(obstacle)) {
                self.hearing.met(to.into(), obstacle, now());
            }
        }
        count
    }

    fn send_now(&self, parcel: &Parcel) -> std::io::Result<()> {
        let Port { socket, offload } = &self.sockets[0];
        match parcel.segment {
            None => socket
                .send_to_vectored(&[IoSlice::new(&parcel.head), IoSlice::new(&parcel.payload)], &parcel.to.into())
                .map(drop),
            Some(segment) => {
                let transmit = quinn_udp::Transmit {
                    destination: parcel.to,
                    ecn: None,
                    contents: &parcel.head,
                    segment_size: Some(segment),
                    src_ip: None,
                };
                offload.try_send(UdpSockRef::from(socket), &transmit)
            }
        }
    }

    /// Goes on with what waits; some of it at a time.
    pub fn flush(&mut self) {
        for _ in 0..FLUSHED {
            let Some(parcel) = self.backlog.pop() else { return };
            if !self.try_send(&parcel) {
                return self.backlog.put_back(parcel);
            }
        }
    }
}

const ADVICE: &str = "lower the load on this host, or raise its limits";

/// What an error of the network says of the way to where a datagram went.
const fn obstacle(kind: ErrorKind) -> Option<Obstacle> {
    match kind {
        ErrorKind::ConnectionRefused => Some(Obstacle::Closed),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => {
            Some(Obstacle::Unreachable)
        }
        _ => None,
    }
}

/// The socket that sends, and receives what is addressed to this node.
fn unicast(config: &ClusterConfig, address: SocketAddrV4) -> Result<Port, NodeError> {
    let unicast = socket(address, false).map_err(io(
        format!("listening on {address}"),
        "stop whoever uses the port, or change the address in the cluster map",
    ))?;
    let interface = config.network.interface.unwrap_or(*address.ip());
    let multicast = || -> std::io::Result<()> {
        unicast.set_multicast_if_v4(&interface)?;
        unicast.set_multicast_loop_v4(true)?;
        unicast.set_multicast_ttl_v4(1)
    };
    multicast().map_err(io(
        format!("using {interface} for multicast"),
        "set `interface` to an IPv4 address of this host, or leave it out",
    ))?;
    let port = Port::new(unicast).map_err(io(format!("setting up the socket of {address}"), ADVICE))?;
    if let Err(error) = port.offload.enable_transport_errors(UdpSockRef::from(&port.socket)) {
        tracing::warn!("why a target is silent is not told by the network here: {error}");
    }
    Ok(port)
}

/// The sockets of the groups that the target at `address` is in; none where there is no multicast.
fn groups(config: &ClusterConfig, map: &ClusterMap, id: NodeId, address: Ipv4Addr) -> Result<Vec<Port>, NodeError> {
    if id.is_initiator() || config.network.multicast == crate::config::MulticastChoice::Off {
        return Ok(Vec::new());
    }
    let interface = config.network.interface.unwrap_or(address);
    let joined = join(config, map, id, interface).unwrap_or_else(|error| {
        tracing::warn!("no multicast: {error}; going on with unicast");
        Vec::new()
    });
    joined.into_iter().map(|socket| Port::new(socket).map_err(io("setting up a multicast socket", ADVICE))).collect()
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
fn join(config: &ClusterConfig, map: &ClusterMap, id: NodeId, interface: Ipv4Addr) -> std::io::Result<Vec<Socket>> {
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
                socket.join_multicast_v4(address, &interface)?;
            }
            Ok(socket)
        })
        .collect()
}

/// The address of this host's initiators: the configured one, or that from which the first reachable target is reached.
///
/// # Errors
/// When no target is.
pub fn initiator_interface(config: &ClusterConfig) -> Result<Ipv4Addr, NodeError> {
    if let Some(interface) = config.network.interface {
        return Ok(interface);
    }
    // Connecting a UDP socket sends nothing: it asks the kernel for the route.
    let ask = || -> std::io::Result<Ipv4Addr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let mut outcome = Err(ErrorKind::NotFound.into());
        for target in &config.targets {
            outcome = socket.connect(target.address);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
        match socket.local_addr()? {
            SocketAddr::V4(address) => Ok(*address.ip()),
            SocketAddr::V6(_) => Err(ErrorKind::Unsupported.into()),
        }
    };
    ask().map_err(io("finding the way to the targets", "set `interface` to an IPv4 address of this host"))
}

/// A UDP port of `interface` that nobody uses now.
///
/// # Errors
/// When there is none.
pub fn free_port(interface: Ipv4Addr) -> std::io::Result<u16> {
    UdpSocket::bind((interface, 0))?.local_addr().map(|address| address.port())
}
