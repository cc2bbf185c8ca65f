//! One put: ask, choose, send, count durable copies; again for what is missing. What a leader has to do with it is in
//! [`led`], and how windows are given back that begin too late in [`choosy`].

mod choosy;
mod led;
mod transfer;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::multicast::Rounds;
use super::{Bug, Deadline, Destination, Event, Instant, NodeId, PutError, Shared, Span, Step, Stored, TxnId, members};
use crate::calendar::Window;
use crate::choose::{Choice, Offer, windows};
use crate::choosy::MaxBidWait;
use crate::config::Transport;
use crate::id::{ChunkId, GroupId};
use crate::limits;
use crate::map::ClusterMap;
use crate::transfer::Outgoing;
use crate::wire::{Ack, Answer, Bid, Granted, Leg, Message, PutRequest};

/// Unanswered questions after a late acknowledgement before a target is given up.
const PROBES: u8 = 3;
/// Rounds of a put before it counts without those who are down: whoever is back answers by then.
const ASKED: u8 = 3;
/// Rounds that ask the leader of the group before the group itself is asked. What a member refused, its leader knows better
/// the next time.
const LED: u8 = 3;

#[derive(Debug)]
pub(super) struct Put {
    txn: TxnId,
    handle: u64,
    id: ChunkId,
    payload: Bytes,
    /// Whether it says that something is removed.
    removal: bool,
    asked: Instant,
    give_up_at: Instant,
    rounds: u32,
    /// Whether payload was sent.
    sent: bool,
    round: u8,
    /// Rounds that count against [`limits::ROUNDS`]: not those in which targets only had no window free yet.
    counted: u8,
    /// When the first of those who were busy in this round may have a window.
    busy: Option<Span>,
    group: GroupId,
    /// The group in the order in which consistent hashing prefers it.
    ranked: Vec<NodeId>,
    /// Whether this round asks by multicast. Not after a member was silent: it may listen to the groups of another map.
    multicast: bool,
    heard: Rounds,
    /// Whom this round asked, and who has answered.
    asked_of: Vec<NodeId>,
    answered: Vec<NodeId>,
    /// The leader that this round asks instead of the group.
    leader: Option<NodeId>,
    /// Rounds that may ask the leader yet: none when it did not answer, or could not grant anything.
    led: u8,
    asked_leader: Instant,
    /// Members that refused what the leader granted before we heard of the grant.
    early: Vec<(NodeId, Answer)>,
    offers: BTreeMap<NodeId, Offer>,
    /// Targets with a durable copy.
    holders: Vec<NodeId>,
    /// Targets that failed this put; asked again only when there is nobody else.
    failed: Vec<NodeId>,
    /// Targets that said that they have no room: not asked again by this put.
    full: Vec<NodeId>,
    /// From when on windows were asked for in this round, and for how long they may keep us waiting (if choosy).
    earliest: Instant,
    wait: MaxBidWait,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for bids since `since`: choose at `soft` if there are enough, at `hard` with what there is.
    Asking { since: Instant, soft: Instant, hard: Instant },
    /// Nothing to be had just now.
    Resting { until: Instant },
    /// Payload on its way, acknowledgements outstanding.
    Transferring { outgoing: Vec<Outgoing>, waiting: BTreeMap<NodeId, Waiting> },
}

/// An acknowledgement that is outstanding.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    due: Instant,
    probes: u8,
    rate: u64,
    resends: u8,
}

impl Put {
    /// Begins to put a chunk: its id, its bytes, and whether it is a removal.
    pub(super) fn new(
        cx: &mut Shared,
        txn: TxnId,
        handle: u64,
        (id, payload, removal): (ChunkId, Bytes, bool),
        asked: Instant,
    ) -> Self {
        let mut put = Self {
            txn,
            handle,
            id,
            payload,
            removal,
            asked,
            give_up_at: asked + cx.config.give_up,
            rounds: 0,
            sent: false,
            round: 0,
            counted: 0,
            busy: None,
            group: GroupId(0),
            ranked: Vec::new(),
            multicast: true,
            heard: Rounds::default(),
            asked_of: Vec::new(),
            answered: Vec::new(),
            leader: None,
            // A leader grants by what is free for all.
            led: if removal { 0 } else { LED },
            asked_leader: cx.now,
            early: Vec::new(),
            offers: BTreeMap::new(),
            holders: Vec::new(),
            failed: Vec::new(),
            full: Vec::new(),
            earliest: cx.now,
            wait: MaxBidWait::default(),
            phase: Phase::Resting { until: cx.now },
        };
        put.ask(cx);
        put
    }

