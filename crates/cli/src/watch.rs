//! Watches how the cluster is: which chunks have too few copies, how fast they are made again, and what happened when.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use node::Client;
use protocol::id::{Epoch, GroupId, NodeId};
use protocol::initiator::TargetState;
use protocol::map::ClusterMap;
use protocol::overview::Overview;
use protocol::wire::HealthReport;

use crate::api::{DownInfo, Happened, HealthInfo};
use crate::background::{self, Background};

/// How long the cluster is not looked at after a look, so that what is down is known within 5 s, and how much longer for each target:
/// each of them answers.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_FOR_EACH: Duration = Duration::from_micros(100);
/// Over how much time a rate is the mean.
const WINDOW: Duration = Duration::from_secs(20);
/// Events that are kept.
const KEPT: usize = 100;
/// Bytes of the file that are read at a start: those of more events than are kept.
const TAIL: u64 = 64 << 10;
/// Bytes of the file from which on it is begun anew, and the one before kept.
const LONGEST: u64 = 4 << 20;

/// What it means that a switch is silent.
pub(crate) const WITHOUT_SWITCH: &str = "others, or the gateways themselves, compute and send the parity";

/// Says who is down, by the map, what targets report, who of them does not answer, and how the cluster is. It may ask for more.
pub(crate) type Judge =
    Box<dyn FnMut(&ClusterMap, &[(NodeId, HealthReport)], &[NodeId], &HealthInfo) -> DownInfo + Send>;

/// What was seen so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// What each target has made since it was started, chunks and bytes.
    made: BTreeMap<NodeId, [u64; 2]>,
    /// What all have made since this began, and when that was so.
    samples: VecDeque<(Instant, [u64; 2])>,
    silent: BTreeSet<u32>,
    /// Switches that do not answer.
    silent_switches: BTreeSet<u32>,
    /// Whether all was whole; not known at first.
    whole: Option<bool>,
    last: Option<HealthInfo>,
    down: DownInfo,
    epoch: Option<u32>,
    history: VecDeque<Happened>,
    file: Option<PathBuf>,
}

/// Watches a cluster from now on. What happens is also kept in a file, for later starts.
pub(crate) fn start(watch: Watch, client: &Client, file: PathBuf, mut judge: Judge) -> anyhow::Result<Background> {
    {
        let mut seen = watch.seen();
        match read(&file) {
            Ok(history) => seen.history = history,
            Err(error) => {
                tracing::warn!("what happened before is not known: {} cannot be read: {error}", file.display())
            }
        }
        seen.file = Some(file);
    }
    let client = client.clone();
    background::start("watch", move |pauses| {
        while pauses.rest(PAUSE + PAUSE_FOR_EACH * client.map().targets().count() as u32) {
            // Both at once: each waits for those that are silent.
            let (states, switches, reports) = (client.ping(), client.ping_switches(), client.health());
            let Ok(states) = states.wait() else { return };
            let Ok(switches) = switches.wait() else { return };
            let Ok(reports) = reports.wait() else { return };
            let (Ok(states), Ok(switches), Ok(reports)) = (states, switches, reports) else { continue };
            let map = client.map();
            let unanswered = silent(&states);
            watch.seen().look_at_switches(silent(&switches).into_iter().map(|switch| switch.0).collect());
            let silent: BTreeSet<u32> = unanswered.iter().map(|target| target.0).collect();
            let health = summary(map.epoch, map.group_ids(), &reports, !silent.is_empty());
            let targets = map.targets().map(|target| target.id.0).collect();
            watch.seen().look(Instant::now(), map.epoch.0, &targets, silent, &reports, &health);
            let down = judge(&map, &reports, &unanswered, &health);
            watch.seen().look_at_down(down);
        }
    })
}

/// Those of them that did not answer.
fn silent(states: &[TargetState]) -> Vec<NodeId> {
    states.iter().filter(|state| state.answer.is_none()).map(|state| state.target).collect()
}

impl Watch {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the cluster is by these reports, with the rate of the last moments.
    pub(crate) fn health(&self, map: &ClusterMap, reports: &[(NodeId, HealthReport)], is_silent: bool) -> HealthInfo {
        self.seen().with_rates(summary(map.epoch, map.group_ids(), reports, is_silent))
    }

    /// How the cluster was when it was looked at last, and how many targets were silent, and switches.
    pub(crate) fn last(&self) -> Option<(HealthInfo, u64, u64)> {
        let seen = self.seen();
        let silent = (seen.silent.len() as u64, seen.silent_switches.len() as u64);
        Some((seen.with_rates(seen.last.clone()?), silent.0, silent.1))
    }

    /// Those that are down.
    pub(crate) fn down(&self) -> DownInfo {
        self.seen().down.clone()
    }

    /// The last events, oldest first.
    pub(crate) fn history(&self) -> Vec<Happened> {
        self.seen().history.iter().cloned().collect()
    }
}

