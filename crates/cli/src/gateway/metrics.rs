//! What the gateway counts.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

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

impl Collector for S3 {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = (self.0)();
        let help = "What S3 refused, or ended, by reason";
        let mut refused = encoder.encode_descriptor("s3_refused", help, None, MetricType::Counter)?;
        for (reason, count) in counts.refused {
            ConstCounter::new(count).encode(refused.encode_family(&[("reason", reason)])?)?;
        }
        let mut gauge = |name: &str, help: &str, value: usize| {
            let value = ConstGauge::new(value as i64);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("s3_working", "Requests that work on the bytes of objects", counts.working)?;
        gauge("s3_strangers", "Connections on which nobody has shown that they may ask", counts.strangers)
    }
}

impl Metrics {
    /// Those of S3, where there is an S3 endpoint.
    pub(crate) fn new(s3: Option<S3Counts>) -> Self {
        let mut registry = Registry::with_prefix("reservoir_gateway");
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
