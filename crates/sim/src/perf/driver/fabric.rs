//! What is between the nodes of a run: the papers' network, which is ideal, or a switch with queues.

use protocol::machine::{Body, Destination};

use super::{Driver, MachineSet};

mod ideal;
mod switch;
mod wire;

pub(super) use ideal::Ideal;
pub(super) use switch::Switch;

/// A network. It carries what nodes send, and hands it over with [`Driver::reached`]. What belongs to a node's ports is with
/// that node's part of a run.
pub(in crate::perf) trait Fabric: Sized + Send {
    /// What happens on it.
    type Wire: Clone + Send;
    /// Whether a run may be cut into parts: nothing that a node does reaches another sooner than `trip`.
    const PARTS: bool;

    /// The least time from one node to another, in nanoseconds.
    fn trip(&self) -> u64;

    /// A node sends something.
    fn send<M: MachineSet>(driver: &mut Driver<'_, M, Self>, from: u32, to: Destination, body: Body);

    /// The time of something on the wire has come: of [`Driver::happens`] for each of the part's nodes to which it does.
    /// The node whose own this is: nobody else has to do with it.
    fn owner(wire: &Self::Wire) -> Option<u32>;

    /// Those to which it comes, if it is no node's own.
    fn destination(wire: &Self::Wire) -> Option<Destination>;

    /// Reads what is here of one of the part's nodes, and says nothing.
    fn prefetch(&self, slot: usize) -> u64;

    /// Reads what something on the wire carries, and says nothing.
    fn prefetch_wire(_wire: &Self::Wire) -> u64 {
        0
    }

    fn happen<M: MachineSet>(driver: &mut Driver<'_, M, Self>, wire: Self::Wire);
}
