//! Questions to several targets that carry no payload: lists, pings, and those of a cleaner.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Ack, Alive, Bug, Busy, Deadline, Destination, Discard, Discarded, Event, Found, Instant, Mark, Marked, NodeId,
    Scope, Shared, Span, Step, TargetState, TxnId, limits, members,
};
use crate::id::ChunkId;
use crate::wire::{self, Message, Usage};

/// Times that a silent target is asked before the answer is given without it.
const ASKED: u8 = 5;
/// Who was silent before is waited for as long again as all others took, and at least this part of
/// [`Config::late`](crate::config::Config::late).
const BRIEF: u64 = 4;

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
    began: Instant,
    /// Whether those who were silent before are waited for only briefly, and until when, once all others have answered.
    brief: bool,
    brief_until: Option<Instant>,
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
    /// (To a discard.) Which page.
    page: u16,
    /// Whether the last that was heard of it is that it is busy.
    busy: bool,
}

#[derive(Debug)]
enum Question {
    List { prefix: Vec<u8>, found: BTreeMap<ChunkId, BTreeSet<NodeId>> },
    Ping { alive: BTreeMap<NodeId, Alive> },
    Renew { id: ChunkId, holders: Vec<NodeId> },
    Mark { mark: Mark },
    Discard { mark: TxnId, since: TxnId, chunks: BTreeMap<NodeId, Vec<ChunkId>>, done: Discarded },
    Usage { used: Vec<(NodeId, Usage)> },
}

impl Ask {
    pub(super) fn list(cx: &mut Shared, txn: TxnId, handle: u64, scope: &Scope, prefix: Vec<u8>) -> Self {
        let whom = match scope {
            Scope::Cluster => cx.map.targets().map(|t| t.id).collect(),
            Scope::GroupOf(id) | Scope::LiveOf(id) => members(&cx.map, id).1,
        };
        let ask = Self::begin(cx, txn, handle, whom, Question::List { prefix, found: BTreeMap::new() });
        Self { brief: matches!(scope, Scope::LiveOf(_)), ..ask }
    }

    pub(super) fn ping(cx: &mut Shared, txn: TxnId, handle: u64) -> Self {
        let whom = cx.map.targets().map(|t| t.id).collect();
        Self::begin(cx, txn, handle, whom, Question::Ping { alive: BTreeMap::new() })
    }

    pub(super) fn renew(cx: &mut Shared, txn: TxnId, handle: u64, id: ChunkId) -> Self {
        let whom = members(&cx.map, &id).1;
        Self::begin(cx, txn, handle, whom, Question::Renew { id, holders: Vec::new() })
    }

    pub(super) fn mark(cx: &mut Shared, txn: TxnId, handle: u64) -> Self {
        let whom = cx.map.targets().map(|t| t.id).collect();
        let mark = Mark { name: txn, epoch: cx.map.epoch };
        Self::begin(cx, txn, handle, whom, Question::Mark { mark })
    }

    pub(super) fn usage(cx: &mut Shared, txn: TxnId, handle: u64) -> Self {
        let whom = cx.map.targets().map(|t| t.id).collect();
        Self::begin(cx, txn, handle, whom, Question::Usage { used: Vec::new() })
    }

    /// Under another map than that of the mark nobody is told anything: what refers to the chunks was looked for where
    /// that map says.
    pub(super) fn discard(cx: &mut Shared, txn: TxnId, handle: u64, discard: Discard) -> Self {
        let Discard { mark, since, chunks } = discard;
        let mut by_target: BTreeMap<NodeId, Vec<ChunkId>> = BTreeMap::new();
        for (id, mut holders) in chunks {
            // Where a copy is missing, who dropped it as damaged need miss it no more.
            if cx.map.domains(&holders) < usize::from(cx.map.copies) {
                holders.extend(members(&cx.map, &id).1);
                holders.sort_unstable();
                holders.dedup();
            }
            holders.into_iter().for_each(|holder| by_target.entry(holder).or_default().push(id));
        }
        let mut done = Discarded::default();
        if mark.epoch != cx.map.epoch {
            done.silent = core::mem::take(&mut by_target).into_keys().collect();
        }
        let since = since.filter(|since| since.epoch == mark.epoch).map_or(TxnId(0), |since| since.name);
        let whom = by_target.keys().copied().collect();
        Self::begin(cx, txn, handle, whom, Question::Discard { mark: mark.name, since, chunks: by_target, done })
    }

