//! A port's reservations: who has it when. One transfer at a time; holes are found and reused.

use smallvec::SmallVec;

use crate::id::TxnId;
use crate::time::{Instant, Span};

/// The windows of one port in one direction, in order of their beginnings; without overlaps, but where [windows](Self::insert_overlapping) of
/// several calendars are looked at together.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    windows: SmallVec<[Window; 4]>,
}

/// One reserved stretch of time: `start` is in it, `end` is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First moment.
    pub start: Instant,
    /// First moment after it.
    pub end: Instant,
    /// Whose it is.
    pub txn: TxnId,
}

/// The shortest hole that will do for a `transfer`. Windows of any beginning leave holes that are a little too short: one may
/// lack a quarter. What runs on into the next window waits for the port.
#[must_use]
pub fn least(transfer: Span) -> Span {
    transfer.less(transfer.div(4))
}

impl Calendar {
    pub(crate) fn prefetch(&self) -> u64 {
        self.windows.first().map_or(0, |w| w.start.as_nanos()) ^ self.windows.last().map_or(0, |w| w.end.as_nanos())
    }

    /// The earliest hole of at least `length` that begins at or after `from`: its begin and its end (which is
    /// [`Instant::FAR`] behind the last window).
    #[must_use]
    pub fn hole(&self, from: Instant, length: Span) -> (Instant, Instant) {
        let mut start = from;
        for window in &self.windows {
            if window.start >= start + length {
                return (start, window.start);
            }
            start = start.max(window.end);
        }
        (start, Instant::FAR)
    }

    /// The same for a `transfer`, in a hole that will [do](least).
    #[must_use]
    pub fn hole_for(&self, from: Instant, transfer: Span) -> (Instant, Instant) {
        self.hole(from, least(transfer))
    }

    /// Reserves a window from its beginning on as far as it is free.
    pub fn insert_free(&mut self, window: Window) {
        let (start, until) = self.hole(window.start, Span::from_nanos(1));
        if start == window.start {
            self.insert(Window { end: window.end.min(until), ..window });
        }
    }

    /// Reserves a window. It must lie in a hole. An empty one reserves nothing.
    pub fn insert(&mut self, window: Window) {
        assert!(window.start <= window.end, "a window ends before it begins: {window:?}");
        if window.start == window.end {
            return;
        }
        let at = self.windows.partition_point(|w| w.start < window.start);
        assert!(at == 0 || self.windows[at - 1].end <= window.start, "overlaps the window before: {window:?}");
        assert!(self.windows.get(at).is_none_or(|w| window.end <= w.start), "overlaps the next window: {window:?}");
        self.windows.insert(at, window);
    }

    /// Reserves a window that may overlap others: where one must not get in the way of several that do not know of each other.
    pub fn insert_overlapping(&mut self, window: Window) {
        let at = self.windows.partition_point(|w| w.start < window.start);
        self.windows.insert(at, window);
    }

    /// Frees whatever `txn` has.
    pub fn remove(&mut self, txn: TxnId) {
        self.windows.retain(|w| w.txn != txn);
    }

    /// Shrinks the window of `txn` to the part from `start` to `end`; when there is none, the window is freed.
    pub fn trim(&mut self, txn: TxnId, start: Instant, end: Instant) {
        for window in self.windows.iter_mut().filter(|w| w.txn == txn) {
            window.start = window.start.max(start).min(window.end);
            window.end = window.end.min(end).max(window.start);
        }
        self.windows.retain(|w| w.start < w.end);
    }

    /// Forgets windows that are over.
    pub fn prune(&mut self, now: Instant) {
        self.windows.retain(|w| w.end > now);
    }

    /// Windows in order of time.
    pub fn windows(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(n: u64) -> Instant {
        Instant::from_nanos(n)
    }

    fn window(start: u64, end: u64, txn: u64) -> Window {
        Window { start: at(start), end: at(end), txn: TxnId(txn) }
    }

    #[test]
    fn a_freed_hole_is_offered_again() {
        let mut calendar = Calendar::default();
        for n in 0..3 {
            calendar.insert(window(n * 100, n * 100 + 100, n));
        }
        calendar.remove(TxnId(1));
        assert_eq!(calendar.hole(at(0), Span::from_nanos(100)), (at(100), at(200)));
        assert_eq!(calendar.hole(at(0), Span::from_nanos(101)), (at(300), Instant::FAR));
        calendar.trim(TxnId(0), at(0), at(40));
        assert_eq!(calendar.hole(at(0), Span::from_nanos(101)), (at(40), at(200)));
    }

    #[test]
    fn an_empty_window_is_in_nobodys_way() {
        let mut calendar = Calendar::default();
        calendar.insert(window(100, 200, 1));
        calendar.trim(TxnId(1), at(200), at(200));
        calendar.insert(window(200, 200, 2));
        assert_eq!(calendar.windows().count(), 0);
        calendar.insert(window(200, 300, 3));
        assert_eq!(calendar.hole(at(0), Span::from_nanos(200)), (at(0), at(200)));
    }

    proptest! {
        #[test]
        fn holes_are_free_and_earliest(lengths in prop::collection::vec((0_u64..500, 1_u64..80), 1..40)) {
            let mut calendar = Calendar::default();
            for (txn, (from, length)) in lengths.iter().enumerate() {
                let (start, end) = calendar.hole(at(*from), Span::from_nanos(*length));
                prop_assert!(start >= at(*from) && start + Span::from_nanos(*length) <= end);
                for earlier in *from..start.as_nanos() {
                    let taken = calendar.windows().any(|w| w.start < at(earlier + length) && at(earlier) < w.end);
                    prop_assert!(taken, "a hole at {} was missed", earlier);
                }
                calendar.insert(window(start.as_nanos(), start.as_nanos() + length, txn as u64));
            }
        }
    }
}
