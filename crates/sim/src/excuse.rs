//! What excuses a copy or a chunk that is missing. Each is exactly what the simulated world itself did, and each use is
//! counted, so that nothing hides behind them.

use std::collections::BTreeMap;

/// Why something that is missing is no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Excuse {
    /// A copy whose bytes were flipped on disk, and that was not written again since.
    Flipped,
    /// A copy on a disk that was lost for good, or whose target the map removed.
    LostDisk,
    /// A chunk that was cleaned away because every manifest that referred to it had all its copies harmed.
    LostReference,
    /// A copy on a target to which neither the layout of the map in use nor the one before it leads: newer maps moved the chunk
    /// twice, or took the target out.
    Regrouped,
    /// A chunk that was put under a newer map than the one under which it is looked for, in another group.
    OlderMap,
    /// A put for which there were too few targets with room: all those that reported so had none.
    Full,
    /// A put that was acknowledged with fewer copies than wanted: in no other failure domain could anybody be reached all the time.
    DomainsDown,
}

impl Excuse {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flipped => "copy damaged by a flipped byte",
            Self::LostDisk => "copy on a lost disk",
            Self::LostReference => "named by lost manifests only",
            Self::Regrouped => "unfindable after a regrouping",
            Self::Full => "put while targets were full",
            Self::DomainsDown => "acknowledged with fewer copies while domains were down",
            Self::OlderMap => "looked for under an older map than it was put with",
        }
    }
}

/// How often each excuse was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excuses(BTreeMap<Excuse, u64>);

impl Excuses {
    /// Something would have been a failure but for this.
    pub fn used(&mut self, excuse: Excuse) {
        *self.0.entry(excuse).or_insert(0) += 1;
    }

    /// Those that were used, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (Excuse, u64)> + '_ {
        self.0.iter().map(|(excuse, times)| (*excuse, *times))
    }
}
