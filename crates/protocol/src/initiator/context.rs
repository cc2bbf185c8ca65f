//! What all transactions of one initiator share, and what they do through it.

mod multicast;
mod silence;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Step;
use super::aggregators::Aggregators;
use super::api::*;
use super::memory::Memory;
use super::part::Part;
pub(super) use multicast::{Multicast, Rounds};
use silence::Missed;
pub(super) use silence::Pings;

use crate::calendar::{Calendar, least};
use crate::config::Config;
use crate::estimate::{LatencyEstimate, PromiseError};
use crate::goal::Goal;
use crate::id::{ChunkId, GroupId, NodeId, OpId, TxnId};
use crate::limits;
use crate::machine::{Body, Destination, Effect, IgnoredReason, Output, Transmit};
use crate::map::ClusterMap;
use crate::redundancy::{Piece, Pieces, Redundancy, Wanted};
use crate::rng::{Rng, Unguessable};
use crate::time::{Instant, Span};
use crate::transfer::Port;
use crate::transport::Selection;
use crate::wire::{BusyWindows, DataHeader, Grant, Grants, Head, Message, encode_message};

/// What all transactions of one initiator share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) id: NodeId,
    pub(super) map: ClusterMap,
    pub(super) config: Arc<Config>,
    pub(super) rng: Rng,
    /// A node that knows one transaction must not be able to name the next.
    pub(super) txns: Unguessable,
    pub(super) now: Instant,
    /// When the message that is handled came here; now, if it is none.
    pub(super) arrived: Instant,
    pub(super) out: VecDeque<Output<Event>>,
    pub(super) next_op: u64,
    pub(super) effects: BTreeMap<OpId, TxnId>,
    /// Our own port: what it is busy with now, and when it will be, outwards and inwards. Without negotiation: the bytes of
    /// puts that it has to send yet.
    pub(super) port: Port,
    pub(super) unsent: u64,
    pub(super) uplink: Calendar,
    pub(super) downlink: Calendar,
    /// From a request to a bid.
    pub(super) bids: LatencyEstimate,
    /// From a request to the choice among bids.
    pub(super) choices: LatencyEstimate,
    /// From a request to a leader to its grant, those included that came too late.
    pub(super) grants: LatencyEstimate,
    /// From the promised beginning of a get's payload to its arrival.
    pub(super) lateness: LatencyEstimate,
    /// How wrong idle targets are about when copies will be durable.
    pub(super) promises: PromiseError,
    pub(super) multicast: Multicast,
    pub(super) memory: Memory,
    /// How long the windows of the next put may keep it waiting (if choosy).
    pub(super) max_bid_wait: Span,
    pub(super) bug: Option<Bug>,
    /// Gets of which a holder was accepted, and those of them of which another was asked, too.
    pub(super) served: u64,
    pub(super) hedged: u64,
    /// The targets that were silent when they were asked last, and how these are asked again.
    pub(super) missed: BTreeMap<NodeId, Missed>,
    pub(super) pings: Pings,
    /// What came of the pieces of coded chunks that are gathered.
    pub(super) gathered: VecDeque<(TxnId, Piece, Part)>,
    pub(super) aggregators: Aggregators,
    /// The put of a coded chunk that waits for bids, and until when at most.
    pub(super) negotiates: Option<(TxnId, Instant)>,
}

impl Context {
    /// When our port is busy for what it will send, from now on; what is free between is enough for a transfer of `length`. The first
    /// time that is free so long begins at `free`.
    pub(super) fn busy_windows(&self, length: Span, free: Instant) -> BusyWindows {
        let mut busy = BusyWindows::new();
        let first = (Span::ZERO, free.since(self.now));
        if free > self.now && first.1.to_wire().is_some() {
            busy.push(first);
        }
        for window in self.uplink.windows().filter(|w| w.end > self.now) {
            let (start, end) = (window.start.since(self.now), window.end.since(self.now));
            if end.to_wire().is_none() {
                break;
            }
            let full = busy.len() == limits::RANGES;
            match busy.last_mut() {
                Some(last) if start < last.1 + least(length) => last.1 = end.max(last.1),
                _ if full => break,
                _ => busy.push((start, end)),
            }
        }
        busy
    }

