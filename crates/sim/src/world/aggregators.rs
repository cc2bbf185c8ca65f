//! Aggregators: they stop and start again, or are cut off, some compute what is wrong, and none is relied on.

use protocol::aggregator::{Aggregator, Event, Setup};
use protocol::config::Config;
use protocol::id::NodeId;
use protocol::machine::{Completion, WriteFailure};
use protocol::rng::Rng;
use protocol::time::Span;

use super::{Node, NodeMachine, STORM, Scheduled, World};
use crate::planted::PlantedBug;

/// Bytes of parity that one computes at once: few chunks.
const MEMORY: u64 = 40_000;

impl World<'_> {
    pub(super) fn add_aggregators(&mut self) {
        for id in self.topology.aggregators.clone() {
            let machine = self.aggregator(id);
            self.add(id, machine);
            let mut rng = Rng::new(self.scenario.seed).fork(90).fork(id.0.into());
            for _ in 0..self.scenario.aggregators.troubles {
                let (stops, down) = (rng.below(STORM.as_nanos()), rng.below(STORM.as_nanos() / 4));
                let stops = self.now + Span::from_nanos(stops);
                let again = stops + Span::from_nanos(down);
                let way = rng.below(6);
                if way < 3 {
                    self.push(stops, Scheduled::Crash(id));
                    self.push(again, Scheduled::Restart(id));
                } else {
                    self.push(stops, Scheduled::Cut(vec![id], way != 3, way != 4));
                    self.push(again, Scheduled::Mend);
                }
            }
        }
    }

    /// One that has passed nothing yet.
    pub(super) fn aggregator(&self, id: NodeId) -> NodeMachine {
        let bug = match self.scenario.planted {
            Some(PlantedBug::Aggregator(bug)) => Some(bug),
            _ => self.scenario.aggregators.lies,
        };
        let setup = Setup { id, map: self.maps[self.file(id)].clone(), memory: MEMORY, bug };
        let config = &self.scenario.config;
        let link_rate = config.link_rate * u64::from(self.scenario.aggregators.lanes);
        NodeMachine::Aggregator(Box::new(Aggregator::new(setup, Config { link_rate, ..config.clone() })))
    }

    /// One is killed before the heal: all that it had is gone. Whether it is one.
    pub(super) fn stop_aggregator(&mut self, id: NodeId) -> bool {
        let is_one = self.topology.aggregators.contains(&id);
        let runs = |node: &&mut Node| matches!(node.machine, NodeMachine::Aggregator(_));
        if let Some(node) = self.nodes.get_mut(&id).filter(runs).filter(|_| !self.healed) {
            node.life += 1;
            node.wake += 1;
            node.machine = NodeMachine::Off;
            self.note(30, id, 0, || "is killed".to_owned());
        }
        is_one
    }

    /// It runs again, if it does not. Whether it is one.
    pub(super) fn start_aggregator(&mut self, id: NodeId) -> bool {
        let is_one = self.topology.aggregators.contains(&id);
        if is_one && self.nodes.get(&id).is_some_and(|node| matches!(node.machine, NodeMachine::Off)) {
            let (offset, session, map) = (self.rng.below(1_000_000_000), self.session(id), self.file(id));
            self.uses(id, map);
            let machine = self.aggregator(id);
            if let Some(node) = self.nodes.get_mut(&id) {
                (node.map, node.offset, node.session, node.machine) = (map, offset, session, machine);
            }
            self.note(31, id, 0, || "restarts".to_owned());
        }
        is_one
    }

    pub(super) fn aggregator_event(&mut self, id: NodeId, event: &Event) {
        if let Event::Passed { came, sent, .. } = event {
            self.outcome.passed += 1;
            self.note(32, id, 0, || format!("passed {came} bytes on as {sent}"));
        }
    }

    /// What an aggregator sends that is well is what the writer would have sent: where nothing damages payload, nobody refuses it.
    pub(super) fn check_refusal(&mut self, by: NodeId, completion: &Completion) {
        let aggregators = &self.scenario.aggregators;
        let is_judged = aggregators.count > 0 && aggregators.lies.is_none() && self.scenario.faults.corrupt == 0;
        if is_judged && matches!(completion, Completion::Written { result: Err(WriteFailure::BadHash), .. }) {
            self.fail(format!("{by} refuses what it was sent, and nothing was damaged"));
        }
    }
}
