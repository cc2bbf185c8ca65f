//! Judges what gateways leave behind: the answers to clients, what is referred to, and what is left that nothing refers
//! to.

use std::collections::{BTreeMap, BTreeSet};

use catalog::object_manifest::{MAGIC, ObjectManifest, decode_entries};
use catalog::{Catalog, Start};
use object::Manifest;
use protocol::id::{ChunkId, ChunkKind, NodeId};
use protocol::redundancy::Redundancy;

use super::gateways::PASSES;
use super::{NodeMachine, World};
use crate::disk::Disk;
use crate::object::client::{KEPT, PLAIN};
use crate::object::coroutines::lock;
use crate::object::inspect;

impl World<'_> {
    /// What the clients were answered is possible, what is referred to has its copies, and nothing else is left.
    pub(super) fn check_objects(&mut self) {
        let Some(gateways) = &self.gateways else { return };
        let (judged, referenced) = {
            let queues = lock(&gateways.scheduler.queues);
            (queues.history.judge(), queues.history.referenced.clone())
        };
        let left = if gateways.settings.cleans && !gateways.replies.stuck { self.garbage_left() } else { None };
        for (id, redundancy) in referenced {
            self.check_referenced(id, redundancy);
        }
        [judged, left].into_iter().flatten().for_each(|why| self.fail(why));
    }

    /// What is referred to has its copies, as what refers to it wants it, or as the map has it under which that was promised, but
    /// for those that are harmed. When copies went since there were enough, these were as many as a newer map has.
    fn check_referenced(&mut self, id: ChunkId, redundancy: Option<Redundancy>) {
        let newest = self.maps.len() - 1;
        let replies = self.gateways.as_ref().map(|gateways| &gateways.replies.promised);
        let promised = replies.and_then(|promised| match id.kind() {
            // A manifest is put with more copies than the map has, when what it names is.
            ChunkKind::Manifest => promised.range((id, None)..).next().filter(|((of, _), _)| *of == id),
            _ => promised.get_key_value(&(id, redundancy)),
        });
        let all = (id, NodeId(0))..=(id, NodeId(u32::MAX));
        let went = self.let_go.range(all.clone()).next().is_some();
        let (goal, map) = match promised {
            Some((_, (_, copies))) if went => (self.goal(newest, redundancy).min(Redundancy::Copies(*copies)), newest),
            Some((_, (map, copies))) => (Redundancy::Copies(*copies), *map),
            None => (self.goal(newest, redundancy), newest),
        };
        let good: Vec<NodeId> = self.nodes.keys().copied().filter(|node| self.holds(*node, &id).is_some()).collect();
        if goal.is_met(self.spread(map, &good)) {
            return;
        }
        let harmed = self.damaged.range(all.clone()).chain(self.lost.range(all)).map(|(_, node)| *node);
        let harmed: BTreeSet<NodeId> = harmed.filter(|node| !good.contains(node)).collect();
        if !goal.is_met(self.spread(map, good.iter().chain(&harmed))) {
            return self.fail(format!(
                "{id:?} is referred to, and has good copies on {good:?}, harmed ones on {harmed:?}: {} apart were promised",
                goal.pieces()
            ));
        }
        for node in harmed {
            self.harmed(id, node).into_iter().for_each(|excuse| self.excuse(excuse, node, id));
        }
    }

    /// A payload chunk that is held though nothing refers to it.
    fn garbage_left(&self) -> Option<String> {
        let gateways = self.gateways.as_ref()?;
        let mut referenced = BTreeSet::new();
        let catalog = &gateways.catalog;
        for bucket in [PLAIN, KEPT] {
            for upload in catalog.uploads(bucket, &Start::Key(vec![]), 1_000).ok()? {
                for part in catalog.parts(upload.id, 0, 1_000).ok()? {
                    let whole = catalog.part(upload.id, part.number).ok()??;
                    referenced.extend(decode_entries(&whole.entries).ok()?.iter().map(|entry| entry.id));
                }
            }
        }
        self.left_over(referenced, self.scenario.quiet_passes(PASSES), |disk, id| {
            let is_payload = id.kind() == ChunkKind::Payload;
            (!is_payload).then(|| disk.durable(id).map_or_else(Vec::new, |bytes| names(&bytes)))
        })
    }

    /// A chunk that a target still has after so many quiet passes, and that nothing refers to: it is not `referenced`, and no
    /// chunk that stays names it. `names` says that of a chunk that stays, and nothing of one that must be referred to.
    pub(super) fn left_over(
        &self,
        mut referenced: BTreeSet<ChunkId>,
        passes: u32,
        names: impl Fn(&Disk, &ChunkId) -> Option<Vec<ChunkId>>,
    ) -> Option<String> {
        let mut held: BTreeMap<ChunkId, Vec<NodeId>> = BTreeMap::new();
        for (node, state) in &self.nodes {
            let NodeMachine::Target(_, disk) = &state.machine else { continue };
            for id in disk.held() {
                match names(disk, &id) {
                    Some(others) => referenced.extend(others),
                    None => held.entry(id).or_default().push(*node),
                }
            }
        }
        let is_restored = |id: &ChunkId| {
            self.nodes
                .values()
                .any(|node| matches!(&node.machine, NodeMachine::Target(target, _) if target.is_restoring(id)))
        };
        let (id, nodes) = held.into_iter().find(|(id, _)| !referenced.contains(id) && !is_restored(id))?;
        Some(format!("nothing refers to {id:?}, and {nodes:?} still have it after {passes} quiet passes"))
    }
}

/// The chunks that a manifest refers to.
fn names(bytes: &[u8]) -> Vec<ChunkId> {
    if bytes.starts_with(&MAGIC) {
        return ObjectManifest::decode(bytes).map(|record| inspect::referenced(&record)).unwrap_or_default();
    }
    Manifest::decode(bytes).map(|manifest| manifest.entries.iter().map(|e| e.id).collect()).unwrap_or_default()
}
