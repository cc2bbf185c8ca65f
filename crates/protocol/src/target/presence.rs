//! A target that stops on purpose says so, and so does one that was started: no node waits for it meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::witness::witnesses_of;
use super::{Event, Head, IgnoredReason, Input, Message, NodeId, Target};
use crate::time::Instant;

/// Places for initiators that are told; each has the one that its id says. An initiator that is not told finds out by
/// itself.
const TOLD: usize = 64;

/// Which initiators were heard, and which targets have left.
#[derive(Debug, Default)]
pub(super) struct Presence {
    initiators: Vec<Option<NodeId>>,
    left: BTreeMap<NodeId, Instant>,
}

impl Presence {
    /// Something came from a node.
    pub(super) fn hear(&mut self, from: NodeId) {
        if from.is_initiator() {
            self.initiators.resize(TOLD, None);
            self.initiators[from.0 as usize % TOLD] = Some(from);
        } else if !self.left.is_empty() {
            self.left.remove(&from);
        }
    }
}

impl Target {
    /// The targets that said that they stop, and when that was heard: until something comes from them again.
    pub fn left(&self) -> impl Iterator<Item = (NodeId, Instant)> {
        self.presence.left.iter().map(|(node, at)| (*node, *at))
    }

    /// Tells the initiators that were heard lately and the members of its groups and its witnesses that it is there from now on, or not.
    pub(super) fn say_presence(&mut self, here: bool) {
        let (own, map) = (self.setup.id, &self.setup.map);
        let groups = map.group_ids().map(|group| map.members(group).map(|member| member.id).collect::<Vec<NodeId>>());
        let mut neighbours: BTreeSet<NodeId> = groups.filter(|members| members.contains(&own)).flatten().collect();
        neighbours.extend(witnesses_of(own, map));
        let initiators: Vec<NodeId> = self.presence.initiators.iter().copied().flatten().collect();
        let message = Message::Presence { here };
        let told = neighbours.into_iter().filter(|node| *node != own).chain(initiators);
        told.for_each(|node| self.send(node, &message));
    }

    /// What is known from any message: that its sender is there, and how new its map is.
    pub(super) fn hear(&mut self, head: &Head, message: &Message) {
        if head.epoch > self.setup.map.epoch {
            self.learn_of_map(head.from, head.epoch);
        }
        self.marks.note_epoch(head.epoch);
        // A node that accepts a window has asked for it.
        if !matches!(message, Message::Accept { .. }) {
            self.presence.hear(head.from);
        }
    }

    /// Another target stops, or has been started.
    pub(super) fn presence(&mut self, from: NodeId, here: bool, datagram: &Bytes) {
        if self.setup.map.target(from).is_none() {
            return self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        if here {
            self.look_what_is_there(from);
        } else {
            self.presence.left.insert(from, self.now);
            // What is put again from here does not wait for it either.
            let arrived = self.arrived;
            self.initiate(Input::Datagram { bytes: datagram.clone(), arrived });
        }
    }
}
