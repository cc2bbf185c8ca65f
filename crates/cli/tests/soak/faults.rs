//! What is done to the cluster: faults in a random order, and never more at once than copies are kept for. A target is lost for good, or
//! drained, only when every chunk has all its copies, and nothing else like it before it is so again. What is killed and comes back is
//! killed at any time.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use protocol::rng::Rng;
use serde_json::Value;

use crate::common::signal;
use crate::memory::Memory;
use crate::processes::{GATEWAY, Processes, SERVERS};
use crate::story::Story;

/// How long it may take until every chunk has all its copies, when nothing is killed.
pub(crate) const WHOLE: Duration = Duration::from_secs(300);
/// For how long others are killed while a target is lost or drained.
const RESTLESS: Duration = Duration::from_secs(25);
/// For how long others are killed when there is little room: a target that was killed knows nothing of the cleaners' marks, so that nothing goes.
const CROWDED: Duration = Duration::from_secs(15);
/// After an empty store is there, nothing is known of it until the stewards have looked: once in 10 s, and what they find is suspect first.
const UNKNOWN: Duration = Duration::from_secs(35);
/// Between looks at the status, at the memory, and lines of progress.
const LOOK: Duration = Duration::from_millis(700);
const MEASURE: Duration = Duration::from_secs(2);
const PROGRESS: Duration = Duration::from_secs(10);
/// Between faults, at most.
const REST: u64 = 5_000;
/// Targets that there are, as far as losses and joins allow.
const FEWEST: usize = 8;
const MOST: usize = 12;
/// Targets that are never lost, and in a long run not even killed from some time on, as the gateway: what they have in memory has time to grow.
const LEFT_ALONE: [u32; 2] = [1, 2];
/// Bytes that are free on a target, in the mean, before one is lost or the disks are filled.
const ROOM: u64 = 80 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillTarget,
    KillServer,
    KillGateway,
    KillEveryone,
    Stop,
    Lose,
    Join,
    Drain,
    Fill,
    Clean,
}

/// The first deck has each once, so that a short run has all; the later ones have these.
const FIRST: [(Fault, usize); 10] = [
    (Fault::Fill, 1),
    (Fault::KillTarget, 1),
    (Fault::Join, 1),
    (Fault::Lose, 1),
    (Fault::KillGateway, 1),
    (Fault::Clean, 1),
    (Fault::KillServer, 1),
    (Fault::KillEveryone, 1),
    (Fault::Stop, 1),
    (Fault::Drain, 1),
];
const LATER: [(Fault, usize); 10] = [
    (Fault::Fill, 1),
    (Fault::KillTarget, 8),
    (Fault::Join, 2),
    (Fault::Lose, 3),
    (Fault::KillGateway, 3),
    (Fault::Clean, 1),
    (Fault::KillServer, 1),
    (Fault::KillEveryone, 2),
    (Fault::Stop, 3),
    (Fault::Drain, 1),
];

/// Why copies are made elsewhere at the moment.
#[derive(Clone, Copy, Debug)]
enum Under {
    /// A target was lost, and another may be about to take its place.
    Lost {
        id: u32,
        by: Option<u32>,
    },
    /// A target was lost, and has an empty store; since when that is there.
    Emptied {
        id: u32,
        there: Option<Instant>,
    },
    Draining {
        id: u32,
    },
    Removed {
        id: u32,
    },
}

impl Display for Under {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { id, by: None } => write!(f, "target {id} is lost"),
            Self::Lost { id, by: Some(by) } => write!(f, "target {id} is lost, and target {by} takes its place"),
            Self::Emptied { id, .. } => write!(f, "target {id} began anew"),
            Self::Draining { id } => write!(f, "target {id} is drained"),
            Self::Removed { id } => write!(f, "target {id} is out of the map"),
        }
    }
}