    fn begin(cx: &mut Shared, txn: TxnId, handle: u64, whom: Vec<NodeId>, question: Question) -> Self {
        let again = cx.now + cx.config.bid_timeout;
        let open = whom.into_iter().map(|n| (n, Owed { asked: 1, again, after: None, page: 0, busy: false })).collect();
        let open: BTreeMap<NodeId, Owed> = open;
        // Whom nobody owes an answer, the next wake answers.
        let give_up_at = if open.is_empty() { cx.now } else { cx.now + cx.config.give_up };
        let (silent, busy, began) = (Vec::new(), Vec::new(), cx.now);
        let ask =
            Self { txn, handle, question, open, silent, busy, began, brief: false, brief_until: None, give_up_at };
        for node in ask.open.keys() {
            ask.send(cx, *node, None, 0);
        }
        ask
    }

    fn send(&self, cx: &mut Shared, to: NodeId, after: Option<ChunkId>, page: u16) {
        let txn = self.txn;
        let message = match &self.question {
            Question::List { prefix, .. } => Message::List { txn, prefix: prefix.clone(), after },
            Question::Ping { .. } => Message::Ping { txn },
            Question::Renew { id, .. } => Message::Probe { txn, id: *id },
            Question::Mark { .. } => Message::Mark { txn },
            Question::Usage { .. } => Message::Usage { txn },
            Question::Discard { mark, since, chunks, .. } => {
                let ids = chunks.get(&to).and_then(|ids| ids.chunks(limits::LISTED).nth(usize::from(page)));
                let ids = ids.unwrap_or_default().to_vec();
                Message::Discard(wire::Discard { txn, page, mark: *mark, since: *since, ids })
            }
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
                let again = cx.now + cx.config.bid_timeout;
                *owed = Owed { asked: 1, again, after: Some(*last), page: 0, busy: false };
                self.send(cx, from, Some(*last), 0);
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

    /// It uses a newer cluster map than this question.
    pub(super) fn stale(&mut self, cx: &mut Shared, from: NodeId) -> Step {
        if self.open.remove(&from).is_some() {
            self.silent.push(from);
        }
        self.finish_if_all(cx)
    }

    pub(super) fn promised(&mut self, cx: &mut Shared, from: NodeId, ack: Ack) -> Step {
        let Question::Renew { holders, .. } = &mut self.question else {
            return Step::Continue;
        };
        if ack == Ack::Pending || self.open.remove(&from).is_none() {
            return Step::Continue;
        }
        if ack == Ack::Durable {
            holders.push(from);
        }
        if self.is_renewed(cx) {
            self.open.clear();
        }
        self.finish_if_all(cx)
    }

    /// Whether enough copies are promised where the chunk is looked for: a newer map may have moved it to another group.
    fn is_renewed(&self, cx: &Shared) -> bool {
        let Question::Renew { id, holders } = &self.question else { return false };
        let group = members(&cx.map, id).1;
        let here: Vec<NodeId> = holders.iter().copied().filter(|holder| group.contains(holder)).collect();
        cx.domains(&here) >= usize::from(cx.map.copies)
    }

    pub(super) fn marked(&mut self, cx: &mut Shared, from: NodeId) -> Step {
        if matches!(self.question, Question::Mark { .. }) {
            self.open.remove(&from);
        }
        self.finish_if_all(cx)
    }

    pub(super) fn used(&mut self, cx: &mut Shared, from: NodeId, usage: Usage) -> Step {
        if let Question::Usage { used } = &mut self.question
            && self.open.remove(&from).is_some()
        {
            used.push((from, usage));
        }
        self.finish_if_all(cx)
    }

    pub(super) fn discarded(
        &mut self,
        cx: &mut Shared,
        from: NodeId,
        page: u16,
        dropped: Option<u32>,
        bytes: u64,
    ) -> Step {
        let (Question::Discard { chunks, done, .. }, Some(owed)) = (&mut self.question, self.open.get_mut(&from))
        else {
            return Step::Continue;
        };
        if owed.page != page {
            return Step::Continue;
        }
        let Some(dropped) = dropped else {
            // It was restarted, and knows of no promise before.
            self.open.remove(&from);
            self.silent.push(from);
            return self.finish_if_all(cx);
        };
        done.copies += u64::from(dropped.count_ones());
        done.bytes += bytes;
        let pages = chunks.get(&from).map_or(0, |ids| ids.len().div_ceil(limits::LISTED));
        match page.checked_add(1).filter(|next| usize::from(*next) < pages) {
            Some(next) => {
                let again = cx.now + cx.config.bid_timeout;
                *owed = Owed { asked: 1, again, after: None, page: next, busy: false };
                self.send(cx, from, None, next);
            }
            None => drop(self.open.remove(&from)),
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

    /// Whether only those are missing who were silent before, and the answer counts without them: nothing that was
    /// acknowledged is known to none but them, however briefly they were waited for.
    fn lacks_only_the_silent(&self, cx: &Shared) -> bool {
        let missing: Vec<NodeId> = self.open.keys().chain(&self.silent).chain(&self.busy).copied().collect();
        self.brief && !cx.may_hide(&missing) && self.open.keys().all(|node| cx.is_silent(*node))
    }

    fn finish_if_all(&mut self, cx: &mut Shared) -> Step {
        if !self.open.is_empty() {
            if self.brief_until.is_none() && self.lacks_only_the_silent(cx) {
                // As long again as the others took: what keeps them busy may keep these.
                let took = cx.now.since(self.began).max(cx.config.late.div(BRIEF));
                self.brief_until = Some(cx.now + took);
            }
            return Step::Continue;
        }
        self.finish(cx, false)
    }

    fn finish(&mut self, cx: &mut Shared, brief: bool) -> Step {
        let (handle, renewed) = (self.handle, self.is_renewed(cx));
        let (mut silent, busy) = (core::mem::take(&mut self.silent), core::mem::take(&mut self.busy));
        // With so many dead that the list is worth nothing, only they are to be started.
        let dead = cx.may_hide(&silent);
        let too_few = !dead && cx.may_hide(&[&silent[..], &busy].concat());
        if !dead || matches!(self.question, Question::Mark { .. } | Question::Discard { .. }) {
            silent.extend(busy);
        }
        while cx.bug == Some(Bug::TrustTheRest) && cx.may_hide(&silent) {
            silent.pop();
        }
        cx.event(match &mut self.question {
            // What was not heard is missing: "silent" would send the reader to look for targets that are well.
            Question::List { .. } if too_few => Event::List { handle, result: Err(Busy) },
            Question::List { found, .. } => {
                let chunks =
                    core::mem::take(found).into_iter().map(|(id, by)| (id, by.into_iter().collect())).collect();
                Event::List { handle, result: Ok(Found { chunks, silent, brief }) }
            }
            Question::Renew { .. } => Event::Renew { handle, result: Ok(renewed) },
            Question::Mark { mark } => Event::Mark { handle, result: Ok(Marked { mark: *mark, silent }) },
            Question::Usage { used } => Event::Usage { handle, result: Ok(core::mem::take(used)) },
            Question::Discard { done, .. } => {
                let mut done = core::mem::take(done);
                done.silent.extend(silent);
                Event::Discard { handle, result: Ok(done) }
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
        if self.brief_until.is_some_and(|until| cx.now >= until) {
            if self.lacks_only_the_silent(cx) {
                self.silent.extend(core::mem::take(&mut self.open).into_keys());
                return self.finish(cx, true);
            }
            // One of them said something meanwhile: it has all the time.
            (self.brief, self.brief_until) = (false, None);
        }
        let late: Vec<NodeId> = self.open.iter().filter(|(_, owed)| owed.again <= cx.now).map(|(n, _)| *n).collect();
        for node in late {
            let Some(owed) = self.open.get_mut(&node) else {
                continue;
            };
            if owed.asked >= ASKED {
                self.open.remove(&node);
                self.silent.push(node);
                cx.fell_silent(node);
                continue;
            }
            owed.asked += 1;
            owed.again = cx.now + cx.config.bid_timeout;
            let (after, page) = (owed.after, owed.page);
            self.send(cx, node, after, page);
        }
        self.finish_if_all(cx)
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        let again = self.open.values().map(|owed| owed.again).chain(self.brief_until).min();
        Deadline { at: again.map_or(self.give_up_at, |again| again.min(self.give_up_at)), why: "answers" }
    }
}
