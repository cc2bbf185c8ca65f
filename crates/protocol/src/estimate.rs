//! What nodes learn from what happened: rates and times, in integers.

use crate::flat_map::FlatMap;
use crate::time::{Instant, Span};

/// What is thought of a disk as long as nothing is measured.
#[derive(Clone, Copy, Debug)]
pub struct Assumption {
    /// Bytes per second.
    pub rate: u64,
    /// The time over which a measurement drifts back to what is assumed without one. Otherwise a target that was slow
    /// once would never get a chance to show that it is well again.
    pub drift: Span,
}

/// The rate of writes where nothing was measured. It is higher than any disk's, so that disks without measurements are
/// tried, and measured ones are not preferred to them. A slow disk is tried once in the time of the drift, which costs
/// one chunk. A quick disk that was unlucky once gets nothing for that long, while others do its work.
pub const WRITES: Assumption = Assumption { rate: 16_000_000_000, drift: Span::from_secs(2) };

/// Of reads. A get has fewer holders to choose from, and one whose bid promises too much occupies the reader's port with a
/// late transfer: so this is modest, and what was measured lasts.
pub const READS: Assumption = Assumption { rate: 400_000_000, drift: Span::from_secs(10) };

/// Over how much time a port's rate that is not measured again drifts back to what was assumed.
const DRIFT: Span = Span::from_secs(10);

/// Each sample extends the memory by this much, up to all of it: one stall is soon forgotten.
const DRIFT_FOR_EACH: Span = Span::from_millis(50);

/// Between what was learned `age` ago and what is assumed; all of the latter after `over`.
fn drifted(learned: u64, assumed: u64, age: Span, over: Span) -> u64 {
    if age == Span::ZERO {
        return learned;
    }
    let (age, whole) = (u128::from(age.as_nanos().min(over.as_nanos())), u128::from(over.as_nanos().max(1)));
    let sum = u128::from(learned) * (whole - age) + u128::from(assumed) * age;
    match u64::try_from(sum) {
        Ok(sum) => sum / over.as_nanos().max(1),
        Err(_) => u64::try_from(sum / whole).unwrap_or(u64::MAX),
    }
}

/// Transfers that a rate is taken from.
const RECENT: usize = 8;

/// So many of these were slower than the rate: transfers are late because of their senders more often than they are faster than
/// the port.
const SLOWER: usize = 5;

/// A rate in bytes per second that follows the transfers that really took place: most of the last ones were not above
/// it. A transfer is also slow when its sender was kept waiting, which says nothing about the port. And a transfer that
/// a busy receiver took from its memory is faster than any port.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    assumed: u64,
    learned: u64,
    recent: [u64; RECENT],
    /// Which of them is the oldest.
    oldest: usize,
    at: Instant,
}

impl Rate {
    pub(crate) const fn prefetch(&self) -> u64 {
        self.learned ^ self.at.as_nanos()
    }

    /// Begins with an assumption.
    #[must_use]
    pub const fn new(assumed: u64) -> Self {
        let assumed = if assumed == 0 { 1 } else { assumed };
        Self { assumed, learned: assumed, recent: [assumed; RECENT], oldest: 0, at: Instant::ZERO }
    }

    /// Takes a transfer into account that ended now.
    pub fn sample(&mut self, now: Instant, bytes: u64, took: Span) {
        // No port becomes many times faster at once; a processor that takes a copy from its memory looks like one that did.
        let seen = took.rate_of(bytes).min(self.get(now).saturating_mul(4)).max(1);
        self.recent[self.oldest] = seen;
        self.oldest = (self.oldest + 1) % RECENT;
        let mut sorted = self.recent;
        sorted.sort_unstable();
        self.learned = sorted[SLOWER];
        self.at = now;
    }

    /// Bytes per second.
    #[must_use]
    pub fn get(self, now: Instant) -> u64 {
        drifted(self.learned, self.assumed, now.since(self.at), DRIFT).max(1)
    }

    /// How long `bytes` take.
    #[must_use]
    pub fn span(self, now: Instant, bytes: u64) -> Span {
        Span::of_transfer(bytes, self.get(now))
    }
}

/// Longest patience, in times of what is assumed to be late.
const PATIENCE: u64 = 3;

/// A time with its mean and mean deviation, as TCP keeps its round trips.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatencyEstimate {
    mean: u64,
    deviation: u64,
    smallest: u64,
}

