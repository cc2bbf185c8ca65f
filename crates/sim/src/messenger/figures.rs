//! Figures 10 to 13 of the paper, each of its figures that the text prints beside ours, and what our policy does there.

use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::messenger::{Choice, Policy};
use protocol::time::Span;

use super::run::{Outcome, run};
use super::testbed::{Chosen, Direction, Messenger, Setup};
use crate::perf::Estimate;
use crate::threads;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Figure {
    /// Throughput of the messenger alone.
    Fig10,
    /// The standard deviation of what workers process in 5 s.
    Fig11,
    /// Throughput of the whole system.
    Fig12,
    /// Bandwidth of the whole system with several connections.
    Fig13,
}

impl Figure {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fig10, Self::Fig11, Self::Fig12, Self::Fig13];

    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fig10 => "messenger-fig10",
            Self::Fig11 => "messenger-fig11",
            Self::Fig12 => "messenger-fig12",
            Self::Fig13 => "messenger-fig13",
        }
    }

    /// A heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Fig10 => "Messenger, Figure 10: random writes and reads, the messenger alone",
            Self::Fig11 => "Messenger, Figure 11: standard deviation of what workers process in 5 s, writes of 4 KB",
            Self::Fig12 => "Messenger, Figure 12: random writes and reads, the whole system",
            Self::Fig13 => "Messenger, Figure 13: bandwidth of random writes, the whole system",
        }
    }

    /// What it compares; the first of each size and direction is the original.
    #[must_use]
    pub fn cells(self) -> Vec<Cell> {
        use Direction::{Read, Write};
        let mut cells = Vec::new();
        let mut add = |directions: &[Direction], sizes: &[u64], variants: &[Variant], full: bool, moving: bool| {
            for direction in directions {
                for size in sizes {
                    for variant in variants {
                        cells.push(Cell { variant: *variant, direction: *direction, size: *size, full, moving });
                    }
                }
            }
        };
        let some = [Variant::Original, Variant::Balanced, Variant::Work, Variant::Ours];
        match self {
            Self::Fig10 => {
                add(&[Write, Read], &SIZES, &Variant::ALL, false, false);
                add(&[Write, Read], &SIZES[..1], &some, false, true);
            }
            Self::Fig11 => add(&[Write], &SIZES[..1], &some, false, false),
            Self::Fig12 => add(&[Write, Read], &SIZES, &Variant::ALL, true, false),
            Self::Fig13 => {
                let connections = [Variant::Original, Variant::Connections, Variant::AllThree, Variant::Ours];
                add(&[Write], &SIZES, &connections, true, false);
            }
        }
        // The paper has no reads over several connections, which carry replicas.
        cells.retain(|cell| cell.direction == Write || cell.variant != Variant::Connections);
        cells
    }
}

/// Bytes of requests.
const SIZES: [u64; 4] = [4 << 10, 8 << 10, 64 << 10, 1 << 20];

/// A messenger with the paper's name, or ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// As it was.
    Original,
    /// With the paper's balancer.
    Balanced,
    /// With dual workers.
    Dual,
    /// With two connections between two targets.
    Connections,
    /// With all three.
    AllThree,
    /// New connections where there are fewest, as upstream.
    Fewest,
    /// Our policy, and nothing else.
    Work,
    /// Our policy, dual workers, and four connections of their own, to which no more is sent than ports can keep.
    Ours,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Original,
        Self::Balanced,
        Self::Dual,
        Self::Connections,
        Self::AllThree,
        Self::Fewest,
        Self::Work,
        Self::Ours,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Original => "async-orig",
            Self::Balanced => "async-ld",
            Self::Dual => "async-dw",
            Self::Connections => "async-mc",
            Self::AllThree => "async-mc-ld-dw",
            Self::Fewest => "fewest",
            Self::Work => "work",
            Self::Ours => "ours",
        }
    }

    /// How it works.
    #[must_use]
    pub const fn messenger(self) -> Messenger {
        let original = Messenger {
            policy: Policy::RoundRobin,
            dual: false,
            connections: 1,
            choice: Choice::InTurn,
            ordered: true,
            bounded: false,
        };
        match self {
            Self::Original => original,
            Self::Balanced => Messenger { policy: Policy::Bytes, ..original },
            Self::Dual => Messenger { dual: true, ..original },
            Self::Connections => Messenger { connections: 2, ..original },
            Self::AllThree => Messenger { policy: Policy::Bytes, dual: true, connections: 2, ..original },
            Self::Fewest => Messenger { policy: Policy::Fewest, ..original },
            Self::Work => Messenger { policy: Policy::Work, ..original },
            Self::Ours => Messenger {
                policy: Policy::Work,
                dual: true,
                connections: 4,
                choice: Choice::LeastQueued,
                ordered: false,
                bounded: true,
            },
        }
    }
}

/// One bar of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Of the whole system, and not of the messenger alone.
    pub full: bool,
    /// Whether other jobs become busy every second.
    pub moving: bool,
    /// What is asked for.
    pub direction: Direction,
    /// Bytes of a request.
    pub size: u64,
    /// The messenger.
    pub variant: Variant,
}

