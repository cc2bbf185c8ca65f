//! Targets that are lost for good, and what is measured of how their copies are made again.

use hdrhistogram::Histogram;
use protocol::time::Span;

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The first target.
    Target,
    /// The first failure domain, with all its targets.
    Server,
}

/// A loss, at which the next map without those that are lost comes to all nodes: how it is found is not what is asked for here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// What.
    pub what: Lost,
    /// When, from the beginning of the run.
    pub at: Span,
    /// Chunks that each of the lost has, each as large as a chunk of the clients: all that targets hold from the beginning.
    pub chunks: u32,
}

/// Chunks whose lost copy can be read from the same targets, and written to the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Need {
    /// Those that have a copy left.
    pub readers: Vec<u32>,
    /// Members of their group that may take one.
    pub writers: Vec<u32>,
    /// How many chunks.
    pub chunks: u64,
}

/// What is measured of a loss.
#[derive(Clone, Debug)]
pub struct Mended {
    /// Copies that were too few when the loss came.
    pub lost: u64,
    /// Copies that were made since.
    pub made: u64,
    /// Copies that were made beside enough others.
    pub surplus: u64,
    /// Of those made, how many in the measured time; how many were to be made when it ended.
    pub in_time: u64,
    /// See `in_time`.
    pub left: u64,
    /// Nanoseconds from the loss to the first copy, and to the last.
    pub first: Option<u64>,
    /// See `first`.
    pub whole: Option<u64>,
    /// From when a holder is told to read a chunk until it has all its copies, of those restored in the measured time.
    pub took: Histogram<u64>,
    /// Questions of stewards that targets answered, from the loss on.
    pub censuses: u64,
    /// Of each target that is left, in the order of their numbers, the share of the measured time in which its disk worked.
    pub disks: Vec<(u32, f64)>,
    /// What was to be made.
    pub needs: Vec<Need>,
}

/// How often the work of all chunks is dealt to those that may do it, for [`bound`].
const PASSES: usize = 200;

/// Copies that can be made in a second when reading one takes a disk `read` seconds, writing one `write`, and disks have these shares
/// of their time left (by target): as many as come with the work of each chunk dealt in the best way to those that have the
/// chunk, and those that may take a copy of it.
#[must_use]
pub fn bound(needs: &[Need], left: &[(u32, f64)], read: f64, write: f64) -> f64 {
    let most = left.iter().map(|(target, _)| *target as usize + 1).max().unwrap_or(0);
    let mut room = vec![0.0; most];
    left.iter().for_each(|(target, left)| room[*target as usize] = left.max(1e-9));
    let all: u64 = needs.iter().map(|need| need.chunks).sum();
    let share = |need: &Need| need.chunks as f64 / all.max(1) as f64;
    let jobs =
        needs.iter().flat_map(|need| [(&need.readers, read * share(need)), (&need.writers, write * share(need))]);
    let mut jobs: Vec<(&Vec<u32>, f64, Vec<f64>)> =
        jobs.map(|(by, work)| (by, work, vec![work / by.len().max(1) as f64; by.len()])).collect();
    let mut load = vec![0.0; most];
    for (by, _, dealt) in &jobs {
        by.iter().zip(dealt).for_each(|(target, part)| load[*target as usize] += part);
    }
    // What is dealt so that no job alone could level those that do it further is the most even that there is.
    for _ in 0..PASSES {
        for (by, work, dealt) in &mut jobs {
            by.iter().zip(dealt.iter()).for_each(|(target, part)| load[*target as usize] -= part);
            level(by, *work, &room, &load, dealt);
            by.iter().zip(dealt.iter()).for_each(|(target, part)| load[*target as usize] += part);
        }
    }
    let fullest = load.iter().zip(&room).filter(|(load, _)| **load > 0.0).map(|(load, room)| load / room);
    1.0 / fullest.fold(1e-12, f64::max)
}

/// Deals work so that those that get some are equally full.
fn level(by: &[u32], work: f64, room: &[f64], load: &[f64], dealt: &mut [f64]) {
    let of = |target: &u32| (load[*target as usize], room[*target as usize]);
    let mut order: Vec<(f64, f64)> = by.iter().map(of).collect();
    order.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (mut loads, mut rooms, mut full) = (0.0, 0.0, 0.0);
    for (load, room) in order {
        if rooms > 0.0 && load / room >= full {
            break;
        }
        (loads, rooms) = (loads + load, rooms + room);
        full = (loads + work) / rooms;
    }
    for (target, part) in by.iter().zip(dealt) {
        let (load, room) = of(target);
        *part = (full * room - load).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(readers: &[u32], writers: &[u32], chunks: u64) -> Need {
        Need { readers: readers.to_vec(), writers: writers.to_vec(), chunks }
    }

    #[test]
    fn the_bound_is_what_the_targets_that_may_do_it_can_do() {
        let left = [(0, 0.3), (1, 0.3), (2, 0.3), (3, 0.3)];
        let close = |is: f64, should: f64| assert!((is / should - 1.0).abs() < 1e-3, "{is} is not {should}");
        // All four share a read and a write of a millisecond each.
        close(bound(&[need(&[0, 1], &[2, 3], 5)], &left, 1e-3, 1e-3), 600.0);
        // One has to take all copies.
        close(bound(&[need(&[0, 1], &[2], 5)], &left, 1e-3, 1e-3), 300.0);
        // Target 1 takes what target 2 has no time for, and target 0 what 1 would have read.
        let both = [need(&[0, 1], &[2, 3], 1), need(&[0], &[1, 2], 1)];
        close(bound(&both, &left, 1e-3, 1e-3), 600.0);
        close(bound(&[need(&[0, 1], &[2, 3], 5)], &[(0, 0.3), (1, 0.1), (2, 0.2), (3, 0.0)], 1e-3, 1e-3), 200.0);
    }
}
