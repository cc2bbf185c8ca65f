//! The S3 endpoint of a gateway.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use catalog::Catalog;
use node::atomic_file;
use object::ChunkService;
use object::objects::Objects;

use crate::args::GatewayArgs;
use crate::catalog::CatalogLocation;
use crate::node_cluster::NodeCluster;
use crate::{gateway, gateway_file};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;
/// How long a gateway that stops waits for its catalog to take note.
const LAST_HEARTBEAT: Duration = Duration::from_secs(1);

/// What serves S3.
pub(crate) struct S3Endpoint {
    pub(crate) server: s3::Server,
    pub(crate) listener: TcpListener,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) heartbeat: Heartbeat,
}

/// Tells the catalog that this gateway lives, until this is dropped; then that it has ended.
pub(crate) struct Heartbeat {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl Heartbeat {
    fn start(objects: Arc<Objects>) -> anyhow::Result<Self> {
        let ((stop, stopped), (done, ended)) = (channel(), channel());
        let run = move || {
            let mut well = true;
            while stopped.recv_timeout(object::HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                let outcome = objects.heartbeat();
                // Logged once, and not every few seconds.
                if let (Err(error), true) = (&outcome, well) {
                    tracing::warn!("the catalog could not be notified that this gateway lives: {error}");
                }
                well = outcome.is_ok();
            }
            if let Err(error) = objects.end() {
                tracing::warn!("the catalog could not be notified that this gateway ends: {error}");
            }
            let _ = done.send(());
        };
        std::thread::Builder::new().name("heartbeat".into()).spawn(run).context("the heartbeat cannot be started")?;
        Ok(Self { stop: Some(stop), ended })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop.take();
        // Not for ever: others find that it is gone.
        let _ = self.ended.recv_timeout(LAST_HEARTBEAT);
    }
}

/// The S3 endpoint of a cluster, and its socket.
pub(crate) fn s3_endpoint(
    args: &GatewayArgs,
    file: &gateway_file::S3File,
    limit: Duration,
    cluster: &Arc<NodeCluster>,
) -> anyhow::Result<S3Endpoint> {
    let listener = TcpListener::bind(file.listen).with_context(|| {
        format!("the gateway cannot listen on {} for S3: stop what uses it, or change s3.listen", file.listen)
    })?;
    listener.set_nonblocking(true).context("the socket for S3 cannot be prepared")?;
    // A gateway that finds no room there tries again a second later.
    rustix::net::listen(&listener, BACKLOG).context("the socket for S3 cannot be prepared")?;
    let catalog = CatalogLocation::of(&args.config, &args.catalog, Some(file)).open_for_changes(cluster)?;
    let service = Arc::clone(cluster) as Arc<dyn ChunkService + Send + Sync>;
    let objects = Objects::new(service, Arc::clone(&catalog)).with_limit(limit).compressing(file.compress);
    let objects = objects.with_ahead(file.ahead()?).with_inline(file.inline()?);
    let live = gateway::Cluster::live(&**cluster);
    let watch: s3::Watch = Arc::new(move |status| live.answered(Instant::now(), status.as_u16()));
    let certificate = file.certificate(atomic_file::directory(&args.config))?;
    let patience = Duration::from_secs(file.patience_seconds.get());
    let classes = cluster.classes().clone();
    let keys = Arc::new(gateway_file::keys(&args.config, Some(file)));
    let settings = s3::Settings {
        keys,
        domain: file.domain.clone(),
        certificate,
        patience,
        day: file.lifecycle_day_seconds,
        classes,
        watch: Some(watch),
    };
    let objects = Arc::new(objects);
    let server = s3::Server::new(Arc::clone(&objects), gateway_file::users(&args.config, Some(file)), &settings)
        .map_err(|why| anyhow::anyhow!("[s3] in gateway.toml: {why}"))?;
    Ok(S3Endpoint { server, listener, catalog, heartbeat: Heartbeat::start(objects)? })
}
