//! The steward of a group: it finds the chunks that have too few copies, and has them made again.
//!
//! One member of each group sweeps all that the group keeps, again and again: it asks every target that may hold chunks
//! of the group what it has, range by range. It goes only into ranges that are not as they were when it last found
//! nothing to do in them. Chunks with too few copies in distinct failure domains are put by one of their holders, those
//! with the fewest first.
//!
//! Nothing depends on there being one steward, or on what it believes: two of them only ask twice, and a put of a chunk counts the
//! copies that there are.

mod copies;
mod level;
mod surplus;
mod sweep;

use std::collections::BTreeMap;

use crate::census::{Counted, Holding, IdRange, PARTS};
use crate::config::Config;
use crate::health::Health;
use crate::id::{ChunkId, GroupId, NodeId, TxnId};
use crate::limits;
use crate::map::ClusterMap;
use crate::redundancy::Wanted;
use crate::rng::{Unguessable, mix};
use crate::time::{Instant, Span};
use crate::wire::{Ack, CensusRequest, Fill, Message};
use copies::{Copies, Copy};
use level::Levelling;
use surplus::{AllSurplus, Surplus};
use sweep::{Listing, Settled, Sweep, Visit};

/// Times that a member is asked before it counts as silent until the next sweep. It has twice as long each time: a
/// target that has much to do for a moment is not dead, and all that it has would be reported to be at risk.
const ASKED: u8 = 6;
/// Chunks that are put at once.
const AT_ONCE: usize = 24;
/// Chunks with too few copies that are remembered; others are found by the next sweep.
const REMEMBERED: usize = 16_384;
/// While chunks are known to lack copies, the pause after a sweep is so many times as long as that sweep took. Where
/// many chunks lack copies, a sweep has to look at everything again, and its questions would be most of the traffic.
const PAUSES: u64 = 8;
/// A sweep that has time rests for this part of the interval between two questions. It has to look at everything that
/// was just put, and clients that get it meanwhile should not wait for that.
const REST: u64 = 1_000;
/// It rests only until this part of the interval is over since it began, so that nothing is found much later.
const RESTING: u64 = 2;

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A quarter of the ids is never looked at.
    ForgetRange,
    /// A range is settled by the sums that were told of it, whatever was listed then.
    TrustSums,
    /// Copies are counted, and not the failure domains that they are in.
    CountCopies,
    /// A copy where the layout before had it counts as one in the group, beside the one that is made of it there.
    CountMoved,
    /// A silent target is taken to have nothing.
    SilentIsEmpty,
    /// Chunks get as many copies as the map says, whatever they are kept for.
    ForgetWanted,
    /// Copies outside of a chunk's group go before there are enough in it.
    LetGoEarly,
    /// Copies go as soon as they are found to be too many.
    LetGoAtOnce,
    /// Copies go without that those that stay are promised.
    TrustCount,
    /// A copy goes when it is read to be put on an emptier target, before that has it.
    DropBeforeDurable,
    /// A copy moves into a failure domain in which there is one.
    MoveIntoDomain,
    /// Copies move as soon as one target is fuller than another.
    MoveToAndFro,
    /// Of pieces those stay that come first by hashing, and not those that together are the most.
    StayByRank,
}

/// What the steward needs of the node that it is on.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) map: &'a ClusterMap,
    pub(crate) config: &'a Config,
    pub(crate) bug: Option<Bug>,
    /// What is to be sent.
    pub(crate) out: Vec<(NodeId, Message)>,
}

/// A chunk that a holder is to put.
#[derive(Debug)]
struct Order {
    id: ChunkId,
    to: NodeId,
    /// Of a coded chunk, the targets that have other pieces.
    holders: Vec<NodeId>,
    wanted: Wanted,
    /// How many failure domains have to fail until it is lost; `None`: it lacks nothing, and some are where the layout before had it.
    domains: Option<usize>,
    asked: u8,
    again: Instant,
}

