//! The S3 face of a gateway, and the commands for its users.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use object::ChunkService;
use object::catalog::Catalog;
use object::objects::Objects;
use serde::Serialize;

use crate::args::{GatewayArgs, UserCommand};
use crate::catalog::Place;
use crate::output::{json, line};
use crate::service::NodeCluster;
use crate::{gateway, layout};

/// What serves S3.
pub(crate) struct Face {
    pub(crate) server: s3::Server,
    pub(crate) listener: TcpListener,
    pub(crate) catalog: Arc<dyn Catalog>,
}

/// The S3 face of a cluster, and its socket.
pub(crate) fn face(
    args: &GatewayArgs,
    file: &layout::S3File,
    limit: Duration,
    cluster: &Arc<NodeCluster>,
) -> anyhow::Result<Face> {
    let listener = TcpListener::bind(file.listen).with_context(|| {
        format!("the gateway cannot listen on {} for S3: stop what uses it, or change s3.listen", file.listen)
    })?;
    listener.set_nonblocking(true).context("the socket for S3 cannot be prepared")?;
    let catalog = Place::of(&args.config, &args.catalog, Some(file)).open_for_changes(cluster)?;
    let service = Arc::clone(cluster) as Arc<dyn ChunkService + Send + Sync>;
    let objects = Objects::new(service, Arc::clone(&catalog)).with_limit(limit).compressing(file.compress);
    let live = gateway::Cluster::live(&**cluster);
    let watch: s3::Watch = Arc::new(move |status| live.answered(Instant::now(), status.as_u16()));
    let certificate = file.certificate(layout::directory(&args.config))?;
    let patience = Duration::from_secs(file.patience_seconds.max(1));
    let settings = s3::Settings { domain: file.domain.clone(), certificate, patience, watch: Some(watch) };
    let server = s3::Server::new(Arc::new(objects), layout::users(&args.config, Some(file)), &settings)
        .map_err(|why| anyhow::anyhow!("[s3] in gateway.toml: {why}"))?;
    Ok(Face { server, listener, catalog })
}

/// A user as it is listed: without the secret.
#[derive(Serialize)]
struct Listed {
    name: String,
    access_key: String,
}

/// Runs `reservoir user`. A running gateway knows at once.
pub(crate) fn user(command: &UserCommand) -> anyhow::Result<()> {
    let (UserCommand::Add { table, .. } | UserCommand::List { table } | UserCommand::Remove { table, .. }) = command;
    let file = layout::gateway_file(&table.config)?;
    let users = layout::users(&table.config, file.s3.as_ref());
    match command {
        UserCommand::Add { name, .. } => {
            let user = users.add(name)?;
            if table.json {
                return json(&user);
            }
            line(&format!("access key: {}\nsecret key: {}", user.access_key, user.secret_key))
        }
        UserCommand::List { .. } => {
            let list = users.list()?.into_iter().map(|user| Listed { name: user.name, access_key: user.access_key });
            let list: Vec<Listed> = list.collect();
            if table.json {
                return json(&list);
            }
            list.iter().try_for_each(|user| line(&format!("{}  {}", user.access_key, user.name)))
        }
        UserCommand::Remove { name, .. } => Ok(users.remove(name)?),
    }
}
