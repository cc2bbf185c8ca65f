//! What targets hold from the beginning where some are to be lost: which chunks, and which targets have a copy.
//!
//! Only chunks of which a lost target has a copy are kept: nothing has to be made of others. What clients put meanwhile
//! is not in it.

use std::collections::BTreeMap;

use protocol::census::{Count, Counted, Holding, IdRange};
use protocol::id::{ChunkId, ChunkKind, GroupId, NodeId};
use protocol::map::ClusterMap;
use protocol::redundancy::Wanted;
use protocol::rng::Rng;
use smallvec::SmallVec;

use super::setup::repair::{Mended, Need};
use super::stats::histogram;

/// What stands in a chunk's id where others name their initiator.
const OWNER: [u8; 4] = [u8::MAX; 4];

#[derive(Clone, Debug)]
struct Held {
    id: ChunkId,
    holders: SmallVec<[NodeId; 4]>,
    /// When somebody was told to read it.
    read: u64,
}

/// All chunks that are there from the beginning, in the order of their ids, and what became of them.
#[derive(Clone, Debug)]
pub(super) struct Stock {
    chunks: Vec<Held>,
    /// The places of the chunks of each group, in the same order.
    groups: BTreeMap<GroupId, Vec<u32>>,
    size: u32,
    map: ClusterMap,
    /// Copies that are to be made.
    missing: u64,
    lost_at: Option<u64>,
    /// The measured time, once it began and once it ended.
    began: Option<u64>,
    ended: bool,
    mended: Mended,
}

/// As many holders in distinct failure domains as there are copies, any of the group.
fn draw_holders(map: &ClusterMap, id: &ChunkId, rng: &mut Rng) -> SmallVec<[NodeId; 4]> {
    let mut members: Vec<NodeId> = map.members(map.group_of(id)).map(|member| member.id).collect();
    let (mut holders, mut domains) = (SmallVec::new(), Vec::new());
    while !members.is_empty() && holders.len() < usize::from(map.copies) {
        let member = members.swap_remove(rng.below(members.len() as u64) as usize);
        if !domains.contains(&map.domain(member)) {
            domains.push(map.domain(member));
            holders.push(member);
        }
    }
    holders
}

impl Stock {
    /// `count` chunks of which one of the `lost` has a copy, each of `size` bytes.
    pub(super) fn new(map: &ClusterMap, lost: &[NodeId], count: usize, size: u32, mut rng: Rng) -> Self {
        let mut chunks = Vec::new();
        while chunks.len() < count {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
            bytes[20..24].copy_from_slice(&OWNER);
            let id = ChunkId::from_parts(ChunkKind::Payload, bytes);
            let holders = draw_holders(map, &id, &mut rng);
            if holders.iter().any(|holder| lost.contains(holder)) {
                chunks.push(Held { id, holders, read: 0 });
            }
        }
        chunks.sort_unstable_by_key(|chunk| chunk.id);
        chunks.dedup_by_key(|chunk| chunk.id);
        let mended = Mended {
            lost: 0,
            made: 0,
            surplus: 0,
            in_time: 0,
            left: 0,
            first: None,
            whole: None,
            took: histogram(),
            censuses: 0,
            disks: Vec::new(),
            needs: Vec::new(),
        };
        let mut stock = Self {
            chunks,
            groups: BTreeMap::new(),
            size,
            map: map.clone(),
            missing: 0,
            lost_at: None,
            began: None,
            ended: false,
            mended,
        };
        stock.group();
        stock
    }

    fn group(&mut self) {
        self.groups.clear();
        for (place, chunk) in (0..).zip(&self.chunks) {
            self.groups.entry(self.map.group_of(&chunk.id)).or_default().push(place);
        }
    }

    /// Its place, if it is one of these.
    pub(super) fn index_of(&self, id: &ChunkId) -> Option<usize> {
        if Self::names(id) { self.chunks.binary_search_by_key(id, |chunk| chunk.id).ok() } else { None }
    }

    /// Whether this is the id of a chunk that is there from the beginning.
    pub(super) fn names(id: &ChunkId) -> bool {
        id.bytes()[20..24] == OWNER
    }

    /// The size of a chunk if a target has it.
    pub(super) fn found(&self, id: &ChunkId, on: NodeId) -> Option<u32> {
        self.chunks.get(self.index_of(id)?).filter(|chunk| chunk.holders.contains(&on)).map(|_| self.size)
    }

