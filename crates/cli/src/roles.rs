//! The processes of a cluster: a target, a gateway.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::Context;

use crate::args::{GatewayArgs, TargetArgs};
use crate::service::NodeCluster;
use crate::up::Signals;
use crate::{gateway, layout, process, service};

/// Runs `reservoir target` until a signal.
pub(crate) fn target(args: &TargetArgs) -> anyhow::Result<()> {
    let config = layout::load(&args.config)?;
    if args.with_parent {
        process::stop_with_parent()?;
    }
    service::run_target(&config, args.id)
}

/// Runs `reservoir gateway` until a signal.
pub(crate) fn gateway(args: &GatewayArgs) -> anyhow::Result<()> {
    let config = layout::load(&args.config)?;
    if args.with_parent {
        process::stop_with_parent()?;
    }
    let address = layout::gateway_address(&args.config)?;
    let listener = TcpListener::bind(&address).with_context(|| {
        format!(
            "the gateway cannot listen on {address}: stop what uses it, or change gateway.http in {}",
            args.config.display()
        )
    })?;
    listener.set_nonblocking(true).context("the gateway's socket cannot be prepared")?;
    let cluster = Arc::new(NodeCluster::start(&config, args.transport, args.no_multicast, None)?);
    let router = gateway::router(cluster);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(128)
        .enable_all()
        .build()
        .context("the gateway's threads cannot be started")?;
    runtime.block_on(async {
        let mut signals = Signals::new().context("the gateway cannot register for signals")?;
        let listener = tokio::net::TcpListener::from_std(listener).context("the gateway's socket cannot be used")?;
        tracing::info!(%address, "gateway is up");
        axum::serve(listener, router)
            .with_graceful_shutdown(async move { signals.any().await })
            .await
            .context("the gateway stopped")
    })
}