/// See the [module](self).
pub(crate) struct Faults<'a> {
    pub(crate) processes: Processes,
    pub(crate) memory: Memory,
    story: &'a Story,
    numbers: Rng,
    deck: Vec<Fault>,
    is_first: bool,
    /// From then on the gateway and two targets are left alone.
    spare_from: f64,
    seconds: f64,
    filling: &'a AtomicBool,
    cleaner: Option<(Child, Instant)>,
    under: Option<(Under, Instant)>,
    /// A fault that waits until all is whole, and since when. Nothing else is done then.
    waiting: Option<(Fault, Instant)>,
    joining: Option<(u32, Instant)>,
    /// Since when there is little room, and nothing that fills it.
    crowded: Option<Instant>,
    /// Since when no more faults are made.
    settling: Option<Instant>,
    status: Option<Value>,
    in_map: BTreeSet<u32>,
    /// How many targets were lost; by chance more in the beginning, so that the ways are not always in one order.
    lost: u64,
    next: Instant,
    looked: Instant,
    measured: Instant,
    told: Instant,
}

/// Whether it needs all copies of everything.
fn is_large(fault: Fault) -> bool {
    matches!(fault, Fault::Lose | Fault::Drain | Fault::Fill)
}

pub(crate) fn targets(status: &Value) -> &[Value] {
    status["targets"].as_array().unwrap()
}

fn target(status: &Value, id: u32) -> Option<&Value> {
    targets(status).iter().find(|target| target["id"] == id)
}

impl<'a> Faults<'a> {
    pub(crate) fn new(
        processes: Processes,
        (story, filling): (&'a Story, &'a AtomicBool),
        seed: u64,
        (seconds, spare_from): (u64, f64),
    ) -> Self {
        let now = Instant::now();
        let mut numbers = Rng::new(seed).fork(u64::MAX);
        Self {
            processes,
            memory: Memory::default(),
            story,
            lost: numbers.below(3),
            numbers,
            deck: vec![],
            is_first: true,
            spare_from,
            seconds: seconds as f64,
            filling,
            cleaner: None,
            under: None,
            waiting: None,
            joining: None,
            crowded: None,
            settling: None,
            status: None,
            in_map: BTreeSet::new(),
            next: now,
            looked: now,
            measured: now,
            told: now,
        }
    }

    /// Makes faults until the time is over.
    pub(crate) fn run(&mut self) {
        while self.story.seconds() < self.seconds && !self.story.is_over() {
            self.tick();
            if Instant::now() >= self.next {
                self.draw();
                self.next = Instant::now() + Duration::from_millis(self.numbers.below(REST));
            }
        }
        self.story.say("no more faults");
        self.waiting = None;
        self.settling = Some(Instant::now());
        while (self.is_busy() || !self.is_whole()) && !self.story.is_over() {
            self.tick();
        }
    }

