//! What the initiators are asked.

use std::iter;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use erasure::Code;
use protocol::id::coded::{self, Coded};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{self, ChunkPut, Payload, Query};
use protocol::redundancy::{Pieces, Redundancy};
use protocol::rng::mix;
use protocol::time::{Instant, Span};

use super::promise::Promise;
use super::{Node, NodeMachine, Scheduled, World, cleaner};
use crate::planted::PlantedBug;

/// Names whose manifests are put and listed.
const NAMES: u64 = 5;

pub(super) enum Operation {
    Put(Putting),
    /// Chunk and which bytes of it, whether it was asked after the heal, what was promised of it, if it must be found: it was referred to all the
    /// time; and when it was asked.
    Get((ChunkId, Vec<Range<usize>>), bool, Option<Arc<Promise>>, Instant),
    /// A list of a name's versions.
    List(Listing),
    /// Whether it was asked after the heal.
    Ping(bool),
}

/// A put that was asked for.
pub(super) struct Putting {
    pub(super) id: ChunkId,
    pub(super) payload: Bytes,
    /// Other than the map's.
    pub(super) redundancy: Option<Redundancy>,
    /// Whether it was asked after the heal.
    pub(super) healed: bool,
    /// Whether nobody else puts the chunk.
    pub(super) alone: bool,
    /// When it was asked, by the clock of the initiator, and really.
    pub(super) begun: (Instant, Instant),
}

/// What is known of a list when it is asked for.
pub(super) struct Listing {
    pub(super) prefix: Vec<u8>,
    /// The versions that were acknowledged before.
    pub(super) known: Vec<(ChunkId, Arc<Promise>)>,
    pub(super) healed: bool,
    /// Under which map, and which targets.
    pub(super) map: usize,
    pub(super) asked: Vec<NodeId>,
    pub(super) since: Instant,
}

impl Operation {
    /// Another put of this chunk begins.
    pub(super) fn share(&mut self, id: ChunkId) {
        if let Self::Put(put) = self {
            put.alone &= put.id != id;
        }
    }

    /// Nobody counts on this chunk any more.
    pub(super) fn forget(&mut self, id: &ChunkId) {
        match self {
            Self::Get((chunk, _), _, promise, _) if chunk == id => *promise = None,
            Self::List(listing) => listing.known.retain(|(known, _)| known != id),
            _ => {}
        }
    }

    fn chunk(&self) -> Option<(ChunkId, Bytes)> {
        match self {
            Self::Put(put) => Some((put.id, put.payload.clone())),
            Self::Get(..) | Self::List(_) | Self::Ping(_) => None,
        }
    }
}

