//! One put: ask, choose, send, count durable copies; again for what is missing. How it chooses among bids is in [`bids`], what a leader has
//! to do with it in [`by_leader`], how windows are given back that begin too late in [`choosy`], when it is over in [`fewer`], how a copy
//! goes in parts in [`parts`], what an aggregator has to do with it in [`aggregated`].

mod aggregated;
mod bids;
mod by_leader;
mod choosy;
mod fewer;
mod parts;
mod transfer;

use self::parts::Parts;
use super::context::Rounds;
use super::round::{LeaderAttempts, Round};
use super::{Bug, Context, Deadline, Destination, Event, Instant, NodeId, Payload, Span, Step, Stored, TxnId, members};
use crate::calendar::Window;
use crate::choose::{Choice, Offers};
use crate::choosy::MaxBidWait;
use crate::flat_map::FlatMap;
use crate::goal::Goal;
use crate::id::{ChunkId, GroupId};
use crate::limits;
use crate::map::ClusterMap;
use crate::redundancy::{Piece, Redundancy, Wanted};
use crate::transfer::Outgoing;
use crate::wire::{Ack, Answer, BusyWindows, ByteRange, Granted, Grants, Message, Purpose, PutRequest};

/// Unanswered questions after a late acknowledgement before a target is given up.
const PROBES: u8 = 3;
/// Times a put negotiates before it fails, those not counted in which targets were only busy.
const ROUNDS: u8 = 200;
/// Rounds of a put before it counts without targets that are down: one that is back answers by then.
const ASKED: u8 = 3;
/// Rounds that ask the leader of the group before the group itself is asked. What a member refused, its leader knows better
/// the next time.
const LEADER_ROUNDS: u8 = 3;

#[derive(Debug)]
pub(super) struct Put {
    txn: TxnId,
    job: Job,
    progress: Progress,
    round: Round,
    /// The group in the order in which consistent hashing prefers it.
    ranked: Vec<NodeId>,
    offers: Offers,
    /// How much they may differ and still count as equal; `None` unless all that bid
    /// [seem idle](crate::choose::doubt_of_idle).
    doubt: Option<Span>,
    /// From when on windows were asked for in this round.
    earliest: Instant,
    leader: LeaderAttempts,
    /// Members that refused what the leader granted before the grant came here.
    refusals: Vec<(NodeId, Answer)>,
    /// Whether rounds ask by multicast. Not after a member was silent: it may listen to the groups of another map.
    multicast: bool,
    reachability: Rounds,
    /// How long windows may keep us waiting (if choosy).
    wait: MaxBidWait,
    /// How far it is, if it goes in parts.
    parts: Option<Parts>,
    /// The aggregator of this round, if one was asked.
    aggregator: Option<aggregated::Aggregation>,
    /// The piece that this round asks for by its own id, as all targets that could take one have another already.
    certain: Option<Piece>,
    phase: Phase,
}

/// What was asked for.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) handle: u64,
    pub(super) id: ChunkId,
    pub(super) payload: Payload,
    /// Which piece this node has, if it is a target.
    pub(super) piece: Piece,
    pub(super) wanted: Wanted,
    pub(super) why: Why,
    pub(super) asked: Instant,
    pub(super) give_up_at: Instant,
}

/// Why it is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A client stores it.
    Store,
    /// A client removes what it is the manifest of.
    Remove,
    /// A holder puts it, because there are too few copies; it is done with so many, also when more are wanted.
    Restore(u8),
    /// A holder puts it on this member, no matter which others have one.
    Move(NodeId),
}

impl Job {
    /// Whether a holder puts it.
    pub(super) const fn restores(&self) -> bool {
        matches!(self.why, Why::Restore(_) | Why::Move(_))
    }

    /// The only member that is to have a copy.
    pub(super) const fn to(&self) -> Option<NodeId> {
        match self.why {
            Why::Move(to) => Some(to),
            Why::Store | Why::Remove | Why::Restore(_) => None,
        }
    }

    /// The redundancy that it has whatever the map says.
    fn own(&self) -> Option<Redundancy> {
        let code = self.id.code().filter(|_| !self.payload.is_common());
        code.map(Redundancy::Code).or(self.wanted.own())
    }

