//! UDP with multicast, over IPv4 or IPv6: addresses for ids, sealing, and what waits for the socket.

mod socket;

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use protocol::id::NodeId;
use protocol::machine::{Body, DataRun, Destination, Transmit};
use protocol::map::ClusterMap;
use protocol::time::{Instant, Span};
use protocol::wire::{DATA_HEADER, datagrams, is_data};
use quinn_udp::{RecvMeta, UdpSockRef};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::NodeError;
use crate::carrier::{Carrier, Poller, Readiness, count};
use crate::clock::now;
use crate::config::ClusterConfig;
use crate::gate::{Gate, Passed, sender};
use crate::metrics::CarrierMetrics;
use crate::payload_cipher::OVERHEAD;
use crate::reachability::{Reachability, obstacle};
use crate::send_queue::{Outgoing, SendQueue, Waiting};

use socket::{EXPEDITED, OpenSocket, SOCKET_BUFFER, group_sockets, unicast_socket};
pub use socket::{group_address, has_addresses, initiator_interface};

/// Initiators whose address is remembered.
const LEARNED: usize = 4_096;
/// What waited is sent in portions of so many before what has arrived has its turn.
const FLUSHED: usize = 256;
/// Errors of earlier datagrams that are read at once, and times that a datagram is sent again because of them.
const ERRORS: usize = 64;
/// See [`ERRORS`].
const RETRIES: usize = 4;
/// Receive buffers that one call fills.
const BATCH: usize = 16;
/// Longest that a datagram waits in a socket: what seems to have waited longer came before the clock was set.
const LONGEST_WAIT: Span = Span::from_secs(1);
/// Calls that empty a socket: more than it takes for all that waits there. What comes meanwhile must not keep this up.
const EMPTIED: usize = 1_024;
/// Bytes of one: the largest datagram, or several that the kernel joined.
const BUFFER: usize = 1 << 16;
/// The most bytes that one call hands to the kernel to send: a UDP datagram over IPv4; over IPv6 it may be 20 more.
const LARGEST: usize = 65_507;

/// The sockets of one node.
#[derive(Debug)]
pub struct Udp {
    /// The first sends, and receives what is addressed to this node; the others receive its groups. A socket's place is its
    /// token.
    sockets: Vec<OpenSocket>,
    /// Whether the poller knows all of them, and whether it reports when the first takes more.
    watched: bool,
    awaits_room: bool,
    id: NodeId,
    is_ipv6: bool,
    map: ClusterMap,
    multicast_port: u16,
    addresses: BTreeMap<NodeId, SocketAddr>,
    learned: VecDeque<NodeId>,
    gate: Gate,
    queue: SendQueue<Outgoing>,
    buffers: Vec<u8>,
    arrived: VecDeque<(Bytes, SocketAddr, Instant)>,
    /// When the last batch was read.
    read_at: Instant,
}

impl Udp {
    /// The sockets of a node that listens on `address`; a target (`id` in the map) joins its groups.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn open(config: &ClusterConfig, address: SocketAddr, id: NodeId) -> Result<Self, NodeError> {
        let map = config.map()?;
        let mut sockets = vec![unicast_socket(config, address)?];
        sockets.extend(group_sockets(config, &map, id, address.ip())?);
        // No earlier process of this node receives anything any more: its address is ours.
        let began = now();
        let udp = Self {
            addresses: config.addresses().collect(),
            gate: Gate::new(config, &map, id, began)?,
            sockets,
            watched: false,
            awaits_room: false,
            id,
            is_ipv6: address.is_ipv6(),
            map,
            multicast_port: config.network.multicast_port,
            learned: VecDeque::new(),
            // As much as a target takes in at once; a larger burst is lost, as on a full wire, and repaired.
            queue: SendQueue::new(config.protocol(address.ip()).receive_buffer),
            buffers: vec![0; BATCH * BUFFER],
            arrived: VecDeque::new(),
            read_at: began,
        };
        udp.warn_of_small_buffers();
        udp.count_losses();
        Ok(udp)
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

    /// Where this node is reached.
    #[must_use]
    pub fn local(&self) -> Option<SocketAddr> {
        self.sockets[0].socket.local_addr().ok().and_then(|address| address.as_socket())
    }

    /// Lets the metrics ask the kernel what it dropped at these sockets.
    fn count_losses(&self) {
        self.gate
            .metrics
            .watch(self.sockets.iter().filter_map(|socket| rustix::fs::fstat(&socket.socket).ok()?.st_ino.into()));
    }

    /// Takes what waits in the kernel at sockets that are about to be closed, and counts what it dropped there: with them
    /// both would be gone.
    fn empty_sockets(&mut self) {
        for token in 0..self.sockets.len() as u32 {
            let _ = (0..EMPTIED).take_while(|_| self.receive(token)).count();
        }
        self.gate.metrics.count_overflows();
    }

