//! What the initiators are asked.

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{self, Scope};

use super::World;

/// Names whose manifests are put and listed.
const NAMES: u64 = 5;

pub(super) enum Asked {
    /// Chunk, bytes, whether it was asked after the heal, and whether nobody else puts it.
    Put(ChunkId, Bytes, bool, bool),
    /// Chunk, whether it was asked after the heal, and whether it must be found.
    Get(ChunkId, bool, bool),
    /// A name's prefix, the versions that were acknowledged before, and whether it was asked after the heal.
    List(Vec<u8>, Vec<ChunkId>, bool),
    /// Whether it was asked after the heal.
    Ping(bool),
}

impl Asked {
    /// Another put of this chunk begins.
    fn share(&mut self, id: ChunkId) {
        if let Self::Put(chunk, _, _, alone) = self {
            *alone &= *chunk != id;
        }
    }

    fn chunk(&self) -> Option<(ChunkId, Bytes)> {
        match self {
            Self::Put(id, payload, ..) => Some((*id, payload.clone())),
            Self::Get(..) | Self::List(..) | Self::Ping(_) => None,
        }
    }
}

impl World<'_> {
    /// Gives an initiator something to do, until it has its depth.
    pub(super) fn feed(&mut self, id: NodeId) {
        while self.open.range((id, 0)..=(id, u64::MAX)).count() < self.scenario.config.depth + 1 {
            let put =
                self.puts_left > 0 && (self.gets_left == 0 || self.acknowledged.is_empty() || self.rng.chance(1, 2));
            if !put && self.gets_left == 0 {
                return;
            }
            self.next_handle += 1;
            let handle = self.next_handle;
            let (asked, request) = if put {
                self.draw_put(handle)
            } else if self.rng.chance(1, 16) {
                self.draw_look(handle)
            } else {
                self.draw_get(handle)
            };
            self.open.insert((id, handle), asked);
            self.input(id, None, Some(request));
        }
    }

    fn draw_put(&mut self, handle: u64) -> (Asked, initiator::Request) {
        self.puts_left -= 1;
        let again = self.rng.chance(1, 12).then(|| self.open.values().find_map(Asked::chunk)).flatten();
        let again = again.or_else(|| self.draw_again());
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
        (Asked::Put(id, payload.clone(), self.healed, fresh), initiator::Request::Put { handle, id, payload })
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
        (Asked::Get(id, self.healed, self.acknowledged.contains_key(&id)), initiator::Request::Get { handle, id })
    }

    /// A list of a name's versions, or a ping.
    fn draw_look(&mut self, handle: u64) -> (Asked, initiator::Request) {
        self.gets_left -= 1;
        if self.rng.chance(1, 3) {
            return (Asked::Ping(self.healed), initiator::Request::Ping { handle });
        }
        let name = ChunkId::of_manifest(&self.draw_name(), 0, &[]);
        let prefix = name.encode()[..=ChunkId::NAME_LEN].to_vec();
        let known = self.acknowledged.keys().filter(|id| id.encode().starts_with(&prefix)).copied().collect();
        let scope = match self.rng.below(4) {
            0 => Scope::GroupOf(name),
            1 => Scope::LiveOf(name),
            _ => Scope::Cluster,
        };
        (Asked::List(prefix.clone(), known, self.healed), initiator::Request::List { handle, scope, prefix })
    }

    fn draw_name(&mut self) -> String {
        format!("name-{}", self.rng.below(NAMES))
    }
}
