//! A put with a leader: it grants windows in one step, and members may refuse them (`docs/leader.md`).

use super::{Answer, Choice, Destination, NodeId, Offer, Phase, Put, PutRequest, Shared, Span, Step, Window, limits};
use crate::wire::{Grant, LeadRequest, Leading, Message};

impl Put {
    /// Asks the leader of the group alone. Our port is kept for the answer, so that several grants do not meet in it.
    pub(super) fn ask_leader(&mut self, cx: &mut Shared, leader: NodeId) {
        self.leader = Some(leader);
        self.led -= 1;
        self.asked_of = vec![leader];
        let request = self.request(cx);
        let length = Span::of_transfer(u64::from(self.size()), cx.config.link_rate);
        let (start, _) = cx.uplink.place(cx.now + request.earliest, length);
        let put = PutRequest { earliest: start.since(cx.now), ..request };
        let have = self.holders.iter().take(limits::COPIES).copied().collect();
        let avoid = self.failed.iter().chain(&self.full).take(limits::GROUP_MEMBERS).copied().collect();
        let request = LeadRequest { put, have, avoid };
        cx.uplink.insert_free(Window { start, end: start + length, txn: self.txn });
        cx.send(Destination::Node(leader), &Message::Leading(Leading::Request(request)));
        self.heard.ask(cx.now, None);
        self.asked_leader = cx.now;
        let until = cx.leader_until();
        self.phase = Phase::Asking { since: cx.now, soft: until, hard: until };
    }

    /// The leader does not answer, or cannot grant anything: on to the group itself.
    pub(super) fn ask_directly(&mut self, cx: &mut Shared) -> Step {
        cx.uplink.remove(self.txn);
        self.led = 0;
        self.ask(cx);
        Step::Continue
    }

    /// The leader granted windows on behalf of some members.
    pub(in crate::initiator) fn granted(&mut self, cx: &mut Shared, from: NodeId, grant: &Grant) -> Step {
        cx.grants.sample(cx.now.since(self.asked_leader));
        if grant.round != self.round {
            cx.give_back(from, grant);
            return Step::Continue;
        }
        let Phase::Asking { since, .. } = self.phase else {
            return Step::Continue;
        };
        if self.leader != Some(from) || grant.read || grant.windows.is_empty() {
            return Step::Continue;
        }
        cx.choices.sample(cx.now.since(since));
        cx.uplink.remove(self.txn);
        self.answered.push(from);
        let mut choices: Vec<Choice> = Vec::new();
        for turn in &grant.windows {
            let Some(domain) = cx.domain(turn.target) else { continue };
            let (start, rate) = (cx.window_start(turn.start, &cx.grants), u64::from(grant.rate));
            let done = start + turn.done.less(turn.start);
            let end = start + grant.transfer;
            let offer = Offer { start, end, transfer: grant.transfer, done, rate, domain, rank: 0, slack: Span::ZERO };
            self.offers.insert(turn.target, offer);
            match choices.iter_mut().find(|choice| choice.start == start && self.by_multicast(cx)) {
                Some(choice) => choice.targets.push(turn.target),
                None => choices.push(Choice { start, targets: vec![turn.target], length: grant.transfer, rate }),
            }
        }
        self.asked_of = grant.windows.iter().map(|turn| turn.target).collect();
        // Another leader may have granted our port for the same time. A transfer that is a little late costs others less than
        // asking again.
        let mut uplink = cx.uplink.clone();
        let mut late = false;
        for choice in &mut choices {
            let start = uplink.place(choice.start.max(cx.now), choice.length).0;
            late |= start.since(choice.start.max(cx.now)) > choice.length.div(4);
            choice.start = start;
            uplink.insert_free(Window { start, end: start + choice.length, txn: self.txn });
        }
        if late && self.led > 0 {
            cx.give_back(from, grant);
            self.asked_of.clear();
            self.ask(cx);
            return Step::Continue;
        }
        self.send(cx, choices);
        for (member, answer) in core::mem::take(&mut self.early) {
            if self.member_refused(cx, member, answer) == Step::Over {
                return Step::Over;
            }
        }
        Step::Continue
    }

    /// A member does not keep the window that was granted for it.
    pub(super) fn member_refused(&mut self, cx: &mut Shared, from: NodeId, answer: Answer) -> Step {
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return Step::Continue;
        };
        if waiting.remove(&from).is_none() {
            return Step::Continue;
        }
        match answer {
            Answer::HaveIt => {
                self.holders.push(from);
                if self.finish_if_enough(cx) == Step::Over {
                    return Step::Over;
                }
            }
            Answer::NoSpace => self.full.push(from),
            Answer::Busy(_) | Answer::Stale | Answer::NotHere | Answer::Window(_) => {}
        }
        self.go_on(cx)
    }
}
