//! Levelling: copies of a group move from its full members to its empty ones, while nothing in it is at risk.
//!
//! A holder of a copy puts the chunk on the emptier member, as any initiator does. Then there is one copy too many, and
//! the fuller member's copy goes like any other surplus copy ([`surplus`](super::surplus)). So a move needs no state
//! but what is on the disks: what is forgotten is found again, or was in vain.

mod plan;

use std::collections::{BTreeMap, BTreeSet};

use super::copies::{Copies, Copy};
use super::{ASKED, Bug, Context, REMEMBERED};
use crate::census::IdRange;
use crate::id::{ChunkId, NodeId, TxnId};
use crate::time::{Instant, Span};
use crate::wire::{Ack, Fill, Message};
use plan::Plan;
pub(super) use plan::class_of;

/// Chunks that are moved at once.
pub(super) const AT_ONCE: usize = 4;
/// Chunks that are chosen before members are asked anew how full they are.
const BATCH: usize = 64;
/// Doublings of the interval after which it is tried again where nothing was found that could move.
const RESTS: u32 = 8;

/// A chunk of which a copy is to move.
#[derive(Clone, Copy, Debug)]
struct Moving {
    copy: Copy,
    to: NodeId,
}

#[derive(Debug)]
struct Order {
    id: ChunkId,
    moving: Moving,
    asked: u8,
    again: Instant,
}

/// What the steward of a group does for that.
#[derive(Debug, Default)]
pub(super) struct Levelling {
    /// The question of this sweep how full members are, and when it was asked.
    question: Option<TxnId>,
    began: Instant,
    /// The answers to it, and those to the last one that all answered.
    fills: BTreeMap<NodeId, Fill>,
    last: BTreeMap<NodeId, Fill>,
    /// Whether nothing else is to be done in the group.
    may: bool,
    /// What may move in this sweep, once that is known; inside, nothing if it is not to be.
    plan: Option<Option<Plan>>,
    /// Members that are far from the others, until they are near.
    outliers: BTreeSet<NodeId>,
    /// Ids whose first bits are below this were looked at, and whether something was chosen among them.
    seen: u64,
    chosen: bool,
    rest_until: Instant,
    rests: u32,
    planned: BTreeMap<ChunkId, Moving>,
    orders: BTreeMap<TxnId, Order>,
    /// Whose copies are to go of what was put elsewhere, and since when.
    moved: BTreeMap<ChunkId, (NodeId, Instant)>,
    /// Members that had no room, and until when they are left alone.
    full: BTreeMap<NodeId, Instant>,
}

impl Levelling {
    /// A sweep begins: members say how full they are. `may` says whether nothing else is to be done in the group.
    pub(super) fn begin(&mut self, context: &mut Context<'_>, members: &[NodeId], txn: TxnId, may: bool) {
        if self.fills.len() == members.len() {
            self.last = core::mem::take(&mut self.fills);
        }
        self.fills.clear();
        // Of what the first sweep will find nothing is known.
        let may = may && self.question.is_some();
        (self.question, self.began, self.plan, self.may) = (Some(txn), context.now, None, may);
        let longest = context.config.moved_for();
        self.moved.retain(|_, (_, at)| context.now.since(*at) < longest);
        self.full.retain(|_, until| *until > context.now);
        context.out.extend(members.iter().map(|member| (*member, Message::Fill { txn })));
    }

    /// A member says how full it is. Whether it was asked.
    pub(super) fn filled(&mut self, from: NodeId, txn: TxnId, fill: Fill) -> bool {
        let is_asked = self.question == Some(txn);
        if is_asked {
            self.fills.insert(from, fill);
        }
        is_asked
    }

    /// What may move in this sweep: asked first when all that is held of the range of all ids is known. A member that
    /// has not said by then how full it is does so in the next sweep.
    fn prepare(&mut self, context: &Context<'_>, members: &[NodeId]) {
        if self.plan.is_some() {
            return;
        }
        let is_idle = self.planned.is_empty() && self.orders.is_empty() && self.moved.len() < REMEMBERED;
        let known = self.fills.len() == members.len();
        if !self.may || !is_idle || !known || context.now < self.rest_until {
            self.plan = Some(None);
            return;
        }
        let full: Vec<NodeId> = self.full.keys().copied().collect();
        let plan = Plan::new(context, members, &self.fills, &full, &mut self.outliers);
        self.plan = Some(plan.is_open().then_some(plan));
    }

    /// Whether it looks for chunks that may move.
    fn is_looking(&self) -> bool {
        self.planned.len() < BATCH && self.plan.iter().flatten().any(Plan::is_open)
    }

