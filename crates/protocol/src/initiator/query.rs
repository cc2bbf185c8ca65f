//! Questions to several targets that carry no payload: lists, pings, and those of a cleaner.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Ack, Alive, Bug, Busy, Context, Deadline, Destination, Discard, Discarded, Event, Found, Instant, Mark, Marked,
    NodeId, Query, QueryAnswer, Span, Step, TargetState, TxnId, limits, members,
};
use crate::goal::Goal;
use crate::id::ChunkId;
use crate::machine::IgnoredReason;
use crate::redundancy::{Piece, Wanted};
use crate::wire::{self, HealthReport, Message, Usage};

/// Times that a silent target is asked before the answer is given without it.
const ASKED: u8 = 5;

#[derive(Debug)]
pub(super) struct OpenQuery {
    txn: TxnId,
    handle: u64,
    question: Question,
    /// The targets that still owe an answer.
    open: BTreeMap<NodeId, Owed>,
    silent: Vec<NodeId>,
    /// The targets that were busy to the end.
    busy: Vec<NodeId>,
    give_up_at: Instant,
}

/// An answer that a target still owes.
#[derive(Debug)]
struct Owed {
    /// How often it was asked since its last answer.
    asked: u8,
    /// When it is asked again.
    again: Instant,
    /// (To a list.) What comes after this.
    after: Option<ChunkId>,
    /// (To a discard.) Which page.
    page: u16,
    /// Whether its last answer was that it is busy.
    busy: bool,
}

/// A query, and what was answered so far.
#[derive(Debug)]
enum Question {
    List { prefix: Vec<u8>, found: BTreeMap<ChunkId, BTreeSet<NodeId>> },
    Ping { alive: BTreeMap<NodeId, Alive> },
    Renew { id: ChunkId, wanted: Wanted, holders: Vec<(NodeId, Piece)> },
    Mark { mark: Mark },
    Discard { mark: TxnId, since: TxnId, chunks: BTreeMap<NodeId, Vec<ChunkId>>, done: Discarded },
    Usage { used: Vec<(NodeId, Usage)> },
    Health { reports: Vec<(NodeId, HealthReport)> },
}

impl Question {
    /// All targets that may have had a copy are told, and not only those that were listed with one: a target that
    /// dropped a damaged copy still looks for another one, and stops when it hears of this. Under another map than that
    /// of the mark no target is told anything: what refers to the chunks was looked for where that map says.
    fn discard(context: &Context, discard: Discard) -> (Vec<NodeId>, Self) {
        let Discard { mark, since, chunks } = discard;
        let mut by_target: BTreeMap<NodeId, Vec<ChunkId>> = BTreeMap::new();
        for (id, mut holders) in chunks {
            holders.extend(context.map.may_hold(&id));
            holders.sort_unstable();
            holders.dedup();
            holders.into_iter().for_each(|holder| by_target.entry(holder).or_default().push(id));
        }
        let mut done = Discarded::default();
        if mark.epoch != context.map.epoch {
            done.silent = core::mem::take(&mut by_target).into_keys().collect();
        }
        let since = since.filter(|since| since.epoch == mark.epoch).map_or(TxnId(0), |since| since.name);
        let whom = by_target.keys().copied().collect();
        (whom, Self::Discard { mark: mark.name, since, chunks: by_target, done })
    }
}

fn all(context: &Context) -> Vec<NodeId> {
    context.map.targets().map(|target| target.id).collect()
}

/// These are asked now.
fn owed_by(context: &Context, whom: Vec<NodeId>) -> BTreeMap<NodeId, Owed> {
    let again = context.now + context.config.bid_timeout;
    whom.into_iter().map(|node| (node, Owed { asked: 1, again, after: None, page: 0, busy: false })).collect()
}

impl OpenQuery {
    pub(super) fn new(context: &mut Context, txn: TxnId, handle: u64, query: Query) -> Self {
        let all = || all(context);
        let (whom, question) = match query {
            Query::List { prefix } => (all(), Question::List { prefix, found: BTreeMap::new() }),
            Query::Ping => (all(), Question::Ping { alive: BTreeMap::new() }),
            Query::PingSwitches => (context.map.aggregators().to_vec(), Question::Ping { alive: BTreeMap::new() }),
            Query::Renew { id, redundancy } => {
                let wanted = Wanted::of(redundancy);
                (members(&context.map, &id).1, Question::Renew { id, wanted, holders: Vec::new() })
            }
            Query::Mark => (all(), Question::Mark { mark: Mark { name: txn, epoch: context.map.epoch } }),
            Query::Usage => (all(), Question::Usage { used: Vec::new() }),
            Query::Health => (all(), Question::Health { reports: Vec::new() }),
            Query::Discard(discard) => Question::discard(context, discard),
        };
        let open = owed_by(context, whom);
        // A query to which no target owes an answer is answered at the next wake.
        let give_up_at = if open.is_empty() { context.now } else { context.now + context.config.give_up };
        let query = Self { txn, handle, question, open, silent: Vec::new(), busy: Vec::new(), give_up_at };
        for node in query.open.keys() {
            query.send(context, *node, None, 0);
        }
        query
    }

