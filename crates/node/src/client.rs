//! An initiator for applications: requests from any thread, tickets to wait on.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId, OpId};
use protocol::initiator::{
    Busy, ChunkPut, Discard, Discarded, Event, Fetched, Found, GetError, Initiator, Marked, PutError, Query,
    QueryAnswer, Request, Stored, TargetState,
};
use protocol::machine::{Completion, Effect};
use protocol::map::ClusterMap;
use protocol::redundancy::{Pieces, Redundancy};
use protocol::time::Instant;
use protocol::transport::Transport;
use protocol::wire::{HealthReport, Usage};

use crate::carrier::Carrier;
use crate::config::{CarrierChoice, ClusterConfig, MulticastChoice};
use crate::event_loop::{self, Host, Mail, Mailbox};
use crate::metrics::InitiatorMetrics;
use crate::reachability::{Reachability, Silence};
use crate::reload::MapInUse;
use crate::sockets;
use crate::udp::{Udp, has_addresses, initiator_interface};
use crate::{NodeError, io, random};

/// Chunks below this are hashed by the loop itself: cheaper than a hop to another thread.
const INLINE: usize = 32 << 10;

/// What a client may choose for itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientOptions {
    /// Instead of the map's transport.
    pub transport: Option<Transport>,
    /// Instead of probing.
    pub multicast: Option<bool>,
    /// Instead of the map's depth.
    pub depth: Option<usize>,
}

/// A running initiator. Clones share it; the last one to go stops it.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mailbox: Mailbox<Request>,
    waiting: Arc<Mutex<Waiting>>,
    map: MapInUse,
    metrics: Arc<InitiatorMetrics>,
    multicast: Arc<AtomicBool>,
    reachability: Reachability,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The answer to a request, when it comes.
#[derive(Debug)]
pub struct Ticket<T>(Receiver<T>);

impl<T> Ticket<T> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// When the client has stopped.
    pub fn wait(self) -> Result<T, NodeError> {
        self.0.recv().map_err(|_| NodeError::Stopped)
    }
}

/// The waiters for answers, by handle.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    open: BTreeMap<u64, Reply>,
}

enum Reply {
    Put(SyncSender<Result<Stored, PutError>>),
    Get(SyncSender<Result<Fetched, GetError>>),
    Query(Box<dyn FnOnce(QueryAnswer) + Send>),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while requests are answered. However that ends, by a panic as well, a thread that waits sees it from the closed
/// channel.
struct Answering {
    mail: Option<Receiver<Mail<Request>>>,
    open: Arc<Mutex<Waiting>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        // In this order: a request that comes later is refused, and one that was sent earlier is among the open ones.
        drop(self.mail.take());
        lock(&self.open).open.clear();
    }
}

struct ClientHost {
    waiting: Arc<Mutex<Waiting>>,
    hashes: Sender<(OpId, Effect)>,
    map: MapInUse,
    mailbox: Mailbox<Request>,
    metrics: Arc<InitiatorMetrics>,
    multicast: Arc<AtomicBool>,
}

impl Host<Initiator> for ClientHost {
    fn effect(&mut self, op: OpId, effect: Effect) -> Option<Completion> {
        match effect.computes() {
            Some(bytes) if bytes < INLINE => effect.compute().ok(),
            Some(_) => {
                drop(self.hashes.send((op, effect)));
                None
            }
            None => {
                tracing::error!("an initiator has no disk for {effect:?}");
                None
            }
        }
    }

    fn reload(&mut self) {
        let (metrics, mailbox) = (Arc::clone(&self.metrics), self.mailbox.clone());
        self.map.look("the initiator".to_owned(), move |config, map| {
            metrics.set_epoch(config.epoch);
            mailbox.send(Mail::Map(Box::new(config), Request::Map(map)));
        });
    }