    /// What is to be reached.
    fn goal(&self, context: &Context) -> Goal {
        let most = match self.why {
            Why::Store | Why::Remove => u8::MAX,
            Why::Restore(most) => most,
            Why::Move(_) => 1,
        };
        Goal::new(context.redundancy(&self.id, self.wanted)).at_most(usize::from(most))
    }
}

/// What came of it so far, over all rounds.
#[derive(Debug)]
struct Progress {
    /// Which pieces are durable, and where.
    goal: Goal,
    /// Targets with a durable copy or piece, also those that are not apart from others.
    holders: Vec<(NodeId, Piece)>,
    /// Targets that failed this put; asked again only when there is no other.
    failed: Vec<NodeId>,
    /// Targets that have no room: not asked again by this put.
    full: Vec<NodeId>,
    rounds: u32,
    /// Rounds that count against [`ROUNDS`]: not those in which targets only had no window free yet.
    counted: u8,
    /// Whether payload was sent.
    sent: bool,
}

impl Progress {
    fn new(goal: Goal) -> Self {
        let (holders, failed, full) = (Vec::new(), Vec::new(), Vec::new());
        Self { goal, holders, failed, full, rounds: 0, counted: 0, sent: false }
    }

    fn holds(&self, target: NodeId) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == target)
    }

    /// Whether a target need not be asked again by this put.
    fn rules_out(&self, target: NodeId) -> bool {
        self.holds(target) || [&self.failed, &self.full].iter().any(|list| list.contains(&target))
    }

    /// In how many distinct failure domains it is durable, and in how many it is to be.
    fn reached(&self) -> (u8, u8) {
        (self.goal.domains().len() as u8, self.goal.redundancy().pieces() as u8)
    }

    fn mark_full(&mut self, target: NodeId) {
        if !self.full.contains(&target) {
            self.full.push(target);
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Waiting for bids since `since`: choose at `soft` if there are enough, at `hard` with what there is.
    Asking { since: Instant, soft: Instant, hard: Instant },
    /// Nothing to be had just now.
    Resting { until: Instant },
    /// Payload on its way, acknowledgements outstanding.
    Transferring { outgoing: Vec<Outgoing>, waiting: FlatMap<NodeId, Waiting, 3> },
}

/// An acknowledgement that is outstanding.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// What is sent to it.
    piece: Piece,
    /// When its transfer was to begin, and how long it was to take until the copy is durable. Only where that is to be
    /// compared with what came.
    promised: Option<(Instant, Span)>,
    due: Instant,
    probes: u8,
    rate: u64,
    resends: u8,
}

impl Put {
    /// Begins to put a chunk.
    pub(super) fn new(context: &mut Context, txn: TxnId, job: Job) -> Self {
        // A leader grants by what is free for all.
        let is_led = job.why != Why::Remove && job.payload.is_common();
        let left = if is_led { LEADER_ROUNDS } else { 0 };
        let goal = job.goal(context);
        let mut put = Self {
            txn,
            job,
            progress: Progress::new(goal),
            round: Round::new(),
            ranked: Vec::new(),
            offers: Offers::new(),
            doubt: None,
            earliest: context.now,
            leader: LeaderAttempts { asked: None, last: None, left },
            refusals: Vec::new(),
            multicast: true,
            reachability: Rounds::default(),
            wait: MaxBidWait::default(),
            parts: None,
            aggregator: None,
            certain: None,
            phase: Phase::Resting { until: context.now },
        };
        // Of a target that puts what it has, the copy counts where the chunk is looked for.
        put.rank(context);
        put.hold(context, context.id, put.job.piece);
        if !put.progress.goal.is_met() {
            put.ask(context);
        }
        put
    }

    fn size(&self) -> u32 {
        self.job.payload.size() as u32
    }

    /// How many pieces are missing.
    const fn need(&self) -> usize {
        self.progress.goal.missing().len()
    }

