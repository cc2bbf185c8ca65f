//! What an aggregator counts.

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use protocol::aggregator::Event;

use super::{CarrierMetrics, Labelled, answer_name, bids, count, counter, gauge, increment, page};

/// What an aggregator counts.
#[derive(Debug)]
pub struct SwitchMetrics {
    registry: Registry,
    net: CarrierMetrics,
    bids: Labelled,
    passed: Counter,
    expired: Counter,
    bytes: [Counter; 3],
    in_progress: Gauge,
    epoch: Gauge,
}

impl SwitchMetrics {
    /// The counters of the switch `id`, all zero.
    #[must_use]
    pub fn new(id: u32, net: CarrierMetrics) -> Self {
        let label = (Cow::from("switch"), Cow::from(id.to_string()));
        let mut registry = Registry::with_prefix_and_labels("reservoir_switch", std::iter::once(label));
        let r = &mut registry;
        net.register(r);
        Self {
            bids: bids(r, "Bids sent, by what they answer"),
            passed: counter(r, "chunks_passed", "Chunks that were passed on whole"),
            expired: counter(r, "chunks_expired", "Chunks of which something did not come in time"),
            bytes: [
                counter(r, "came_bytes", "Bytes that came of chunks that were passed on whole"),
                counter(r, "passed_bytes", "Bytes that were sent of them"),
                counter(r, "parity_bytes", "Bytes of these that are parity"),
            ],
            in_progress: gauge(r, "in_progress", "Chunks on their way"),
            epoch: gauge(r, "map_epoch", "Epoch of the cluster map in use"),
            net,
            registry,
        }
    }

    /// The machine reported an event.
    pub(crate) fn event(&self, event: &Event) {
        match event {
            Event::Bid { answer } => count(&self.bids, "answer", answer_name(answer)),
            Event::Passed { came, sent, parity } => {
                increment(&self.passed);
                for (counter, bytes) in self.bytes.iter().zip([came, sent, parity]) {
                    counter.inc_by(*bytes);
                }
            }
            Event::Expired => increment(&self.expired),
            Event::Ignored(why) => self.net.dropped(why.name(), 1),
            Event::NewerMap(_) => {}
        }
    }

    /// Chunks on their way, now.
    pub(crate) fn set_in_progress(&self, chunks: usize) {
        self.in_progress.inner().store(chunks as i64, Ordering::Relaxed);
    }

    /// The map in use.
    pub(crate) fn set_epoch(&self, epoch: u32) {
        self.epoch.set(i64::from(epoch));
    }

    /// Everything, now.
    #[must_use]
    pub fn page(&self) -> String {
        self.net.count_overflows();
        page(&self.registry)
    }
}
