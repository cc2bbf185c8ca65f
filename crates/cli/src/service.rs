//! The node crate as the rest of this program sees it.

use anyhow::Context;
use bytes::Bytes;
use node::{Client, ClientOptions, ClusterConfig, Ticket};
use object::{ChunkService, Pending, ServiceError};
use protocol::config::Transport;
use protocol::id::ChunkId;
use protocol::initiator::{Fetched, Found, Scope, Stored};

use crate::api::{Status, TargetInfo};
use crate::args::TransportArg;
use crate::gateway::Cluster;

/// A cluster as a running client sees it.
pub(crate) struct NodeCluster {
    client: Client,
    transport: TransportArg,
}

impl From<TransportArg> for Transport {
    fn from(arg: TransportArg) -> Self {
        match arg {
            TransportArg::Hash => Self::Hash,
            TransportArg::ReplicastM => Self::ReplicastM,
            TransportArg::ReplicastH => Self::ReplicastH,
        }
    }
}

impl NodeCluster {
    /// Starts a client of the cluster.
    pub(crate) fn start(
        config: &ClusterConfig,
        transport: Option<TransportArg>,
        no_multicast: bool,
        depth: Option<usize>,
    ) -> anyhow::Result<Self> {
        let options = ClientOptions {
            transport: transport.map(Transport::from),
            multicast: no_multicast.then_some(false),
            depth,
        };
        let client = Client::start(config, options)?;
        let configured = match Transport::from(config.protocol.transport) {
            Transport::Hash => TransportArg::Hash,
            Transport::ReplicastM => TransportArg::ReplicastM,
            Transport::ReplicastH => TransportArg::ReplicastH,
        };
        Ok(Self { client, transport: transport.unwrap_or(configured) })
    }

    /// The client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// Waits for a ticket; a client that stopped is an error like any other.
fn pending<T, E>(ticket: Ticket<Result<T, E>>) -> Pending<Result<T, ServiceError>>
where
    T: Send + 'static,
    E: Send + 'static,
    ServiceError: From<E>,
{
    Pending::new(move || match ticket.wait() {
        Ok(outcome) => outcome.map_err(ServiceError::from),
        Err(stopped) => Err(ServiceError::Stopped(stopped.to_string())),
    })
}

impl ChunkService for NodeCluster {
    fn put(&self, id: ChunkId, payload: Bytes) -> Pending<Result<Stored, ServiceError>> {
        pending(self.client.put(id, payload))
    }

    fn get(&self, id: ChunkId) -> Pending<Result<Fetched, ServiceError>> {
        pending(self.client.get(id))
    }

    fn list(&self, scope: Scope, prefix: Vec<u8>) -> Pending<Result<Found, ServiceError>> {
        pending(self.client.list(scope, prefix))
    }

    fn copies(&self) -> usize {
        self.client.config().copies.into()
    }

    fn members(&self, id: ChunkId) -> usize {
        // A map in use was checked when it was read.
        self.client.config().map().map_or(0, |map| map.members(map.group_of(&id)).count())
    }
}

impl Cluster for NodeCluster {
    fn status(&self) -> anyhow::Result<Status> {
        let config = self.client.config();
        let states = self.client.ping().wait()?.context("the targets could not be asked")?;
        let targets = states.into_iter().map(|state| TargetInfo {
            id: state.target.0,
            domain: config
                .targets
                .iter()
                .find(|t| t.id == state.target.0)
                .map_or_else(String::new, |t| t.domain.clone()),
            alive: state.answer.is_some(),
            free: state.answer.map(|a| a.free),
            chunks: state.answer.map(|a| a.chunks),
        });
        let mut targets: Vec<TargetInfo> = targets.collect();
        targets.sort_by_key(|t| t.id);
        Ok(Status {
            cluster: config.cluster,
            epoch: config.epoch,
            copies: config.copies,
            transport: self.transport.name().to_owned(),
            multicast: self.client.multicast(),
            targets,
        })
    }

    fn metrics(&self) -> String {
        self.client.metrics()
    }
}