    /// A target has a durable copy, or this piece. It counts where the chunk is looked for: in its group.
    fn hold(&mut self, context: &Context, holder: NodeId, piece: Piece) {
        let counts = context.bug == Some(Bug::KeepHolders) || self.ranked.contains(&holder);
        if counts && !self.progress.holders.contains(&(holder, piece)) {
            self.progress.holders.push((holder, piece));
            if !self.job.payload.is_common() && context.bug != Some(Bug::CountAnyPiece) {
                self.progress.goal = context.reached(self.progress.goal, &self.progress.holders);
                return;
            }
            let redundancy = self.progress.goal.redundancy();
            let any = context.bug == Some(Bug::CountAnyPiece);
            let pieces = if any { redundancy.all() } else { redundancy.counting(piece) };
            context.hold(&mut self.progress.goal, holder, pieces);
        }
    }

    /// Finds the chunk's group, and its members in the order of the map.
    fn rank(&mut self, context: &Context) -> (GroupId, Vec<NodeId>) {
        let (group, mut all) = members(&context.map, &self.job.id);
        all.retain(|member| self.job.to().is_none_or(|to| to == *member));
        self.ranked = ClusterMap::ranked_among(&self.job.id, all.clone());
        (group, all)
    }

    /// Under a newer map the group may be another one, and so may the goal.
    pub(super) fn regroup(&mut self, context: &Context) {
        self.progress.goal = self.job.goal(context);
        self.rank(context);
        for (holder, piece) in core::mem::take(&mut self.progress.holders) {
            self.hold(context, holder, piece);
        }
    }

    /// Asks the group (or, without negotiation, the targets that the hash names) for the pieces that are missing.
    fn ask(&mut self, context: &mut Context) {
        if let Some(until) = self.waits_for_own(context) {
            self.phase = Phase::Resting { until };
            return;
        }
        self.progress.rounds += 1;
        self.progress.counted = self.progress.counted.saturating_add(1);
        self.aggregator = None;
        // A leader's silence says nothing of multicast.
        let leader = self.leader.asked.take();
        self.refusals.clear();
        self.multicast &= leader.is_some() || self.round.is_complete();
        self.multicast &= !self.reachability.is_unanswered();
        let (group, all) = self.rank(context);
        self.round.begin(group);
        self.round.busy = None;
        self.offers.clear();
        self.doubt = None;
        if self.leader.left > 0
            && self.multicast | !context.multicast()
            && let Some(leader) = context.leader(&all)
        {
            return self.ask_leader(context, leader);
        }
        let transport = context.config.transport;
        let everybody = all.clone();
        let mut asked: Vec<NodeId> = if transport.is_ranked() { self.preferred(context) } else { all };
        asked.retain(|n| !self.progress.rules_out(*n) && *n != context.id);
        self.ask_for_certain(context, &everybody, &mut asked);
        self.keep_to_one(context, &mut asked);
        if !self.progress.failed.is_empty() && !context.would_meet(self.enough(context), asked.iter().copied()) {
            self.progress.failed.clear();
            return self.rest(context, context.config.late);
        }
        self.round.asked_of = asked;
        let aggregator = self.aggregator_for(context);
        let mut request = self.request(context, aggregator.is_some());
        if !transport.reserved {
            let earliest = Span::of_transfer(context.unsent, context.config.link_rate).min(context.config.max_wait);
            request = PutRequest { unreserved: true, earliest, busy: BusyWindows::new(), ..request };
            context.unsent += self.need() as u64 * u64::from(self.size());
        }
        let free = request.busy.first().filter(|(from, _)| *from == Span::ZERO).map_or(Span::ZERO, |(_, until)| *until);
        let earliest = request.earliest.max(free);
        self.earliest = context.now + earliest;
        let by_multicast =
            context.send_group(group, &self.round.asked_of, &Message::PutRequest(request), self.multicast);
        self.reachability.ask(context.now, by_multicast.then_some(&self.round.asked_of));
        if let Some(id) = aggregator {
            self.ask_aggregator(context, id, earliest);
        }
        let (soft, hard) = (context.now + context.patience(), context.now + context.config.bid_timeout);
        self.phase = Phase::Asking { since: context.now, soft, hard };
        if !self.job.payload.is_common() && !self.job.restores() {
            context.negotiates = Some((self.txn, soft));
        }
    }

