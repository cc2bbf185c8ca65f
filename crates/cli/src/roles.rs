//! The processes of a cluster: a target, a switch, a gateway.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::http::header;
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use node::switch::SwitchNode;
use node::target::TargetNode;
use node::{Client, ClusterConfig, MapFile, metrics};
use protocol::redundancy::Redundancy;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{GatewayArgs, SwitchArgs, TargetArgs};
use crate::authority::{self, Database, MapAuthority};
use crate::background::Background;
use crate::down::Down;
use crate::gateway_file::GatewayFile;
use crate::node_cluster::NodeCluster;
use crate::up::Signals;
use crate::{clean, gateway, gateway_file, join, local_cluster, permissions, process, s3_endpoint, watch};

/// How often a target, or a gateway's initiator, is asked whether it still runs.
const ALIVE: Duration = Duration::from_millis(50);

/// How often the file of the cluster map is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Threads for work that blocks: one for each object in work, and some for the catalog.
const BLOCKING: usize = 256;

/// How long a gateway that was asked to stop works on with the requests that it has; less than `up` waits before it kills.
const GRACE: Duration = Duration::from_secs(6);
/// How long it waits after that for chunks that are on their way. They may become durable or not: no answer was sent.
const CHUNKS: Duration = Duration::from_secs(1);

/// Runs `reservoir target` until a signal.
pub(crate) fn target(args: &TargetArgs) -> anyhow::Result<()> {
    if args.with_parent {
        process::stop_with_parent()?;
    }
    let (path, id) = match (&args.data, args.id) {
        (Some(directory), wanted) => {
            let member = join::prepare(directory, wanted, &args.join)?;
            (member.config, member.id)
        }
        (None, Some(id)) => (args.config.clone(), id),
        (None, None) => bail!("which target to be is not known: name it with --id N, or its directory with --data DIR"),
    };
    let config = local_cluster::read(&path)?;
    if args.new {
        return Ok(node::target::make_store(&config, id)?);
    }
    let config = if config.layout.is_some() { config } else { local_cluster::load(&path)? };
    // Connections for its metrics must not take what its store opens.
    process::open_many_files();
    node::target::check_directory(&config, id)?;
    let address = config.targets.iter().find(|target| target.id == id).and_then(|target| target.metrics);
    let page = metrics_listener(&config, &format!("target {id}"), address)?;
    one_thread()?.block_on(run_target(&config, id, page))
}

/// Runs `reservoir switch` until a signal.
pub(crate) fn switch(args: &SwitchArgs) -> anyhow::Result<()> {
    if args.with_parent {
        process::stop_with_parent()?;
    }
    let (config, id) = (local_cluster::load(&args.config)?, args.id);
    let address = config.switches.iter().find(|switch| switch.id == id).and_then(|switch| switch.metrics);
    let page = metrics_listener(&config, &format!("switch {id}"), address)?;
    one_thread()?.block_on(run_switch(&config, id, page))
}

/// For signals and metrics.
fn one_thread() -> anyhow::Result<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.context("the thread for signals and metrics cannot be started")
}

/// The socket of a node's metrics, bound before the node starts: when it cannot be had, nothing was begun.
fn metrics_listener(
    config: &ClusterConfig,
    node: &str,
    address: Option<SocketAddr>,
) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listen = || -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map(Some).with_context(|| {
        format!(
            "{node} cannot serve its metrics on {address}: stop what uses it, or change `metrics` in {}",
            config.path.display()
        )
    })
}

/// A target's own threads do its work; this one waits for signals and serves its metrics.
async fn run_target(config: &ClusterConfig, id: u32, page: Option<TcpListener>) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("the target cannot register for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("the target cannot register for signals")?;
    let target = TargetNode::start(config, id)?;
    let metrics = target.metrics();
    serve_metrics(page, move || metrics.page())?;
    let (mut file, mut look) = (MapFile::of(config), tokio::time::interval(LOOK));
    loop {
        tokio::select! {
            () = signals.any() => break,
            _ = hangup.recv() => target.reload(),
            _ = look.tick() => if file.is_newer(target.epoch()) { target.reload() },
            () = tokio::time::sleep(ALIVE) => {}
        }
        ensure!(target.is_alive(), "target {id} stopped by itself: see the lines above, then start it again");
    }
    target.stop();
    Ok(())
}

