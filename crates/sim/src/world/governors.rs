//! Gateways that propose cluster maps, and take out targets that are down, with the product's proposer, detector and
//! planner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::detector::{self, Detector, Rules, Testimony};
use protocol::id::{Epoch, NodeId};
use protocol::initiator::{self, Query, QueryAnswer};
use protocol::overview::Overview;
use protocol::proposer::{Proposer, Step, Verdict};
use protocol::rng::{Rng, mix};
use protocol::take_out::{self, Seen};
use protocol::time::{Instant, Span};
use protocol::wire::HealthReport;

use super::authority::{Authority, Draft, TAKES_OUT};
use super::{NodeMachine, Scheduled, World};
use crate::governing::Governing;
use crate::planted::PlantedBug;
use crate::topology;

/// Proposals for one change.
const TRIES: u32 = 4;
/// How often it is looked whether all is decided and known.
const PAUSE: Span = Span::from_millis(5);
/// For how long those that are lost for good may be in the map after everything else is over, in times that it takes until one is out.
const PATIENCE: u64 = 6;

/// What happens around them.
pub(super) enum Event {
    /// A gateway looks at the targets, and at what is decided.
    Look(usize, u32),
    /// An operator asks a gateway for a change.
    Order(usize, u64),
    Crash(usize),
    Start(usize),
    /// A question comes to the authority.
    Operation(Asker, Question),
    /// An answer comes back.
    Answered(Asker, Answer),
    /// None came.
    Late(Asker),
    Die(NodeId),
    /// All other copies go bad of something that it had.
    Orphan(NodeId, u64),
    /// A switch cuts off these.
    Switch(Vec<NodeId>),
    /// An initiator has read a map that is decided.
    Read(NodeId, usize),
}

/// A question to the authority: which gateway asks in which of its lives, for which change (none: to follow), and at
/// which attempt.
#[derive(Clone, Copy)]
pub(super) struct Asker {
    gateway: usize,
    life: u32,
    change: Option<u64>,
    nth: u32,
}

pub(super) enum Question {
    Newest,
    Propose(Box<(Draft, Draft)>),
}

pub(super) enum Answer {
    Newest(Box<Draft>),
    Verdict(Verdict),
}

/// What a change is to do.
#[derive(Clone)]
enum Wish {
    /// What is drawn from this.
    Order(u64),
    /// Without these, as they were down at a look that began then.
    TakeOut(Vec<NodeId>, Instant),
}

impl Wish {
    /// When the look began that it comes from.
    fn asked(&self) -> Option<Instant> {
        match self {
            Self::Order(_) => None,
            Self::TakeOut(_, asked) => Some(*asked),
        }
    }
}

struct Change {
    wish: Wish,
    proposer: Proposer<Draft>,
    asked: u32,
}

struct Governor {
    node: Option<NodeId>,
    life: u32,
    detector: Detector,
    /// The map by which all was where it belongs, when that was seen last.
    settled: Option<Epoch>,
    /// What speaks against taking anybody out.
    seen: Seen,
    changes: BTreeMap<u64, Change>,
    /// The question to the targets that is under way, and the targets that did not answer the first.
    query: Option<(u64, Option<Vec<NodeId>>)>,
    /// When that was asked.
    asked: Instant,
    /// Why a target that was down for long stays in the map.
    stays: Option<String>,
}

pub(super) struct State {
    pub(super) settings: Governing,
    rng: Rng,
    pub(super) authority: Authority,
    governors: Vec<Governor>,
    /// Numbers drafts and changes.
    next: u64,
    /// Orders to come.
    orders: usize,
    pub(super) dead: BTreeSet<NodeId>,
    /// Those that were, and got an empty disk, and when.
    pub(super) replaced: BTreeMap<NodeId, Instant>,
    /// When everything else was over.
    due: Option<Instant>,
}

