//! The side of the target that joins, and how it finds itself again at later starts.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use node::config::read_key;
use node::{ClusterConfig, atomic_file};
use protocol::map::MapDocument;
use serde::{Deserialize, Serialize};
use ureq::Agent;
use ureq::http::HeaderMap;

use super::{
    ANSWER_BYTES, Answer, CHALLENGE, CHALLENGE_HEADER, JOIN, JoinKey, Request, TAG_HEADER, VERSION, check_version, tag,
};
use crate::api::Refusal;
use crate::args::JoinArgs;
use crate::local_cluster::random_hex;
use crate::output::{printable, program};
use crate::process::host;

/// How long a gateway may take to accept a connection, and to answer: it may wait for a database.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(90);
/// The smallest capacity that is chosen by itself.
const LEAST: u64 = 256 << 20;

/// What is in the directory of a target that joined.
const CONFIG: &str = "cluster.toml";
const KEY: &str = "cluster.key";
const STORE: &str = "store";
/// There while joining is under way: what was asked for.
const UNDER_WAY: &str = "join.toml";

/// A target that has a place in a cluster.
pub(crate) struct Member {
    /// Its configuration.
    pub(crate) config: PathBuf,
    /// Its id.
    pub(crate) id: u32,
}

/// What was asked for when joining was broken off: the same is asked for again.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnderWay {
    listen: SocketAddr,
}

/// The target in this directory, which joined before.
fn reopen(directory: &Path) -> anyhow::Result<Member> {
    let directory = examined(directory)?;
    ensure!(
        directory.join(CONFIG).exists(),
        "no target has joined with {}: mount its disk, or join a cluster with --join ADDRESS --key-file FILE",
        directory.display()
    );
    member(&directory)
}

/// Joins a cluster, unless that was done, and makes the store.
pub(crate) fn prepare(directory: &Path, wanted: Option<u32>, args: &JoinArgs) -> anyhow::Result<Member> {
    let (Some(gateway), Some(key_file)) = (&args.join, &args.key_file) else {
        let member = reopen(directory)?;
        return ensure_same(wanted, &member).map(|()| member);
    };
    let is_new = !directory.exists();
    // The tree above is missing when a disk is not mounted.
    if is_new {
        fs::DirBuilder::new().mode(0o700).create(directory).with_context(|| {
            format!("the directory {} cannot be made: mount its disk, or make what is above it", directory.display())
        })?;
    }
    let directory = examined(directory)?;
    if !directory.join(CONFIG).exists() {
        join(&directory, gateway, key_file, wanted, args).inspect_err(|_| {
            // Where nothing was kept, nothing stays.
            if is_new {
                let _ = fs::remove_dir(&directory);
            }
        })?;
    }
    let member = member(&directory)?;
    ensure_same(wanted, &member)?;
    if directory.join(UNDER_WAY).exists() {
        // A store that is there was made before this was broken off: nothing is in it yet.
        match node::target::make_store(&ClusterConfig::load(&member.config)?, member.id) {
            Err(node::NodeError::HasStore { .. }) => {}
            made => made?,
        }
        fs::remove_file(directory.join(UNDER_WAY)).context("the note that joining is under way cannot be removed")?;
    }
    Ok(member)
}

fn ensure_same(wanted: Option<u32>, member: &Member) -> anyhow::Result<()> {
    let id = member.id;
    ensure!(
        wanted.is_none_or(|wanted| wanted == id),
        "the target of {} is {id}: leave --id out, or name another directory with --data",
        member.config.display()
    );
    Ok(())
}

fn examined(directory: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(directory).with_context(|| {
        format!("the directory {} cannot be examined: mount its disk, or name another with --data", directory.display())
    })
}

/// The target whose store is in this directory, by the map that is kept there.
fn member(directory: &Path) -> anyhow::Result<Member> {
    let config = directory.join(CONFIG);
    let (map, store) = (ClusterConfig::load(&config)?, directory.join(STORE));
    let own = map.targets.iter().find(|target| target.data == store);
    let id = own.map(|target| target.id).with_context(|| {
        format!(
            "no target in {} has its data in {}: it was taken out of the cluster, or its directory was moved; to begin anew, join \
             with an empty directory",
            config.display(),
            store.display()
        )
    })?;
    Ok(Member { config, id })
}

