//! The runs of a gateway: ids of versions, and which changes are not finished. `docs/cleaning.md` says what for.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::host::Host;
use catalog::object_manifest::VersionId;
use catalog::{Catalog, CatalogError, Change, Run};

/// How often a gateway says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(10);

/// How long the runs of gateways live without a heartbeat: the same for all gateways of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct RunTiming {
    /// How far beyond now a run may begin changes until it says so again: two heartbeats.
    pub lease: Duration,
    /// A run that did not say anything for this long is ended by any gateway that notices: six heartbeats.
    pub dead_after: Duration,
    /// For how long changes in doubt keep a run from saying that what came later is settled; then another run goes on, so that
    /// they keep only this one from it.
    pub undecided_for: Duration,
}

impl Default for RunTiming {
    fn default() -> Self {
        Self { lease: HEARTBEAT * 2, dead_after: HEARTBEAT * 6, undecided_for: HEARTBEAT * 60 }
    }
}

/// The run of a process, and those before it that have changes in flight or in doubt.
#[derive(Debug)]
pub(crate) struct Runs {
    state: Mutex<State>,
    /// Held while reporting to the catalog, so that one report follows the other.
    reporting: Mutex<SeenRuns>,
    host: Arc<dyn Host>,
    timing: RunTiming,
}

#[derive(Debug)]
struct State {
    /// The last time that was issued, microseconds since 1970.
    last: u64,
    run: OwnRun,
    before: Vec<OwnRun>,
}

#[derive(Debug)]
struct OwnRun {
    id: u64,
    /// As the catalog has it; 0 while it does not know of this run.
    until: u64,
    /// When the changes began that are not settled, and whether they are over, with an outcome that is not known.
    open: BTreeMap<u64, bool>,
}

/// How far other runs had come, and when that was seen first.
type SeenRuns = HashMap<u64, (u64, Duration)>;

/// A change under way. Unless it is [settled](Self::settle), its outcome counts as not known when this is dropped.
#[derive(Debug)]
pub(crate) struct Flight<'a> {
    runs: &'a Runs,
    /// When it began, and in which run.
    pub(crate) begun: VersionId,
}

impl Flight<'_> {
    /// The catalog made the change; or it did not and never will, and the manifests do not say that it did.
    pub(crate) fn settle(self) {
        self.runs.lock().close(self.begun, |open, micros| {
            open.remove(&micros);
        });
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.runs.lock().close(self.begun, |open, micros| {
            if let Some(over) = open.get_mut(&micros) {
                *over = true;
            }
        });
    }
}

impl State {
    /// A time that was not issued before, and is later than this one.
    fn next(&mut self, now: u64, later_than: u64) -> u64 {
        self.last = now.max(self.last + 1).max(later_than + 1);
        self.last
    }

    fn find(&mut self, id: u64) -> Option<&mut OwnRun> {
        std::iter::once(&mut self.run).chain(&mut self.before).find(|own| own.id == id)
    }

    fn close(&mut self, begun: VersionId, close: impl FnOnce(&mut BTreeMap<u64, bool>, u64)) {
        if let Some(own) = self.find(begun.run()) {
            close(&mut own.open, begun.micros());
        }
    }

    /// Goes on with another run, if this is the one of now.
    fn replace(&mut self, id: u64, fresh: u64) {
        if self.run.id == id {
            let old = std::mem::replace(&mut self.run, OwnRun::new(fresh));
            self.before.extend((old.until > 0).then_some(old));
        }
    }
}

impl OwnRun {
    const fn new(id: u64) -> Self {
        Self { id, until: 0, open: BTreeMap::new() }
    }

    /// Whether nothing of it is under way.
    fn is_over(&self) -> bool {
        self.open.values().all(|over| *over)
    }
}

impl Runs {
    pub(crate) fn new(host: Arc<dyn Host>, timing: RunTiming) -> Self {
        let state = State { last: 0, run: OwnRun::new(host.random()), before: vec![] };
        Self { state: Mutex::new(state), reporting: Mutex::default(), host, timing }
    }

    /// Microseconds since 1970.
    fn now(&self) -> u64 {
        self.host.wall().as_micros() as u64
    }

    /// The right to report to the catalog, once whoever has it is done.
    fn reporting(&self) -> MutexGuard<'_, SeenRuns> {
        self.host.before_lock(&|| !matches!(self.reporting.try_lock(), Err(TryLockError::WouldBlock)));
        self.reporting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A version id that this process has not issued before, for what has no manifest.
    pub(crate) fn next(&self) -> VersionId {
        let mut state = self.lock();
        VersionId::new(state.next(self.now(), 0), state.run.id)
    }

