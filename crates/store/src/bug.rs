//! Defects that are planted to prove that the simulator and the tests notice.

/// A defect. No daemon has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A sync writes, and does not wait until the disk has it.
    SkipSync,
    /// A group whose sync failed is reported as durable.
    IgnoreFailedSync,
    /// A sync that failed is tried again, and the second time believed.
    RetrySync,
    /// A new segment is begun while the one before it is not synced.
    RollUnsynced,
    /// A start takes for durable what it reads.
    TrustCache,
    /// A start syncs what it reads, and does not write it again.
    TrustClean,
    /// A start clears the end of a segment before it writes it again.
    ClearTail,
    /// A start goes on behind the last record that an unbroken run of them leads to, whatever is behind it.
    ResumeOverTorn,
    /// A start overlooks tombstones.
    SkipTombstones,
    /// A compaction removes a segment before the copies of its records are durable.
    RemoveBeforeSync,
    /// A compaction drops tombstones of records that older segments still have.
    DropTombstones,
    /// A chunk that is here is reported to a node that counts on it, and not promised.
    NameUnpromised,
    /// A copy is promised to every node that asks, whatever it is kept for.
    ForgetWanted,
    /// A census counts what the disk does not read.
    CountUnread,
    /// A record that a compaction moves has the marks and promises of when the compaction began.
    StaleStamps,
    /// Compaction and tombstones have no room of their own.
    NoReserve,
    /// A segment that was made ahead in vain is removed, and still counted.
    MiscountAhead,
    /// A scrub forgets a copy that the disk did not read.
    ForgetUnread,
    /// A scrub reports a bad copy, and goes on to name it.
    KeepBad,
    /// What drops or settles a damaged copy does not check whether the chunk was put again meanwhile.
    DropPutAgain,
    /// What is read is given away without a look at its checksum.
    ReadUnchecked,
}

impl Bug {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SkipSync => "skip-sync",
            Self::IgnoreFailedSync => "ignore-failed-sync",
            Self::RetrySync => "retry-sync",
            Self::RollUnsynced => "roll-unsynced",
            Self::TrustCache => "trust-cache",
            Self::TrustClean => "trust-clean",
            Self::ClearTail => "clear-tail",
            Self::ResumeOverTorn => "resume-over-torn",
            Self::SkipTombstones => "skip-tombstones",
            Self::RemoveBeforeSync => "remove-before-sync",
            Self::DropTombstones => "drop-tombstones",
            Self::NameUnpromised => "name-unpromised",
            Self::ForgetWanted => "forget-wanted",
            Self::CountUnread => "count-unread",
            Self::StaleStamps => "stale-stamps",
            Self::NoReserve => "no-reserve",
            Self::MiscountAhead => "miscount-ahead",
            Self::ForgetUnread => "forget-unread",
            Self::KeepBad => "keep-bad",
            Self::DropPutAgain => "drop-put-again",
            Self::ReadUnchecked => "read-unchecked",
        }
    }
}