    fn event(&mut self, now: Instant, event: Event) {
        self.metrics.event(&event);
        let handle = match &event {
            Event::Put { handle, .. } | Event::Get { handle, .. } | Event::Query { handle, .. } => *handle,
            Event::NewerMap(newer) => {
                if self.map.hear_of(now, newer.clone()) {
                    self.mailbox.send(Mail::Reload);
                }
                return;
            }
            Event::Multicast { works } => return self.multicast_works(*works),
            // None of those is asked for here.
            Event::Pieces { .. } => return,
            Event::Bid { .. } | Event::RepairAsked | Event::RepairSent | Event::Hedged | Event::Ignored(_) => return,
            Event::CorruptCopy { id, target } => {
                return tracing::error!("{target} sent a damaged copy of {id}; another one is asked for");
            }
        };
        let reply = lock(&self.waiting).open.remove(&handle);
        // A caller that dropped the ticket does not need the answer.
        match (reply, event) {
            (Some(Reply::Put(reply)), Event::Put { result, .. }) => drop(reply.try_send(result)),
            (Some(Reply::Get(reply)), Event::Get { result, .. }) => drop(reply.try_send(result)),
            (Some(Reply::Query(reply)), Event::Query { answer, .. }) => reply(answer),
            _ => {}
        }
    }
}

impl ClientHost {
    fn multicast_works(&self, works: bool) {
        self.multicast.store(works, Ordering::Relaxed);
        if works {
            tracing::info!("multicast works: using it");
        } else {
            tracing::warn!("nobody hears multicast any more: negotiating by unicast until it works again");
        }
    }
}

/// Sends a request to the loop, with a waiter for its answer.
fn ask<T>(
    mailbox: &Mailbox<Request>,
    waiting: &Mutex<Waiting>,
    reply: impl FnOnce(SyncSender<T>) -> Reply,
    request: impl FnOnce(u64) -> Request,
) -> Ticket<T> {
    let (sender, receiver) = sync_channel(1);
    let handle = {
        let mut waiting = lock(waiting);
        waiting.next += 1;
        let handle = waiting.next;
        waiting.open.insert(handle, reply(sender));
        handle
    };
    if !mailbox.send(Mail::Request(request(handle))) {
        lock(waiting).open.remove(&handle);
    }
    Ticket(receiver)
}

/// Asks a query; `take` takes the answer of its kind.
fn ask_query<T: Send + 'static>(
    mailbox: &Mailbox<Request>,
    waiting: &Mutex<Waiting>,
    query: Query,
    take: fn(QueryAnswer) -> Option<T>,
) -> Ticket<T> {
    let reply = |sender: SyncSender<T>| {
        Reply::Query(Box::new(move |answer| drop(take(answer).map(|answer| sender.try_send(answer)))))
    };
    ask(mailbox, waiting, reply, |handle| Request::Query { handle, query })
}

impl Client {
    /// Starts an initiator on the interface of the map.
    ///
    /// # Errors
    /// When no socket or thread can be had.
    pub fn start(config: &ClusterConfig, options: ClientOptions) -> Result<Self, NodeError> {
        let map = config.map_to_hand_on()?;
        let interface = initiator_interface(config)?;
        let mut protocol = config.protocol(interface);
        protocol.transport = options.transport.unwrap_or(protocol.transport);
        protocol.depth = options.depth.unwrap_or(protocol.depth);
        let may = config.network.carrier == CarrierChoice::Udp
            && options.multicast.unwrap_or(config.network.multicast != MulticastChoice::Off);
        protocol.multicast = may && has_addresses(&map);
        let probes = options.multicast.is_none() && config.network.multicast() == MulticastChoice::Auto;
        let works = protocol.multicast && (!probes || probe(config, interface));
        let multicast = Arc::new(AtomicBool::new(works));
        let id = NodeId(NodeId::FIRST_INITIATOR | random()? as u32 >> 1);
        let mut carrier = sockets::open(config, SocketAddr::new(interface, 0), id)?;
        let metrics = Arc::new(InitiatorMetrics::new(carrier.metrics()));
        metrics.set_epoch(map.epoch.0);
        let reachability = carrier.reachability().clone();
        let in_use = MapInUse::new(config, &map);
        let machine = Initiator::new(id, map, protocol, random()?).with_multicast(works);
        let advice = "lower the load on this host, or raise its limits";
        let (mailbox, mail) = Mailbox::new().map_err(io("starting a client", advice))?;
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let (hashes, queue) = channel();
        let (own, done) = (mailbox.clone(), mailbox.clone());
        let mut host = ClientHost {
            waiting: Arc::clone(&waiting),
            hashes,
            map: in_use.clone(),
            mailbox: mailbox.clone(),
            metrics: Arc::clone(&metrics),
            multicast: Arc::clone(&multicast),
        };
        let hasher = std::thread::Builder::new().name("hash".into()).spawn(move || hash_loop(&queue, &done));
        hasher.map_err(io("starting a thread", advice))?;
        let open = Arc::clone(&waiting);
        let port = std::thread::Builder::new().name("initiator".into()).spawn(move || {
            let answering = Answering { mail: Some(mail), open };
            let Some(mail) = &answering.mail else { return };
            if let Err(error) = event_loop::run(machine, &mut *carrier, mail, &own, &mut host) {
                tracing::error!("the client's loop ended: {error}");
            }
        });
        let thread = Mutex::new(Some(port.map_err(io("starting a thread", advice))?));
        Ok(Self {
            shared: Arc::new(Shared { mailbox, waiting, map: in_use, metrics, multicast, reachability, thread }),
        })
    }