    /// Whether the chunks in this range are to be looked at.
    pub(super) fn wants(&mut self, context: &Context<'_>, members: &[NodeId], range: IdRange) -> bool {
        self.prepare(context, members);
        range.end() > self.seen && self.is_looking()
    }

    /// A chunk has its copies, and no others: whether one is to move.
    pub(super) fn consider(&mut self, context: &Context<'_>, copies: &Copies<'_>) {
        self.prepare(context, copies.members);
        if let Some((_, at)) = self.moved.get(&copies.id) {
            // Otherwise a holder may have been asked before the copy was moved.
            if *at >= self.began {
                return;
            }
            self.moved.remove(&copies.id);
        }
        if !self.is_looking() || self.is_moving(&copies.id) {
            return;
        }
        let Some(plan) = self.plan.as_mut().and_then(Option::as_mut) else { return };
        if let Some((copy, to)) = plan.choose(copies, context.bug) {
            self.planned.insert(copies.id, Moving { copy, to });
            self.chosen = true;
        }
    }

    fn is_moving(&self, id: &ChunkId) -> bool {
        self.planned.contains_key(id) || self.orders.values().any(|order| order.id == *id)
    }

    /// All chunks of a range were looked at that is not divided.
    pub(super) fn seen(&mut self, range: IdRange) {
        if self.plan.iter().flatten().next().is_some() {
            self.seen = self.seen.max(range.end());
        }
    }

    /// The sweep is over. Whether the next is to follow soon.
    pub(super) fn finish(&mut self, context: &Context<'_>) -> bool {
        if self.is_looking() {
            // All ids behind those that were seen before were looked at.
            self.seen = 0;
            if !core::mem::take(&mut self.chosen) {
                self.rests = (self.rests + 1).min(RESTS);
                self.rest_until = context.now + context.config.census_interval.times(1 << self.rests);
                return false;
            }
        }
        if self.chosen {
            self.rests = 0;
        }
        self.is_busy()
    }

    /// Whether copies are to move, or it looks for some.
    pub(super) fn is_busy(&self) -> bool {
        !self.planned.is_empty() || !self.orders.is_empty() || self.plan.iter().flatten().next().is_some()
    }

    /// Has chunks put, while nothing has too few copies.
    pub(super) fn order(&mut self, context: &mut Context<'_>, may: bool, mut new_txn: impl FnMut() -> TxnId) {
        let now = context.now;
        for (txn, order) in self.orders.iter_mut().filter(|(_, order)| order.again <= now) {
            if order.asked < ASKED {
                order.ask(context, *txn);
            } else {
                order.asked += 1;
            }
        }
        self.orders.retain(|_, order| order.asked <= ASKED);
        while may && self.orders.len() < AT_ONCE {
            let Some((id, moving)) = self.planned.pop_first() else { return };
            let (txn, mut order) = (new_txn(), Order { id, moving, asked: 0, again: context.now });
            order.ask(context, txn);
            self.orders.insert(txn, order);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.orders.values().map(|order| order.again).min()
    }

    /// What a holder says of a chunk that it was to put. Whether this is an answer to that.
    pub(super) fn acked(&mut self, context: &Context<'_>, from: NodeId, txn: TxnId, ack: Ack) -> bool {
        let Some(order) = self.orders.get_mut(&txn).filter(|order| order.moving.copy.holder == from) else {
            return false;
        };
        if ack == Ack::Pending {
            order.asked = 0;
            order.again = context.now + context.config.late.times(8);
            return true;
        }
        let (id, moving) = (order.id, order.moving);
        self.orders.remove(&txn);
        match ack {
            Ack::Durable => drop(self.moved.insert(id, (moving.copy.holder, context.now))),
            Ack::NoSpace => drop(self.full.insert(moving.to, context.now + again(context.config.census_interval))),
            _ => {}
        }
        true
    }

    /// In which order the copies of a chunk go, if there are too many: the larger the sooner. Those that were put elsewhere first, then
    /// those of fuller members.
    pub(super) fn goes(&self, id: &ChunkId, holder: NodeId) -> u64 {
        match self.moved.get(id) {
            Some((from, _)) if *from == holder => u64::MAX,
            _ => class_of(&self.last, holder),
        }
    }
}

/// When a member is asked again that had no room.
fn again(interval: Span) -> Span {
    interval.times(4)
}

impl Order {
    fn ask(&mut self, context: &mut Context<'_>, txn: TxnId) {
        self.asked += 1;
        self.again = context.now + context.config.bid_timeout;
        let Moving { copy: Copy { holder, piece, kept_for: wanted }, to } = self.moving;
        context.out.push((holder, Message::Move { txn, id: self.id.of_piece(piece), wanted, to }));
    }
}
