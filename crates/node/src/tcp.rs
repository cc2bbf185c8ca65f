//! TCP, where multicast and large datagrams are not wanted. Each frame is what UDP carries in a datagram, behind its length
//! (`docs/wire.md`): a message, sealed, or a piece of payload.
//!
//! - Nodes of the map listen at their addresses, and a node that has something for one of them connects. Nodes that are
//!   not in the map, as initiators, are reached over the connection over which they spoke last.
//! - A connection that breaks loses what waits for it, and what was on the way: the protocol asks again, over the next
//!   one.
//! - No other side can make a node keep more than a bounded number of connections, nor more than one unfinished frame
//!   of each.

mod connection;
mod encryption;
mod inbox;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::machine::{Body, Destination, Transmit};
use protocol::messenger::{Choice, Lanes};
use protocol::time::{Instant, Span};
use protocol::wire::datagrams;
use socket2::{Domain, Protocol, Socket, Type};

use crate::carrier::{Carrier, Poller, Readiness, count};
use crate::clock::now;
use crate::config::{ClusterConfig, Network};
use crate::gate::{Gate, Passed, sender};
use crate::messenger::{Progress, Workers};
use crate::metrics::CarrierMetrics;
use crate::reachability::{Obstacle, Reachability};
use crate::send_queue::Waiting;
use crate::{NodeError, io};

use connection::{Connection, Frame};
use encryption::Encryption;
use inbox::Inbox;

/// The listening socket, and what workers have read.
const LISTENER: u32 = 0;
const INBOX: u32 = 1;
/// The first connection.
const FIRST: u32 = 2;
/// Connections that may wait to be accepted, and that are accepted at once.
const ACCEPTED: usize = 64;
const WAITING: i32 = 1_024;
/// Connections of a node. When there is one more, the one that was made first goes.
const MOST: usize = 16_384;
/// Of these so many may have brought nothing good yet.
const STRANGERS: usize = 256;
/// The least time between two that are closed because there are no descriptors left.
const PARTING: Span = Span::from_millis(10);
/// Frames that are no good after which a stranger is not heard out.
const STRANGE: u32 = 4_096;
/// Bytes that are read at once.
const READ: usize = 256 << 10;
/// How long nobody connects again to where it failed: from the first to the longest time.
const BACKOFF: (Span, Span) = (Span::from_millis(20), Span::from_secs(1));

/// The sockets of one node.
#[derive(Debug)]
pub struct Tcp {
    id: NodeId,
    own: SocketAddr,
    listener: Option<Socket>,
    connections: BTreeMap<u32, Connection>,
    /// Connections over which nothing good came yet, in the order in which they were accepted.
    strangers: VecDeque<u32>,
    next_token: u32,
    /// Over which connections a node is reached, how many they may be, and where those of the map are.
    routes: BTreeMap<NodeId, Route>,
    most_lanes: usize,
    addresses: BTreeMap<NodeId, SocketAddr>,
    /// Where a connection failed: when the next may be tried, and how long after that one.
    failed: BTreeMap<NodeId, (Instant, Span)>,
    /// Connections of which the poller does not know yet what they wait for.
    unwatched: BTreeSet<u32>,
    /// Those that got something to send since the loop slept last: it is sent with as few calls as it takes.
    unsent: BTreeSet<u32>,
    gate: Gate,
    /// None where nothing is encrypted.
    encryption: Option<Encryption>,
    /// The thread that reads, if not the loop.
    crew: Option<Crew>,
    /// Bytes of payload that may wait for one connection.
    backlog: u64,
    buffer: Vec<u8>,
    arrived: VecDeque<Arrived>,
    /// When a connection was closed last because there were no descriptors left.
    parted: Instant,
}

/// The connections to a node.
#[derive(Debug)]
struct Route {
    lanes: Lanes,
    connections: Vec<u32>,
}

/// A frame, over which connection it came, from where, and when it was read.
type Arrived = (Bytes, u32, SocketAddr, Instant);

