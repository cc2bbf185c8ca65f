//! Nodes that crash. Of targets what the machine knew and what was not synced is lost, what was synced is there when it starts anew.

use protocol::id::NodeId;

use super::{Driver, Event, Fabric, Life, MachineSet};

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    /// The lowest of the next group crashes, which leads it where groups have leaders.
    pub(super) fn crash(&mut self) {
        let Some(crashes) = self.conditions.crashes else { return };
        self.push_for_all(self.now + crashes.every.as_nanos(), Event::Crash);
        let nth = self.crashed % self.maps.first.groups().max(1);
        let Some(group) = self.maps.first.group_ids().nth(nth as usize) else { return };
        self.crashed += 1;
        let Some(NodeId(id)) = self.maps.first.members(group).map(|member| member.id).min() else { return };
        if !self.is_own(id) {
            return;
        }
        if !self.node(id).life.is_down {
            self.stops(id);
            self.push(id, self.now + crashes.down.as_nanos(), Event::Restart(id));
        }
    }

    /// What was begun before is nobody's any more. The port still sends what it was given.
    pub(super) fn stops(&mut self, id: u32) {
        self.ends(id);
        let slot = self.slot(id);
        self.disks[slot].crash(self.now);
    }

    fn ends(&mut self, id: u32) {
        let node = self.node(id);
        node.life.is_down = true;
        node.life.number += 1;
        node.processor.inbox.clear();
        node.armed = u64::MAX;
    }

    /// The first aggregator dies, by all of its lanes. Nobody is told.
    pub(super) fn lose_aggregator(&mut self) {
        let first = self.setup.targets + self.setup.initiators;
        let lanes = self.setup.product().map_or(0, |profile| profile.lanes.max(1));
        (first..first + lanes)
            .filter(|lane| self.is_own(*lane))
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|lane| self.ends(lane));
    }

    pub(super) fn restart(&mut self, node: u32) {
        self.node(node).life.is_down = false;
        let slot = self.slot(node);
        self.targets[slot] = self.machines.target(node);
        self.drain(node);
    }

    /// Whether what was begun in this life of a node still counts.
    pub(super) fn lives(&self, node: u32, life: u32) -> bool {
        self.nodes[self.slot(node)].life == Life { number: life, is_down: false }
    }
}