impl LatencyEstimate {
    /// Takes a measurement into account.
    pub fn sample(&mut self, took: Span) {
        self.sample_handled(took, took);
    }

    /// Takes into account what arrived after `arrived` and was handled after `took`: the smallest is of arrivals, all else of what
    /// one has to wait for.
    pub fn sample_handled(&mut self, arrived: Span, took: Span) {
        let (seen, arrived) = (took.as_nanos(), arrived.as_nanos());
        if self.mean == 0 {
            *self = Self { mean: seen, deviation: seen / 2, smallest: arrived };
            return;
        }
        self.deviation = self.deviation - self.deviation / 4 + self.mean.abs_diff(seen) / 4;
        self.mean = self.mean - self.mean / 8 + seen / 8;
        // The smallest creeps up, so that a path that became longer is noticed.
        self.smallest = arrived.min(self.smallest + self.smallest / 256 + 1);
    }

    /// Mean and four deviations: what is longer than this is late. `None` before the first measurement.
    #[must_use]
    pub fn late(&self) -> Option<Span> {
        (self.mean > 0).then(|| Span::from_nanos(self.mean.saturating_add(4 * self.deviation)))
    }

    /// Mean and one deviation: most are not longer. Zero before the first measurement.
    #[must_use]
    pub const fn usual(&self) -> Span {
        Span::from_nanos(self.mean.saturating_add(self.deviation))
    }

    /// How long to wait for what did not come, after having asked in vain `asked` times: [`LatencyEstimate::late`], at least a tenth
    /// of `late`, which is assumed to begin with; doubled each time, up to some times `late`.
    #[must_use]
    pub fn patience(&self, asked: u8, late: Span) -> Span {
        let seen = self.late().map_or(late, |seen| seen.max(late.div(10)));
        seen.times(1 << asked.min(8)).min(late.times(PATIENCE))
    }

    /// What one measurement differs from the mean by, mostly; zero before the first.
    #[must_use]
    pub const fn deviation(&self) -> Span {
        Span::from_nanos(self.deviation)
    }

    /// The smallest of late; zero before the first measurement.
    #[must_use]
    pub const fn smallest(&self) -> Span {
        Span::from_nanos(self.smallest)
    }
}

/// How long a disk takes for one operation, by size class (powers of two), learned from completions.
#[derive(Clone, Debug)]
struct DiskTime {
    assumed: Assumption,
    classes: FlatMap<u32, Learned, 1>,
}

#[derive(Clone, Copy, Debug)]
struct Learned {
    nanos: u64,
    /// When it was measured last, and how often.
    at: Instant,
    times: u64,
    /// The operations that were done last at about the same time: what they took together, how many they are, and what was
    /// known before them.
    batch: (u64, u64),
    before: Option<u64>,
}

/// Operations are taken for done together when one follows the others within this part of what they took.
const TOGETHER: u64 = 8;

/// Most that are.
const BATCH: u64 = 64;

impl Learned {
    /// With one more measurement. Those that are done together share what the first seems to take: each by itself would
    /// look slow or free. A disk that was unlucky once, is half forgotten, and does well when it is tried again is not
    /// judged by that any more. One that is slow again is known for it at once.
    fn and(this: Option<Self>, now: Instant, seen: u64, (assumed, drift): (u64, Span)) -> Self {
        let Some(last) = this else {
            return Self { nanos: seen, at: now, times: 1, batch: (seen, 1), before: None };
        };
        let ((took, count), times) = (last.batch, last.times + 1);
        let follows = seen < took / TOGETHER && now.since(last.at).as_nanos() < took;
        let (batch, before) = if follows && count < BATCH {
            ((took + seen, count + 1), last.before)
        } else {
            ((seen, 1), Some(last.confirmed(now, seen, (assumed, drift))))
        };
        let mean = batch.0 / batch.1;
        let nanos = before.map_or(mean, |before| before - before / 8 + mean / 8);
        Self { nanos, at: now, times, batch, before }
    }

    /// What was known before one that took `seen`: what was learned, or what is left of it, whichever is nearer.
    fn confirmed(&self, now: Instant, seen: u64, (assumed, drift): (u64, Span)) -> u64 {
        let left = self.expect(now, (assumed, drift));
        if seen.abs_diff(self.nanos) < seen.abs_diff(left) { self.nanos } else { left }
    }

