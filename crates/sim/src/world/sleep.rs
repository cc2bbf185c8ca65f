//! What befalls whole failure domains, disks that are lost for ever, and nodes that sleep.

use protocol::id::NodeId;
use protocol::rng::mix;
use protocol::time::{Instant, Span};

use super::{NodeMachine, STORM, Scheduled, World};
use crate::disk::Disk;
use crate::topology::{Blackout, Lost};

impl World<'_> {
    /// Schedules what happens to domains, disks, maps and clocks.
    pub(super) fn storm_by_domains(&mut self) {
        let (storm, topology) = (STORM.as_nanos(), &self.scenario.topology);
        let mut rng = protocol::rng::Rng::new(self.scenario.seed).fork(33);
        let domains = topology.domains();
        let (start, heal) = (self.now, self.now + STORM);
        if let Some(blackout) = topology.blackout {
            let all = blackout == Blackout::All;
            let hit: Vec<NodeId> = domains.iter().filter(|_| all || rng.chance(3, 4)).flatten().copied().collect();
            let at = start + Span::from_nanos(rng.below(storm / 2));
            self.push(at, Scheduled::DomainCrash(hit.clone(), rng.next_u64() & !u64::from(all)));
            self.outcome.disks.blackouts += u32::from(all);
            let back = at + Span::from_nanos(storm / 8 + rng.below(storm / 4));
            for node in hit {
                self.push(back + Span::from_nanos(rng.below(storm / 16)), Scheduled::Restart(node));
            }
        }
        for nth in 0..topology.domain_crashes + topology.domain_cuts {
            let domain = domains[rng.below(domains.len() as u64) as usize].clone();
            let at = start + Span::from_nanos(rng.below(storm));
            let back = at + Span::from_nanos(rng.below(storm / 4));
            if nth < topology.domain_crashes {
                self.push(at, Scheduled::DomainCrash(domain.clone(), rng.next_u64()));
                for node in domain {
                    self.push(back + Span::from_nanos(rng.below(storm / 16)), Scheduled::Restart(node));
                }
            } else {
                let way = rng.below(3);
                self.push(at, Scheduled::Cut(domain, way != 0, way != 1));
                self.push(back, Scheduled::Mend);
            }
        }
        for lost in &topology.lost {
            self.push(Instant::ZERO + lost.at, Scheduled::LoseDisk(*lost));
        }
        for nth in 1..topology.maps.len() {
            self.push(Instant::ZERO + topology.maps[nth].notified, Scheduled::NewMap(nth));
        }
        for _ in 0..topology.sleeps {
            let initiators = rng.chance(2, 3) && !self.initiators.is_empty();
            let node = if initiators {
                self.initiators[rng.below(self.initiators.len() as u64) as usize]
            } else {
                NodeId(1 + rng.below(u64::from(self.scenario.targets)) as u32)
            };
            let at = start + Span::from_nanos(rng.below(storm));
            let until = (at + Span::from_nanos(storm / 8 + rng.below(storm * 5 / 8))).min(heal);
            let jump = if rng.chance(1, 2) { Span::from_nanos(rng.below(storm / 2)) } else { Span::ZERO };
            self.push(at, Scheduled::Sleep(node, until, jump));
        }
    }

    /// All targets of a domain go down at once: by power, or their processes.
    pub(super) fn domain_crash(&mut self, nodes: &[NodeId], seed: u64) {
        for node in nodes.iter().filter(|_| !self.healed).copied().collect::<Vec<_>>() {
            let power = mix(seed ^ u64::from(node.0));
            self.take_down(node, seed.is_multiple_of(2).then_some(power));
        }
    }

    /// The disk of a target is lost with all that is on it; after a while an empty one is in its place.
    pub(super) fn lose_disk(&mut self, lost: Lost) {
        let id = lost.target;
        if self.healed || !self.nodes.contains_key(&id) {
            return;
        }
        self.take_down(id, None);
        let fresh = self.fresh_disk(id);
        if let Some(node) = self.nodes.get_mut(&id)
            && let NodeMachine::Down(mut disk) = std::mem::replace(&mut node.machine, NodeMachine::Down(fresh))
        {
            self.loses(id, &mut disk);
        }
        self.note(19, id, 0, || "its disk is lost".to_owned());
        self.push(self.now + lost.replaced, Scheduled::Restart(id));
    }

    /// What is on this disk is lost. Its store says what that was.
    pub(super) fn loses(&mut self, id: NodeId, disk: &mut Disk) {
        disk.mend();
        disk.kill();
        disk.backend.give_up_unreadable();
        if let Err(error) = disk.open(false) {
            self.fail(format!("the store of {id} does not open: {error}"));
        }
        self.disk_lost.insert(id, self.now);
        self.lost.extend(disk.chunks_held().into_iter().map(|chunk| (chunk, id)));
    }

    /// A node does nothing for a while. What is meant for it waits.
    pub(super) fn sleep(&mut self, id: NodeId, until: Instant, jump: Span) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.sleeps.is_none()) else { return };
        if self.healed || matches!(node.machine, NodeMachine::Down(_)) {
            return;
        }
        node.sleeps = Some(until);
        node.offset += jump.as_nanos();
        self.note(20, id, 0, || format!("sleeps until {until}"));
        self.push(until, Scheduled::Awake(id));
    }

    pub(super) fn awake(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.sleeps.take().is_some()
        {
            self.are_back([id]);
            self.input(id, None, None);
        }
    }

    /// Until when the node sleeps that this happens to.
    pub(super) fn sleeper(&self, event: &Scheduled) -> Option<Instant> {
        let node = match event {
            Scheduled::Datagram(node, ..)
            | Scheduled::Done(node, ..)
            | Scheduled::Commit(node, _)
            | Scheduled::Wake(node, _)
            | Scheduled::Reload(node) => node,
            _ => return None,
        };
        self.nodes.get(node)?.sleeps.filter(|until| *until > self.now)
    }
}