impl Cell {
    /// By how many percent the paper says that it is above the original, where it says so.
    #[must_use]
    pub fn gain_published(&self) -> Option<f64> {
        use Variant::{AllThree, Balanced, Connections, Dual};
        let is_published = matches!(self.variant, Balanced | Dual | Connections | AllThree) && !self.moving;
        let gain = match (self.full, self.direction, self.variant, self.size >> 10) {
            (false, Direction::Write, Balanced, 4) => 40.0,
            (false, Direction::Write, Balanced, 8) => 35.0,
            (false, Direction::Read, Dual, 4) => 9.0,
            (false, Direction::Read, Dual, 8) => 5.0,
            (true, Direction::Write, AllThree, 4) => 13.0,
            (true, Direction::Write, AllThree, 8) => 10.0,
            // "The performance gain is disappeared", and reads of the whole system have none.
            (false, Direction::Write, _, 64..)
            | (false, Direction::Read, Balanced, 64..)
            | (true, Direction::Read, ..) => 0.0,
            _ => return None,
        };
        is_published.then_some(gain)
    }

    /// The standard deviation in KB where Figure 11 has one: at the end, of the balancer.
    #[must_use]
    pub fn deviation_published(&self) -> Option<f64> {
        match self.variant {
            Variant::Original => Some(12_000.0),
            Variant::Balanced => Some(2_000.0),
            _ => None,
        }
    }

    /// The size as the paper writes it.
    #[must_use]
    pub fn size_name(&self) -> String {
        let kib = self.size >> 10;
        if kib < 1 << 10 { format!("{kib}K") } else { format!("{}M", kib >> 10) }
    }

    /// The run.
    #[must_use]
    pub fn setup(&self, seed: u64) -> Setup {
        let messenger = self.variant.messenger();
        // The paper's balancer moves one connection in 5 s; of reads it sees nothing.
        let warm_up = match (messenger.policy, self.direction) {
            (Policy::Bytes, Direction::Write) => 30,
            (Policy::Bytes, Direction::Read) => 11,
            _ => 2,
        };
        // Figure 11 counts 5 s.
        Setup {
            seed,
            messenger,
            direction: self.direction,
            size: self.size,
            full: self.full,
            moving: self.moving.then_some(Span::from_secs(1)),
            warm_up: Span::from_secs(warm_up),
            length: Span::from_secs(4),
            chosen: Chosen::DEFAULT,
        }
    }
}

/// A cell as it was measured here.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub cell: Cell,
    /// Requests a second.
    pub per_second: Estimate,
    /// By how many percent it is above the original, seed by seed.
    pub gain: Estimate,
    /// What no policy is above, in requests a second.
    pub bound: f64,
    /// The standard deviation of KB that workers process in 5 s, in the last of the run.
    pub deviation: Estimate,
    /// Events a second of the least and of the most busy worker.
    pub events: (f64, f64),
    /// Segments that switches dropped in a second.
    pub dropped: f64,
    /// Connections that moved in a second, of all targets.
    pub moved: f64,
}

impl Measured {
    /// Ours over the paper's: how often the original each is, where the paper says that.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.cell.gain_published().map(|paper| (100.0 + self.gain.mean) / (100.0 + paper))
    }
}

/// Runs what the figures show, each cell with seeds 1 to `seeds`, each only once.
#[must_use]
pub fn reproduce(
    figures: &[Figure],
    seeds: u64,
    threads: usize,
    progress: &(dyn Fn(f64, usize) + Sync),
) -> Vec<Measured> {
    let mut cells: Vec<Cell> = figures.iter().flat_map(|figure| figure.cells()).collect();
    cells.sort_unstable();
    cells.dedup();
    let setups: Vec<Setup> = cells.iter().flat_map(|cell| (1..=seeds).map(|seed| cell.setup(seed))).collect();
    let outcomes = run_all(&setups, threads, progress);
    let of = |cell: &Cell| {
        let at = cells.iter().position(|other| other == cell).unwrap_or_default() * seeds as usize;
        &outcomes[at..at + seeds as usize]
    };
    cells.iter().map(|cell| measured(*cell, of(cell), of(&Cell { variant: Variant::Original, ..*cell }))).collect()
}

fn measured(cell: Cell, outcomes: &[Outcome], original: &[Outcome]) -> Measured {
    let estimate = |of: &dyn Fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(of).collect::<Vec<_>>());
    let gains = outcomes.iter().zip(original).map(|(o, original)| 100.0 * (o.per_second / original.per_second - 1.0));
    let setup = cell.setup(1);
    let seconds = setup.length.as_nanos() as f64 / 1e9;
    let event = |of: &dyn Fn(&Outcome) -> Option<u64>| estimate(&|o| of(o).unwrap_or_default() as f64).mean / seconds;
    Measured {
        cell,
        per_second: estimate(&|o| o.per_second),
        gain: Estimate::of(&gains.collect::<Vec<_>>()),
        bound: setup.bound(),
        deviation: estimate(&|o| o.deviations.last().copied().unwrap_or_default()),
        events: (event(&|o| o.events.first().copied()), event(&|o| o.events.last().copied())),
        dropped: estimate(&|o| o.dropped as f64).mean / seconds,
        moved: estimate(&|o| o.moved as f64).mean / seconds,
    }
}

fn run_all(setups: &[Setup], threads: usize, progress: &(dyn Fn(f64, usize) + Sync)) -> Vec<Outcome> {
    let done = AtomicUsize::new(0);
    threads::map(setups.len(), threads, |at| {
        let outcome = run(&setups[at]);
        progress((done.fetch_add(1, Ordering::Relaxed) + 1) as f64, setups.len());
        outcome
    })
}
