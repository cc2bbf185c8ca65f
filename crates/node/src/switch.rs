//! An aggregator as a process: one thread with its loop. It has no disk, and computes on that thread.

use std::sync::Arc;
use std::thread::JoinHandle;

use protocol::aggregator::{Aggregator, Event, Request, Setup};
use protocol::config::Config;
use protocol::id::{NodeId, OpId};
use protocol::machine::{Completion, Effect};
use protocol::time::Instant;

use crate::config::ClusterConfig;
use crate::event_loop::{self, Host, Mail, Mailbox};
use crate::metrics::SwitchMetrics;
use crate::reload::MapInUse;
use crate::sockets;
use crate::{NodeError, io};

/// How many times as fast as other nodes' its port is, when nothing is said.
const FASTER: u64 = 4;

/// A running aggregator.
#[derive(Debug)]
pub struct SwitchNode {
    mailbox: Mailbox<Request>,
    thread: JoinHandle<()>,
    metrics: Arc<SwitchMetrics>,
    map: MapInUse,
}

struct SwitchHost {
    id: u32,
    map: MapInUse,
    mailbox: Mailbox<Request>,
    metrics: Arc<SwitchMetrics>,
}

impl Host<Aggregator> for SwitchHost {
    fn effect(&mut self, _: OpId, _: Effect) -> Option<Completion> {
        // It asks for none.
        None
    }

    fn reload(&mut self) {
        let (id, metrics, mailbox) = (self.id, Arc::clone(&self.metrics), self.mailbox.clone());
        self.map.look(format!("switch {id}"), move |config, map| {
            if !map.aggregators().contains(&NodeId(id)) {
                tracing::warn!("switch {id}: it is not in the cluster map any more: stop it");
            }
            metrics.set_epoch(config.epoch);
            mailbox.send(Mail::Map(Box::new(config), Request::Map(map)));
        });
    }

    fn event(&mut self, now: Instant, event: Event) {
        self.metrics.event(&event);
        match event {
            Event::NewerMap(newer) => {
                if self.map.hear_of(now, newer) {
                    self.mailbox.send(Mail::Reload);
                }
            }
            other => tracing::trace!("switch {}: {other:?}", self.id),
        }
    }

    fn settled(&mut self, machine: &Aggregator) {
        self.metrics.set_in_progress(machine.in_progress());
    }
}

impl SwitchNode {
    /// Starts the aggregator's thread.
    ///
    /// # Errors
    /// It is not in the map, or its address cannot be had.
    pub fn start(config: &ClusterConfig, id: u32) -> Result<Self, NodeError> {
        let switch = config.switches.iter().find(|switch| switch.id == id).ok_or(NodeError::NoSuchSwitch(id))?;
        let map = config.map_to_hand_on()?;
        let mut carrier = sockets::open(config, switch.address, NodeId(id))?;
        let setup = Setup { id: NodeId(id), map: map.clone(), memory: config.memory(switch)?, bug: None };
        let usual = config.protocol(switch.address.ip());
        let usually = usual.link_rate.saturating_mul(FASTER);
        let rate = switch.link_mbps.map_or(usually, |mbps| mbps.saturating_mul(125_000));
        let machine = Aggregator::new(setup, Config { link_rate: rate, ..usual });
        let metrics = Arc::new(SwitchMetrics::new(id, carrier.metrics().clone()));
        metrics.set_epoch(map.epoch.0);
        let threads = "lower the load on this host, or raise its limits";
        let in_use = MapInUse::new(config, &map);
        let (mailbox, mail) = Mailbox::new().map_err(io("starting a switch", threads))?;
        let (own, map) = (mailbox.clone(), in_use.clone());
        let mut host = SwitchHost { id, map, mailbox: mailbox.clone(), metrics: Arc::clone(&metrics) };
        let run = move || {
            if let Err(error) = event_loop::run(machine, &mut *carrier, &mail, &own, &mut host) {
                tracing::error!("switch {id}: its loop ended: {error}; restart it");
            }
        };
        let name = format!("switch-{id}");
        let thread = std::thread::Builder::new().name(name).spawn(run).map_err(io("starting a thread", threads))?;
        tracing::info!("switch {id} is ready on {}", switch.address);
        Ok(Self { mailbox, thread, metrics, map: in_use })
    }

    /// Ends. What is under way is asked for at its initiators.
    pub fn stop(self) {
        self.mailbox.send(Mail::Stop);
        // A thread that panicked has printed why.
        let _ = self.thread.join();
    }

    /// Checks whether there is a newer cluster map.
    pub fn reload(&self) {
        self.mailbox.send(Mail::Reload);
    }

    /// The epoch of the cluster map in use.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.map.get().epoch
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> Arc<SwitchMetrics> {
        Arc::clone(&self.metrics)
    }

    /// Whether its loop still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.thread.is_finished()
    }
}
