//! Takes targets into the cluster: a gateway proposes the map that has them, and answers with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use blake3::Hash;
use node::ClusterConfig;
use node::config::TargetConfig;
use protocol::redundancy::Redundancy;
use tokio::sync::Semaphore;

use super::{Cluster, Failure, blocking};
use crate::api::{Refusal, Status};
use crate::authority::{self, Decided, MapAuthority};
use crate::change::{self, Change, Rules, Stored};
use crate::join::{
    Answer, CHALLENGE, CHALLENGE_HEADER, Challenges, JOIN, JoinKey, REQUEST_BYTES, Request, TAG_HEADER, VERSION,
    check_version, tag,
};
use crate::units;

/// Targets that join at once; others wait.
const AT_ONCE: usize = 4;
/// Requests that are remembered, so that none counts twice.
const REMEMBERED: usize = 1_024;
/// For how long: as a number is fresh.
const FOR: Duration = Duration::from_secs(60);
/// How often a map is made again when another was decided meanwhile, and the rest between.
const TRIES: u32 = 50;
const REST: Duration = Duration::from_millis(100);

/// A proposal failed, and may have been decided.
#[derive(Debug)]
struct Unsure;

impl std::fmt::Display for Unsure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("start it again in the same way, as it may have joined or not")
    }
}

/// What takes targets in.
pub(crate) struct JoinDesk {
    cluster: Arc<dyn Cluster>,
    authority: Arc<dyn MapAuthority>,
    key: JoinKey,
    classes: BTreeMap<String, Redundancy>,
    challenges: Challenges,
    /// Tags of requests, and when they came.
    seen: Mutex<BTreeMap<[u8; 32], Instant>>,
    turns: Arc<Semaphore>,
}

impl JoinDesk {
    /// For the cluster with this key, whose objects may be of these storage classes.
    pub(crate) fn new(
        cluster: Arc<dyn Cluster>,
        authority: Arc<dyn MapAuthority>,
        key: &[u8],
        classes: BTreeMap<String, Redundancy>,
    ) -> anyhow::Result<Self> {
        let (key, challenges) = (JoinKey::new(key), Challenges::new()?);
        let (seen, turns) = (Mutex::default(), Arc::new(Semaphore::new(AT_ONCE)));
        Ok(Self { cluster, authority, key, classes, challenges, seen, turns })
    }