    fn size(&self) -> u32 {
        self.payload.len() as u32
    }

    fn need(&self, cx: &Shared) -> usize {
        usize::from(cx.map.copies).saturating_sub(cx.domains(&self.holders))
    }

    fn taken(&self, cx: &Shared) -> Vec<u16> {
        self.holders.iter().filter_map(|t| cx.domain(*t)).collect()
    }

    /// A target has a durable copy. It counts where the chunk is looked for: in its group.
    fn hold(&mut self, cx: &Shared, holder: NodeId) {
        let counts = cx.bug == Some(Bug::KeepHolders) || members(&cx.map, &self.id).1.contains(&holder);
        if counts && !self.holders.contains(&holder) {
            self.holders.push(holder);
        }
    }

    /// Under a newer map the group may be another one.
    pub(super) fn regroup(&mut self, cx: &Shared) {
        for holder in core::mem::take(&mut self.holders) {
            self.hold(cx, holder);
        }
    }

    /// Whether there are enough copies; if so, says so.
    fn finish_if_enough(&mut self, cx: &mut Shared) -> Step {
        if self.need(cx) > 0 {
            return Step::Continue;
        }
        let mut holders = core::mem::take(&mut self.holders);
        holders.sort_unstable();
        cx.memory.remember(self.id, holders.clone());
        let rounds = if self.sent { self.rounds } else { 0 };
        let stored = Stored { holders, took: cx.now.since(self.asked), rounds };
        cx.event(Event::Put { handle: self.handle, result: Ok(stored) });
        Step::Over
    }

    fn give_up(&mut self, cx: &mut Shared) -> Step {
        // Who could still answer when all was lost is not silent.
        let patient = self.lacks_space(cx);
        let silent =
            |n: &NodeId| !self.answered.contains(n) && !self.full.contains(n) && (!patient || cx.is_suspect(*n));
        let silent: Vec<NodeId> = self.asked_of.iter().copied().filter(silent).collect();
        let (have, full) = (core::mem::take(&mut self.holders), core::mem::take(&mut self.full));
        let (_, mut possible) = members(&cx.map, &self.id);
        possible.retain(|n| !silent.contains(n) && !full.contains(n) && !cx.is_suspect(*n));
        possible.extend(&have);
        let (domains, possible) = (cx.domains(&have), cx.domains(&possible));
        let error = PutError::TooFewCopies { have, domains, possible, want: cx.map.copies, silent, full };
        cx.event(Event::Put { handle: self.handle, result: Err(error) });
        Step::Over
    }

    /// Whether too few are left that may have room.
    fn lacks_space(&self, cx: &Shared) -> bool {
        if self.full.is_empty() {
            return false;
        }
        let (_, mut left) = members(&cx.map, &self.id);
        left.retain(|n| !self.full.contains(n));
        left.extend(&self.holders);
        cx.domains(&left) < usize::from(cx.map.copies)
    }

    /// Whether so many are down that too few domains are left. While nobody answers it may be our own way that is cut, and
    /// that heals.
    fn lacks_domains(&self, cx: &Shared) -> bool {
        let (_, mut left) = members(&cx.map, &self.id);
        left.retain(|n| !cx.is_down(*n));
        let anybody = !left.is_empty();
        left.extend(&self.holders);
        self.counted >= ASKED && anybody && cx.domains(&left) < usize::from(cx.map.copies)
    }

