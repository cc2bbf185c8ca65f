//! A put by way of an aggregator (`docs/aggregator.md`): this node sends the pieces of data once, or one copy, and the
//! aggregator sends what it makes of them. The aggregator bids with the group, and is not waited for longer than the
//! group. Targets ask for what does not arrive by way of it, and get that directly, as anything that is lost. So
//! nothing here is about safety.

use erasure::Code;

use super::{Context, NodeId, Outgoing, Phase, Put, Why};
use crate::choose::{self, Choice};
use crate::initiator::Step;
use crate::limits;
use crate::machine::{Destination, IgnoredReason};
use crate::redundancy::Piece;
use crate::time::{Instant, Span};
use crate::wire::{
    AggregateOrder, AggregateRequest, Aggregating, Answer, Bid, ByteRange, DataHeader, Message, OfferedWindow, Receiver,
};

/// So many receivers that got nothing of what was sent to an aggregator say that it does not pass anything on.
const EMPTY_HANDED: usize = 2;

/// The aggregator of a round.
#[derive(Debug)]
pub(super) struct Aggregation {
    id: NodeId,
    /// How long after the question the payload comes at the earliest.
    earliest: Span,
    bid: AggregatorBid,
    /// Targets that got nothing by way of it.
    empty_handed: Vec<NodeId>,
}

/// What an aggregator answered. A window is what it offered, and when that begins on this node's clock.
#[derive(Clone, Copy, Debug)]
enum AggregatorBid {
    Awaited,
    Refused,
    Offered(OfferedWindow, Instant),
    /// It is to pass on what is sent in this round.
    Accepted(OfferedWindow, Instant),
}

impl AggregatorBid {
    const fn window(self) -> Option<(OfferedWindow, Instant)> {
        match self {
            Self::Awaited | Self::Refused => None,
            Self::Offered(window, begins) | Self::Accepted(window, begins) => Some((window, begins)),
        }
    }
}

impl Aggregation {
    const fn is_awaited(&self) -> bool {
        matches!(self.bid, AggregatorBid::Awaited)
    }

    const fn is_accepted(&self) -> bool {
        matches!(self.bid, AggregatorBid::Accepted(..))
    }
}

impl Put {
    /// The aggregator that is asked beside the group, if there is one and all is to be sent.
    pub(super) fn aggregator_for(&self, context: &Context) -> Option<NodeId> {
        let transport = context.config.transport;
        let is_copies = self.job.payload.is_common();
        let fits =
            self.comes() <= limits::CHUNK_BYTES.into() && self.need() == self.progress.goal.redundancy().pieces();
        // Copies go by multicast where there is any.
        let gains = !is_copies || transport.is_common() && !self.by_multicast(context);
        if !fits || !gains || !transport.reserved || transport.is_ranked() || self.job.why != Why::Store {
            return None;
        }
        context.aggregators.choose(&context.map, context.id, context.now)
    }

    /// Asks it for the time that the group is asked for.
    pub(super) fn ask_aggregator(&mut self, context: &mut Context, id: NodeId, earliest: Span) {
        let (code, size) = (self.code(), self.size());
        let rate = context.config.link_rate;
        let request = AggregateRequest { txn: self.txn, round: self.round.number, code, size, rate, earliest };
        context.send(Destination::Node(id), &Message::Aggregating(Aggregating::Request(request)));
        self.aggregator = Some(Aggregation { id, earliest, bid: AggregatorBid::Awaited, empty_handed: Vec::new() });
    }

    /// The code that the chunk is kept by, if it is.
    fn code(&self) -> Option<Code> {
        self.progress.goal.redundancy().of_code()
    }

    /// Bytes that are sent to an aggregator.
    pub(super) fn comes(&self) -> u64 {
        let data = self.code().map_or(1, Code::data);
        u64::from(self.size()) * data as u64
    }

    /// Whether this is the aggregator that was asked in this round.
    pub(super) fn is_aggregator(&self, node: NodeId) -> bool {
        self.aggregator.as_ref().is_some_and(|aggregation| aggregation.id == node)
    }

    /// Whether its bid is waited for.
    pub(super) fn awaits_aggregator(&self) -> bool {
        self.aggregator.as_ref().is_some_and(Aggregation::is_awaited)
    }

    /// Until when its bid may be waited for, of a round that began then: so that the choice is made when the port is free, and before
    /// offers are over.
    pub(super) fn free_soon(&self, context: &Context, since: Instant) -> Instant {
        (self.earliest - context.lead()).min(since + context.config.tentative.div(2).min(context.config.bid_timeout))
    }

    /// It bids.
    pub(super) fn aggregator_bid(&mut self, context: &mut Context, bid: Bid) -> Step {
        let Some(aggregation) = self.aggregator.as_mut().filter(|_| bid.round == self.round.number) else {
            return context.ignore(IgnoredReason::Late);
        };
        if aggregation.is_awaited() {
            aggregation.bid = AggregatorBid::Refused;
        }
        if !matches!(self.phase, Phase::Asking { .. }) {
            return context.ignore(IgnoredReason::Late);
        }
        if let Answer::Window(offered) = bid.answer {
            let begins = context.window_start(offered.start, &context.bids);
            aggregation.bid = AggregatorBid::Offered(offered, begins);
        }
        self.choose(context, false)
    }