    /// What a target holds of a group's chunks in a range.
    pub(super) fn census(
        &mut self,
        on: NodeId,
        group: GroupId,
        (range, salt, after): (IdRange, u64, Option<ChunkId>),
    ) -> Holding {
        self.mended.censuses += u64::from(self.lost_at.is_some());
        let mut count = Count::new(range, salt, after);
        let places = self.groups.get(&group).map_or(&[][..], Vec::as_slice);
        let (first, last) = range.ends(ChunkKind::Payload);
        let first = after.filter(|after| *after > first).unwrap_or(first);
        let from = places.partition_point(|place| self.chunks[*place as usize].id < first);
        let chunks = places[from..].iter().map(|place| &self.chunks[*place as usize]);
        let within = chunks.take_while(|chunk| chunk.id <= last).filter(|chunk| chunk.holders.contains(&on));
        let _ = within.map(|chunk| Counted { id: chunk.id, wanted: Wanted::BY_MAP }).all(|copy| count.add(copy));
        count.finish()
    }

    /// Copies that a chunk lacks in its group.
    fn lacks(&self, place: usize) -> u64 {
        let chunk = &self.chunks[place];
        let group: SmallVec<[NodeId; 16]> =
            self.map.members(self.map.group_of(&chunk.id)).map(|member| member.id).collect();
        let here: SmallVec<[NodeId; 4]> =
            chunk.holders.iter().copied().filter(|holder| group.contains(holder)).collect();
        u64::from(self.map.copies).saturating_sub(self.map.count_domains(&here) as u64)
    }

    /// Targets are lost, and the next map is in use.
    pub(super) fn lose(&mut self, now: u64, lost: &[NodeId], next: &ClusterMap) {
        self.chunks.iter_mut().for_each(|chunk| chunk.holders.retain(|holder| !lost.contains(holder)));
        self.map = next.clone();
        self.group();
        self.lost_at = Some(now);
        self.missing = (0..self.chunks.len()).map(|place| self.lacks(place)).sum();
        self.mended.lost = self.missing;
        let mut needs: BTreeMap<(Vec<u32>, Vec<u32>), u64> = BTreeMap::new();
        for chunk in &self.chunks {
            let domains: Vec<Option<u16>> = chunk.holders.iter().map(|holder| next.domain(*holder)).collect();
            let mut readers: Vec<u32> = chunk.holders.iter().map(|holder| holder.0).collect();
            readers.sort_unstable();
            let may_take = next.members(next.group_of(&chunk.id)).filter(|m| !domains.contains(&Some(m.domain)));
            *needs.entry((readers, may_take.map(|member| member.id.0).collect())).or_default() += 1;
        }
        let need = |((readers, writers), chunks)| Need { readers, writers, chunks };
        self.mended.needs = needs.into_iter().map(need).collect();
    }

    /// Whether all has its copies again.
    pub(super) const fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// A copy is durable on a target.
    pub(super) fn stored(&mut self, id: &ChunkId, now: u64, on: NodeId) {
        let Some(place) = self.index_of(id) else { return };
        let before = self.lacks(place);
        if !self.chunks[place].holders.contains(&on) {
            self.chunks[place].holders.push(on);
        }
        let made = before - self.lacks(place);
        let since = now - self.lost_at.unwrap_or(now);
        self.missing -= made;
        self.mended.made += made;
        self.mended.surplus += u64::from(made == 0);
        self.mended.first.get_or_insert(since);
        self.mended.in_time += if self.is_measured() { made } else { 0 };
        if self.missing == 0 {
            self.mended.whole.get_or_insert(since);
        }
    }

    const fn is_measured(&self) -> bool {
        self.began.is_some() && !self.ended
    }

    /// A holder begins to read a chunk, to put it.
    pub(super) fn reads(&mut self, id: &ChunkId, now: u64) {
        if let Some(chunk) = self.index_of(id).and_then(|place| self.chunks.get_mut(place)) {
            chunk.read = now;
        }
    }

    /// A holder has put a chunk.
    pub(super) fn restored(&mut self, id: &ChunkId, now: u64) {
        if self.is_measured()
            && let Some(chunk) = self.index_of(id).and_then(|place| self.chunks.get(place))
        {
            self.mended.took.saturating_record(now - chunk.read);
        }
    }

    /// Measuring begins.
    pub(super) fn begin(&mut self, now: u64) {
        self.began = Some(now);
    }

    /// Measuring ends; disks worked for so long.
    pub(super) fn end(&mut self, now: u64, worked: impl Iterator<Item = (u32, u64)>) {
        self.ended = true;
        self.mended.left = self.missing;
        let measured = now.saturating_sub(self.began.unwrap_or(0)).max(1) as f64;
        self.mended.disks = worked.map(|(target, worked)| (target, worked as f64 / measured)).collect();
    }

    /// What was measured, of a loss that came.
    pub(super) fn mended(self) -> Option<Mended> {
        self.lost_at.map(|_| self.mended)
    }
}