/// A chunk with too few copies.
#[derive(Debug)]
struct Lacking {
    holders: Vec<NodeId>,
    wanted: Wanted,
    domains: Option<usize>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Steward {
    group: GroupId,
    members: Vec<NodeId>,
    /// Members, and others that may hold chunks of the group.
    keepers: Vec<NodeId>,
    salt: u64,
    txns: Unguessable,
    settled: BTreeMap<IdRange, Box<[Settled; PARTS]>>,
    sweep: Option<Sweep>,
    next_sweep: Instant,
    /// The next sweep is not before this while it is known what has to be made.
    rest_until: Instant,
    /// Since when a chunk has too few copies: it may just be being put.
    suspects: BTreeMap<ChunkId, Instant>,
    /// Those of which a member said that its copy is gone, and when: they do not wait.
    gone: BTreeMap<ChunkId, Instant>,
    /// When the last sweep was over, and whether another is to follow soon.
    swept: Instant,
    hurries: bool,
    /// Those to be put, by how many failure domains have to fail until they are lost.
    lacking: BTreeMap<(u8, ChunkId), Lacking>,
    orders: BTreeMap<TxnId, Order>,
    surplus: AllSurplus,
    levelling: Levelling,
    health: Health,
    /// Whether that is more than nothing: a sweep was over, or it is of the one that was the steward by the map before.
    is_known: bool,
}

impl Steward {
    /// Nobody else may know `seed`.
    pub(crate) fn new(group: GroupId, map: &ClusterMap, seed: u64, now: Instant) -> Self {
        let mut txns = Unguessable::new(seed);
        Self {
            group,
            members: map.members(group).map(|target| target.id).collect(),
            keepers: map.keepers(group),
            salt: txns.next_u64(),
            txns,
            settled: BTreeMap::new(),
            sweep: None,
            next_sweep: now,
            rest_until: now,
            suspects: BTreeMap::new(),
            gone: BTreeMap::new(),
            swept: now,
            hurries: false,
            lacking: BTreeMap::new(),
            orders: BTreeMap::new(),
            surplus: AllSurplus::default(),
            levelling: Levelling::default(),
            health: Health::default(),
            is_known: false,
        }
    }

    /// The steward of the same group by a newer map, to which this one hands on what it knows to be whole, if the group is as it was.
    pub(crate) fn by_newer_map(mut self, newer: &ClusterMap, older: &ClusterMap, now: Instant) -> Self {
        let mut next = Self::new(self.group, newer, self.txns.next_u64(), now);
        let alike = next.members == self.members
            && next.keepers == self.keepers
            && newer.redundancy() == older.redundancy()
            && self.keepers.iter().all(|keeper| newer.domain(*keeper) == older.domain(*keeper));
        if alike {
            // Of what lacks copies the map may say something else now.
            let parts = self.settled.values_mut().flat_map(|parts| parts.iter_mut());
            parts.filter(|part| part.lacks.is_some()).for_each(|part| *part = Settled::NOTHING);
            (next.settled, next.salt) = (self.settled, self.salt);
            (next.health, next.is_known) = (Health { whole: false, ..self.health }, self.is_known);
        }
        next
    }

    pub(crate) const fn group(&self) -> GroupId {
        self.group
    }

    /// How the group is; `None` before that is known.
    pub(crate) fn health(&self) -> Option<Health> {
        self.is_known.then_some(self.health)
    }

    pub(crate) fn next_deadline(&self) -> Instant {
        let sweep = match &self.sweep {
            None => self.sweep_at(),
            Some(sweep) => sweep.next_deadline(),
        };
        let orders = self.orders.values().map(|order| order.again).min();
        [orders, self.surplus.next_deadline(), self.levelling.next_deadline()]
            .into_iter()
            .flatten()
            .fold(sweep, Instant::min)
    }

    /// Whether it is known what has to be made.
    fn is_open(&self) -> bool {
        !self.lacking.is_empty() || !self.orders.is_empty()
    }

    /// When the next sweep begins.
    fn sweep_at(&self) -> Instant {
        if self.is_open() { self.next_sweep.max(self.rest_until) } else { self.next_sweep }
    }

    /// Whether nothing is known to lack copies. What was seen a moment ago may just be being put, and where much is put there is always some.
    fn is_calm(&self, context: &Context<'_>) -> bool {
        // Sweeps are a pause apart that is about as long.
        let is_new = |since: &Instant| context.now.since(*since) < context.config.settling().times(2);
        !self.is_open() && self.health.lacks.strayed == 0 && self.suspects.values().all(is_new)
    }

