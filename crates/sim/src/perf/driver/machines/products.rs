//! The product's own machines: the code that the daemons run.

use std::sync::Arc;

use erasure::Code;
use protocol::aggregator::{self, Aggregator};
use protocol::config::Config;
use protocol::id::coded::{Coded, Header};
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Event as InitiatorEvent, Initiator, Request, Stored};
use protocol::machine::Held;
use protocol::map::ClusterMap;
use protocol::redundancy::Wanted;
use protocol::rng::Rng;
use protocol::target::{Event as TargetEvent, Request as TargetRequest, Setup as TargetSetup, Target};
use protocol::wire::{Message, decode_message};

use super::workload::{Notice, Workload};
use crate::perf::driver::maps::Maps;
use crate::perf::driver::{Driver, Event, FREE, Fabric, MachineSet, Measures};
use crate::perf::node::{payload, piece};
use crate::perf::setup::profile::Profile;
use crate::perf::setup::{Load, Setup};
use crate::perf::stock::Stock;

/// A chunk of zeros in its pieces. (Nothing is computed: machines do not look at payload.)
fn in_pieces(code: Code, id: ChunkId, size: u32) -> Coded {
    let size = Header::piece_len(code, size as usize) as u32;
    Coded { id, pieces: (0..code.fragments() as u8).map(|number| piece(size, number)).collect() }
}

#[derive(Clone)]
pub(in crate::perf) struct Products {
    config: Arc<Config>,
    map: ClusterMap,
    workload: Workload,
    /// What may be lost.
    stock: Option<Stock>,
    /// By what chunks are put in pieces, and what is there for that.
    code: Option<Code>,
    lanes: u32,
    /// The seeds of initiators.
    seeds: Rng,
    is_closed: bool,
}

impl Products {
    pub(in crate::perf) fn new(setup: &Setup, profile: &Profile, maps: &Maps, seeds: &Rng) -> Self {
        let map = &maps.first;
        let mut config = profile.config.clone();
        if let Load::Closed { depth } = setup.load {
            config.depth = depth as usize;
        }
        let stock = profile.loss.map(|loss| {
            let (lost, size) = (maps.lost(), setup.mean_size() as u32);
            Stock::new(map, &lost, lost.len() * loss.chunks as usize, size, seeds.fork(8))
        });
        Self {
            stock,
            code: profile.code,
            lanes: profile.lanes.max(1),
            config: Arc::new(config),
            workload: Workload::new(
                seeds.fork(3),
                (&setup.sizes, profile.code),
                (profile.reads, profile.objects, profile.skew),
                map,
                setup.initiators,
            ),
            map: map.clone(),
            seeds: seeds.fork(2),
            is_closed: matches!(setup.load, Load::Closed { .. }),
        }
    }
}

impl MachineSet for Products {
    type Initiator = Initiator;
    type Target = Target;
    type Notice = Notice;

    fn initiator(&self, n: u32) -> Initiator {
        let id = NodeId(NodeId::FIRST_INITIATOR + n);
        Initiator::new(id, self.map.clone(), self.config.clone(), self.seeds.fork(u64::from(n)).next_u64())
    }

    fn target(&self, n: u32) -> Target {
        // Those that put, too, need numbers of their own for their transactions.
        let seed = self.stock.as_ref().map_or(0, |_| self.seeds.fork(1 << 32 | u64::from(n)).next_u64());
        let own = TargetSetup { id: NodeId(n), map: self.map.clone(), free: FREE, chunks: 0, seed, bug: None };
        Target::new(own, self.config.clone())
    }

    fn aggregators(&self) -> Vec<Aggregator> {
        let config = &self.config;
        let config = Config { link_rate: config.link_rate * u64::from(self.lanes), ..Config::clone(config) };
        let config = Arc::new(config);
        let ids = self.map.aggregators().iter();
        let setup = |id| aggregator::Setup { id, map: self.map.clone(), memory: aggregator::MEMORY, bug: None };
        ids.map(|id| Aggregator::new(setup(*id), Arc::clone(&config))).collect()
    }

    fn request(&mut self, n: u32, now: u64, _: &mut Rng) -> Request {
        let wish = self.workload.wish(n, now);
        if wish.is_put {
            let put = match self.code {
                Some(code) => ChunkPut::coded(in_pieces(code, wish.id, wish.size)),
                None => ChunkPut::new(wish.id, payload(wish.size)),
            };
            Request::Put { handle: wish.handle, put }
        } else {
            Request::Get { handle: wish.handle, id: wish.id, holders: Vec::new(), fragments: None }
        }
    }