    fn send(&self, context: &mut Context, to: NodeId, after: Option<ChunkId>, page: u16) {
        let txn = self.txn;
        let message = match &self.question {
            Question::List { prefix, .. } => Message::List { txn, prefix: prefix.clone(), after },
            Question::Ping { .. } => Message::Ping { txn },
            Question::Renew { id, wanted, .. } => Message::Probe { txn, id: *id, wanted: *wanted },
            Question::Mark { .. } => Message::Mark { txn },
            Question::Usage { .. } => Message::Usage { txn },
            Question::Health { .. } => Message::Health { txn },
            Question::Discard { mark, since, chunks, .. } => {
                let ids = chunks.get(&to).and_then(|ids| ids.chunks(limits::LISTED).nth(usize::from(page)));
                let ids = ids.unwrap_or_default().to_vec();
                Message::Discard(wire::Discard { txn, page, mark: *mark, since: *since, ids })
            }
        };
        context.send(Destination::Node(to), &message);
    }

    pub(super) fn listed(&mut self, context: &mut Context, from: NodeId, ids: &[ChunkId], more: bool) -> Step {
        let Question::List { found, .. } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        let Some(owed) = self.open.get_mut(&from) else {
            return context.ignore(IgnoredReason::Late);
        };
        // An answer to an earlier page of the same list (asked twice) begins before the cursor.
        if ids.first().is_some_and(|first| owed.after.is_some_and(|cursor| *first <= cursor)) {
            return context.ignore(IgnoredReason::Late);
        }
        for id in ids {
            found.entry(*id).or_default().insert(from);
        }
        match ids.last() {
            Some(last) if more => {
                let again = context.now + context.config.bid_timeout;
                *owed = Owed { asked: 1, again, after: Some(*last), page: 0, busy: false };
                self.send(context, from, Some(*last), 0);
            }
            _ => {
                self.open.remove(&from);
            }
        }
        self.finish_if_all(context)
    }

    /// The target has too much to look up: it is asked again when it said, for as long as patience lasts.
    pub(super) fn busy(&mut self, context: &mut Context, from: NodeId, wait: Span) -> Step {
        let Some(owed) = self.open.get_mut(&from) else {
            return context.ignore(IgnoredReason::Late);
        };
        *owed = Owed { asked: 0, again: context.now + context.rest(Some(wait)), busy: true, ..*owed };
        Step::Continue
    }

    pub(super) const fn is_list(&self) -> bool {
        matches!(self.question, Question::List { .. })
    }

    /// Under a newer map chunks may be with others: what is held is asked for once more, of all that there are. What comes late is
    /// of another transaction.
    pub(super) fn ask_anew(&mut self, context: &mut Context, txn: TxnId) {
        let Question::List { found, .. } = &mut self.question else { return };
        found.clear();
        self.silent.clear();
        (self.txn, self.open) = (txn, owed_by(context, all(context)));
        self.open.keys().for_each(|node| self.send(context, *node, None, 0));
    }

    /// It uses a newer cluster map than this question. What is held is asked for again when that is here.
    pub(super) fn stale(&mut self, context: &mut Context, from: NodeId) -> Step {
        if self.is_list() {
            return self.busy(context, from, Span::ZERO);
        }
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        self.silent.push(from);
        self.finish_if_all(context)
    }

    pub(super) fn promised(&mut self, context: &mut Context, from: NodeId, ack: Ack) -> Step {
        let Question::Renew { holders, .. } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        if ack == Ack::Pending {
            // It is asked again.
            return Step::Continue;
        }
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        holders.extend(ack.durable().map(|piece| (from, piece)));
        if self.is_renewed(context) {
            self.open.clear();
        }
        self.finish_if_all(context)
    }

    /// Whether all pieces are promised where the chunk is looked for: a newer map may have moved it to another group.
    fn is_renewed(&self, context: &Context) -> bool {
        let Question::Renew { id, wanted, holders } = &self.question else { return false };
        let group = members(&context.map, id).1;
        let here = holders.iter().filter(|(holder, _)| group.contains(holder));
        context.reached(Goal::new(context.redundancy(id, *wanted)), here).is_met()
    }

    pub(super) fn marked(&mut self, context: &mut Context, from: NodeId) -> Step {
        if !matches!(self.question, Question::Mark { .. }) {
            return context.ignore(IgnoredReason::Invalid);
        }
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        self.finish_if_all(context)
    }

    pub(super) fn used(&mut self, context: &mut Context, from: NodeId, usage: Usage) -> Step {
        let Question::Usage { used } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        used.push((from, usage));
        self.finish_if_all(context)
    }

    pub(super) fn health(&mut self, context: &mut Context, from: NodeId, report: &HealthReport) -> Step {
        let Question::Health { reports } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        reports.push((from, report.clone()));
        self.finish_if_all(context)
    }