    /// Its addresses.
    pub(super) fn router(self) -> Router {
        Router::new()
            .route(CHALLENGE, get(challenge))
            .route(JOIN, post(join))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES))
            .with_state(Arc::new(self))
    }

    /// The tag of a request, whose sender has the key; else why not.
    fn proven(&self, headers: &HeaderMap, body: &[u8]) -> Result<(Hash, String), Failure> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (sent, challenge) = (tag(text(TAG_HEADER)), text(CHALLENGE_HEADER));
        let own = self.key.request_tag(challenge, body);
        match sent {
            // Compared in a time that says nothing.
            Ok(sent) if sent == own => Ok((own, challenge.to_owned())),
            _ => Err(Failure(StatusCode::UNAUTHORIZED, "this cluster has another key".to_owned())),
        }
    }

    /// What became of a request that somebody with the key has sent.
    fn answer(&self, request: &Hash, challenge: &str, body: &[u8]) -> anyhow::Result<Answer> {
        self.ensure_fresh(request, challenge, Instant::now())?;
        #[derive(serde::Deserialize)]
        struct Versioned {
            version: u8,
        }
        // Of another version nothing else is known.
        check_version(serde_json::from_slice::<Versioned>(body).context("the request cannot be read")?.version)?;
        self.take_in(&serde_json::from_slice(body).context("the request cannot be read")?)
    }

    /// Whether a request was made a moment ago, and never came before.
    fn ensure_fresh(&self, request: &Hash, challenge: &str, now: Instant) -> anyhow::Result<()> {
        ensure!(self.challenges.is_fresh(challenge, now), "the request is not of this minute: try again");
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, at| now.duration_since(*at) <= FOR);
        ensure!(seen.len() < REMEMBERED, "{REMEMBERED} targets asked within a minute: try again later");
        ensure!(seen.insert(*request.as_bytes(), now).is_none(), "the request came before: try again");
        Ok(())
    }

    /// Makes the map that has a target, and has it decided.
    fn take_in(&self, request: &Request) -> anyhow::Result<Answer> {
        for _ in 0..TRIES {
            let mut joins = None;
            let make = |present: &ClusterConfig| self.with_newcomer(present, request, &mut joins);
            match (authority::decide(&*self.authority, 1, make), joins) {
                (Ok(Decided::Changed), Some(answer)) => {
                    tracing::info!("target {} at {} joins: {}", answer.id, request.listen, answer.says);
                    return Ok(answer);
                }
                (Ok(Decided::Nothing), Some(answer)) => return Ok(answer),
                // The map was made, and proposed.
                (Err(error), Some(_)) => return Err(error.context(Unsure)),
                (Err(error), None) => return Err(error),
                // Another map was decided meanwhile, or is on its way to this gateway.
                _ => std::thread::sleep(REST),
            }
        }
        bail!("the cluster map was changed by others all the time: try again, or see `reservoir status`")
    }

    /// The map that has a target, and what it is answered then. No map where the present one has it; neither where there is a newer one.
    fn with_newcomer(
        &self,
        present: &ClusterConfig,
        request: &Request,
        joins: &mut Option<Answer>,
    ) -> anyhow::Result<Option<ClusterConfig>> {
        if let Some(id) = member(present, request)? {
            *joins = Some(answer(present, id, "it had asked for that before".to_owned())?);
            return Ok(None);
        }
        let target = newcomer(present, request)?;
        let status = self.cluster.status()?;
        if status.epoch.max(status.newer_epoch.unwrap_or(0)) > present.epoch {
            return Ok(None);
        }
        let id = target.id;
        let (next, says) = self.plan(present, target, request, &status)?;
        *joins = Some(answer(&next, id, says)?);
        Ok(Some(next))
    }

    fn plan(
        &self,
        present: &ClusterConfig,
        target: TargetConfig,
        request: &Request,
        status: &Status,
    ) -> anyhow::Result<(ClusterConfig, String)> {
        let stored = Stored::of(status).context("no target answers the gateway: start them, then try again")?;
        let replace = request.replace.iter().map(|old| (*old, target.id)).collect();
        let change = Change { add: vec![target], replace, ..Change::default() };
        let rules = Rules { stored: &stored, classes: &self.classes, drop_copies: request.drop_copies };
        let (next, plan) = change::next(present, &change, &rules)?;
        for (name, redundancy) in &self.classes {
            plan.map.can_keep(*redundancy).with_context(|| format!("storage class {name}"))?;
        }
        ensure!(
            !plan.forgets || status.epoch == present.epoch && status.health.whole,
            "the cluster map has a layout before it, where some of what is stored may still be, and the next one would forget that: \
             wait until `reservoir status` says that every chunk has all its copies, then try again"
        );
        let (stored, moved) = (units::size(stored.bytes), units::size(plan.moves.bytes()));
        Ok((next, format!("epoch {}: of {stored} stored, {moved} would have to move", plan.map.epoch.0)))
    }
}

/// The target that asks, if it is in the map already, as it may not have heard that.
fn member(present: &ClusterConfig, request: &Request) -> anyhow::Result<Option<u32>> {
    let ip = request.listen.ip();
    let same = |target: &&TargetConfig| target.address.ip() == ip && target.data == Path::new(&request.data);
    let Some(there) = present.targets.iter().find(same) else { return Ok(None) };
    if request.again && there.address == request.listen && request.id.is_none_or(|id| id == there.id) {
        return Ok(Some(there.id));
    }
    ensure!(
        request.replace == Some(there.id),
        "target {id} of {ip} has its data in {data} already: mount its disk and start it again; if its disk is lost, take its place with \
         --replace {id}",
        id = there.id,
        data = request.data
    );
    Ok(None)
}

