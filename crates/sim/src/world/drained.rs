//! What a machine says after an input.

use protocol::aggregator;
use protocol::id::OpId;
use protocol::initiator;
use protocol::machine::{Effect, Input, Machine, Output, Transmit};
use protocol::target;
use protocol::time::Instant;

pub(super) enum MachineOutput {
    Transmit(Transmit),
    Effect(OpId, Effect),
    Initiator(initiator::Event),
    Target(target::Event),
    Aggregator(aggregator::Event),
}

/// All outputs of a machine since the last input.
pub(super) struct Drained {
    pub(super) all: Vec<MachineOutput>,
    pub(super) deadline: Option<Instant>,
}

impl Drained {
    pub(super) fn with(memory: &mut Vec<MachineOutput>) -> Self {
        Self { all: std::mem::take(memory), deadline: None }
    }

    pub(super) fn drain<M: Machine>(&mut self, machine: &mut M, wrap: impl Fn(M::Event) -> MachineOutput) {
        loop {
            match machine.poll_output() {
                Output::Transmit(transmit) => self.all.push(MachineOutput::Transmit(transmit)),
                Output::Effect { op, effect } => self.all.push(MachineOutput::Effect(op, effect)),
                Output::Event(event) => self.all.push(wrap(event)),
                Output::Idle(deadline) => {
                    self.deadline = deadline.map(|d| d.at).filter(|at| *at < Instant::FAR);
                    return;
                }
            }
        }
    }
}

pub(super) fn convert<R>(input: Option<Input<std::convert::Infallible>>) -> Input<R> {
    match input {
        None | Some(Input::Wake) => Input::Wake,
        Some(Input::Datagram { bytes, arrived }) => Input::Datagram { bytes, arrived },
        Some(Input::Payload { header, payload, arrived }) => Input::Payload { header, payload, arrived },
        Some(Input::Done { op, completion }) => Input::Done { op, completion },
        Some(Input::Request(never)) => match never {},
    }
}
