//! What the initiators are asked: puts of new chunks, and gets of those that are there from the beginning.

use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::map::ClusterMap;
use protocol::rng::{Rng, mix};

use super::super::chance::{power, weighted};

/// A chunk that is there from the beginning.
#[derive(Debug)]
struct Object {
    size: u32,
    holders: Vec<NodeId>,
}

/// A request under way; its place is in the chunk's id and in the handle.
#[derive(Debug, Default)]
struct Asked {
    number: u64,
    begun: u64,
    size: u32,
    /// Targets on whose disk the chunk of a put is.
    holders: Vec<NodeId>,
    is_put: bool,
}

/// A request that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Over {
    pub(super) begun: u64,
    pub(super) is_put: bool,
}

/// All chunks and all requests.
#[derive(Debug)]
pub(super) struct Workload {
    rng: Rng,
    sizes: Vec<(u32, u32)>,
    reads: u32,
    objects: Vec<Object>,
    /// Sums of the weights of the objects.
    popularity: Vec<u64>,
    asked: Vec<Asked>,
    free: Vec<u32>,
    next: u64,
}

/// What an initiator is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) handle: u64,
    pub(super) id: ChunkId,
    pub(super) size: u32,
    pub(super) is_put: bool,
}

/// The id of a chunk by its number and its place: the first bytes decide its group.
fn id_of(number: u64, place: u32) -> ChunkId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&mix(number).to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes[16..20].copy_from_slice(&place.to_le_bytes());
    ChunkId::from_parts(ChunkKind::Payload, bytes)
}

fn number_of(id: &ChunkId) -> (u64, u32) {
    let (mut number, mut place) = ([0; 8], [0; 4]);
    number.copy_from_slice(&id.bytes()[8..16]);
    place.copy_from_slice(&id.bytes()[16..20]);
    (u64::from_le_bytes(number), u32::from_le_bytes(place))
}

impl Workload {
    pub(super) fn new(
        mut rng: Rng,
        sizes: &[(u32, u32)],
        (reads, objects, skew): (u32, u32, u32),
        map: &ClusterMap,
    ) -> Self {
        let count = if reads == 0 { 0 } else { u64::from(objects.max(1)) };
        let (mut all, mut popularity, mut sum) = (Vec::new(), Vec::new(), 0);
        for number in 0..count {
            let ranked = map.ranked(&id_of(number, 0));
            let mut domains = Vec::new();
            let mut apart = |target: &NodeId| {
                let domain = map.domain(*target);
                !domains.contains(&domain) && domains.len() < usize::from(map.copies) && {
                    domains.push(domain);
                    true
                }
            };
            let holders = ranked.into_iter().filter(&mut apart).collect();
            all.push(Object { size: weighted(&mut rng, sizes), holders });
            sum += power(number + 1, skew);
            popularity.push(sum);
        }
        Self {
            rng,
            sizes: sizes.to_vec(),
            reads,
            objects: all,
            popularity,
            asked: Vec::new(),
            free: Vec::new(),
            next: count,
        }
    }

    /// The next request.
    pub(super) fn wish(&mut self, now: u64) -> Wish {
        let place = self.free.pop().unwrap_or_else(|| {
            self.asked.push(Asked::default());
            self.asked.len() as u32 - 1
        });
        let is_put = !self.rng.chance(u64::from(self.reads), 100);
        let (number, size) = if is_put {
            self.next += 1;
            (self.next, weighted(&mut self.rng, &self.sizes))
        } else {
            let at = self.rng.below(self.popularity.last().copied().unwrap_or(1));
            let number = self.popularity.partition_point(|sum| *sum <= at);
            (number as u64, self.objects[number].size)
        };
        let asked = &mut self.asked[place as usize];
        (asked.number, asked.begun, asked.size, asked.is_put) = (number, now, size, is_put);
        asked.holders.clear();
        let id = id_of(number, if is_put { place } else { 0 });
        Wish { handle: u64::from(place), id, size, is_put }
    }

    /// A request is over.
    pub(super) fn over(&mut self, handle: u64) -> Over {
        let asked = &mut self.asked[handle as usize];
        let over = Over { begun: asked.begun, is_put: asked.is_put };
        // Nobody finds its chunk from now on: what is asked after now is only a copy too many.
        asked.number = u64::MAX;
        self.free.push(handle as u32);
        over
    }

    /// A copy of a chunk is durable on a target.
    pub(super) fn stored(&mut self, id: &ChunkId, on: NodeId) {
        let (number, place) = number_of(id);
        if let Some(asked) = self.asked.get_mut(place as usize).filter(|asked| asked.is_put && asked.number == number) {
            asked.holders.push(on);
        }
    }

    /// Whether the chunk of a put is durable on all of these.
    pub(super) fn holds(&self, handle: u64, holders: &[NodeId]) -> bool {
        holders.iter().all(|holder| self.asked[handle as usize].holders.contains(holder))
    }

    /// The size of a chunk if it is durable on a target.
    pub(super) fn found(&self, id: &ChunkId, on: NodeId) -> Option<u32> {
        let (number, place) = number_of(id);
        if let Some(object) = self.objects.get(number as usize) {
            return object.holders.contains(&on).then_some(object.size);
        }
        let asked = self.asked.get(place as usize).filter(|asked| asked.is_put && asked.number == number)?;
        asked.holders.contains(&on).then_some(asked.size)
    }

    /// Requests under way that began from `from` until `to`.
    pub(super) fn unfinished(&self, from: u64, to: u64) -> u64 {
        let open = self.asked.iter().filter(|asked| asked.number != u64::MAX);
        open.filter(|asked| (from..to).contains(&asked.begun)).count() as u64
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
        let mut workload = Workload::new(Rng::new(1), &[(1_000, 1)], (100, 100, 100), &map());
        let mut counts = [0_u64; 100];
        for _ in 0..200_000 {
            let wish = workload.wish(0);
            counts[number_of(&wish.id).0 as usize] += 1;
            assert!(!wish.is_put && workload.objects[0].holders.len() == 3);
            workload.over(wish.handle);
        }
        let harmonic: f64 = (1..=100).map(|k| 1.0 / f64::from(k)).sum();
        for k in [1, 2, 5, 20] {
            let (is, should) = (counts[k - 1] as f64 / 200_000.0, 1.0 / k as f64 / harmonic);
            assert!((is / should - 1.0).abs() < 0.05, "{k}: {is} is not {should}");
        }
    }

    #[test]
    fn what_is_durable_is_found_there_until_its_put_is_over() {
        let mut workload = Workload::new(Rng::new(1), &[(1_000, 1)], (50, 10, 0), &map());
        let wish = std::iter::repeat_with(|| workload.wish(5)).find(|wish| wish.is_put).unwrap();
        assert_eq!(workload.found(&wish.id, NodeId(4)), None);
        workload.stored(&wish.id, NodeId(4));
        assert_eq!((workload.found(&wish.id, NodeId(4)), workload.found(&wish.id, NodeId(5))), (Some(1_000), None));
        let before = workload.unfinished(5, 6);
        workload.over(wish.handle);
        assert_eq!((workload.found(&wish.id, NodeId(4)), workload.unfinished(5, 6)), (None, before - 1));
    }
}