    pub(super) fn discarded(
        &mut self,
        context: &mut Context,
        from: NodeId,
        page: u16,
        dropped: Option<u32>,
        bytes: u64,
    ) -> Step {
        let Question::Discard { chunks, done, .. } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        let Some(owed) = self.open.get_mut(&from).filter(|owed| owed.page == page) else {
            return context.ignore(IgnoredReason::Late);
        };
        let Some(dropped) = dropped else {
            // It was restarted, and knows of no promise before.
            self.open.remove(&from);
            self.silent.push(from);
            return self.finish_if_all(context);
        };
        done.copies += u64::from(dropped.count_ones());
        done.bytes += bytes;
        let pages = chunks.get(&from).map_or(0, |ids| ids.len().div_ceil(limits::LISTED));
        match page.checked_add(1).filter(|next| usize::from(*next) < pages) {
            Some(next) => {
                let again = context.now + context.config.bid_timeout;
                *owed = Owed { asked: 1, again, after: None, page: next, busy: false };
                self.send(context, from, None, next);
            }
            None => drop(self.open.remove(&from)),
        }
        self.finish_if_all(context)
    }

    pub(super) fn pong(&mut self, context: &mut Context, from: NodeId, state: Alive) -> Step {
        let Question::Ping { alive } = &mut self.question else {
            return context.ignore(IgnoredReason::Invalid);
        };
        if self.open.remove(&from).is_none() {
            return context.ignore(IgnoredReason::Late);
        }
        alive.insert(from, state);
        self.finish_if_all(context)
    }

    fn finish_if_all(&mut self, context: &mut Context) -> Step {
        if matches!(self.question, Question::Renew { .. }) {
            // A put, which follows where too little is promised, does not wait for targets that are down either.
            self.open.retain(|node, _| !context.is_down(*node));
        }
        if !self.open.is_empty() {
            return Step::Continue;
        }
        let (handle, renewed) = (self.handle, self.is_renewed(context));
        let (mut silent, busy) = (core::mem::take(&mut self.silent), core::mem::take(&mut self.busy));
        // With so many dead that the list is worth nothing, only they are to be started.
        let dead = context.map.may_hide(&silent);
        let too_few = !dead && context.map.may_hide(&[&silent[..], &busy].concat());
        if !dead || matches!(self.question, Question::Mark { .. } | Question::Discard { .. }) {
            silent.extend(busy);
        }
        while context.bug == Some(Bug::TrustTheRest) && context.map.may_hide(&silent) {
            silent.pop();
        }
        let answer = match &mut self.question {
            // What did not arrive is missing: "silent" would send the reader to look for targets that are well.
            Question::List { .. } if too_few => QueryAnswer::List(Err(Busy)),
            Question::List { found, .. } => {
                let chunks =
                    core::mem::take(found).into_iter().map(|(id, by)| (id, by.into_iter().collect())).collect();
                QueryAnswer::List(Ok(Found { chunks, silent }))
            }
            Question::Renew { .. } => QueryAnswer::Renew(Ok(renewed)),
            Question::Mark { mark } => QueryAnswer::Mark(Ok(Marked { mark: *mark, silent })),
            Question::Usage { used } => QueryAnswer::Usage(Ok(core::mem::take(used))),
            Question::Health { reports } => QueryAnswer::Health(Ok(core::mem::take(reports))),
            Question::Discard { done, .. } => {
                let mut done = core::mem::take(done);
                done.silent.extend(silent);
                QueryAnswer::Discard(Ok(done))
            }
            Question::Ping { alive } => {
                let answers = alive.iter().map(|(n, a)| TargetState { target: *n, answer: Some(*a) });
                let missing = silent.iter().map(|n| TargetState { target: *n, answer: None });
                let mut targets: Vec<TargetState> = answers.chain(missing).collect();
                targets.sort_by_key(|state| state.target);
                QueryAnswer::Ping(Ok(targets))
            }
        };
        context.event(Event::Query { handle, answer });
        Step::Over
    }

    pub(super) fn wake(&mut self, context: &mut Context) -> Step {
        if context.now >= self.give_up_at {
            // A target whose list is not complete counts as silent: what did not arrive is not known.
            let open = core::mem::take(&mut self.open);
            let (busy, silent): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, owed)| owed.busy);
            self.busy.extend(busy.into_iter().map(|(node, _)| node));
            self.silent.extend(silent.into_iter().map(|(node, _)| node));
            return self.finish_if_all(context);
        }
        let late: Vec<NodeId> =
            self.open.iter().filter(|(_, owed)| owed.again <= context.now).map(|(n, _)| *n).collect();
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
            owed.again = context.now + context.config.bid_timeout;
            let (after, page) = (owed.after, owed.page);
            self.send(context, node, after, page);
        }
        self.finish_if_all(context)
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        let again = self.open.values().map(|owed| owed.again).min();
        Deadline { at: again.map_or(self.give_up_at, |again| again.min(self.give_up_at)), why: "answers" }
    }
}
