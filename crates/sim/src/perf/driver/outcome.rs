//! What a run comes to: what its parts counted, together.

use super::measure::{Measures, Work};
use super::{Driver, Fabric, MachineSet};
use crate::perf::node::Node;
use crate::perf::setup::profile::Measured;
use crate::perf::setup::{Machines, Setup};
use crate::perf::stats::{self, Outcome};
use crate::perf::stock::Stock;

impl<M: MachineSet, F: Fabric> Driver<'_, M, F> {
    pub(super) fn measure(&mut self) {
        let interval = self.setup.product().map_or(0, |profile| profile.interval(self.setup));
        self.measures.begin(self.now, interval, self.own_targets);
        self.disks.iter_mut().for_each(|disk| disk.measure(self.now));
        self.nodes.iter_mut().for_each(|node| node.processor.work = 0);
        let now = self.now;
        self.machines.stock().into_iter().for_each(|stock| stock.begin(now));
    }

    /// The end of the measured time: what is still under way has the drain to end in.
    pub(super) fn stop(&mut self) {
        let (now, measures) = (self.now, &mut self.measures);
        measures.ended = Some(now);
        let measured = now - measures.began;
        let (targets, initiators) = self.nodes.split_at(self.own_targets);
        let work = |of: &[Node]| of.iter().map(|node| node.processor.work).sum();
        measures.work = Work {
            disks: self.disks.iter().map(|disk| disk.worked(now)).sum(),
            scheduled: self.disks.iter().map(|disk| disk.work.min(measured)).sum(),
            targets: work(targets),
            initiators: work(&initiators[..self.initiators.len()]),
            bytes: self.disks.iter().map(|disk| disk.bytes).collect(),
        };
        measures.stopped = core::mem::take(&mut measures.count);
        measures.open = self.machines.unfinished(measures.began, now);
        if let Some(stock) = self.machines.stock() {
            let own = self.nodes.iter().zip(&self.disks).zip(self.parts.nodes(self.part));
            let left = own.filter(|((node, _), _)| !node.life.is_down);
            stock.end(now, left.map(|((_, disk), id)| (*id, disk.worked(now))));
        }
    }
}

/// What all parts of a run come to.
pub(super) fn outcome<M: MachineSet, F: Fabric>(setup: &Setup, mut drivers: Vec<Driver<'_, M, F>>) -> Outcome {
    let stock = drivers.first_mut().and_then(|driver| driver.machines.stock().cloned());
    let crashes = drivers.iter().map(|driver| driver.crashed).max().unwrap_or(0);
    let events = drivers.iter().map(|driver| driver.events).sum();
    let all = 0..setup.nodes();
    let node = |node: u32| drivers.iter().find(|d| d.is_own(node)).map_or(0, |d| d.nodes[d.slot(node)].digest);
    let digest =
        all.map(node).fold(0_u64, |digest, node| (digest.rotate_left(29) ^ node).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let requests = drivers.iter().flat_map(|driver| &driver.targets).map(M::requests);
    let requests = requests.fold((0, 0), |sum, r| (sum.0 + r.0, sum.1 + r.1));
    let now = drivers.first().map_or(0, |driver| driver.now);
    let mut measures = drivers.into_iter().map(|driver| driver.measures);
    let measures = measures.next().unwrap_or_else(|| Measures::new(setup)).with(measures);
    let end = measures.ended.unwrap_or(now);
    let measured = end - measures.began;
    let seconds = measured.max(1) as f64 / 1e9;
    let share = |work: u64, of: u32| work as f64 / (measured.max(1) as f64 * f64::from(of.max(1)));
    let link = setup.machines.link() as f64 / 8.0 * seconds * f64::from(setup.targets.max(1));
    let (count, work) = (measures.stopped, measures.work);
    let (done, scheduled) = (share(work.disks, setup.targets), share(work.scheduled, setup.targets));
    let counts_scheduled = setup.papers().is_some_and(|paper| paper.quirks.scheduled_work);
    let chunks = count.puts + count.gets;
    let product = matches!(setup.machines, Machines::Product(_)).then(|| {
        Box::new(Measured {
            gets: count.gets,
            get_latency: measures.get_latency,
            failed: count.failed,
            unfinished: measures.open,
            found: measures.found,
            asked: measures.asked.over(end),
            begun: measures.transfers.over(end),
            ended_in: measures.ended_in,
            undurable: measures.undurable,
            crashes,
            control_messages: count.control_messages,
            dropped: count.dropped,
            repairs: count.repairs,
            hedged: count.hedged,
            released: count.released,
            expired: count.expired,
            cpu_initiator: share(work.initiators, setup.initiators),
            cpu_target: share(work.targets, setup.targets),
            mended: stock.and_then(Stock::mended).map(Box::new),
        })
    });
    Outcome {
        measured,
        chunks,
        chunks_per_second: chunks as f64 / seconds,
        latency: measures.latency,
        attempt: measures.attempt,
        disk_utilisation: if counts_scheduled { scheduled } else { done },
        disk_scheduled: scheduled,
        link_utilisation: count.payload_bytes as f64 / link,
        load: stats::Load::of(&work.bytes),
        control_bytes: count.control_bytes,
        payload_bytes: count.payload_bytes,
        aborted: count.aborted + count.released,
        more_rounds: count.more_rounds,
        cancelled: count.cancelled,
        rejected: count.rejected,
        requests,
        collisions: count.collisions,
        events,
        digest,
        series: measures.series.into_iter().map(|(_, took)| took).collect(),
        product,
    }
}
