//! Is a history of concurrent clients linearizable? One register that is written, written on a condition, read and
//! removed: could each operation have happened at one moment between its call and its answer?
//!
//! The search is that of Wing and Gong, with the memory of Lowe: the operations that may come next are tried one after
//! the other, and no two ways to the same set of operations with the same value are followed.

use std::collections::HashSet;

/// What a register holds; `None`: nothing.
pub type Value = Option<u64>;

/// What was asked for, and what was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// Found this value.
    Read(Value),
    /// Put a value, or removed it, whatever was there.
    Write(Value),
    /// Put `value`, because there was what was asked for.
    Swap {
        /// What had to be there.
        from: Value,
        /// What was put.
        value: u64,
    },
    /// Did not put anything, because there was something other than this.
    Mismatch(Value),
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// What it did.
    pub did: Did,
    /// When it was called, in any unit.
    pub called: u64,
    /// When it was answered, in the same unit; `None`: never, so that it may have happened or not, at any time after its
    /// call.
    pub answered: Option<u64>,
}

impl Did {
    /// What the register holds afterwards; `None` when it cannot have happened with `now` in it.
    fn after(self, now: Value) -> Option<Value> {
        match self {
            Self::Read(found) => (found == now).then_some(now),
            Self::Write(value) => Some(value),
            Self::Swap { from, value } => (from == now).then_some(Some(value)),
            Self::Mismatch(wanted) => (wanted != now).then_some(now),
        }
    }
}

/// Whether the operations, on a register that held `first`, could have happened one after the other.
#[must_use]
pub fn linearizable(first: Value, operations: &[Operation]) -> bool {
    let mut order: Vec<Operation> = operations.to_vec();
    order.sort_by_key(|operation| operation.called);
    let mut seen = HashSet::new();
    let mut ways = vec![(vec![0_u64; order.len().div_ceil(64)], first)];
    while let Some((done, now)) = ways.pop() {
        let is_done = |n: usize| done[n / 64] >> (n % 64) & 1 == 1;
        let left = || (0..order.len()).filter(|n| !is_done(*n));
        // Nothing may come before an operation that was answered before it was called.
        let Some(limit) = left().filter_map(|n| order[n].answered).min() else { return true };
        for next in left().take_while(|n| order[*n].called <= limit) {
            let Some(then) = order[next].did.after(now) else { continue };
            let mut further = done.clone();
            further[next / 64] |= 1 << (next % 64);
            if seen.insert((further.clone(), then)) {
                ways.push((further, then));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(called: u64, answered: u64, did: Did) -> Operation {
        Operation { did, called, answered: Some(answered) }
    }

    fn unanswered(called: u64, did: Did) -> Operation {
        Operation { did, called, answered: None }
    }

    #[test]
    fn what_one_copy_could_have_said_is_linearizable() {
        use Did::{Mismatch, Read, Swap, Write};
        let history = [
            at(0, 9, Write(Some(1))),
            at(1, 3, Read(None)),
            at(4, 5, Read(Some(1))),
            at(6, 20, Swap { from: Some(1), value: 2 }),
            at(7, 19, Mismatch(None)),
            at(10, 12, Read(Some(2))),
            at(21, 22, Write(None)),
            at(23, 24, Read(None)),
        ];
        assert!(linearizable(None, &history));
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = [at(0, 1, Did::Write(Some(1))), at(2, 3, Did::Read(None))];
        assert!(!linearizable(None, &history));
        let back = [at(0, 9, Did::Write(Some(1))), at(1, 2, Did::Read(Some(1))), at(3, 4, Did::Read(None))];
        assert!(!linearizable(None, &back));
    }

    #[test]
    fn a_lost_write_is_found() {
        let history = [
            at(0, 5, Did::Write(Some(1))),
            at(1, 6, Did::Write(Some(2))),
            at(7, 8, Did::Read(Some(2))),
            at(9, 10, Did::Read(Some(1))),
        ];
        assert!(!linearizable(None, &history));
    }

    #[test]
    fn two_winners_of_one_condition_are_found() {
        let swap = |called, value| at(called, 9, Did::Swap { from: None, value });
        assert!(linearizable(None, &[swap(0, 1)]));
        assert!(!linearizable(None, &[swap(0, 1), swap(1, 2)]));
        assert!(!linearizable(Some(7), &[at(0, 1, Did::Mismatch(Some(7)))]));
    }

    #[test]
    fn what_was_not_answered_may_have_happened_or_not_but_not_before_its_call() {
        let write = unanswered(5, Did::Write(Some(1)));
        assert!(linearizable(None, &[write, at(6, 7, Did::Read(Some(1)))]));
        assert!(linearizable(None, &[write, at(6, 7, Did::Read(None)), at(90, 91, Did::Read(Some(1)))]));
        assert!(linearizable(None, &[write, at(6, 7, Did::Read(None))]));
        assert!(!linearizable(None, &[write, at(1, 2, Did::Read(Some(1)))]));
        assert!(!linearizable(None, &[write, at(6, 7, Did::Read(Some(1))), at(8, 9, Did::Read(None))]));
    }

    #[test]
    fn many_who_overlap_are_judged_soon() {
        let wide = |n: u64| at(n, 1_000 + n, Did::Write(Some(n % 5)));
        let mut history: Vec<Operation> = (0..14).map(wide).collect();
        history.push(at(2_000, 2_001, Did::Read(Some(4))));
        assert!(linearizable(None, &history));
        history.push(at(2_002, 2_003, Did::Read(Some(3))));
        assert!(!linearizable(None, &history));
    }
}
