//! What the gateway counts.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The gateway's counters.
pub(crate) struct Metrics {
    registry: Registry,
    puts: Counter<u64, AtomicU64>,
    put_failures: Counter<u64, AtomicU64>,
    put_bytes: Counter<u64, AtomicU64>,
    gets: Counter<u64, AtomicU64>,
    get_failures: Counter<u64, AtomicU64>,
    get_bytes: Counter<u64, AtomicU64>,
    chunk_put_seconds: Histogram,
}

/// What the S3 face does and refuses.
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
    /// Counters of files, and of S3 where there is a face.
    pub(crate) fn new(s3: Option<S3Counts>) -> Self {
        let mut registry = Registry::with_prefix("reservoir_gateway");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let puts = counter("files_put", "Files stored");
        let put_failures = counter("file_put_failures", "Puts of files that failed");
        let put_bytes = counter("put_bytes", "Bytes of files stored");
        let gets = counter("files_got", "Files read as a whole");
        let get_failures = counter("file_get_failures", "Reads of files that failed or were broken off");
        let get_bytes = counter("get_bytes", "Bytes of files read");
        let chunk_put_seconds = Histogram::new(exponential_buckets(0.000_25, 2.0, 16));
        let help = "Time of a chunk from request to the last needed acknowledgement";
        registry.register("chunk_put_seconds", help, chunk_put_seconds.clone());
        if let Some(s3) = s3 {
            registry.register_collector(Box::new(S3(s3)));
        }
        Self { registry, puts, put_failures, put_bytes, gets, get_failures, get_bytes, chunk_put_seconds }
    }

    /// A chunk became durable.
    pub(crate) fn chunk_put(&self, seconds: f64) {
        self.chunk_put_seconds.observe(seconds);
    }

    /// A file was put (of so many bytes), or could not be.
    pub(crate) fn put(&self, bytes: Option<u64>) {
        count(bytes, &self.puts, &self.put_bytes, &self.put_failures);
    }

    /// A file was read (of so many bytes), or could not be.
    pub(crate) fn get(&self, bytes: Option<u64>) {
        count(bytes, &self.gets, &self.get_bytes, &self.get_failures);
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

fn count(bytes: Option<u64>, good: &Counter, size: &Counter, bad: &Counter) {
    match bytes {
        Some(bytes) => {
            good.inc();
            size.inc_by(bytes);
        }
        None => {
            bad.inc();
        }
    }
}