fn join(directory: &Path, gateway: &str, key_file: &Path, wanted: Option<u32>, args: &JoinArgs) -> anyhow::Result<()> {
    let key = read_key(key_file)?;
    let speaker = Speaker::new(gateway, JoinKey::new(&key));
    let note = directory.join(UNDER_WAY);
    let before: Option<UnderWay> = match fs::read_to_string(&note) {
        Ok(text) => toml::from_str(&text).ok(),
        Err(_) => {
            ensure_empty(directory)?;
            None
        }
    };
    let again = before.is_some();
    let listen = match (before, args.listen) {
        (Some(before), None) => before.listen,
        (_, Some(listen)) => listen,
        (None, None) => free_address(gateway)?,
    };
    let store = directory.join(STORE);
    let request = Request {
        version: VERSION,
        nonce: random_hex::<16>()?,
        again,
        id: wanted,
        replace: args.replace,
        drop_copies: args.drop_copies,
        domain: args.domain.clone(),
        host: host(),
        listen,
        metrics: args.metrics,
        data: store
            .to_str()
            .context("the directory has a name that is no text: choose another with --data")?
            .to_owned(),
        capacity: args.capacity.clone().map_or_else(|| free_capacity(directory), Ok)?,
    };
    // Whoever starts this again asks for the same, in case the answer is lost.
    let challenge = speaker.challenge()?;
    let text = toml::to_string(&UnderWay { listen }).context("a note cannot be made")?;
    atomic_file::write(&note, &text).with_context(|| format!("{} cannot be written", note.display()))?;
    let answer = speaker.ask(&challenge, &request).inspect_err(|refused| {
        if refused.is::<Refused>() {
            let _ = fs::remove_file(&note);
        }
    })?;
    let document = base64_simd::STANDARD.decode_to_vec(&answer.map).ok().map(Bytes::from).and_then(MapDocument::new);
    let document = document.context("the gateway's answer has no cluster map: update this program")?;
    let mut map = ClusterConfig::from_document(&document, &directory.join(CONFIG))?;
    map.key_file = KEY.into();
    let text = format!("{}\n", hex_simd::encode_to_string(key, hex_simd::AsciiCase::Lower));
    let kept = directory.join(KEY);
    atomic_file::write(&kept, &text).with_context(|| format!("{} cannot be written", kept.display()))?;
    map.create()?;
    tracing::info!("target {} joined the cluster {:?}: {}", answer.id, map.cluster, printable(&answer.says));
    Ok(())
}

/// Refuses a directory in which something is: it may be another target's.
fn ensure_empty(directory: &Path) -> anyhow::Result<()> {
    let entries = fs::read_dir(directory)
        .with_context(|| format!("the directory {} cannot be read: choose another with --data", directory.display()))?;
    // File systems make that.
    let other = entries.flatten().map(|entry| entry.file_name()).find(|name| name != "lost+found");
    if let Some(name) = other {
        bail!(
            "{} is not empty (it has {}): a new target needs a directory of its own; choose another with --data, or start the one that \
             is there with `{} target --config FILE --id N`",
            directory.display(),
            printable(&name.to_string_lossy()),
            program()
        );
    }
    Ok(())
}

/// The address from which the gateway is reached, and a port that is free.
fn free_address(gateway: &str) -> anyhow::Result<SocketAddr> {
    let no_way = || format!("no way to the gateway at {gateway} is known: name its ADDRESS:PORT, and --listen");
    let there = gateway.to_socket_addrs().with_context(no_way)?.next().with_context(no_way)?;
    let any: IpAddr = if there.is_ipv6() { [0; 16].into() } else { [0; 4].into() };
    // Nothing is sent.
    let socket = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(there).map(|()| socket));
    let own = socket.and_then(|socket| socket.local_addr()).with_context(no_way)?.ip();
    let port = node::free_port(own).with_context(|| format!("no UDP port of {own} is free: name one with --listen"))?;
    Ok(SocketAddr::new(own, port))
}

