//! Gateways that run the product's object layer, their clients and cleaners, and what goes wrong with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use catalog::{Catalog, CatalogError, Change, Transient};
use object::clean::{Cleaning, Report};
use protocol::cleaner::Unfinished;
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::initiator::{self, ChunkPut, Query, QueryAnswer};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use super::replies::Replies;
use super::workload::{Putting, chunk_of};
use super::{Scheduled, World};
use crate::object::Objects;
use crate::object::client::{self, Client};
use crate::object::coroutines::{Answer, Local, Progress, Scheduler, TaskHandle, TaskId, TaskRequest, Ticket, lock};
use crate::object::gateway::Gateway;
use crate::planted::PlantedBug;
use crate::trace;

/// Passes without any work beside them, after which nothing may be left to clean: what was never answered goes in two, and in
/// two more what only that referred to. One is not counted for the reasons for which it is not where chunks are cleaned.
pub(super) const PASSES: u32 = 4;
/// Between one pass and the next.
const PAUSE: Span = Span::from_millis(1);
/// Gateways that clean.
const CLEANERS: usize = 2;
/// The year 2023.
const EPOCH: Span = Span::from_secs(1_700_000_000);

/// What happens to gateways.
pub(super) enum Event {
    Resume(TaskId),
    Answer(Ticket, Box<Answer>),
    /// A change reaches the catalog.
    Apply(Ticket, NodeId, Box<Change>),
    Crash(usize),
    Start(usize),
    Stall(usize, Span),
    /// A target is cut off from all others, or no more.
    Isolate(NodeId, bool),
    /// A wall clock steps to so far from the epoch.
    Step(usize, Span),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Heartbeat,
    Cleaner,
    Inspector,
}

/// A machine on which a gateway runs, or is to be started again.
#[derive(Default)]
struct Host {
    node: Option<NodeId>,
    /// What its wall clock shows when the world begins.
    wall: Span,
    /// It stands still until then.
    stalled: Instant,
    /// Operations that its clients still have to do.
    left: Vec<Arc<AtomicU32>>,
}

pub(super) struct Gateways {
    pub(super) settings: Objects,
    pub(super) scheduler: Scheduler,
    pub(super) catalog: Arc<Transient>,
    rng: Rng,
    hosts: Vec<Host>,
    roles: BTreeMap<TaskId, Role>,
    /// Puts of chunks under way.
    puts: BTreeMap<Ticket, Putting>,
    pub(super) replies: Replies,
    /// When the pass under way began.
    pass_began: BTreeMap<NodeId, Instant>,
    /// Since when nothing is asked for any more.
    quiet: Option<Instant>,
    quiet_passes: u32,
    inspecting: bool,
    done: bool,
}

impl Gateways {
    pub(super) fn storm(&self) -> Span {
        self.settings.storm
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Whether a gateway stands still just when it has asked to make a version visible.
    fn freezes(&mut self, node: NodeId, change: &Change) -> bool {
        let others = self.hosts.iter().any(|host| host.node.is_some_and(|other| other != node));
        let visible = matches!(change, Change::Put(..) | Change::Complete(..));
        self.settings.cleans && self.settings.stalls > 0 && others && visible && self.rng.chance(1, 4)
    }

    fn host_of(&self, node: NodeId) -> Option<usize> {
        self.hosts.iter().position(|host| host.node == Some(node))
    }
}

impl World<'_> {
    pub(super) fn add_gateways(&mut self) {
        let Some(settings) = self.scenario.objects else { return };
        let mut rng = Rng::new(self.scenario.seed).fork(41);
        let bug = match self.scenario.planted {
            Some(PlantedBug::Object(bug)) => Some(bug),
            _ => None,
        };
        let catalog = Transient::new()
            .unwrap_or_else(|error| panic!("{error}"))
            .trusting_ended_runs(bug == Some(object::Bug::TrustEnded));
        let host = |rng: &mut Rng| Host {
            wall: EPOCH + Span::from_nanos(rng.below(settings.off.as_nanos() + 1)),
            left: (0..settings.clients).map(|_| Arc::new(AtomicU32::new(settings.operations))).collect(),
            ..Host::default()
        };
        let hosts: Vec<Host> = (0..settings.gateways).map(|_| host(&mut rng)).collect();
        self.gateways = Some(Gateways {
            settings,
            scheduler: Scheduler::new(Rng::new(self.scenario.seed).fork(42)),
            catalog: Arc::new(catalog),
            rng,
            hosts,
            roles: BTreeMap::new(),
            puts: BTreeMap::new(),
            replies: Replies::default(),
            pass_began: BTreeMap::new(),
            quiet: None,
            quiet_passes: 0,
            inspecting: false,
            done: false,
        });
        for n in 0..settings.gateways as usize {
            self.start_gateway(n);
        }
        self.gateway_faults();
    }

