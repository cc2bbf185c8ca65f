//! What gateways leave behind, judged: what clients were told, what is referred to, and what is left that nothing refers to.

use std::collections::{BTreeMap, BTreeSet};

use object::Manifest;
use object::catalog::{Catalog, Start};
use object::record::{MAGIC, Record, decode_entries};
use protocol::id::{ChunkId, ChunkKind, NodeId};

use super::gateways::LOOKS;
use super::{Machinery, World};
use crate::disk::Disk;
use crate::object::client::{KEPT, PLAIN};
use crate::object::inspect;
use crate::object::stage::lock;

impl World<'_> {
    /// What the clients were told is possible, what is referred to has its copies, and nothing else is left.
    pub(super) fn check_objects(&mut self) {
        let Some(gateways) = &self.gateways else { return };
        let (judged, referenced) = {
            let desk = lock(&gateways.stage.desk);
            (desk.history.judge(), desk.history.referenced.clone())
        };
        let left = if gateways.settings.cleans && !gateways.told.stuck { self.garbage_left() } else { None };
        for id in &referenced {
            self.check_referenced(*id);
        }
        [judged, left].into_iter().flatten().for_each(|why| self.fail(why));
    }

    /// What is referred to has its copies, as the map has it under which they were promised, but for those that are harmed.
    fn check_referenced(&mut self, id: ChunkId) {
        let newest = self.maps.len() - 1;
        let promise = self.gateways.as_ref().and_then(|gateways| gateways.told.promised.get(&id));
        let map = promise.map_or(newest, |promise| promise.map);
        let copies = usize::from(self.maps[map].copies);
        let good: Vec<NodeId> = self.nodes.keys().copied().filter(|node| self.holds(*node, &id).is_some()).collect();
        if self.spread(map, &good) >= copies {
            return;
        }
        let all = (id, NodeId(0))..=(id, NodeId(u32::MAX));
        let harmed = self.damaged.range(all.clone()).chain(self.lost.range(all)).map(|(_, node)| *node);
        let harmed: BTreeSet<NodeId> = harmed.filter(|node| !good.contains(node)).collect();
        if self.spread(map, good.iter().chain(&harmed)) < copies {
            return self.fail(format!(
                "{id:?} is referred to, and has good copies on {good:?}, harmed ones on {harmed:?}: {copies} apart were promised"
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
        self.left_over(referenced, LOOKS, |disk, id| {
            let is_payload = id.kind() == ChunkKind::Payload;
            (!is_payload).then(|| disk.durable(id).map_or_else(Vec::new, |bytes| names(&bytes)))
        })
    }

    /// A chunk that a target still has after so many quiet looks, and that nothing refers to: it is not `referenced`, and no
    /// chunk that stays names it. `names` says that of a chunk that stays, and nothing of one that must be referred to.
    pub(super) fn left_over(
        &self,
        mut referenced: BTreeSet<ChunkId>,
        looks: u32,
        names: impl Fn(&Disk, &ChunkId) -> Option<Vec<ChunkId>>,
    ) -> Option<String> {
        let mut held: BTreeMap<ChunkId, Vec<NodeId>> = BTreeMap::new();
        for (node, state) in &self.nodes {
            let Machinery::Target(_, disk) = &state.machinery else { continue };
            for id in disk.held() {
                match names(disk, &id) {
                    Some(named) => referenced.extend(named),
                    None => held.entry(id).or_default().push(*node),
                }
            }
        }
        let (id, nodes) = held.into_iter().find(|(id, _)| !referenced.contains(id))?;
        Some(format!("nothing refers to {id:?}, and {nodes:?} still have it after {looks} quiet looks"))
    }
}

/// The chunks that a manifest names.
fn names(bytes: &[u8]) -> Vec<ChunkId> {
    if bytes.starts_with(&MAGIC) {
        return Record::decode(bytes).map(|record| inspect::named(&record)).unwrap_or_default();
    }
    Manifest::decode(bytes).map(|manifest| manifest.entries.iter().map(|e| e.id).collect()).unwrap_or_default()
}