/// What is free on the disk.
fn free_capacity(directory: &Path) -> anyhow::Result<String> {
    let space = rustix::fs::statvfs(directory)
        .with_context(|| format!("the free space of {} cannot be found out", directory.display()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    ensure!(
        free >= LEAST,
        "{} has too little free space: a target needs {} MiB; free some, or choose another directory with --data",
        directory.display(),
        LEAST >> 20
    );
    Ok(format!("{}MiB", free >> 20))
}

/// It has no place in the cluster, for sure.
#[derive(Debug)]
struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Speaks with a gateway that has to have the key as well.
struct Speaker<'a> {
    agent: Agent,
    gateway: &'a str,
    key: JoinKey,
}

impl<'a> Speaker<'a> {
    fn new(gateway: &'a str, key: JoinKey) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(ANSWER))
            .build();
        Self { agent: Agent::new_with_config(agent), gateway, key }
    }

    fn silent(&self, error: &ureq::Error) -> anyhow::Error {
        anyhow::anyhow!(
            "no gateway answers at {} ({error}): start it, or name the address that is `http` in its gateway.toml with --join",
            self.gateway
        )
    }

    fn challenge(&self) -> anyhow::Result<String> {
        let answer = self.agent.get(format!("http://{}{CHALLENGE}", self.gateway)).call();
        let mut answer = answer.map_err(|error| self.silent(&error))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(4_096).read_to_vec().map_err(|error| self.silent(&error))?;
        if status != 200 {
            return Err(self.unproven(status, &body));
        }
        // The header is text, whatever came.
        String::from_utf8(body).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit())).with_context(
            || format!("{} is no gateway's address: name the one that is `http` in its gateway.toml", self.gateway),
        )
    }

    fn ask(&self, challenge: &str, request: &Request) -> anyhow::Result<Answer> {
        let body = serde_json::to_vec(request).context("the request cannot be made")?;
        let sent = self.key.request_tag(challenge, &body);
        let answer = self
            .agent
            .post(format!("http://{}{JOIN}", self.gateway))
            .header(CHALLENGE_HEADER, challenge)
            .header(TAG_HEADER, sent.to_hex().as_str())
            .header("content-type", "application/json")
            .send(&body[..]);
        let mut answer = answer.map_err(|error| self.silent(&error))?;
        let status = answer.status().as_u16();
        let proof = proof(answer.headers());
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec();
        let body = body.map_err(|error| self.silent(&error))?;
        if proof != Some(self.key.answer_tag(&sent, status, &body)) {
            return Err(self.unproven(status, &body));
        }
        if status != 200 {
            let refusal: Refusal = serde_json::from_slice(&body).context("the gateway's refusal cannot be read")?;
            let words = printable(&refusal.error);
            return Err(if status == 409 { Refused(words).into() } else { anyhow::anyhow!(words) });
        }
        let answer: Answer = serde_json::from_slice(&body).context("the gateway's answer cannot be read")?;
        check_version(answer.version)?;
        Ok(answer)
    }

    /// What to say of an answer that anybody may have given.
    fn unproven(&self, status: u16, body: &[u8]) -> anyhow::Error {
        let gateway = self.gateway;
        if status == 401 || status == 200 || status == 409 {
            let words =
                format!("the gateway at {gateway} has another key: take the cluster.key of its cluster for --key-file");
            return Refused(words).into();
        }
        let words = serde_json::from_slice::<Refusal>(body).map(|refusal| printable(&refusal.error));
        let words = words.unwrap_or_else(|_| format!("it answered {status}"));
        anyhow::anyhow!(
            "the gateway at {gateway} takes no targets: {words}; name its `http` address, of this version, with --join"
        )
    }
}

fn proof(headers: &HeaderMap) -> Option<blake3::Hash> {
    tag(headers.get(TAG_HEADER)?.to_str().ok()?).ok()
}
