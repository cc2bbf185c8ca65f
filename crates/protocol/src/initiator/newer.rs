//! A newer cluster map: it is fetched from a node that uses it, and comes while requests are under way.

use super::{Active, Bug, Deadline, Destination, Event, IgnoredReason, Initiator, NodeId, Txn, TxnId};
use crate::id::Epoch;
use crate::map::ClusterMap;
use crate::map_fetch::{Step, parts};
use crate::wire::{MapPart, MapRequest};

impl Initiator {
    pub(super) fn new_map(&mut self, mut map: ClusterMap) {
        let context = &mut self.context;
        if map.epoch <= context.map.epoch || map.cluster != context.map.cluster || context.bug == Some(Bug::KeepMap) {
            return;
        }
        if context.bug == Some(Bug::KeepCopies) {
            map = map.with_copies(context.map.copies);
        }
        self.map_fetch.uses(map.epoch);
        context.map = map.after(&context.map);
        context.forget_strangers();
        for active in self.active.values_mut() {
            if let Txn::Put(put) = &mut active.txn {
                put.regroup(context);
            }
            active.next = active.txn.next_deadline();
        }
        self.list_anew();
    }

    fn list_anew(&mut self) {
        let is_list = |active: &Active| matches!(&active.txn, Txn::Query(query) if query.is_list());
        let lists: Vec<TxnId> = self.active.iter().filter(|(_, active)| is_list(active)).map(|(txn, _)| *txn).collect();
        for before in lists {
            let txn = self.new_txn();
            let Some(Active { txn: Txn::Query(mut query), .. }) = self.active.remove(&before) else { continue };
            query.ask_anew(&mut self.context, txn);
            self.active.insert(txn, Active::new(Txn::Query(query)));
        }
    }

    /// Another node uses a newer map.
    pub(super) fn learn_of_map(&mut self, from: NodeId, epoch: Epoch) {
        let context = &self.context;
        let step = self.map_fetch.note_epoch(context.now, from, epoch, context.config.late);
        self.fetch_map(step);
    }

    pub(super) fn map_part(&mut self, from: NodeId, epoch: Epoch, part: &MapPart) {
        let context = &self.context;
        let step = self.map_fetch.part(context.now, from, epoch, part, context.config.late);
        self.fetch_map(step);
    }

    pub(super) fn fetch_map_on(&mut self) {
        let step = self.map_fetch.wake(self.context.now, self.context.config.late);
        self.fetch_map(step);
    }

    fn fetch_map(&mut self, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Send(node, request) => self.context.send(Destination::Node(node), &request),
            Step::Over(newer) => self.context.event(Event::NewerMap(newer)),
            Step::Unsolicited => self.context.event(Event::Ignored(IgnoredReason::Late)),
        }
    }

    pub(super) fn next_map_request(&self) -> Option<Deadline> {
        self.map_fetch.next_deadline().map(|at| Deadline { at, why: "a map" })
    }

    pub(super) fn send_map(&mut self, to: NodeId, theirs: Epoch, request: MapRequest) {
        let map = self.context.map.clone();
        let answers: Vec<_> = parts(&map, theirs, request).collect();
        if answers.is_empty() {
            self.context.event(Event::Ignored(IgnoredReason::OtherMap));
        }
        answers.iter().for_each(|part| self.context.send(Destination::Node(to), part));
    }
}