    fn is_busy(&self) -> bool {
        !self.is_quiet() || self.cleaner.is_some()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status["whole"] == true)
    }

    /// What goes on by itself.
    pub(crate) fn tick(&mut self) {
        std::thread::sleep(Duration::from_millis(100));
        for words in self.processes.look_after_joined() {
            self.story.say(&words);
        }
        if self.looked.elapsed() >= LOOK {
            self.status = self.processes.status();
            self.looked = Instant::now();
            if let Some(status) = self.status.clone() {
                self.look(&status);
            }
        }
        self.look_at_cleaner();
        if self.measured.elapsed() >= MEASURE {
            let third = (self.story.seconds() * 3.0 / self.seconds) as usize;
            self.memory.look(&self.processes.all(), third.min(2));
            self.measured = Instant::now();
        }
        if self.told.elapsed() >= PROGRESS {
            self.tell();
            self.told = Instant::now();
        }
        let late = self.under.map(|(under, since)| (under.to_string(), since));
        let late = late.or(self.waiting.map(|(fault, since)| (format!("before {fault:?}"), since)));
        let late = late.or(self.settling.map(|since| ("without more faults".to_owned(), since)));
        let late = late.or(self.crowded.map(|since| ("before there is room again".to_owned(), since)));
        let late = late.or(self.joining.map(|(id, since)| (format!("joining of target {id}"), since)));
        if let Some((what, _)) = late.filter(|(_, since)| since.elapsed() > WHOLE) {
            let status = self.processes.cluster().try_run(&["status"], b"").stdout;
            self.story.fail(&format!("not whole in {WHOLE:?}, {what}:\n{}", String::from_utf8_lossy(&status)));
        }
    }

    fn tell(&self) {
        let (done, failed) = self.story.requests();
        let (gateway, largest) = self.memory.now();
        let faults: u64 = self.story.faults().values().sum();
        let state = self.status.as_ref().map_or("the gateway does not answer".to_owned(), |status| {
            let free: u64 = targets(status).iter().filter_map(|target| target["free"].as_u64()).sum();
            let whole = if status["whole"] == true { "whole" } else { "not whole" };
            let (count, risk) = (targets(status).len(), &status["at_risk"]);
            format!(
                "{count} targets, {} MiB free, {whole}, {risk} chunks at risk, epoch {}",
                free >> 20,
                status["epoch"]
            )
        });
        self.story.say(&format!(
            "-- {done} requests done, {failed} failed, {faults} faults; gateway {gateway} MiB, largest target {largest} MiB; {state}"
        ));
    }

    fn look_at_cleaner(&mut self) {
        let Some((child, until)) = &mut self.cleaner else { return };
        match child.try_wait().unwrap() {
            Some(status) => self.story.say(&format!("`reservoir clean` ended with {status}")),
            None if Instant::now() < *until => return,
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                self.story.say("`reservoir clean` was killed");
            }
        }
        self.cleaner = None;
    }

    /// What follows from the status.
    fn look(&mut self, status: &Value) {
        let now: BTreeSet<u32> = targets(status).iter().map(|target| target["id"].as_u64().unwrap() as u32).collect();
        let gone: Vec<u32> = self.in_map.difference(&now).copied().collect();
        self.in_map = now;
        let is_crowded = !self.has_room() && !self.filling.load(Ordering::SeqCst);
        self.crowded = is_crowded.then(|| self.crowded.unwrap_or_else(Instant::now));
        if let Some((id, _)) =
            self.joining.filter(|(id, _)| target(status, *id).is_some_and(|new| new["alive"] == true))
        {
            self.story.say(&format!("target {id} has joined"));
            self.joining = None;
        }
        let expected = self.under.and_then(|(under, _)| match under {
            Under::Lost { id, .. } | Under::Emptied { id, .. } | Under::Removed { id } => Some(id),
            Under::Draining { .. } => None,
        });
        for id in gone.into_iter().filter(|id| Some(*id) != expected) {
            self.story.fault("out, though not lost", &format!("target {id} was taken out before it was back"));
            self.processes.forget(id);
            self.under.get_or_insert((Under::Removed { id }, Instant::now()));
        }
        let Some((under, since)) = self.under else { return };
        let next = self.go_on(under, status);
        if next.is_none() {
            self.story.say(&format!("whole after {:.0} s: {under}", since.elapsed().as_secs_f64()));
        }
        self.under = next.map(|under| (under, since));
    }

    /// What is under way after this look; `None`: it is over.
    fn go_on(&mut self, under: Under, status: &Value) -> Option<Under> {
        let (whole, has) = (status["whole"] == true, |id: u32| target(status, id).is_some());
        match under {
            Under::Lost { id, by } if has(id) => return Some(Under::Lost { id, by }),
            Under::Lost { id, by: Some(by) } if !has(by) => {
                self.story.say(&format!("target {id} is out before target {by} took its place"));
                self.processes.forget(by);
                return Some(Under::Lost { id, by: None });
            }
            Under::Lost { id, .. } => {
                self.processes.forget(id);
                return Some(Under::Removed { id });
            }
            Under::Emptied { id, .. } if !has(id) => return Some(Under::Lost { id, by: None }),
            Under::Emptied { id, there } => {
                let there = there.or_else(|| (target(status, id)?["alive"] == true).then(Instant::now));
                let is_known = there.is_some_and(|there| there.elapsed() > UNKNOWN);
                return (!is_known || !whole).then_some(Under::Emptied { id, there });
            }
            Under::Draining { id } => {
                let is_drained = whole && target(status, id).is_some_and(|target| target["drained"] == true);
                if is_drained {
                    let removed = self.processes.cluster().try_run(&["cluster", "remove", &id.to_string()], b"");
                    if removed.status.success() {
                        self.story.say(&format!("target {id} is empty and removed"));
                        self.processes.forget(id);
                        return Some(Under::Removed { id });
                    }
                    self.story.say(&format!("remove: {}", String::from_utf8_lossy(&removed.stderr).trim_end()));
                }
                return Some(under);
            }
            Under::Removed { id } if has(id) || !whole => return Some(under),
            Under::Removed { .. } => {}
        }
        None
    }

    fn draw(&mut self) {
        if let Some((fault, _)) = self.waiting {
            if self.may(fault) {
                self.waiting = None;
                self.make(fault);
            }
            return;
        }
        // Who waits for copies, or for room, has some rest before that counts as too long.
        let is_crowded = self.crowded.is_some_and(|since| since.elapsed() > CROWDED);
        if is_crowded || self.under.is_some_and(|(_, since)| since.elapsed() > RESTLESS) {
            return;
        }
        if self.deck.is_empty() {
            let deck = if std::mem::take(&mut self.is_first) { FIRST } else { LATER };
            self.deck = deck.iter().flat_map(|(fault, times)| std::iter::repeat_n(*fault, *times)).collect();
        }
        let fault = self.take();
        if self.is_pointless(fault) {
        } else if self.may(fault) {
            self.make(fault);
        } else if is_large(fault) && self.is_quiet() && self.has_room() {
            self.waiting = Some((fault, Instant::now()));
        } else {
            // Later; something small goes on in any case.
            self.deck.push(fault);
            let small = if self.numbers.chance(1, 3) { Fault::Stop } else { Fault::KillTarget };
            self.make(small);
        }
    }

    /// A card of the deck.
    fn take(&mut self) -> Fault {
        let at = self.numbers.below(self.deck.len() as u64) as usize;
        self.deck.swap_remove(at)
    }

    /// Whether it is not to be made at all.
    fn is_pointless(&self, fault: Fault) -> bool {
        match fault {
            Fault::Drain => self.in_map.len() <= FEWEST,
            Fault::Join => self.in_map.len() >= MOST,
            _ => self.is_spared(fault),
        }
    }

    fn is_spared(&self, fault: Fault) -> bool {
        matches!(fault, Fault::KillGateway | Fault::KillEveryone) && self.story.seconds() > self.spare_from
    }

    fn is_quiet(&self) -> bool {
        self.under.is_none() && self.joining.is_none() && !self.filling.load(Ordering::SeqCst)
    }

    /// Whether what one target has finds room on the others.
    fn has_room(&self) -> bool {
        let free = |status: &Value| targets(status).iter().filter_map(|target| target["free"].as_u64()).sum::<u64>();
        self.status.as_ref().is_some_and(|status| free(status) > targets(status).len() as u64 * ROOM)
    }

    /// Whether more would not be lost than there are copies for.
    fn may(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::Lose | Fault::Drain | Fault::Fill => self.is_quiet() && self.is_whole() && self.has_room(),
            Fault::Join => self.is_quiet(),
            // `up` does not start while a disk is missing.
            Fault::KillEveryone => {
                !matches!(self.under, Some((Under::Lost { .. } | Under::Emptied { there: None, .. }, _)))
            }
            Fault::KillGateway => self.processes.may_kill(GATEWAY),
            Fault::Clean => self.cleaner.is_none(),
            Fault::KillTarget | Fault::KillServer | Fault::Stop => true,
        }
    }

    /// One of the targets in the map that is not left alone.
    fn any_target(&mut self) -> Option<u32> {
        let from = self.spare_from;
        self.any_target_but(from)
    }

    /// The same, where some are left alone from then on.
    fn any_target_but(&mut self, from: f64) -> Option<u32> {
        let is_late = self.story.seconds() > from;
        let lost = match self.under {
            Some((Under::Lost { id, .. } | Under::Emptied { id, there: None }, _)) => Some(id),
            _ => None,
        };
        let all = self.in_map.iter().filter(|id| Some(**id) != lost && !(is_late && LEFT_ALONE.contains(*id)));
        let all: Vec<u32> = all.copied().collect();
        (!all.is_empty()).then(|| all[self.numbers.below(all.len() as u64) as usize])
    }

    fn make(&mut self, fault: Fault) {
        let milliseconds = |numbers: &mut Rng, most| Duration::from_millis(numbers.below(most));
        match fault {
            Fault::KillTarget => self.kill_target(),
            Fault::KillServer => self.kill_server(),
            Fault::KillGateway => {
                self.processes.kill(GATEWAY);
                self.story.fault("kill the gateway", "`up` starts it again");
            }
            Fault::KillEveryone => {
                let rest = milliseconds(&mut self.numbers, 3_000);
                self.story.fault("kill everyone", &format!("started again after {rest:?}"));
                self.processes.kill_everyone(rest);
                self.story.say("all are started again");
            }
            Fault::Stop => {
                let Some((id, pid)) = self.any_target().and_then(|id| Some((id, self.processes.pid(id)?))) else {
                    return;
                };
                let rest = Duration::from_millis(300) + milliseconds(&mut self.numbers, 2_000);
                self.story.fault("stop a target for a moment", &format!("target {id} for {rest:?}"));
                signal(pid, "-STOP");
                std::thread::sleep(rest);
                signal(pid, "-CONT");
            }
            Fault::Lose => self.lose(),
            Fault::Join => {
                let id = self.join(None);
                self.joining = Some((id, Instant::now()));
            }
            Fault::Drain => self.drain(),
            Fault::Fill => self.filling.store(true, Ordering::SeqCst),
            Fault::Clean => {
                let most = if self.numbers.chance(1, 3) { 20_000 } else { 300_000 };
                let until = Instant::now() + Duration::from_secs(2) + milliseconds(&mut self.numbers, most);
                self.story.fault("reservoir clean", "");
                self.cleaner = Some((self.processes.cluster().spawn(&["clean"]), until));
            }
        }
    }

    fn kill_target(&mut self) {
        let Some(id) = self.any_target() else { return };
        if self.processes.may_kill(id) && self.processes.kill(id) {
            self.story.fault("kill a target", &format!("target {id}"));
        }
    }

    fn kill_server(&mut self) {
        let Some(status) = self.status.clone() else { return };
        let Some(domain) = self.any_target().and_then(|id| Some(target(&status, id)?["domain"].clone())) else {
            return;
        };
        let late = self.story.seconds() > self.spare_from;
        let all = targets(&status).iter().filter(|target| target["domain"] == domain);
        let all =
            all.map(|target| target["id"].as_u64().unwrap() as u32).filter(|id| !(late && LEFT_ALONE.contains(id)));
        let all: Vec<u32> = all.collect();
        if all.iter().all(|id| self.processes.may_kill(*id)) {
            for id in &all {
                self.processes.kill(*id);
            }
            self.story.fault("kill a server's targets", &format!("{domain}: targets {all:?}"));
        }
    }

    fn lose(&mut self) {
        let Some(id) = self.any_target_but(0.0) else { return };
        self.processes.lose(id);
        self.lost += 1;
        // In turn, unless there are too few targets for one that goes.
        let way = if self.in_map.len() <= FEWEST { self.numbers.below(2) } else { self.lost % 3 };
        let under = match way {
            0 => {
                self.story.fault("lose a target, with --replace", &format!("target {id}"));
                Under::Lost { id, by: Some(self.join(Some(id))) }
            }
            1 => {
                std::thread::sleep(Duration::from_millis(self.numbers.below(8_000)));
                self.processes.put_empty_store(id);
                self.story.fault("lose a target, with --new", &format!("target {id} has an empty store"));
                Under::Emptied { id, there: None }
            }
            _ => {
                self.story.fault("lose a target", &format!("target {id} is gone for good"));
                Under::Lost { id, by: None }
            }
        };
        self.under = Some((under, Instant::now()));
    }

    /// A new target, on the server with the fewest.
    fn join(&mut self, replace: Option<u32>) -> u32 {
        let status = self.status.clone().unwrap_or_default();
        let all = status["targets"].as_array().cloned().unwrap_or_default();
        let count = |domain: &str| {
            all.iter().filter(|t| t["domain"] == *domain && replace.is_none_or(|id| t["id"] != id)).count()
        };
        let domains = (1..=SERVERS).map(|server| format!("server-{server}"));
        let domain = domains.min_by_key(|domain| count(domain)).unwrap();
        let id = self.processes.join(&domain, replace);
        self.story.fault("join a target", &format!("target {id} on {domain}"));
        id
    }

    fn drain(&mut self) {
        let Some(id) = self.any_target_but(0.0) else { return };
        let drained = self.processes.cluster().try_run(&["cluster", "drain", &id.to_string()], b"");
        if drained.status.success() {
            self.story.fault("drain and remove a target", &format!("target {id}"));
            self.under = Some((Under::Draining { id }, Instant::now()));
        } else {
            self.story.say(&format!("drain: {}", String::from_utf8_lossy(&drained.stderr).trim_end()));
        }
    }
}

impl Drop for Faults<'_> {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.cleaner.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
