//! What machines are given, and what they want done then.

use protocol::aggregator;
use protocol::machine::{Effect, Input, Machine, Output};
use protocol::time::Instant;

use super::{Arrived, Driver, Fabric, MachineSet};

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// A node's machine is given something that came at a moment, and what it wants done is done.
    pub(super) fn input(&mut self, node: u32, (at, arrived): (u64, Arrived)) {
        let slot = self.slot(node);
        let clock = self.nodes[slot].clock;
        let now = clock.local(self.now);
        let at = if at == self.now { now } else { clock.local(at) };
        match slot.checked_sub(self.own_targets) {
            None => self.give_target(slot, now, arrived.input(at)),
            Some(n) if n < self.initiators.len() => self.give_initiator(n, now, arrived.input(at)),
            Some(n) => return self.aggregate(node, n, now, arrived.input(at)),
        }
        self.drain(node);
    }

    /// An aggregator is given something. It has no disk and reports nothing that is measured.
    fn aggregate(&mut self, node: u32, slot: usize, now: Instant, input: Input<aggregator::Request>) {
        let lane = slot - self.initiators.len();
        let each = self.setup.product().map_or(1, |profile| profile.lanes.max(1)) as usize;
        let Some(aggregator) = self.aggregators.get_mut(lane / each) else { return };
        core::mem::swap(aggregator.outputs(), &mut self.of_aggregator);
        aggregator.handle_input(now, input);
        core::mem::swap(aggregator.outputs(), &mut self.of_aggregator);
        let deadline = aggregator.next_deadline();
        while let Some(output) = self.of_aggregator.pop_front() {
            if let Output::Transmit(transmit) = output {
                F::send(self, node, self.addressed(transmit.to), transmit.body);
            }
        }
        self.arm(node, deadline);
    }

    pub(super) fn give_target(&mut self, slot: usize, now: Instant, input: Input<<M::Target as Machine>::Request>) {
        let target = &mut self.targets[slot];
        core::mem::swap(target.outputs(), &mut self.of_target);
        target.handle_input(now, input);
        core::mem::swap(target.outputs(), &mut self.of_target);
    }

    pub(super) fn give_initiator(&mut self, at: usize, now: Instant, input: Input<<M::Initiator as Machine>::Request>) {
        let initiator = &mut self.initiators[at];
        core::mem::swap(initiator.outputs(), &mut self.of_initiator);
        initiator.handle_input(now, input);
        core::mem::swap(initiator.outputs(), &mut self.of_initiator);
    }

    pub(super) fn drain(&mut self, node: u32) {
        let slot = self.slot(node);
        let Some(at) = slot.checked_sub(self.own_targets) else { return self.drain_target(slot, node) };
        loop {
            while let Some(output) = self.of_initiator.pop_front() {
                match output {
                    Output::Transmit(transmit) => F::send(self, node, self.addressed(transmit.to), transmit.body),
                    Output::Effect { op, effect: Effect::Verify { pieces, .. } } => self.verify(node, op, &pieces),
                    Output::Effect { op, effect } => match effect.compute() {
                        Ok(completion) => self.at_once.push((op, completion)),
                        Err(effect) => panic!("an initiator has no disk for {effect:?}"),
                    },
                    Output::Event(event) => M::on_event(self, node - self.setup.targets, event),
                    Output::Idle(_) => {}
                }
            }
            let Some((op, completion)) = self.at_once.pop() else {
                return self.arm(node, self.initiators[at].next_deadline());
            };
            let now = self.nodes[slot].clock.local(self.now);
            self.give_initiator(at, now, Input::Done { op, completion });
        }
    }

    fn drain_target(&mut self, slot: usize, node: u32) {
        loop {
            while let Some(output) = self.of_target.pop_front() {
                match output {
                    Output::Transmit(transmit) => F::send(self, node, self.addressed(transmit.to), transmit.body),
                    Output::Effect { op, effect } => self.effect(node, op, effect),
                    Output::Event(event) => self.machines.on_target_event(&mut self.measures, self.now, &event),
                    Output::Idle(_) => {}
                }
            }
            let Some((op, completion)) = self.at_once.pop() else {
                return self.arm(node, self.targets[slot].next_deadline());
            };
            let now = self.nodes[slot].clock.local(self.now);
            self.give_target(slot, now, Input::Done { op, completion });
        }
    }
}
