//! The paper's messenger, simulated: the shape of its figures, and that a seed repeats a run.

use protocol::messenger::Policy;
use protocol::time::Span;
use sim::messenger::figures::{Cell, Figure, Variant};
use sim::messenger::{Direction, Outcome, Setup, run};

const KIB: u64 = 1 << 10;

fn cell(variant: Variant, direction: Direction, size: u64) -> Cell {
    Cell { full: false, moving: false, direction, size, variant }
}

fn seconds(setup: Setup, length: u64) -> Outcome {
    run(&Setup { length: Span::from_secs(length), ..setup })
}

/// By how many percent it is above the original, with the first seed, which every message names.
fn gain(cell: Cell) -> f64 {
    let of = |variant| seconds(Cell { variant, ..cell }.setup(1), 2).per_second;
    100.0 * (of(cell.variant) / of(Variant::Original) - 1.0)
}

#[test]
fn a_seed_repeats_a_run() {
    for seed in 1..4 {
        let setup = cell(Variant::Ours, Direction::Write, 64 * KIB).setup(seed);
        let (one, other) = (seconds(setup, 1), seconds(setup, 1));
        assert_eq!(
            (one.answered, one.handled, one.events),
            (other.answered, other.handled, other.events),
            "seed {seed}"
        );
        assert!(one.answered > 1_000, "seed {seed}");
    }
}

#[test]
fn the_papers_gains_come_out() {
    for figure in Figure::ALL {
        // The balancer's runs are long, and one seed is enough of them: writes of 4 KB.
        let published = figure.cells().into_iter().filter_map(|cell| Some((cell, cell.gain_published()?)));
        let short = |cell: &Cell| {
            let is_long = cell.variant.messenger().policy == Policy::Bytes && cell.direction == Direction::Write;
            !is_long || cell.size == 4 * KIB
        };
        for (cell, paper) in published.filter(|(cell, _)| short(cell)) {
            let gain = gain(cell);
            assert!((gain - paper).abs() <= 8.0, "seed 1, {cell:?}: {gain:.1} % instead of {paper} %");
        }
    }
}

#[test]
fn ours_is_ahead_or_costs_nothing_and_nobody_beats_the_bound() {
    for direction in [Direction::Read, Direction::Write] {
        for size in [4, 8, 64, 1_024] {
            let cell = cell(Variant::Ours, direction, size * KIB);
            let (gain, setup) = (gain(cell), cell.setup(1));
            assert!(gain >= if size < 64 { 5.0 } else { -2.0 }, "seed 1, {cell:?}: {gain:.1} %");
            let outcome = seconds(setup, 2);
            let (is, bound) = (outcome.per_second, setup.bound());
            assert!(is <= 1.01 * bound, "seed 1, {cell:?}: {is} of {bound}");
            assert_eq!(outcome.dropped, 0, "seed 1, {cell:?}");
        }
    }
}

#[test]
fn large_messages_overflow_ports_and_small_ones_do_not() {
    let dropped = |size| seconds(cell(Variant::Original, Direction::Write, size).setup(1), 1).dropped;
    assert_eq!((dropped(4 * KIB), dropped(8 * KIB)), (0, 0));
    assert!(dropped(64 * KIB) > 100 && dropped(1_024 * KIB) > 100);
}

/// Figure 2: nearly idle workers beside busy ones, and what becomes of them.
#[test]
fn connections_are_skewed_as_the_paper_says_and_ours_levels_them() {
    for seed in 1..4 {
        let of = |variant| {
            let outcome = seconds(cell(variant, Direction::Write, 4 * KIB).setup(seed), 4);
            let deviation = outcome.deviations.last().copied().unwrap_or_default();
            (outcome.events[0], outcome.events.last().copied().unwrap_or_default(), deviation)
        };
        let (original, ours) = (of(Variant::Original), of(Variant::Work));
        // 250 events in 180 s are six in 4 s.
        assert!(original.0 <= 6 && original.1 > 2_000 * 4, "seed {seed}: {original:?}");
        assert!(ours.0 > 100 * 4 && ours.2 < 0.7 * original.2, "seed {seed}: {ours:?} {original:?}");
    }
}

/// A skew that moves every second is too quick for a balancer that looks every 5 s, and reads it does not see at all.
#[test]
fn ours_follows_a_skew_that_moves() {
    for direction in [Direction::Read, Direction::Write] {
        let of = |variant| {
            let cell = Cell { moving: true, ..cell(variant, direction, 4 * KIB) };
            run(&Setup { warm_up: Span::from_secs(11), ..cell.setup(1) }).per_second
        };
        let (papers, ours) = (of(Variant::Balanced), of(Variant::Ours));
        assert!(ours > 1.15 * papers, "seed 1, {direction:?}: {ours} against {papers}");
    }
}