/// A switch's own thread does its work; this one waits for signals and serves its metrics.
async fn run_switch(config: &ClusterConfig, id: u32, page: Option<TcpListener>) -> anyhow::Result<()> {
    let mut signals = Signals::new().context("the switch cannot register for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("the switch cannot register for signals")?;
    let switch = SwitchNode::start(config, id)?;
    let metrics = switch.metrics();
    serve_metrics(page, move || metrics.page())?;
    let (mut file, mut look) = (MapFile::of(config), tokio::time::interval(LOOK));
    loop {
        tokio::select! {
            () = signals.any() => break,
            _ = hangup.recv() => switch.reload(),
            _ = look.tick() => if file.is_newer(switch.epoch()) { switch.reload() },
            () = tokio::time::sleep(ALIVE) => {}
        }
        ensure!(switch.is_alive(), "switch {id} stopped by itself: see the lines above, then start it again");
    }
    switch.stop();
    Ok(())
}

/// Serves the metrics of a node, if it has an address for them.
fn serve_metrics(
    listener: Option<TcpListener>,
    metrics: impl Fn() -> String + Clone + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let Some(listener) = listener else { return Ok(()) };
    let listener = tokio::net::TcpListener::from_std(listener).context("the metrics' socket cannot be used")?;
    let page = async move || ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics());
    let check = gateway::HostCheck { names: vec![process::host()], names_in: None };
    let router = gateway::guarded(Router::new().route("/metrics", get(page)), check);
    tokio::spawn(s3::serve_pages(listener, TowerToHyperService::new(router), std::future::pending()));
    Ok(())
}

/// Ends when whoever holds the other end lets go.
async fn stopped(mut stopping: tokio::sync::watch::Receiver<()>) {
    while stopping.changed().await.is_ok() {}
}

/// The socket of a gateway's status page, which `settings` name.
fn listen(address: SocketAddr, settings: &Path) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        format!("the gateway cannot listen on {address}: stop what uses it, or change `http` in {}", settings.display())
    })?;
    listener.set_nonblocking(true).context("the gateway's socket cannot be prepared")?;
    Ok(listener)
}

fn gateway_threads() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .context("the gateway's threads cannot be started")
}

/// What decides the cluster map, and what lets this gateway follow it where that is a database.
fn map_authority(
    args: &GatewayArgs,
    file: &GatewayFile,
    client: &Client,
) -> anyhow::Result<(Arc<dyn MapAuthority>, Option<Background>)> {
    // A gateway without S3 shares no catalog.
    let shared = file.s3.as_ref().and_then(|s3| gateway_file::database(args.catalog.url.as_deref(), Some(s3)));
    let Some(url) = shared else { return Ok((authority::of_gateway(&args.config), None)) };
    let database = Arc::new(Database::open(&url, &args.config, &format!("the gateway at {}", file.http))?);
    let follower = database.follow(client)?;
    Ok((database, Some(follower)))
}

/// The gateway's pages, and the desk where targets join.
fn pages(
    cluster: &Arc<NodeCluster>,
    authority: Arc<dyn MapAuthority>,
    check: gateway::HostCheck,
    counts: Option<gateway::S3Counts>,
) -> anyhow::Result<Router> {
    let classes = classes(cluster);
    let (key, cluster) = (cluster.client().config().key()?, Arc::clone(cluster) as Arc<dyn gateway::Cluster>);
    let desk = gateway::JoinDesk::new(Arc::clone(&cluster), authority, &key, classes)?;
    Ok(gateway::router(cluster, check, counts, desk))
}

fn classes(cluster: &NodeCluster) -> BTreeMap<String, Redundancy> {
    cluster.classes().iter().map(|(name, redundancy)| (name.to_owned(), redundancy)).collect()
}

/// What takes targets out that stay down.
fn down(cluster: &Arc<NodeCluster>, authority: &Arc<dyn MapAuthority>) -> watch::Judge {
    let (asked, classes) = (Arc::clone(cluster) as Arc<dyn gateway::Cluster>, classes(cluster));
    let (mut down, client) = (Down::new(asked, Arc::clone(authority), classes), cluster.client().clone());
    Box::new(move |map, reports, unanswered, health| {
        down.look((map, client.config().out_after()), reports, unanswered, health)
    })
}

