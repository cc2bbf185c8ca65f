//! The protocols of the papers' simulations, as machines of the same contract: what the product is compared with.
//!
//! Replicast-M and -H with the papers' rules, and the conventional store as they idealise it, UCH-CCP and UCH-AIMD:
//! hashed placement, unicast, and a rate that the target sets (CCP) or that the initiator finds by congestion (AIMD). Beside
//! them the rivals that the papers do not have: the same unicast, but to the members of a group that seem least busy.
//!
//! They stand apart from [`protocol::initiator`] and [`protocol::target`], because their rules are others from the ground
//! up: they wait for every bid, know the network's delay as a constant, cannot lose a message, keep cancelled windows in the
//! calendar to offer them again whole, and accept windows by both ends. Bending the product's machines around that would
//! have put it in the way of every reader who wants to know how data is kept safe. Nothing here is for real networks: there
//! is no loss to repair, and no copy is verified. Only the simulator drives them.
//!
//! One policy a file: `bids.rs` places the windows that are offered, `choose.rs` picks among them, `rivals.rs` picks
//! among targets without windows.

#![deny(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::iter_over_hash_type,
    clippy::float_arithmetic,
    reason = "the machines must be deterministic on every build; clippy.toml beside this crate gives each reason"
)]

mod bids;
mod choose;
mod config;
mod replicast_initiator;
mod replicast_target;
mod rivals;
mod unicast_initiator;
mod unicast_target;
mod wire;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use protocol::id::{ChunkId, ChunkKind, ClusterId, GroupId, NodeId, OpId, TxnId};
use protocol::machine::{Body, DataRun, Deadline, Destination, Effect, Input, Machine, Output, Transmit};
use protocol::map::ClusterMap;
use protocol::rng::Rng;
use protocol::time::{Instant, Span};
use protocol::wire::DataHeader;

use crate::wire::Pdu;

pub use config::{Choice, Config, Placement, Protocol, Timing};

/// Store a chunk.
#[derive(Clone, Debug)]
pub struct Request {
    /// The caller's name for it.
    pub handle: u64,
    /// Its bytes.
    pub payload: Bytes,
}

/// What an initiator tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every copy is on disk.
    Put {
        /// Of which request.
        handle: u64,
        /// From the request.
        took: Span,
        /// From the beginning of the attempt that succeeded: the latency that the papers state.
        attempt: Span,
    },
    /// The bids of an attempt had no common window: it begins anew, elsewhere.
    Aborted,
    /// A round of bids more was asked for, for copies that the rounds before did not place.
    AnotherRound,
    /// Windows began too late, and were given back.
    Cancelled,
    /// A window that was offered was another's after all.
    Rejected,
}

/// The initiator of one of the papers' protocols.
#[derive(Debug)]
pub enum Initiator {
    /// UCH-CCP, UCH-AIMD or a rival.
    Unicast(unicast_initiator::Initiator),
    /// Replicast-M or -H.
    Replicast(replicast_initiator::Initiator),
}

/// The target of one of the papers' protocols.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "all targets of a run are of one kind")]
pub enum Target {
    /// UCH-CCP, UCH-AIMD or a rival.
    Unicast(unicast_target::Target),
    /// Replicast-M or -H.
    Replicast(replicast_target::Target),
}

impl Initiator {
    /// An initiator called `id` over these targets; `seed` decides its choices.
    #[must_use]
    pub fn new(id: NodeId, members: Members, config: Config, seed: u64) -> Self {
        assert!(id.is_initiator(), "{id:?} is a target's id");
        if config.protocol.negotiates() {
            Self::Replicast(replicast_initiator::Initiator::new(id, members, config, seed))
        } else {
            Self::Unicast(unicast_initiator::Initiator::new(id, members, config, seed))
        }
    }
}

impl Target {
    /// A target called `id`; `seed` decides its draws.
    #[must_use]
    pub fn new(id: NodeId, config: Config, seed: u64) -> Self {
        if config.protocol.negotiates() {
            Self::Replicast(replicast_target::Target::new(id, config, seed))
        } else {
            Self::Unicast(unicast_target::Target::new(id, config))
        }
    }
}

impl Target {
    /// Requests that came, and how many of them while another's bid was tentative (Replicast).
    #[must_use]
    pub const fn requests(&self) -> (u64, u64) {
        match self {
            Self::Unicast(_) => (0, 0),
            Self::Replicast(machine) => machine.requests,
        }
    }
}

impl Machine for Initiator {
    type Request = Request;
    type Event = Event;

    fn handle_input(&mut self, now: Instant, input: Input<Request>) {
        match self {
            Self::Unicast(machine) => machine.handle_input(now, input),
            Self::Replicast(machine) => machine.handle_input(now, input),
        }
    }

    fn outputs(&mut self) -> &mut VecDeque<Output<Event>> {
        match self {
            Self::Unicast(machine) => machine.outputs(),
            Self::Replicast(machine) => machine.outputs(),
        }
    }

    fn next_deadline(&self) -> Option<Deadline> {
        match self {
            Self::Unicast(machine) => machine.next_deadline(),
            Self::Replicast(machine) => machine.next_deadline(),
        }
    }
}

impl Machine for Target {
    type Request = core::convert::Infallible;
    type Event = core::convert::Infallible;

