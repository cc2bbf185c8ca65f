//! Questions to several targets that carry no payload: lists and pings.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Alive, Deadline, Destination, Event, Found, Instant, NodeId, Scope, Shared, Step, TargetState, TxnId, members,
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
    /// Who still owes an answer, and how often it was asked.
    open: BTreeMap<NodeId, (u8, Option<ChunkId>)>,
    silent: Vec<NodeId>,
    again: Instant,
    give_up_at: Instant,
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
        let open = whom.into_iter().map(|n| (n, (1, None))).collect();
        let again = cx.now + cx.config.bid_timeout;
        let give_up_at = cx.now + cx.config.give_up;
        let ask = Self { txn, handle, question, open, silent: Vec::new(), again, give_up_at };
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
        let Some((asked, after)) = self.open.get_mut(&from) else {
            return Step::Continue;
        };
        let Question::List { found, .. } = &mut self.question else {
            return Step::Continue;
        };
        // An answer to an earlier page of the same list (asked twice) begins before the cursor.
        if ids.first().is_some_and(|first| after.is_some_and(|cursor| *first <= cursor)) {
            return Step::Continue;
        }
        for id in ids {
            found.entry(*id).or_default().insert(from);
        }
        match ids.last() {
            Some(last) if more => {
                (*asked, *after) = (1, Some(*last));
                self.again = cx.now + cx.config.bid_timeout;
                self.send(cx, from, Some(*last));
            }
            _ => {
                self.open.remove(&from);
            }
        }
        self.finish_if_all(cx)
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
        let (handle, silent) = (self.handle, core::mem::take(&mut self.silent));
        cx.event(match &mut self.question {
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
                Event::Ping { handle, targets }
            }
        });
        Step::Over
    }

    pub(super) fn wake(&mut self, cx: &mut Shared) -> Step {
        if cx.now >= self.give_up_at {
            // Whoever still has more to say counts as silent: what was not heard is not known.
            self.silent.extend(core::mem::take(&mut self.open).into_keys());
            return self.finish_if_all(cx);
        }
        if cx.now < self.again {
            return Step::Continue;
        }
        self.again = cx.now + cx.config.bid_timeout;
        let late: Vec<NodeId> = self.open.keys().copied().collect();
        for node in late {
            let Some((asked, after)) = self.open.get_mut(&node) else {
                continue;
            };
            if *asked >= ASKED {
                self.open.remove(&node);
                self.silent.push(node);
                continue;
            }
            *asked += 1;
            let after = *after;
            self.send(cx, node, after);
        }
        self.finish_if_all(cx)
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        Deadline { at: self.again.min(self.give_up_at), why: "answers" }
    }
}