    /// Asks the group (or, without negotiation, the targets that the hash names) for the copies that are missing.
    fn ask(&mut self, cx: &mut Shared) {
        self.round = self.round.wrapping_add(1);
        self.rounds += 1;
        self.counted = self.counted.saturating_add(1);
        self.busy = None;
        self.offers.clear();
        // A leader's silence says nothing of multicast.
        let leader = self.leader.take();
        self.early.clear();
        self.multicast &= leader.is_some() || self.asked_of.iter().all(|n| self.answered.contains(n));
        self.multicast &= !self.heard.is_unheard();
        self.answered.clear();
        let (group, all) = members(&cx.map, &self.id);
        self.group = group;
        if self.led > 0
            && self.multicast | !cx.multicast()
            && let Some(leader) = cx.leader(&all)
        {
            return self.ask_leader(cx, leader);
        }
        self.ranked = ClusterMap::ranked_among(&self.id, all.clone());
        let unreserved = cx.config.transport == Transport::Hash;
        let usable = |n: &NodeId| ![&self.holders, &self.failed, &self.full].iter().any(|out| out.contains(n));
        let mut asked: Vec<NodeId> = if unreserved { self.named(cx) } else { all };
        asked.retain(usable);
        if cx.domains(&asked) < self.need(cx) && !self.failed.is_empty() {
            self.failed.clear();
            return self.rest(cx, cx.config.late);
        }
        self.asked_of = asked;
        let mut request = self.request(cx);
        if unreserved {
            let earliest = Span::of_transfer(cx.unsent, cx.config.link_rate).min(cx.config.max_wait);
            request = PutRequest { unreserved, earliest, taken: Vec::new(), ..request };
            cx.unsent += self.need(cx) as u64 * u64::from(self.size());
        }
        self.earliest = cx.now + request.earliest;
        let by_multicast = cx.send_group(group, &self.asked_of, &Message::PutRequest(request), self.multicast);
        self.heard.ask(cx.now, by_multicast.then_some(&self.asked_of));
        let (soft, hard) = (cx.now + cx.patience(), cx.now + cx.config.bid_timeout);
        self.phase = Phase::Asking { since: cx.now, soft, hard };
    }

    /// Bytes that our port still has to send for this put, as far as known.
    pub(super) fn unsent(&self, cx: &Shared) -> u64 {
        match &self.phase {
            Phase::Asking { .. } => self.need(cx) as u64 * u64::from(self.size()),
            Phase::Resting { .. } => 0,
            Phase::Transferring { outgoing, .. } => outgoing.iter().map(Outgoing::unsent).sum(),
        }
    }

    /// When it was asked for.
    pub(super) const fn asked(&self) -> Instant {
        self.asked
    }

    fn request(&self, cx: &Shared) -> PutRequest {
        let h = cx.config.transport == Transport::ReplicastH || !cx.multicast();
        // For one transfer: those of Replicast-H need not follow each other at once.
        let length = Span::of_transfer(u64::from(self.size()), cx.config.link_rate);
        let stretch = if h { cx.config.stretch_h * u16::from(cx.map.copies) } else { cx.stretch(length) };
        let earliest = cx.uplink.place(cx.now, length).0.since(cx.now).max(cx.lead());
        PutRequest {
            txn: self.txn,
            round: self.round,
            id: self.id,
            size: self.size(),
            group: self.group,
            earliest,
            stretch,
            unreserved: false,
            removal: self.removal,
            taken: cx.taken(length),
        }
    }

    /// The targets that consistent hashing names for the missing copies: first come the live ones.
    fn named(&self, cx: &Shared) -> Vec<NodeId> {
        let mut taken = self.taken(cx);
        let mut named = Vec::new();
        let (live, silent): (Vec<NodeId>, Vec<NodeId>) = self.ranked.iter().partition(|n| !cx.is_suspect(**n));
        for node in live.into_iter().chain(silent) {
            let Some(domain) = cx.domain(node) else {
                continue;
            };
            let skip = self.failed.contains(&node) || self.full.contains(&node) || taken.contains(&domain);
            if named.len() < self.need(cx) && !skip {
                taken.push(domain);
                named.push(node);
            }
        }
        named
    }

    fn rest(&mut self, cx: &mut Shared, span: Span) {
        // A little randomness keeps initiators that were refused together from returning together.
        let jitter = Span::from_nanos(cx.rng.below(span.as_nanos() / 2 + 1));
        self.phase = Phase::Resting { until: cx.now + span + jitter };
    }

    /// A bid after the choice: its sender is not silent, and is free again. (By multicast it was told already.)
    fn late_bid(&mut self, cx: &mut Shared, from: NodeId, bid: Bid) -> Step {
        if self.leader.is_some() && bid.round == self.round {
            return self.member_refused(cx, from, bid.answer);
        }
        if bid.round == self.round && self.asked_of.contains(&from) && !self.answered.contains(&from) {
            self.answered.push(from);
            self.heard.answered(cx, from);
            if matches!(bid.answer, Answer::Window(_))
                && !self.by_multicast(cx)
                && cx.config.transport != Transport::Hash
            {
                let refusal = Message::Accept { txn: self.txn, round: self.round, granted: Vec::new() };
                cx.send(Destination::Node(from), &refusal);
            }
        }
        Step::Continue
    }

    const fn by_multicast(&self, cx: &Shared) -> bool {
        cx.multicast() && self.multicast
    }