    /// Remembers where an initiator is, from an authenticated message.
    fn learn(&mut self, id: NodeId, from: SocketAddr) {
        // A target that has just joined is not in the map here: a node that asks it for the newer map asks at the
        // address that it spoke from.
        if !id.is_initiator() && self.addresses.contains_key(&id) {
            return;
        }
        if self.addresses.insert(id, from).is_none() {
            self.learned.push_back(id);
            if self.learned.len() > LEARNED {
                self.learned.pop_front().map(|oldest| self.addresses.remove(&oldest));
            }
        }
    }

    fn address(&self, to: Destination) -> Option<SocketAddr> {
        match to {
            Destination::Node(id) => self.addresses.get(&id).copied(),
            Destination::Members(set) => {
                let group = group_address(&self.map, set, self.is_ipv6)?;
                Some(SocketAddr::new(group, self.multicast_port))
            }
        }
    }

    /// Sends a run with as few calls as the kernel allows.
    fn send_run(&mut self, run: &DataRun, to: SocketAddr) {
        let overhead = if self.gate.encrypts() { OVERHEAD } else { 0 };
        let segment = DATA_HEADER + run.per_datagram + overhead;
        let at_once = self.sockets[0].offload.max_gso_segments().min(LARGEST / segment);
        if at_once < 2 || run.payload.len() <= run.per_datagram {
            for (header, payload) in datagrams(run) {
                let (head, payload) = if self.gate.encrypts() {
                    let mut sealed = BytesMut::with_capacity(segment);
                    self.gate.seal_data(&header, &payload, &mut sealed);
                    (sealed.freeze(), Bytes::new())
                } else {
                    (Bytes::copy_from_slice(&header), payload)
                };
                self.push(Outgoing { head, payload, segment: None, to });
            }
            return;
        }
        let mut rest = datagrams(run).peekable();
        while rest.peek().is_some() {
            let mut segments = BytesMut::with_capacity(at_once * segment);
            for (header, payload) in rest.by_ref().take(at_once) {
                self.gate.seal_data(&header, &payload, &mut segments);
            }
            let head = segments.freeze();
            self.push(Outgoing { head, payload: Bytes::new(), segment: Some(segment), to });
        }
    }

    fn push_all(&mut self, heads: Vec<Bytes>, to: SocketAddr) {
        for head in heads {
            self.push(Outgoing { head, payload: Bytes::new(), segment: None, to });
        }
    }

    fn push(&mut self, outgoing: Outgoing) {
        if self.queue.is_empty() && self.try_send(&outgoing) {
            return;
        }
        let datagrams = outgoing.datagrams();
        if !self.queue.push(outgoing) {
            self.gate.metrics.dropped("backlog", datagrams);
        }
    }

    /// Whether it is done with: sent, or lost for good (which the protocol repairs).
    fn try_send(&mut self, outgoing: &Outgoing) -> bool {
        for _ in 0..RETRIES {
            match self.send_now(outgoing) {
                Ok(()) => {
                    self.gate.metrics.sent(is_data(&outgoing.head), outgoing.datagrams(), outgoing.len() as u64);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) => {
                    // What is waiting there is of earlier datagrams, to others perhaps: this one was not sent.
                    if self.errors(Some(error.kind())) == 0 {
                        obstacle(error.kind()).map(|obstacle| self.gate.reachability.met(outgoing.to, obstacle, now()));
                        break;
                    }
                }
            }
        }
        // A cut cable, an interface that cannot cut segments (the socket state remembers that it cannot): lost, like any
        // other datagram.
        self.gate.metrics.dropped("send_failed", outgoing.datagrams());
        true
    }

    /// Reads what became of earlier datagrams that did not reach anybody: how many. `first` is the error that a call returned.
    fn errors(&mut self, first: Option<ErrorKind>) -> usize {
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
            let to = message.address.and_then(|address| SocketAddr::try_from(address).ok());
            if let (Some(to), Some(obstacle)) = (to, kind.and_then(obstacle)) {
                self.gate.reachability.met(to, obstacle, now());
            }
        }
        count
    }

    fn send_now(&mut self, outgoing: &Outgoing) -> std::io::Result<()> {
        if outgoing.segment.is_none() {
            self.sockets[0].mark(if is_data(&outgoing.head) { 0 } else { EXPEDITED }, self.is_ipv6);
        }
        let OpenSocket { socket, offload, .. } = &self.sockets[0];
        match outgoing.segment {
            None => socket
                .send_to_vectored(&[IoSlice::new(&outgoing.head), IoSlice::new(&outgoing.payload)], &outgoing.to.into())
                .map(drop),
            Some(segment) => {
                let transmit = quinn_udp::Transmit {
                    destination: outgoing.to,
                    ecn: None,
                    contents: &outgoing.head,
                    segment_size: Some(segment),
                    src_ip: None,
                };
                offload.try_send(UdpSockRef::from(socket), &transmit)
            }
        }
    }

    /// Goes on with what waits; some of it at a time.
    fn flush(&mut self) {
        for _ in 0..FLUSHED {
            let Some(outgoing) = self.queue.pop() else { return };
            if !self.try_send(&outgoing) {
                return self.queue.put_back(outgoing);
            }
        }
    }
}

