//! The keys of the product's own machines.

use erasure::Code;
use paper::Protocol;
use protocol::config::{Config, GetChoice};
use protocol::time::Span;
use protocol::transport::{Selection, Transport};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::super::setup::profile::{Crashes, Profile, per_datagram};
use super::super::setup::repair::{Loss, Lost};
use super::super::setup::{Costs, Cpu, DiskTimes};
use super::{File, ProtocolName, Time, Wrong, within};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProfileName {
    /// The papers' machines on the papers' network.
    #[default]
    Paper,
    /// The machines that the daemons run, on a network as it is.
    Product,
}

/// Which holder serves a get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GetChoiceName {
    #[default]
    First,
    Best,
}

/// A code, written `4+2`.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeName(pub(super) Code);

impl<'de> Deserialize<'de> for CodeName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map(Self).map_err(|error| D::Error::custom(format!("code {name:?}: {error}")))
    }
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum LostName {
    Target,
    Server,
}

impl File {
    /// A run of the product's machines.
    pub(super) fn product(&self) -> Result<Profile, Wrong> {
        let (copies, link, disk) = (self.copies()?, self.link()?, self.disk()?);
        let machines = self.config_of_product(link)?;
        let skew = within("zipf", self.zipf.unwrap_or(0.0), 0.0, 4.0)? * 100.0;
        let code = self.code.map(|CodeName(code)| code);
        if code.is_some() && self.reads_percent.is_some_and(|reads| reads > 0) {
            return Err(("reads_percent", "reads_percent: only puts are simulated with a code".to_owned()));
        }
        let aggregators = within("aggregators", self.aggregators.unwrap_or(0), 0, 1_000)?;
        if code.is_none() && aggregators > 0 {
            return Err(("aggregators", "aggregators: say which code they compute, too".to_owned()));
        }
        let of_aggregators = [
            ("aggregator_lanes", self.aggregator_lanes.is_some()),
            ("aggregator_kib", self.aggregator_kib.is_some()),
            ("aggregator_dies", self.aggregator_dies.is_some()),
        ];
        if let Some((key, _)) = of_aggregators.into_iter().find(|(_, given)| *given && aggregators == 0) {
            return Err((key, format!("{key}: say how many aggregators there are, too")));
        }
        Ok(Profile {
            code,
            aggregators,
            lanes: within("aggregator_lanes", self.aggregator_lanes.unwrap_or(4), 1, 64)?,
            aggregator_kib: self.aggregator_kib.map(|time| time.0),
            aggregator_dies: self.aggregator_dies.map(|time| time.0),
            copies,
            link,
            disk,
            trip: self.trip.map_or(Span::from_micros(1), |time| time.0),
            reads: within("reads_percent", self.reads_percent.unwrap_or(0), 0, 100)?,
            objects: within("objects", self.objects.unwrap_or(100_000), 1, 10_000_000)?,
            skew: skew.round() as u32,
            switch_queue: within("switch_queue", self.switch_queue.map_or(1 << 20, |s| s.0), 16 << 10, 1 << 40)?,
            control_first: self.control_first.unwrap_or(false),
            loss_ppm: within("loss_ppm", self.loss_ppm.unwrap_or(0), 0, 500_000)?,
            drift_ppm: within("drift_ppm", self.drift_ppm.unwrap_or(0), 0, 100_000)?,
            wake_jitter: self.wake_jitter.map_or(Span::ZERO, |time| time.0),
            costs: self.costs()?,
            overlap: self.overlap.unwrap_or(machines.transport.selection != Selection::Leader),
            drain: self.drain.map_or(Span::from_millis(500), |time| time.0),
            crashes: self.crashes()?,
            servers: within("servers", self.servers.unwrap_or(0), 0, 65_536)?,
            loss: self.loss()?,
            config: machines,
        })
    }

