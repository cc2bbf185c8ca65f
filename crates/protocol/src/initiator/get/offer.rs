//! An offer of a holder, and the part of its window that is used.

use crate::calendar::Window;
use crate::id::{NodeId, TxnId};
use crate::initiator::context::Context;
use crate::time::{Instant, Span};
use crate::wire::OfferedWindow;

/// A better offer could not gain more than this.
pub(in crate::initiator) const SOON: Span = Span::from_micros(200);

/// The target that offered it, what, and when that came here.
pub(in crate::initiator) type Offer = (NodeId, OfferedWindow, Instant);

/// Reserves our port for a part of an offered window; the offer came here `at` that moment. Returns from when on, and
/// how far into the window. `None` when the port is taken for longer than the offer reaches. (What goes out in one
/// piece anyway fits into any queue.)
pub(in crate::initiator) fn fit(
    context: &mut Context,
    txn: TxnId,
    offered: &OfferedWindow,
    at: Instant,
) -> Option<(Instant, Span)> {
    let window = at + offered.start;
    let (start, _) = context.downlink.hole(window.max(context.now), offered.transfer);
    let (offset, most) = (start.since(window), offered.length.less(offered.transfer));
    let is_taken = start > window.max(context.now) && offset > most;
    let is_long = offered.size as usize > context.config.quantum;
    if context.config.transport.reserved {
        if is_taken && is_long {
            return None;
        }
        context.downlink.insert(Window { start, end: start + offered.transfer, txn });
    }
    Some((start, offset.min(most)))
}
