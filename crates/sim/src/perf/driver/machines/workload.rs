//! What the initiators are asked: puts of new chunks, and gets of those that are there from the beginning.

use std::sync::Arc;

use erasure::Code;
use protocol::id::{ChunkId, ChunkKind, NodeId, coded};
use protocol::machine::Held as HeldThere;
use protocol::map::ClusterMap;
use protocol::redundancy::{Piece, Wanted};
use protocol::rng::{Rng, mix};
use smallvec::SmallVec;

use crate::perf::chance::{power, weighted};

/// A chunk that is there from the beginning.
#[derive(Debug)]
struct Object {
    size: u32,
    holders: Vec<NodeId>,
}

/// A put or get under way; its place is in the chunk's id and is its handle.
#[derive(Clone, Debug, Default)]
struct Operation {
    /// The chunk's; [`OVER`] when nothing is under way.
    number: u64,
    begun: u64,
    is_put: bool,
    /// Targets on whose disk the chunk of a put is, as far as its initiator's part of the run knows.
    holders: SmallVec<[NodeId; 4]>,
}

/// The number of no chunk.
const OVER: u64 = u64::MAX;

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) begun: u64,
    pub(super) is_put: bool,
}

/// What one initiator is asked to do.
#[derive(Clone, Debug)]
struct Client {
    rng: Rng,
    operations: Vec<Operation>,
    free: Vec<u32>,
    /// Chunks that it was asked to put.
    puts: u64,
}

/// The chunk of a put, as the disks of this part of a run have it.
#[derive(Clone, Debug, Default)]
struct Held {
    number: u64,
    size: u32,
    /// Whether the put is over: nobody finds the chunk any more, what is asked from then on is only a copy too many.
    is_over: bool,
    /// Which target has which piece; copies are all alike.
    holders: SmallVec<[(NodeId, Piece); 4]>,
}

/// What the other parts of a run should know.
#[derive(Clone, Copy, Debug)]
pub(in crate::perf) enum Notice {
    /// The chunk of a put is on a target's disk.
    Stored(Chunk, NodeId),
    /// A put is over.
    Over(Chunk),
}

/// Which chunk: its number, and the initiator and its place that put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::perf) struct Chunk {
    number: u64,
    initiator: u32,
    place: u32,
}

impl Chunk {
    /// Its id: the first bytes decide its group.
    fn id(self, code: Option<Code>) -> ChunkId {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&mix(self.number).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.place.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.initiator.to_le_bytes());
        let Some(code) = code else { return ChunkId::from_parts(ChunkKind::Payload, bytes) };
        bytes[coded::HASHED] = code.byte();
        ChunkId::from_parts(ChunkKind::Coded, bytes).whole()
    }

    fn of(id: &ChunkId) -> Self {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|n| id.bytes()[at + n]));
        let number = u64::from(word(12)) << 32 | u64::from(word(8));
        Self { number, place: word(16), initiator: word(20) }
    }
}

/// All chunks and all requests, as far as one part of a run has to do with them.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    sizes: Vec<(u32, u32)>,
    code: Option<Code>,
    reads: u32,
    /// Those that are there from the beginning, and the sums of their weights.
    objects: Arc<[Object]>,
    popularity: Arc<[u64]>,
    /// By initiator; of its own puts by place.
    clients: Vec<Client>,
    held: Vec<Vec<Held>>,
}

/// What an initiator is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) handle: u64,
    pub(super) id: ChunkId,
    pub(super) size: u32,
    pub(super) is_put: bool,
}