impl Seen {
    fn look(
        &mut self,
        now: Instant,
        epoch: u32,
        targets: &BTreeSet<u32>,
        silent: BTreeSet<u32>,
        reports: &[(NodeId, HealthReport)],
        health: &HealthInfo,
    ) {
        let mut total = self.samples.back().map_or([0; 2], |(_, total)| *total);
        for (target, report) in reports {
            let made = [report.restored, report.restored_bytes];
            let before = self.made.insert(*target, made).unwrap_or(made);
            // A target that was started again counts from 0.
            for n in 0..2 {
                total[n] += made[n].checked_sub(before[n]).unwrap_or(made[n]);
            }
        }
        self.samples.push_back((now, total));
        while self.samples.len() > 2 && now.duration_since(self.samples[0].0) > WINDOW {
            self.samples.pop_front();
        }
        for target in silent.difference(&self.silent).copied().collect::<Vec<_>>() {
            self.note(format!("target {target} is silent"));
        }
        for target in self.silent.difference(&silent).copied().collect::<Vec<_>>() {
            let how = if targets.contains(&target) { "answers again" } else { "is out of the cluster map" };
            self.note(format!("target {target} {how}"));
        }
        self.silent = silent;
        self.last = Some(health.clone());
        if let Some(before) = self.epoch.replace(epoch).filter(|before| *before != epoch) {
            self.note(format!("the cluster map is that of epoch {epoch}, after {before}"));
        }
        let is_bad = health.at_risk > 0 || health.strayed > 0;
        match self.whole {
            None | Some(true) if is_bad => {
                self.whole = Some(false);
                self.note(health.at_risk_text());
            }
            Some(false) if health.whole => {
                self.whole = Some(true);
                self.note("whole again: every chunk has all its copies".to_owned());
            }
            None if health.whole => self.whole = Some(true),
            _ => {}
        }
    }

    fn look_at_switches(&mut self, silent: BTreeSet<u32>) {
        let gone: Vec<u32> = silent.difference(&self.silent_switches).copied().collect();
        let back: Vec<u32> = self.silent_switches.difference(&silent).copied().collect();
        gone.iter().for_each(|switch| self.note(format!("switch {switch} is silent: {WITHOUT_SWITCH}")));
        back.iter().for_each(|switch| self.note(format!("switch {switch} answers again, or left the map")));
        self.silent_switches = silent;
    }

    fn look_at_down(&mut self, down: DownInfo) {
        for target in
            down.targets.keys().filter(|target| !self.down.targets.contains_key(*target)).cloned().collect::<Vec<_>>()
        {
            self.note(format!("target {target} is down, as others say, too"));
        }
        if let Some(held) = down.held.as_ref().filter(|held| self.down.held.as_ref() != Some(*held)).cloned() {
            self.note(held);
        }
        self.down = down;
    }

    /// The same, with the rate of the last moments, and how long the rest takes at that.
    fn with_rates(&self, mut health: HealthInfo) -> HealthInfo {
        let [chunks, bytes] = self.rates();
        health.restored_chunks_per_second = chunks;
        health.restored_bytes_per_second = bytes;
        let open = health.at_risk + health.strayed;
        // What is rounded to 0 chunks a second says nothing of how long it takes.
        health.seconds_left = (open > 0 && chunks >= 0.5).then(|| (open as f64 / chunks).ceil() as u64);
        health
    }

    /// Chunks and bytes made in a second. The time before anything was made says nothing of how fast that is.
    fn rates(&self) -> [f64; 2] {
        let first = self.samples.front().map(|(_, made)| *made);
        let idle = self.samples.iter().take_while(|(_, made)| Some(*made) == first);
        let (Some((from, before)), Some((to, after))) = (idle.last(), self.samples.back()) else {
            return [0.0; 2];
        };
        let seconds = to.duration_since(*from).as_secs_f64();
        if seconds == 0.0 {
            return [0.0; 2];
        }
        [0, 1].map(|n| (after[n] - before[n]) as f64 / seconds)
    }

    fn note(&mut self, what: String) {
        tracing::info!("{what}");
        let happened = Happened { at: Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), what };
        if let Some(file) = &self.file
            && let Err(error) = append(file, &happened)
        {
            tracing::warn!("what happened cannot be written to {}: {error}", file.display());
        }
        if self.history.len() == KEPT {
            self.history.pop_front();
        }
        self.history.push_back(happened);
    }
}

