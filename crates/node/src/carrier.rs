//! What carries messages and payload between nodes, as the event loop sees it.
//!
//! - **Polling.** The loop owns the poller and sleeps in it. The carrier owns its sockets, however many there are and
//!   whenever they come and go: before each sleep it registers with the poller what it waits for ([`Carrier::prepare`]), under
//!   tokens of its own choice, and hears of each token that is ready.
//! - **Back-pressure.** [`Carrier::send`] never blocks and never fails. What a socket does not take at once waits in a
//!   bounded queue; what that has no room for is dropped and counted, as on a full wire. Machines limit by themselves how
//!   much is under way, and ask again for what is missing. What arrives waits in the kernel until it has its turn.
//! - **A dead peer** is one of which nothing comes. The carrier reports nothing of it to the machine, and drops and counts what
//!   it cannot deliver. Why a peer is silent, as far as it knows, it notes for people ([`crate::reachability`]).

use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use protocol::machine::{Body, Transmit};
use protocol::time::Instant;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::NodeError;
use crate::config::ClusterConfig;
use crate::metrics::CarrierMetrics;
use crate::reachability::Reachability;

/// Tokens from here on are the loop's own.
pub(crate) const RESERVED: u64 = 1 << 32;

/// What carries a node's messages and payload: UDP with multicast is [`Udp`](crate::udp::Udp), and there is
/// [`Tcp`](crate::tcp::Tcp).
pub trait Carrier {
    /// The loop is about to sleep: `poller` hears of every socket that it does not know, and of those that wait for
    /// something else than before. Costs nothing when nothing has changed.
    ///
    /// # Errors
    /// The kernel refuses.
    fn prepare(&mut self, poller: &Poller) -> std::io::Result<()>;

    /// A socket is ready: takes note of its errors, and goes on with what waits to be sent. One that was closed since is
    /// ignored.
    fn ready(&mut self, token: u32, readiness: Readiness);

    /// Takes what has arrived at a socket, a bounded part of it, for [`Carrier::arrived`]. Whether there may be more.
    fn receive(&mut self, token: u32) -> bool;

    /// The next message or piece of payload that has arrived, whole and authentic, as it is encoded in a datagram; what
    /// is not is counted and dropped here. With it comes the moment at which it arrived. Over UDP that is when the
    /// kernel received it, before anybody had time for it; over TCP it is just before it was read. `None` when all were
    /// handed over.
    fn arrived(&mut self) -> Option<(Bytes, Instant)>;

    /// Sends, or keeps for when a socket takes more.
    fn send(&mut self, transmit: &Transmit);

    /// Goes on with a newer cluster map: its addresses, and this node's own if that is another one.
    ///
    /// # Errors
    /// A socket cannot be had: the old ones stay, and what they reach.
    fn reload(&mut self, config: &ClusterConfig) -> Result<(), NodeError>;

    /// What it counts.
    fn metrics(&self) -> &CarrierMetrics;

    /// What it knows of each target.
    fn reachability(&self) -> &Reachability;
}

/// How many datagrams something is sent as.
pub(crate) fn count(body: &Body) -> u64 {
    match body {
        Body::Control(_) => 1,
        Body::Data(run) => run.payload.len().div_ceil(run.per_datagram.max(1)) as u64,
    }
}

/// For what a socket is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// It takes more to send.
    pub writable: bool,
    /// It has errors to report of what was sent.
    pub failed: bool,
}

/// Waits for descriptors.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// From now on `token` is ready when there is something to receive, or an error, and if wanted when there is room to
    /// send. A descriptor that is closed leaves by itself.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn watch(&self, descriptor: impl AsFd, token: u32, writable: bool) -> std::io::Result<()> {
        self.watch_for(descriptor, u64::from(token), writable)
    }

    /// The same, for room to send alone: somebody else receives. Errors are reported as well.
    pub(crate) fn watch_room(&self, descriptor: impl AsFd, token: u32) -> std::io::Result<()> {
        self.set(descriptor, token.into(), EventFlags::OUT)
    }

    pub(crate) fn watch_for(&self, descriptor: impl AsFd, token: u64, writable: bool) -> std::io::Result<()> {
        self.set(descriptor, token, if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN })
    }

    fn set(&self, descriptor: impl AsFd, token: u64, flags: EventFlags) -> std::io::Result<()> {
        let (descriptor, data) = (descriptor.as_fd(), EventData::new_u64(token));
        // Most often it is known, and waits for something else than before.
        match epoll::modify(&self.0, descriptor, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.0, descriptor, data, flags)?),
            modified => Ok(modified?),
        }
    }

    /// A descriptor that stays open is watched no more.
    pub(crate) fn forget(&self, descriptor: impl AsFd) {
        // One that is not known need not be forgotten.
        let _ = epoll::delete(&self.0, descriptor);
    }

    /// Sleeps until something is ready, and fills `events` with it, up to their capacity.
    pub(crate) fn wait(&self, events: &mut Vec<Event>) -> std::io::Result<()> {
        events.clear();
        match epoll::wait(&self.0, spare_capacity(events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<EventFlags> for Readiness {
    fn from(flags: EventFlags) -> Self {
        Self { writable: flags.contains(EventFlags::OUT), failed: flags.contains(EventFlags::ERR) }
    }
}