    /// What one should take now: what was learned, as far as it is not forgotten.
    fn expect(&self, now: Instant, (assumed, drift): (u64, Span)) -> u64 {
        let over = DRIFT_FOR_EACH.times(self.times).min(drift);
        drifted(self.nanos, assumed, now.since(self.at), over)
    }
}

/// Sizes of which something is measured together: those between two powers of two.
pub(crate) fn size_class(bytes: u32) -> u32 {
    bytes.max(1).ilog2()
}

impl DiskTime {
    /// Begins with an assumption.
    fn new(assumed: Assumption) -> Self {
        Self { assumed, classes: FlatMap::new() }
    }

    /// Takes an operation into account that ended now: `took` is the time that it kept the disk from the next one.
    fn sample(&mut self, now: Instant, bytes: u32, took: Span) {
        let class = size_class(bytes);
        let last = self.classes.get(&class).copied();
        let learned = Learned::and(last, now, took.as_nanos().max(1), self.assume(bytes));
        self.classes.insert(class, learned);
    }

    /// How long one of `bytes` took when it was measured last.
    fn known(&self, bytes: u32) -> Span {
        let assumed = Span::of_transfer(u64::from(bytes), READS.rate);
        self.classes.get(&size_class(bytes)).map_or(assumed, |learned| Span::from_nanos(learned.nanos))
    }

    /// How long an operation of `bytes` should take.
    fn expect(&self, now: Instant, bytes: u32) -> Span {
        let assumed = self.assume(bytes);
        let learned = self.classes.get(&size_class(bytes));
        Span::from_nanos(learned.map_or(assumed.0, |learned| learned.expect(now, assumed)))
    }

    /// How many nanoseconds one of `bytes` takes as long as none was measured, and over how much time that is thought again.
    fn assume(&self, bytes: u32) -> (u64, Span) {
        (Span::of_transfer(u64::from(bytes), self.assumed.rate.max(1)).as_nanos(), self.assumed.drift)
    }
}

/// What a disk's operations of one kind take, one behind the other.
#[derive(Clone, Debug)]
pub struct DiskQueue {
    /// What one keeps the disk from the next by.
    each: DiskTime,
    /// From handing one to an idle disk to its completion: each of many writes that share a sync takes as long as all
    /// of it. A write that waited for others says nothing about that, and a disk that is not chosen for such a wait
    /// would never show that it is idle.
    whole: DiskTime,
    last_done: Instant,
}

impl DiskQueue {
    pub(crate) fn prefetch(&self) -> u64 {
        let of = |time: &DiskTime| {
            time.assumed.rate
                ^ time.classes.values().fold(0, |sum, class| sum ^ class.nanos ^ class.before.unwrap_or(0))
        };
        of(&self.each) ^ of(&self.whole) ^ self.last_done.as_nanos()
    }

    /// Begins with an assumption.
    #[must_use]
    pub fn new(assumed: Assumption) -> Self {
        Self { each: DiskTime::new(assumed), whole: DiskTime::new(assumed), last_done: Instant::ZERO }
    }

    /// Takes an operation into account that was handed over at `begun` and ended now.
    pub fn sample(&mut self, now: Instant, bytes: u32, begun: Instant) {
        self.each.sample(now, bytes, now.since(begun.max(self.last_done)));
        if self.last_done <= begun {
            self.whole.sample(now, bytes, now.since(begun));
        }
        self.last_done = now;
    }

    /// How long the disk has been at what it does now, if the oldest that it has was handed over at `begun`.
    #[must_use]
    pub fn at_work(&self, now: Instant, begun: Instant) -> Span {
        now.since(begun.max(self.last_done))
    }

    /// Takes note that one ended now of which nothing is learned.
    pub const fn passed(&mut self, now: Instant) {
        self.last_done = now;
    }

    /// What an operation of `bytes` keeps the next one from the disk by.
    #[must_use]
    pub fn each(&self, now: Instant, bytes: u32) -> Span {
        self.each.expect(now, bytes)
    }

    /// What an operation of `bytes` that is there keeps the next one from the disk by.
    #[must_use]
    pub fn ahead(&self, bytes: u32) -> Span {
        self.each.known(bytes)
    }

    /// When an operation of `bytes` that is handed over at `at` should be done, behind those that take the disk `ahead` from
    /// now on, and not sooner than it takes by itself.
    #[must_use]
    pub fn done(&self, now: Instant, at: Instant, ahead: Span, bytes: u32) -> Instant {
        let queued = at.max(now + ahead) + self.each.expect(now, bytes);
        queued.max(at + self.whole.expect(now, bytes))
    }
}