    fn gateway_faults(&mut self) {
        let (now, targets) = (self.now, self.scenario.targets);
        let Some(Gateways { settings, rng, .. }) = &mut self.gateways else { return };
        let (mut events, mut outages) = (vec![], vec![]);
        let storm = settings.storm.as_nanos();
        let any = |rng: &mut Rng| rng.below(settings.gateways.into()) as usize;
        let moment = |rng: &mut Rng| now + Span::from_nanos(rng.below(storm));
        for _ in 0..settings.crashes {
            let (at, host) = (moment(rng), any(rng));
            events.push((at, Event::Crash(host)));
            events.push((at + Span::from_nanos(1 + rng.below(storm / 4)), Event::Start(host)));
        }
        for _ in 0..settings.stalls {
            // Often longer than others wait for a sign of life, and not as long as cleaning allows.
            let stall = Span::from_nanos(rng.below(settings.grace.as_nanos().min(300_000_000) / 3));
            events.push((moment(rng), Event::Stall(any(rng), stall)));
        }
        for _ in 0..settings.outages {
            let (at, length, cut) = (moment(rng), 1 + rng.below(storm / 6), rng.chance(1, 2));
            for target in (1..=targets).map(NodeId).filter(|_| rng.chance(1, 2)).collect::<Vec<_>>() {
                let back = at + Span::from_nanos(1 + rng.below(length));
                if cut {
                    events.extend([(at, Event::Isolate(target, true)), (back, Event::Isolate(target, false))]);
                } else {
                    outages.extend([(at, Scheduled::Crash(target)), (back, Scheduled::Restart(target))]);
                }
            }
        }
        if settings.flaps && settings.is_brief() {
            // A half of the targets, or each time some that hide nothing by the map.
            let half: Vec<NodeId> = (1..=targets).map(NodeId).filter(|_| rng.chance(1, 2)).collect();
            let (few, domains) = (rng.chance(1, 2), self.scenario.topology.domains());
            let most = self.scenario.topology.fewest() - 1;
            let mut at = moment(rng);
            while at < now + settings.storm {
                let back = at + settings.patience + Span::from_nanos(rng.below(settings.patience.as_nanos()));
                let both =
                    |target: &NodeId| [(at, Event::Isolate(*target, true)), (back, Event::Isolate(*target, false))];
                let first = rng.below(domains.len() as u64) as usize;
                let some = domains.iter().cycle().skip(first).take(most).flatten();
                let flapping: Vec<NodeId> = if few { some.copied().collect() } else { half.clone() };
                events.extend(flapping.iter().flat_map(both));
                at = back + Span::from_nanos(rng.below(settings.patience.as_nanos() * 3));
            }
        }
        for _ in 0..settings.steps {
            let off = Span::from_nanos(rng.below(settings.off.as_nanos() + 1));
            events.push((moment(rng), Event::Step(any(rng), EPOCH + off)));
        }
        outages.into_iter().for_each(|(at, event)| self.push(at, event));
        events.into_iter().for_each(|(at, event)| self.push(at, Scheduled::Gateway(event)));
    }

