//! A newer cluster map that comes while requests are under way.

use super::{Bug, Initiator, Txn};
use crate::map::ClusterMap;

impl Initiator {
    pub(super) fn new_map(&mut self, mut map: ClusterMap) {
        let context = &mut self.context;
        if map.epoch <= context.map.epoch || map.cluster != context.map.cluster || context.bug == Some(Bug::KeepMap) {
            return;
        }
        if context.bug == Some(Bug::KeepCopies) {
            map = map.with_copies(context.map.copies);
        }
        context.map = map.after(&context.map);
        for active in self.active.values_mut() {
            if let Txn::Put(put) = &mut active.txn {
                put.regroup(context);
            }
            active.next = active.txn.next_deadline();
        }
    }
}
