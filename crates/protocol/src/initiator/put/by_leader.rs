//! A put with a leader: it grants windows in one step, and members may refuse them (`docs/leader.md`).

use super::{Answer, Choice, Context, Destination, NodeId, Phase, Put, PutRequest, Span, Step, Window, limits};
use crate::choose::Offer;
use crate::machine::IgnoredReason;
use crate::wire::{Direction, Grant, LeadRequest, Leading, Message};

impl Put {
    /// Asks the leader of the group alone. Our port is kept for the answer, so that several grants do not meet in it.
    pub(super) fn ask_leader(&mut self, context: &mut Context, leader: NodeId) {
        self.leader.asked = Some(leader);
        self.leader.left -= 1;
        self.round.asked_of = vec![leader];
        let request = self.request(context, false);
        let length = Span::of_transfer(u64::from(self.size()), context.config.link_rate);
        // A grant that comes too late is given back, and all is asked again.
        let lead = context.lead() + context.grant_lateness();
        let (start, _) = context.uplink.hole_for(context.now + lead, length);
        let have = self.progress.holders.iter().take(limits::COPIES).map(|(holder, _)| *holder).collect();
        let down = self.ranked.iter().filter(|n| context.is_down(**n));
        let avoid = self.progress.failed.iter().chain(&self.progress.full).chain(down);
        let avoid = avoid.take(limits::GROUP_MEMBERS).copied().collect();
        let PutRequest { txn, round, id, size, group, wanted, busy, .. } = request;
        let earliest = start.since(context.now);
        let request = LeadRequest { txn, round, wanted, id, size, group, earliest, busy, have, avoid };
        context.uplink.insert_free(Window { start, end: start + length, txn: self.txn });
        context.send(Destination::Node(leader), &Message::Leading(Leading::Request(request)));
        self.reachability.ask(context.now, None);
        self.leader.last = Some((leader, context.now));
        let until = context.leader_until();
        self.phase = Phase::Asking { since: context.now, soft: until, hard: until };
    }

    /// The leader does not answer, or cannot grant anything: on to the group itself.
    pub(super) fn ask_directly(&mut self, context: &mut Context) -> Step {
        context.uplink.remove(self.txn);
        self.leader.left = 0;
        self.ask(context);
        Step::Continue
    }

    /// The leader granted windows on behalf of some members.
    pub(in crate::initiator) fn on_grant(&mut self, context: &mut Context, from: NodeId, grant: &Grant) -> Step {
        self.leader.note_grant(context, from);
        if grant.round != self.round.number {
            context.give_back(from, grant);
            return Step::Continue;
        }
        let Phase::Asking { since, .. } = self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        if self.leader.asked != Some(from) || grant.direction == Direction::Get || grant.windows.is_empty() {
            return context.ignore(IgnoredReason::Late);
        }
        context.choices.sample(context.now.since(since));
        context.uplink.remove(self.txn);
        self.round.answered.push(from);
        let mut choices: Vec<Choice> = Vec::new();
        for window in &grant.windows {
            let Some(domain) = context.domain(window.target) else { continue };
            let (start, rate) = (context.window_start(window.start, &context.grants), grant.rate);
            let done = start + window.done.less(window.start);
            let end = start + grant.transfer;
            let (transfer, slack) = (grant.transfer, Span::ZERO);
            let offer = Offer { start, end, transfer, done, rate, domain, rank: 0, slack, part: None };
            self.offers.insert(window.target, offer);
            let most = if self.by_multicast(context) { context.map.most_addressed() } else { 1 };
            match choices.iter_mut().find(|choice| choice.start == start && choice.targets.len() < most) {
                Some(choice) => choice.targets.push(window.target),
                None => choices.push(Choice { start, targets: vec![window.target], length: grant.transfer, rate }),
            }
        }
        self.round.asked_of = grant.windows.iter().map(|window| window.target).collect();
        // Another leader may have granted our port for the same time. A transfer that is a little late costs others less than
        // asking again.
        let mut uplink = context.uplink.clone();
        let mut late = false;
        for choice in &mut choices {
            let at_once = choice.start.max(context.now);
            let start = uplink.hole_for(at_once, choice.length).0;
            late |= start.since(at_once) > choice.length.div(4).max(context.grant_lateness());
            late |= start.since(choice.start) > context.config.late;
            choice.start = start;
            uplink.insert_free(Window { start, end: start + choice.length, txn: self.txn });
        }
        if late && self.leader.left > 0 {
            context.give_back(from, grant);
            self.round.asked_of.clear();
            self.ask(context);
            return Step::Continue;
        }
        self.send(context, choices);
        for (member, answer) in core::mem::take(&mut self.refusals) {
            if self.member_refused(context, member, answer) == Step::Over {
                return Step::Over;
            }
        }
        Step::Continue
    }

    /// A member does not keep the window that was granted for it.
    pub(super) fn member_refused(&mut self, context: &mut Context, from: NodeId, answer: Answer) -> Step {
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        if waiting.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        match answer {
            Answer::HaveIt | Answer::HavePiece(_) => {
                self.hold(context, from, answer.held());
                if self.finish_if_enough(context) == Step::Over {
                    return Step::Over;
                }
            }
            Answer::NoSpace => self.progress.mark_full(from),
            Answer::Busy(_) | Answer::Stale | Answer::NotHere | Answer::Window(_) | Answer::Part(_) => {}
        }
        self.go_on(context)
    }
}