    /// Begins a change after this time.
    pub(crate) fn begin(&self, catalog: &dyn Catalog, later_than: u64) -> Result<Flight<'_>, CatalogError> {
        loop {
            {
                let mut state = self.lock();
                let micros = state.next(self.now(), later_than);
                if micros <= state.run.until {
                    state.run.open.insert(micros, false);
                    return Ok(Flight { runs: self, begun: VersionId::new(micros, state.run.id) });
                }
            }
            let _others = self.reporting();
            // Another thread may have reported it meanwhile.
            let is_reported = {
                let state = self.lock();
                state.last.max(self.now()) < state.run.until
            };
            if !is_reported {
                self.report(catalog, true)?;
            }
        }
    }

    /// The catalog took this run for dead: what is begun from now on is of another.
    pub(crate) fn ended(&self, id: u64) {
        self.lock().replace(id, self.host.random());
    }

    /// Tells the catalog that the runs of this process live, and ends those of others that do not; `now` is of its stopwatch.
    pub(crate) fn heartbeat(&self, catalog: &dyn Catalog, now: Duration) -> Result<(), CatalogError> {
        let mut others = self.reporting();
        let old = {
            let state = self.lock();
            let in_doubt = state.run.open.iter().find(|(_, over)| **over);
            in_doubt
                .filter(|(micros, _)| **micros + micros_of(self.timing.undecided_for) < state.last.max(self.now()))
                .map(|_| state.run.id)
        };
        old.into_iter().for_each(|id| self.ended(id));
        self.report(catalog, false)?;
        let own: Vec<u64> = {
            let state = self.lock();
            std::iter::once(&state.run).chain(&state.before).map(|own| own.id).collect()
        };
        let runs = catalog.runs()?.into_iter().filter(|run| !run.ended && !own.contains(&run.id));
        let mut seen = SeenRuns::new();
        for Run { id, until, .. } in runs {
            let known = others.get(&id).filter(|known| known.0 == until).copied().unwrap_or((until, now));
            if now.saturating_sub(known.1) < self.timing.dead_after {
                seen.insert(id, known);
                continue;
            }
            match catalog.change(Change::EndRun { run: id, until }) {
                Ok(()) | Err(CatalogError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        *others = seen;
        Ok(())
    }

    /// Ends the runs of this process; one that has changes under way is left to others.
    pub(crate) fn end(&self, catalog: &dyn Catalog) -> Result<(), CatalogError> {
        let _others = self.reporting();
        let id = self.lock().run.id;
        self.ended(id);
        self.report(catalog, false)
    }

    /// Reports how far the runs of this process have come, and ends those before this one when nothing of them is under way.
    /// A run that never began anything needs not be known, but when it is about `to_begin`.
    fn report(&self, catalog: &dyn Catalog, to_begin: bool) -> Result<(), CatalogError> {
        let all: Vec<_> = {
            let state = self.lock();
            let lease = state.last.max(self.now()) + micros_of(self.timing.lease);
            // All that begins later has a later time than `last`.
            let settled = |own: &OwnRun| own.open.first_key_value().map_or(state.last + 1, |(micros, _)| *micros);
            let progress = |own: &OwnRun, ends: bool| {
                // Further than before, whatever the clock does: a run that stands still is taken for dead.
                let until = lease.max(own.until + 1);
                (own.until > 0 || (to_begin && !ends)).then(|| (own.id, settled(own), ends, own.until, until))
            };
            let before = state.before.iter().filter_map(|own| progress(own, own.is_over()));
            before.chain(progress(&state.run, false)).collect()
        };
        for (run, settled, ends, reported, until) in all {
            let mut outcome = catalog.change(Change::Heartbeat { run, settled, until, reported });
            if ends && outcome.is_ok() {
                outcome = catalog.change(Change::EndRun { run, until });
            }
            let ended = match outcome {
                Ok(()) => ends,
                // Others took it for dead.
                Err(CatalogError::Refused(_)) => true,
                Err(error) => return Err(error),
            };
            if ended {
                self.ended(run);
                self.lock().before.retain(|own| own.id != run);
                continue;
            }
            if let Some(own) = self.lock().find(run) {
                own.until = until;
            }
        }
        Ok(())
    }
}

fn micros_of(time: Duration) -> u64 {
    time.as_micros() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use catalog::{RETURNED, Sqlite};

    use super::*;
    use crate::host::System;

    fn runs() -> Runs {
        Runs::new(Arc::new(System::default()), RunTiming::default())
    }

    fn of(catalog: &Sqlite, id: u64) -> Run {
        catalog.runs().unwrap().into_iter().find(|run| run.id == id).unwrap()
    }

    #[test]
    fn a_silent_run_is_ended_and_a_living_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let catalog = Sqlite::open(&place.path().join("catalog")).unwrap();
        let (silent, living, watcher) = (runs(), runs(), runs());
        let ids = [&silent, &living].map(|runs| {
            let flight = runs.begin(&catalog, 0).unwrap();
            let id = flight.begun.run();
            flight.settle();
            id
        });
        let begin = Duration::ZERO;
        for seconds in [0, 30, 59] {
            living.heartbeat(&catalog, begin).unwrap();
            watcher.heartbeat(&catalog, begin + Duration::from_secs(seconds)).unwrap();
            assert!(ids.iter().all(|id| !of(&catalog, *id).ended), "after {seconds} s");
        }
        watcher.heartbeat(&catalog, begin + RunTiming::default().dead_after).unwrap();
        assert_eq!(ids.map(|id| of(&catalog, id).ended), [true, false]);
        // It finds out, and goes on.
        silent.heartbeat(&catalog, begin).unwrap();
        let next = silent.begin(&catalog, 0).unwrap().begun.run();
        assert!(next != ids[0] && !of(&catalog, next).ended);
    }

    #[test]
    fn what_is_under_way_or_in_doubt_is_not_settled() {
        let place = tempfile::tempdir().unwrap();
        let catalog = Sqlite::open(&place.path().join("catalog")).unwrap();
        let (runs, now) = (runs(), Duration::ZERO);
        let first = runs.begin(&catalog, 0).unwrap();
        let (begun, id) = (first.begun, first.begun.run());
        let second = runs.begin(&catalog, 0).unwrap();
        assert!(second.begun > begun);
        second.settle();
        let settled = || {
            runs.heartbeat(&catalog, now).unwrap();
            of(&catalog, id).settled
        };
        assert_eq!(settled(), begun.micros());
        // Its outcome is not known.
        drop(first);
        assert_eq!(settled(), begun.micros());
        let much_later = runs.begin(&catalog, begun.micros() + micros_of(RunTiming::default().undecided_for)).unwrap();
        assert_eq!(much_later.begun.run(), id);
        assert_eq!(settled(), begun.micros());
        let other = runs.begin(&catalog, 0).unwrap();
        assert!(other.begun.run() != id && !of(&catalog, id).ended);
        much_later.settle();
        assert_eq!(settled(), begun.micros());
        assert!(of(&catalog, id).ended, "nothing of it is under way");
        // The next one is not kept back by that.
        let next = other.begun;
        other.settle();
        runs.heartbeat(&catalog, now).unwrap();
        assert!(of(&catalog, next.run()).settled > next.micros());
    }

    /// A machine whose wall clock is set.
    #[derive(Debug, Default)]
    struct Set(Mutex<u64>);

    impl Host for Set {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }

        fn wall(&self) -> Duration {
            Duration::from_secs(*self.0.lock().unwrap())
        }

        fn random(&self) -> u64 {
            let mut now = self.0.lock().unwrap();
            *now += 1;
            *now
        }
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_no_run_from_showing_that_it_lives() {
        let place = tempfile::tempdir().unwrap();
        let catalog = Sqlite::open(&place.path().join("catalog")).unwrap();
        let host = Arc::new(Set(Mutex::new(1_000_000)));
        let runs = Runs::new(Arc::clone(&host) as Arc<dyn Host>, RunTiming::default());
        let open = runs.begin(&catalog, 0).unwrap();
        let (first, now) = (open.begun.run(), Duration::ZERO);
        runs.heartbeat(&catalog, now).unwrap();
        // From here on the first is one of those before, which is kept by what it has open.
        runs.ended(first);
        runs.begin(&catalog, 0).unwrap().settle();
        *host.0.lock().unwrap() = 500_000;
        let second = runs.lock().run.id;
        let until = |id| of(&catalog, id).until;
        for _ in 0..3 {
            let before = [first, second].map(until);
            runs.heartbeat(&catalog, now).unwrap();
            let after = [first, second].map(until);
            assert!(before[0] < after[0] && before[1] < after[1], "{before:?} {after:?}");
        }
        assert!(catalog.runs().unwrap().iter().all(|run| run.id != RETURNED), "the catalog did not go back");
        drop(open);
    }

    #[test]
    fn a_run_that_outlives_a_catalog_that_went_back_says_so() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("catalog");
        let catalog = Sqlite::open(&path).unwrap();
        let (runs, now) = (runs(), Duration::ZERO);
        runs.begin(&catalog, 0).unwrap().settle();
        runs.heartbeat(&catalog, now).unwrap();
        runs.heartbeat(&catalog, now).unwrap();
        assert!(catalog.runs().unwrap().iter().all(|run| run.id != 0));
        let reported = runs.lock().run.until;
        // As a standby that lagged.
        let standby = rusqlite::Connection::open(&path).unwrap();
        standby.execute("UPDATE runs SET lease = lease - 3000000", []).unwrap();
        runs.heartbeat(&catalog, now).unwrap();
        assert_eq!(of(&catalog, 0).until, reported);
        // What it says is not taken back by a catalog that went back less.
        standby.execute("UPDATE runs SET lease = lease - 1 WHERE id <> x'0000000000000000'", []).unwrap();
        runs.heartbeat(&catalog, now).unwrap();
        assert!(of(&catalog, 0).until >= reported);
    }

    #[test]
    fn nothing_begins_beyond_what_was_reported_to_the_catalog() {
        let place = tempfile::tempdir().unwrap();
        let catalog = Sqlite::open(&place.path().join("catalog")).unwrap();
        let runs = runs();
        for later_than in [0, 1 << 60, 0, 1 << 61] {
            let flight = runs.begin(&catalog, later_than).unwrap();
            assert!(flight.begun.micros() > later_than);
            let known = of(&catalog, flight.begun.run());
            assert!((known.settled..=known.until).contains(&flight.begun.micros()), "{known:?}");
        }
    }
}