    /// A process of a gateway, with its clients, its heartbeat and its cleaner.
    fn start_gateway(&mut self, n: usize) {
        let is_down = |gateways: &Gateways| gateways.hosts.get(n).is_some_and(|host| host.node.is_none());
        if !self.gateways.as_ref().is_some_and(is_down) {
            return;
        }
        let Some(client) = self.new_client() else { return };
        let node = client.gateway.handle.node;
        self.note(40, node, n, || "a gateway begins".to_owned());
        let Some(gateways) = &mut self.gateways else { return };
        let settings = gateways.settings;
        let Some(host) = gateways.hosts.get_mut(n) else { return };
        host.node = Some(node);
        let mut jobs: Vec<(Role, Box<dyn FnOnce() + Send>)> = vec![];
        for left in host.left.iter().filter(|left| left.load(Ordering::Relaxed) > 0) {
            let (client, left) = (client.clone(), Arc::clone(left));
            let work = move || {
                let done = || {
                    left.fetch_sub(1, Ordering::Relaxed);
                };
                client.work(left.load(Ordering::Relaxed), &done);
            };
            jobs.push((Role::Client, Box::new(work)));
        }
        let (living, cleaning) = (client.clone(), client);
        let heartbeat = move || {
            loop {
                living.gateway.handle.sleep(settings.heartbeat);
                // The next one makes up for it.
                let _ = living.objects.heartbeat();
            }
        };
        jobs.push((Role::Heartbeat, Box::new(heartbeat)));
        if settings.cleans && n < CLEANERS && !gateways.inspecting {
            gateways.pass_began.insert(node, self.now);
            jobs.push((Role::Cleaner, Box::new(move || clean(&cleaning.gateway, settings))));
        }
        for (role, job) in jobs {
            self.start_task(node, role, job);
        }
    }

    /// A node of its own with what a gateway needs.
    fn new_client(&mut self) -> Option<Client> {
        self.add_initiator();
        let node = self.initiators.pop()?;
        let gateways = self.gateways.as_ref()?;
        let handle = TaskHandle { node, queues: Arc::clone(&gateways.scheduler.queues) };
        let (catalog, planted) = (Arc::clone(&gateways.catalog), self.scenario.planted);
        let maps = Arc::new(self.maps.clone());
        let gateway = Gateway { handle, maps, catalog, planted };
        let objects = Arc::new(client::objects(&gateway, &gateways.settings));
        Some(Client { gateway, objects, settings: gateways.settings })
    }

    fn start_task(&mut self, node: NodeId, role: Role, job: Box<dyn FnOnce() + Send>) {
        let Some(gateways) = &mut self.gateways else { return };
        let task = gateways.scheduler.start(node, job);
        gateways.roles.insert(task, role);
        let at = self.now + Span::from_nanos(gateways.rng.below(1_000_000));
        self.push(at, Scheduled::Gateway(Event::Resume(task)));
    }

    pub(super) fn gateway_happens(&mut self, event: Event) {
        match event {
            Event::Resume(task) => self.resume(task),
            Event::Answer(ticket, answer) => self.answer(ticket, *answer),
            Event::Apply(ticket, node, change) => self.apply(ticket, node, *change),
            Event::Crash(host) if !self.healed => self.crash_gateway(host),
            Event::Start(host) => self.start_gateway(host),
            Event::Stall(host, span) if !self.healed => {
                let until = self.now + span;
                if let Some(host) = self.gateways.as_mut().and_then(|gateways| gateways.hosts.get_mut(host)) {
                    host.stalled = until;
                }
            }
            Event::Step(host, wall) => {
                if let Some(host) = self.gateways.as_mut().and_then(|gateways| gateways.hosts.get_mut(host)) {
                    host.wall = wall;
                }
            }
            Event::Isolate(target, true) if !self.healed => drop(self.net.isolated.insert(target)),
            Event::Isolate(target, _) => {
                self.net.isolated.remove(&target);
                self.are_back([target]);
            }
            Event::Crash(_) | Event::Stall(..) => {}
        }
    }

    fn crash_gateway(&mut self, n: usize) {
        let Some(gateways) = &mut self.gateways else { return };
        let Some(node) = gateways.hosts.get_mut(n).and_then(|host| host.node.take()) else { return };
        gateways.scheduler.kill_all(node);
        gateways.pass_began.remove(&node);
        self.nodes.remove(&node);
        self.note(41, node, n, || "a gateway crashes".to_owned());
    }

    /// All faults of gateways are over.
    pub(super) fn heal_gateways(&mut self) {
        self.give_up_sectors();
        for host in 0..self.gateways.as_ref().map_or(0, |gateways| gateways.hosts.len()) {
            self.start_gateway(host);
        }
        self.go_on();
    }

    fn local(&self, node: NodeId) -> Option<Local> {
        let gateways = self.gateways.as_ref()?;
        let wall = gateways.host_of(node).map_or(EPOCH, |host| gateways.hosts[host].wall);
        let state = self.nodes.get(&node)?;
        Some(Local {
            elapsed: Duration::from_nanos(state.local(self.now).as_nanos()),
            wall: Duration::from_nanos(wall.as_nanos() + self.now.as_nanos()),
            map: state.map,
            now: self.now.as_nanos(),
            healed: self.healed,
        })
    }

