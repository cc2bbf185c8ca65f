//! A put whose payload is on its way: sent, repaired, and waited for until it is durable.

use super::{
    Ack, Bug, ByteRange, Choice, Context, Destination, Event, Message, NodeId, Outgoing, PROBES, Parts, Phase, Put,
    Span, Step, Waiting, Window,
};
use crate::choose::Offer;
use crate::flat_map::FlatMap;
use crate::machine::{IgnoredReason, Output};
use crate::redundancy::Piece;
use crate::transfer::SLOWEST;

impl Put {
    pub(super) fn send(&mut self, context: &mut Context, choices: Vec<Choice>) {
        let header = context.data_header(self.txn, self.job.payload.size());
        // Each target gets a piece that is missing; of copies any.
        let mut missing = self.progress.goal.missing().iter();
        let mut outgoing = Vec::new();
        let mut waiting = FlatMap::new();
        self.order(context, &choices);
        let own = self.sends_itself(choices.len());
        // The way by an aggregator is not what a target promised.
        let is_promised = self.doubt.is_some() && self.accepted_aggregator().is_none();
        for (nth, choice) in choices.into_iter().enumerate() {
            let Some(piece) = (if self.job.payload.is_common() { Some(Piece(0)) } else { missing.next() }) else {
                break;
            };
            if context.config.transport.reserved && nth < own {
                let end = choice.start + choice.length;
                context.uplink.insert_free(Window { start: choice.start, end, txn: self.txn });
            }
            for target in &choice.targets {
                let offer = self.offers.get(target);
                let done = offer.map_or(choice.start, |offer| offer.finish(choice.start));
                // What is sent to several goes at the rate of the slowest port.
                let takes = |offer: &Offer| offer.takes() + choice.length.less(offer.transfer);
                let promised = offer.filter(|_| is_promised).map(|offer| (choice.start, takes(offer)));
                let due = done.max(choice.start + choice.length) + context.config.late.times(2);
                waiting.insert(*target, Waiting { piece, promised, due, probes: 0, rate: choice.rate, resends: 0 });
            }
            if nth >= own {
                continue;
            }
            if let Some((to, header)) = self.by_aggregator(header, piece) {
                outgoing.push(Outgoing::whole(to, header, self.job.payload.of(piece), choice.start, choice.rate));
                continue;
            }
            let set = match choice.targets.as_slice() {
                [single] => Some(Destination::Node(*single)),
                many => context.map.set_of(self.round.group, |n| many.contains(&n)).map(Destination::Members),
            };
            let Some(to) = set else { continue };
            let whole = Outgoing::whole(to, header, self.job.payload.of(piece), choice.start, choice.rate);
            outgoing.push(match self.begin_part(context, &choice.targets) {
                Some(part) => whole.ranges(&[part]),
                None => whole,
            });
        }
        if self.leader.asked.is_some() && outgoing.iter().any(|sending| matches!(sending.to(), Destination::Members(_)))
        {
            self.reachability.send(context.now);
        }
        self.phase = Phase::Transferring { outgoing, waiting };
        self.progress.sent = true;
        self.pump(context);
    }

    /// Sends what is due.
    pub(super) fn pump(&mut self, context: &mut Context) {
        let quantum = context.config.quantum_of(self.job.restores());
        let Phase::Transferring { outgoing, .. } = &mut self.phase else {
            return;
        };
        for sending in outgoing.iter_mut() {
            while let Some(transmit) =
                sending.poll(context.now, quantum, context.config.per_datagram, &mut context.port)
            {
                context.out.push_back(Output::Transmit(transmit));
            }
        }
        outgoing.retain(|sending| sending.next_deadline().is_some());
    }

    pub(in crate::initiator) fn ack(&mut self, context: &mut Context, from: NodeId, ack: Ack) -> Step {
        if let Some(piece) = ack.durable() {
            let size = self.size();
            self.hold(context, from, piece);
            self.arrived(context);
            if let Phase::Transferring { waiting, .. } = &mut self.phase
                && let Some((start, takes)) = waiting.remove(&from).and_then(|waiting| waiting.promised)
            {
                context.copy_durable(size, start, takes);
            }
            if self.finish_if_enough(context) == Step::Over {
                return Step::Over;
            }
            return self.go_on(context);
        }
        let (now, late) = (context.now, context.config.late);
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        let Some(entry) = waiting.get_mut(&from) else {
            return context.ignore(IgnoredReason::Late);
        };
        match ack {
            Ack::Pending => *entry = Waiting { due: now + late.times(2), probes: 0, ..*entry },
            Ack::BadHash if entry.resends < PROBES => {
                entry.resends += 1;
                let whole = ByteRange { offset: 0, len: self.job.payload.size() as u32 };
                return self.repair(context, from, u64::MAX, &[whole]);
            }
            Ack::NoSpace => {
                waiting.remove(&from);
                self.progress.mark_full(from);
                self.progress.failed.push(from);
            }
            Ack::Unknown => {
                self.stop_sending(context, from);
                self.reachability.stranger(from);
            }
            Ack::BadHash | Ack::DiskFailed | Ack::Durable | Ack::Piece(_) => {
                waiting.remove(&from);
                self.progress.failed.push(from);
            }
        }
        self.go_on(context)
    }

