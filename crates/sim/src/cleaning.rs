//! What a seed decides of the cleaners of chunks that initiators put, without an object layer.

use protocol::rng::Rng;
use protocol::time::Span;

/// Cleaners, and what they find to clean.
#[derive(Clone, Copy, Debug)]
pub struct Cleaning {
    /// Half of this is the most that it may take from the beginning of a put until it is known what refers to its chunk; a
    /// cleaner lets as much pass.
    pub grace: Span,
    /// Cleaners at a time.
    pub cleaners: u32,
    /// What a cleaner takes to read the manifests that it has found.
    pub reading: Span,
    /// Of 1,000 operations, before so many a chunk is forgotten.
    pub forgets: u64,
    /// Most time between two operations.
    pub pause: Span,
    /// Whether nothing else makes targets silent for long: a pass comes to its end only when all answer.
    pub calm: bool,
    /// Whether chunks are small.
    pub small: bool,
    /// Targets that are killed and are back at once.
    pub restarts: u32,
    /// When all targets are cut off but so many, for good: until the heal.
    pub outage: Option<(Span, u32)>,
}

impl Cleaning {
    /// For half of the seeds.
    pub(crate) fn draw(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(seed).fork(60);
        if !rng.chance(1, 2) {
            return None;
        }
        Some(Self {
            grace: Span::from_millis(20 + rng.below(50)),
            cleaners: 1 + rng.below(2) as u32,
            reading: if rng.chance(2, 3) { Span::from_micros(rng.below(40_000)) } else { Span::ZERO },
            forgets: 200 + rng.below(300),
            pause: Span::from_micros(1 + rng.below(20_000)),
            calm: rng.chance(2, 3),
            small: rng.chance(2, 3),
            restarts: if rng.chance(1, 2) { 1 + rng.below(10) as u32 } else { 0 },
            outage: rng.chance(1, 5).then(|| (Span::from_millis(150 + rng.below(200)), 2 + rng.below(5) as u32)),
        })
    }

    /// The most that it may take until it is known what refers to a chunk.
    pub(crate) fn limit(&self) -> Span {
        self.grace.div(2)
    }

    /// For how long faults happen, if that is longer than elsewhere.
    pub(crate) fn storm(&self) -> Option<Span> {
        // Long enough for two passes that ask the silent in vain.
        self.outage.map(|(at, _)| at + Span::from_millis(700) + self.grace.times(4))
    }
}