impl World<'_> {
    pub(super) fn add_governors(&mut self) {
        let Some(settings) = self.scenario.governing.clone() else { return };
        let mut rng = Rng::new(self.scenario.seed).fork(72);
        let now = self.now;
        let made_by = Arc::new(self.topology.maps[0].clone());
        let first = Draft { id: 0, map: self.maps[0].clone(), made_by, asked: None };
        let mut events: Vec<(Span, Event)> = settings.dead.iter().map(|(id, at)| (*at, Event::Die(*id))).collect();
        events.extend(settings.orders.iter().map(|(at, gateway)| (*at, Event::Order(*gateway, rng.next_u64()))));
        events.extend(settings.orphan.map(|(last, at)| (at, Event::Orphan(last, mix(self.scenario.seed)))));
        for (gateway, (at, back)) in &settings.crashes {
            events.extend([(*at, Event::Crash(*gateway)), (*back, Event::Start(*gateway))]);
        }
        if let Some((silent, (begins, ends))) = &settings.switch {
            let (last, back) = &settings.last;
            events.extend([
                (*begins, Event::Switch(silent.clone())),
                (*ends, Event::Switch(last.clone())),
                (*back, Event::Switch(Vec::new())),
            ]);
        }
        let authority = Authority::new(first, settings.partitions.clone(), settings.outage, now);
        let governors = (0..settings.gateways).map(|_| self.new_governor(settings.out_after)).collect();
        let orders = settings.orders.len();
        let (dead, replaced, due) = Default::default();
        self.governing = Some(State { settings, rng, authority, governors, next: 1, orders, dead, replaced, due });
        for gateway in 0..self.governing.as_ref().map_or(0, |state| state.governors.len()) {
            self.start_governor(gateway);
        }
        for (at, event) in events {
            self.push(now + at, Scheduled::Governor(event));
        }
    }

    fn new_governor(&self, out_after: Span) -> Governor {
        let bug = match self.scenario.planted {
            Some(PlantedBug::Detector(bug)) => Some(bug),
            _ => None,
        };
        let detector = Detector::new(Rules::new(out_after)).with_bug(bug);
        let (changes, query, stays) = Default::default();
        Governor {
            node: None,
            life: 0,
            detector,
            settled: None,
            seen: Seen::default(),
            changes,
            query,
            asked: Instant::ZERO,
            stays,
        }
    }

    pub(super) fn is_governor(&self, id: NodeId) -> bool {
        self.governing.as_ref().is_some_and(|state| state.governors.iter().any(|of| of.node == Some(id)))
    }

    fn governor(&mut self, gateway: usize) -> Option<&mut Governor> {
        self.governing.as_mut()?.governors.get_mut(gateway)
    }

    fn start_governor(&mut self, gateway: usize) {
        if self.governor(gateway).is_none_or(|governor| governor.node.is_some()) {
            return;
        }
        self.add_initiator();
        let node = self.initiators.pop();
        let out_after = self.scenario.governing.as_ref().map_or(Span::ZERO, |settings| settings.out_after);
        let fresh = self.new_governor(out_after);
        let Some(governor) = self.governor(gateway) else { return };
        *governor = Governor { node, life: governor.life + 1, ..fresh };
        let life = governor.life;
        self.push(self.now, Scheduled::Governor(Event::Look(gateway, life)));
    }

    pub(super) fn governor_happens(&mut self, event: Event) {
        match event {
            Event::Look(gateway, life) => self.look(gateway, life),
            Event::Order(gateway, seed) => {
                if let Some(state) = &mut self.governing {
                    state.orders -= 1;
                }
                self.begin_change(gateway, Wish::Order(seed));
            }
            Event::Crash(gateway) if !self.healed => {
                let Some(governor) = self.governor(gateway) else { return };
                governor.changes.clear();
                if let Some(node) = governor.node.take() {
                    self.nodes.remove(&node);
                    self.note(51, node, gateway, || "a gateway that proposes maps crashes".to_owned());
                }
            }
            Event::Crash(_) => {}
            Event::Start(gateway) => self.start_governor(gateway),
            Event::Operation(asker, question) => self.asked_authority(asker, question),
            Event::Answered(asker, answer) => self.answered(asker, answer),
            Event::Late(asker) => self.late(asker),
            Event::Die(id) => self.die(id),
            Event::Orphan(id, seed) => self.orphan(id, seed),
            Event::Switch(nodes) => self.cut(Some((nodes, true, true)).filter(|(nodes, ..)| !nodes.is_empty())),
            Event::Read(id, nth) => self.adopts(id, nth),
        }
    }

    /// An initiator that proposes nothing reads a map that is decided.
    pub(super) fn reads(&mut self, id: NodeId, nth: usize, at: Instant) {
        self.push(at, Scheduled::Governor(Event::Read(id, nth)));
    }

    /// A target is lost for good, with all that it has.
    fn die(&mut self, id: NodeId) {
        if !self.nodes.contains_key(&id) {
            return;
        }
        self.take_down(id, None);
        let fresh = self.fresh_disk(id);
        if let Some(node) = self.nodes.get_mut(&id)
            && let NodeMachine::Down(mut disk) = std::mem::replace(&mut node.machine, NodeMachine::Down(fresh))
        {
            self.loses(id, &mut disk);
        }
        if let Some(state) = &mut self.governing {
            state.dead.insert(id);
        }
        self.note(52, id, 0, || "is lost for good".to_owned());
    }

    /// Whether a target is lost for good.
    pub(super) fn is_dead(&self, id: NodeId) -> bool {
        self.governing.as_ref().is_some_and(|state| state.dead.contains(&id))
    }

    fn look(&mut self, gateway: usize, life: u32) {
        self.next_handle += 1;
        let handle = self.next_handle;
        let Some(settings) = &self.scenario.governing else { return };
        let (look, now) = (settings.look, self.now);
        let Some(governor) = self.governor(gateway).filter(|of| of.life == life) else { return };
        let Some(node) = governor.node else { return };
        let asks = governor.query.is_none();
        if asks {
            governor.asked = now;
            governor.query = Some((handle, None));
        }
        self.push(self.now + look, Scheduled::Governor(Event::Look(gateway, life)));
        self.ask(Asker { gateway, life, change: None, nth: 0 }, Question::Newest);
        if asks {
            self.input(node, None, Some(initiator::Request::Query { handle, query: Query::Ping }));
        }
    }

    /// What a gateway's initiator says.
    pub(super) fn governor_event(&mut self, id: NodeId, event: initiator::Event) {
        let initiator::Event::Query { handle, answer } = event else { return };
        let Some(state) = &self.governing else { return };
        let Some(gateway) = state.governors.iter().position(|governor| governor.node == Some(id)) else { return };
        self.next_handle += 1;
        let next = self.next_handle;
        let Some(governor) = self.governor(gateway) else { return };
        let unanswered = match &governor.query {
            Some((asked, unanswered)) if *asked == handle => unanswered.clone(),
            _ => return,
        };
        governor.query = None;
        match (answer, unanswered) {
            (QueryAnswer::Ping(Ok(states)), None) => {
                let silent = states.iter().filter(|state| state.answer.is_none()).map(|state| state.target).collect();
                governor.query = Some((next, Some(silent)));
                let query = initiator::Request::Query { handle: next, query: Query::Health };
                self.input(id, None, Some(query));
            }
            (QueryAnswer::Health(Ok(reports)), Some(unanswered)) => {
                self.judge_targets(gateway, id, &reports, &unanswered)
            }
            _ => {}
        }
    }

    /// As the daemon does: which targets are down, and which of them go.
    fn judge_targets(&mut self, gateway: usize, id: NodeId, reports: &[(NodeId, HealthReport)], unanswered: &[NodeId]) {
        let Some(node) = self.nodes.get(&id) else { return };
        let (now, map) = (node.local(self.now), self.maps[node.map].clone());
        let overview = Overview::of(map.epoch, map.group_ids(), reports, !unanswered.is_empty());
        let testimonies: Vec<Testimony> =
            reports.iter().map(|(witness, report)| Testimony::of(*witness, report)).collect();
        let Some(governor) = self.governor(gateway) else { return };
        if overview.whole {
            governor.settled = Some(map.epoch);
        }
        governor.seen.look(&map, reports);
        let detector::Verdict { out, held, .. } = governor.detector.look(now, &map, &testimonies, unanswered);
        let asked = governor.asked;
        let is_at_it = governor.changes.values().any(|change| matches!(change.wish, Wish::TakeOut(..)));
        governor.stays =
            held.as_ref().map(|held| format!("{held:?}")).or(governor.stays.take().filter(|_| !out.is_empty()));
        self.outcome.governed.held += u32::from(held.is_some());
        if !out.is_empty() && !is_at_it {
            self.note(53, id, out.len(), || format!("wants to take out {out:?}"));
            self.begin_change(gateway, Wish::TakeOut(out, asked));
        }
    }

    fn begin_change(&mut self, gateway: usize, wish: Wish) {
        let bug = match self.scenario.planted {
            Some(PlantedBug::Proposer(bug)) => Some(bug),
            _ => None,
        };
        let Some(state) = &mut self.governing else { return };
        state.next += 1;
        let (id, governor) = (state.next, &mut state.governors[gateway]);
        if governor.node.is_none() {
            return;
        }
        let proposer = Proposer::new(TRIES).with_bug(bug);
        governor.changes.insert(id, Change { wish, proposer, asked: 0 });
        self.go_on_with(gateway, id);
    }

    /// Does what a proposer wants next.
    fn go_on_with(&mut self, gateway: usize, id: u64) {
        loop {
            let Some(state) = &mut self.governing else { return };
            state.next += 1;
            let (draft_id, governor) = (state.next, &mut state.governors[gateway]);
            let Some(change) = governor.changes.get_mut(&id) else { return };
            change.asked += 1;
            let asker = Asker { gateway, life: governor.life, change: Some(id), nth: change.asked };
            match change.proposer.step() {
                Step::Read => return self.ask(asker, Question::Newest),
                Step::Propose { from, next } => {
                    let question = Question::Propose(Box::new((from.clone(), next.clone())));
                    return self.ask(asker, question);
                }
                Step::Make(present) => {
                    let (present, wish) = (present.clone(), change.wish.clone());
                    let asked = wish.asked();
                    let next = self.make(gateway, &present, &wish).map(|(made_by, map)| Draft {
                        id: draft_id,
                        map,
                        made_by: Arc::new(made_by),
                        asked,
                    });
                    let change = self.governor(gateway).and_then(|governor| governor.changes.get_mut(&id));
                    change.into_iter().for_each(|change| change.proposer.made(next.clone()));
                }
                Step::Use(draft) => {
                    let (draft, node) = (draft.clone(), governor.node);
                    governor.changes.remove(&id);
                    let nth = self.known_as(&draft);
                    return node.into_iter().for_each(|node| self.adopts(node, nth));
                }
                Step::Nothing | Step::Outrun => return drop(governor.changes.remove(&id)),
            }
        }
    }

    /// The map that a change makes of this one.
    fn make(
        &mut self,
        gateway: usize,
        present: &Draft,
        wish: &Wish,
    ) -> Option<(topology::Map, protocol::map::ClusterMap)> {
        match wish {
            Wish::Order(seed) => self.draw_next(present, *seed).map(|(made_by, plan)| (made_by, plan.map)),
            Wish::TakeOut(out, _) => {
                let made = self.without(gateway, present, out);
                let stays = made.as_ref().err().cloned();
                self.governor(gateway).into_iter().for_each(|governor| governor.stays.clone_from(&stays));
                made.ok().flatten()
            }
        }
    }

    /// The map without these, if it has them and may be without; else why they stay.
    fn without(
        &self,
        gateway: usize,
        present: &Draft,
        out: &[NodeId],
    ) -> Result<Option<(topology::Map, protocol::map::ClusterMap)>, String> {
        let gone: Vec<NodeId> = out.iter().copied().filter(|id| present.map.target(*id).is_some()).collect();
        if gone.is_empty() {
            return Ok(None);
        }
        let mut made_by = (*present.made_by).clone();
        made_by.targets.retain(|target| !gone.contains(&target.id));
        made_by.drained.retain(|id| !gone.contains(id));
        made_by.changes = vec![TAKES_OUT];
        let Some(plan) = self.plan(present, &mut made_by) else { return Err("no map without it serves".to_owned()) };
        let Some(state) = &self.governing else { return Ok(None) };
        let Governor { settled, seen, .. } = &state.governors[gateway];
        take_out::check(&present.map, &gone, &plan, self.scenario.redundancy, *settled, seen)
            .map_err(|stays| format!("{stays:?}"))?;
        Ok(Some((made_by, plan.map)))
    }

    /// A question leaves for the authority, and mostly comes there.
    fn ask(&mut self, asker: Asker, question: Question) {
        let now = self.now;
        let Some(State { settings, rng, .. }) = &mut self.governing else { return };
        let arrives = now + Span::from_nanos(rng.below(settings.trip.as_nanos()));
        let (is_lost, patience) = (rng.chance(settings.lost, 1_000), settings.patience);
        if asker.change.is_some() {
            self.push(now + patience, Scheduled::Governor(Event::Late(asker)));
        }
        if !is_lost {
            self.push(arrives, Scheduled::Governor(Event::Operation(asker, question)));
        }
    }

    fn asked_authority(&mut self, asker: Asker, question: Question) {
        let now = self.now;
        if !self.governing.as_ref().is_some_and(|state| state.authority.is_reached(asker.gateway, now)) {
            return;
        }
        let answer = match question {
            Question::Newest => {
                let Some(state) = &self.governing else { return };
                Answer::Newest(Box::new(state.authority.newest().clone()))
            }
            Question::Propose(proposal) => {
                let Some(verdict) = self.decide(&proposal.0, &proposal.1) else { return };
                Answer::Verdict(verdict)
            }
        };
        let Some(State { settings, rng, authority, .. }) = &mut self.governing else { return };
        let back = now + Span::from_nanos(rng.below(settings.trip.as_nanos()));
        let is_lost = rng.chance(settings.lost, 1_000) || !authority.is_reached(asker.gateway, back);
        if is_lost {
            self.outcome.governed.unsure += u32::from(matches!(answer, Answer::Verdict(Verdict::Decided)));
        } else {
            self.push(back, Scheduled::Governor(Event::Answered(asker, answer)));
        }
    }

    /// The change that waits for this answer.
    fn waiting(&mut self, asker: Asker) -> Option<(u64, &mut Change)> {
        let governor = self.governor(asker.gateway).filter(|governor| governor.life == asker.life)?;
        let id = asker.change?;
        governor.changes.get_mut(&id).filter(|change| change.asked == asker.nth).map(|change| (id, change))
    }

    fn answered(&mut self, asker: Asker, answer: Answer) {
        if let (None, Answer::Newest(newest)) = (asker.change, &answer) {
            let node = self.governor(asker.gateway).filter(|of| of.life == asker.life).and_then(|of| of.node);
            let nth = self.known_as(newest);
            return node.into_iter().for_each(|node| self.adopts(node, nth));
        }
        let Some((id, change)) = self.waiting(asker) else { return };
        match answer {
            Answer::Newest(newest) => change.proposer.newest(*newest),
            Answer::Verdict(verdict) => change.proposer.answered(Some(verdict)),
        }
        self.go_on_with(asker.gateway, id);
    }

    fn late(&mut self, asker: Asker) {
        let Some((id, change)) = self.waiting(asker) else { return };
        if matches!(change.proposer.step(), Step::Propose { .. }) {
            change.proposer.answered(None);
        }
        self.go_on_with(asker.gateway, id);
    }

    /// What the heal has to wait for: what is to be decided, those that are lost for good, and nodes that have not heard of it yet.
    /// Whether it has to.
    pub(super) fn heals_later(&mut self) -> bool {
        let Some(state) = &mut self.governing else { return false };
        let switch = state.settings.last.1;
        // What began while they were lost may still take out those that are not any more.
        let late = |of: &Governor| {
            of.node.is_some()
                && (!of.changes.is_empty() || of.query.is_some() && state.replaced.values().any(|at| of.asked < *at))
        };
        let is_open = |of: &Governor| of.changes.values().any(|change| matches!(change.wish, Wish::Order(_)));
        let open = state.governors.iter().any(|of| is_open(of) || !state.replaced.is_empty() && late(of));
        if state.orders > 0 || open || self.now < Instant::ZERO + switch + PAUSE {
            return self.looks_again();
        }
        let due = *state.due.get_or_insert(self.now);
        let patience = state.settings.out_after.times(PATIENCE);
        let dead = self.dead_in_map();
        if !dead.is_empty() {
            if self.now.since(due) < patience {
                return self.looks_again();
            }
            self.give_up(&dead);
            return self.looks_again();
        }
        if self.lags_behind().is_some() {
            return self.looks_again();
        }
        false
    }

    fn looks_again(&mut self) -> bool {
        self.push(self.now + PAUSE, Scheduled::Heal);
        true
    }

    /// A target that is not taken out, for a reason, gets an empty disk.
    fn give_up(&mut self, dead: &BTreeSet<NodeId>) {
        let Some(state) = &mut self.governing else { return };
        let reason = state.governors.iter().find_map(|governor| governor.stays.clone());
        state.dead.retain(|id| !dead.contains(id));
        state.replaced.extend(dead.iter().map(|id| (*id, self.now)));
        let Some(reason) = reason else {
            return self.fail(format!("{dead:?} are lost for good, and nobody takes them out of the map"));
        };
        for id in dead.iter().copied() {
            self.outcome.governed.stayed += 1;
            self.note(54, id, 0, || format!("gets an empty disk, as it is not taken out: {reason}"));
            self.restart(id);
        }
    }
}
