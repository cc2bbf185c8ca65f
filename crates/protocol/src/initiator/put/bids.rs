//! The bids for a put, and the choice among them.

use super::{Phase, Put};
use crate::choose::{Bids, Choice, Offer, Offers, doubt_of_idle, windows};
use crate::initiator::{Context, NodeId, Span, Step};
use crate::limits;
use crate::machine::IgnoredReason;
use crate::wire::{Answer, Bid};

impl Put {
    pub(in crate::initiator) fn bid(&mut self, context: &mut Context, from: NodeId, bid: Bid) -> Step {
        let Phase::Asking { since, .. } = self.phase else {
            return self.late_bid(context, from, bid);
        };
        if self.is_aggregator(from) {
            return self.aggregator_bid(context, bid);
        }
        if self.leader.asked.is_some_and(|leader| leader != from) && bid.round == self.round.number {
            if self.refusals.len() >= limits::COPIES {
                return context.ignore(IgnoredReason::Busy);
            }
            self.refusals.push((from, bid.answer));
            return Step::Continue;
        }
        if bid.round != self.round.number {
            // Late, but the question had arrived.
            self.reachability.late();
            return context.ignore(IgnoredReason::Late);
        }
        if !self.round.awaits(from) {
            // A client wanted what was offered.
            if matches!(bid.answer, Answer::Busy(_)) && self.offers.remove(&from).is_some() {
                return Step::Continue;
            }
            return context.ignore(IgnoredReason::Late);
        }
        self.round.answered.push(from);
        self.reachability.answered(context, from);
        if self.leader.asked.is_some() {
            context.grant_arrived(since);
            return self.ask_directly(context);
        }
        context.bid_arrived(since);
        match bid.answer {
            Answer::Window(offered) | Answer::Part(offered) => {
                if let Some(domain) = context.domain(from) {
                    let start = context.window_start(offered.start, &context.bids);
                    let offer = Offer {
                        start,
                        end: start + offered.length,
                        transfer: offered.transfer,
                        done: start + offered.done.less(offered.start),
                        rate: offered.rate,
                        domain,
                        rank: self.ranked.iter().position(|n| *n == from).unwrap_or(usize::MAX),
                        slack: context.slack(),
                        part: matches!(bid.answer, Answer::Part(_)).then_some(offered.size),
                    };
                    self.offers.insert(from, offer);
                }
            }
            Answer::HaveIt | Answer::HavePiece(_) => {
                self.hold(context, from, bid.answer.held());
                if self.finish_if_enough(context) == Step::Over {
                    self.cancel(context);
                    return Step::Over;
                }
            }
            Answer::NoSpace => {
                self.progress.mark_full(from);
                if self.lacks_space(context) {
                    self.cancel(context);
                    return self.give_up(context);
                }
            }
            Answer::Busy(wait) => self.round.note_busy(wait),
            // The newer map is on its way here.
            Answer::Stale => self.round.note_busy(Span::ZERO),
            // What was sent of it before is not there any more.
            Answer::NotHere => self.parts = None,
        }
        self.choose(context, false)
    }

    /// A bid after the choice: its sender is not silent, and is free again. (By multicast it was told already.)
    fn late_bid(&mut self, context: &mut Context, from: NodeId, bid: Bid) -> Step {
        if self.is_aggregator(from) {
            return self.aggregator_bid(context, bid);
        }
        if self.leader.asked.is_some() && bid.round == self.round.number {
            return self.member_refused(context, from, bid.answer);
        }
        if bid.round != self.round.number || !self.round.awaits(from) {
            return context.ignore(IgnoredReason::Late);
        }
        self.round.answered.push(from);
        self.reachability.answered(context, from);
        if bid.answer.window().is_some() && !self.by_multicast(context) && context.config.transport.reserved {
            context.release(self.txn, self.round.number, [from]);
        }
        Step::Continue
    }