    /// Until when a coded chunk is not asked for: as long as another coded put of this node waits for bids, and the
    /// port has enough to do meanwhile. Until the first choice is made, each target of the group keeps free the time
    /// that all pieces take in turn. So windows for the second put would begin after that, and the port would stand
    /// still between the two.
    fn waits_for_own(&self, context: &Context) -> Option<Instant> {
        let (_, over) = context.negotiates.filter(|(txn, over)| *txn != self.txn && context.now < *over)?;
        if self.job.payload.is_common() || self.job.restores() {
            return None;
        }
        let length = Span::of_transfer(self.comes(), context.config.link_rate);
        let lead = context.lead();
        let idle = context.uplink.hole_for(context.now, length).0 - lead.times(2);
        (idle > context.now).then(|| over.min(idle).min(context.now + lead.div(4).max(Span::from_micros(50))))
    }

    /// Bytes that our port still has to send for this put, as far as known.
    pub(super) fn unsent(&self) -> u64 {
        match &self.phase {
            Phase::Asking { .. } => self.need() as u64 * u64::from(self.size()),
            Phase::Resting { .. } => 0,
            Phase::Transferring { outgoing, .. } => outgoing.iter().map(Outgoing::unsent).sum(),
        }
    }

    /// When it was asked for.
    pub(super) const fn asked(&self) -> Instant {
        self.job.asked
    }

    /// Where pieces exist twice, the targets that have one are in domains that another piece may have: no others may be
    /// left. These targets are asked for a certain piece, as they answer a question for any piece with the one that
    /// they have.
    fn ask_for_certain(&mut self, context: &Context, everybody: &[NodeId], asked: &mut Vec<NodeId>) {
        self.certain = None;
        if self.job.payload.is_common() || context.would_meet(self.enough(context), asked.iter().copied()) {
            return;
        }
        let used = self.progress.goal.domains();
        let may = |n: &&NodeId| {
            let is_free = context.domain(**n).is_some_and(|domain| !used.contains(&domain));
            is_free && self.progress.holds(**n) && **n != context.id && !self.progress.full.contains(*n)
        };
        let others: Vec<NodeId> = everybody.iter().filter(may).copied().collect();
        if !others.is_empty() {
            self.certain = self.progress.goal.missing().lowest();
            *asked = others;
        }
    }

    /// What the group is asked for. Pieces that an aggregator takes follow each other at once.
    fn request(&self, context: &Context, aggregated: bool) -> PutRequest {
        let pieces = self.progress.goal.redundancy().pieces();
        let may = context.config.transport.is_common() && self.job.payload.is_common();
        let once = may && context.multicast() && pieces <= context.map.most_addressed();
        // For one transfer: several need not follow each other at once.
        let sent = self.sent_before(context);
        let bytes = self.size() - sent.unwrap_or(0);
        let at_once = if aggregated { self.comes() } else { bytes.into() };
        let length = Span::of_transfer(at_once, context.config.link_rate);
        let stretch = if once { context.config.stretch_m } else { context.config.stretch_h * pieces as u16 };
        let (free, lead) = (context.uplink.hole_for(context.now, length).0, context.lead());
        // What is busy counts from when the question comes, the other from when there is time for it: the choice has to be made by then.
        let earliest = if self.job.restores() { free.since(context.now).max(lead) } else { lead };
        PutRequest {
            txn: self.txn,
            round: self.round.number,
            id: self.certain.map_or(self.job.id, |piece| self.job.id.of_piece(piece)),
            size: self.size(),
            group: self.round.group,
            earliest,
            stretch,
            unreserved: false,
            wanted: self.job.wanted,
            purpose: match self.job.why {
                Why::Store => Purpose::Store,
                Why::Remove => Purpose::Remove,
                Why::Restore(_) | Why::Move(_) => Purpose::Restore { urgent: self.is_urgent(), sent },
            },
            busy: context.busy_windows(length, free),
        }
    }

    /// Whether this is the only copy, by what the targets say that were asked.
    fn is_urgent(&self) -> bool {
        matches!(self.job.why, Why::Restore(_)) && self.progress.rounds > 1 && self.progress.holders.len() <= 1
    }

    /// The targets that consistent hashing names for the missing pieces: first come the live ones, and last those that are down.
    fn preferred(&self, context: &Context) -> Vec<NodeId> {
        let mut goal = self.progress.goal;
        let mut ranked = self.ranked.clone();
        ranked.sort_by_key(|n| (context.is_suspect(*n), context.is_down(*n)));
        let any = goal.redundancy().all();
        ranked.retain(|n| !self.progress.rules_out(*n) && context.hold(&mut goal, *n, any).is_some());
        ranked
    }

