//! A messenger over connections as a queueing model: the testbed of the paper that [`protocol::messenger`] names, with the
//! policies that the daemons use.
//!
//! Requests of clients wait for workers, workers for cores, payload for the port of its receiver. [`run()`] takes a [`Setup`] and
//! gives an [`Outcome`]; [`figures`] has the paper's. `docs/messenger.md` says what is modelled, and what is not.

pub mod figures;
mod run;
mod testbed;

pub use run::{Outcome, run};
pub use testbed::{Chosen, Direction, Messenger, Setup};
