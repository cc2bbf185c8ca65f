//! What a target knows of its disk: how long it is busy with what comes, and when a write is durable.

use super::{Instant, Pending, Reservation, Span, Stage, Target};

impl Target {
    /// When a write of `size` that is handed over at `at` should be durable: behind those before it, of which the tentative
    /// ones count by the share of them that is accepted. What yields is behind all but such as `yields` itself.
    pub(super) fn disk_done(&self, at: Instant, size: u32, yields: bool) -> Instant {
        // Chunks are mostly of one size, and what one takes is the same for all of it.
        let (mut of, mut each) = (size, self.writes.ahead(size));
        let mut sure = self.scrub_until.since(self.now);
        let mut tentative = Span::ZERO;
        let comes = |r: &Reservation| r.stage != Stage::Resting && r.window.0 <= at && (yields || !r.yields);
        let is_before = |r: &&Reservation| r.stage == Stage::Writing || comes(r);
        for r in self.reservations.values().filter(is_before) {
            let sum = if r.stage == Stage::Tentative { &mut tentative } else { &mut sure };
            let own = r.incoming.size();
            if own != of {
                (of, each) = (own, self.writes.ahead(own));
            }
            *sum = *sum + each;
        }
        let sure = sure.max(self.at_write()) + self.restore_reads_ahead();
        self.writes.done(self.now, at, sure + self.accept_rate.scale(tentative), size)
    }

    /// How long the disk has been at the write that it does now. The next is expected to take at least as long:
    /// otherwise a disk that hangs would look as fast as one that was never tried.
    fn at_write(&self) -> Span {
        let begun = |pending: &Pending| if let Pending::Write { begun, .. } = pending { Some(*begun) } else { None };
        self.writes.at_work(self.now, self.oldest(begun))
    }

    /// What the disk will be busy with: all that is sure to come, and goes before what yields.
    pub(in crate::target) fn disk_backlog(&self) -> Span {
        self.backlog(|r| r.stage == Stage::Writing || (r.stage.is_open() || r.stage.is_here()) && !r.yields)
    }

    /// The part of it that is with the disk.
    pub(in crate::target) fn writing(&self) -> Span {
        self.backlog(|r| r.stage == Stage::Writing)
    }

    fn backlog(&self, counts: impl Fn(&Reservation) -> bool) -> Span {
        let writes = self.reservations.values().filter(|r| counts(r));
        let each = writes.map(|r| self.writes.ahead(r.incoming.size()));
        each.fold(self.scrub_until.since(self.now), |sum, each| sum + each).max(self.at_write())
    }

    /// What a write of `size` keeps the disk from the next one by, and what it takes by itself.
    pub(in crate::target) fn write_times(&self, size: u32) -> (Span, Span) {
        (self.writes.each(self.now, size), self.writes.done(self.now, self.now, Span::ZERO, size).since(self.now))
    }
}
