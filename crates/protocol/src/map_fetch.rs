//! How a newer cluster map comes to a node: it asks a node that uses one for its document, part by part. All machines
//! do it alike.

use bytes::Bytes;

use crate::id::{Epoch, NodeId};
use crate::limits;
use crate::map::{ClusterMap, MapDocument};
use crate::time::{Instant, Span};
use crate::wire::{MapPart, MapRequest, Message};

/// Parts that are asked for at once: few, as all nodes ask a node with a new map at the same time, and its negotiations
/// wait behind the parts.
const WINDOW: usize = 4;
/// Parts that are given at once, to a node that asks for so many.
const MOST: usize = 16;
/// Times that parts are asked for without one coming, before another node is asked.
const ATTEMPTS: u8 = 5;
/// After a document came, or no node gave one, none is asked for so long: this node may not be able to use it.
const PAUSE: Span = Span::from_secs(1);

/// That others use a newer map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewerMap {
    /// One of them gave its document.
    Here {
        /// Its epoch, or an older one that was asked for first.
        epoch: Epoch,
        /// What came.
        document: MapDocument,
    },
    /// No node gives it away: look for it elsewhere.
    Needed {
        /// The epoch that was seen.
        epoch: Epoch,
    },
}

/// What became of what was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing is to be done.
    Nothing,
    /// Say this to this node.
    Send(NodeId, Message),
    /// The whole document is here, or the node that was asked does not give it.
    Over(NewerMap),
    /// A part of nothing that was asked for.
    Unsolicited,
}

/// The fetching of a newer map, if one is under way.
#[derive(Debug, Default)]
pub(crate) struct MapFetch {
    /// Apart from what every input looks at.
    open: Option<Box<Open>>,
    pause_until: Instant,
}

#[derive(Debug)]
struct Open {
    from: NodeId,
    epoch: Epoch,
    /// As the first part said.
    document: Option<([u8; MapDocument::DIGEST], usize)>,
    parts: Vec<Option<Bytes>>,
    /// The part up to which was asked.
    until: usize,
    attempts: u8,
    again: Instant,
}

impl Open {
    fn first_missing(&self) -> usize {
        self.parts.iter().position(Option::is_none).unwrap_or(self.parts.len())
    }

    fn ask(&mut self, now: Instant, late: Span) -> Step {
        let first = self.first_missing();
        self.until = first + WINDOW;
        self.again = now + late.times(1 << self.attempts);
        let request = MapRequest { offset: (first * MapDocument::PART) as u32, parts: WINDOW as u8 };
        Step::Send(self.from, Message::MapRequest(request))
    }
}

impl MapFetch {
    /// A node that uses a map of this epoch, newer than the one in use here, said something. `late` is after what silence something
    /// is asked for again.
    pub(crate) fn note_epoch(&mut self, now: Instant, from: NodeId, epoch: Epoch, late: Span) -> Step {
        let is_newer = self.open.as_ref().is_none_or(|open| epoch > open.epoch);
        if !is_newer || now < self.pause_until {
            return Step::Nothing;
        }
        let mut open = Open { from, epoch, document: None, parts: Vec::new(), until: 0, attempts: 0, again: now };
        let step = open.ask(now, late);
        self.open = Some(Box::new(open));
        step
    }

    /// A part came from a node that uses a map of this epoch.
    pub(crate) fn part(&mut self, now: Instant, from: NodeId, epoch: Epoch, part: &MapPart, late: Span) -> Step {
        let Some(open) = self.open.as_mut().filter(|open| open.from == from && epoch >= open.epoch) else {
            return Step::Unsolicited;
        };
        let (size, place) = (part.size as usize, part.offset as usize / MapDocument::PART);
        let start = place * MapDocument::PART;
        let fits = size <= limits::MAP_BYTES
            && part.offset as usize == start
            && start < size
            && part.bytes.len() == (size - start).min(MapDocument::PART);
        if !fits {
            return Step::Unsolicited;
        }
        let document = (part.digest, size);
        if open.document != Some(document) {
            // The first part, or it uses a newer one since.
            let count = size.div_ceil(MapDocument::PART);
            (open.document, open.parts, open.epoch) = (Some(document), vec![None; count], epoch);
        }
        // A copy: the datagram has room for more than this.
        open.parts[place] = Some(Bytes::copy_from_slice(&part.bytes));
        // Others are on their way: to ask for them once more would only make them later.
        (open.attempts, open.again) = (0, now + late);
        let missing = open.first_missing();
        if missing == open.parts.len() {
            let whole: Vec<u8> = open.parts.iter().flatten().flat_map(|part| part.iter().copied()).collect();
            let epoch = open.epoch;
            self.stop(now);
            let document = MapDocument::new(whole.into()).filter(|document| *document.digest() == part.digest);
            return match document {
                Some(document) => Step::Over(NewerMap::Here { epoch, document }),
                None => Step::Over(NewerMap::Needed { epoch }),
            };
        }
        if missing >= open.until { open.ask(now, late) } else { Step::Nothing }
    }

    /// Time has passed.
    pub(crate) fn wake(&mut self, now: Instant, late: Span) -> Step {
        let Some(open) = self.open.as_mut().filter(|open| now >= open.again) else { return Step::Nothing };
        open.attempts += 1;
        if open.attempts < ATTEMPTS {
            return open.ask(now, late);
        }
        let epoch = open.epoch;
        self.stop(now);
        Step::Over(NewerMap::Needed { epoch })
    }

    /// A map of this epoch is in use now.
    pub(crate) fn uses(&mut self, epoch: Epoch) {
        self.open.take_if(|open| open.epoch <= epoch);
        self.pause_until = Instant::ZERO;
    }

    fn stop(&mut self, now: Instant) {
        self.open = None;
        self.pause_until = now + PAUSE;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.open.as_ref().map(|open| open.again)
    }
}

/// The parts of a map's document that a node wants which has an older one.
pub(crate) fn parts(map: &ClusterMap, theirs: Epoch, request: MapRequest) -> impl Iterator<Item = Message> + '_ {
    let document = map.document().filter(|_| theirs < map.epoch);
    let first = request.offset as usize / MapDocument::PART;
    document.into_iter().flat_map(move |document| {
        let parts = document.bytes().chunks(MapDocument::PART).enumerate().skip(first);
        parts.take(usize::from(request.parts).min(MOST)).map(|(place, part)| {
            Message::MapPart(MapPart {
                digest: *document.digest(),
                size: document.bytes().len() as u32,
                offset: (place * MapDocument::PART) as u32,
                bytes: document.bytes().slice_ref(part),
            })
        })
    })
}