    /// Lets a task run, and takes what it asks for.
    fn resume(&mut self, task: TaskId) {
        let Some(gateways) = &self.gateways else { return };
        let Some(node) = gateways.scheduler.node_of(task) else { return };
        let stalled = gateways.host_of(node).map_or(Instant::ZERO, |host| gateways.hosts[host].stalled);
        if stalled > self.now && !self.healed {
            return self.push(stalled, Scheduled::Gateway(Event::Resume(task)));
        }
        let Some(local) = self.local(node) else { return };
        let Some(gateways) = &mut self.gateways else { return };
        let Some(went) = gateways.scheduler.resume(task, local) else { return };
        let (submitted, wrong) = {
            let mut queues = lock(&gateways.scheduler.queues);
            (std::mem::take(&mut queues.submitted), queues.history.wrong.clone())
        };
        let role = match went {
            Progress::Waiting => None,
            Progress::Ended => gateways.roles.remove(&task),
            Progress::Panicked(why) => return self.fail(format!("{node} panicked: {why}")),
        };
        if let Some(why) = wrong {
            return self.fail(why);
        }
        for (ticket, by, request) in submitted {
            self.take_request(ticket, by, request);
        }
        match role {
            Some(Role::Inspector) => {
                self.gateways.iter_mut().for_each(|gateways| gateways.done = true);
            }
            Some(_) => self.go_on(),
            None => {}
        }
    }

    fn take_request(&mut self, handle: Ticket, node: NodeId, request: TaskRequest) {
        let now = self.now;
        let Some(gateways) = &mut self.gateways else { return };
        let calm = self.healed;
        let later = |gateways: &mut Gateways, most: u64| now + Span::from_nanos(gateways.rng.below(most));
        let request = match request {
            TaskRequest::Put(put) => {
                let ChunkPut { id, payload, redundancy, .. } = put.clone();
                let payload = chunk_of(payload);
                let putting = Putting { id, payload, redundancy, healed: calm, alone: false, begun: (now, now) };
                gateways.puts.insert(handle, putting);
                self.may_fall(node, &id);
                initiator::Request::Put { handle, put }
            }
            TaskRequest::Get(id, holders, fragments) => {
                gateways.replies.gets.insert(handle, id);
                initiator::Request::Get { handle, id, holders, fragments }
            }
            TaskRequest::Query(query) => {
                if let Query::Renew { id, redundancy } = query {
                    gateways.replies.renewals.insert(handle, (id, redundancy));
                }
                initiator::Request::Query { handle, query }
            }
            TaskRequest::Change(change) if !calm && gateways.freezes(node, &change) => {
                // The whole gateway stands still, with its change on the way: by then others took it for dead.
                let at =
                    later(gateways, gateways.settings.grace.times(4).as_nanos()) + gateways.settings.grace.times(3);
                if let Some(host) = gateways.host_of(node) {
                    gateways.hosts[host].stalled = at;
                }
                return self.push(at, Scheduled::Gateway(Event::Apply(handle, node, change)));
            }
            TaskRequest::Change(change) => {
                // Sometimes it is long under way.
                let at = later(gateways, if calm { 200_000 } else { 1_000_000 });
                let at = if !calm && gateways.rng.chance(1, 20) { at + Span::from_millis(5) } else { at };
                return self.push(at, Scheduled::Gateway(Event::Apply(handle, node, change)));
            }
            TaskRequest::Question => {
                let (at, answer) = (later(gateways, 200_000), Answer::Catalog(Ok(())));
                return self.push(at, Scheduled::Gateway(Event::Answer(handle, Box::new(answer))));
            }
            TaskRequest::Sleep(span) => {
                return self.push(now + span, Scheduled::Gateway(Event::Answer(handle, Box::new(Answer::Slept))));
            }
            TaskRequest::PassOver(report) => return self.pass_over(node, &report),
        };
        self.input(node, None, Some(request));
    }