    fn new_txn(&mut self) -> TxnId {
        TxnId(self.txns.next_u64())
    }

    pub(crate) fn wake(&mut self, context: &mut Context<'_>) {
        if self.sweep.is_none() && context.now >= self.sweep_at() {
            let (txn, is_calm) = (self.new_txn(), self.is_calm(context));
            self.levelling.begin(context, &self.members, txn, is_calm && !context.map.moves_paused());
            let (txn, has_time) = (self.new_txn(), is_calm && self.is_known && !self.hurries);
            self.sweep = Some(Sweep::new(context.now, txn, &self.keepers, has_time));
            self.hurries = false;
        }
        if let Some(sweep) = &mut self.sweep {
            sweep.give_up_silent(context.now);
        }
        self.go_on(context);
        self.order(context);
        let Self { surplus, txns, .. } = self;
        surplus.wake(context, || TxnId(txns.next_u64()));
    }

    /// A target says what it holds of the range that is looked at. Whether this steward asked for it.
    pub(crate) fn counted(&mut self, context: &mut Context<'_>, from: NodeId, txn: TxnId, holding: &Holding) -> bool {
        let Some(sweep) = self.sweep.as_mut().filter(|sweep| sweep.txn == txn) else { return false };
        if let Some(visit) = sweep.path.last_mut() {
            visit.answered(context.now, from, holding);
        }
        self.go_on(context);
        self.order(context);
        true
    }

    /// A member's copy of a chunk was damaged, and is gone.
    pub(crate) fn copy_gone(&mut self, context: &Context<'_>, id: ChunkId) {
        if self.gone.len() < REMEMBERED {
            self.gone.insert(id.whole(), context.now);
            self.hurry(context);
        }
    }

    /// A target has been started: what it had may be gone, and what was put meanwhile may lack a copy there.
    pub(crate) fn is_back(&mut self, context: &Context<'_>, target: NodeId) {
        if self.keepers.contains(&target) {
            self.hurry(context);
        }
    }

    /// Sweeps soon; the group is not asked all the time, however much is said.
    fn hurry(&mut self, context: &Context<'_>) {
        self.hurries = true;
        self.next_sweep = self.next_sweep.min(self.swept + context.config.short_pause());
    }

    /// A holder of a copy that is one too many noted a moment. Whether this steward told it to.
    pub(crate) fn noted(&mut self, context: &mut Context<'_>, from: NodeId, txn: TxnId, note: u64) -> bool {
        let next = self.new_txn();
        self.surplus.noted(context, from, txn, note, next)
    }

    /// A member says how full it is. Whether this steward asked.
    pub(crate) fn filled(&mut self, from: NodeId, txn: TxnId, fill: Fill) -> bool {
        self.levelling.filled(from, txn, fill)
    }

    /// What a holder says of a chunk that it was to put, or of a copy that is to stay or to go. Whether this steward told it to.
    pub(crate) fn acked(&mut self, context: &mut Context<'_>, from: NodeId, txn: TxnId, ack: Ack) -> bool {
        let next = self.new_txn();
        if self.surplus.acked(context, from, txn, ack, next) {
            let Self { surplus, txns, .. } = self;
            surplus.begin(context, || TxnId(txns.next_u64()));
            return true;
        }
        if self.levelling.acked(context, from, txn, ack) {
            self.order(context);
            return true;
        }
        let Some(order) = self.orders.get_mut(&txn).filter(|order| order.to == from) else { return false };
        if ack == Ack::Pending {
            order.asked = 0;
            order.again = context.now + context.config.late.times(8);
        } else {
            let order = self.orders.remove(&txn);
            // Until the next sweep is over.
            order.iter().filter(|_| ack == Ack::Durable).for_each(|order| self.health.lacks.made(order.domains));
            // What is not done is found again. Where there was no room for it, there is none in a moment either.
            if let Some(order) = order.filter(|_| ack == Ack::NoSpace && self.suspects.len() < REMEMBERED) {
                self.suspects.insert(order.id, context.now + context.config.census_interval);
            }
            self.order(context);
        }
        true
    }

