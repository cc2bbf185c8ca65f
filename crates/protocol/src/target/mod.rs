//! The target.
mod api;
pub use api::*;
use crate::config::Config;
use crate::machine::{Input, Machine, Output};
use crate::time::Instant;
/// The target machine.
pub struct Target {}
impl Target {
    /// A target as `setup` says.
    #[must_use]
    pub fn new(_setup: Setup, _config: Config) -> Self {
        Self {}
    }
}
impl Machine for Target {
    type Request = Request;
    type Event = Event;
    fn handle_input(&mut self, _now: Instant, _input: Input<Request>) {}
    fn poll_output(&mut self) -> Output<Event> {
        Output::Idle(None)
    }
}