/// The target that asks, as the map is to have it.
fn newcomer(present: &ClusterConfig, request: &Request) -> anyhow::Result<TargetConfig> {
    let highest = present.targets.iter().map(|target| target.id).max().max(present.last_id).unwrap_or(0);
    if let Some(id) = request.id {
        let there = present.targets.iter().find(|target| target.id == id);
        if let Some(there) = there {
            bail!("target {id} is in the map already, at {}: leave --id out, or name another", there.address);
        }
        ensure!(
            present.last_id.is_none_or(|last| id > last),
            "target {id} may have been in the map before: leave --id out, or name one above {highest}"
        );
    }
    let (address, first) = (request.listen, present.targets.first().map(|target| target.address.ip()));
    ensure!(!address.ip().is_unspecified(), "{address} is the address of no machine: name one with --listen");
    let is_local = first.is_some_and(|ip| ip.is_loopback());
    ensure!(
        address.ip().is_loopback() == is_local,
        "{} {}: name another address with --listen",
        address.ip(),
        if is_local {
            "is not of the loopback interface, where all targets are"
        } else {
            "is not reached from other machines"
        }
    );
    let beside = present.targets.iter().filter(|target| target.address.ip() == address.ip());
    let mut domains: Vec<&str> = beside.map(|target| target.domain.as_str()).collect();
    if let Some(old) = request.replace {
        let same_host = |target: &&TargetConfig| target.id == old && target.address.ip() == address.ip();
        domains = present.targets.iter().find(same_host).map_or(domains, |old| vec![old.domain.as_str()]);
    }
    domains.dedup();
    let domain = match (&request.domain, &domains[..]) {
        (Some(domain), _) => domain.clone(),
        // They are of one server.
        (None, [domain]) => (*domain).to_owned(),
        (None, _) => request.host.clone(),
    };
    ensure!(!domain.is_empty(), "this machine has no name: name the failure domain with --domain");
    Ok(TargetConfig {
        id: request.id.unwrap_or(highest + 1),
        domain,
        moved: false,
        drain: false,
        address,
        data: request.data.clone().into(),
        capacity: request.capacity.clone(),
        metrics: request.metrics,
        write_delay_ms: 0,
    })
}

fn answer(map: &ClusterConfig, id: u32, says: String) -> anyhow::Result<Answer> {
    let document = map.document().context("the cluster map is too long to be sent: more than 4 MiB, compressed")?;
    Ok(Answer { version: VERSION, id, says, map: base64_simd::STANDARD.encode_to_string(document.bytes()) })
}

async fn challenge(State(desk): State<Arc<JoinDesk>>) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], desk.challenges.give(Instant::now()))
}

async fn join(State(desk): State<Arc<JoinDesk>>, headers: HeaderMap, body: Bytes) -> Result<Response, Failure> {
    let (request, challenge) = desk.proven(&headers, &body)?;
    let busy = |_| Failure(StatusCode::SERVICE_UNAVAILABLE, "the gateway stops: ask another".to_owned());
    let turn = Arc::clone(&desk.turns).acquire_owned().await.map_err(busy)?;
    let asked = Arc::clone(&desk);
    let outcome = blocking(move || {
        let _turn = turn;
        asked.answer(&request, &challenge, &body)
    })
    .await?;
    let (status, body) = match outcome {
        Ok(answer) => (StatusCode::OK, serde_json::to_vec(&answer)),
        Err(error) => {
            let status = if error.is::<Unsure>() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::CONFLICT };
            let error = format!("{error:#}").replace('\n', " ");
            tracing::warn!("a target does not join: {error}");
            (status, serde_json::to_vec(&Refusal { error }))
        }
    };
    let wrong = |error| Failure(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer cannot be made: {error}"));
    let body = body.map_err(wrong)?;
    let proof = desk.key.answer_tag(&request, status.as_u16(), &body).to_hex().to_string();
    Ok((status, [(TAG_HEADER, proof)], body).into_response())
}
