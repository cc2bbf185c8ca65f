//! Windows that begin too late are given back ([`choosy`](crate::choosy)).

use super::{Choice, Put, Shared, Transport};
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
    pub(super) fn gives_back(&mut self, cx: &mut Shared, choices: &[Choice]) -> bool {
        if !cx.config.choosy || cx.config.transport == Transport::Hash {
            return false;
        }
        let Some(first) = choices.iter().map(|choice| choice.start).min() else { return false };
        let wait = first.since(self.earliest);
        let least = MaxBidWait::first(cx.bids.usual());
        self.wait.begin(cx.max_bid_wait.max(least));
        let never = cx.bug == Some(Bug::NeverContent);
        match self.wait.reconsiders(wait, limits::CANCELS).or(never.then_some(least)) {
            Some(rest) if cx.now + rest.times(2) < self.give_up_at => {
                self.cancel(cx);
                self.rest(cx, rest.min(cx.config.late));
                true
            }
            _ => {
                cx.max_bid_wait = (cx.max_bid_wait + wait.times(LATE).min(cx.config.max_wait)).div(2);
                false
            }
        }
    }
}