    fn rest(&mut self, context: &mut Context, span: Span) {
        // A little randomness keeps initiators that were refused together from returning together.
        let jitter = Span::from_nanos(context.rng.below(span.as_nanos() / 2 + 1));
        self.phase = Phase::Resting { until: context.now + span + jitter };
    }

    fn by_multicast(&self, context: &Context) -> bool {
        context.multicast() && self.multicast
    }

    /// Where an answer to the bids goes: by multicast also to targets whose bids are still under way, as nothing else
    /// would free what they reserved.
    fn bidders(&self, context: &Context) -> Vec<NodeId> {
        let offered = |n: &NodeId| self.offers.contains_key(n) || self.by_multicast(context);
        self.round.asked_of.iter().copied().filter(offered).collect()
    }

    /// Tells every bidder that it is free again.
    fn cancel(&mut self, context: &mut Context) {
        if !self.offers.is_empty() && context.config.transport.reserved {
            let bidders = self.bidders(context);
            let accept = Message::Accept { txn: self.txn, round: self.round.number, granted: Grants::new() };
            context.send_group(self.round.group, &bidders, &accept, self.multicast);
        }
    }

    fn accept(&self, context: &mut Context, choices: &[Choice]) {
        if !context.config.transport.reserved {
            return;
        }
        let granted = choices
            .iter()
            .flat_map(|c| c.targets.iter().map(move |t| (c.start, *t)))
            .filter_map(|(at, target)| Some(Granted { target, offset: at.since(self.offers.get(&target)?.start) }))
            .collect();
        let bidders = self.bidders(context);
        let accept = Message::Accept { txn: self.txn, round: self.round.number, granted };
        context.send_group(self.round.group, &bidders, &accept, self.multicast);
    }

    /// When nothing is outstanding any more and pieces are missing: the next round.
    fn go_on(&mut self, context: &mut Context) -> Step {
        if let Phase::Transferring { waiting, .. } = &self.phase
            && waiting.is_empty()
        {
            // The target that was to have the last copy may be down since.
            if self.finish_if_enough(context) == Step::Over {
                return Step::Over;
            }
            if self.progress.counted >= ROUNDS || self.lacks_space(context) || self.lacks_domains(context) {
                return self.give_up(context);
            }
            context.uplink.remove(self.txn);
            self.ask(context);
        }
        Step::Continue
    }

    pub(super) fn wake(&mut self, context: &mut Context) -> Step {
        // What is durable may be enough since a newer map came.
        if self.finish_if_enough(context) == Step::Over {
            if matches!(self.phase, Phase::Asking { .. }) {
                self.cancel(context);
            }
            return Step::Over;
        }
        if context.now >= self.job.give_up_at {
            return self.give_up(context);
        }
        match &self.phase {
            Phase::Asking { .. } => self.choose(context, true),
            Phase::Resting { until } if context.now >= *until => {
                if self.progress.counted >= ROUNDS || self.lacks_domains(context) {
                    return self.give_up(context);
                }
                self.ask(context);
                Step::Continue
            }
            Phase::Resting { .. } => Step::Continue,
            Phase::Transferring { .. } => {
                self.pump(context);
                if self.ask_for_next(context) {
                    return Step::Continue;
                }
                self.check_late(context);
                self.go_on(context)
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Deadline {
        let deadline = match &self.phase {
            Phase::Asking { soft, .. } => Deadline { at: *soft, why: "bids" },
            Phase::Resting { until } => Deadline { at: *until, why: "rest" },
            Phase::Transferring { outgoing, waiting } => {
                let send = outgoing.iter().filter_map(Outgoing::next_deadline).min();
                let late = waiting.values().map(|w| w.due).min();
                // A target that waits for the next part is not late: that part waits until this one was sent, also
                // where some of it is sent once more.
                let part = self.parts.filter(|_| outgoing.is_empty()).and_then(Parts::until);
                let at = part.or_else(|| send.into_iter().chain(late).min()).unwrap_or(Instant::ZERO);
                Deadline { at, why: "transfer" }
            }
        };
        if deadline.at > self.job.give_up_at { Deadline { at: self.job.give_up_at, why: "give up" } } else { deadline }
    }
}
