//! Targets that are lost for good, while the next map comes to all others.

use protocol::machine::Input;

use super::{Driver, Fabric, MachineSet};

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// Everybody uses the next map from now on.
    pub(super) fn lose(&mut self) {
        let maps = self.maps;
        let Some(next) = &maps.next else { return };
        let (lost, now) = (maps.lost(), self.now);
        self.first_group = maps.next_begins;
        for id in &lost {
            if self.is_own(id.0) {
                self.stops(id.0);
            }
        }
        if let Some(stock) = self.machines.stock() {
            stock.lose(now, &lost, next);
            self.measures.mended(now, stock.is_whole());
        }
        for node in self.parts.nodes(self.part) {
            let slot = self.slot(*node);
            let clock = self.nodes[slot].clock;
            match slot.checked_sub(self.own_targets) {
                None if self.nodes[slot].life.is_down => continue,
                None => self.give_target(slot, clock.local(now), Input::Request(M::map_for_target(next))),
                Some(n) => self.give_initiator(n, clock.local(now), Input::Request(M::map_for_initiator(next))),
            }
            self.drain(*node);
        }
    }
}
