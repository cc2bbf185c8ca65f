//! Targets that crash: what the machine knew and what was not synced is lost, what was synced is there when it starts anew.

use protocol::id::{GroupId, NodeId};

use super::{Cluster, Happening, target};

/// How often a node has started, and whether it is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) number: u32,
    pub(super) is_down: bool,
}

impl Cluster<'_> {
    /// The lowest of the next group crashes, which leads it where groups have leaders.
    pub(super) fn crash(&mut self) {
        let Some(crashes) = self.profile.crashes else { return };
        self.queue.push(self.now + crashes.every.as_nanos(), Happening::Crash);
        let group = GroupId(self.crashed % self.map.groups().max(1));
        self.crashed += 1;
        let Some(NodeId(node)) = self.map.members(group).map(|member| member.id).min() else { return };
        let life = &mut self.lives[node as usize];
        if core::mem::replace(&mut life.is_down, true) {
            return;
        }
        // What was begun before is nobody's any more. The port still sends what it was given.
        life.number += 1;
        self.disks[node as usize].crash(self.now);
        self.processors[node as usize].inbox.clear();
        self.armed[node as usize] = u64::MAX;
        self.queue.push(self.now + crashes.down.as_nanos(), Happening::Restart(node));
    }

    pub(super) fn restart(&mut self, node: u32) {
        self.lives[node as usize].is_down = false;
        self.targets[node as usize] = target(node, &self.map, &self.profile.config);
        self.drain(node);
    }

    /// Whether what was begun in this life of a node still counts.
    pub(super) fn lives(&self, node: u32, life: u32) -> bool {
        self.lives[node as usize] == Life { number: life, is_down: false }
    }
}