    /// Whether multicast is used now: as long as it works.
    #[must_use]
    pub fn multicast(&self) -> bool {
        self.shared.multicast.load(Ordering::Relaxed)
    }

    /// The epoch of a newer cluster map that others use, and that is not to be had here.
    #[must_use]
    pub fn newer_map(&self) -> Option<u32> {
        self.shared.map.newer()
    }

    /// The cluster map in use.
    #[must_use]
    pub fn config(&self) -> ClusterConfig {
        self.shared.map.get()
    }

    /// The same for the protocol.
    #[must_use]
    pub fn map(&self) -> ClusterMap {
        self.shared.map.map()
    }

    /// Whether requests are still answered. Once they are not, each is refused; a new client must be started.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What is known of why a target is silent.
    #[must_use]
    pub fn silence(&self, target: NodeId) -> Silence {
        self.shared.reachability.silence(target)
    }

    /// Checks whether there is a newer cluster map.
    pub fn reload(&self) {
        self.shared.mailbox.send(Mail::Reload);
    }

    /// What it counts, as a page in the OpenMetrics text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.metrics.page()
    }

    fn ask<T>(&self, reply: impl FnOnce(SyncSender<T>) -> Reply, request: impl FnOnce(u64) -> Request) -> Ticket<T> {
        ask(&self.shared.mailbox, &self.shared.waiting, reply, request)
    }

    fn query<T: Send + 'static>(&self, query: Query, take: fn(QueryAnswer) -> Option<T>) -> Ticket<T> {
        ask_query(&self.shared.mailbox, &self.shared.waiting, query, take)
    }

    /// Stores a chunk as the map says.
    #[must_use]
    pub fn put(&self, id: ChunkId, payload: Bytes) -> Ticket<Result<Stored, PutError>> {
        self.put_chunk(ChunkPut::new(id, payload))
    }

    /// Stores a chunk.
    #[must_use]
    pub fn put_chunk(&self, put: ChunkPut) -> Ticket<Result<Stored, PutError>> {
        self.ask(Reply::Put, |handle| Request::Put { handle, put })
    }

    /// Fetches a chunk.
    #[must_use]
    pub fn get(&self, id: ChunkId) -> Ticket<Result<Fetched, GetError>> {
        self.get_listed(id, vec![])
    }

    /// Fetches a chunk that was listed with these holders.
    #[must_use]
    pub fn get_listed(&self, id: ChunkId, holders: Vec<NodeId>) -> Ticket<Result<Fetched, GetError>> {
        self.get_fragments(id, holders, None)
    }

    /// Fetches these fragments of data of a coded chunk, or a chunk.
    #[must_use]
    pub fn get_fragments(
        &self,
        id: ChunkId,
        holders: Vec<NodeId>,
        fragments: Option<Pieces>,
    ) -> Ticket<Result<Fetched, GetError>> {
        self.ask(Reply::Get, |handle| Request::Get { handle, id, holders, fragments })
    }

    /// Asks every target which chunks it holds.
    #[must_use]
    pub fn list(&self, prefix: Vec<u8>) -> Ticket<Result<Found, Busy>> {
        self.query(Query::List { prefix }, |answer| match answer {
            QueryAnswer::List(result) => Some(result),
            _ => None,
        })
    }

    /// Asks every target for its state.
    #[must_use]
    pub fn ping(&self) -> Ticket<Result<Vec<TargetState>, Busy>> {
        self.states(Query::Ping)
    }

    /// Asks every switch of the map whether it is there.
    #[must_use]
    pub fn ping_switches(&self) -> Ticket<Result<Vec<TargetState>, Busy>> {
        self.states(Query::PingSwitches)
    }

    fn states(&self, query: Query) -> Ticket<Result<Vec<TargetState>, Busy>> {
        self.query(query, |answer| match answer {
            QueryAnswer::Ping(result) => Some(result),
            _ => None,
        })
    }

    /// Asks for enough of a chunk to be promised.
    #[must_use]
    pub fn renew(&self, id: ChunkId, redundancy: Option<Redundancy>) -> Ticket<Result<bool, Busy>> {
        self.query(Query::Renew { id, redundancy }, |answer| match answer {
            QueryAnswer::Renew(result) => Some(result),
            _ => None,
        })
    }

    /// Sets a mark on every target.
    #[must_use]
    pub fn mark(&self) -> Ticket<Result<Marked, Busy>> {
        self.query(Query::Mark, |answer| match answer {
            QueryAnswer::Mark(result) => Some(result),
            _ => None,
        })
    }

    /// Tells targets of chunks to which nothing refers.
    #[must_use]
    pub fn discard(&self, discard: Discard) -> Ticket<Result<Discarded, Busy>> {
        self.query(Query::Discard(discard), |answer| match answer {
            QueryAnswer::Discard(result) => Some(result),
            _ => None,
        })
    }

    /// Asks every target what it knows as a steward, and what it made again.
    #[must_use]
    pub fn health(&self) -> Ticket<Result<Vec<(NodeId, HealthReport)>, Busy>> {
        self.query(Query::Health, |answer| match answer {
            QueryAnswer::Health(result) => Some(result),
            _ => None,
        })
    }

    /// Asks every target what its bytes do.
    #[must_use]
    pub fn usage(&self) -> Ticket<Result<Vec<(NodeId, Usage)>, Busy>> {
        self.query(Query::Usage, |answer| match answer {
            QueryAnswer::Usage(result) => Some(result),
            _ => None,
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.mailbox.send(Mail::Stop);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn hash_loop(queue: &Receiver<(OpId, Effect)>, mailbox: &Mailbox<Request>) {
    event_loop::yield_to_event_loops();
    while let Ok((op, effect)) = queue.recv() {
        if let Ok(completion) = effect.compute() {
            mailbox.send(Mail::Done(op, completion));
        }
    }
}

/// Whether a multicast ping to some group is answered: then the path carries multicast.
fn probe(config: &ClusterConfig, interface: IpAddr) -> bool {
    use protocol::id::TxnId;
    use protocol::machine::{Body, Destination, Transmit};
    use protocol::wire::{Head, Message, decode_message, encode_message};
    let (Ok(map), Ok(random)) = (config.map(), random()) else { return false };
    let id = NodeId(NodeId::FIRST_INITIATOR | random as u32 >> 1);
    let Ok(mut udp) = Udp::open(config, SocketAddr::new(interface, 0), id) else { return false };
    let head = Head { cluster: map.cluster, epoch: map.epoch, from: id };
    for n in 0..100 {
        for group in map.group_ids().take(if n % 10 == 0 { 4 } else { 0 }) {
            let body = Body::Control(encode_message(head, &Message::Ping { txn: TxnId(1) }));
            udp.send(&Transmit { to: Destination::Members(map.group_set(group)), body });
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        udp.receive(0);
        while let Some((datagram, _)) = udp.arrived() {
            if matches!(decode_message(&datagram), Some((_, Message::Pong { .. }))) {
                return true;
            }
        }
    }
    let route = match interface {
        IpAddr::V6(address) if address.is_loopback() => {
            " (on the loopback interface IPv6 multicast wants a route: `ip -6 route add local ff15::/16 dev lo`, as root)"
        }
        _ => "",
    };
    tracing::warn!("no target answers to multicast on {interface}: negotiating by unicast until somebody does{route}");
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::time::Duration;

    use super::*;

    /// Far longer than the closing of a channel takes.
    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_panic_of_the_loop_tells_everybody_who_waits() {
        let (mailbox, mail) = Mailbox::new().unwrap();
        let waiting = Arc::new(Mutex::new(Waiting::default()));
        let ping = || ask_query(&mailbox, &waiting, Query::Ping, Some);
        let before = ping();
        let answering = Answering { mail: Some(mail), open: Arc::clone(&waiting) };
        let thread = std::thread::spawn(move || {
            let _answering = answering;
            panic!("as a defect would");
        });
        assert!(thread.join().is_err());
        for ticket in [before, ping()] {
            let answer = ticket.0.recv_timeout(LIMIT);
            assert!(matches!(answer, Err(std::sync::mpsc::RecvTimeoutError::Disconnected)), "{answer:?}");
        }
        assert!(lock(&waiting).open.is_empty());
    }
}
