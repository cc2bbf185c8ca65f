//! The cluster as gateways and commands use it: chunks for objects, and what the status page shows, over a [`Client`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use node::config::SwitchConfig;
use node::{Client, ClientOptions, ClusterConfig, Ticket};
use object::{ChunkService, Pending, ServiceError};
use protocol::id::{ChunkId, NodeId};
use protocol::initiator::{ChunkPut, Discard, Discarded, Fetched, Found, Marked, Stored, TargetState};
use protocol::map::ClusterMap;
use protocol::redundancy::{Pieces, Redundancy};
use protocol::transport::Transport;
use protocol::wire::{HealthReport, Usage};
use s3::StorageClasses;

use crate::api::{ClassInfo, CleanInfo, DamageInfo, DownInfo, Status, SwitchInfo, TargetInfo};
use crate::fewer::Fewer;
use crate::gateway::{Cluster, Live};
use crate::silence::SilenceInfo;
use crate::units::duration;
use crate::watch::Watch;

/// A cluster as a running client sees it.
pub(crate) struct NodeCluster {
    client: Client,
    transport: Transport,
    live: Arc<Live>,
    cleaned: Arc<Mutex<CleanInfo>>,
    watch: Watch,
    fewer: Arc<Fewer>,
    /// The storage classes of who puts through it.
    classes: StorageClasses,
}

impl NodeCluster {
    /// Starts a client of the cluster.
    pub(crate) fn start(
        config: &ClusterConfig,
        transport: Option<Transport>,
        no_multicast: bool,
        depth: Option<usize>,
    ) -> anyhow::Result<Self> {
        let options = ClientOptions { transport, multicast: no_multicast.then_some(false), depth };
        let client = Client::start(config, options)?;
        let live = Arc::new(Live::new(Instant::now()));
        let transport = transport.unwrap_or(config.protocol.transport);
        let (cleaned, watch, fewer) = (Arc::default(), Watch::default(), Arc::default());
        Ok(Self { client, transport, live, cleaned, watch, fewer, classes: StorageClasses::default() })
    }

    /// The same, when objects of these storage classes may be in the cluster.
    pub(crate) fn with_classes(mut self, classes: StorageClasses) -> Self {
        self.classes = classes;
        self
    }

    /// The storage classes.
    pub(crate) const fn classes(&self) -> &StorageClasses {
        &self.classes
    }

    /// What cleaning has done: the cleaner writes it, and status reads it.
    pub(crate) fn cleaned(&self) -> Arc<Mutex<CleanInfo>> {
        Arc::clone(&self.cleaned)
    }

    /// The client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// Waits for a ticket, and lets `note` see the outcome; a client that stopped is an error like any other.
fn pending<T, E>(
    ticket: Ticket<Result<T, E>>,
    note: impl FnOnce(Option<&T>) + Send + 'static,
) -> Pending<Result<T, ServiceError>>
where
    T: Send + 'static,
    E: Send + 'static,
    ServiceError: From<E>,
{
    Pending::new(move || {
        let outcome = match ticket.wait() {
            Ok(outcome) => outcome.map_err(ServiceError::from),
            Err(stopped) => Err(ServiceError::Stopped(stopped.to_string())),
        };
        note(outcome.as_ref().ok());
        outcome
    })
}

impl ChunkService for NodeCluster {
    fn put(&self, put: ChunkPut) -> Pending<Result<Stored, ServiceError>> {
        let (live, fewer, bytes) = (Arc::clone(&self.live), Arc::clone(&self.fewer), put.payload.length() as u64);
        pending(self.client.put_chunk(put), move |stored: Option<&Stored>| {
            // Where every copy was there already, nobody took one.
            let took = stored.filter(|stored| stored.rounds > 0).map_or(&[][..], |stored| &stored.holders);
            let done = stored.map(|stored| (bytes, duration(stored.took)));
            if stored.is_some_and(Stored::lacks_copies) {
                fewer.count(Instant::now());
            }
            live.put(Instant::now(), done, took.iter().map(|target| target.0));
        })
    }

    fn get_fragments(
        &self,
        id: ChunkId,
        holders: Vec<NodeId>,
        fragments: Option<Pieces>,
    ) -> Pending<Result<Fetched, ServiceError>> {
        let live = Arc::clone(&self.live);
        pending(self.client.get_fragments(id, holders, fragments), move |fetched: Option<&Fetched>| {
            let bytes = |fetched: &Fetched| fetched.pieces.iter().map(|piece| piece.len() as u64).sum();
            live.get(Instant::now(), fetched.map(|fetched| (bytes(fetched), duration(fetched.took))));
        })
    }