/// All of something, of which a moving average is a part.
const WHOLE: u64 = 1 << 16;

/// So many of [`WHOLE`] parts of a span.
fn part_of(span: Span, part: u64) -> Span {
    Span::from_nanos((u128::from(span.as_nanos()) * u128::from(part) / u128::from(WHOLE)) as u64)
}

/// The rate at which offered windows are accepted, as a moving average; a third before the first sample.
#[derive(Clone, Copy, Debug)]
pub struct AcceptRate(u64);

impl AcceptRate {
    /// Takes one more window into account, by a sixteenth.
    pub fn sample(&mut self, is_accepted: bool) {
        self.0 = self.0 - self.0 / 16 + if is_accepted { WHOLE / 16 } else { 0 };
    }

    /// So much of a span.
    #[must_use]
    pub fn scale(self, span: Span) -> Span {
        part_of(span, self.0)
    }
}

impl Default for AcceptRate {
    fn default() -> Self {
        Self(WHOLE / 3)
    }
}

/// How far off promises are, as a part of the time that was promised: a moving average for each power of two of bytes, all
/// of it at most. Nothing is known of the first ones, so those of all that seem idle count as equal.
#[derive(Clone, Debug)]
pub struct PromiseError {
    classes: FlatMap<u32, u64, 4>,
}

impl Default for PromiseError {
    fn default() -> Self {
        Self { classes: FlatMap::new() }
    }
}

impl PromiseError {
    /// Half of what is promised: either of two may be wrong by that, so all that they differ by is in doubt.
    const UNKNOWN: u64 = WHOLE / 2;

    fn of(&self, bytes: u32) -> u64 {
        self.classes.get(&size_class(bytes)).copied().unwrap_or(Self::UNKNOWN)
    }

    /// Takes one more into account, by a sixteenth: of a copy of so many bytes `promised` was said, and it took `took`.
    pub fn sample(&mut self, bytes: u32, promised: Span, took: Span) {
        let (promised, took) = (promised.as_nanos().max(1), took.as_nanos());
        let off = promised.abs_diff(took).min(promised);
        let part = u128::from(off) * u128::from(WHOLE) / u128::from(promised);
        let before = self.of(bytes);
        self.classes.insert(size_class(bytes), before - before / 16 + part as u64 / 16);
    }

