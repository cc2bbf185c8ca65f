//! A copy of maintenance in parts. A long window is in the way of clients, which cannot have it once payload arrives.
//! So a target may offer a window for a part. When the part is sent, that target alone is asked for the next one: it
//! keeps what came.

use super::{ByteRange, Context, NodeId, Phase, Put, Span};
use crate::time::Instant;

/// How often one part is asked for before the copy begins anew, perhaps elsewhere.
const ASKED: u8 = 100;
/// A target that has no window for a part is not asked again before.
const SOON: Span = Span::from_millis(1);

/// How far a copy is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// The target that has it.
    to: NodeId,
    /// Bytes that were sent before this part.
    before: u32,
    /// Bytes of this part.
    part: u32,
    /// When the port is through with it, once all of it was handed over.
    until: Option<Instant>,
    /// How often it was asked for.
    asked: u8,
}

impl Parts {
    /// When to ask for the next.
    pub(super) const fn until(self) -> Option<Instant> {
        self.until
    }

    /// The target that has what came of it.
    pub(super) const fn to(self) -> NodeId {
        self.to
    }

    /// Whether a window is for a part of it.
    pub(super) const fn is_under_way(self) -> bool {
        self.part > 0
    }

    /// The window of this part was given back before all of it was sent.
    pub(super) fn again(&mut self, unsent: u32, most: u32) {
        let sent = (self.before + self.part.saturating_sub(unsent)).min(most.max(self.before));
        *self = Self { before: sent, part: 0, until: None, ..*self };
    }
}

impl Put {
    /// How much of it was sent, if it may go in parts: to one target, of those that offer what clients leave.
    pub(super) fn sent_before(&self, context: &Context) -> Option<u32> {
        // In the first round nothing is known of copies elsewhere: mostly one is missing.
        let one = self.need() == 1 || self.progress.rounds == 1;
        let may = self.job.restores()
            && self.job.payload.is_common()
            && !self.is_urgent()
            && context.config.transport.reserved
            && one;
        may.then(|| self.parts.map_or(0, |parts| parts.before))
    }

    /// The target that has parts of it is asked alone, if it can be `asked`.
    pub(super) fn keep_to_one(&mut self, context: &Context, asked: &mut Vec<NodeId>) {
        let Some(parts) = &mut self.parts else { return };
        parts.asked += 1;
        let (to, tries) = (parts.to, parts.asked);
        if tries > ASKED || !asked.contains(&to) || context.is_suspect(to) || self.sent_before(context).is_none() {
            self.parts = None;
        } else {
            asked.retain(|target| *target == to);
        }
    }

    /// How long to rest when no target has a window. The target that has the parts says when it should have one.
    /// Clients may leave a window before, but to ask for it sooner is mostly in vain.
    pub(super) fn rest_for(&self, context: &Context) -> Span {
        let late = context.config.late;
        match (self.parts, self.round.busy) {
            (Some(_), Some(busy)) => busy.clamp(SOON.min(late), late.times(8)),
            (_, busy) => context.rest(busy),
        }
    }

    /// What is sent to the chosen target, if its window is not for all that is missing.
    pub(super) fn begin_part(&mut self, context: &Context, targets: &[NodeId]) -> Option<ByteRange> {
        let before = self.sent_before(context)?;
        let [to] = *targets else { return None };
        let part = self.offers.get(&to)?.part?.min(self.size() - before);
        self.parts = Some(Parts { to, before, part, until: None, asked: 0 });
        Some(ByteRange { offset: before, len: part })
    }

    /// Asks for the next part when the port is through with one that was not the last. Whether there is another.
    pub(super) fn ask_for_next(&mut self, context: &mut Context) -> bool {
        let size = self.size();
        let Phase::Transferring { outgoing, waiting } = &self.phase else { return false };
        let Some(parts) = self.parts.as_mut().filter(|parts| parts.before + parts.part < size) else { return false };
        if !outgoing.is_empty() || waiting.is_empty() {
            return false;
        }
        let until = *parts.until.get_or_insert(context.port.free());
        if until <= context.now {
            *parts = Parts { before: parts.before + parts.part, part: 0, until: None, asked: 0, ..*parts };
            // It comes to no end by going on.
            self.progress.counted = self.progress.counted.saturating_sub(1);
            context.uplink.remove(self.txn);
            self.ask(context);
        }
        true
    }
}