    /// Goes on with the sweep as far as is known what all have.
    fn go_on(&mut self, context: &mut Context<'_>) {
        loop {
            let Some(sweep) = &mut self.sweep else { return };
            let Some(visit) = sweep.path.last_mut() else { return self.finish(context) };
            if !visit.owed.is_empty() {
                let silent = &sweep.silent;
                visit.owed.retain(|keeper, _| !silent.contains(keeper));
                if !visit.owed.is_empty() {
                    return self.ask(context);
                }
            }
            if visit.prints.is_empty() {
                let (all, parts) = visit.prints(self.salt, &sweep.silent);
                visit.changed = all != visit.print && context.bug != Some(Bug::TrustSums);
                visit.prints = parts;
                visit.silent = sweep.silent.len();
            }
            if visit.sums.is_empty() {
                self.judge(context);
                self.leave();
                continue;
            }
            let open = self.open_parts(context.now);
            let begin = self.next_question(context);
            let lists = self.sweep.as_mut().is_some_and(|sweep| sweep.lists(begin, open));
            let next = if lists { None } else { self.next_part(context, begin) };
            if next.is_none() && !lists {
                self.leave();
                continue;
            }
            // Another question: what comes late is no answer to it.
            let txn = self.new_txn();
            if let Some(sweep) = &mut self.sweep {
                sweep.txn = txn;
                sweep.path.extend(next);
            }
        }
    }

    /// When the next question of the sweep is asked: at once where there is something to do.
    fn next_question(&self, context: &Context<'_>) -> Instant {
        let interval = context.config.census_interval;
        let has_time = self.sweep.as_ref().is_some_and(|sweep| {
            sweep.has_time && sweep.silent.is_empty() && context.now.since(sweep.began) < interval.div(RESTING)
        });
        let rests = has_time && !self.hurries && !self.is_open() && !self.levelling.is_busy();
        context.now + if rests { interval.div(REST) } else { Span::ZERO }
    }

    /// Asks the targets that were not asked yet, or are late.
    fn ask(&mut self, context: &mut Context<'_>) {
        let Some(sweep) = &mut self.sweep else { return };
        let Some(visit) = sweep.path.last_mut() else { return };
        for (keeper, owed) in &mut visit.owed {
            if owed.again <= context.now && owed.asked < ASKED {
                owed.again = context.now + context.config.bid_timeout.times(1 << owed.asked);
                owed.asked += 1;
                let (txn, range) = (sweep.txn, visit.range);
                let request = CensusRequest { txn, group: self.group, range, salt: self.salt, after: owed.after };
                context.out.push((*keeper, Message::Census(request)));
            }
        }
    }

    /// How many parts of the range have to be looked at.
    fn open_parts(&self, now: Instant) -> usize {
        let visit = self.sweep.iter().find_map(|sweep| sweep.path.last());
        let Some(visit) = visit.filter(|visit| visit.listing == Listing::Open) else { return 0 };
        let settled = self.settled.get(&visit.range);
        let is_settled = |part: usize| settled.is_some_and(|parts| parts[part].holds(visit.prints[part], now));
        (0..PARTS).filter(|part| visit.prints[*part] != 0 && !is_settled(*part)).count()
    }

    /// The next part of the range that has to be looked at; targets that may have some of it are asked from `begin` on.
    fn next_part(&mut self, context: &Context<'_>, begin: Instant) -> Option<Visit> {
        let now = context.now;
        let visit = self.sweep.as_mut()?.path.last_mut()?;
        let settled =
            self.settled.entry(visit.range).or_insert_with(|| Box::new(core::array::from_fn(|_| Settled::NOTHING)));
        for (part, range) in visit.range.parts().enumerate().skip(visit.next_part) {
            visit.next_part += 1;
            let print = visit.prints[part];
            let is_settled = settled[part].holds(print, now);
            if print != 0 && is_settled && !self.levelling.wants(context, &self.members, range) {
                settled[part].lacks.iter().for_each(|lacks| visit.lacks.add(lacks));
                visit.again = visit.again.min(settled[part].again);
            } else if print != 0 {
                let known = visit.known_of(part);
                return Some(Visit::new(range, part, print, known, begin));
            } else {
                settled[part] = Settled::NOTHING;
            }
        }
        None
    }