impl Workload {
    pub(super) fn new(
        mut rng: Rng,
        (sizes, code): (&[(u32, u32)], Option<Code>),
        (reads, objects, skew): (u32, u32, u32),
        map: &ClusterMap,
        initiators: u32,
    ) -> Self {
        let count = if reads == 0 { 0 } else { u64::from(objects.max(1)) };
        let (mut all, mut popularity, mut sum) = (Vec::new(), Vec::new(), 0);
        for number in 0..count {
            let ranked = map.ranked(&Chunk { number, initiator: 0, place: 0 }.id(None));
            let mut domains = Vec::new();
            let mut is_distinct = |target: &NodeId| {
                let domain = map.domain(*target);
                !domains.contains(&domain) && domains.len() < usize::from(map.copies) && {
                    domains.push(domain);
                    true
                }
            };
            let holders = ranked.into_iter().filter(&mut is_distinct).collect();
            all.push(Object { size: weighted(&mut rng, sizes), holders });
            sum += power(number + 1, skew);
            popularity.push(sum);
        }
        let clients = |n| Client { rng: rng.fork(u64::from(n)), operations: Vec::new(), free: Vec::new(), puts: 0 };
        Self {
            sizes: sizes.to_vec(),
            code,
            reads,
            objects: all.into(),
            popularity: popularity.into(),
            clients: (0..initiators).map(clients).collect(),
            held: vec![Vec::new(); initiators as usize],
        }
    }

    /// The next request of an initiator.
    pub(super) fn wish(&mut self, initiator: u32, now: u64) -> Wish {
        let Client { rng, operations, free, puts } = &mut self.clients[initiator as usize];
        let place = free.pop().unwrap_or_else(|| {
            operations.push(Operation::default());
            operations.len() as u32 - 1
        });
        let is_put = !rng.chance(u64::from(self.reads), 100);
        let (chunk, size) = if is_put {
            *puts += 1;
            let number = self.objects.len() as u64 + (u64::from(initiator) << 40 | *puts);
            (Chunk { number, initiator, place }, weighted(rng, &self.sizes))
        } else {
            let at = rng.below(self.popularity.last().copied().unwrap_or(1));
            let number = self.popularity.partition_point(|sum| *sum <= at);
            (Chunk { number: number as u64, initiator: 0, place: 0 }, self.objects[number].size)
        };
        let operation = &mut operations[place as usize];
        (operation.number, operation.begun, operation.is_put) = (chunk.number, now, is_put);
        operation.holders.clear();
        Wish { handle: u64::from(place), id: chunk.id(self.code.filter(|_| is_put)), size, is_put }
    }

    /// A request is over; what all parts of the run should know then.
    pub(super) fn over(&mut self, initiator: u32, handle: u64) -> (Over, Option<Notice>) {
        let place = handle as u32;
        let Client { operations, free, .. } = &mut self.clients[initiator as usize];
        free.push(place);
        let operation = &mut operations[place as usize];
        let number = core::mem::replace(&mut operation.number, OVER);
        let notice = operation.is_put.then_some(Notice::Over(Chunk { number, initiator, place }));
        (Over { begun: operation.begun, is_put: operation.is_put }, notice)
    }

    /// A copy of a chunk is durable on a target; what the part of its initiator should know.
    pub(super) fn stored(&mut self, id: &ChunkId, size: u32, on: NodeId) -> Option<(Notice, NodeId)> {
        let chunk = Chunk::of(id);
        if chunk.number < self.objects.len() as u64 {
            return None;
        }
        let held = self.held(chunk);
        if held.number < chunk.number {
            (held.number, held.size, held.is_over) = (chunk.number, size, false);
            held.holders.clear();
        }
        if held.number == chunk.number && !held.is_over {
            held.holders.push((on, id.piece().unwrap_or(Piece(0))));
        }
        Some((Notice::Stored(chunk, on), NodeId(NodeId::FIRST_INITIATOR + chunk.initiator)))
    }

    fn held(&mut self, chunk: Chunk) -> &mut Held {
        let held = &mut self.held[chunk.initiator as usize];
        if held.len() <= chunk.place as usize {
            held.resize(chunk.place as usize + 1, Held::default());
        }
        &mut held[chunk.place as usize]
    }