    fn list(&self, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>> {
        pending(self.client.list(prefix), |_| ())
    }

    fn renew(&self, id: ChunkId, redundancy: Option<Redundancy>) -> Pending<Result<bool, ServiceError>> {
        pending(self.client.renew(id, redundancy), |_| ())
    }

    fn mark(&self) -> Pending<Result<Marked, ServiceError>> {
        pending(self.client.mark(), |_| ())
    }

    fn discard(&self, discard: Discard) -> Pending<Result<Discarded, ServiceError>> {
        pending(self.client.discard(discard), |_| ())
    }

    fn map(&self) -> ClusterMap {
        self.client.map()
    }
}

/// What a status is made of, by one map.
struct StatusAnswers {
    config: ClusterConfig,
    map: ClusterMap,
    states: Vec<TargetState>,
    switches: Vec<SwitchInfo>,
    usage: BTreeMap<NodeId, Usage>,
    health: Vec<(NodeId, HealthReport)>,
    down: DownInfo,
}

impl NodeCluster {
    fn answers(&self) -> anyhow::Result<StatusAnswers> {
        let (config, map) = (self.client.config(), self.client.map());
        let (states, usage, health) = (self.client.ping(), self.client.usage(), self.client.health());
        let switches = self.client.ping_switches().wait()?.context("the switches could not be asked")?;
        let switch = |switch: &SwitchConfig| SwitchInfo {
            id: switch.id,
            address: switch.address.to_string(),
            alive: switches.iter().any(|state| state.target.0 == switch.id && state.answer.is_some()),
        };
        let switches = config.switches.iter().map(switch).collect();
        Ok(StatusAnswers {
            config,
            map,
            states: states.wait()?.context("the targets could not be asked")?,
            switches,
            usage: usage.wait()?.unwrap_or_default().into_iter().collect(),
            health: health.wait()?.unwrap_or_default(),
            down: self.watch.down(),
        })
    }
}

impl Cluster for NodeCluster {
    fn status(&self) -> anyhow::Result<Status> {
        let first = self.answers()?;
        // Answers take seconds where targets are silent. By a map that came meanwhile they say little, so they are asked for again.
        let is_of_map_in_use = first.config.epoch == self.client.config().epoch;
        let StatusAnswers { config, map, states, switches, usage, health, down } =
            if is_of_map_in_use { first } else { self.answers()? };
        let used = |id: NodeId, of: fn(&Usage) -> u64| usage.get(&id).map(of);
        let targets = states.into_iter().map(|state| (config.targets.iter().find(|t| t.id == state.target.0), state));
        let targets = targets.map(|(target, state)| TargetInfo {
            id: state.target.0,
            domain: target.map_or_else(String::new, |t| t.domain.clone()),
            alive: state.answer.is_some(),
            drained: target.is_some_and(|t| t.drain),
            silence: target
                .filter(|_| state.answer.is_none())
                .map(|t| SilenceInfo::new(&self.client.silence(state.target), t.address)),
            free: state.answer.map(|a| a.free),
            chunks: state.answer.map(|a| a.chunks),
            live: used(state.target, |usage| usage.live),
            dead: used(state.target, |usage| usage.dead),
            reclaimed: used(state.target, |usage| usage.reclaimed),
            damaged: used(state.target, |usage| usage.damaged),
            damaged_more: usage.get(&state.target).map(|usage| usage.damaged_more),
        });
        let mut targets: Vec<TargetInfo> = targets.collect();
        targets.sort_by_key(|t| t.id);
        let damaged = DamageInfo {
            copies: targets.iter().filter_map(|target| target.damaged).sum(),
            at_least: targets.iter().any(|target| target.damaged_more != Some(false)),
        };
        let members = |group| map.members(group).map(|member| member.id.0).collect();
        let groups: Vec<Vec<u32>> = map.group_ids().map(members).collect();
        let silent: Vec<NodeId> =
            targets.iter().filter(|target| !target.alive).map(|target| NodeId(target.id)).collect();
        let out_of_reach = |own: Option<Redundancy>| -> Vec<u32> {
            map.out_of_reach(&silent, own).into_iter().map(|n| n as u32).collect()
        };
        let class = |redundancy: Redundancy| ClassInfo {
            redundancy: redundancy.to_string(),
            out_of_reach: out_of_reach(Some(redundancy)),
        };
        let classes = self.classes.iter().map(|(name, redundancy)| (name.to_owned(), class(redundancy))).collect();
        Ok(Status {
            cluster: config.cluster,
            epoch: config.epoch,
            newer_epoch: self.client.newer_map(),
            moves_paused: config.moves_paused,
            copies: config.copies,
            transport: self.transport.to_string(),
            multicast: self.client.multicast(),
            targets,
            switches,
            groups,
            min_copies: map.least(None) as u8,
            fewer_copies: self.fewer.info(Instant::now()),
            out_of_reach: out_of_reach(None),
            classes,
            health: self.watch.health(&map, &health, !silent.is_empty()),
            history: self.watch.history(),
            down,
            damaged,
            cleaning: self.cleaned.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        })
    }

    fn metrics(&self) -> String {
        self.client.metrics()
    }

    fn watch(&self) -> Watch {
        self.watch.clone()
    }

    fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live)
    }
}
