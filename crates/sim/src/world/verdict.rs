//! What is checked, from outside.

use std::collections::BTreeSet;

use bytes::Bytes;
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{self, Found, GetError};
use protocol::target;
use protocol::time::{Instant, Span};

use super::workload::Asked;
use super::{Machinery, World};
use crate::tell;

impl World<'_> {
    /// Every acknowledged chunk has its copies, byte for byte, and nothing stays reserved for ever.
    pub(super) fn last_check(&mut self) {
        let copies = usize::from(self.scenario.copies);
        for (id, bytes) in &self.acknowledged {
            let (mut good, mut damaged) = (0, 0);
            for (node, state) in &self.nodes {
                match &state.machinery {
                    Machinery::Target(_, disk) | Machinery::Down(disk) if disk.durable(id).as_ref() == Some(bytes) => {
                        good += 1;
                    }
                    _ => damaged += usize::from(self.damaged.contains(&(*id, *node))),
                }
            }
            if good + damaged < copies {
                let why = format!("{id:?} has {good} good copies of {copies} at the end, and {damaged} were damaged");
                self.outcome.failure.get_or_insert(why);
            }
        }
        self.check_objects();
        // A second of quiet: tentative windows must go.
        let until = self.now + Span::from_secs(1);
        while let Some(((at, _, _), happening)) = self.queue.pop_first().filter(|((at, ..), _)| *at < until) {
            self.now = at;
            self.happen(happening);
        }
        let held: Vec<NodeId> = self
            .nodes
            .iter()
            .filter(|(_, node)| matches!(&node.machinery, Machinery::Target(t, _) if t.in_progress() > 0))
            .map(|(id, _)| *id)
            .collect();
        if !held.is_empty() {
            self.fail(format!("{held:?} hold reservations after a second of quiet"));
        }
    }

    pub(super) fn target_event(&mut self, id: NodeId, local: Instant, event: target::Event) {
        match event {
            target::Event::Accepted { id: chunk, start, length } => {
                self.note(6, id, 0, || format!("accepts {chunk:?} from {start} for {length}"));
                if let Some(problem) = self.windows.accepted(id, local, chunk, start, length) {
                    self.fail(problem);
                }
            }
            target::Event::Released { id: chunk } => self.windows.over(id, chunk),
            target::Event::NeedMap { .. } => self.reload(id),
            target::Event::Stored { id: chunk, .. } => {
                self.note(11, id, 0, || format!("has {chunk:?} durable"));
                self.durable_at.entry(chunk).or_default().entry(id).or_insert(self.now);
                if self.holds(id, &chunk).is_some() {
                    // Written again: the damage is made good.
                    self.damaged.remove(&(chunk, id));
                }
            }
            other => self.note(7, id, 0, || tell::target_event(&other)),
        }
    }

    pub(super) fn initiator_event(&mut self, id: NodeId, event: initiator::Event) {
        if self.gateways.is_some() {
            return self.gateway_event(id, event);
        }
        match event {
            initiator::Event::Put { handle, result } => {
                let Some(Asked::Put(chunk, payload, healed, fresh)) = self.open.remove(&(id, handle)) else {
                    return;
                };
                self.note(8, id, payload.len(), || tell::put(chunk, &result));
                match result {
                    Ok(stored) => {
                        if healed && fresh {
                            self.check_prompt(chunk, &stored.holders);
                        }
                        self.acknowledge(chunk, payload, &stored.holders);
                    }
                    Err(error) if healed => self.fail(format!("a put failed after the heal: {error}")),
                    Err(_) => {}
                }
                self.feed(id);
            }
            initiator::Event::Get { handle, result } => {
                let Some(Asked::Get(chunk, healed, must)) = self.open.remove(&(id, handle)) else { return };
                self.note(10, id, 0, || tell::get(chunk, &result));
                match (self.contents.get(&chunk).filter(|_| must), result) {
                    (_, Ok(fetched)) if self.contents.get(&chunk).is_some_and(|b| fetched.pieces.concat() == *b) => {
                        self.outcome.gets += 1;
                    }
                    (_, Ok(_)) => self.fail(format!("a get of {chunk:?} returned wrong bytes")),
                    (Some(_), Err(GetError::NotFound)) => {
                        self.fail(format!("{chunk:?} was acknowledged, and is not found"))
                    }
                    (Some(_), Err(error)) if healed => self.fail(format!("a get failed after the heal: {error}")),
                    (_, Err(_)) => {}
                }
                self.feed(id);
            }
            initiator::Event::NeedMap { .. } => self.reload(id),
            initiator::Event::List { handle, result } => {
                let Some(Asked::List(prefix, known, healed)) = self.open.remove(&(id, handle)) else { return };
                self.note(14, id, known.len(), || tell::list(&result));
                match result {
                    Ok(found) => self.check_list(&prefix, &known, healed, &found),
                    Err(_) if healed => self.fail("a list was refused after the heal".to_owned()),
                    Err(_) => {}
                }
                self.feed(id);
            }
            initiator::Event::Ping { handle, result } => {
                let Some(Asked::Ping(healed)) = self.open.remove(&(id, handle)) else { return };
                self.note(15, id, result.as_ref().map_or(0, Vec::len), || tell::ping(&result));
                match result {
                    Ok(targets) if healed && targets.iter().any(|target| target.answer.is_none()) => {
                        self.fail(format!("a target was silent to a ping after the heal: {targets:?}"));
                    }
                    Err(_) if healed => self.fail("a ping was refused after the heal".to_owned()),
                    Ok(_) | Err(_) => {}
                }
                self.feed(id);
            }
            initiator::Event::Renew { .. }
            | initiator::Event::Mark { .. }
            | initiator::Event::Discard { .. }
            | initiator::Event::Usage { .. }
            | initiator::Event::Bid { .. }
            | initiator::Event::RepairAsked
            | initiator::Event::RepairSent
            | initiator::Event::Hedged
            | initiator::Event::Multicast { .. }
            | initiator::Event::CorruptCopy { .. } => {}
        }
    }

    /// On a healthy network, whoever waits for copies hears of them when they are durable, not by asking in vain.
    fn check_prompt(&mut self, id: ChunkId, holders: &[NodeId]) {
        let Some(durable) = self.durable_at.get(&id) else { return };
        let Some(last) = holders.iter().filter_map(|holder| durable.get(holder)).max().copied() else { return };
        let waited = self.now.since(last);
        if waited > self.scenario.config.late.times(6) {
            self.fail(format!("{id:?} was durable at all its holders {waited} before its put heard of it"));
        }
    }

    fn acknowledge(&mut self, id: ChunkId, bytes: Bytes, holders: &[NodeId]) {
        self.check_copies(id, &bytes, holders);
        self.outcome.puts += 1;
        self.acknowledged.insert(id, bytes);
    }

    /// At the moment of the acknowledgement the copies must be durable, apart, and right.
    pub(super) fn check_copies(&mut self, id: ChunkId, bytes: &Bytes, holders: &[NodeId]) {
        let distinct: BTreeSet<NodeId> = holders.iter().copied().collect();
        if distinct.len() < usize::from(self.scenario.copies) {
            self.fail(format!("{id:?} was acknowledged with the holders {holders:?}"));
        }
        for holder in distinct {
            // A holder that is down is looked at when it is back; one that a flipped byte hit may have lost its copy.
            let down = matches!(self.nodes.get(&holder).map(|n| &n.machinery), Some(Machinery::Down(_)));
            let good = down || self.holds(holder, &id).as_ref() == Some(bytes);
            if !good && !self.damaged.contains(&(id, holder)) {
                self.fail(format!("{id:?} was acknowledged, but {holder} has no good durable copy"));
            }
        }
    }

    /// What a running target has of a chunk, if it is good.
    fn holds(&self, target: NodeId, id: &ChunkId) -> Option<Bytes> {
        match &self.nodes.get(&target)?.machinery {
            Machinery::Target(_, disk) => disk.durable(id),
            Machinery::Initiator(_) | Machinery::Down(_) | Machinery::Gone => None,
        }
    }

    /// A list names nothing else, and every version acknowledged before, unless all its holders may have been silent. That
    /// holds of brief ones as well.
    fn check_list(&mut self, prefix: &[u8], known: &[ChunkId], healed: bool, found: &Found) {
        if let Some((other, _)) = found.chunks.iter().find(|(id, _)| !id.encode().starts_with(prefix)) {
            self.fail(format!("a list named {other:?}, which it was not asked for"));
        }
        if healed && !found.silent.is_empty() && !found.brief {
            self.fail(format!("{:?} were silent to a list after the heal", found.silent));
        }
        // An old map does not have the target that a newer one adds.
        let unasked = usize::from(self.scenario.new_map.is_some_and(|new| new.grows));
        for id in known.iter().filter(|id| found.chunks.iter().all(|(other, _)| other != *id)) {
            let damaged = self.damaged.iter().filter(|(chunk, _)| chunk == id).count();
            if found.silent.len() + unasked + damaged < usize::from(self.scenario.copies) {
                self.fail(format!("{id:?} was acknowledged, and is not listed: {:?} were silent", found.silent));
            }
        }
    }
}