    /// Sometimes a gateway crashes while a manifest is on its way.
    fn may_fall(&mut self, node: NodeId, id: &ChunkId) {
        let (now, healed) = (self.now, self.healed);
        let Some(gateways) = &mut self.gateways else { return };
        let Some(host) = gateways.host_of(node) else { return };
        if healed || gateways.settings.crashes == 0 || id.kind() != ChunkKind::Manifest || !gateways.rng.chance(1, 32) {
            return;
        }
        let at = now + Span::from_nanos(gateways.rng.below(1_000_000));
        let back = at + Span::from_nanos(gateways.rng.below(gateways.settings.storm.as_nanos() / 8));
        self.push(at, Scheduled::Gateway(Event::Crash(host)));
        self.push(back, Scheduled::Gateway(Event::Start(host)));
    }

    /// A change reaches the catalog, also when the gateway that asked for it is dead by now.
    fn apply(&mut self, ticket: Ticket, node: NodeId, change: Change) {
        let calm = self.healed;
        let alive = self.nodes.contains_key(&node);
        let Some(gateways) = &mut self.gateways else { return };
        let trouble = if calm { 0 } else { gateways.settings.trouble };
        if (!alive && gateways.rng.chance(1, 2)) || gateways.rng.chance(trouble, 1_000) {
            let error = CatalogError::Unavailable("was not reached".to_owned());
            return self.answer(ticket, Answer::Catalog(Err(error)));
        }
        let traced = self.trace.is_some().then(|| change.clone());
        if matches!(change, Change::EndRun { .. }) && gateways.quiet.is_some() {
            // From now on there may be more garbage.
            (gateways.quiet, gateways.quiet_passes) = (Some(self.now), 0);
        }
        let outcome = gateways.catalog.change(change);
        let lost = gateways.rng.chance(trouble, 1_000);
        let at = self.now + Span::from_nanos(gateways.rng.below(200_000));
        let answer = if lost && outcome.is_ok() {
            Err(CatalogError::Unavailable("did not answer".to_owned()))
        } else {
            outcome.clone()
        };
        self.note(42, node, usize::from(outcome.is_ok()), || {
            traced.map_or_else(String::new, |change| trace::objects::change(&change, &outcome))
        });
        self.push(at, Scheduled::Gateway(Event::Answer(ticket, Box::new(Answer::Catalog(answer)))));
    }

    fn answer(&mut self, ticket: Ticket, answer: Answer) {
        let now = self.now;
        let Some(gateways) = &mut self.gateways else { return };
        if let Some(task) = gateways.scheduler.answer(ticket, answer) {
            let at = now + Span::from_nanos(gateways.rng.below(20_000));
            self.push(at, Scheduled::Gateway(Event::Resume(task)));
        }
    }

    /// An event of a gateway's initiator.
    pub(super) fn gateway_event(&mut self, id: NodeId, event: initiator::Event) {
        use initiator::Event;
        match event {
            Event::Put { handle, result } => {
                let Some(put) = self.gateways.as_mut().and_then(|gateways| gateways.puts.remove(&handle)) else {
                    return;
                };
                self.note(43, id, put.payload.len(), || trace::put(put.id, &result));
                if let Ok(stored) = &result {
                    self.check_stored(id, &put, &stored.holders);
                }
                self.judge_put(id, put.id, result.as_ref().err(), put.begun.1);
                self.answer(handle, Answer::Put(result));
            }
            Event::Get { handle, result } => {
                self.note(44, id, 0, || trace::objects::got(&result));
                self.outcome.gets += u32::from(result.is_ok());
                if let Some(chunk) = self.gateways.as_mut().and_then(|gateways| gateways.replies.gets.remove(&handle)) {
                    self.judge_get(id, chunk, result.as_ref().err());
                }
                self.answer(handle, Answer::Get(result));
            }
            Event::Query { handle, answer } => {
                match &answer {
                    QueryAnswer::List(result) => {
                        let chunks = result.as_ref().map_or(0, |found| found.chunks.len());
                        self.note(45, id, chunks, || trace::list(result));
                    }
                    QueryAnswer::Renew(result) => {
                        self.note(46, id, 0, || trace::objects::renewed(result));
                        if *result == Ok(true) {
                            self.renewed(id, handle);
                        }
                    }
                    QueryAnswer::Mark(result) => self.note(47, id, 0, || trace::objects::marked(result)),
                    QueryAnswer::Discard(result) => self.note(48, id, 0, || trace::objects::discarded(result)),
                    QueryAnswer::Ping(_) | QueryAnswer::Usage(_) | QueryAnswer::Health(_) => {}
                }
                self.answer(handle, Answer::Query(answer));
            }
            _ => {}
        }
    }

