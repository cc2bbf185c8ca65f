//! The papers' machines and the rivals'. They only put.

use paper::{Config, Event, Initiator, Members, Request, Target};
use protocol::id::{ChunkId, NodeId};
use protocol::machine::{Held, Machine};
use protocol::map::ClusterMap;
use protocol::rng::Rng;

use crate::perf::chance::weighted;
use crate::perf::driver::{Driver, Fabric, MachineSet, Measures};
use crate::perf::node::payload;
use crate::perf::setup::{Load, Paper, Setup};
use crate::perf::stock::Stock;

#[derive(Clone)]
pub(in crate::perf) struct Papers {
    initiators: Config,
    /// Of each target: its disk's rate is its own.
    targets: Vec<Config>,
    members: Members,
    /// What targets draw from, and what the seeds of initiators are drawn from.
    seeds: [Rng; 2],
    sizes: Vec<(u32, u32)>,
    puts: u64,
    /// The time behind which completions are not counted, from the beginning of the measured time.
    counted: Option<u64>,
    is_closed: bool,
}

impl Papers {
    pub(in crate::perf) fn new(setup: &Setup, paper: &Paper, map: &ClusterMap, seeds: &Rng) -> Self {
        let mut config = paper.config.clone();
        config.initiators = setup.initiators;
        if let Load::Closed { depth } = setup.load {
            config.depth = depth as usize;
        }
        let target = |n| {
            let slower = setup.slow.of(n);
            let disk = setup.written_alone(slower).unwrap_or_else(|| config.disk / u64::from(slower));
            Config { disk, ..config.clone() }
        };
        Self {
            targets: (0..setup.targets).map(target).collect(),
            initiators: Config { disk: setup.written_alone(1).unwrap_or(config.disk), ..config.clone() },
            members: Members::new(map, config.overlap),
            seeds: [seeds.fork(1), seeds.fork(2)],
            sizes: setup.sizes.clone(),
            puts: 0,
            counted: paper.quirks.last_hundredth.then(|| 99 * (setup.length.as_nanos() / 100)),
            is_closed: matches!(setup.load, Load::Closed { .. }),
        }
    }
}

impl MachineSet for Papers {
    type Initiator = Initiator;
    type Target = Target;
    type Notice = core::convert::Infallible;

    fn initiator(&self, n: u32) -> Initiator {
        let id = NodeId(NodeId::FIRST_INITIATOR + n);
        Initiator::new(id, self.members.clone(), self.initiators.clone(), self.seeds[1].clone().next_u64())
    }

    fn target(&self, n: u32) -> Target {
        Target::new(NodeId(n), self.targets[n as usize].clone(), self.seeds[0].clone().next_u64())
    }

    fn request(&mut self, _: u32, _: u64, rng: &mut Rng) -> Request {
        let size = weighted(rng, &self.sizes);
        self.puts += 1;
        Request { handle: self.puts, payload: payload(size) }
    }

    fn on_event<F: Fabric>(driver: &mut Driver<'_, Self, F>, n: u32, event: Event) {
        let measures = &mut driver.measures;
        match event {
            Event::Put { took, attempt, .. } => {
                if driver.machines.counted.is_none_or(|most| driver.now < measures.began + most) {
                    measures.count.puts += 1;
                    measures.put_took(driver.now, took.as_nanos(), attempt.as_nanos());
                }
                if driver.machines.is_closed {
                    driver.ask(n);
                }
            }
            Event::Aborted => measures.count.aborted += 1,
            Event::AnotherRound => measures.count.more_rounds += 1,
            Event::Cancelled => measures.count.cancelled += 1,
            Event::Rejected => measures.count.rejected += 1,
        }
    }

    fn on_target_event(&mut self, _: &mut Measures, _: u64, event: &core::convert::Infallible) {
        match *event {}
    }

    fn stock(&mut self) -> Option<&mut Stock> {
        None
    }

    fn map_for_initiator(_: &ClusterMap) -> Request {
        panic!("the papers' maps stay as they are")
    }

    fn map_for_target(_: &ClusterMap) -> <Target as Machine>::Request {
        panic!("the papers' maps stay as they are")
    }

    fn found(&self, _: &ChunkId, _: NodeId) -> Option<Held> {
        None
    }

    fn stored(&mut self, _: &ChunkId, _: u32, _: NodeId) -> Option<(Self::Notice, NodeId)> {
        None
    }

    fn asks_plainly(&self, _: &[u8]) -> bool {
        false
    }

    fn note(&mut self, notice: Self::Notice) {
        match notice {}
    }

    fn unfinished(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn requests(target: &Target) -> (u64, u64) {
        target.requests()
    }
}
