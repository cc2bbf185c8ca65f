//! The question of a coded get to its group: which targets have any piece, and when could they send it? It is one
//! question for all pieces, as each target has another, and only the holders know which.

use super::super::context::Rounds;
use super::super::get::{Job, Offer, SOON, fit};
use super::super::round::Round;
use super::super::{Answer, Bid, Context, Instant, NodeId, Span, TxnId, members};
use crate::config::GetChoice;
use crate::redundancy::{Piece, Pieces};
use crate::wire::{Granted, Grants, Message};

/// One round in which no target was chosen yet.
#[derive(Debug)]
pub(super) struct Question {
    txn: TxnId,
    round: Round,
    reachability: Rounds,
    offers: Vec<(Piece, Offer)>,
    since: Instant,
    soft: Instant,
    hard: Instant,
    /// Whether no other target is waited for when what was offered is enough.
    has_waited: bool,
    /// Those that there are.
    pieces: Pieces,
    /// Not where a target may be asked that is not of the group.
    may_multicast: bool,
    /// Whether only targets were asked that are remembered as holders.
    pub(super) is_narrow: bool,
}

/// What is wanted of it.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    /// Pieces that need not be offered.
    pub(super) here: Pieces,
    /// Pieces that need no decoding.
    pub(super) first: Pieces,
    /// Pieces of which `need` are taken: those, or any.
    pub(super) useful: Pieces,
    pub(super) need: usize,
    /// How many of any are taken where those are not offered.
    pub(super) to_decode: usize,
}

/// A piece that is on its way, whose offer was accepted.
pub(super) struct Chosen {
    pub(super) piece: Piece,
    pub(super) round: u8,
    pub(super) offer: Offer,
    pub(super) start: Instant,
}

impl Question {
    /// Asks for pieces of a chunk: the targets that are remembered to have some, if these are enough and `may_remember`
    /// allows it, or all. `None` where there is no target.
    pub(super) fn ask(
        context: &mut Context,
        txn: TxnId,
        job: &Job,
        before: Option<&Self>,
        may_remember: Option<usize>,
    ) -> Option<Self> {
        let (group, mut asked) = members(&context.map, &job.id);
        asked.extend(job.holders.iter().filter(|n| context.map.target(**n).is_some()));
        asked.retain(|n| *n != context.id);
        asked.sort_unstable();
        asked.dedup();
        let remembered = if context.config.remember { context.memory.holders(&job.id) } else { &[] };
        let holds = |n: &&NodeId| remembered.contains(n) && !context.is_suspect(**n);
        let is_narrow = may_remember.is_some_and(|enough| asked.iter().filter(holds).count() >= enough);
        if is_narrow {
            asked = asked.iter().filter(holds).copied().collect();
        }
        if asked.is_empty() {
            return None;
        }
        let mut round = Round::new();
        round.number = before.map_or(0, |before| before.round.number);
        round.begin(group);
        round.asked_of = asked;
        // Behind everything that is coming they fit in any case.
        let earliest = context.downlink.hole(context.now, context.config.give_up).0.since(context.now);
        let unreserved = !context.config.transport.reserved;
        let request = Message::GetRequest { txn, round: round.number, id: job.id, unreserved, earliest };
        let may_multicast = job.holders.is_empty();
        let by_multicast = context.send_group(group, &round.asked_of, &request, may_multicast);
        let mut reachability = Rounds::default();
        reachability.ask(context.now, by_multicast.then_some(&round.asked_of));
        let pieces = Pieces::first(job.id.code()?.fragments());
        let (now, offers) = (context.now, Vec::new());
        let (soft, hard) = (now + context.patience(), now + context.config.bid_timeout);
        Some(Self {
            txn,
            round,
            reachability,
            offers,
            since: now,
            soft,
            hard,
            has_waited: false,
            pieces,
            may_multicast,
            is_narrow,
        })
    }

    pub(super) const fn next_deadline(&self) -> Instant {
        if self.has_waited { self.hard } else { self.soft }
    }

    /// Which targets offered what, with the pieces.
    pub(super) fn offered(&self) -> impl Iterator<Item = (Piece, NodeId)> {
        self.offers.iter().map(|(piece, offer)| (*piece, offer.0))
    }

