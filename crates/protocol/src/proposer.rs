//! How a change of the cluster map comes to be decided. Several propose; one place decides, by compare-and-set.
//!
//! A map that was not decided is never used: otherwise two different maps of one epoch could be in use. A lost answer
//! proves nothing: the proposal may have been decided. So the newest map is read again, which tells whether it is the
//! one that was proposed.

/// What became of a proposal.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the newest map.
    Decided,
    /// The map that it was made from is not the newest any more. Nothing was changed.
    Conflict,
}

/// A map as its authority keeps it.
pub trait Proposed {
    /// Whether it is the same, byte for byte.
    fn is_same(&self, other: &Self) -> bool;
}

/// Defects that can be planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Use a map that was proposed, whatever became of it.
    UseUndecided,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'p, M> {
    /// Ask for the newest map, then say it by [`Proposer::newest`].
    Read,
    /// Make the map that follows this one, then give it to [`Proposer::made`].
    Make(&'p M),
    /// Propose `next`, then say what was heard of it by [`Proposer::answered`].
    Propose {
        /// What it was made from.
        from: &'p M,
        /// The map that is proposed.
        next: &'p M,
    },
    /// It is decided. From now on it may be used.
    Use(&'p M),
    /// It is over: there is nothing to change any more, or nothing that could be made.
    Nothing,
    /// It is over: others changed the map each time.
    Outrun,
}

#[derive(Debug)]
enum State<M> {
    Reading,
    Making(M),
    Proposing { from: M, next: M },
    Decided(M),
    Nothing,
    Outrun,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Proposer<M> {
    state: State<M>,
    /// No answer said what became of it.
    unsure: Option<M>,
    /// Proposals that may still be made.
    tries: u32,
    bug: Option<Bug>,
}

impl<M: Proposed> Proposer<M> {
    /// One that proposes so often at most.
    #[must_use]
    pub const fn new(tries: u32) -> Self {
        Self { state: State::Reading, unsure: None, tries, bug: None }
    }

    /// The same with a planted defect.
    #[must_use]
    pub const fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.bug = bug;
        self
    }

    /// What is to be done next.
    pub const fn step(&self) -> Step<'_, M> {
        match &self.state {
            State::Reading => Step::Read,
            State::Making(present) => Step::Make(present),
            State::Proposing { from, next } => Step::Propose { from, next },
            State::Decided(map) => Step::Use(map),
            State::Nothing => Step::Nothing,
            State::Outrun => Step::Outrun,
        }
    }

    /// The newest map, as its authority says.
    pub fn newest(&mut self, newest: M) {
        if matches!(self.state, State::Reading) {
            let own = self.unsure.take().is_some_and(|own| own.is_same(&newest));
            self.state = match self.tries {
                _ if own => State::Decided(newest),
                0 => State::Outrun,
                _ => State::Making(newest),
            };
        }
    }

    /// The map that was made from that; none where nothing is to be changed, or can be.
    pub fn made(&mut self, next: Option<M>) {
        if let State::Making(from) = core::mem::replace(&mut self.state, State::Nothing)
            && let Some(next) = next
        {
            self.tries = self.tries.saturating_sub(1);
            self.state = State::Proposing { from, next };
        }
    }

    /// What the authority said of the proposal; `None` when no answer came.
    pub fn answered(&mut self, verdict: Option<Verdict>) {
        self.state = match core::mem::replace(&mut self.state, State::Reading) {
            State::Proposing { next, .. } if self.bug == Some(Bug::UseUndecided) => State::Decided(next),
            State::Proposing { next, .. } => match verdict {
                Some(Verdict::Decided) => State::Decided(next),
                Some(Verdict::Conflict) => State::Reading,
                None => {
                    self.unsure = Some(next);
                    State::Reading
                }
            },
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoch, and the gateway that made it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Map(u32, u8);

    impl Proposed for Map {
        fn is_same(&self, other: &Self) -> bool {
            self == other
        }
    }

    /// One that has proposed a map that follows the first.
    fn proposed(tries: u32) -> Proposer<Map> {
        let mut proposer = Proposer::new(tries);
        assert_eq!(proposer.step(), Step::Read);
        proposer.newest(Map(1, 0));
        assert_eq!(proposer.step(), Step::Make(&Map(1, 0)));
        proposer.made(Some(Map(2, 7)));
        assert_eq!(proposer.step(), Step::Propose { from: &Map(1, 0), next: &Map(2, 7) });
        proposer
    }

    #[test]
    fn what_was_decided_is_used_and_nothing_else() {
        let mut proposer = proposed(3);
        proposer.answered(Some(Verdict::Decided));
        assert_eq!(proposer.step(), Step::Use(&Map(2, 7)));
        let mut proposer = proposed(3);
        proposer.answered(Some(Verdict::Conflict));
        assert_eq!(proposer.step(), Step::Read);
        proposer.newest(Map(2, 9));
        assert_eq!(proposer.step(), Step::Make(&Map(2, 9)));
        proposer.made(None);
        assert_eq!(proposer.step(), Step::Nothing);
    }

    #[test]
    fn a_lost_answer_says_nothing_and_the_newest_map_does() {
        let mut proposer = proposed(1);
        proposer.answered(None);
        assert!(proposer.unsure.is_some());
        assert_eq!(proposer.step(), Step::Read);
        proposer.newest(Map(2, 7));
        assert_eq!(proposer.step(), Step::Use(&Map(2, 7)));
        // Another's map of that epoch.
        let mut proposer = proposed(2);
        proposer.answered(None);
        proposer.newest(Map(2, 9));
        assert_eq!(proposer.step(), Step::Make(&Map(2, 9)));
        // Not decided, or not yet.
        let mut proposer = proposed(1);
        proposer.answered(None);
        proposer.newest(Map(1, 0));
        assert_eq!(proposer.step(), Step::Outrun);
    }

    #[test]
    fn it_ends_when_others_are_faster_each_time() {
        let mut proposer = Proposer::new(2);
        for epoch in 1..3 {
            proposer.newest(Map(epoch, 0));
            proposer.made(Some(Map(epoch + 1, 7)));
            proposer.answered(Some(Verdict::Conflict));
        }
        proposer.newest(Map(3, 0));
        assert_eq!(proposer.step(), Step::Outrun);
    }

    #[test]
    fn what_nobody_asked_for_changes_nothing() {
        let mut proposer = proposed(1);
        proposer.newest(Map(5, 0));
        assert!(matches!(proposer.step(), Step::Propose { .. }));
        proposer.answered(Some(Verdict::Decided));
        proposer.answered(Some(Verdict::Conflict));
        assert_eq!(proposer.step(), Step::Use(&Map(2, 7)));
    }
}
