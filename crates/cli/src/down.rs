//! Targets that are down, and are taken out of the cluster map when they stay so; and the layout before, which goes when nothing is
//! left where only that has it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use node::ClusterConfig;
use protocol::detector::{Detector, Held, Rules, Testimony, Verdict};
use protocol::id::{Epoch, NodeId};
use protocol::map::ClusterMap;
use protocol::redundancy::Redundancy;
use protocol::take_out::{self, Seen, Stays};
use protocol::time::Span;
use protocol::wire::HealthReport;

use crate::api::{DownInfo, HealthInfo};
use crate::authority::{self, Decided, MapAuthority};
use crate::change::{self, Change, Stored};
use crate::gateway::Cluster;

/// For how long every chunk was whole by the map in use before it forgets the layout before: longer than a put may take that began
/// under that.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// What a gateway knows of them.
pub(crate) struct Down {
    cluster: Arc<dyn Cluster>,
    authority: Arc<dyn MapAuthority>,
    classes: BTreeMap<String, Redundancy>,
    detector: Detector,
    began: Instant,
    /// The map by which all was where it belongs, when that was seen last.
    settled: Option<Epoch>,
    /// What speaks against taking anybody out.
    seen: Seen,
    /// Since when it is so by the map in use, all the time.
    whole_since: Option<(Epoch, Instant)>,
}

impl Down {
    /// For the cluster whose maps `authority` decides, and whose objects may be of these storage classes.
    pub(crate) fn new(
        cluster: Arc<dyn Cluster>,
        authority: Arc<dyn MapAuthority>,
        classes: BTreeMap<String, Redundancy>,
    ) -> Self {
        // Each look says after how long targets are taken out.
        let (detector, began) = (Detector::new(Rules::new(Span::ZERO)), Instant::now());
        Self { cluster, authority, classes, detector, began, settled: None, seen: Seen::default(), whole_since: None }
    }

    /// Looks at what targets say of each other, and takes out those that were down for as long as the map in use says (`out_after`).
    pub(crate) fn look(
        &mut self,
        (map, out_after): (&ClusterMap, Duration),
        reports: &[(NodeId, HealthReport)],
        unanswered: &[NodeId],
        health: &HealthInfo,
    ) -> DownInfo {
        if health.whole {
            self.settled = Some(map.epoch);
        }
        self.seen.look(map, reports);
        self.forget_previous_in_time(map, health.whole);
        let testimonies: Vec<Testimony> =
            reports.iter().map(|(witness, report)| Testimony::of(*witness, report)).collect();
        let since_start = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = protocol::time::Instant::from_nanos(since_start);
        self.detector.set_rules(Rules::new(Span::from_nanos(u64::try_from(out_after.as_nanos()).unwrap_or(u64::MAX))));
        let Verdict { down, left, out, held } = self.detector.look(now, map, &testimonies, unanswered);
        let held = match held {
            Some(Held::Domains(domains)) => Some(format!(
                "nobody is taken out of the cluster map: targets of {domains} failure domains fell silent together, as when a switch or \
                 the power fails; mend that, or remove those that are lost with `reservoir cluster remove`"
            )),
            Some(Held::Many(count)) => Some(format!(
                "nobody is taken out of the cluster map: {count} of {} targets are down; start them, or remove those that are lost \
                 with `reservoir cluster remove`",
                map.targets().count()
            )),
            None if out.is_empty() => None,
            None => self.take_out(&out).err().map(|error| {
                let out: Vec<String> = out.iter().map(|id| id.0.to_string()).collect();
                format!("target {} stays in the cluster map: {error:#}", out.join(", "))
            }),
        };
        let seconds = |spans: BTreeMap<NodeId, Span>| {
            spans.into_iter().map(|(id, span)| (id.0.to_string(), span.as_nanos() / 1_000_000_000)).collect()
        };
        DownInfo { targets: seconds(down), out_in_seconds: seconds(left), out_after_seconds: out_after.as_secs(), held }
    }

    /// Has a map decided that does not lead to the layout before, when all was where the map has it for long enough.
    fn forget_previous_in_time(&mut self, map: &ClusterMap, whole: bool) {
        let since = self.whole_since.filter(|(epoch, _)| *epoch == map.epoch).map_or_else(Instant::now, |(_, at)| at);
        self.whole_since = whole.then_some((map.epoch, since));
        if !whole || map.previous().is_none() || since.elapsed() < FORGET_AFTER {
            return;
        }
        // Whatever comes of it, the next attempt has time.
        self.whole_since = None;
        match self.forget_previous(map.epoch) {
            Ok(true) => {
                tracing::info!("nothing is left where only the layout before has it: the cluster map forgets that")
            }
            Ok(false) => {}
            Err(error) => tracing::warn!("the cluster map goes on to carry the layout before: {error:#}"),
        }
    }

    /// Whether that was decided now; it may have been already, or another map.
    fn forget_previous(&self, epoch: Epoch) -> anyhow::Result<bool> {
        let is_the_one = |present: &ClusterConfig| present.epoch == epoch.0 && present.previous.is_some();
        let make = |present: &ClusterConfig| is_the_one(present).then(|| change::without_previous(present)).transpose();
        Ok(authority::decide(&*self.authority, 1, make)? == Decided::Changed)
    }

    /// Has a map decided without these targets. What is in the way may be gone at the next look.
    fn take_out(&self, out: &[NodeId]) -> anyhow::Result<()> {
        // Where another changes the map just now, it is looked at anew a moment later.
        match authority::decide(&*self.authority, 1, |present| self.without(present, out))? {
            // Where there is nothing to change, that is decided, and comes to this gateway in a moment.
            Decided::Changed | Decided::Nothing => Ok(()),
            Decided::Outrun => bail!("the cluster map was changed by somebody else just now"),
        }
    }

    /// The map without these targets, if it has them and may be without.
    fn without(&self, present: &ClusterConfig, out: &[NodeId]) -> anyhow::Result<Option<ClusterConfig>> {
        let is_there = |id: &u32| present.targets.iter().any(|target| target.id == *id);
        let remove: Vec<u32> = out.iter().map(|id| id.0).filter(is_there).collect();
        if remove.is_empty() {
            return Ok(None);
        }
        let status = self.cluster.status()?;
        ensure!(status.epoch == present.epoch, "the cluster map was changed a moment ago");
        let stored = Stored::of(&status)?;
        let gone: Vec<NodeId> = remove.iter().copied().map(NodeId).collect();
        let rules = change::Rules { stored: &stored, classes: &self.classes, drop_copies: false };
        let (next, plan) = change::next(present, &Change { remove, ..Change::default() }, &rules)?;
        let ways = self.classes.values().copied();
        match take_out::check(&present.map()?, &gone, &plan, ways, self.settled, &self.seen) {
            Ok(()) => Ok(Some(next)),
            // While it is silent, its groups do not become whole, and nobody finds what it may have.
            Err(stays @ (Stays::Earlier(_) | Stays::Sought(_))) => {
                bail!("{stays}; start it, or remove it with `reservoir cluster remove` if it is lost")
            }
            Err(stays @ Stays::Unheard(_)) => bail!("{stays}: start them, or remove those that are lost"),
            Err(stays) => bail!("{stays}"),
        }
    }
}