    /// Whether a target said already what it offers, or does not.
    pub(super) fn has_answered(&self, from: NodeId) -> bool {
        self.round.answered.contains(&from)
    }

    /// An answer; whether it is one to this round.
    pub(super) fn bid(&mut self, context: &mut Context, from: NodeId, bid: &Bid) -> bool {
        if bid.round != self.round.number || !self.round.awaits(from) {
            return false;
        }
        self.round.answered.push(from);
        self.reachability.answered(context, from);
        context.bid_arrived(self.since);
        match (bid.answer, bid.txn.piece()) {
            (Answer::Window(offered), Some(piece)) if self.pieces.contains(piece) => {
                self.offers.push((piece, (from, offered, context.arrived)));
            }
            // A target that is busy, or has none, may be asked for a piece by itself.
            _ => {}
        }
        true
    }

    /// The pieces that are taken, when it is time: as many as are needed, or fewer when more were not offered. Deadlines count when woken only, as
    /// for a put.
    pub(super) fn choose(&mut self, context: &mut Context, wish: Wish, woken: bool) -> Option<Vec<Chosen>> {
        let Wish { here, first, useful, need, .. } = wish;
        let offered: Pieces = self.offers.iter().map(|(piece, _)| *piece).collect();
        let is_alone = self.round.outstanding().all(|n| context.is_suspect(n));
        let is_enough = offered.and(useful).and_not(here).len() >= need;
        let is_good =
            |(_, (_, offered, _)): &(Piece, Offer)| offered.done <= offered.transfer.times(2 + need as u64) + SOON;
        let is_soon = context.config.get_choice == GetChoice::FirstGood
            && first.and_not(here).and_not(offered).is_empty()
            && self.offers.iter().filter(|(piece, _)| first.contains(*piece)).all(is_good);
        self.has_waited |= woken && context.now >= self.soft;
        let is_over = self.round.is_complete() || woken && context.now >= self.hard;
        let is_settled = is_enough && (is_soon || is_alone || self.has_waited);
        if !(is_over || is_settled || self.is_narrow && self.has_waited) {
            return None;
        }
        // The next question does not wait for a target that was waited for in vain.
        if self.has_waited {
            self.round.outstanding().for_each(|node| context.miss(node, self.since));
        }
        if !is_enough && self.is_narrow {
            // All are asked next, which takes back what was offered.
            return Some(Vec::new());
        }
        let any = Wish { useful: self.pieces, need: wish.to_decode, ..wish };
        Some(self.accept(context, if is_enough { wish } else { any }))
    }

    /// Accepts the offers that are soonest, those of data when they are about as soon: what is decoded takes time, too.
    fn accept(&self, context: &mut Context, wish: Wish) -> Vec<Chosen> {
        let mut offers = self.offers.clone();
        offers.retain(|(piece, _)| wish.useful.contains(*piece));
        offers.sort_by_key(|(piece, (from, offered, at))| {
            let decoding = if wish.first.contains(*piece) { Span::ZERO } else { offered.transfer };
            (*at + offered.done + decoding, *piece, *from)
        });
        let (mut covered, mut chosen, mut granted) = (wish.here, Vec::new(), Grants::new());
        for (piece, offer) in offers {
            if chosen.len() == wish.need || covered.contains(piece) {
                continue;
            }
            let (target, offered, at) = offer;
            let Some((start, offset)) = fit(context, self.txn.of_piece(piece), &offered, at) else { continue };
            covered = covered.with(piece);
            granted.push(Granted { target, offset });
            chosen.push(Chosen { piece, round: self.round.number, offer, start });
        }
        let offered = |n: &NodeId| self.offers.iter().any(|(_, (from, ..))| from == n);
        let told: Vec<NodeId> = self
            .round
            .asked_of
            .iter()
            .copied()
            .filter(|n| offered(n) || context.multicast() && self.may_multicast)
            .collect();
        if !self.offers.is_empty() {
            let accept = Message::Accept { txn: self.txn, round: self.round.number, granted };
            context.send_group(self.round.group, &told, &accept, self.may_multicast);
        }
        chosen
    }
}