    /// Whom an answer to the bids goes to: by multicast also to those whose bids are still under way, as nothing else would
    /// free what they reserved.
    fn bidders(&self, cx: &Shared) -> Vec<NodeId> {
        let offered = |n: &NodeId| self.offers.contains_key(n) || self.by_multicast(cx);
        self.asked_of.iter().copied().filter(offered).collect()
    }

    pub(super) fn bid(&mut self, cx: &mut Shared, from: NodeId, bid: Bid) -> Step {
        let Phase::Asking { since, .. } = self.phase else {
            return self.late_bid(cx, from, bid);
        };
        if self.leader.is_some_and(|leader| leader != from) && bid.round == self.round {
            if self.early.len() < limits::COPIES {
                self.early.push((from, bid.answer));
            }
            return Step::Continue;
        }
        if bid.round != self.round {
            // Late, but it was heard.
            self.heard.late();
            return Step::Continue;
        }
        if !self.asked_of.contains(&from) || self.answered.contains(&from) {
            return Step::Continue;
        }
        self.answered.push(from);
        self.heard.answered(cx, from);
        if self.leader.is_some() {
            cx.grants.sample(cx.now.since(since));
            return self.ask_directly(cx);
        }
        cx.bids.sample(cx.now.since(since));
        match bid.answer {
            Answer::Window(slot) => {
                if let Some(domain) = cx.domain(from) {
                    let start = cx.window_start(slot.start, &cx.bids);
                    let offer = Offer {
                        start,
                        end: start + slot.length,
                        transfer: slot.transfer,
                        done: start + slot.done.less(slot.start),
                        rate: u64::from(slot.rate),
                        domain,
                        rank: self.ranked.iter().position(|n| *n == from).unwrap_or(usize::MAX),
                        slack: cx.slack(),
                    };
                    self.offers.insert(from, offer);
                }
            }
            Answer::HaveIt => {
                self.hold(cx, from);
                if self.finish_if_enough(cx) == Step::Over {
                    self.cancel(cx);
                    return Step::Over;
                }
            }
            Answer::NoSpace => {
                if !self.full.contains(&from) {
                    self.full.push(from);
                }
                if self.lacks_space(cx) {
                    self.cancel(cx);
                    return self.give_up(cx);
                }
            }
            Answer::Busy(wait) => self.busy = Some(self.busy.map_or(wait, |busy| busy.min(wait))),
            // The newer map is on its way here.
            Answer::Stale => self.busy = Some(Span::ZERO),
            Answer::NotHere => {}
        }
        self.choose(cx, false)
    }

    /// Tells every bidder that it is free again.
    fn cancel(&mut self, cx: &mut Shared) {
        if !self.offers.is_empty() && cx.config.transport != Transport::Hash {
            let bidders = self.bidders(cx);
            let accept = Message::Accept { txn: self.txn, round: self.round, granted: Vec::new() };
            cx.send_group(self.group, &bidders, &accept, self.multicast);
        }
    }

    /// Chooses when enough is known: everybody who can be expected to has answered, or patience is over and there are
    /// enough offers, or all patience is over. Only a wake says that patience is over: while datagrams arrive, the bids
    /// that are waited for may be among them, read late because this process was.
    fn choose(&mut self, cx: &mut Shared, woken: bool) -> Step {
        let Phase::Asking { since, soft, hard } = self.phase else {
            return Step::Continue;
        };
        if let Some(leader) = self.leader {
            return if cx.gives_leader_up(leader, since, hard, woken) { self.ask_directly(cx) } else { Step::Continue };
        }
        let need = self.need(cx);
        let outstanding = |n: &&NodeId| !self.answered.contains(n);
        let all = self.asked_of.iter().find(outstanding).is_none();
        let expected = !self.asked_of.iter().filter(outstanding).any(|n| !cx.is_suspect(*n));
        let bidders: Vec<NodeId> = self.offers.keys().copied().collect();
        let mut apart = self.holders.clone();
        apart.extend(bidders);
        let enough = cx.domains(&apart) >= cx.domains(&self.holders) + need;
        let over = all || woken && cx.now >= hard;
        if !(over || enough && (expected || woken && cx.now >= soft)) {
            // With enough good ones to choose from, the rest may take as long again as these did. Without enough, only more
            // bids or the hard deadline change anything.
            let soft = match enough {
                true if self.good(cx, need).1 => soft.min(since + cx.now.since(since).times(2)),
                false if woken && cx.now >= soft => hard,
                _ => soft,
            };
            self.phase = Phase::Asking { since, soft, hard };
            return Step::Continue;
        }
        cx.choices.sample(cx.now.since(since));
        let silent: Vec<NodeId> = self.asked_of.iter().filter(outstanding).copied().collect();
        silent.into_iter().for_each(|n| cx.miss(n, since));
        let choices = self.pick(cx, need);
        if choices.is_empty() {
            // Offers that were over before they could be taken: soon again, with a longer lead.
            let span = if self.offers.is_empty() { cx.rest(self.busy) } else { cx.patience().min(cx.config.late) };
            self.counted -= u8::from(self.busy.is_some());
            self.cancel(cx);
            self.rest(cx, span);
            return Step::Continue;
        }
        if !self.gives_back(cx, &choices) {
            self.accept(cx, &choices);
            self.send(cx, choices);
        }
        Step::Continue
    }

