//! What is between the nodes of a run: the papers' network, which is ideal, or a switch with queues.

mod ideal;
mod switch;
mod wire;

pub(super) use ideal::Ideal;
pub(super) use switch::Switch;
