//! What the initiators are asked.

use std::sync::Arc;

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{self, Scope};
use protocol::time::{Instant, Span};

use super::promise::Promise;
use super::{Happening, World, cleaner};

/// Names whose manifests are put and listed.
const NAMES: u64 = 5;

pub(super) enum Asked {
    /// Chunk, bytes, whether it was asked after the heal, whether nobody else puts it, and when it was asked, by the clock of
    /// the initiator, and really.
    Put(ChunkId, Bytes, bool, bool, (Instant, Instant)),
    /// Chunk, whether it was asked after the heal, what was promised of it, if it must be found: it was referred to all the
    /// time; and when it was asked.
    Get(ChunkId, bool, Option<Arc<Promise>>, Instant),
    /// A list of a name's versions.
    List(Looked),
    /// Whether it was asked after the heal.
    Ping(bool),
}

/// What is known of a list when it is asked for.
pub(super) struct Looked {
    pub(super) prefix: Vec<u8>,
    /// The versions that were acknowledged before.
    pub(super) known: Vec<(ChunkId, Arc<Promise>)>,
    pub(super) healed: bool,
    /// Under which map, and whom.
    pub(super) map: usize,
    pub(super) asked: Vec<NodeId>,
    pub(super) since: Instant,
}

impl Asked {
    /// Another put of this chunk begins.
    fn share(&mut self, id: ChunkId) {
        if let Self::Put(chunk, _, _, alone, _) = self {
            *alone &= *chunk != id;
        }
    }

    /// Nobody counts on this chunk any more.
    pub(super) fn forget(&mut self, id: &ChunkId) {
        match self {
            Self::Get(chunk, _, promise, _) if chunk == id => *promise = None,
            Self::List(looked) => looked.known.retain(|(known, _)| known != id),
            _ => {}
        }
    }

    fn chunk(&self) -> Option<(ChunkId, Bytes)> {
        match self {
            Self::Put(id, payload, ..) => Some((*id, payload.clone())),
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
                self.push(at, Happening::Cleaner(cleaner::Event::Feed(id)));
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
        let mut given = 0;
        while given < most && self.open.range((id, 0)..=(id, u64::MAX)).count() < self.scenario.config.depth + 1 {
            let put =
                self.puts_left > 0 && (self.gets_left == 0 || self.acknowledged.is_empty() || self.rng.chance(1, 2));
            if !put && self.gets_left == 0 {
                return;
            }
            given += 1;
            self.forget_some();
            self.next_handle += 1;
            let handle = self.next_handle;
            let (asked, request) = if put {
                self.draw_put(id, handle)
            } else if self.rng.chance(1, 16) {
                self.draw_look(id, handle)
            } else {
                self.draw_get(handle)
            };
            self.open.insert((id, handle), asked);
            self.input(id, None, Some(request));
        }
    }

    fn draw_put(&mut self, initiator: NodeId, handle: u64) -> (Asked, initiator::Request) {
        self.puts_left -= 1;
        let again = self.rng.chance(1, 12).then(|| self.open.values().find_map(Asked::chunk)).flatten();
        let again = again.or_else(|| self.draw_forgotten()).or_else(|| self.draw_again());
        let names = |id: &ChunkId| self.cleaning.as_ref().is_some_and(|cleaning| cleaning.names(id));
        let again = again.filter(|(id, _)| !names(id));
        let fresh = again.is_none();
        let (id, payload) = again.unwrap_or_else(|| {
            let len = self.rng.below(self.scenario.largest) + 1;
            let payload: Bytes = (0..len).map(|_| self.rng.next_u64() as u8).collect();
            let id = if self.rng.chance(1, 4) {
                ChunkId::of_manifest(&self.draw_name(), handle, &payload)
            } else {
                ChunkId::of_payload(&payload)
            };
            (id, payload)
        });
        if !fresh {
            // Copies that the one put makes are not told to the other.
            self.open.values_mut().for_each(|asked| asked.share(id));
        }
        self.contents.insert(id, payload.clone());
        let begun = (self.nodes.get(&initiator).map_or(self.now, |node| node.local(self.now)), self.now);
        (
            Asked::Put(id, payload.clone(), self.healed, fresh, begun),
            initiator::Request::Put { handle, id, payload, removal: false },
        )
    }

    /// A chunk that was put before.
    fn draw_again(&mut self) -> Option<(ChunkId, Bytes)> {
        if self.contents.is_empty() || !self.rng.chance(1, 6) {
            return None;
        }
        let nth = self.rng.below(self.contents.len() as u64) as usize;
        self.contents.iter().nth(nth).map(|(id, bytes)| (*id, bytes.clone()))
    }

    fn draw_get(&mut self, handle: u64) -> (Asked, initiator::Request) {
        self.gets_left -= 1;
        let known = self.acknowledged.len() as u64;
        let id = if known == 0 || self.rng.chance(1, 20) {
            ChunkId::of_payload(&self.rng.next_u64().to_le_bytes())
        } else {
            let nth = self.rng.below(known) as usize;
            self.acknowledged.keys().nth(nth).copied().unwrap_or_else(|| ChunkId::of_payload(b""))
        };
        (Asked::Get(id, self.healed, self.promises.get(&id).cloned(), self.now), initiator::Request::Get { handle, id })
    }

    /// A list of a name's versions, or a ping.
    fn draw_look(&mut self, initiator: NodeId, handle: u64) -> (Asked, initiator::Request) {
        self.gets_left -= 1;
        if self.rng.chance(1, 3) {
            return (Asked::Ping(self.healed), initiator::Request::Ping { handle });
        }
        let name = ChunkId::of_manifest(&self.draw_name(), 0, &[]);
        let prefix = name.encode()[..=ChunkId::NAME_LEN].to_vec();
        let known = self.promises.iter().filter(|(id, _)| id.encode().starts_with(&prefix));
        let known = known.map(|(id, promise)| (*id, promise.clone())).collect();
        let scope = match self.rng.below(4) {
            0 => Scope::GroupOf(name),
            1 => Scope::LiveOf(name),
            _ => Scope::Cluster,
        };
        let map = self.nodes.get(&initiator).map_or(0, |node| node.map);
        let asked = match scope {
            Scope::Cluster => self.maps[map].targets().map(|t| t.id).collect(),
            Scope::GroupOf(id) | Scope::LiveOf(id) => self.group(map, &id),
        };
        let looked = Looked { prefix: prefix.clone(), known, healed: self.healed, map, asked, since: self.now };
        (Asked::List(looked), initiator::Request::List { handle, scope, prefix })
    }

    fn draw_name(&mut self) -> String {
        format!("name-{}", self.rng.below(NAMES))
    }
}