    /// What is chosen with the protocol where the scenario does not say it, in words. Two leaders that share members refuse
    /// each other's windows.
    pub(super) fn chosen(&self) -> Option<&'static str> {
        let is_led = self.protocol.unwrap_or_default().product == Some(Transport::LEADER);
        (is_led && self.overlap.is_none()).then_some(
            "groups share no targets, because protocol = \"leader\" and the scenario does not say otherwise (overlap)",
        )
    }

    fn crashes(&self) -> Result<Option<Crashes>, Wrong> {
        let Some(Time(every)) = self.crash_every else {
            return match self.crash_down {
                Some(_) => Err(("crash_down", "crash_down: say crash_every, too".to_owned())),
                None => Ok(None),
            };
        };
        if every < Span::from_micros(1) {
            return Err(("crash_every", "crash_every: at least 1us is possible".to_owned()));
        }
        Ok(Some(Crashes { every, down: self.crash_down.map_or(Span::from_millis(100), |time| time.0) }))
    }

    fn loss(&self) -> Result<Option<Loss>, Wrong> {
        let Some(what) = self.lose else {
            let of_loss = [("lose_at", self.lose_at.is_some()), ("lost_chunks", self.lost_chunks.is_some())];
            let given = of_loss.into_iter().find(|(_, given)| *given);
            return given.map_or(Ok(None), |(key, _)| Err((key, format!("{key}: say what to lose, too"))));
        };
        Ok(Some(Loss {
            what: match what {
                LostName::Target => Lost::Target,
                LostName::Server => Lost::Server,
            },
            at: self.lose_at.map_or(Span::ZERO, |time| time.0),
            chunks: within("lost_chunks", self.lost_chunks.unwrap_or(1_000), 1, 10_000_000)?,
        }))
    }

    pub(super) fn costs(&self) -> Result<Costs, Wrong> {
        let cpu = Cpu {
            message: self.cpu_message.map_or(Span::ZERO, |time| time.0),
            kib: self.cpu_kib.map_or(Span::ZERO, |time| time.0),
            hash: within("hash_mb_per_s", self.hash_mb_per_s.unwrap_or(0), 0, 1_000_000)? << 20,
        };
        let disk = DiskTimes {
            operation: self.disk_operation.map_or(Span::ZERO, |time| time.0),
            sync: self.disk_sync.map_or(Span::ZERO, |time| time.0),
            hash_ahead: self.hash_ahead.unwrap_or(true),
        };
        Ok(Costs { cpu, disk })
    }

    /// Whether the protocol is one of the papers' machines that may have the product's costs.
    pub(super) fn is_unicast(&self) -> bool {
        let ProtocolName { paper, product } = self.protocol.unwrap_or_default();
        product.is_none() && paper.is_some_and(|paper| paper != Protocol::UchAimd)
    }

    fn config_of_product(&self, link: u64) -> Result<Config, Wrong> {
        let transport = self.protocol.unwrap_or_default().product.ok_or_else(|| {
            let why =
                "protocol: with profile = \"product\", `hash`, `replicast-m`, `replicast-h`, `leader`, or a rival";
            ("protocol", why.to_owned())
        })?;
        let mtu = within("frame", self.frame.unwrap_or(9_000), 576, 65_000)?;
        let percent = within("data_percent", self.data_percent.unwrap_or(100), 1, 100)?;
        let rate = Profile::payload_rate(link, per_datagram(mtu));
        let plain = Config::of_link(rate / 100 * percent);
        let stretch = |given: u16| -> Result<u16, Wrong> {
            within("stretch_percent", self.stretch_percent.unwrap_or(u64::from(given)), 100, 2_000).map(|s| s as u16)
        };
        Ok(Config {
            transport,
            per_datagram: per_datagram(mtu),
            receive_buffer: self.receive_buffer.map_or(plain.receive_buffer, |size| size.0),
            guard: self.guard.map_or(plain.guard, |time| time.0),
            tentative: self.tentative.map_or(plain.tentative, |time| time.0),
            late: self.late.map_or(plain.late, |time| time.0),
            stretch_m: stretch(plain.stretch_m)?,
            stretch_h: stretch(plain.stretch_h)?,
            lead_gets: self.lead_gets.unwrap_or(plain.lead_gets),
            get_choice: match self.get_choice.unwrap_or_default() {
                GetChoiceName::First => GetChoice::FirstGood,
                GetChoiceName::Best => GetChoice::Best,
            },
            remember: self.remember.unwrap_or(plain.remember),
            hedge_percent: within("hedge_percent", self.hedge_percent.unwrap_or(0), 0, 100)?,
            scrub_interval: Span::ZERO,
            census_interval: self.census_interval.map_or(plain.census_interval, |time| time.0),
            choosy: self.choosy()?,
            ..plain
        })
    }

    /// No key is taken that the profile makes nothing of.
    pub(super) fn check_profile(&self, profile: ProfileName) -> Result<(), Wrong> {
        let product = [
            ("reads_percent", self.reads_percent.is_some()),
            ("objects", self.objects.is_some()),
            ("zipf", self.zipf.is_some()),
            ("switch_queue", self.switch_queue.is_some()),
            ("control_first", self.control_first.is_some()),
            ("loss_ppm", self.loss_ppm.is_some()),
            ("drift_ppm", self.drift_ppm.is_some()),
            ("wake_jitter", self.wake_jitter.is_some()),
            ("cpu_message", self.cpu_message.is_some()),
            ("cpu_kib", self.cpu_kib.is_some()),
            ("hash_mb_per_s", self.hash_mb_per_s.is_some()),
            ("hash_ahead", self.hash_ahead.is_some()),
            ("disk_operation", self.disk_operation.is_some()),
            ("disk_sync", self.disk_sync.is_some()),
            ("receive_buffer", self.receive_buffer.is_some()),
            ("tentative", self.tentative.is_some()),
            ("late", self.late.is_some()),
            ("lead_gets", self.lead_gets.is_some()),
            ("drain", self.drain.is_some()),
            ("get_choice", self.get_choice.is_some()),
            ("remember", self.remember.is_some()),
            ("hedge_percent", self.hedge_percent.is_some()),
            ("crash_every", self.crash_every.is_some()),
            ("crash_down", self.crash_down.is_some()),
            ("servers", self.servers.is_some()),
            ("lose", self.lose.is_some()),
            ("lose_at", self.lose_at.is_some()),
            ("lost_chunks", self.lost_chunks.is_some()),
            ("census_interval", self.census_interval.is_some()),
            ("code", self.code.is_some()),
            ("aggregators", self.aggregators.is_some()),
            ("aggregator_lanes", self.aggregator_lanes.is_some()),
            ("aggregator_kib", self.aggregator_kib.is_some()),
            ("aggregator_dies", self.aggregator_dies.is_some()),
        ];
        let paper = [
            ("disk_queue", self.disk_queue.is_some()),
            ("control_bytes", self.control_bytes.is_some()),
            ("placement", self.placement.is_some()),
            ("choice", self.choice.is_some()),
            ("widen_idle", self.widen_idle.is_some()),
            ("least_backlog", self.least_backlog.is_some()),
            ("double_booking", self.double_booking.is_some()),
            ("quirks", self.quirks.is_some()),
        ];
        let (wrong, other): (&[(&'static str, bool)], &str) = match profile {
            ProfileName::Product => (&paper, "paper"),
            ProfileName::Paper => (&product, "product"),
        };
        match wrong.iter().find(|(_, given)| *given) {
            Some((key, _)) => Err((key, format!("{key} is for profile = \"{other}\" only"))),
            None => Ok(()),
        }
    }
}
