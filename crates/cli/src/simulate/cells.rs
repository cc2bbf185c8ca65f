//! Cells that were measured, and how they are written.

use sim::perf::Estimate;
use sim::perf::paper::{Cell, Measured};

use crate::plot::grouped;

pub(super) fn find(measured: &[Measured], cell: Cell) -> Option<&Measured> {
    measured.iter().find(|m| m.cell == cell)
}

pub(super) fn with_interval(estimate: Estimate, places: usize) -> String {
    let mean = if places == 0 { grouped(estimate.mean) } else { format!("{:.places$}", estimate.mean) };
    if estimate.half == 0.0 { mean } else { format!("{mean} ±{:.1} %", 100.0 * estimate.half / estimate.mean) }
}
