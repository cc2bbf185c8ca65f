//! Questions to several targets that carry no payload: lists and pings.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Alive, Busy, Deadline, Destination, Event, Found, Instant, NodeId, Scope, Shared, Span, Step, TargetState, TxnId,
    members,
};
use crate::id::ChunkId;
use crate::wire::Message;

/// Times that a silent target is asked before the answer is given without it.
const ASKED: u8 = 5;

#[derive(Debug)]
pub(super) struct Ask {
    txn: TxnId,
    handle: u64,
    question: Question,
    /// Who still owes an answer.
    open: BTreeMap<NodeId, Owed>,
    silent: Vec<NodeId>,
    /// Who was busy to the end.
    busy: Vec<NodeId>,
    give_up_at: Instant,
}

/// An answer that a target still owes.
#[derive(Debug)]
struct Owed {
    /// How often it was asked since it was heard last.
    asked: u8,
    /// When it is asked again.
    again: Instant,
    /// (To a list.) What comes after this.
    after: Option<ChunkId>,
    /// Whether the last that was heard of it is that it is busy.
    busy: bool,
}

#[derive(Debug)]
enum Question {
    List { prefix: Vec<u8>, found: BTreeMap<ChunkId, BTreeSet<NodeId>> },
    Ping { alive: BTreeMap<NodeId, Alive> },
}

impl Ask {
    pub(super) fn list(cx: &mut Shared, txn: TxnId, handle: u64, scope: &Scope, prefix: Vec<u8>) -> Self {
        let whom = match scope {
            Scope::Cluster => cx.map.targets().map(|t| t.id).collect(),
            Scope::GroupOf(id) => members(&cx.map, id).1,
        };
        Self::begin(cx, txn, handle, whom, Question::List { prefix, found: BTreeMap::new() })
    }

    pub(super) fn ping(cx: &mut Shared, txn: TxnId, handle: u64) -> Self {
        let whom = cx.map.targets().map(|t| t.id).collect();
        Self::begin(cx, txn, handle, whom, Question::Ping { alive: BTreeMap::new() })
    }

    fn begin(cx: &mut Shared, txn: TxnId, handle: u64, whom: Vec<NodeId>, question: Question) -> Self {
        let again = cx.now + cx.config.bid_timeout;
        let open = whom.into_iter().map(|n| (n, Owed { asked: 1, again, after: None, busy: false })).collect();
        let give_up_at = cx.now + cx.config.give_up;
        let ask = Self { txn, handle, question, open, silent: Vec::new(), busy: Vec::new(), give_up_at };
        for node in ask.open.keys() {
            ask.send(cx, *node, None);
        }
        ask
    }

    fn send(&self, cx: &mut Shared, to: NodeId, after: Option<ChunkId>) {
        let txn = self.txn;
        let message = match &self.question {
            Question::List { prefix, .. } => Message::List { txn, prefix: prefix.clone(), after },
            Question::Ping { .. } => Message::Ping { txn },
        };
        cx.send(Destination::Node(to), &message);
    }

    pub(super) fn listed(&mut self, cx: &mut Shared, from: NodeId, ids: &[ChunkId], more: bool) -> Step {
        let Some(owed) = self.open.get_mut(&from) else {
            return Step::Continue;
        };
        let Question::List { found, .. } = &mut self.question else {
            return Step::Continue;
        };
        // An answer to an earlier page of the same list (asked twice) begins before the cursor.
        if ids.first().is_some_and(|first| owed.after.is_some_and(|cursor| *first <= cursor)) {
            return Step::Continue;
        }
        for id in ids {
            found.entry(*id).or_default().insert(from);
        }
        match ids.last() {
            Some(last) if more => {
                *owed = Owed { asked: 1, again: cx.now + cx.config.bid_timeout, after: Some(*last), busy: false };
                self.send(cx, from, Some(*last));
            }
            _ => {
                self.open.remove(&from);
            }
        }
        self.finish_if_all(cx)
    }

    /// The target has too much to look up: it is asked again when it said, for as long as patience lasts.
    pub(super) fn busy(&mut self, cx: &Shared, from: NodeId, wait: Span) -> Step {
        if let Some(owed) = self.open.get_mut(&from) {
            *owed = Owed { asked: 0, again: cx.now + cx.rest(Some(wait)), busy: true, ..*owed };
        }
        Step::Continue
    }

    pub(super) fn pong(&mut self, cx: &mut Shared, from: NodeId, state: Alive) -> Step {
        let Question::Ping { alive } = &mut self.question else {
            return Step::Continue;
        };
        if self.open.remove(&from).is_some() {
            alive.insert(from, state);
        }
        self.finish_if_all(cx)
    }

    fn finish_if_all(&mut self, cx: &mut Shared) -> Step {
        if !self.open.is_empty() {
            return Step::Continue;
        }
        let (handle, copies) = (self.handle, usize::from(cx.map.copies));
        let (mut silent, busy) = (core::mem::take(&mut self.silent), core::mem::take(&mut self.busy));
        let too_few = silent.len() < copies && silent.len() + busy.len() >= copies;
        // With so many dead that the list is worth nothing, only they are to be started.
        if silent.len() < copies {
            silent.extend(busy);
        }
        cx.event(match &mut self.question {
            // What was not heard is missing: "silent" would send the reader to look for targets that are well.
            Question::List { .. } if too_few => Event::List { handle, result: Err(Busy) },
            Question::List { found, .. } => {
                let chunks =
                    core::mem::take(found).into_iter().map(|(id, by)| (id, by.into_iter().collect())).collect();
                Event::List { handle, result: Ok(Found { chunks, silent }) }
            }
            Question::Ping { alive } => {
                let answers = alive.iter().map(|(n, a)| TargetState { target: *n, answer: Some(*a) });
                let missing = silent.iter().map(|n| TargetState { target: *n, answer: None });
                let mut targets: Vec<TargetState> = answers.chain(missing).collect();
                targets.sort_by_key(|state| state.target);
                Event::Ping { handle, result: Ok(targets) }
            }
        });
        Step::Over
    }

    pub(super) fn wake(&mut self, cx: &mut Shared) -> Step {
        if cx.now >= self.give_up_at {
            // Whoever still has more to say counts as silent: what was not heard is not known.
            let open = core::mem::take(&mut self.open);
            let (busy, silent): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, owed)| owed.busy);
            self.busy.extend(busy.into_iter().map(|(node, _)| node));
            self.silent.extend(silent.into_iter().map(|(node, _)| node));
            return self.finish_if_all(cx);
        }
        let late: Vec<NodeId> = self.open.iter().filter(|(_, owed)| owed.again <= cx.now).map(|(n, _)| *n).collect();
        for node in late {
            let Some(owed) = self.open.get_mut(&node) else {
                continue;
            };
            if owed.asked >= ASKED {
                self.open.remove(&node);
                self.silent.push(node);
                continue;
            }
            owed.asked += 1;
            owed.again = cx.now + cx.config.bid_timeout;
            let after = owed.after;
            self.send(cx, node, after);
        }
        self.finish_if_all(cx)
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        let again = self.open.values().map(|owed| owed.again).min();
        Deadline { at: again.map_or(self.give_up_at, |again| again.min(self.give_up_at)), why: "answers" }
    }
}