    fn on_event<F: Fabric>(driver: &mut Driver<'_, Self, F>, n: u32, event: InitiatorEvent) {
        let (machines, measures) = (&mut driver.machines, &mut driver.measures);
        let (handle, good, rounds) = match event {
            InitiatorEvent::Put { handle, result } => {
                let least = machines.map.least(None);
                let is_durable = |stored: &Stored| {
                    let is_enough = match machines.code {
                        Some(code) => stored.holders.len() >= code.fragments(),
                        None => usize::from(stored.copies) >= least,
                    };
                    is_enough && machines.workload.holds(n, handle, &stored.holders)
                };
                measures.undurable += u64::from(result.as_ref().is_ok_and(|stored| !is_durable(stored)));
                (handle, result.is_ok(), result.map_or(0, |stored| stored.rounds))
            }
            InitiatorEvent::Get { handle, result } => {
                (handle, result.is_ok(), result.map_or(0, |fetched| fetched.rounds))
            }
            InitiatorEvent::RepairAsked => return measures.count.repairs += 1,
            InitiatorEvent::Hedged => return measures.count.hedged += 1,
            InitiatorEvent::Query { .. }
            | InitiatorEvent::Pieces { .. }
            | InitiatorEvent::NewerMap(_)
            | InitiatorEvent::Bid { .. }
            | InitiatorEvent::RepairSent
            | InitiatorEvent::Multicast { .. }
            | InitiatorEvent::Ignored(_)
            | InitiatorEvent::CorruptCopy { .. } => return,
        };
        let (over, notice) = machines.workload.over(n, handle);
        measures.count.puts += u64::from(good && over.is_put);
        measures.count.gets += u64::from(good && !over.is_put);
        measures.count.failed += u64::from(!good);
        measures.count.more_rounds += u64::from(rounds.saturating_sub(1));
        if good {
            measures.count_over_time(driver.now);
        }
        let in_window = over.begun >= measures.began && measures.ended.is_none_or(|end| over.begun < end);
        if in_window && driver.now >= driver.setup.warm_up.as_nanos() {
            if measures.ended.is_some() {
                measures.close(driver.now);
                measures.stopped.failed += u64::from(!good);
            }
            let took = driver.now - over.begun;
            match (good, over.is_put) {
                (true, true) => measures.put_took(driver.now, took, took),
                (true, false) => measures.get_took(driver.now, took),
                (false, _) => {}
            }
        }
        let is_closed = machines.is_closed;
        if let Some(notice) = notice {
            driver.tell_all(n + driver.setup.targets, notice);
        }
        if is_closed {
            // When the outputs of this moment are taken.
            driver.push(n + driver.setup.targets, driver.now, Event::Arrival(n));
        }
    }

    fn on_target_event(&mut self, measures: &mut Measures, now: u64, event: &TargetEvent) {
        match event {
            TargetEvent::RepairAsked => measures.count.repairs += 1,
            TargetEvent::Released { .. } => measures.count.released += 1,
            TargetEvent::Expired => measures.count.expired += 1,
            TargetEvent::Restored { id, .. } => self.stock.iter_mut().for_each(|stock| stock.restored(id, now)),
            _ => {}
        }
    }

    fn stock(&mut self) -> Option<&mut Stock> {
        self.stock.as_mut()
    }

    fn map_for_initiator(map: &ClusterMap) -> Request {
        Request::Map(map.clone())
    }

    fn map_for_target(map: &ClusterMap) -> TargetRequest {
        TargetRequest::Map(map.clone())
    }

    fn found(&self, id: &ChunkId, on: NodeId) -> Option<Held> {
        if let Some(stock) = &self.stock
            && Stock::names(id)
        {
            return stock.found(id, on).map(|size| Held { id: *id, size, wanted: Wanted::BY_MAP });
        }
        self.workload.found(id, on)
    }

    fn stored(&mut self, id: &ChunkId, size: u32, on: NodeId) -> Option<(Notice, NodeId)> {
        self.workload.stored(id, size, on)
    }

    fn asks_plainly(&self, message: &[u8]) -> bool {
        !self.config.transport.reserved && matches!(decode_message(message), Some((_, Message::PutRequest(_))))
    }

    fn note(&mut self, notice: Notice) {
        self.workload.note(notice);
    }

    fn unfinished(&self, from: u64, to: u64) -> u64 {
        self.workload.unfinished(from, to)
    }

    fn requests(_: &Target) -> (u64, u64) {
        (0, 0)
    }
}
