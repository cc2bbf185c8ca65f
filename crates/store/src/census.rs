//! What is here of a range of ids.

use std::ops::Bound;

use protocol::census::{Count, Counted, Holding, IdRange};
use protocol::id::{ChunkId, ChunkKind};
use protocol::machine::Held;
use protocol::promise::Promise;
use protocol::redundancy::Piece;

use crate::{Bug, Store, lock};

/// Chunks that are looked at in one go: a writer waits no longer than for these.
const AT_ONCE: usize = 1_024;

impl Store {
    /// What is durable here of a chunk: of a coded one, asked for as a whole, any piece.
    #[must_use]
    pub fn find(&self, id: &ChunkId) -> Option<Held> {
        self.find_by(id, |id| self.contains(id))
    }

    /// The same, kept for what is wanted; somebody counts on it from now on.
    #[must_use]
    pub fn find_promised(&self, id: &ChunkId, promise: Promise) -> Option<Held> {
        self.find_by(id, |id| self.promise(id, promise))
    }

    fn find_by(&self, id: &ChunkId, size: impl Fn(&ChunkId) -> Option<u32>) -> Option<Held> {
        let held = |id: ChunkId| Some(Held { id, size: size(&id)?, wanted: self.wanted(&id)? });
        if id.code().is_none() || id.piece().is_some() {
            return held(*id);
        }
        let pieces: Vec<ChunkId> = self.index().range(id.of_piece(Piece(0))..*id).map(|(id, _)| *id).collect();
        pieces.into_iter().find_map(held)
    }

    /// What is here of those chunks of a range that count. That of which a cleaner is certain that nothing refers to it does not: when
    /// copies of it go, none are to be made. Nor does what the disk does not read.
    #[must_use]
    pub fn census(
        &self,
        range: IdRange,
        salt: u64,
        after: Option<ChunkId>,
        counts: impl Fn(&ChunkId) -> bool,
    ) -> Holding {
        let mut count = Count::new(range, salt, after);
        for kind in ChunkKind::ALL {
            let (first, last) = range.ends(kind);
            let mut begin = after.filter(|after| *after >= first).map_or(Bound::Included(first), Bound::Excluded);
            while leads_to(begin, last) {
                let index = self.index();
                let page: Vec<(Counted, bool)> = index
                    .range((begin, Bound::Included(last)))
                    .take(AT_ONCE)
                    .map(|(id, place)| (Counted { id: *id, wanted: place.wanted }, place.stamps.is_unreferenced()))
                    .collect();
                drop(index);
                let Some(end) = page.last().map(|(copy, _)| copy.id) else { break };
                let damaged = lock(&self.damaged);
                let held = |(copy, is_unreferenced): &(Counted, bool)| {
                    !is_unreferenced && (!damaged.is_unread(&copy.id) || self.has(Bug::CountUnread)) && counts(&copy.id)
                };
                if !page.into_iter().filter(held).all(|(copy, _)| count.add(copy)) {
                    return count.finish();
                }
                begin = Bound::Excluded(end);
            }
        }
        count.finish()
    }
}

/// Whether there is anything between: the index refuses ranges that end before they begin.
fn leads_to(begin: Bound<ChunkId>, last: ChunkId) -> bool {
    match begin {
        Bound::Included(first) => first <= last,
        Bound::Excluded(first) => first < last,
        Bound::Unbounded => true,
    }
}