    /// Chooses when enough is known: every target that can be expected to answer has answered, or patience is over and
    /// there are enough offers, or all patience is over. Only a wake says that patience is over: while datagrams
    /// arrive, the bids that are waited for may be among them, read late because this process was.
    pub(super) fn choose(&mut self, context: &mut Context, woken: bool) -> Step {
        let Phase::Asking { since, soft, hard } = self.phase else {
            return Step::Continue;
        };
        if let Some(leader) = self.leader.asked {
            return if context.gives_leader_up(leader, since, hard, woken) {
                self.ask_directly(context)
            } else {
                Step::Continue
            };
        }
        let all = self.round.is_complete() && !self.awaits_aggregator();
        let expected = !self.awaits_aggregator() && self.round.outstanding().all(|n| context.is_suspect(n));
        let enough = self.enough(context).would_be_met(self.offers.values().map(|offer| offer.domain));
        let over = all || woken && context.now >= hard;
        // As long as the port has other things to do, waiting for it costs nothing.
        let soft = if enough && self.awaits_aggregator() { soft.max(self.free_soon(context, since)) } else { soft };
        // A holder that restores wants to hear of every copy: one that it makes beside a copy that exists would be one
        // too many.
        let may_hurry = enough && !self.job.restores();
        if !(over || enough && expected || may_hurry && woken && context.now >= soft) {
            // With enough good ones to choose from, the rest may take as long again as these did. Without enough, only more
            // bids or the hard deadline change anything.
            let again = since + context.now.since(since).times(2);
            let soft = match may_hurry {
                true if again < soft && !self.awaits_aggregator() && self.has_enough_good(context) => again,
                false if woken && context.now >= soft => hard,
                _ => soft,
            };
            self.phase = Phase::Asking { since, soft, hard };
            return Step::Continue;
        }
        // What was waited for in vain is not how long choices take: the next windows would begin so much later.
        if all || !over {
            context.choices.sample(context.now.since(since));
        }
        context.negotiates.take_if(|(txn, _)| *txn == self.txn);
        self.round.outstanding().for_each(|n| context.miss(n, since));
        self.miss_aggregator(context);
        // A target has the piece that the others were asked for: what they offered is for no other piece.
        if self.certain.is_some_and(|piece| !self.progress.goal.missing().iter().any(|missing| missing == piece)) {
            self.cancel(context);
            self.ask(context);
            return Step::Continue;
        }
        if self.job.restores() && self.progress.rounds == 1 && self.need() > 1 {
            // What was offered may be for parts, and several get all of it at once.
            self.progress.counted = self.progress.counted.saturating_sub(1);
            self.cancel(context);
            self.ask(context);
            return Step::Continue;
        }
        let is_believed = self.round.busy.is_some() || !context.config.transport.reserved;
        self.doubt = doubt_of_idle(&self.offers, self.size(), &context.promises).filter(|_| !is_believed);
        let mut choices = self.pick_aggregated(context).unwrap_or_else(|| self.pick(context));
        if self.certain.is_some() {
            choices.truncate(1);
        }
        if choices.is_empty() {
            // Offers that were over before they could be taken: soon again, with a longer lead.
            let span = if self.offers.is_empty() {
                self.rest_for(context)
            } else {
                context.patience().min(context.config.late)
            };
            self.progress.counted -= u8::from(self.round.busy.is_some());
            self.cancel(context);
            self.rest(context, span);
            return Step::Continue;
        }
        if !self.gives_back(context, &choices) {
            self.accept(context, &choices);
            self.send(context, choices);
            self.ask_for_next(context);
        }
        Step::Continue
    }

    /// The offers of domains without a piece that are durable within twice the time of the soonest.
    fn good<'a>(&'a self, context: &'a Context) -> impl Iterator<Item = (&'a NodeId, &'a Offer)> {
        let used_domains = self.progress.goal.domains();
        let is_free = move |domain: u16| !used_domains.contains(&domain);
        let elsewhere = move || self.offers.iter().filter(move |(_, offer)| is_free(offer.domain));
        // What has begun can begin now at the earliest.
        let wait = |offer: &Offer| offer.finish(offer.start.max(context.now)).since(context.now);
        let soonest = elsewhere().map(|(_, offer)| wait(offer)).min().unwrap_or(Span::ZERO);
        elsewhere().filter(move |(_, offer)| wait(offer) <= soonest.times(2))
    }

    /// Whether the good offers are enough for the pieces that are missing.
    fn has_enough_good(&self, context: &Context) -> bool {
        self.enough(context).would_be_met(self.good(context).map(|(_, offer)| offer.domain))
    }

    fn pick(&self, context: &Context) -> Vec<Choice> {
        let good: Offers = self.good(context).map(|(id, offer)| (*id, *offer)).collect();
        let enough = self.enough(context).would_be_met(good.values().map(|offer| offer.domain));
        // A slow target is worse than another negotiation for the last piece, with the targets that did not answer this
        // time; it is taken when there is no other.
        let nobody_else = self.round.outstanding().all(|n| context.is_suspect(n));
        let offers = if !enough && nobody_else { &self.offers } else { &good };
        if !context.config.transport.reserved {
            let at_once = |(id, offer): (&NodeId, &Offer)| Choice {
                start: context.now,
                targets: vec![*id],
                length: offer.transfer,
                rate: offer.rate,
            };
            return self.offers.iter().map(at_once).collect();
        }
        let common = context.config.transport.is_common() && self.job.payload.is_common() && self.by_multicast(context);
        let most = if common { context.map.most_addressed() } else { 1 };
        windows(most, Bids::new(offers, self.doubt), &self.progress.goal, context.now, &context.uplink)
    }
}