impl World<'_> {
    /// An operation of an initiator is over: another follows, after a while if there are cleaners.
    pub(super) fn feed_next(&mut self, id: NodeId) {
        match self.scenario.cleaning {
            Some(cleaning) => {
                let at = self.now + Span::from_nanos(self.rng.below(cleaning.pause.as_nanos()));
                self.push(at, Scheduled::Cleaner(cleaner::Event::Feed(id)));
            }
            None => self.feed(id),
        }
    }

    /// Gives an initiator something to do, until it has its depth.
    pub(super) fn feed(&mut self, id: NodeId) {
        self.feed_some(id, usize::MAX);
    }

    /// The same, but no more than so much at once.
    pub(super) fn feed_some(&mut self, id: NodeId, most: usize) {
        let mut started = 0;
        while started < most && self.open.range((id, 0)..=(id, u64::MAX)).count() < self.scenario.config.depth + 1 {
            let put =
                self.puts_left > 0 && (self.gets_left == 0 || self.acknowledged.is_empty() || self.rng.chance(1, 2));
            if !put && self.gets_left == 0 {
                return;
            }
            started += 1;
            self.forget_some();
            self.next_handle += 1;
            let handle = self.next_handle;
            let (asked, request) = if put {
                self.draw_put(id, handle)
            } else if self.rng.chance(if self.is_dark(id) { 6 } else { 1 }, 16) {
                self.draw_read(id, handle)
            } else {
                self.draw_get(handle)
            };
            self.open.insert((id, handle), asked);
            self.input(id, None, Some(request));
        }
    }

    /// Whether targets that are down or asleep may be all that hold something: what a list says then is worth most.
    fn is_dark(&self, initiator: NodeId) -> bool {
        let map = &self.maps[self.nodes.get(&initiator).map_or(0, |node| node.map)];
        let rests = |node: &Node| node.sleeps.is_some() || matches!(node.machine, NodeMachine::Down(_));
        let is_silent = |id: &NodeId| self.nodes.get(id).is_none_or(rests);
        map.may_hide(&map.targets().map(|target| target.id).filter(is_silent).collect::<Vec<NodeId>>())
    }

    fn draw_put(&mut self, initiator: NodeId, handle: u64) -> (Operation, initiator::Request) {
        self.puts_left -= 1;
        let again = self.rng.chance(1, 12).then(|| self.open.values().find_map(Operation::chunk)).flatten();
        let again = again.or_else(|| self.draw_forgotten()).or_else(|| self.draw_again(initiator));
        let names = |id: &ChunkId| self.cleaning.as_ref().is_some_and(|cleaning| cleaning.names(id));
        let again = again.filter(|(id, _)| !names(id));
        let fresh = again.is_none();
        let (id, payload) = again.unwrap_or_else(|| {
            let len = self.rng.below(self.scenario.largest) + 1;
            let payload: Bytes = (0..len).map(|_| self.rng.next_u64() as u8).collect();
            let id = if self.rng.chance(1, 4) {
                ChunkId::of_manifest(&self.draw_name(), handle, &payload)
            } else if let Some(coded) = self.draw_coded(&payload) {
                coded
            } else {
                ChunkId::of_payload(&payload)
            };
            (id, payload)
        });
        if !fresh {
            // The one put does not know of the copies that the other makes.
            self.open.values_mut().for_each(|asked| asked.share(id));
        }
        let own = self.scenario.redundancy.filter(|_| id.kind() == ChunkKind::Payload);
        let redundancy = own.filter(|_| self.rng.chance(1, 2)).or(id.code().map(Redundancy::Code));
        self.ask_put(initiator, handle, (id, payload), redundancy, fresh)
    }

    /// In a world with a code half of what is put is kept by it.
    fn draw_coded(&mut self, payload: &[u8]) -> Option<ChunkId> {
        match self.scenario.code.filter(|_| self.rng.chance(1, 2))? {
            Redundancy::Code(code) => Some(self.cut_up(code, payload)?.id),
            Redundancy::Copies(_) => None,
        }
    }

    /// A chunk in pieces.
    fn cut_up(&self, code: Code, chunk: &[u8]) -> Option<Coded> {
        let coded = coded::cut(code, chunk)?;
        if self.scenario.planted != Some(PlantedBug::WrongParity) {
            return Some(coded);
        }
        let mut pieces: Vec<BytesMut> = coded.pieces.iter().map(|piece| piece[..].into()).collect();
        *pieces.last_mut()?.last_mut()? ^= 1;
        Some(coded::seal(code, chunk.len() as u32, pieces))
    }

    /// A put from now on.
    pub(super) fn ask_put(
        &mut self,
        initiator: NodeId,
        handle: u64,
        (id, payload): (ChunkId, Bytes),
        redundancy: Option<Redundancy>,
        alone: bool,
    ) -> (Operation, initiator::Request) {
        self.contents.insert(id, payload.clone());
        let begun = (self.nodes.get(&initiator).map_or(self.now, |node| node.local(self.now)), self.now);
        let put = match id.code().and_then(|code| self.cut_up(code, &payload)) {
            Some(pieces) => ChunkPut::coded(pieces),
            None => ChunkPut { redundancy, ..ChunkPut::new(id, payload.clone()) },
        };
        let putting = Putting { id, payload, redundancy, healed: self.healed, alone, begun };
        (Operation::Put(putting), initiator::Request::Put { handle, put })
    }

    /// A chunk that was put before: more often by an initiator that uses an older map than others do, as copies may
    /// count for less now.
    fn draw_again(&mut self, initiator: NodeId) -> Option<(ChunkId, Bytes)> {
        let is_newer = |map: usize| self.nodes.get(&initiator).is_some_and(|node| node.map < map);
        let old = self.nodes.values().any(|node| is_newer(node.map));
        if self.contents.is_empty() || !self.rng.chance(if old { 5 } else { 1 }, 6) {
            return None;
        }
        let nth = self.rng.below(self.contents.len() as u64) as usize;
        self.contents.iter().nth(nth).map(|(id, bytes)| (*id, bytes.clone()))
    }

    fn draw_get(&mut self, handle: u64) -> (Operation, initiator::Request) {
        self.gets_left -= 1;
        let known = self.acknowledged.len() as u64;
        let id = if known == 0 || self.rng.chance(1, 20) {
            ChunkId::of_payload(&self.rng.next_u64().to_le_bytes())
        } else {
            let nth = self.rng.below(known) as usize;
            self.acknowledged.keys().nth(nth).copied().unwrap_or_else(|| ChunkId::of_payload(b""))
        };
        self.ask_get(handle, id)
    }

    /// A get from now on.
    pub(super) fn ask_get(&self, handle: u64, id: ChunkId) -> (Operation, initiator::Request) {
        let (fragments, bytes) = self.draw_ranges(handle, &id);
        let asked = Operation::Get((id, bytes), self.healed, self.promises.get(&id).cloned(), self.now);
        (asked, initiator::Request::Get { handle, id, holders: vec![], fragments })
    }

    /// What of a chunk is asked for: of every second one that is coded a range, and of every fourth its first byte as well.
    fn draw_ranges(&self, handle: u64, id: &ChunkId) -> (Option<Pieces>, Vec<Range<usize>>) {
        let length = self.contents.get(id).map_or(0, Bytes::len);
        let draw = mix(handle);
        let ends = [draw >> 32, draw >> 8 & 0xff_ffff].map(|draw| draw as usize % (length + 1));
        let range = *ends.iter().min().unwrap_or(&0)..*ends.iter().max().unwrap_or(&0);
        let ranges = [range, 0..1];
        let ranges = &ranges[..if draw.is_multiple_of(4) { 2 } else { 1 }];
        let some = draw.is_multiple_of(2).then(|| coded::fragments_of(id, length, ranges)).flatten();
        some.map_or((None, iter::once(0..length).collect()), |(fragments, bytes)| (Some(fragments), bytes))
    }

    /// A list of a name's versions, or a ping.
    fn draw_read(&mut self, initiator: NodeId, handle: u64) -> (Operation, initiator::Request) {
        self.gets_left -= 1;
        if self.rng.chance(1, 3) {
            return (Operation::Ping(self.healed), initiator::Request::Query { handle, query: Query::Ping });
        }
        let name = ChunkId::of_manifest(&self.draw_name(), 0, &[]);
        let prefix = name.encode()[..=ChunkId::NAME_LEN].to_vec();
        let known = self.promises.iter().filter(|(id, _)| id.encode().starts_with(&prefix));
        let known = known.map(|(id, promise)| (*id, promise.clone())).collect();
        let map = self.nodes.get(&initiator).map_or(0, |node| node.map);
        let asked = self.maps[map].targets().map(|t| t.id).collect();
        let listing = Listing { prefix: prefix.clone(), known, healed: self.healed, map, asked, since: self.now };
        (Operation::List(listing), initiator::Request::Query { handle, query: Query::List { prefix } })
    }

    fn draw_name(&mut self) -> String {
        format!("name-{}", self.rng.below(NAMES))
    }
}

/// The bytes of a chunk that is put.
pub(super) fn chunk_of(payload: Payload) -> Bytes {
    match payload {
        Payload::Copies(bytes) => bytes,
        Payload::Pieces(pieces) => coded::join_all(&pieces).map(|parts| parts.concat().into()).unwrap_or_default(),
    }
}