    /// The offers of domains without a copy that are durable within twice the time of the soonest, and whether they are
    /// enough for `need` domains.
    fn good(&self, cx: &Shared, need: usize) -> (BTreeMap<NodeId, Offer>, bool) {
        let taken = self.taken(cx);
        let apart = || self.offers.iter().filter(|(_, offer)| !taken.contains(&offer.domain));
        let wait = |offer: &Offer| offer.done.since(cx.now);
        let soonest = apart().map(|(_, offer)| wait(offer)).min().unwrap_or(Span::ZERO);
        let good = apart().filter(|(_, offer)| wait(offer) <= soonest.times(2));
        let good: BTreeMap<NodeId, Offer> = good.map(|(id, offer)| (*id, *offer)).collect();
        let enough = cx.domains(&good.keys().copied().collect::<Vec<NodeId>>()) >= need;
        (good, enough)
    }

    fn pick(&self, cx: &Shared, need: usize) -> Vec<Choice> {
        let taken = self.taken(cx);
        let (good, enough) = self.good(cx, need);
        // A slow target is worse than another negotiation for the last copy, with those who did not answer this time; it
        // is taken when there is nobody else.
        let nobody_else = self.asked_of.iter().all(|n| self.answered.contains(n) || cx.is_suspect(*n));
        let offers = if !enough && nobody_else { &self.offers } else { &good };
        match cx.config.transport {
            Transport::Hash => self
                .offers
                .iter()
                .map(|(id, o)| Choice { start: cx.now, targets: vec![*id], length: o.transfer, rate: o.rate })
                .collect(),
            transport => {
                let common = transport != Transport::ReplicastH && self.by_multicast(cx);
                windows(common, offers, &taken, need, cx.now, &cx.uplink)
            }
        }
    }

    fn accept(&self, cx: &mut Shared, choices: &[Choice]) {
        if cx.config.transport == Transport::Hash {
            return;
        }
        let granted = choices
            .iter()
            .flat_map(|c| c.targets.iter().map(move |t| (c.start, *t)))
            .filter_map(|(at, target)| Some(Granted { target, offset: at.since(self.offers.get(&target)?.start) }))
            .collect();
        let bidders = self.bidders(cx);
        let accept = Message::Accept { txn: self.txn, round: self.round, granted };
        cx.send_group(self.group, &bidders, &accept, self.multicast);
    }

    /// When nothing is outstanding any more and copies are missing: the next round.
    fn go_on(&mut self, cx: &mut Shared) -> Step {
        if let Phase::Transferring { waiting, .. } = &self.phase
            && waiting.is_empty()
        {
            if self.counted >= limits::ROUNDS || self.lacks_space(cx) || self.lacks_domains(cx) {
                return self.give_up(cx);
            }
            cx.uplink.remove(self.txn);
            self.ask(cx);
        }
        Step::Continue
    }

    pub(super) fn wake(&mut self, cx: &mut Shared) -> Step {
        if cx.now >= self.give_up_at {
            return self.give_up(cx);
        }
        match &self.phase {
            Phase::Asking { .. } => self.choose(cx, true),
            Phase::Resting { until } if cx.now >= *until => {
                if self.counted >= limits::ROUNDS || self.lacks_domains(cx) {
                    return self.give_up(cx);
                }
                self.ask(cx);
                Step::Continue
            }
            Phase::Resting { .. } => Step::Continue,
            Phase::Transferring { .. } => {
                self.pump(cx);
                self.check_late(cx);
                self.go_on(cx)
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
                let at = send.into_iter().chain(late).min().unwrap_or(Instant::ZERO);
                Deadline { at, why: "transfer" }
            }
        };
        if deadline.at > self.give_up_at { Deadline { at: self.give_up_at, why: "give up" } } else { deadline }
    }
}
