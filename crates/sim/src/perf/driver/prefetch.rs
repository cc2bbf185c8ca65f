//! What the next events need of memory is read ahead.
//!
//! In a large cluster the state of a node is in no cache when something happens to it, and each line of it would be waited
//! for by itself. Those of several nodes are read beside each other in the time of one.

use protocol::machine::Machine;

use super::{Driver, Event, Fabric, MachineSet};

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// Reads of the nodes to which the next events come what most events need, for several events at once.
    pub(super) fn prefetch_next(&mut self) {
        let Some(places) = self.queue.look_ahead() else { return };
        let mut slots = core::mem::take(&mut self.upcoming);
        let mut sum = 0;
        for event in self.queue.known(places) {
            sum ^= if let Event::Wire(wire) = event { F::prefetch_wire(wire) } else { 0 };
            self.add_slots(event, &mut slots);
        }
        // First what holds the addresses of the rest, and without branching on it, so that all nodes' lines are waited for together.
        let of_node = |sum, &slot: &usize| {
            let of_machine = match slot.checked_sub(self.own_targets) {
                None => self.targets[slot].prefetch() ^ self.disks[slot].prefetch(),
                Some(n) => self.initiators.get(n).map_or(0, Machine::prefetch),
            };
            sum ^ of_machine ^ self.nodes[slot].prefetch() ^ self.fabric.prefetch(slot)
        };
        sum = slots.iter().fold(sum, of_node);
        let behind = |sum, slot: usize| {
            let of_machine = match slot.checked_sub(self.own_targets) {
                None => self.targets[slot].prefetch_behind(),
                Some(n) => self.initiators.get(n).map_or(0, Machine::prefetch_behind),
            };
            sum ^ of_machine
        };
        core::hint::black_box(slots.drain(..).fold(sum, behind));
        self.upcoming = slots;
    }

    /// Adds the nodes of this part to which something comes.
    fn add_slots(&self, event: &Event<F::Wire, M::Notice>, slots: &mut Vec<usize>) {
        let mut add = |node: u32| {
            if self.is_own(node) {
                slots.push(self.slot(node));
            }
        };
        let to = if let Event::Wire(wire) = event { F::destination(wire) } else { None };
        match (event, to) {
            (Event::Wake(node), _) => add(*node),
            (_, Some(to)) => self.receivers(to).for_each(add),
            (event, None) => event.owner(self.setup.targets, F::owner).into_iter().for_each(add),
        }
    }
}