/// What all stewards say of their groups.
fn summary(
    epoch: Epoch,
    groups: impl Iterator<Item = GroupId>,
    reports: &[(NodeId, HealthReport)],
    is_silent: bool,
) -> HealthInfo {
    let Overview { lacks, unknown_groups, whole } = Overview::of(epoch, groups, reports, is_silent);
    let sum = |of: fn(&HealthReport) -> u64| reports.iter().map(|(_, report)| of(report)).sum();
    let nowhere = || reports.iter().filter_map(|(_, report)| report.nowhere.as_ref());
    let counted = (1_u32..).zip(lacks.at_risk).filter(|(_, chunks)| *chunks > 0);
    HealthInfo {
        at_risk: lacks.at_risk(),
        whole,
        at_risk_by_copies: counted.map(|(copies, chunks)| (copies.to_string(), u64::from(chunks))).collect(),
        strayed: u64::from(lacks.strayed),
        sought: nowhere().map(|nowhere| u64::from(nowhere.sought)).sum(),
        sought_on: nowhere().flat_map(|nowhere| &nowhere.silent).map(|id| id.0).collect(),
        nowhere: nowhere().map(|nowhere| u64::from(nowhere.lost)).sum(),
        unknown_groups: unknown_groups as u64,
        restoring: sum(|report| u64::from(report.restoring)),
        restored_chunks: sum(|report| report.restored),
        restored_bytes: sum(|report| report.restored_bytes),
        moving: sum(|report| u64::from(report.moving)),
        moved_chunks: sum(|report| report.moved),
        moved_bytes: sum(|report| report.moved_bytes),
        ..HealthInfo::default()
    }
}

fn append(path: &Path, happened: &Happened) -> io::Result<()> {
    if path.metadata().is_ok_and(|file| file.len() > LONGEST) {
        std::fs::rename(path, path.with_extension("history.1"))?;
    }
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{}\n", serde_json::to_string(happened)?).as_bytes())
}

/// The last events of a file; none where there is no file. Lines that are none are left out: a crash may have cut one off.
fn read(path: &Path) -> io::Result<VecDeque<Happened>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(VecDeque::new()),
        file => file?,
    };
    file.seek(SeekFrom::Start(file.metadata()?.len().saturating_sub(TAIL)))?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut events: VecDeque<Happened> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    while events.len() > KEPT {
        events.pop_front();
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use protocol::health::{Health, Lacks};

    use super::*;

    fn report(group: u32, at_risk: u32, whole: bool, restored: u64) -> HealthReport {
        let mut lacks = Lacks::default();
        lacks.at_risk[1] = at_risk;
        let groups = vec![(GroupId(group), Health { lacks, whole })];
        HealthReport { groups, restored, restored_bytes: restored * 1_000, ..HealthReport::of(Epoch(1)) }
    }

    fn groups() -> impl Iterator<Item = GroupId> {
        [GroupId(0), GroupId(1)].into_iter()
    }

    #[test]
    fn a_cluster_is_whole_when_all_groups_are_known_to_be() {
        let [one, other] = [0, 1].map(|group| (NodeId(group + 1), report(group, 0, true, 0)));
        assert!(summary(Epoch(1), groups(), &[one.clone(), other.clone()], false).whole);
        assert!(!summary(Epoch(1), groups(), &[one.clone(), other.clone()], true).whole);
        let health = summary(Epoch(1), groups(), std::slice::from_ref(&one), false);
        assert!(!health.whole && health.unknown_groups == 1);
        let worse = (NodeId(3), report(0, 4, false, 0));
        let health = summary(Epoch(1), groups(), &[worse, one, other], false);
        assert_eq!((health.whole, health.at_risk, health.at_risk_by_copies), (false, 4, [("2".to_owned(), 4)].into()));
    }

    #[test]
    fn what_happened_is_kept_and_the_rate_is_that_of_the_last_moments() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.history");
        let mut seen = Seen { file: Some(path.clone()), ..Seen::default() };
        let begin = Instant::now();
        let mut look = |seconds: u64, silent: &[u32], reports: &[(NodeId, HealthReport)]| {
            let health = summary(Epoch(1), groups(), reports, !silent.is_empty());
            let silent = silent.iter().copied().collect();
            seen.look(begin + Duration::from_secs(seconds), 1, &[1, 2, 3].into(), silent, reports, &health);
            seen.rates()
        };
        let whole = |made| [(NodeId(1), report(0, 0, true, made)), (NodeId(2), report(1, 0, true, 0))];
        look(0, &[], &whole(7));
        look(2, &[3], &[(NodeId(1), report(0, 30, false, 7)), (NodeId(2), report(1, 0, true, 0))]);
        let rates = look(4, &[3], &[(NodeId(1), report(0, 10, false, 27)), (NodeId(2), report(1, 0, true, 0))]);
        assert_eq!(rates, [10.0, 10_000.0]);
        // It was started again.
        let rates = look(10, &[], &whole(10));
        assert_eq!(rates, [3.75, 3_750.0]);
        let what: Vec<&str> = seen.history.iter().map(|event| event.what.as_str()).collect();
        let at_risk = "30 chunks have too few copies (30 in 2 failure domains)";
        assert_eq!(
            what,
            ["target 3 is silent", at_risk, "target 3 answers again", "whole again: every chunk has all its copies"]
        );
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"at\": \"20").unwrap();
        assert_eq!(read(&path).unwrap(), seen.history);
        assert!(read(Path::new("/nowhere/at/all")).unwrap().is_empty());
    }
}
