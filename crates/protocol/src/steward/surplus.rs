//! Copies beyond those that are wanted: on a target that was taken for lost and is back, from a put that asked one more
//! target, or where the layout before had them. They go when nothing can need them any more.
//!
//! 1. A holder of a copy that is one too many notes a moment.
//! 2. All copies that stay are promised, as to a put that counts on them.
//! 3. That holder lets its copy go, unless it was promised since then.
//!
//! So when two stewards would remove different copies, at most one copy goes. Say that the first removes B and counts
//! on A, and the second removes A and counts on B. If B was promised to the second after B's moment, B stays. If
//! before, A's moment is earlier still, A is promised to the first only after that, and A stays. And an initiator that
//! was promised a copy that goes is promised those that stay (`docs/healing.md`).

use std::collections::{BTreeMap, BTreeSet};

use super::copies::{Copies, Copy};
use super::{ASKED, AT_ONCE, Bug, Context, REMEMBERED};
use crate::id::{ChunkId, NodeId, TxnId};
use crate::redundancy::{Piece, Wanted};
use crate::time::{Instant, Span};
use crate::wire::{Ack, Message};

/// A chunk with more copies than are wanted.
#[derive(Clone, Debug)]
pub(super) struct Surplus {
    /// Whose stay.
    stay: BTreeMap<NodeId, Copy>,
    /// What these are kept for, all together.
    wanted: Wanted,
    /// Whose go: of each holder one at once.
    go: BTreeMap<NodeId, Piece>,
}

impl Surplus {
    /// Which of these copies may go, if any. They may when nothing lacks of what is wanted.
    pub(super) fn of(copies: &Copies<'_>, bug: Option<Bug>, goes: impl Fn(NodeId) -> u64) -> Option<Self> {
        if copies.are_few() {
            return None;
        }
        let stay: BTreeMap<NodeId, Copy> =
            copies.to_stay(bug, goes).into_iter().map(|copy| (copy.holder, copy)).collect();
        let goes = |copy: &&Copy| stay.get(&copy.holder) != Some(copy);
        let go: BTreeMap<NodeId, Piece> =
            copies.all.iter().filter(goes).map(|copy| (copy.holder, copy.piece)).collect();
        let wanted = stay.values().map(|copy| copy.kept_for).reduce(Wanted::and)?;
        (!go.is_empty()).then_some(Self { stay, wanted, go })
    }
}

/// What is done of it, and which targets still owe an answer.
#[derive(Debug)]
enum Step {
    Note,
    Promise,
    LetGo,
}

#[derive(Debug)]
struct Open {
    id: ChunkId,
    surplus: Surplus,
    step: Step,
    /// Which moment each noted that has one too many.
    noted: BTreeMap<NodeId, u64>,
    owed: BTreeSet<NodeId>,
    asked: u8,
    again: Instant,
}

/// Those of a group.
#[derive(Debug, Default)]
pub(super) struct AllSurplus {
    /// Since when a chunk is known to have its copies, and more.
    since: BTreeMap<ChunkId, Instant>,
    due: BTreeMap<ChunkId, Surplus>,
    open: BTreeMap<TxnId, Open>,
}

/// How long all copies that stay have to be known before another goes. An initiator that reads or lists meanwhile asks
/// one target after the other. It might ask one before its copy was made, and the other after its copy went. No read or
/// list takes longer than this.
fn patience(context: &Context<'_>) -> Span {
    let longest = context.config.give_up;
    if context.bug == Some(Bug::LetGoAtOnce) { Span::ZERO } else { longest + longest.div(8) }
}

impl AllSurplus {
    /// A chunk has these copies, of which some may go. When it is to be looked at again.
    pub(super) fn found(&mut self, context: &Context<'_>, id: ChunkId, surplus: Surplus) -> Instant {
        if self.open.values().any(|open| open.id == id) || self.due.contains_key(&id) {
            return context.now + context.config.census_interval;
        }
        let is_full = self.since.len() >= REMEMBERED || self.due.len() >= REMEMBERED;
        let patience = patience(context);
        if is_full && !self.since.contains_key(&id) {
            // What is not looked at any more may be remembered.
            self.since.retain(|_, since| context.now.since(*since) < patience.times(4));
            return context.now + patience;
        }
        let due = *self.since.entry(id).or_insert(context.now) + patience;
        if due > context.now {
            return due;
        }
        self.due.insert(id, surplus);
        context.now + context.config.census_interval
    }

