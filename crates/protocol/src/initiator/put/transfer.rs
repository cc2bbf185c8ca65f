//! A put whose payload is on its way: sent, repaired, and waited for until it is durable.

use std::collections::BTreeMap;

use super::{
    Ack, Choice, Destination, Event, Leg, Message, NodeId, Outgoing, PROBES, Phase, Put, Shared, Span, Step, Transport,
    Waiting, Window,
};
use crate::machine::Output;
use crate::transfer::SLOWEST;

impl Put {
    pub(super) fn send(&mut self, cx: &mut Shared, choices: Vec<Choice>) {
        let header = cx.data_header(self.txn, self.payload.len());
        let mut outgoing = Vec::new();
        let mut waiting = BTreeMap::new();
        for choice in choices {
            if cx.config.transport != Transport::Hash {
                let end = choice.start + choice.length;
                cx.uplink.insert_free(Window { start: choice.start, end, txn: self.txn });
            }
            for target in &choice.targets {
                let done = self.offers.get(target).map_or(choice.start, |o| o.done + choice.start.since(o.start));
                let due = done.max(choice.start + choice.length) + cx.config.late.times(2);
                waiting.insert(*target, Waiting { due, probes: 0, rate: choice.rate, resends: 0 });
            }
            let set = match choice.targets.as_slice() {
                [single] => Some(Destination::Node(*single)),
                many => cx.map.set_of(self.group, |n| many.contains(&n)).map(Destination::Members),
            };
            let Some(to) = set else { continue };
            outgoing.push(Outgoing::whole(to, header, self.payload.clone(), choice.start, choice.rate));
        }
        if self.leader.is_some() && outgoing.iter().any(|sending| matches!(sending.to(), Destination::Members(_))) {
            self.heard.send(cx.now);
        }
        self.phase = Phase::Transferring { outgoing, waiting };
        self.sent = true;
        self.pump(cx);
    }

    /// Sends what is due.
    pub(super) fn pump(&mut self, cx: &mut Shared) {
        let Phase::Transferring { outgoing, .. } = &mut self.phase else {
            return;
        };
        for sending in outgoing.iter_mut() {
            while let Some(transmit) = sending.poll(cx.now, cx.config.quantum, cx.config.per_datagram, &mut cx.port) {
                cx.out.push_back(Output::Transmit(transmit));
            }
        }
        outgoing.retain(|sending| sending.next_deadline().is_some());
    }

    pub(in crate::initiator) fn ack(&mut self, cx: &mut Shared, from: NodeId, ack: Ack) -> Step {
        if ack == Ack::Durable {
            self.hold(cx, from);
            if let Phase::Transferring { waiting, .. } = &mut self.phase {
                waiting.remove(&from);
            }
            if self.finish_if_enough(cx) == Step::Over {
                return Step::Over;
            }
            return self.go_on(cx);
        }
        let (now, late) = (cx.now, cx.config.late);
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return Step::Continue;
        };
        let Some(entry) = waiting.get_mut(&from) else {
            return Step::Continue;
        };
        match ack {
            Ack::Pending => *entry = Waiting { due: now + late.times(2), probes: 0, ..*entry },
            Ack::BadHash if entry.resends < PROBES => {
                entry.resends += 1;
                let whole = Leg { offset: 0, len: self.payload.len() as u32 };
                return self.repair(cx, from, u64::MAX, &[whole]);
            }
            Ack::NoSpace => {
                waiting.remove(&from);
                self.full.push(from);
                self.failed.push(from);
            }
            Ack::Unknown => {
                waiting.remove(&from);
                self.heard.stranger(from);
            }
            Ack::BadHash | Ack::DiskFailed | Ack::Durable => {
                waiting.remove(&from);
                self.failed.push(from);
            }
        }
        self.go_on(cx)
    }

    pub(in crate::initiator) fn repair(&mut self, cx: &mut Shared, from: NodeId, rate: u64, ranges: &[Leg]) -> Step {
        let header = cx.data_header(self.txn, self.payload.len());
        let late = cx.config.late;
        let Phase::Transferring { outgoing, waiting } = &mut self.phase else {
            return Step::Continue;
        };
        let Some(entry) = waiting.get_mut(&from) else {
            return Step::Continue;
        };
        let to = Destination::Node(from);
        // What is being sent to it, or to several at once, may hold what it asks for: it asks again.
        if outgoing.iter().any(|sending| sending.to() == to || matches!(sending.to(), Destination::Members(_))) {
            return Step::Continue;
        }
        let rate = rate.clamp(entry.rate / SLOWEST, entry.rate);
        let again = Outgoing::whole(to, header, self.payload.clone(), cx.now, rate).ranges(ranges);
        // Who still waits for it says so when it is asked: no need to be patient here.
        let length = Span::of_transfer(again.unsent(), rate).min(late.times(4));
        *entry = Waiting { due: cx.now + length + late.times(2), probes: 0, ..*entry };
        outgoing.push(again);
        cx.event(Event::RepairSent);
        self.pump(cx);
        Step::Continue
    }

    /// Asks after late acknowledgements; gives up on targets that stay silent.
    pub(super) fn check_late(&mut self, cx: &mut Shared) {
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return;
        };
        let late: Vec<NodeId> = waiting.iter().filter(|(_, w)| w.due <= cx.now).map(|(n, _)| *n).collect();
        for node in late {
            let Some(entry) = waiting.get_mut(&node) else {
                continue;
            };
            if entry.probes >= PROBES {
                waiting.remove(&node);
                self.failed.push(node);
                cx.miss(node, cx.now);
                continue;
            }
            entry.probes += 1;
            entry.due = cx.now + cx.config.late.times(u64::from(entry.probes));
            cx.send(Destination::Node(node), &Message::Probe { txn: self.txn, id: self.id });
        }
    }
}