    /// Goes back to the range before it, which remembers what was found.
    fn leave(&mut self) {
        let Some(sweep) = &mut self.sweep else { return };
        let Some(left) = sweep.path.pop() else { return };
        if left.sums.is_empty() {
            self.settled.remove(&left.range);
        }
        let Some(visit) = sweep.path.last_mut() else {
            self.health = Health { whole: !left.busy && sweep.silent.is_empty(), lacks: left.lacks };
            self.is_known = true;
            return;
        };
        visit.lacks.add(&left.lacks);
        visit.busy |= left.busy;
        visit.changed |= left.changed;
        visit.again = visit.again.min(left.again);
        if let Some(parts) = self.settled.get_mut(&visit.range) {
            // What targets held that fell silent since is in the print, and was not looked at.
            let is_known = !left.busy && !left.changed && sweep.silent.len() == visit.silent;
            let print = if is_known { left.print } else { 0 };
            let lacks = (print != 0 && !left.lacks.is_none()).then(|| Box::new(left.lacks));
            parts[left.part] = Settled { print, lacks, again: left.again };
        }
    }

    /// The sweep is over.
    fn finish(&mut self, context: &Context<'_>) {
        let Some(sweep) = self.sweep.take() else { return };
        // A chunk that was not suspected again has its copies meanwhile.
        self.suspects.retain(|_, since| *since >= sweep.began || context.now.since(*since) < context.config.settling());
        self.gone.retain(|_, at| *at >= sweep.began);
        self.swept = context.now;
        let is_due = |since: &Instant| *since <= context.now;
        let soon = self.hurries || self.is_open() || self.suspects.values().any(is_due);
        let interval = context.config.census_interval;
        let moves = self.levelling.finish(context);
        let pause = if soon || moves { context.config.short_pause() } else { interval };
        self.health.whole &= !soon && self.health.lacks.is_none();
        self.next_sweep = context.now + pause;
        let took = if sweep.has_time { Span::ZERO } else { context.now.since(sweep.began) };
        self.rest_until = context.now + took.times(PAUSES).clamp(interval.div(4), longest_pause(context.config));
    }

    /// Everything that is held of a small range is known.
    fn judge(&mut self, context: &Context<'_>) {
        let Some(mut visit) = self.sweep.as_mut().and_then(|sweep| sweep.path.pop()) else { return };
        let members = self.members.clone();
        let mut chunks: BTreeMap<ChunkId, Vec<Copy>> = BTreeMap::new();
        for (holder, copies) in &visit.copies {
            for Counted { id, wanted } in copies {
                let (piece, kept_for) = (id.piece().unwrap_or_default(), *wanted);
                chunks.entry(id.whole()).or_default().push(Copy { holder: *holder, piece, kept_for });
            }
        }
        for (id, copies) in chunks {
            if context.bug != Some(Bug::ForgetRange) || id.bytes()[0] < 0xc0 {
                let copies = Copies { id, map: context.map, members: &members, all: copies };
                self.judge_chunk(context, &mut visit, &copies);
            }
        }
        if let Some(sweep) = &mut self.sweep {
            if sweep.silent.is_empty() {
                self.levelling.seen(visit.range);
            }
            sweep.path.push(visit);
        }
    }

