//! The keys of the papers' machines and the rivals.

use paper::{Choice, Config, Placement, Protocol};
use protocol::wire::TAG;
use serde::Deserialize;

use super::super::setup::profile::{HEADERS, Profile, per_datagram};
use super::super::setup::{Paper, Quirks};
use super::product::ProfileName;
use super::{File, LATE_FRAMES, STAGGERED_START, Wrong, within};

/// Bytes of the longest control message of those that send without windows.
const LONGEST_OF_RIVALS: u64 = 30;

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PlacementName {
    Behind,
    Hole,
    Fit,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ChoiceName {
    Neighbours,
    Any,
    Soonest,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum QuirkName {
    LastHundredth,
    ScheduledWork,
    LateFrames,
    StaggeredStart,
}

impl File {
    /// A run of the papers' machines, on the papers' network, or with the product's costs.
    pub(super) fn paper(&self, profile: ProfileName) -> Result<Paper, Wrong> {
        let protocol = self.protocol.unwrap_or_default().paper.ok_or_else(|| {
            ("protocol", "protocol: `hash` and `leader` are for profile = \"product\" only".to_owned())
        })?;
        let mut config = self.config(protocol)?;
        let mut costs = None;
        if profile == ProfileName::Product {
            if self.reads_percent.unwrap_or(0) > 0 {
                return Err((
                    "reads_percent",
                    "reads_percent: the papers' machines and the rivals only put".to_owned(),
                ));
            }
            self.on_a_real_wire(&mut config)?;
            costs = Some(self.costs()?);
        }
        Ok(Paper { config, costs, quirks: self.quirks() })
    }

    fn config(&self, protocol: Protocol) -> Result<Config, Wrong> {
        let mut config = Config::paper(protocol, self.disk()?);
        config.copies = self.copies()?;
        config.link = self.link()?;
        let least = if protocol.negotiates() { (1, 99) } else { (100, 100) };
        let percent = self.data_percent.unwrap_or(config.data_percent);
        config.data_percent = within("data_percent", percent, least.0, least.1)?;
        config.frame = within("frame", self.frame.unwrap_or(config.frame), 64, 8 << 20)?;
        config.trip = self.trip.map_or(config.trip, |time| time.0);
        config.control = within("control_bytes", self.control_bytes.unwrap_or(config.control), 1, 9_000)?;
        let queue = self.disk_queue.map_or(u64::from(config.disk_queue), |size| size.0);
        config.disk_queue = within("disk_queue", queue, 1, u64::from(u32::MAX))? as u32;
        config.stretch = within("stretch_percent", self.stretch_percent.unwrap_or(config.stretch), 100, 2_000)?;
        if let Some(placement) = self.placement {
            config.placement = match placement {
                PlacementName::Behind => Placement::Behind,
                PlacementName::Hole => Placement::Hole,
                PlacementName::Fit => Placement::Fit,
            };
        }
        if let Some(choice) = self.choice {
            config.choice = match choice {
                ChoiceName::Neighbours => Choice::Neighbours,
                ChoiceName::Any => Choice::Any,
                ChoiceName::Soonest => Choice::Soonest,
            };
        }
        config.guard = self.guard.map(|time| time.0);
        config.widen_idle = self.widen_idle.unwrap_or(config.widen_idle);
        config.least_backlog = self.least_backlog.unwrap_or(config.least_backlog);
        config.overlap = self.overlap.unwrap_or(config.overlap);
        config.choosy = self.choosy()?;
        config.double_booking = self.double_booking.unwrap_or(false);
        if config.double_booking && (protocol != Protocol::ReplicastH || config.placement != Placement::Hole) {
            let why = "double_booking is for `replicast-h` with placement = \"hole\"";
            return Err(("double_booking", why.to_owned()));
        }
        Ok(config)
    }

    /// What those that send by unicast have where the scenario asks for the product's costs: payload has the wire less the
    /// headers, control weighs its encoding with tag and headers, any member of the overlapping groups may be chosen, and
    /// nobody is held back for a disk's queue.
    fn on_a_real_wire(&self, config: &mut Config) -> Result<(), Wrong> {
        let full = per_datagram(within("frame", self.frame.unwrap_or(9_000), 576, 65_000)?);
        config.frame = full as u32;
        config.link = Profile::payload_rate(config.link, full) * 8;
        config.control = (LONGEST_OF_RIVALS + TAG as u64 + HEADERS) as u32;
        config.disk_queue = u32::MAX;
        config.overlap = true;
        Ok(())
    }

    fn quirks(&self) -> Quirks {
        let mut quirks = Quirks::default();
        for quirk in self.quirks.iter().flatten() {
            match quirk {
                QuirkName::LastHundredth => quirks.last_hundredth = true,
                QuirkName::ScheduledWork => quirks.scheduled_work = true,
                QuirkName::LateFrames => quirks.late_frames = LATE_FRAMES,
                QuirkName::StaggeredStart => quirks.staggered_start = STAGGERED_START,
            }
        }
        quirks
    }
}
