//! What a run is generic over: machines of one kind, and a network of one kind.

use protocol::aggregator::Aggregator;
use protocol::id::{ChunkId, NodeId};
use protocol::machine::{Body, Destination, Held, Machine};
use protocol::map::ClusterMap;
use protocol::rng::Rng;

use super::{Driver, Measures};
use crate::perf::stock::Stock;

/// Initiators and targets of one kind, what is asked of them, and what their events mean.
pub(in crate::perf) trait MachineSet: Clone + Send {
    type Initiator: Machine<Request: Send, Event: Send> + Send;
    type Target: Machine<Event: Send> + Send;
    /// What other parts of a run should know, a trip later.
    type Notice: Clone + Send;

    fn initiator(&self, n: u32) -> Self::Initiator;

    /// Target `n` as it starts.
    fn target(&self, n: u32) -> Self::Target;

    /// The aggregators, if there are any.
    fn aggregators(&self) -> Vec<Aggregator> {
        Vec::new()
    }

    /// The next request of an initiator; `rng` is its own.
    fn request(&mut self, n: u32, now: u64, rng: &mut Rng) -> <Self::Initiator as Machine>::Request;

    /// An initiator has an event.
    fn on_event<F: Fabric>(driver: &mut Driver<'_, Self, F>, n: u32, event: <Self::Initiator as Machine>::Event);

    /// A target has an event.
    fn on_target_event(&mut self, measures: &mut Measures, now: u64, event: &<Self::Target as Machine>::Event);

    /// What is there from the beginning and may be lost, where a run is of that.
    fn stock(&mut self) -> Option<&mut Stock>;

    /// A newer map, as it is handed to an initiator; to a target.
    fn map_for_initiator(map: &ClusterMap) -> <Self::Initiator as Machine>::Request;

    /// See [`Self::map_for_initiator`].
    fn map_for_target(map: &ClusterMap) -> <Self::Target as Machine>::Request;

    /// What of a chunk is on a target's disk: a copy, or a piece.
    fn found(&self, id: &ChunkId, on: NodeId) -> Option<Held>;

    /// A chunk is on a target's disk, which an initiator's part should know.
    fn stored(&mut self, id: &ChunkId, size: u32, on: NodeId) -> Option<(Self::Notice, NodeId)>;

    /// Whether a message asks for a put that nobody negotiates.
    fn asks_plainly(&self, message: &[u8]) -> bool;

    /// A part, perhaps this one, lets this one know something.
    fn note(&mut self, notice: Self::Notice);

    /// Requests under way that began in this time.
    fn unfinished(&self, from: u64, to: u64) -> u64;

    /// Requests that a target received, and how many of them while a bid there was tentative.
    fn requests(target: &Self::Target) -> (u64, u64);
}

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