    /// All copies of a chunk are known, except those of silent targets.
    fn judge_chunk(&mut self, context: &Context<'_>, visit: &mut Visit, copies: &Copies<'_>) {
        let Some(sweep) = &self.sweep else { return };
        let (id, all_silent) = (copies.id, sweep.silent.iter().copied().filter(|silent| self.members.contains(silent)));
        let silent: Vec<u16> = all_silent.filter_map(|silent| context.map.domain(silent)).collect();
        let surplus = Surplus::of(copies, context.bug, |holder| self.levelling.goes(&id, holder));
        let Some((wanted, goal)) = copies.lacking(context.bug) else {
            self.suspects.remove(&id);
            visit.lacks.strayed += u32::from(copies.stray());
            // A silent target may be the only one that knows that more are wanted.
            let is_known = sweep.silent.is_empty();
            match surplus {
                Some(surplus) if is_known => visit.again = visit.again.min(self.surplus.found(context, id, surplus)),
                Some(_) => self.surplus.forget(&id),
                None => {
                    self.surplus.forget(&id);
                    if is_known {
                        self.levelling.consider(context, copies);
                    }
                }
            }
            return;
        };
        let holders = copies.kept_for(wanted);
        let at_risk = copies.at_risk(wanted);
        visit.lacks.count(at_risk);
        match surplus.filter(|_| context.bug == Some(Bug::LetGoEarly)) {
            Some(surplus) => visit.again = visit.again.min(self.surplus.found(context, id, surplus)),
            None => self.surplus.forget(&id),
        }
        // It has enough copies, of which some are where the layout before had them.
        if at_risk.is_none() && context.map.moves_paused() {
            self.suspects.remove(&id);
            return;
        }
        // Those that are silent may have it.
        if goal.would_be_met(silent) && context.bug != Some(Bug::SilentIsEmpty) {
            return;
        }
        visit.busy = true;
        let is_full = self.suspects.len() >= REMEMBERED;
        let since = *self.suspects.entry(id).or_insert(context.now);
        let is_gone = self.gone.remove(&id).is_some();
        if is_full || is_gone || context.now.since(since) >= context.config.settling() {
            self.suspects.remove(&id);
            let is_ordered = self.orders.values().any(|order| order.id == id);
            if !is_ordered && self.lacking.len() < REMEMBERED {
                let left = at_risk.unwrap_or(usize::from(u8::MAX)) as u8;
                self.lacking.insert((left, id), Lacking { holders, wanted, domains: at_risk });
            }
        }
    }

    /// Has chunks put, those with the fewest copies first.
    fn order(&mut self, context: &mut Context<'_>) {
        let late: Vec<TxnId> =
            self.orders.iter().filter(|(_, order)| order.again <= context.now).map(|(txn, _)| *txn).collect();
        for txn in late {
            let Some(order) = self.orders.get_mut(&txn) else { continue };
            if order.asked >= ASKED {
                self.orders.remove(&txn);
                continue;
            }
            order.asked += 1;
            order.again = context.now + context.config.bid_timeout;
            order.ask(context, txn);
        }
        // What lacks nothing, and is only elsewhere, has time.
        let most = |lacking: &Lacking| if lacking.domains.is_some() { AT_ONCE } else { level::AT_ONCE };
        while let Some(first) = self.lacking.first_entry().filter(|first| self.orders.len() < most(first.get())) {
            let ((_, id), lacking) = first.remove_entry();
            let txn = self.new_txn();
            // The one that has the least to do. Every other time any of them: a holder that cannot do it is done with
            // all of its orders at once.
            let open = |holder| self.orders.values().filter(|order| order.to == holder).count();
            let weight = |holder| if txn.0.is_multiple_of(2) { 0 } else { open(holder) };
            let rank = |holder: &NodeId| (weight(*holder), mix(txn.0 ^ u64::from(holder.0)));
            let Some(to) = lacking.holders.iter().copied().min_by_key(rank) else { continue };
            let again = context.now + context.config.bid_timeout;
            let Lacking { wanted, domains, mut holders } = lacking;
            holders.retain(|holder| *holder != to && id.code().is_some());
            holders.dedup();
            holders.truncate(limits::PIECES);
            let order = Order { id, to, holders, wanted, domains, asked: 1, again };
            order.ask(context, txn);
            self.orders.insert(txn, order);
        }
        let Self { levelling, txns, .. } = self;
        levelling.order(context, self.orders.is_empty(), || TxnId(txns.next_u64()));
    }
}

impl Order {
    fn ask(&self, context: &mut Context<'_>, txn: TxnId) {
        let Self { id, wanted, .. } = *self;
        context.out.push((self.to, Message::Restore { txn, id, wanted, holders: self.holders.clone() }));
    }
}

/// The longest pause after a sweep: the next steward in line takes one for dead that asks for nothing for longer
/// ([`Config::steward_after`]).
fn longest_pause(config: &Config) -> Span {
    config.census_interval.times(u64::from(config.steward_after)).percent(70)
}
