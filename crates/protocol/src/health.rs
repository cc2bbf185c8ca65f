//! How the copies of a group are, as its steward knows it.

use crate::limits;

/// What a steward knows of its group, as of its last sweep, less what was made since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What has too few copies.
    pub lacks: Lacks,
    /// Whether all is known, nothing has too few copies, and nothing is under way.
    pub whole: bool,
}

/// Numbers of chunks that have too few copies in their group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Those that have too few anywhere: in one failure domain, in two, and so on.
    pub at_risk: [u32; limits::COPIES - 1],
    /// Those that have enough, of which some are where the layout before had them.
    pub strayed: u32,
}

impl Lacks {
    /// Chunks of which fewer pieces were found than are wanted.
    #[must_use]
    pub fn at_risk(&self) -> u64 {
        self.at_risk.iter().map(|chunks| u64::from(*chunks)).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (mine, others) in self.at_risk.iter_mut().zip(other.at_risk) {
            *mine = mine.saturating_add(others);
        }
        self.strayed = self.strayed.saturating_add(other.strayed);
    }

    /// One more, which has copies in so many failure domains; `None`: in enough.
    pub(crate) fn count(&mut self, domains: Option<usize>) {
        let counter = self.counter(domains);
        *counter = counter.saturating_add(1);
    }

    /// One of them has its copies now.
    pub(crate) fn made(&mut self, domains: Option<usize>) {
        let counter = self.counter(domains);
        *counter = counter.saturating_sub(1);
    }

    fn counter(&mut self, domains: Option<usize>) -> &mut u32 {
        match domains.and_then(|domains| self.at_risk.get_mut(domains.max(1) - 1)) {
            Some(counter) => counter,
            None => &mut self.strayed,
        }
    }
}
