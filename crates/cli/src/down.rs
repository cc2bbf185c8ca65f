//! Targets that are down, and are taken out of the cluster map when they stay so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use node::ClusterConfig;
use protocol::detector::{Detector, Held, Rules, Testimony, Verdict};
use protocol::id::{Epoch, NodeId};
use protocol::map::ClusterMap;
use protocol::redundancy::Redundancy;
use protocol::take_out;
use protocol::time::Span;
use protocol::wire::HealthReport;

use crate::api::{DownInfo, HealthInfo};
use crate::authority::{self, Decided, MapAuthority};
use crate::change::{self, Change, Stored};
use crate::gateway::Cluster;

/// What a gateway knows of them.
pub(crate) struct Down {
    cluster: Arc<dyn Cluster>,
    authority: Arc<dyn MapAuthority>,
    classes: BTreeMap<String, Redundancy>,
    out_after: Duration,
    detector: Detector,
    began: Instant,
    /// The map by which all was where it belongs, when that was seen last.
    settled: Option<Epoch>,
}

impl Down {
    /// For the cluster whose maps `authority` decides, and whose objects may be of these storage classes.
    pub(crate) fn new(
        cluster: Arc<dyn Cluster>,
        authority: Arc<dyn MapAuthority>,
        classes: BTreeMap<String, Redundancy>,
        out_after: Duration,
    ) -> Self {
        let rules = Rules::new(Span::from_nanos(u64::try_from(out_after.as_nanos()).unwrap_or(u64::MAX)));
        let (detector, began) = (Detector::new(rules), Instant::now());
        Self { cluster, authority, classes, out_after, detector, began, settled: None }
    }

    /// Looks at what targets say of each other, and takes out who was down for long enough.
    pub(crate) fn look(
        &mut self,
        map: &ClusterMap,
        reports: &[(NodeId, HealthReport)],
        unanswered: &[NodeId],
        health: &HealthInfo,
    ) -> DownInfo {
        if health.whole {
            self.settled = Some(map.epoch);
        }
        let said: Vec<Testimony> = reports.iter().map(|(witness, report)| Testimony::of(*witness, report)).collect();
        let since_start = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = protocol::time::Instant::from_nanos(since_start);
        let Verdict { down, out, held } = self.detector.look(now, map, &said, unanswered);
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
        let seconds = |span: Span| span.as_nanos() / 1_000_000_000;
        DownInfo {
            targets: down.into_iter().map(|(id, span)| (id.0.to_string(), seconds(span))).collect(),
            out_after_seconds: self.out_after.as_secs(),
            held,
        }
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
        if let Err(stays) = take_out::check(&present.map()?, &gone, &plan, ways, self.settled) {
            bail!("{stays}");
        }
        Ok(Some(next))
    }
}