    /// At the moment of an acknowledgement the copies must be durable, unless it comes so late that they may have been cleaned
    /// away. So many of them are promised; one that is late takes back no earlier promise.
    fn check_stored(&mut self, by: NodeId, put: &Putting, holders: &[NodeId]) {
        let grace = self.gateways.as_ref().map_or(Span::ZERO, |gateways| gateways.settings.grace);
        let in_time = self.now.since(put.begun.1) < grace.div(2);
        if in_time {
            self.check_copies(by, put, holders);
        }
        if in_time || !self.is_promised(put.id, put.redundancy) {
            let map = self.nodes.get(&by).map_or(0, |node| node.map);
            let copies = self.spread(map, holders).min(self.goal(map, put.redundancy).pieces());
            self.promised(map, put.id, put.redundancy, copies as u8);
        }
        self.outcome.puts += 1;
    }

    fn pass_over(&mut self, node: NodeId, report: &Report) {
        self.note(49, node, report.pass.copies as usize, || trace::objects::pass_over(report));
        let now = self.now;
        let (cramped, made) = (self.was_cramped(), self.whole.made);
        let Some(gateways) = &mut self.gateways else { return };
        let began = gateways.pass_began.insert(node, now);
        // What is referred to cannot be read: nothing goes any more.
        let stuck = report.pass.unfinished == Some(Unfinished::Unread)
            && gateways.replies.unfound.is_some_and(|(by, at)| by == node && Some(at) >= began);
        let over = report.pass.unfinished.is_none() && !cramped && began > made || stuck;
        if gateways.quiet.is_some_and(|quiet| began >= Some(quiet)) && over {
            gateways.quiet_passes += 1;
            gateways.replies.stuck |= stuck;
            self.go_on();
        }
    }

    /// When the clients have done everything the cleaners go on for a while, and then everything is checked.
    fn go_on(&mut self) {
        let now = self.now;
        let Some(gateways) = &mut self.gateways else { return };
        if !self.healed || gateways.inspecting || gateways.roles.values().any(|role| *role == Role::Client) {
            let alive = |task: &TaskId| gateways.scheduler.node_of(*task).is_some();
            gateways.roles.retain(|task, _| alive(task));
            if !self.healed || gateways.inspecting || gateways.roles.values().any(|role| *role == Role::Client) {
                return;
            }
        }
        if gateways.settings.cleans {
            if gateways.quiet.is_none() {
                gateways.quiet = Some(now);
                // One is enough for the rest.
                let cleaners = gateways.roles.iter().filter(|(_, role)| **role == Role::Cleaner);
                let others: Vec<TaskId> = cleaners.map(|(task, _)| *task).skip(1).collect();
                others.into_iter().for_each(|task| gateways.scheduler.kill(task));
            }
            if gateways.quiet_passes < self.scenario.quiet_passes(PASSES) {
                return;
            }
        }
        gateways.inspecting = true;
        let cleaners = gateways.roles.iter().filter(|(_, role)| **role == Role::Cleaner);
        let cleaners: Vec<TaskId> = cleaners.map(|(task, _)| *task).collect();
        cleaners.into_iter().for_each(|task| gateways.scheduler.kill(task));
        if let Some(client) = self.new_client() {
            let node = client.gateway.handle.node;
            self.start_task(node, Role::Inspector, Box::new(move || client.inspect()));
        }
    }
}

/// A gateway's cleaner.
fn clean(gateway: &Gateway, settings: Objects) {
    let bug = match gateway.planted {
        Some(PlantedBug::Object(bug)) => Some(bug),
        _ => None,
    };
    let hurries = gateway.planted == Some(PlantedBug::HurryCleaner);
    let machine = match gateway.planted {
        Some(PlantedBug::Cleaner(bug)) => Some(bug),
        _ => None,
    };
    let mut cleaning = Cleaning::new(gateway, gateway, false).at_once().with_bug(bug, machine);
    loop {
        let report = cleaning.run_pass(&mut || {
            gateway.handle.sleep(if hurries { Span::ZERO } else { settings.grace });
            true
        });
        gateway.handle.submit(TaskRequest::PassOver(report));
        gateway.handle.sleep(PAUSE);
    }
}