    /// The choice is made: an aggregator that has not answered by now was late, or is silent.
    pub(super) fn miss_aggregator(&mut self, context: &mut Context) {
        if let Some(aggregation) = self.aggregator.as_ref().filter(|aggregation| aggregation.is_awaited()) {
            context.aggregators.miss(aggregation.id, context.now);
        }
    }

    /// The choice with which the aggregator sends what this node need not: first those to whom the pieces of data go, then the others,
    /// whose windows begin no sooner than that of the last of these. `None` when the aggregator is too slow, or not asked, or the
    /// offers are too few for that.
    pub(super) fn pick_aggregated(&mut self, context: &Context) -> Option<Vec<Choice>> {
        let need = self.need();
        let code = self.code();
        let aggregation = self.aggregator.as_mut()?;
        let (offered, begins) = aggregation.bid.window()?;
        // What it has room for when it is asked for, it has room for whenever it bids: its offer is no window that both know.
        let start = self.earliest + offered.start.less(aggregation.earliest);
        let (goal, from) = (&self.progress.goal, start.max(context.now));
        let fastest = self.offers.values().map(|offer| offer.rate).max().unwrap_or(1).max(1);
        // So many pieces at once leave it.
        let lanes = ((offered.rate + fastest / 2) / fastest) as usize;
        let bids = choose::Bids::new(&self.offers, self.doubt);
        let choices = match code {
            Some(code) => {
                let how = (code.data(), lanes, context.config.per_datagram);
                choose::with_parity(bids, goal, how, from, &context.uplink)?
            }
            None => choose::windows(limits::PIECES, bids, goal, from, &context.uplink),
        };
        // Of copies all are to have one window.
        let chosen = choices.iter().map(|choice| choice.targets.len()).sum::<usize>();
        let is_common = choices.len() == 1 && lanes >= need;
        let serves = lanes > 0 && chosen == need && (code.is_some() || is_common);
        let bid = if serves { AggregatorBid::Accepted } else { AggregatorBid::Offered };
        aggregation.bid = bid(offered, begins);
        serves.then_some(choices)
    }

    pub(super) fn accepted_aggregator(&self) -> Option<&Aggregation> {
        self.aggregator.as_ref().filter(|aggregation| aggregation.is_accepted())
    }

    /// How many of the choices this node sends itself: those after them the aggregator makes.
    pub(super) fn sends_itself(&self, choices: usize) -> usize {
        let is_accepted = self.accepted_aggregator().is_some();
        let data = self.code().map_or(choices, Code::data);
        if is_accepted { data.min(choices) } else { choices }
    }

    /// Where what is sent of a piece goes: to the aggregator as a part of all that it passes on, or `None`.
    pub(super) fn by_aggregator(&self, header: DataHeader, piece: Piece) -> Option<(Destination, DataHeader)> {
        let aggregation = self.accepted_aggregator()?;
        let nth = if self.job.payload.is_common() { 0 } else { u32::from(piece.0) };
        let header = DataHeader { offset: nth * self.size(), size: self.comes() as u32, ..header };
        Some((Destination::Node(aggregation.id), header))
    }

    /// Tells the aggregator who gets what.
    pub(super) fn order(&self, context: &mut Context, choices: &[Choice]) {
        let Some(Aggregation { id, bid: AggregatorBid::Accepted(offered, start), .. }) = &self.aggregator else {
            return;
        };
        let is_common = self.job.payload.is_common();
        let pieces = self.progress.goal.missing().iter();
        let receiver = |(piece, choice): (Piece, &Choice)| {
            let (piece, start) = (if is_common { Piece(0) } else { piece }, offered.start + choice.start.since(*start));
            choice.targets.iter().map(move |target| Receiver { piece, target: *target, start }).collect::<Vec<_>>()
        };
        let receivers = pieces.zip(choices).flat_map(receiver).collect();
        let rate = choices.iter().map(|choice| choice.rate).min().unwrap_or(1);
        let (code, size) = (self.code(), self.size());
        let order = AggregateOrder { txn: self.txn, round: self.round.number, code, size, rate, receivers };
        context.send(Destination::Node(*id), &Message::Aggregating(Aggregating::Order(order)));
    }

    /// Whether what a target asks for may be on its way to it by way of the aggregator.
    pub(super) fn may_come(&self, outgoing: &[Outgoing]) -> bool {
        let by = self.accepted_aggregator().map(|aggregation| Destination::Node(aggregation.id));
        outgoing.iter().any(|sending| Some(sending.to()) == by)
    }

    /// A target asks for what it lacks: if that is all, and others lack all as well, the aggregator passes nothing on.
    pub(super) fn lacks(&mut self, context: &mut Context, from: NodeId, ranges: &[ByteRange]) {
        let all = self.size();
        let Some(aggregation) = self.aggregator.as_mut().filter(|aggregation| aggregation.is_accepted()) else {
            return;
        };
        if ranges.iter().any(|range| range.len == all) && !aggregation.empty_handed.contains(&from) {
            aggregation.empty_handed.push(from);
            if aggregation.empty_handed.len() == EMPTY_HANDED {
                context.aggregators.fail(aggregation.id, context.now);
            }
        }
    }

    /// Something that was sent by way of the aggregator is durable.
    pub(super) fn arrived(&self, context: &mut Context) {
        if let Some(aggregation) = self.accepted_aggregator().filter(|aggregation| aggregation.empty_handed.is_empty())
        {
            context.aggregators.succeed(aggregation.id);
        }
    }
}