    /// How much two that promise about `promised` for so many bytes may differ and still count as equal: either may be wrong.
    /// All of it at most.
    #[must_use]
    pub fn between_two(&self, bytes: u32, promised: Span) -> Span {
        part_of(promised, (2 * self.of(bytes)).min(WHOLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assumed() -> Assumption {
        Assumption { rate: 1_000_000_000, ..WRITES }
    }

    #[test]
    fn what_is_not_measured_again_is_forgotten() {
        let (mut disk, mut link) = (DiskTime::new(assumed()), Rate::new(1_000_000_000));
        let at = |seconds| Instant::ZERO + Span::from_secs(seconds);
        for _ in 0..100 {
            disk.sample(at(1), 4_096, Span::from_millis(20));
            link.sample(at(1), 1_000_000, Span::from_millis(10));
        }
        for _ in 0..200 {
            disk.sample(at(1), 4_096, Span::from_millis(20));
        }
        assert!(disk.expect(at(1), 4_096) > Span::from_millis(19));
        disk.sample(at(1), 1 << 20, Span::from_secs(1));
        assert!(disk.expect(at(1), 1 << 20) == Span::from_secs(1), "what was seen once is believed");
        assert_eq!(disk.expect(at(2), 1 << 20), Span::of_transfer(1 << 20, 1_000_000_000), "but not for long");
        assert!(link.get(at(1)) < 110_000_000);
        assert!(disk.expect(at(2), 4_096) > Span::from_millis(9) && disk.expect(at(2), 4_096) < Span::from_millis(11));
        let mut tried = disk.clone();
        tried.sample(at(2), 4_096, Span::from_millis(1));
        assert!(tried.expect(at(2), 4_096) < Span::from_millis(10), "what is half forgotten counts half as much");
        let mut tried = disk.clone();
        tried.sample(at(2), 4_096, Span::from_millis(20));
        assert!(tried.expect(at(2), 4_096) > Span::from_millis(19), "and all of it when it was right");
        assert_eq!(disk.expect(at(3), 4_096), Span::of_transfer(4_096, 1_000_000_000));
        assert_eq!(link.get(at(11)), 1_000_000_000);
    }

    #[test]
    fn a_rate_is_what_most_of_the_last_transfers_were_not_above() {
        let mut rate = Rate::new(1_000);
        let now = Instant::ZERO;
        let mut sample = |bytes| {
            rate.sample(now, bytes, Span::from_secs(1));
            rate.get(now)
        };
        assert_eq!([900, 800, 700].map(&mut sample), [1_000; 3], "a few late senders say nothing of the port");
        assert_eq!([100; RECENT].map(&mut sample)[RECENT - 1], 100, "it is slow");
        assert_eq!([1_000_000, 1_000_000].map(&mut sample), [100; 2], "what was read from memory is no port's");
        assert_eq!([1_000; RECENT].map(&mut sample)[RECENT - 1], 1_000, "it is well again");
    }

    #[test]
    fn patience_follows_what_was_seen() {
        let (mut seen, late) = (LatencyEstimate::default(), Span::from_millis(20));
        assert_eq!(seen.patience(0, late), late, "nothing is known");
        assert_eq!(seen.patience(9, late), late.times(PATIENCE));
        (0..100).for_each(|_| seen.sample(Span::from_micros(10)));
        assert_eq!(seen.patience(0, late), late.div(10));
        assert_eq!(seen.patience(1, late), late.div(5));
        (0..100).for_each(|_| seen.sample(Span::from_millis(30)));
        assert!(seen.patience(0, late) >= Span::from_millis(30), "{:?}", seen.patience(0, late));
    }

    #[test]
    fn promises_differ_by_what_they_are_wrong_by() {
        let (mut error, promised) = (PromiseError::default(), Span::from_millis(8));
        assert_eq!(error.between_two(1 << 20, promised), promised, "nothing is known of the first ones");
        (0..200).for_each(|n| error.sample(1 << 20, promised, Span::from_millis(if n % 2 == 0 { 7 } else { 9 })));
        let differ = error.between_two(1 << 20, promised);
        assert!(differ > Span::from_micros(1_900) && differ < Span::from_micros(2_010), "{differ:?}");
        (0..200).for_each(|_| error.sample(1 << 20, promised, Span::from_secs(100)));
        assert!(error.between_two(1 << 20, promised) > Span::from_micros(7_900), "never more than was promised");
        assert!(error.between_two(1 << 20, promised) <= promised);
        (0..200).for_each(|_| error.sample(1 << 20, promised, promised));
        assert!(error.between_two(1 << 20, promised) < Span::from_micros(10));
        (0..200).for_each(|_| error.sample(4_096, promised, Span::from_secs(100)));
        assert!(error.between_two(1 << 20, promised) < Span::from_micros(10), "what is small is something else");
    }

    /// A write that takes 100 us, and 20 that come meanwhile, which the disk takes in two groups of ten.
    #[test]
    fn a_disk_that_was_busy_looks_idle_when_it_is() {
        let mut disk = DiskQueue::new(assumed());
        let at = |micros| Instant::ZERO + Span::from_micros(micros);
        disk.sample(at(1_100), 4_096, at(1_000));
        for group in [2_100, 3_100] {
            (0..10).for_each(|n| disk.sample(at(group + n), 4_096, at(1_050)));
        }
        let now = at(3_110);
        let takes = disk.done(now, now, Span::ZERO, 4_096).since(now);
        assert!(takes > Span::from_micros(90) && takes < Span::from_micros(110), "{takes:?}");
    }

    #[test]
    fn what_is_done_together_took_the_disk_a_share_of_it_each() {
        let mut time = DiskTime::new(assumed());
        let sample = |time: &mut DiskTime, micros| time.sample(Instant::ZERO, 4_096, Span::from_micros(micros));
        for _ in 0..30 {
            sample(&mut time, 991);
            (0..9).for_each(|_| sample(&mut time, 1));
            let each = time.expect(Instant::ZERO, 4_096);
            assert_eq!(each, Span::from_micros(100));
        }
        // A disk that is a thousand times faster from now on is not one large batch for ever.
        (0..4_000).for_each(|_| sample(&mut time, 0));
        assert!(time.expect(Instant::ZERO, 4_096) < Span::from_micros(1));
    }
}