    /// A part of the run has a notice.
    pub(super) fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Stored(chunk, on) => {
                let operations = &mut self.clients[chunk.initiator as usize].operations;
                let operation =
                    operations.get_mut(chunk.place as usize).filter(|operation| operation.number == chunk.number);
                operation.into_iter().for_each(|operation| operation.holders.push(on));
            }
            Notice::Over(chunk) => {
                let held = self.held(chunk);
                if held.number <= chunk.number {
                    (held.number, held.is_over) = (chunk.number, true);
                }
            }
        }
    }

    /// Whether the chunk of a put is durable on all of these.
    pub(super) fn holds(&self, initiator: u32, handle: u64, holders: &[NodeId]) -> bool {
        let operation = &self.clients[initiator as usize].operations[handle as usize];
        holders.iter().all(|holder| operation.holders.contains(holder))
    }

    /// What of a chunk is durable on a target.
    pub(super) fn found(&self, id: &ChunkId, on: NodeId) -> Option<HeldThere> {
        let chunk = Chunk::of(id);
        if let Some(object) = self.objects.get(chunk.number as usize) {
            return object.holders.contains(&on).then_some(HeldThere {
                id: *id,
                size: object.size,
                wanted: Wanted::BY_MAP,
            });
        }
        let held = self.held.get(chunk.initiator as usize)?.get(chunk.place as usize)?;
        let (_, piece) = held.holders.iter().find(|(holder, _)| *holder == on)?;
        let found = HeldThere { id: id.of_piece(*piece), size: held.size, wanted: Wanted::BY_MAP };
        (held.number == chunk.number && !held.is_over).then_some(found)
    }

    /// Requests under way that began from `from` until `to`.
    pub(super) fn unfinished(&self, from: u64, to: u64) -> u64 {
        let operations = self.clients.iter().flat_map(|client| &client.operations);
        operations.filter(|operation| operation.number != OVER && (from..to).contains(&operation.begun)).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::{ClusterId, Epoch};
    use protocol::map::TargetEntry;

    fn map() -> ClusterMap {
        let entries = (0..9).map(|n| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 40 });
        ClusterMap::new(ClusterId(1), Epoch(1), 3, 3, entries.collect()).unwrap()
    }

    #[test]
    fn gets_follow_the_law_of_zipf() {
        let mut workload = Workload::new(Rng::new(1), (&[(1_000, 1)], None), (100, 100, 100), &map(), 1);
        let mut counts = [0_u64; 100];
        for _ in 0..200_000 {
            let wish = workload.wish(0, 0);
            counts[Chunk::of(&wish.id).number as usize] += 1;
            assert!(!wish.is_put && workload.objects[0].holders.len() == 3);
            workload.over(0, wish.handle);
        }
        let harmonic: f64 = (1..=100).map(|k| 1.0 / f64::from(k)).sum();
        for k in [1, 2, 5, 20] {
            let (is, should) = (counts[k - 1] as f64 / 200_000.0, 1.0 / k as f64 / harmonic);
            assert!((is / should - 1.0).abs() < 0.05, "{k}: {is} is not {should}");
        }
    }

    #[test]
    fn what_is_durable_is_found_there_until_its_put_is_over() {
        let mut workload = Workload::new(Rng::new(1), (&[(1_000, 1)], None), (50, 10, 0), &map(), 8);
        let mut elsewhere = workload.clone();
        let wish = std::iter::repeat_with(|| workload.wish(7, 5)).find(|wish| wish.is_put).unwrap();
        assert_eq!(elsewhere.found(&wish.id, NodeId(4)), None);
        let (notice, to) = elsewhere.stored(&wish.id, 1_000, NodeId(4)).unwrap();
        assert_eq!(to, NodeId(NodeId::FIRST_INITIATOR + 7));
        let found = |elsewhere: &Workload, on| elsewhere.found(&wish.id, NodeId(on)).map(|held| held.size);
        assert_eq!((found(&elsewhere, 4), found(&elsewhere, 5)), (Some(1_000), None));
        assert!(!workload.holds(7, wish.handle, &[NodeId(4)]));
        workload.note(notice);
        assert!(workload.holds(7, wish.handle, &[NodeId(4)]));
        let before = workload.unfinished(5, 6);
        let (_, notice) = workload.over(7, wish.handle);
        assert_eq!(workload.unfinished(5, 6), before - 1);
        elsewhere.note(notice.unwrap());
        // A copy that comes late is a copy too many.
        elsewhere.stored(&wish.id, 1_000, NodeId(6));
        assert_eq!((found(&elsewhere, 4), found(&elsewhere, 6)), (None, None));
    }
}
