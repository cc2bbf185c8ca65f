//! The S3 face of a gateway, and the commands for its users.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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

/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;
/// How long a gateway that stops waits for its catalog to take note.
const FAREWELL: Duration = Duration::from_secs(1);

/// What serves S3.
pub(crate) struct Face {
    pub(crate) server: s3::Server,
    pub(crate) listener: TcpListener,
    pub(crate) catalog: Arc<dyn Catalog>,
    pub(crate) beating: Beating,
}

/// Tells the catalog that this gateway lives, until this is dropped; then that it has ended.
pub(crate) struct Beating {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
}

impl Beating {
    fn start(objects: Arc<Objects>) -> anyhow::Result<Self> {
        let ((stop, stopped), (done, ended)) = (channel(), channel());
        let beat = move || {
            let mut well = true;
            while stopped.recv_timeout(object::BEAT) == Err(RecvTimeoutError::Timeout) {
                let beaten = objects.beat();
                // Said once, and not every few seconds.
                if let (Err(error), true) = (&beaten, well) {
                    tracing::warn!("the catalog could not be told that this gateway lives: {error}");
                }
                well = beaten.is_ok();
            }
            if let Err(error) = objects.end() {
                tracing::warn!("the catalog could not be told that this gateway ends: {error}");
            }
            let _ = done.send(());
        };
        std::thread::Builder::new().name("beat".into()).spawn(beat).context("the beat cannot be started")?;
        Ok(Self { stop: Some(stop), ended })
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.stop.take();
        // Not for ever: others find that it is gone.
        let _ = self.ended.recv_timeout(FAREWELL);
    }
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
    // Who finds no room there tries again a second later.
    rustix::net::listen(&listener, BACKLOG).context("the socket for S3 cannot be prepared")?;
    let catalog = Place::of(&args.config, &args.catalog, Some(file)).open_for_changes(cluster)?;
    let service = Arc::clone(cluster) as Arc<dyn ChunkService + Send + Sync>;
    let objects = Objects::new(service, Arc::clone(&catalog)).with_limit(limit).compressing(file.compress);
    let objects = objects.with_ahead(file.ahead()?).with_inline(file.inline()?);
    let live = gateway::Cluster::live(&**cluster);
    let watch: s3::Watch = Arc::new(move |status| live.answered(Instant::now(), status.as_u16()));
    let certificate = file.certificate(layout::directory(&args.config))?;
    let patience = Duration::from_secs(file.patience_seconds.max(1));
    let settings = s3::Settings { domain: file.domain.clone(), certificate, patience, watch: Some(watch) };
    let objects = Arc::new(objects);
    let server = s3::Server::new(Arc::clone(&objects), layout::users(&args.config, Some(file)), &settings)
        .map_err(|why| anyhow::anyhow!("[s3] in gateway.toml: {why}"))?;
    Ok(Face { server, listener, catalog, beating: Beating::start(objects)? })
}

/// A user as it is listed: without the secret.
#[derive(Serialize)]
struct Listed {
    name: String,
    access_key: String,
}

fn keys(user: &s3::User) -> anyhow::Result<()> {
    line(&format!("access key: {}\nsecret key: {}", user.access_key, user.secret_key))
}

/// Runs `reservoir user`. A running gateway knows at once.
pub(crate) fn user(command: &UserCommand) -> anyhow::Result<()> {
    let (UserCommand::Add { table, .. }
    | UserCommand::Show { table, .. }
    | UserCommand::List { table }
    | UserCommand::Remove { table, .. }) = command;
    let file = layout::gateway_file(&table.config)?;
    let users = layout::users(&table.config, file.s3.as_ref());
    match command {
        UserCommand::Add { name, .. } => {
            let user = users.add(name)?;
            if table.json { json(&user) } else { keys(&user) }
        }
        UserCommand::Show { name, secret, .. } => {
            let user = users.get(name)?;
            match (table.json, secret) {
                (true, _) => json(&user),
                (false, true) => line(&user.secret_key),
                (false, false) => keys(&user),
            }
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