    /// A chunk has no copies that may go.
    pub(super) fn forget(&mut self, id: &ChunkId) {
        self.since.remove(id);
        self.due.remove(id);
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.open.values().map(|open| open.again).min()
    }

    /// Asks the targets that are late again, and begins with the chunks that are due.
    pub(super) fn wake(&mut self, context: &mut Context<'_>, new_txn: impl FnMut() -> TxnId) {
        let now = context.now;
        for (txn, open) in self.open.iter_mut().filter(|(_, open)| open.again <= now) {
            open.ask(context, *txn);
        }
        self.open.retain(|_, open| open.asked <= ASKED);
        self.begin(context, new_txn);
    }

    /// Begins with those that are due.
    pub(super) fn begin(&mut self, context: &mut Context<'_>, mut new_txn: impl FnMut() -> TxnId) {
        while self.open.len() < AT_ONCE {
            let Some((id, surplus)) = self.due.pop_first() else { return };
            self.since.remove(&id);
            let (step, noted, owed) = (Step::Note, BTreeMap::new(), surplus.go.keys().copied().collect());
            let mut open = Open { id, surplus, step, noted, owed, asked: 0, again: context.now };
            let txn = new_txn();
            open.ask(context, txn);
            self.open.insert(txn, open);
        }
    }

    /// A holder of a copy that is one too many noted a moment. Whether it was asked to.
    pub(super) fn noted(
        &mut self,
        context: &mut Context<'_>,
        from: NodeId,
        txn: TxnId,
        note: u64,
        next: TxnId,
    ) -> bool {
        let Some(open) = self.open.get_mut(&txn) else { return false };
        if !open.owed.remove(&from) {
            return false;
        }
        open.noted.insert(from, note);
        self.go_on(context, txn, next);
        true
    }

    /// An answer that is none of the chunks that are to be put. Whether it was asked for.
    pub(super) fn acked(&mut self, context: &mut Context<'_>, from: NodeId, txn: TxnId, ack: Ack, next: TxnId) -> bool {
        let Some(open) = self.open.get_mut(&txn).filter(|open| open.owed.contains(&from)) else { return false };
        match (&open.step, ack) {
            // It is asked again.
            (_, Ack::Pending) => {}
            (Step::Promise, Ack::Durable | Ack::Piece(_)) | (Step::LetGo, _) => {
                open.owed.remove(&from);
                self.go_on(context, txn, next);
            }
            // What was to stay is not there.
            (Step::Promise | Step::Note, _) => drop(self.open.remove(&txn)),
        }
        true
    }

    fn go_on(&mut self, context: &mut Context<'_>, txn: TxnId, next: TxnId) {
        let Some(mut open) = self.open.remove(&txn) else { return };
        if open.owed.is_empty() {
            (open.step, open.owed) = match open.step {
                Step::Note if context.bug == Some(Bug::TrustCount) => {
                    (Step::LetGo, open.surplus.go.keys().copied().collect())
                }
                Step::Note => (Step::Promise, open.surplus.stay.keys().copied().collect()),
                Step::Promise => (Step::LetGo, open.surplus.go.keys().copied().collect()),
                Step::LetGo => return,
            };
            open.asked = 0;
            open.ask(context, next);
            self.open.insert(next, open);
        } else {
            self.open.insert(txn, open);
        }
    }
}

impl Open {
    /// Asks the targets that owe an answer, if that was not done too often.
    fn ask(&mut self, context: &mut Context<'_>, txn: TxnId) {
        self.asked += 1;
        self.again = context.now + context.config.bid_timeout.times(self.asked.into());
        if self.asked > ASKED {
            return;
        }
        let Surplus { stay, wanted, go } = &self.surplus;
        for to in &self.owed {
            let goes = go.get(to).copied().unwrap_or_default();
            let (id, wanted) = (self.id.of_piece(goes), *wanted);
            let message = match (&self.step, stay.get(to)) {
                (Step::Note, _) => Message::Surplus { txn, id, wanted, note: None },
                (Step::Promise, Some(copy)) => {
                    Message::Probe { txn, id: self.id.of_piece(copy.piece), wanted: copy.kept_for }
                }
                (Step::Promise, None) => continue,
                (Step::LetGo, _) => Message::Surplus { txn, id, wanted, note: self.noted.get(to).copied() },
            };
            context.out.push((*to, message));
        }
    }
}