/// Threads that read, and what they bring.
#[derive(Debug)]
struct Crew {
    inbox: Arc<Inbox>,
    workers: Workers<Inbox>,
}

impl Crew {
    fn start(network: &Network, id: NodeId) -> std::io::Result<Option<Self>> {
        let count = network.workers_of(id);
        if count == 0 {
            return Ok(None);
        }
        let inbox = Arc::new(Inbox::new()?);
        let workers = Workers::start(count, network.balance.0, &format!("read-{}", id.0), Arc::clone(&inbox))?;
        Ok(Some(Self { inbox, workers }))
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Tcp {
    /// The sockets of a node at `address`. One that is in the map listens there.
    ///
    /// # Errors
    /// When the address is taken or not of this host.
    pub fn open(config: &ClusterConfig, address: SocketAddr, id: NodeId) -> Result<Self, NodeError> {
        let (map, began) = (config.map()?, now());
        let listener = if id.is_initiator() { None } else { Some(listener(address)?) };
        Ok(Self {
            id,
            own: address,
            listener,
            connections: BTreeMap::new(),
            strangers: VecDeque::new(),
            next_token: FIRST,
            routes: BTreeMap::new(),
            most_lanes: config.network.lanes.into(),
            addresses: config.addresses().collect(),
            failed: BTreeMap::new(),
            unwatched: [LISTENER, INBOX].into(),
            unsent: BTreeSet::new(),
            gate: Gate::new(config, &map, id, began)?,
            encryption: encryption(config)?,
            crew: Crew::start(&config.network, id).map_err(io("starting workers", "choose fewer in [network]"))?,
            backlog: config.protocol(address.ip()).receive_buffer,
            buffer: vec![0; READ],
            arrived: VecDeque::new(),
            parted: Instant::ZERO,
        })
    }

    /// Takes those that wait to be accepted. Whether there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTED {
            let Some(listener) = &self.listener else { return false };
            match listener.accept() {
                Ok((socket, from)) => {
                    let Some(from) = from.as_socket() else { continue };
                    if let Ok(connection) = Connection::accepted(socket, from, self.backlog, self.encryption.as_ref()) {
                        let token = self.add(connection);
                        if self.connections.contains_key(&token) {
                            self.strangers.push_back(token);
                        }
                        self.part_from_strangers();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // It is gone again.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // Most often there are no descriptors left: one goes, or the loop would turn and turn. A worker may need a
                // moment until it lets go of it.
                Err(_) => {
                    let now = now();
                    if now.since(self.parted) >= PARTING {
                        self.parted = now;
                        self.part_from_oldest();
                    }
                    return false;
                }
            }
        }
        true
    }

    fn add(&mut self, connection: Connection) -> u32 {
        let token = self.next_token;
        // Those that are open have other numbers: there are fewer than numbers.
        self.next_token = token.checked_add(1).unwrap_or(FIRST);
        if self.connections.len() >= MOST {
            self.part_from_oldest();
        }
        self.connections.insert(token, connection);
        self.unwatched.insert(token);
        self.share_out(token);
        token
    }

    /// Gives what comes over a connection to a worker, if there are any.
    fn share_out(&mut self, token: u32) {
        let (Some(crew), Some(connection)) = (&self.crew, self.connections.get_mut(&token)) else { return };
        if connection.is_open()
            && let Some(reader) = connection.take_reader()
            && !crew.workers.serve(token, reader)
        {
            self.gate.metrics.dropped("too_many_connections", 1);
            self.close(token);
        }
    }

    /// Takes what workers have read.
    fn collect(&mut self) {
        let Some(crew) = &self.crew else { return };
        for arrival in crew.inbox.take() {
            let token = arrival.connection;
            let Some(from) = self.connections.get(&token).map(|connection| connection.to) else {
                // It was closed while this waited.
                self.gate.metrics.dropped("connection_lost", arrival.frames.len() as u64);
                continue;
            };
            self.arrived.extend(arrival.frames.into_iter().map(|frame| (frame, token, from, arrival.at)));
            if let Some(end) = arrival.end {
                self.ended(token, end);
            }
        }
    }

    /// Reading came to an end, for now or for good. Whether there may be more at once.
    fn ended(&mut self, token: u32, progress: Progress) -> bool {
        if progress == Progress::Malformed {
            self.gate.metrics.dropped("malformed_frame", 1);
        }
        if progress == Progress::Unencrypted {
            self.gate.metrics.dropped("not_encrypted", 1);
        }
        if progress.is_end() {
            self.lose(token);
        }
        progress == Progress::More
    }

    fn part_from_oldest(&mut self) {
        if let Some(oldest) = self.connections.keys().next().copied() {
            self.gate.metrics.dropped("too_many_connections", 1);
            self.close(oldest);
        }
    }

    fn part_from_strangers(&mut self) {
        while self.strangers.len() > STRANGERS {
            if let Some(token) = self.strangers.pop_front() {
                self.gate.metrics.dropped("stranger", 1);
                self.close(token);
            }
        }
    }

    /// A frame was no good. Before a connection is proven there may not be any number of them.
    fn note_strange(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token).filter(|connection| !connection.is_proven) else {
            return;
        };
        connection.strange += 1;
        if connection.strange > STRANGE {
            self.gate.metrics.dropped("stranger", 1);
            self.close(token);
        }
    }

    /// A connection is over; what waits for it is lost, and counted.
    fn close(&mut self, token: u32) {
        let Some(connection) = self.connections.remove(&token) else { return };
        connection.shut();
        self.unwatched.remove(&token);
        self.strangers.retain(|other| *other != token);
        self.gate.metrics.dropped("connection_lost", connection.waiting() as u64);
        let Some(peer) = connection.peer else { return };
        if let Some(route) = self.routes.get_mut(&peer) {
            route.connections.retain(|other| *other != token);
            if route.connections.is_empty() {
                self.routes.remove(&peer);
            }
        }
    }

    /// A connection ended by itself. One over which nothing good came is made again ever more rarely.
    fn lose(&mut self, token: u32) {
        if let Some(connection) = self.connections.get(&token).filter(|connection| !connection.is_proven)
            && let Some(peer) = connection.peer
            && self.routes.get(&peer).is_none_or(|route| route.connections.iter().all(|other| *other == token))
        {
            let (now, before) = (now(), self.failed.get(&peer).map(|(_, wait)| *wait));
            let wait = before.map_or(BACKOFF.0, |wait| wait.times(2).min(BACKOFF.1));
            self.failed.insert(peer, (now + wait, wait));
            // A host that again and again lets nobody say anything most often encrypts, or does not.
            let usual = match (connection.is_connecting(), before) {
                (true, _) => Some(Obstacle::Unreachable),
                (false, Some(_)) => Some(Obstacle::Encryption),
                (false, None) => None,
            };
            if let Some(obstacle) = connection.obstacle().or(usual) {
                self.gate.reachability.met(connection.to, obstacle, now);
            }
        }
        self.close(token);
    }

    /// The connection that takes the next message or payload for a node: where there are several, the one on which least
    /// waits. One is made where there is none, and another one where none takes what is there.
    fn route(&mut self, to: NodeId, is_data: bool) -> Option<u32> {
        let Some(route) = self.routes.get_mut(&to) else { return self.connect(to) };
        if self.most_lanes == 1 {
            return route.connections.first().copied();
        }
        let lanes = || route.connections.iter().filter_map(|token| self.connections.get(token));
        let is_another_wanted = route.connections.len() < self.most_lanes && lanes().all(Connection::is_choked);
        let queued: Vec<u64> = lanes().map(|lane| lane.waiting_bytes(is_data)).collect();
        let chosen = route.lanes.choose(&queued).and_then(|lane| route.connections.get(lane).copied());
        if is_another_wanted {
            // It takes what comes when it is there.
            self.connect(to);
        }
        chosen
    }

    /// Begins to connect to a node of the map.
    fn connect(&mut self, to: NodeId) -> Option<u32> {
        let address = *self.addresses.get(&to)?;
        if self.failed.get(&to).is_some_and(|(next, _)| now() < *next) {
            return None;
        }
        match Connection::to(address, to, self.backlog, self.encryption.as_ref()) {
            Ok(connection) => {
                let token = self.add(connection);
                self.lead_over(to, token);
                Some(token)
            }
            Err(_) => {
                self.failed.insert(to, (now() + BACKOFF.0, BACKOFF.0));
                None
            }
        }
    }

    /// A node is reached over this connection as well, in place of the one that was taken first where there are too many.
    fn lead_over(&mut self, to: NodeId, token: u32) {
        let made = || Route { lanes: Lanes::new(Choice::LeastQueued), connections: Vec::new() };
        let route = self.routes.entry(to).or_insert_with(made);
        route.connections.push(token);
        if route.connections.len() > self.most_lanes {
            route.connections.remove(0);
        }
    }

    fn push(&mut self, token: u32, frame: Frame) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return self.gate.metrics.dropped("no_connection", 1);
        };
        if !connection.push(frame) {
            self.gate.metrics.dropped("backlog", 1);
        }
    }

    /// Hands the kernel what was said in this turn of the loop.
    fn flush_unsent(&mut self) {
        while let Some(token) = self.unsent.pop_first() {
            self.flush(token);
        }
    }

    /// Hands the kernel what it takes.
    fn flush(&mut self, token: u32) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let progress = connection.flush(|frame| self.gate.metrics.sent(frame.is_data(), 1, frame.len() as u64));
        if !connection.is_watched() {
            self.unwatched.insert(token);
        }
        if progress == Progress::Over {
            self.lose(token);
        }
    }

    /// A message came over a connection that its sender proved: it is reached there from now on.
    fn learn(&mut self, token: u32, id: NodeId) {
        self.failed.remove(&id);
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.is_proven = true;
        if connection.peer.is_none() {
            connection.peer = Some(id);
            self.strangers.retain(|other| *other != token);
        }
        // Somebody else is at the address of the node that it was made for: it goes when the map says so.
        if connection.peer != Some(id) {
            return;
        }
        // A node that is not in the map has begun anew, or has made one more, when it speaks over another connection. Other nodes
        // are reached over those that were taken first, unless nothing is known to pass there.
        let route = self.routes.get(&id).map_or(&[][..], |route| &route.connections);
        if route.contains(&token) {
            return;
        }
        let first = route.first().and_then(|token| self.connections.get(token));
        let is_room = route.len() < self.most_lanes;
        if id.is_initiator() || is_room || first.is_none_or(|first| !first.is_proven) {
            self.lead_over(id, token);
        }
    }
}