    fn handle_input(&mut self, now: Instant, input: Input<Self::Request>) {
        match self {
            Self::Unicast(machine) => machine.handle_input(now, input),
            Self::Replicast(machine) => machine.handle_input(now, input),
        }
    }

    fn outputs(&mut self) -> &mut VecDeque<Output<Self::Event>> {
        match self {
            Self::Unicast(machine) => machine.outputs(),
            Self::Replicast(machine) => machine.outputs(),
        }
    }

    fn next_deadline(&self) -> Option<Deadline> {
        match self {
            Self::Unicast(machine) => machine.next_deadline(),
            Self::Replicast(_) => None,
        }
    }
}

/// The targets of a cluster as initiators see them: one copy for all of them.
#[derive(Clone, Debug)]
pub struct Members {
    /// Every target.
    targets: Arc<[NodeId]>,
    /// The negotiating groups: the first cell, and the members in the order of their bits.
    groups: Arc<[(u32, Box<[NodeId]>)]>,
}

impl Members {
    /// Those of `map`, in disjoint groups, or in groups that share all but a cell with their neighbours.
    #[must_use]
    pub fn new(map: &ClusterMap, overlap: bool) -> Self {
        let step = if overlap { 1 } else { map.group_cells() };
        let members = |group| map.members(GroupId(group)).map(|t| t.id).collect();
        Self {
            targets: map.targets().map(|t| t.id).collect(),
            groups: (0..map.groups()).step_by(step).map(|group| (group, members(group))).collect(),
        }
    }

    /// The group of a new chunk, which its hash names: as good as chance, but never the same twice in a row.
    fn next_group(&self, rng: &mut Rng, last: &mut Option<usize>) -> usize {
        let groups = self.groups.len();
        let mut group = rng.below(groups as u64) as usize;
        if Some(group) == *last {
            group = rng.below(groups as u64) as usize;
        }
        if Some(group) == *last {
            group = (group + 1) % groups;
        }
        *last = Some(group);
        group
    }
}

/// What both machines of both families have: a name, a clock, things to say.
#[derive(Debug)]
struct Context<E> {
    id: NodeId,
    config: Config,
    now: Instant,
    out: VecDeque<Output<E>>,
    memo: Timing,
}

impl<E> Context<E> {
    fn new(id: NodeId, config: Config) -> Self {
        let memo = config.timing(1);
        Self { id, config, now: Instant::ZERO, out: VecDeque::new(), memo }
    }

    fn advance(&mut self, now: Instant) {
        assert!(now >= self.now, "time went backwards, from {} to {now}", self.now);
        self.now = now;
    }

    fn send(&mut self, to: Destination, pdu: &Pdu) {
        let body = Body::Control(pdu.encode());
        self.out.push_back(Output::Transmit(Transmit { to, body }));
    }

    /// The times of a transfer of `bytes`.
    fn timing(&mut self, bytes: u32) -> Timing {
        if self.memo.bytes != bytes {
            self.memo = self.config.timing(bytes);
        }
        self.memo
    }

    /// When the message that is being handled was sent.
    fn sent(&self) -> Instant {
        self.now - (self.memo.pdu + self.config.trip)
    }

    fn transmit(&mut self, to: Destination, txn: TxnId, payload: &Bytes, from: u32, len: u32) {
        let size = payload.len() as u32;
        let header = DataHeader { cluster: ClusterId(0), from: self.id, txn, offset: from, size };
        let payload = payload.slice(from as usize..(from + len) as usize);
        let run = DataRun { header, payload, per_datagram: self.config.frame as usize };
        self.out.push_back(Output::Transmit(Transmit { to, body: Body::Data(run) }));
    }

    /// Hands a complete copy to the disk. The effect is numbered as the transaction is: a target writes each once.
    fn write(&mut self, txn: TxnId, pieces: Vec<Bytes>) {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&txn.0.to_le_bytes());
        let id = ChunkId::from_parts(ChunkKind::Payload, name);
        let effect = Effect::Write { id, pieces, verify: false, promise: 0.into(), removal: false };
        self.out.push_back(Output::Effect { op: OpId(txn.0), effect });
    }
}

/// Bits of a transaction's number that count the initiator's transactions; those above name the initiator.
const TXN_BITS: u32 = 40;

fn txn_of(initiator: NodeId, count: u64) -> TxnId {
    TxnId(u64::from(initiator.0 - NodeId::FIRST_INITIATOR) << TXN_BITS | count)
}

/// Whose transaction this is.
fn owner(txn: TxnId) -> NodeId {
    NodeId(NodeId::FIRST_INITIATOR + (txn.0 >> TXN_BITS) as u32)
}

/// A target's own account of its disk: writes one after another, each for the time that its size takes.
#[derive(Clone, Copy, Debug, Default)]
struct Disk {
    free_at: Instant,
}

impl Disk {
    fn write(&mut self, now: Instant, takes: Span) {
        self.free_at = self.free_at.max(now) + takes;
    }

    fn backlog(&self, now: Instant) -> Span {
        self.free_at.since(now)
    }

    /// Writes that wait, rounded to the nearest.
    fn waiting(&self, now: Instant, each: Span) -> u64 {
        let each = each.as_nanos().max(1);
        (self.backlog(now).as_nanos() + each / 2) / each
    }
}
