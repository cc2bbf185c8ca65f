//! A newer cluster map: it is fetched from a node that uses it.

use super::{Event, IgnoredReason, NodeId, Target};
use crate::id::Epoch;
use crate::initiator;
use crate::machine::Input;
use crate::map::ClusterMap;
use crate::map_fetch::{Step, parts};
use crate::wire::{MapPart, MapRequest};

impl Target {
    pub(super) fn new_map(&mut self, map: ClusterMap) {
        if map.epoch > self.setup.map.epoch && map.cluster == self.setup.map.cluster {
            self.map_fetch.uses(map.epoch);
            self.setup.map = map.clone();
            self.initiate(Input::Request(initiator::Request::Map(map)));
            self.lead.forget();
            self.lead_due = None;
        }
    }

    /// Another node uses a newer map.
    pub(super) fn learn_of_map(&mut self, from: NodeId, epoch: Epoch) {
        let step = self.map_fetch.note_epoch(self.now, from, epoch, self.config.late);
        self.fetch_map(step);
    }

    pub(super) fn map_part(&mut self, from: NodeId, epoch: Epoch, part: &MapPart) {
        let step = self.map_fetch.part(self.now, from, epoch, part, self.config.late);
        self.fetch_map(step);
    }

    pub(super) fn fetch_map_on(&mut self) {
        let step = self.map_fetch.wake(self.now, self.config.late);
        self.fetch_map(step);
    }

    fn fetch_map(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Send(node, request) => self.send(node, &request),
            Step::Over(newer) => self.event(Event::NewerMap(newer)),
            Step::Unsolicited => self.event(Event::Ignored(IgnoredReason::Late)),
        }
    }

    pub(super) fn send_map(&mut self, to: NodeId, theirs: Epoch, request: MapRequest) {
        let map = self.setup.map.clone();
        let answers: Vec<_> = parts(&map, theirs, request).collect();
        if answers.is_empty() {
            self.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        answers.iter().for_each(|part| self.send(to, part));
    }
}
