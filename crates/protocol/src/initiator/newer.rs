//! A newer cluster map that comes while requests are under way.

use super::{Bug, Initiator, Txn};
use crate::map::ClusterMap;

impl Initiator {
    pub(super) fn new_map(&mut self, mut map: ClusterMap) {
        let cx = &mut self.shared;
        if map.epoch <= cx.map.epoch || map.cluster != cx.map.cluster || cx.bug == Some(Bug::KeepMap) {
            return;
        }
        if cx.bug == Some(Bug::KeepCopies) {
            map.copies = cx.map.copies;
        }
        cx.map = map.after(&cx.map);
        for active in self.active.values_mut() {
            if let Txn::Put(put) = active {
                put.regroup(cx);
            }
        }
    }
}
