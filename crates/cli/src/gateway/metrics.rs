//! What the gateway counts.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::watch::Watch;

/// The gateway's counters.
pub(crate) struct Metrics {
    registry: Registry,
}

/// What the S3 API does and refuses.
pub(crate) type S3Counts = Box<dyn Fn() -> s3::Counts + Send + Sync>;

struct S3(S3Counts);

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").finish_non_exhaustive()
    }
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let value = ConstGauge::new(value as i64);
    value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

impl Collector for S3 {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = (self.0)();
        let help = "What S3 refused, or ended, by reason";
        let mut refused = encoder.encode_descriptor("s3_refused", help, None, MetricType::Counter)?;
        for (reason, count) in counts.refused {
            ConstCounter::new(count).encode(refused.encode_family(&[("reason", reason)])?)?;
        }
        let mut gauge = |name, help, value: usize| gauge(&mut encoder, name, help, value as u64);
        gauge("s3_working", "Requests that work on the bytes of objects", counts.working)?;
        gauge("s3_strangers", "Connections on which nobody has shown that they may ask", counts.strangers)
    }
}

/// How the cluster's data is.
#[derive(Debug)]
struct Data(Watch);

impl Collector for Data {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Nothing is said of what is not known yet.
        let Some((health, silent, switches)) = self.0.last() else { return Ok(()) };
        let mut gauge = |name, help, value| gauge(&mut encoder, name, help, value);
        gauge("at_risk_chunks", "Chunks that have fewer copies than are wanted", health.at_risk)?;
        let last = health.at_risk_by_copies.get("1").copied().unwrap_or(0);
        gauge("last_copy_chunks", "Chunks of which one copy is left, and more are wanted", last)?;
        gauge(
            "strayed_chunks",
            "Chunks that have enough copies, of which some are outside of their group",
            health.strayed,
        )?;
        gauge("sought_chunks", "Chunks that were damaged, and may be on a silent target only", health.sought)?;
        gauge("nowhere_chunks", "Chunks that were damaged, and are on no target", health.nowhere)?;
        gauge("unknown_groups", "Groups of which nobody says whether chunks lack copies", health.unknown_groups)?;
        gauge("restoring_chunks", "Chunks that are being put again", health.restoring)?;
        gauge("moving_chunks", "Chunks that are being put on emptier targets", health.moving)?;
        gauge("restored_chunks", "Chunks put again since targets were started", health.restored_chunks)?;
        gauge("restored_bytes", "Bytes put again since targets were started", health.restored_bytes)?;
        let rate = health.restored_bytes_per_second as u64;
        gauge("restored_bytes_per_second", "Bytes put again in a second, lately", rate)?;
        if let Some(seconds) = health.seconds_left {
            gauge("seconds_left", "How long it takes at that rate until no chunk lacks copies", seconds)?;
        }
        gauge("moved_chunks", "Chunks put on emptier targets since targets were started", health.moved_chunks)?;
        gauge("moved_bytes", "Bytes put on emptier targets since targets were started", health.moved_bytes)?;
        gauge("whole", "1 when every chunk is known to have all its copies", health.whole.into())?;
        gauge("silent_targets", "Targets that do not answer", silent)?;
        gauge("silent_switches", "Switches that do not answer: writers do their work", switches)?;
        let down = self.0.down();
        gauge("down_targets", "Targets that are down, as others say, too", down.targets.len() as u64)?;
        gauge(
            "take_out_held",
            "1 while a target that is down stays in the map until a person decides",
            down.held.is_some().into(),
        )
    }
}

impl Metrics {
    /// Those of the cluster's data, and of S3, where there is an S3 endpoint.
    pub(crate) fn new(watch: Watch, s3: Option<S3Counts>) -> Self {
        let mut registry = Registry::with_prefix("reservoir_gateway");
        registry.register_collector(Box::new(Data(watch)));
        if let Some(s3) = s3 {
            registry.register_collector(Box::new(S3(s3)));
        }
        Self { registry }
    }

    /// All of it in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        match encode(&mut text, &self.registry) {
            Ok(()) => text,
            Err(_) => String::new(),
        }
    }
}