    pub(super) fn head(&self) -> Head {
        Head { cluster: self.map.cluster, epoch: self.map.epoch, from: self.id }
    }

    pub(super) fn send(&mut self, to: Destination, message: &Message) {
        let body = Body::Control(encode_message(self.head(), message));
        self.out.push_back(Output::Transmit(Transmit { to, body }));
    }

    /// To `members` of a group by multicast if that `may` be (when they are many, to all of the group: only sets of a few
    /// have an address of their own), or to each of them. Whether it was by multicast.
    pub(super) fn send_group(&mut self, group: GroupId, members: &[NodeId], message: &Message, may: bool) -> bool {
        let by_multicast = may && self.multicast() && !self.config.transport.is_ranked() && members.len() > 1;
        if by_multicast {
            let few = members.len() <= self.map.most_addressed();
            let own = if few { self.map.set_of(group, |n| members.contains(&n)) } else { None };
            let set = own.unwrap_or_else(|| self.map.group_set(group));
            self.send(Destination::Members(set), message);
        } else {
            for member in members {
                self.send(Destination::Node(*member), message);
            }
        }
        by_multicast
    }

    pub(super) fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }

    /// A datagram is of no use to the transaction that it is for.
    pub(super) fn ignore(&mut self, why: IgnoredReason) -> Step {
        self.event(Event::Ignored(why));
        Step::Continue
    }

    pub(super) fn start(&mut self, txn: TxnId, effect: Effect) {
        self.next_op += 1;
        let op = OpId(self.next_op);
        self.effects.insert(op, txn);
        self.out.push_back(Output::Effect { op, effect });
    }

    pub(super) fn data_header(&self, txn: TxnId, size: usize) -> DataHeader {
        DataHeader { cluster: self.map.cluster, from: self.id, txn, offset: 0, size: size as u32 }
    }

    /// How long to wait for bids before going on without the silent ones.
    pub(super) fn patience(&self) -> Span {
        self.patient(&self.bids)
    }

    /// How long to wait for the next of what comes at `rate`, after having asked in vain `asked` times, the last time for so many `bytes`.
    pub(super) fn payload_patience(&self, asked: u8, rate: u64, bytes: u32) -> Span {
        let queued = self.config.queued(rate, bytes).min(self.config.give_up.div(8));
        self.lateness.patience(asked, self.config.late) + queued
    }

    /// Until when to wait for a leader. It does more than its members, so it is slower.
    pub(super) fn leader_until(&self) -> Instant {
        self.now + self.patient(&self.grants)
    }

    pub(super) fn patient(&self, answers: &LatencyEstimate) -> Span {
        let shortest = Span::from_micros(200).min(self.config.bid_timeout);
        answers.late().unwrap_or(self.config.bid_timeout).clamp(shortest, self.config.bid_timeout)
    }

    /// How far ahead windows should begin: the choice is usually made by then, and the payload can leave.
    pub(super) fn lead(&self) -> Span {
        self.choices.usual().max(self.bids.smallest()).min(self.config.late)
    }

    /// How much later than its window a transfer may still begin. The choice is sometimes late, by as much as bids
    /// differ from each other. A receive buffer is kept for the payload all the same, and a transfer that runs into the
    /// next one costs less than another negotiation. This node may be behind, too.
    pub(super) fn slack(&self) -> Span {
        let behind = self.now.since(self.arrived);
        (self.bids.deviation().times(4) + behind).min(self.config.late.div(4))
    }

    /// By how much a grant is usually later than others.
    pub(super) fn grant_lateness(&self) -> Span {
        self.grants.deviation().min(self.config.late)
    }

    /// A bid has arrived for what was asked at `since`.
    pub(super) fn bid_arrived(&mut self, since: Instant) {
        self.bids.sample_handled(self.arrived.since(since), self.now.since(since));
    }

    /// A copy is durable whose transfer was to begin at `start`, and for which an idle target said that it `takes` so long. The way
    /// here is not its fault.
    pub(super) fn copy_durable(&mut self, bytes: u32, start: Instant, takes: Span) {
        self.promises.sample(bytes, takes, self.arrived.since(start).less(self.bids.smallest()));
    }

    /// A grant, or a leader's refusal, has arrived for what was asked at `since`.
    pub(super) fn grant_arrived(&mut self, since: Instant) {
        self.grants.sample_handled(self.arrived.since(since), self.now.since(since));
    }

    /// When a window begins, on this node's clock. The bid, an `answer` of this kind, travelled for half a round trip,
    /// and so will the payload: the smallest round trip seen is subtracted. Bids that wait here for one another offer
    /// the same window all the same.
    pub(super) fn window_start(&self, start: Span, answer: &LatencyEstimate) -> Instant {
        self.arrived + start.less(answer.smallest())
    }

    /// Whether a leader that was asked at `since` is given up: it did not answer until `until`, as is known when woken.
    pub(super) fn gives_leader_up(&mut self, leader: NodeId, since: Instant, until: Instant, woken: bool) -> bool {
        let late = woken && self.now >= until;
        if late {
            self.miss(leader, since);
        }
        late
    }

    /// What a leader granted comes too late to be used: the targets that keep a window for it are free again at once.
    pub(super) fn give_back(&mut self, leader: NodeId, grant: &Grant) {
        let members = grant.windows.iter().map(|window| window.target).filter(|member| *member != leader);
        self.release(grant.txn, grant.round, members.chain([leader]));
    }

    /// Tells some that what they keep for a round is not used.
    pub(super) fn release(&mut self, txn: TxnId, round: u8, holders: impl IntoIterator<Item = NodeId>) {
        let nobody = Message::Accept { txn, round, granted: Grants::new() };
        holders.into_iter().for_each(|node| self.send(Destination::Node(node), &nobody));
    }

    /// How long to rest when targets are busy: until the first of them expects to have a window, within reason.
    pub(super) fn rest(&self, busy: Option<Span>) -> Span {
        busy.unwrap_or(Span::ZERO).min(self.config.max_wait).max(self.config.late)
    }

    /// The leader of these members: the lowest of them that is not silent. Leaders tell members by multicast what they
    /// grant, so none is asked where that does not reach them.
    pub(super) fn leader(&self, members: &[NodeId]) -> Option<NodeId> {
        let may = self.config.transport.selection == Selection::Leader && self.next_multicast_check().is_none();
        members.iter().copied().filter(|n| may && !self.is_suspect(*n)).min()
    }

    /// The failure domain of a target.
    pub(super) fn domain(&self, target: NodeId) -> Option<u16> {
        match self.bug {
            Some(Bug::IgnoreDomains) => Some(target.0 as u16),
            _ => self.map.domain(target),
        }
    }

    /// What is to be reached, as the map is now.
    pub(super) fn redundancy(&self, id: &ChunkId, wanted: Wanted) -> Redundancy {
        let wanted = if self.bug == Some(Bug::IgnoreRedundancy) { Wanted::BY_MAP } else { wanted };
        id.redundancy(wanted, self.map.redundancy())
    }

    /// In how many distinct failure domains these targets are.
    pub(super) fn domains(&self, targets: &[NodeId]) -> usize {
        match self.bug {
            Some(Bug::IgnoreDomains) => targets.len(),
            _ => self.map.count_domains(targets),
        }
    }

    /// A target has these pieces durably: as which it counts.
    pub(super) fn hold(&self, goal: &mut Goal, target: NodeId, pieces: Pieces) -> Option<Piece> {
        goal.hold(pieces, self.domain(target)?)
    }

    /// What of a goal these targets reach, which have these pieces durably: a domain may have several.
    pub(super) fn reached<'h>(&self, goal: Goal, held: impl IntoIterator<Item = &'h (NodeId, Piece)>) -> Goal {
        let redundancy = goal.redundancy();
        goal.with(
            held.into_iter().filter_map(|(target, piece)| Some((redundancy.counting(*piece), self.domain(*target)?))),
        )
    }

    /// Whether a goal would be met if these had pieces that are missing as well.
    pub(super) fn would_meet(&self, mut goal: Goal, targets: impl IntoIterator<Item = NodeId>) -> bool {
        goal.is_met()
            || targets.into_iter().any(|target| {
                let any = goal.redundancy().all();
                self.hold(&mut goal, target, any);
                goal.is_met()
            })
    }
}
