//! What nodes are like, besides what their machines do.

use protocol::time::Span;

use crate::perf::setup::profile::Crashes;
use crate::perf::setup::{Cpu, Machines};

/// What nodes are like.
pub(super) struct Conditions {
    pub(super) cpu: Cpu,
    pub(super) cpu_of_aggregators: Cpu,
    /// Payload bytes of a datagram.
    pub(super) datagram: u64,
    /// How wrong clocks are; `None`: all show the same time.
    pub(super) drift_ppm: Option<u32>,
    pub(super) wake_jitter: Span,
    /// Whether a timer waits until the processor is free. Network cards pace the frames of the papers' machines.
    pub(super) timers_wait: bool,
    /// How long requests of the measured time may go on behind it; `None`: the run ends with it.
    pub(super) drain: Option<Span>,
    /// How late each initiator may begin.
    pub(super) stagger: Span,
    pub(super) crashes: Option<Crashes>,
}

impl Conditions {
    /// The processor of a node, which may be an aggregator.
    pub(super) const fn cpu(&self, is_aggregator: bool) -> &Cpu {
        if is_aggregator { &self.cpu_of_aggregators } else { &self.cpu }
    }

    pub(super) fn of(machines: &Machines) -> Self {
        match machines {
            Machines::Paper(paper) => Self {
                cpu: paper.costs.map_or_else(Cpu::default, |costs| costs.cpu),
                cpu_of_aggregators: Cpu::default(),
                datagram: u64::from(paper.config.frame),
                drift_ppm: None,
                wake_jitter: Span::ZERO,
                timers_wait: false,
                drain: None,
                stagger: paper.quirks.staggered_start,
                crashes: None,
            },
            Machines::Product(profile) => Self {
                cpu: profile.costs.cpu,
                cpu_of_aggregators: Cpu {
                    kib: profile.aggregator_kib.unwrap_or(profile.costs.cpu.kib),
                    ..profile.costs.cpu
                },
                datagram: profile.config.per_datagram as u64,
                drift_ppm: Some(profile.drift_ppm),
                wake_jitter: profile.wake_jitter,
                timers_wait: true,
                drain: Some(profile.drain),
                stagger: Span::ZERO,
                crashes: profile.crashes,
            },
        }
    }
}
