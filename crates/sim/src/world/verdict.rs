//! What is checked, from outside.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId, TxnId};
use protocol::initiator::{self, Found, GetError, PutError, QueryAnswer, Stored};
use protocol::machine::IgnoredReason;
use protocol::target;
use protocol::time::{Instant, Span};

use super::promise::Promise;
use super::workload::{Listing, Operation, Putting};

use super::{END, Node, NodeMachine, World};
use crate::excuse::Excuse;
use crate::trace;

impl World<'_> {
    /// Every acknowledged chunk has its copies, byte for byte, and nothing stays reserved for ever.
    pub(super) fn last_check(&mut self) {
        let mut missing = Vec::new();
        for (id, promise) in self.promises.clone() {
            for holder in promise.holders.iter().copied() {
                if self.holds(holder, &id).as_ref() == self.acknowledged.get(&id) {
                    continue;
                }
                match self.excused(id, holder) {
                    Some(excuse) => self.excuse(excuse, holder, id),
                    None => missing.push((id, holder)),
                }
            }
        }
        self.check_objects();
        self.check_cleaned();
        // What is cleaned from here on is not judged.
        self.cleaning = None;
        // A second of quiet: tentative windows must go.
        let until = self.now + Span::from_secs(1);
        let before = self.transactions();
        while let Some((at, event)) = self.queue.pop().filter(|(at, _)| *at < until) {
            self.now = at;
            self.happen(event);
            // It was about to say that it let the copy go. It may get it again.
            missing.retain(|copy| !self.let_go.contains(copy));
        }
        missing.retain(|copy| !self.let_go.contains(copy));
        if let Some((id, holder)) = missing.first() {
            self.fail(format!("{id:?} has no good copy on {holder} at the end, which acknowledged one"));
        }
        // Others may have begun since: what has too few copies for good is tried again and again.
        let held: BTreeSet<_> = before.intersection(&self.transactions()).copied().collect();
        if !held.is_empty() {
            self.fail(format!("{held:?} are still reserved after a second of quiet"));
        }
        if let Some((witness, silent)) = self.slandered() {
            self.fail(format!("{witness} says that {silent} is silent, a second after the last fault"));
        }
        self.check_stores();
    }

    /// The nodes that take a working target for silent.
    fn slandered(&self) -> Option<(NodeId, NodeId)> {
        let works = |id: &NodeId| matches!(self.nodes.get(id).map(|node| &node.machine), Some(NodeMachine::Target(..)));
        self.nodes.iter().find_map(|(id, node)| match &node.machine {
            NodeMachine::Target(target, _) => {
                target.silent().map(|(silent, _)| silent).find(works).map(|silent| (*id, silent))
            }
            _ => None,
        })
    }

    /// The copies that targets have on their way in or out.
    fn transactions(&self) -> BTreeSet<(NodeId, TxnId)> {
        let of = |(id, node): (&NodeId, &Node)| match &node.machine {
            NodeMachine::Target(target, _) => target.transactions().map(|txn| (*id, txn)).collect(),
            _ => Vec::new(),
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub(super) fn target_event(&mut self, id: NodeId, local: Instant, event: target::Event) {
        match event {
            target::Event::Accepted { id: chunk, start, length } => {
                self.note(6, id, 0, || format!("accepts {chunk:?} from {start} for {length}"));
                if let Some(problem) = self.windows.accepted(id, local, chunk.whole(), start, length) {
                    self.fail(problem);
                }
            }
            target::Event::Waiting { id: chunk } | target::Event::Released { id: chunk } => {
                self.windows.over(id, chunk.whole())
            }
            target::Event::Stored { id: piece, .. } => {
                let chunk = piece.whole();
                self.note(11, id, 0, || format!("has {chunk:?} durable"));
                self.durable_at.entry(chunk).or_default().entry(id).or_insert(self.now);
                self.let_go.remove(&(chunk, id));
                if self.holds(id, &chunk).is_some() {
                    self.rotten.remove(&(piece, id));
                    // Written again: the damage is made good.
                    if let Some(excuse) = self.harmed(chunk, id) {
                        self.mended.insert((chunk, id), (self.now, excuse));
                    }
                    self.damaged.remove(&(chunk, id));
                    self.lost.remove(&(chunk, id));
                }
            }
            target::Event::Restored { id: chunk, since } => {
                self.note(21, id, 0, || trace::target_event(&event));
                self.was_lacking(id, chunk, self.began(id, since));
                self.whole.made = Some(self.now);
                // A put does not know of the copies that a holder makes.
                self.open.values_mut().for_each(|asked| asked.share(chunk));
            }
            target::Event::Moved { id: chunk, .. } => {
                self.note(23, id, 0, || trace::target_event(&event));
                self.open.values_mut().for_each(|asked| asked.share(chunk.whole()));
                self.moves();
            }
            target::Event::Discarded { .. } => {
                self.note(7, id, 0, || trace::target_event(&event));
                self.forget_promised();
            }
            target::Event::LetGo { id: chunk, .. } => {
                self.note(22, id, 0, || trace::target_event(&event));
                self.lets_go(id, chunk.whole());
            }
            target::Event::Corrupt { id: chunk } => {
                self.note(7, id, 0, || trace::target_event(&event));
                self.found_damaged(id, chunk.whole());
            }
            // Nothing follows from them.
            target::Event::Ignored(IgnoredReason::Late | IgnoredReason::OtherMap | IgnoredReason::Busy) => {}
            other => self.note(7, id, 0, || trace::target_event(&other)),
        }
    }

    pub(super) fn initiator_event(&mut self, id: NodeId, event: initiator::Event) {
        if self.gateways.is_some() {
            return self.gateway_event(id, event);
        }
        if self.is_governor(id) {
            return self.governor_event(id, event);
        }
        if self.is_cleaner(id) {
            return self.cleaner_event(id, event);
        }
        match event {
            initiator::Event::Pieces { .. } => {}
            initiator::Event::Put { handle, result } => {
                let Some(Operation::Put(put)) = self.open.remove(&(id, handle)) else { return };
                self.put_ended(id, put, result);
                self.feed_next(id);
            }
            initiator::Event::Get { handle, result } => {
                let Some(Operation::Get((chunk, ranges), healed, promise, since)) = self.open.remove(&(id, handle))
                else {
                    return;
                };
                self.note(10, id, 0, || trace::get(chunk, &result));
                let is_right = |bytes: &[u8]| {
                    let all = self.contents.get(&chunk);
                    all.is_some_and(|all| ranges.iter().flat_map(|range| &all[range.clone()]).eq(bytes))
                };
                match (promise, result) {
                    (_, Ok(fetched)) if is_right(&fetched.pieces.concat()) => self.outcome.gets += 1,
                    (_, Ok(_)) => self.fail(format!("a get of {chunk:?} returned wrong bytes")),
                    (Some(promise), Err(error)) => self.check_unfound(id, (chunk, since), &promise, &error, healed),
                    (None, Err(_)) => {}
                }
                self.feed_next(id);
            }
            initiator::Event::Query { handle, answer: QueryAnswer::List(result) } => {
                let Some(Operation::List(listing)) = self.open.remove(&(id, handle)) else { return };
                self.note(14, id, listing.known.len(), || trace::list(&result));
                match result {
                    Ok(found) => self.check_list(id, &listing, &found),
                    Err(_) if listing.healed => self.fail("a list was refused after the heal".to_owned()),
                    Err(_) => {}
                }
                self.feed_next(id);
            }
            initiator::Event::Query { handle, answer: QueryAnswer::Ping(result) } => {
                let Some(Operation::Ping(healed)) = self.open.remove(&(id, handle)) else { return };
                self.note(15, id, result.as_ref().map_or(0, Vec::len), || trace::ping(&result));
                match result {
                    Ok(targets) if healed && targets.iter().any(|target| target.answer.is_none()) => {
                        self.fail(format!("a target was silent to a ping after the heal: {targets:?}"));
                    }
                    Err(_) if healed => self.fail("a ping was refused after the heal".to_owned()),
                    Ok(_) | Err(_) => {}
                }
                self.feed_next(id);
            }
            initiator::Event::Query { .. }
            | initiator::Event::NewerMap(_)
            | initiator::Event::Bid { .. }
            | initiator::Event::RepairAsked
            | initiator::Event::RepairSent
            | initiator::Event::Hedged
            | initiator::Event::Multicast { .. }
            | initiator::Event::Ignored(_)
            | initiator::Event::CorruptCopy { .. } => {}
        }
    }

    fn put_ended(&mut self, id: NodeId, put: Putting, result: Result<Stored, PutError>) {
        self.note(8, id, put.payload.len(), || trace::put(put.id, &result));
        match result {
            Ok(stored) => {
                if put.begun.1 >= self.settled && put.alone {
                    self.check_prompt(&put, &stored.holders);
                }
                self.acknowledge(id, put, &stored.holders);
            }
            Err(error) if put.healed && !self.was_full(put.id, &error, id, self.began(id, put.begun.0)) => {
                self.fail(format!("a put failed after the heal: {error}"));
            }
            Err(_) => {}
        }
    }

    /// On a healthy network, a put that waits for copies hears of them when they are durable, not by asking in vain.
    fn check_prompt(&mut self, put: &Putting, holders: &[NodeId]) {
        let id = put.id;
        let Some(durable) = self.durable_at.get(&id) else { return };
        let Some(last) = holders.iter().filter_map(|holder| durable.get(holder)).max().copied() else { return };
        // Short contents are drawn more than once: what was durable before a put began, it waits for from then on.
        let waited = self.now.since(last.max(put.begun.1));
        if waited > self.scenario.config.late.times(6) {
            self.fail(format!("{id:?} was durable at all its holders {waited} before its put learned of it"));
        }
    }

    fn acknowledge(&mut self, by: NodeId, put: Putting, holders: &[NodeId]) {
        self.outcome.puts += 1;
        let limit = self.scenario.cleaning.map_or(END, |cleaning| cleaning.limit());
        if self.now.since(put.begun.1) < limit {
            self.check_copies(by, &put, holders);
        }
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let Putting { id, payload, redundancy, begun, .. } = put;
        let promise = Arc::new(Promise { map, redundancy, holders: self.still_there(map, &id, holders) });
        if self.is_counted_on(by, id, &payload, &promise, begun.1) {
            self.acknowledged.insert(id, payload);
            self.promise(id, promise);
        }
    }

    /// At the moment of the acknowledgement the copies must be durable, where they are looked for, in different failure domains, and right.
    pub(super) fn check_copies(&mut self, by: NodeId, put: &Putting, holders: &[NodeId]) {
        let Putting { id, payload: bytes, begun: (_, since), .. } = put;
        let (id, since) = (*id, *since);
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let group = self.group(map, &id);
        // Which of several pieces of a holder was harmed since it said that it has one, nobody knows.
        let here = || holders.iter().filter(|holder| group.contains(holder));
        let was_harmed =
            |holder: &NodeId| self.harmed(id, *holder).or_else(|| self.mended_since(id, *holder, since)).is_some();
        let harmed = here().copied().filter(was_harmed).collect();
        let (goal, copies) = (self.goal(map, put.redundancy), self.due(by, map, put, holders, &harmed));
        let domains = self.reached_with(map, &id, here(), &harmed);
        if !goal.is_met(domains) && domains >= copies {
            self.excuse_fewer(by, id);
        }
        if domains < copies {
            let of = holders.iter().map(|holder| format!("{holder} in {:?}", self.maps[map].domain(*holder)));
            let of: Vec<String> = of.collect();
            self.fail(format!(
                "{id:?} was acknowledged, and {copies} copies are due, but only {domains} failure domains of its group under map \
                 {} have one: {}",
                map + 1,
                of.join(", ")
            ));
        }
        self.check_epochs(id, map, holders, since);
        for holder in holders.iter().copied() {
            // A holder that is down is checked when it is back; what harmed a copy is known.
            let down = matches!(self.nodes.get(&holder).map(|n| &n.machine), Some(NodeMachine::Down(_)));
            let good = down || self.holds(holder, &id).as_ref() == Some(bytes);
            if !good && !self.went_rightly(map, put, holder) {
                match self.harmed(id, holder) {
                    Some(excuse) => self.excuse(excuse, holder, id),
                    None => self.fail(format!("{id:?} was acknowledged, but {holder} has no good durable copy")),
                }
            }
        }
    }

    /// What a running target has of a chunk, if it is good; of a coded one all of it, if it has a piece.
    pub(super) fn holds(&self, target: NodeId, id: &ChunkId) -> Option<Bytes> {
        match &self.nodes.get(&target)?.machine {
            NodeMachine::Target(_, disk) if id.code().is_some() => {
                let has_one = disk.pieces(id).iter().any(|piece| disk.durable(piece).is_some());
                self.contents.get(id).filter(|_| has_one).cloned()
            }
            NodeMachine::Target(_, disk) => disk.durable(id),
            NodeMachine::Initiator(_)
            | NodeMachine::Aggregator(_)
            | NodeMachine::Down(_)
            | NodeMachine::Off
            | NodeMachine::Gone => None,
        }
    }

    /// What was acknowledged is found wherever one of its copies was left since it was asked for.
    fn check_unfound(
        &mut self,
        by: NodeId,
        (id, since): (ChunkId, Instant),
        promise: &Promise,
        error: &GetError,
        healed: bool,
    ) {
        // That somebody is silent says nothing while there are faults.
        let (absent, silent) = match error {
            GetError::NotFound => (true, false),
            GetError::Unavailable { silent, .. } => (false, !silent.is_empty()),
            GetError::Busy => (false, true),
        };
        if !absent && !healed {
            return;
        }
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let (left, excuses) = self.left(id, promise, map, &self.asked(map, &id), since);
        let enough = self.goal(map, promise.redundancy).enough();
        if self.reached(map, &id, &left) >= enough || silent {
            let of = left.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ");
            return self.fail(format!(
                "{id:?} was acknowledged, and is not found under map {}, though {of} have it: {error}",
                map + 1
            ));
        }
        excuses.into_iter().for_each(|excuse| self.excuse(excuse, by, id));
    }

    /// A list names nothing else, and has every version acknowledged before of which a target that answered has a copy.
    /// When the silent targets hide nothing by the map, that is every version.
    pub(super) fn check_list(&mut self, by: NodeId, listing: &Listing, found: &Found) {
        if let Some((other, _)) = found.chunks.iter().find(|(id, _)| !id.encode().starts_with(&listing.prefix)) {
            self.fail(format!("a list named {other:?}, which it was not asked for"));
        }
        if listing.healed && !found.silent.is_empty() {
            self.fail(format!("{:?} were silent to a list after the heal", found.silent));
        }
        let map = self.nodes.get(&by).map_or(0, |node| node.map);
        let known_now = !self.maps[map].may_hide(&found.silent);
        let complete = known_now && !self.maps[listing.map].may_hide(&found.silent);
        // An initiator that took a newer map meanwhile began anew under that one.
        let mut asked = listing.asked.clone();
        asked.retain(|target| self.maps[map].target(*target).is_some());
        for (id, promise) in &listing.known {
            if found.chunks.iter().any(|(other, _)| other == id) {
                continue;
            }
            let (left, excuses) = self.left(*id, promise, listing.map, &asked, listing.since);
            if let Some(holder) = left.iter().find(|holder| !found.silent.contains(holder)) {
                self.fail(format!("{id:?} was acknowledged, and is not listed, though {holder} has it and answered"));
            } else if complete {
                if excuses.is_empty() {
                    self.fail(format!("{id:?} was acknowledged, and is not listed: {:?} were silent", found.silent));
                }
                excuses.into_iter().for_each(|excuse| self.excuse(excuse, by, *id));
            } else if known_now {
                // By the map that it has meanwhile the silent hide nothing.
                self.excuse(Excuse::Regrouped, by, *id);
            }
        }
    }
}