    /// A target has no window for it any more.
    fn stop_sending(&mut self, context: &Context, to: NodeId) {
        let Phase::Transferring { outgoing, waiting } = &mut self.phase else { return };
        waiting.remove(&to);
        let is_its = |sending: &&Outgoing| sending.to() == Destination::Node(to);
        let unsent = outgoing.iter().filter(is_its).map(Outgoing::unsent).sum::<u64>();
        let most = (self.job.payload.size() as u32).saturating_sub(context.config.per_datagram as u32);
        self.parts.iter_mut().for_each(|parts| parts.again(unsent as u32, most));
        outgoing.retain(|sending| !is_its(&sending));
        // Maintenance gives its windows back to clients, however often these come.
        self.progress.counted -= u8::from(self.job.restores() && self.progress.counted > 0);
    }

    /// Whether others may have the port when it would send: what goes in parts begins the next when they are through.
    pub(in crate::initiator) fn gives_way(&self) -> bool {
        let sends = matches!(&self.phase, Phase::Transferring { outgoing, .. } if !outgoing.is_empty());
        sends && self.parts.is_some_and(Parts::is_under_way)
    }

    /// Others have the port: asks for another window.
    pub(in crate::initiator) fn give_way(&mut self, context: &mut Context) -> Step {
        let to = self.parts.filter(|_| self.gives_way()).map(Parts::to);
        to.into_iter().for_each(|to| self.stop_sending(context, to));
        self.go_on(context)
    }

    pub(in crate::initiator) fn repair(
        &mut self,
        context: &mut Context,
        from: NodeId,
        rate: u64,
        ranges: &[ByteRange],
    ) -> Step {
        let header = context.data_header(self.txn, self.job.payload.size());
        let late = context.config.late;
        let may_come = matches!(&self.phase, Phase::Transferring { outgoing, .. } if self.may_come(outgoing));
        if !may_come {
            self.lacks(context, from, ranges);
        }
        let Phase::Transferring { outgoing, waiting } = &mut self.phase else {
            return context.ignore(IgnoredReason::Late);
        };
        let Some(entry) = waiting.get_mut(&from) else {
            return context.ignore(IgnoredReason::Late);
        };
        let to = Destination::Node(from);
        // What is being sent to it, or to several at once, may hold what it asks for: it asks again.
        let to_several = |sending: &Outgoing| matches!(sending.to(), Destination::Members(_));
        if may_come || outgoing.iter().any(|sending| sending.to() == to || to_several(sending)) {
            return context.ignore(IgnoredReason::Busy);
        }
        let rate = rate.clamp(entry.rate / SLOWEST, entry.rate);
        let again = Outgoing::whole(to, header, self.job.payload.of(entry.piece), context.now, rate).ranges(ranges);
        // A target that still waits for it says so when it is asked: no need to be patient here.
        let length = Span::of_transfer(again.unsent(), rate).min(late.times(4));
        let due = context.now + length + late.times(2);
        *entry = Waiting { due, promised: None, probes: 0, ..*entry };
        outgoing.push(again);
        context.event(Event::RepairSent);
        self.pump(context);
        Step::Continue
    }

    /// Asks after late acknowledgements; gives up on targets that stay silent.
    pub(super) fn check_late(&mut self, context: &mut Context) {
        if context.bug == Some(Bug::WakeInVain) {
            return;
        }
        let probe = Message::Probe { txn: self.txn, id: self.job.id, wanted: self.job.wanted };
        let Phase::Transferring { waiting, .. } = &mut self.phase else {
            return;
        };
        let late: Vec<NodeId> = waiting.iter().filter(|(_, w)| w.due <= context.now).map(|(n, _)| *n).collect();
        for node in late {
            let Some(entry) = waiting.get_mut(&node) else {
                continue;
            };
            if entry.probes >= PROBES {
                waiting.remove(&node);
                self.progress.failed.push(node);
                context.miss(node, context.now);
                continue;
            }
            entry.probes += 1;
            entry.due = context.now + context.config.late.times(u64::from(entry.probes));
            context.send(Destination::Node(node), &probe);
        }
    }
}
