//! What a seed decides about aggregators.

use protocol::aggregator::Bug;
use protocol::id::NodeId;
use protocol::rng::Rng;

/// The id of the first.
const FIRST: u32 = 10_000;

/// What a seed decides of the aggregators.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aggregators {
    /// How many there are.
    pub count: u32,
    /// How often each is killed, or cut off, before the heal.
    pub troubles: u32,
    /// How many times as fast as others' their ports are.
    pub lanes: u32,
    /// In what way they compute what is wrong, if they do.
    pub lies: Option<Bug>,
}

impl Aggregators {
    /// Their ids.
    pub fn ids(self) -> impl Iterator<Item = NodeId> {
        (FIRST..FIRST + self.count).map(NodeId)
    }

    /// Those of a world with a code: mostly there are some.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed).fork(91);
        if rng.chance(1, 6) {
            return Self::default();
        }
        let (count, troubles) = (1 + rng.below(2) as u32, rng.below(3) as u32);
        let ways = [Bug::WrongCoefficient, Bug::MixStripes, Bug::StaleSums, Bug::SwapPieces];
        let lies = rng.chance(1, 3).then(|| ways[rng.below(4) as usize]);
        let lanes = 1 + rng.below(4) as u32;
        Self { count, troubles, lanes, lies }
    }

    /// In words, on a line of its own; nothing when there are none.
    pub(crate) fn describe(&self) -> String {
        let Self { count, troubles, lanes, lies } = self;
        if *count == 0 {
            return String::new();
        }
        let lies = lies.map_or_else(String::new, |lies| format!("; they compute what is wrong: {lies:?}"));
        format!("\n{count} aggregators with ports {lanes} times as fast, each in trouble {troubles} times{lies}")
    }
}
