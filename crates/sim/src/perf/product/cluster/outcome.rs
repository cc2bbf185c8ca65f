//! What a run comes to.

use super::super::super::stats::Outcome;
use super::super::Measured;
use super::Cluster;

impl Cluster<'_> {
    pub(super) fn outcome(self) -> Outcome {
        let end = self.ended.unwrap_or(self.now);
        let measured = end - self.began;
        let seconds = measured.max(1) as f64 / 1e9;
        let share = |work: u64, of: u32| work as f64 / (measured.max(1) as f64 * f64::from(of.max(1)));
        let (disks, targets, initiators, load) = self.work;
        let link = self.setup.protocol.link as f64 / 8.0 * seconds * self.disks.len().max(1) as f64;
        let count = &self.stopped;
        let measured_more = Measured {
            gets: count.gets,
            get_latency: self.get_latency,
            failed: count.failed,
            unfinished: self.open,
            found: self.found,
            asked: self.asked.over(end),
            begun: self.transfers.over(end),
            ended_in: self.ended_in.to_vec(),
            undurable: self.undurable,
            crashes: self.crashed,
            control_messages: count.control_messages,
            dropped: count.dropped,
            repairs: count.repairs,
            hedged: count.hedged,
            released: count.released,
            expired: count.expired,
            cpu_initiator: share(initiators, self.setup.initiators),
            cpu_target: share(targets, self.setup.targets),
        };
        let chunks = count.puts + count.gets;
        Outcome {
            measured,
            chunks,
            chunks_per_second: chunks as f64 / seconds,
            latency: self.put_latency.clone(),
            attempt: self.put_latency,
            disk_utilisation: share(disks, self.setup.targets),
            disk_scheduled: share(disks, self.setup.targets),
            link_utilisation: count.payload_bytes as f64 / link,
            load,
            control_bytes: count.control_bytes,
            payload_bytes: count.payload_bytes,
            aborted: count.released,
            more_rounds: count.more_rounds,
            cancelled: 0,
            rejected: 0,
            requests: (0, 0),
            collisions: count.collisions,
            events: self.events,
            digest: self.digest,
            series: self.series,
            product: Some(Box::new(measured_more)),
        }
    }
}
