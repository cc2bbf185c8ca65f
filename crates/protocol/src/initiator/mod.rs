//! The initiator.
mod api;
pub use api::*;
use crate::config::Config;
use crate::id::NodeId;
use crate::machine::{Input, Machine, Output};
use crate::map::ClusterMap;
use crate::time::Instant;
/// The initiator machine.
pub struct Initiator {}
impl Initiator {
    /// An initiator called `id`; `seed` decides its transaction numbers.
    #[must_use]
    pub fn new(_id: NodeId, _map: ClusterMap, _config: Config, _seed: u64) -> Self {
        Self {}
    }
}
impl Machine for Initiator {
    type Request = Request;
    type Event = Event;
    fn handle_input(&mut self, _now: Instant, _input: Input<Request>) {}
    fn poll_output(&mut self) -> Output<Event> {
        Output::Idle(None)
    }
}
