//! Windows that begin too late are given back ([`choosy`](crate::choosy)).

use super::{Choice, Context, Put};
use crate::choosy::MaxBidWait;
use crate::initiator::Bug;
use crate::limits;

/// Windows are too late that begin after so many times what others kept us waiting.
const LATE: u64 = 4;

impl Put {
    /// Gives the windows of this round back and asks again in a while, if they begin later than a choosy initiator waits.
    ///
    /// The wait counts from the moment for which windows were asked: our own port may be taken until then. Four times what
    /// was waited in the end is averaged in, so that the value follows the load down as well as up.
    pub(super) fn gives_back(&mut self, context: &mut Context, choices: &[Choice]) -> bool {
        if !context.config.choosy || !context.config.transport.reserved {
            return false;
        }
        let Some(first) = choices.iter().map(|choice| choice.start).min() else { return false };
        let wait = first.since(self.earliest);
        let least = MaxBidWait::first(context.bids.usual());
        self.wait.begin(context.max_bid_wait.max(least));
        let never = context.bug == Some(Bug::NeverContent);
        match self.wait.reconsiders(wait, limits::CANCELS).or(never.then_some(least)) {
            Some(rest) if context.now + rest.times(2) < self.job.give_up_at => {
                self.cancel(context);
                self.rest(context, rest.min(context.config.late));
                true
            }
            _ => {
                context.max_bid_wait = (context.max_bid_wait + wait.times(LATE).min(context.config.max_wait)).div(2);
                false
            }
        }
    }
}
