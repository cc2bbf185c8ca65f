//! Chunks lose what refers to them, get it again, and a cleaner goes round.

use std::collections::BTreeSet;

use std::sync::Arc;

use bytes::Bytes;
use protocol::cleaner::{Cleaner, Unfinished, Want};
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{self, Scope};
use protocol::time::{Instant, Span};

use super::promise::Promise;
use super::{Happening, Machinery, World};
use crate::swarm::Planted;

/// Looks without any work beside them, after which nothing may be left to clean: one condemns, one drops.
const LOOKS: u32 = 2;
/// Between one look and the next.
const PAUSE: Span = Span::from_millis(1);

/// The cleaner of a world: an initiator of its own, which never crashes.
pub(super) struct Cleaning {
    pub(super) node: NodeId,
    machine: Cleaner,
    /// What was referred to when it was read.
    referenced: BTreeSet<ChunkId>,
    /// Puts whose chunks are durable, and are not referred to yet.
    unpublished: u32,
    looks: u32,
    /// Whether the look under way began when all work was done, and how many such were finished.
    quiet: bool,
    quiet_looks: u32,
}

impl Cleaning {
    pub(super) fn is_done(&self) -> bool {
        self.quiet_looks >= LOOKS
    }
}

impl World<'_> {
    pub(super) fn add_cleaner(&mut self) {
        let Some(scenario) = self.scenario.cleaning else { return };
        self.add_initiator();
        let Some(node) = self.initiators.pop() else { return };
        let mut machine = Cleaner::new(false);
        machine.set_slice_bytes(scenario.slice_bytes);
        let referenced = BTreeSet::new();
        let looks = Cleaning { node, machine, referenced, unpublished: 0, looks: 0, quiet: false, quiet_looks: 0 };
        self.cleaning = Some(looks);
    }

    /// Does what the cleaner wants next.
    pub(super) fn clean(&mut self) {
        let (quiet, handle) = (self.is_quiet(), self.next_handle + 1);
        let Some(cleaning) = &mut self.cleaning else { return };
        let (node, mut want) = (cleaning.node, cleaning.machine.want());
        while let Want::Read { from } = want {
            cleaning.referenced = self.acknowledged.keys().copied().collect();
            // In several readings when there are slices.
            cleaning.machine.read(from + 100, Vec::new());
            want = cleaning.machine.want();
        }
        let request = match want {
            Want::Mark => {
                cleaning.quiet = quiet && cleaning.unpublished == 0;
                initiator::Request::Mark { handle }
            }
            Want::List { prefix } => initiator::Request::List { handle, scope: Scope::Cluster, prefix },
            Want::Discard(discard) => initiator::Request::Discard { handle, discard },
            Want::Rest => {
                let look = cleaning.looks;
                let grace = self.scenario.cleaning.map_or(Span::ZERO, |cleaning| cleaning.grace);
                let grace = if self.scenario.planted == Some(Planted::HurryCleaner) { Span::ZERO } else { grace };
                let at = self.nodes.get(&node).map_or(self.now, |n| n.global(n.local(self.now) + grace));
                return self.push(at, Happening::Rested(look));
            }
            Want::Over(look) => {
                cleaning.looks += 1;
                cleaning.quiet_looks += u32::from(cleaning.quiet && look.unfinished.is_none());
                cleaning.machine.again();
                let looks = cleaning.looks;
                self.note(16, node, look.copies as usize, || format!("has looked: {look:?}"));
                return self.push(self.now + PAUSE, Happening::Rested(looks));
            }
            Want::Read { .. } => return,
        };
        self.next_handle = handle;
        self.input(node, None, Some(request));
    }

    /// A rest or a pause is over.
    pub(super) fn rested(&mut self, look: u32) {
        let Some(cleaning) = self.cleaning.as_mut().filter(|cleaning| cleaning.looks == look) else { return };
        if cleaning.machine.want() == Want::Rest {
            cleaning.machine.rested();
        }
        self.clean();
    }

    pub(super) fn cleaner_event(&mut self, id: NodeId, event: initiator::Event) {
        if let initiator::Event::NeedMap { .. } = event {
            return self.need_map(id);
        }
        let Some(Cleaning { machine, referenced, .. }) = &mut self.cleaning else { return };
        match event {
            initiator::Event::Mark { result, .. } => machine.marked(result),
            initiator::Event::List { result, .. } => machine.listed(result, |id| referenced.contains(id)),
            initiator::Event::Discard { result, .. } => machine.discarded(result),
            _ => return,
        }
        if let Want::Over(look) = machine.want()
            && matches!(look.unfinished, Some(Unfinished::Busy))
            && self.healed
        {
            self.fail("a cleaner was refused after the heal".to_owned());
        }
        self.clean();
    }

    /// Takes a reference away, sometimes.
    pub(super) fn erase_some(&mut self) {
        if self.cleaning.is_none() || self.acknowledged.is_empty() || !self.rng.chance(1, 5) {
            return;
        }
        let nth = self.rng.below(self.acknowledged.len() as u64) as usize;
        let Some(id) = self.acknowledged.keys().nth(nth).copied() else { return };
        let left = self.references.get(&id).map_or(0, |count| count.saturating_sub(1));
        self.references.insert(id, left);
        if left == 0 {
            self.acknowledged.remove(&id);
            self.promises.remove(&id);
            self.open.values_mut().for_each(|asked| asked.erase(id));
        }
    }

    /// A chunk that was put before, referred to or not.
    pub(super) fn draw_again(&mut self) -> Option<(ChunkId, Bytes)> {
        if self.cleaning.is_none() || self.contents.is_empty() || !self.rng.chance(1, 3) {
            return None;
        }
        let nth = self.rng.below(self.contents.len() as u64) as usize;
        self.contents.iter().nth(nth).map(|(id, bytes)| (*id, bytes.clone()))
    }

    /// When what refers to a chunk appears that was just put; `None` without cleaning: at once.
    pub(super) fn draw_publish(&mut self) -> Option<Instant> {
        let grace = self.scenario.cleaning?.grace;
        self.cleaning.as_mut()?.unpublished += 1;
        Some(self.now + Span::from_nanos(self.rng.below(grace.as_nanos() / 2)))
    }

    /// Whether a put may still say that it went well: half a grace since it was begun.
    pub(super) fn is_timely(&self, by: NodeId, begun: Instant) -> bool {
        let Some(node) = self.nodes.get(&by) else { return false };
        self.scenario.cleaning.is_none_or(|cleaning| node.local(self.now).since(begun) < cleaning.grace.div(2))
    }

    pub(super) fn publish(&mut self, by: NodeId, id: ChunkId, begun: Instant, promise: Arc<Promise>) {
        let timely = self.is_timely(by, begun);
        if let Some(cleaning) = &mut self.cleaning {
            cleaning.unpublished -= 1;
        }
        if let Some(bytes) = self.contents.get(&id).filter(|_| timely) {
            self.acknowledged.insert(id, bytes.clone());
            self.promises.insert(id, promise);
            *self.references.entry(id).or_insert(0) += 1;
        }
    }

    /// At the end nothing is held that nothing refers to.
    pub(super) fn check_cleaned(&mut self) {
        if self.cleaning.is_none() {
            return;
        }
        let mut left = None;
        for (node, state) in &self.nodes {
            let Machinery::Target(_, disk) = &state.machinery else { continue };
            let held = disk.held().into_iter().filter(|id| id.kind() == ChunkKind::Payload);
            left = left.or(held.into_iter().find(|id| !self.acknowledged.contains_key(id)).map(|id| (id, *node)));
        }
        if let Some((id, node)) = left {
            self.fail(format!("nothing refers to {id:?}, and {node} still has it after {LOOKS} quiet looks"));
        }
    }
}
