//! Where the chunks of an object are. Nobody has noted it: all targets are asked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use catalog::Row;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::Found;
use protocol::redundancy::Piece;

use super::chunks::Chunks;
use super::{ObjectError, Objects, failed};
use crate::service::{Pending, ServiceError};

/// Chunks that are asked for at once.
const PIPELINE: usize = 8;

/// The targets that have a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkHolders {
    /// The chunk.
    pub id: ChunkId,
    /// Bytes of the object in it; 0 for its manifest.
    pub bytes: u32,
    /// Those who have a copy of it, or, of a coded chunk, each of its pieces that somebody has.
    pub holders: BTreeMap<Option<Piece>, Vec<NodeId>>,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectHolders {
    /// Its manifest, and chunks of a range of it in order.
    pub chunks: Vec<ChunkHolders>,
    /// Whether the range has more chunks.
    pub has_more: bool,
    /// Targets that did not answer: what they hold is missing here.
    pub silent: BTreeSet<NodeId>,
}

impl Objects {
    /// Where the manifest of the object in `row` is, and the chunks of it that have bytes of `range`, at most so many.
    ///
    /// # Errors
    /// When its manifest cannot be had, or too much is asked of the cluster at the moment.
    pub fn holders(&self, row: &Row, range: &Range<u64>, most: usize) -> Result<ObjectHolders, ObjectError> {
        let body = self.whole(row)?.body;
        let mut chunks = Chunks::of(body, range).map_err(|why| ObjectError::Manifest { id: row.manifest, why })?;
        let mut wanted = vec![(row.manifest, 0)];
        while wanted.len() <= most {
            let Some(slice) = chunks.next(self)? else { break };
            wanted.push((slice.entry.id, slice.entry.plain));
        }
        let has_more = chunks.next(self)?.is_some();
        let mut object = ObjectHolders { chunks: Vec::with_capacity(wanted.len()), has_more, silent: BTreeSet::new() };
        for some in wanted.chunks(PIPELINE) {
            let asked: Vec<(_, Pending<Result<Found, ServiceError>>)> =
                some.iter().map(|chunk| (*chunk, self.service.list(chunk.0.prefix()))).collect();
            for ((id, bytes), pending) in asked {
                let found = pending.wait().map_err(failed(id))?;
                let mut holders = BTreeMap::<Option<Piece>, Vec<NodeId>>::new();
                for (piece, by) in found.chunks {
                    holders.entry(piece.piece()).or_default().extend(by);
                }
                object.silent.extend(found.silent);
                object.chunks.push(ChunkHolders { id, bytes, holders });
            }
        }
        Ok(object)
    }
}