/// How long a datagram that the kernel stamped has waited to be read at `date`. Not at all when the clock was set meanwhile.
fn waited(stamp: Option<Duration>, date: Timespec) -> Span {
    let nanos = |seconds: i64, nanos: u32| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    let read = nanos(date.tv_sec, date.tv_nsec as u32);
    let age = stamp.map_or(0, |stamp| read - nanos(stamp.as_secs() as i64, stamp.subsec_nanos()));
    u64::try_from(age).ok().map(Span::from_nanos).filter(|age| *age <= LONGEST_WAIT).unwrap_or(Span::ZERO)
}

impl Carrier for Udp {
    fn prepare(&mut self, poller: &Poller) -> std::io::Result<()> {
        if !self.watched {
            for (token, socket) in (0..).zip(&self.sockets) {
                poller.watch(&socket.socket, token, false)?;
            }
            (self.watched, self.awaits_room) = (true, false);
        }
        let waits = !self.queue.is_empty();
        if self.awaits_room != waits {
            poller.watch(&self.sockets[0].socket, 0, waits)?;
            self.awaits_room = waits;
        }
        Ok(())
    }

    fn ready(&mut self, _: u32, readiness: Readiness) {
        if readiness.failed {
            self.errors(None);
        }
        if readiness.writable {
            self.flush();
        }
    }

    fn reload(&mut self, config: &ClusterConfig) -> Result<(), NodeError> {
        let map = config.map()?;
        let mut local = self.local().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip());
        let own = match config.addresses().find(|(id, _)| *id == self.id) {
            Some((_, address)) => Some(address),
            None if config.is_ipv6() != self.is_ipv6 => Some(SocketAddr::new(initiator_interface(config)?, 0)),
            None => None,
        };
        if let Some(address) = own.filter(|address| Some(*address) != self.local()) {
            let socket = unicast_socket(config, address)?;
            self.empty_sockets();
            self.sockets[0] = socket;
            (self.watched, self.is_ipv6, local) = (false, address.is_ipv6(), address.ip());
        }
        let joined = group_sockets(config, &map, self.id, local)?;
        self.empty_sockets();
        self.sockets.truncate(1);
        self.sockets.extend(joined);
        self.watched = false;
        self.count_losses();
        self.addresses.extend(config.addresses());
        self.learned.retain(|id| config.addresses().all(|(of_map, _)| of_map != *id));
        self.gate.reachability.set(config);
        (self.map, self.multicast_port) = (map, config.network.multicast_port);
        Ok(())
    }

    fn receive(&mut self, token: u32) -> bool {
        let Some(OpenSocket { socket, offload, .. }) = self.sockets.get(token as usize) else { return false };
        let mut buffers = self.buffers.chunks_mut(BUFFER);
        let mut slices: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
        let mut metas = [RecvMeta::default(); BATCH];
        let count = match offload.recv(UdpSockRef::from(socket), &mut slices, &mut metas) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => return false,
            // An earlier datagram did not reach its host: says nothing of those that are here.
            Err(error) => return self.errors(Some(error.kind())) > 0,
        };
        // In this order: a thread that is suspended between the two takes datagrams for younger than they are, not older.
        let date = clock_gettime(ClockId::Realtime);
        self.read_at = now();
        for (meta, buffer) in metas.iter().zip(self.buffers.chunks(BUFFER)).take(count) {
            let joined = Bytes::copy_from_slice(&buffer[..meta.len]);
            let arrived = self.read_at - waited(meta.timestamp, date);
            // An empty one counts as well: it is malformed.
            for at in (0..meta.len.max(1)).step_by(meta.stride.max(1)) {
                let datagram = joined.slice(at..(at + meta.stride).min(meta.len));
                self.arrived.push_back((datagram, meta.addr, arrived));
            }
        }
        count == BATCH
    }

    fn arrived(&mut self) -> Option<(Bytes, Instant)> {
        while let Some((datagram, from, at)) = self.arrived.pop_front() {
            match self.gate.open(self.read_at, datagram, from) {
                Passed::In(datagram) => {
                    if let Some(id) = sender(&datagram) {
                        self.learn(id, from);
                    }
                    return Some((datagram, at));
                }
                Passed::Answered(replies) => self.push_all(replies, from),
            }
        }
        None
    }

    fn send(&mut self, transmit: &Transmit) {
        let Some(to) = self.address(transmit.to) else {
            return self.gate.metrics.dropped("no_address", count(&transmit.body));
        };
        match &transmit.body {
            Body::Control(message) => {
                let head = self.gate.seal(message);
                self.push(Outgoing { head, payload: Bytes::new(), segment: None, to });
            }
            Body::Data(run) => self.send_run(run, to),
        }
    }

    fn metrics(&self) -> &CarrierMetrics {
        &self.gate.metrics
    }

    fn reachability(&self) -> &Reachability {
        &self.gate.reachability
    }
}

#[cfg(test)]
mod tests;