/// How the connections of a cluster are encrypted, if they are.
fn encryption(config: &ClusterConfig) -> Result<Option<Encryption>, NodeError> {
    if !config.network.encrypt {
        return Ok(None);
    }
    let made = Encryption::of(&config.key()?).map_err(std::io::Error::other);
    made.map(Some).map_err(io("preparing encryption", "look at the system's log: it may have no random numbers"))
}

/// A socket that listens at an address.
fn listener(address: SocketAddr) -> Result<Socket, NodeError> {
    let advice = "stop what listens there, or choose another address in the cluster map";
    let made = || -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        // What an earlier process had open there may still wait for its end.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(WAITING)?;
        Ok(socket)
    };
    made().map_err(io(format!("listening at {address} (TCP)"), advice))
}

impl Carrier for Tcp {
    fn prepare(&mut self, poller: &Poller) -> std::io::Result<()> {
        self.flush_unsent();
        while let Some(token) = self.unwatched.pop_first() {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.watch(poller, token)?;
            } else if let Some(listener) = self.listener.as_ref().filter(|_| token == LISTENER) {
                poller.watch(listener, token, false)?;
            } else if let Some(crew) = self.crew.as_ref().filter(|_| token == INBOX) {
                poller.watch(&*crew.inbox, token, false)?;
            }
        }
        Ok(())
    }

    fn ready(&mut self, token: u32, readiness: Readiness) {
        if token < FIRST {
            return;
        }
        if readiness.failed {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.note_error();
            }
            return self.lose(token);
        }
        if readiness.writable {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.connected();
            }
            self.share_out(token);
            self.flush(token);
        }
    }

    fn receive(&mut self, token: u32) -> bool {
        if token == LISTENER {
            return self.accept();
        }
        if token == INBOX {
            self.collect();
            return false;
        }
        let Some(connection) = self.connections.get_mut(&token) else { return false };
        let (from, at) = (connection.to, now());
        let arrived = &mut self.arrived;
        let progress = connection.receive(&mut self.buffer, |frame| arrived.push_back((frame, token, from, at)));
        let has_more = self.ended(token, progress);
        // They may have agreed on how to encrypt just now.
        if self.encryption.is_some() {
            self.share_out(token);
            if self.connections.get(&token).is_some_and(|connection| !connection.is_watched()) {
                self.unwatched.insert(token);
            }
        }
        has_more
    }

    fn arrived(&mut self) -> Option<(Bytes, Instant)> {
        while let Some((frame, token, from, read_at)) = self.arrived.pop_front() {
            match self.gate.open(read_at, frame, from) {
                Passed::In(frame) => {
                    if let Some(id) = sender(&frame) {
                        self.learn(token, id);
                    }
                    return Some((frame, read_at));
                }
                Passed::Answered(replies) => {
                    self.note_strange(token);
                    for reply in replies {
                        self.push(token, Frame::new(reply, Bytes::new()));
                    }
                    self.flush(token);
                }
            }
        }
        None
    }

    fn send(&mut self, transmit: &Transmit) {
        let token = match transmit.to {
            Destination::Node(id) => self.route(id, matches!(transmit.body, Body::Data(_))).map(|token| (id, token)),
            // The map says that there is no multicast.
            Destination::Members(_) => None,
        };
        let Some((id, token)) = token else {
            return self.gate.metrics.dropped("no_connection", count(&transmit.body));
        };
        match &transmit.body {
            Body::Control(message) => {
                let sealed = self.gate.seal(message);
                self.push(token, Frame::new(sealed, Bytes::new()));
                self.unsent.insert(token);
            }
            Body::Data(run) => {
                let mut used = BTreeSet::new();
                for (nth, (header, payload)) in datagrams(run).enumerate() {
                    let is_new = nth > 0 && self.most_lanes > 1;
                    let token = if is_new { self.route(id, true).unwrap_or(token) } else { token };
                    // A run may be longer than what may wait: the kernel takes its beginning.
                    if self.connections.get(&token).is_some_and(Connection::is_full) {
                        self.flush(token);
                    }
                    self.push(token, Frame::new(Bytes::copy_from_slice(&header), payload));
                    used.insert(token);
                }
                // Payload has its time.
                for token in used {
                    self.unsent.remove(&token);
                    self.flush(token);
                }
            }
        }
    }

    fn reload(&mut self, config: &ClusterConfig) -> Result<(), NodeError> {
        let own = config.addresses().find(|(id, _)| *id == self.id).map(|(_, address)| address);
        if let Some(address) = own.filter(|address| *address != self.own) {
            self.listener = Some(listener(address)?);
            self.own = address;
            self.unwatched.insert(LISTENER);
        }
        let before = std::mem::replace(&mut self.addresses, config.addresses().collect());
        // Those that moved are elsewhere, and those that went are not answered.
        let moved = before.into_iter().filter(|(id, address)| self.addresses.get(id) != Some(address));
        for (id, _) in moved.collect::<Vec<_>>() {
            let connections = self.routes.get(&id).map(|route| route.connections.clone());
            connections.into_iter().flatten().for_each(|token| self.close(token));
        }
        self.gate.reachability.set(config);
        Ok(())
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
