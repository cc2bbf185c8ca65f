//! What goes wrong, and how it is put right.

use protocol::id::NodeId;
use protocol::target;
use protocol::time::{Instant, Span};
use protocol::wire;

use super::gateways::Gateways;
use super::{Node, NodeMachine, STORM, Scheduled, World, cleaner};
use crate::planted::PlantedBug;
use crate::swarm::Trouble;
use crate::trace;

impl World<'_> {
    /// Schedules the faults, and the end of all faults.
    pub(super) fn storm(&mut self) {
        let length = self.gateways.as_ref().map_or(STORM, Gateways::storm);
        let length = self.cleaning.as_ref().and_then(cleaner::State::storm).unwrap_or(length);
        let storm = length.as_nanos();
        let draw = |world: &mut Self| world.now + Span::from_nanos(world.rng.below(storm));
        for _ in 0..self.scenario.crashes {
            let node = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
            let at = draw(self);
            let down = Span::from_nanos(self.rng.below(storm / 4));
            self.will_be_down(node, at, down);
        }
        for _ in 0..self.scenario.initiator_crashes {
            let at = draw(self);
            self.push(at, Scheduled::InitiatorCrash);
        }
        for _ in 0..self.scenario.partitions {
            let node = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
            let (at, way) = (draw(self), self.rng.below(3));
            let back = at + Span::from_nanos(self.rng.below(storm / 4));
            self.push(at, Scheduled::Cut(vec![node], way != 0, way != 1));
            self.push(back, Scheduled::Mend);
        }
        let victim = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
        self.storm_disks(victim);
        for trouble in self.scenario.troubles.clone() {
            let node = NodeId(1 + self.rng.below(u64::from(self.scenario.targets)) as u32);
            let at = draw(self);
            let back = at + Span::from_nanos(self.rng.below(storm / 4));
            self.push(at, Scheduled::Trouble(node, trouble));
            self.push(back, Scheduled::Well(node));
        }
        if let Some((begins, ends)) = self.scenario.mute {
            self.push(self.now + begins, Scheduled::Mute(true));
            self.push(self.now + ends, Scheduled::Mute(false));
        }
        self.storm_by_domains();
        self.push(self.now + length, Scheduled::Heal);
    }

    pub(super) fn heal(&mut self) {
        if self.heals_later() {
            return;
        }
        self.healed = true;
        self.settled = self.now + wire::ASK_AGAIN;
        self.cut(None);
        self.are_back(self.net.isolated.clone());
        self.net.heal();
        let newest = self.maps.len() - 1;
        let has = |id: &NodeId| self.has(*id, newest);
        let gone: Vec<NodeId> = self.nodes.keys().filter(|id| !has(id)).copied().collect();
        gone.into_iter().for_each(|id| self.retire(id));
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.well(node);
            self.restart(node);
            self.awake(node);
            self.reload(node);
        }
        if self.gateways.is_some() {
            return self.heal_gateways();
        }
        // What was acknowledged is asked for once more, and new puts must succeed.
        self.puts_left += 10;
        self.gets_left += 30;
        for id in self.initiators.clone() {
            self.feed(id);
        }
    }

    /// A target will crash then, and start again. Never at the same moment: whichever of the two comes first is drawn then, and a target
    /// that starts before it crashes stays down.
    pub(super) fn will_be_down(&mut self, id: NodeId, at: Instant, down: Span) {
        self.push(at, Scheduled::Crash(id));
        self.push(at + down.max(Span::from_nanos(1)), Scheduled::Restart(id));
    }

    /// The power fails, or only the process ends: on purpose, as half of them do, it says so before.
    pub(super) fn crash(&mut self, id: NodeId) {
        if self.stop_aggregator(id) {
            return;
        }
        let seed = self.rng.next_u64();
        if !self.healed {
            if seed % 4 == 3 && self.nodes.get(&id).is_some_and(|node| node.sleeps.is_none()) {
                self.note(23, id, 0, || "says that it stops".to_owned());
                self.request(id, target::Request::Presence { here: false });
            }
            self.take_down(id, seed.is_multiple_of(2).then_some(seed));
        }
    }

    pub(super) fn take_down(&mut self, id: NodeId, power: Option<u64>) {
        self.stops_letting_go(id);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if matches!(node.machine, NodeMachine::Down(_)) {
            return;
        }
        node.life += 1;
        node.wake += 1;
        node.sleeps = None;
        if let NodeMachine::Target(_, mut disk) = std::mem::replace(&mut node.machine, NodeMachine::Gone) {
            match power {
                Some(seed) => disk.crash(seed),
                None => disk.kill(),
            }
            node.machine = NodeMachine::Down(disk);
        }
        self.windows.crashed(id);
        self.note(1, id, 0, || if power.is_some() { "loses power" } else { "is killed" }.to_owned());
    }

    /// From now on a target's disk fails in this way.
    pub(super) fn trouble(&mut self, id: NodeId, trouble: Trouble) {
        let Some(Node { machine: NodeMachine::Target(_, disk), .. }) = self.nodes.get(&id) else { return };
        if !self.healed {
            disk.trouble(trouble);
            if trouble == Trouble::FailRead {
                self.disks.failed_reads.insert(id);
            }
            self.note(13, id, 0, || format!("its disk is in trouble: {}", trace::trouble(trouble)));
        }
    }

    /// A target's disk is well again. When its store has failed meanwhile, somebody restarts it.
    pub(super) fn well(&mut self, id: NodeId) {
        let Some(Node { machine: NodeMachine::Target(_, disk) | NodeMachine::Down(disk), .. }) = self.nodes.get(&id)
        else {
            return;
        };
        disk.mend();
        if self.healed {
            disk.backend.kill();
        }
        if disk.has_failed() {
            self.take_down(id, None);
            self.restart(id);
        }
    }

    pub(super) fn restart(&mut self, id: NodeId) {
        if self.is_dead(id) || self.start_aggregator(id) {
            return;
        }
        let forget = self.scenario.planted == Some(PlantedBug::LoseIndexTail);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if !matches!(node.machine, NodeMachine::Down(_)) {
            return;
        }
        let NodeMachine::Down(mut disk) = std::mem::replace(&mut node.machine, NodeMachine::Gone) else { return };
        if !self.open(id, &mut disk, forget) {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.machine = NodeMachine::Down(disk);
            }
            return;
        }
        // The clock of another life has nothing to do with this one.
        let offset = self.rng.below(1_000_000_000);
        let session = self.session(id);
        let map = self.file(id);
        self.uses(id, map);
        let target = self.target(id, &disk, map);
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.map, node.offset, node.session) = (map, offset, session);
            node.machine = NodeMachine::Target(Box::new(target), disk);
        }
        self.has_let_go(id);
        self.has_kept(id);
        self.are_back([id]);
        if !self.healed {
            for (at, to, again) in self.recorder.restarted(self.now, id) {
                self.push(at, Scheduled::Datagram(to, again, at));
            }
        }
        self.note(2, id, 0, || "restarts".to_owned());
        self.input(id, None, None);
        self.request(id, target::Request::Presence { here: true });
        self.keep_room(id);
    }

    pub(super) fn initiator_crash(&mut self) {
        if self.healed {
            return;
        }
        let victim = self.initiators.remove(0);
        self.note(3, victim, 0, || "crashes for good".to_owned());
        self.nodes.remove(&victim);
        self.open.retain(|(id, _), _| *id != victim);
        self.add_initiator();
        if let Some(id) = self.initiators.last().copied() {
            self.feed(id);
        }
    }
}