/// Runs `reservoir gateway` until a signal.
pub(crate) fn gateway(args: &GatewayArgs) -> anyhow::Result<()> {
    let config = local_cluster::load(&args.config)?;
    if args.with_parent {
        process::stop_with_parent()?;
    }
    process::open_many_files();
    let settings = args.settings.clone().unwrap_or_else(|| args.config.with_file_name("gateway.toml"));
    let file = gateway_file::load_from(&args.config, &settings)?;
    let address = file.http;
    let listener = listen(address, &settings)?;
    permissions::tighten_gateway(&config, file.s3.as_ref());
    let cluster = NodeCluster::start(&config, args.transport, args.no_multicast, None)?;
    let classes = file.s3.as_ref().map(|s3| s3.storage_classes(&cluster.client().map())).transpose()?;
    let cluster = Arc::new(cluster.with_classes(classes.unwrap_or_default()));
    // It ends when this function does.
    let (authority, _follower) = map_authority(args, &file, cluster.client())?;
    let (seen, down) = (gateway::Cluster::watch(&*cluster), down(&cluster, &authority));
    // It ends when this function does.
    let _watch = watch::start(seen, cluster.client(), settings.with_extension("history"), down)?;
    let (clean, limit) = (file.clean, file.clean.limit());
    let s3 = file.s3.map(|s3| s3_endpoint::s3_endpoint(args, &s3, limit, &cluster)).transpose()?;
    // It ends when this function does.
    let _cleaner =
        s3.as_ref().map(|s3_endpoint| clean::start(clean, &cluster, Arc::clone(&s3_endpoint.catalog))).transpose()?;
    let (s3, _heartbeat) =
        s3.map(|s3_endpoint| ((s3_endpoint.server, s3_endpoint.listener), s3_endpoint.heartbeat)).unzip();
    let counts = s3.as_ref().map(|(server, _)| Box::new(server.counts()) as gateway::S3Counts);
    let check = gateway::HostCheck { names: file.names, names_in: Some("gateway.toml") };
    let router = pages(&cluster, authority, check, counts)?;
    let runtime = gateway_threads()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new().context("the gateway cannot register for signals")?;
        let mut hangup = signal(SignalKind::hangup()).context("the gateway cannot register for signals")?;
        let listener = tokio::net::TcpListener::from_std(listener).context("the gateway's socket cannot be used")?;
        tracing::info!(%address, "gateway is up");
        let (stop, stopping) = tokio::sync::watch::channel(());
        let graceful = stopped(stopping.clone());
        let router = TowerToHyperService::new(router);
        let pages = async {
            s3::serve_pages(listener, router, graceful).await;
            Ok(())
        };
        let s3 = async {
            if let Some((server, listener)) = s3 {
                server.serve(tokio::net::TcpListener::from_std(listener)?, stopped(stopping)).await;
            }
            Ok::<(), std::io::Error>(())
        };
        let mut server = pin!(async { tokio::try_join!(pages, s3).map(drop) });
        let (mut file, mut look) = (MapFile::of(&config), tokio::time::interval(LOOK));
        loop {
            tokio::select! {
                ended = &mut server => return ended.context("the gateway stopped"),
                () = signals.any() => break,
                _ = hangup.recv() => cluster.client().reload(),
                _ = look.tick() => if file.is_newer(cluster.client().map().epoch.0) { cluster.client().reload() },
                () = tokio::time::sleep(ALIVE) => {}
            }
            ensure!(
                cluster.client().is_alive(),
                "the gateway's initiator stopped by itself: see the lines above, then start it again"
            );
        }
        drop(stop);
        match tokio::time::timeout(GRACE, server).await {
            Ok(ended) => ended.context("the gateway stopped"),
            Err(_) => {
                tracing::warn!("requests are still in work after {} s: they are broken off", GRACE.as_secs());
                Ok(())
            }
        }
    });
    runtime.shutdown_timeout(CHUNKS);
    ended
}
