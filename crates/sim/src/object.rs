//! Objects over the simulated targets: gateways that run the product's code, their clients, and the history of
//! what these were answered.

pub(crate) mod client;
pub(crate) mod coroutines;
pub(crate) mod gateway;
pub(crate) mod history;
pub(crate) mod inspect;

use protocol::redundancy::Redundancy;
use protocol::rng::Rng;
use protocol::time::Span;

/// Gateways, their clients, and what goes wrong with them.
#[derive(Clone, Copy, Debug)]
pub struct Objects {
    /// Gateways at a time.
    pub gateways: u32,
    /// Clients of each.
    pub clients: u32,
    /// Operations of each client.
    pub operations: u32,
    /// For how long faults happen.
    pub storm: Span,
    /// Half of this is the most that a put may take; a cleaner lets as much pass.
    pub grace: Span,
    /// Whether gateways clean.
    pub cleans: bool,
    /// How often a gateway says that it lives.
    pub heartbeat: Span,
    /// Crashes of gateways.
    pub crashes: u32,
    /// Times that a gateway stands still.
    pub stalls: u32,
    /// Times that a good part of the targets is down or cut off at once.
    pub outages: u32,
    /// Whether such a part comes and goes all the time, or each time some that hide nothing by the map.
    pub flaps: bool,
    /// How long an answer is waited for.
    pub patience: Span,
    /// Steps of the gateways' wall clocks.
    pub steps: u32,
    /// Largest difference of those clocks, and largest step.
    pub off: Span,
    /// Of 1,000 changes of the catalog, so many fail, and so many are made without an answer that says so.
    pub trouble: u64,
    /// Objects up to this many bytes ride in their manifests.
    pub inline: usize,
    /// Bytes of a payload chunk.
    pub chunk: usize,
    /// Half of the objects are kept so, and not as the map says.
    pub redundancy: Option<Redundancy>,
}

impl Objects {
    /// Whether an operation may fail on a healthy cluster, because it is waited for so briefly.
    pub(crate) fn is_brief(&self) -> bool {
        self.patience < Span::from_secs(1)
    }

    /// For a third of the seeds.
    pub(crate) fn draw(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(seed).fork(40);
        if !rng.chance(1, 3) {
            return None;
        }
        let cleans = rng.chance(2, 3);
        let mut some = |most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        let (crashes, stalls, steps, trouble) = (some(3) as u32, some(2) as u32, some(3) as u32, some(60));
        let outages = some(3) as u32;
        let off = Span::from_millis(some(5_000));
        let grace = Span::from_millis(if cleans { 100 + rng.below(150) } else { 2_000 });
        let storm = Span::from_millis(400) + if cleans { grace.times(2) } else { Span::ZERO };
        Some(Self {
            gateways: if rng.chance(1, 4) { 3 } else { 2 },
            clients: 2,
            operations: 18,
            storm,
            grace,
            cleans,
            heartbeat: Span::from_millis(8),
            crashes,
            stalls,
            outages,
            flaps: rng.chance(1, 3),
            patience: Span::from_millis(if rng.chance(2, 3) { 15 + rng.below(60) } else { 4_000 }),
            steps,
            off,
            trouble,
            inline: rng.below(300) as usize,
            chunk: 200 + rng.below(1_500) as usize,
            redundancy: None,
        })
    }
}
