//! What gateways leave behind, judged: what clients were told, what is referred to, and what is left that nothing refers to.

use std::collections::{BTreeMap, BTreeSet};

use object::Manifest;
use object::catalog::{Catalog, Start};
use object::record::{MAGIC, Record, decode_entries};
use protocol::id::{ChunkId, ChunkKind};

use super::gateways::LOOKS;
use super::{Machinery, World};
use crate::excuse::Excuse;
use crate::object::client::{KEPT, PLAIN};
use crate::object::history::Name;
use crate::object::inspect;
use crate::object::stage::lock;

impl World<'_> {
    /// What the clients were told is possible, what is referred to has its copies, and nothing else is left.
    pub(super) fn check_objects(&mut self) {
        let Some(gateways) = &self.gateways else { return };
        // Files have no catalog: while others are silent, targets whose copy was damaged do not know that there was one.
        let rotten = |name: &Name| {
            let prefix = ChunkId::name_prefix(name.1);
            let is_of_name = |id: &ChunkId| id.kind() == ChunkKind::Manifest && id.bytes().starts_with(&prefix);
            name.0.is_empty() && self.damaged.iter().any(|(id, _)| is_of_name(id))
        };
        let ((judged, excused), referenced) = {
            let desk = lock(&gateways.stage.desk);
            (desk.history.judge(&rotten), desk.history.referenced.clone())
        };
        (0..excused).for_each(|_| self.outcome.excuses.used(Excuse::RottenName));
        let newest = self.maps.len() - 1;
        let copies = usize::from(self.maps[newest].copies);
        let mut few = None;
        for id in &referenced {
            let (mut good, mut damaged) = (vec![], vec![]);
            for (node, state) in &self.nodes {
                let Machinery::Target(_, disk) = &state.machinery else { continue };
                if disk.durable(id).is_some() {
                    good.push(*node);
                } else if self.harmed(*id, *node).is_some() {
                    damaged.push(*node);
                }
            }
            if self.spread(newest, good.iter().chain(&damaged)) < copies {
                few = Some(format!(
                    "{id:?} is referred to, and has good copies on {good:?}, damaged ones on {damaged:?}: {copies} apart were promised"
                ));
            }
        }
        let left = if gateways.settings.cleans { self.garbage_left() } else { None };
        [judged, few, left].into_iter().flatten().for_each(|why| self.fail(why));
    }

    /// A payload chunk that is held though nothing refers to it.
    fn garbage_left(&self) -> Option<String> {
        let gateways = self.gateways.as_ref()?;
        let mut referenced = BTreeSet::new();
        let mut held = BTreeMap::new();
        for (node, state) in &self.nodes {
            let Machinery::Target(_, disk) = &state.machinery else { continue };
            for id in disk.held() {
                if id.kind() == ChunkKind::Payload {
                    held.insert(id, *node);
                } else if let Some(bytes) = disk.durable(&id) {
                    referenced.extend(names(&bytes));
                }
            }
        }
        let catalog = &gateways.catalog;
        for bucket in [PLAIN, KEPT] {
            for upload in catalog.uploads(bucket, &Start::Key(vec![]), 1_000).ok()? {
                for part in catalog.parts(upload.id, 0, 1_000).ok()? {
                    let whole = catalog.part(upload.id, part.number).ok()??;
                    referenced.extend(decode_entries(&whole.entries).ok()?.iter().map(|entry| entry.id));
                }
            }
        }
        let (id, node) = held.into_iter().find(|(id, _)| !referenced.contains(id))?;
        Some(format!("nothing refers to {id:?}, and {node} still has it after {LOOKS} quiet looks"))
    }
}

/// The chunks that a manifest names.
fn names(bytes: &[u8]) -> Vec<ChunkId> {
    if bytes.starts_with(&MAGIC) {
        return Record::decode(bytes).map(|record| inspect::named(&record)).unwrap_or_default();
    }
    Manifest::decode(bytes).map(|manifest| manifest.entries.iter().map(|e| e.id).collect()).unwrap_or_default()
}
