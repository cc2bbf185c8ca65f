//! A cluster's directory: made once, found again.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use node::ClusterConfig;
use node::config::{MulticastChoice, Network, Protocol, TargetConfig, TransportName};
use node::target::IDENTITY;
use serde::{Deserialize, Serialize};

use crate::args::{TransportArg, UpArgs};
use crate::output::program;

/// Ports of a cluster on one machine: below those that systems give to whoever asks for any.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Where a cluster lives and what it consists of.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// Its configuration file.
    pub(crate) config_path: PathBuf,
    /// The ids of its targets.
    pub(crate) targets: Vec<u32>,
    /// Its gateways; there is one at least.
    pub(crate) gateways: Vec<Door>,
    /// Whether it was made just now.
    pub(crate) created: bool,
    /// Its first user, if that was made just now.
    pub(crate) new_user: Option<s3::User>,
}

/// A gateway of a cluster on one machine.
#[derive(Debug)]
pub(crate) struct Door {
    /// Its file.
    pub(crate) settings: PathBuf,
    /// Its HTTP address.
    pub(crate) http: SocketAddr,
    /// Its S3 face.
    pub(crate) s3: Option<S3File>,
}

impl Door {
    /// Whether somebody listens there.
    pub(crate) fn answers(&self) -> bool {
        self.s3.iter().map(|s3| s3.listen).chain([self.http]).all(|address| TcpStream::connect(address).is_ok())
    }
}

impl Cluster {
    /// The cluster in `directory`, which must hold one.
    pub(crate) fn open(directory: &Path) -> anyhow::Result<Self> {
        let directory = fs::canonicalize(directory)
            .with_context(|| format!("the directory {} cannot be examined", directory.display()))?;
        let config_path = directory.join("cluster.toml");
        let config = load(&config_path)?;
        let settings = config_path.with_file_name("gateway.toml");
        let gateway = gateway_file(&config_path)?;
        ensure_stores(&config)?;
        for target in &config.targets {
            ensure_free(target)?;
        }
        let targets = config.targets.iter().map(|t| t.id).collect();
        let door = Door { settings, http: gateway.http, s3: gateway.s3 };
        Ok(Self { directory, config_path, targets, gateways: vec![door], created: false, new_user: None })
    }

    /// The first gateway's HTTP address.
    pub(crate) fn gateway(&self) -> String {
        self.gateways.first().map(|door| door.http.to_string()).unwrap_or_default()
    }

    /// Whether commands find it without `--config`.
    pub(crate) fn default_directory(&self) -> bool {
        let default = fs::canonicalize("./data").ok();
        default.is_some() && default == fs::canonicalize(&self.directory).ok()
    }
}

/// What is not the protocol's business: the file `gateway.toml` beside `cluster.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GatewayFile {
    /// Where the gateway listens for HTTP.
    pub(crate) http: SocketAddr,
    /// Hosts that are this gateway's HTTP address, beside addresses and `localhost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) names: Vec<String>,
    /// The S3 face; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) s3: Option<S3File>,
    /// Cleaning.
    #[serde(default, skip_serializing_if = "CleanFile::is_default")]
    pub(crate) clean: CleanFile,
}

/// Section `[clean]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CleanFile {
    /// The grace time: nothing goes that was referred to, or put, less than this ago. A put may take half of it. The same in
    /// all gateways of a cluster.
    pub(crate) grace_seconds: u64,
    /// From the end of one look to the next; 0: this gateway does not clean by itself.
    pub(crate) pause_seconds: u64,
}

impl Default for CleanFile {
    fn default() -> Self {
        Self { grace_seconds: 24 * 3_600, pause_seconds: 3_600 }
    }
}

impl CleanFile {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How long a put may take.
    pub(crate) const fn limit(self) -> Duration {
        Duration::from_millis(self.grace_seconds.saturating_mul(500))
    }
}

/// Section `[s3]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3File {
    /// Where the gateway listens for S3.
    pub(crate) listen: SocketAddr,
    /// The domain below which buckets are hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    /// The database of the catalog, where several gateways share it; absent: a file beside `cluster.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) catalog: Option<String>,
    /// The file of users; absent: `users.toml` beside `cluster.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<PathBuf>,
    /// The certificate that connections are encrypted with, and those between it and its root: PEM. Paths count from this
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key: PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Whether chunks of objects are compressed when that is worth it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) compress: bool,
    /// How long a client may stand still.
    #[serde(default = "S3File::patience", skip_serializing_if = "S3File::is_patience")]
    pub(crate) patience_seconds: u64,
    /// Bytes of chunks that all puts, and as many that all gets, may have on their way ahead, with a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ahead: Option<String>,
    /// Bytes of the largest object that rides in its manifest, with a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inline: Option<String>,
}

impl S3File {
    const fn patience() -> u64 {
        60
    }

    const fn is_patience(seconds: &u64) -> bool {
        *seconds == Self::patience()
    }

    /// An address with nothing else said.
    fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            domain: None,
            catalog: None,
            users: None,
            certificate: None,
            key: None,
            compress: false,
            patience_seconds: Self::patience(),
            ahead: None,
            inline: None,
        }
    }

    /// The address that clients use.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", if self.certificate.is_some() { "https" } else { "http" }, self.listen)
    }

    /// Bytes that puts, and gets, may have ahead.
    pub(crate) fn ahead(&self) -> anyhow::Result<usize> {
        size("ahead", self.ahead.as_deref(), object::objects::AHEAD, 1 << 40)
    }

    /// Bytes of the largest object that rides in its manifest.
    pub(crate) fn inline(&self) -> anyhow::Result<usize> {
        size("inline", self.inline.as_deref(), object::objects::INLINE, object::objects::MOST_INLINE)
    }

    /// The files of an encrypted endpoint, if it is one.
    pub(crate) fn certificate(&self, directory: &Path) -> anyhow::Result<Option<s3::Certificate>> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => {
                Ok(Some(s3::Certificate { chain: directory.join(chain), key: directory.join(key) }))
            }
            _ => bail!("[s3] in gateway.toml: a certificate needs a key and a key a certificate: set both, or neither"),
        }
    }
}

/// A size in section `[s3]`.
fn size(name: &str, text: Option<&str>, default: usize, most: usize) -> anyhow::Result<usize> {
    let Some(text) = text else { return Ok(default) };
    let bytes = crate::numbers::parse_size(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes <= most).with_context(|| {
        let (most, example) =
            (crate::numbers::size(most as u64), crate::numbers::size(default as u64).replace(' ', ""));
        format!("[s3] in gateway.toml: {name} = \"{text}\" is no size up to {most}: write \"{example}\", for example")
    })
}

/// Targets of a new cluster, unless something else is asked for.
const TARGETS: u32 = 9;
/// Smallest and largest capacity that a new target gets.
const CAPACITY: (u64, u64) = (256 << 20, 64 << 30);

/// Reads a cluster's configuration.
pub(crate) fn load(path: &Path) -> anyhow::Result<ClusterConfig> {
    ClusterConfig::load(path).map_err(|error| match &error {
        node::ConfigError::Read { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            anyhow::anyhow!("{error}, or make one with `{} up`", program())
        }
        _ => error.into(),
    })
}

/// The HTTP address of the gateway of the cluster whose configuration is `config`.
pub(crate) fn gateway_address(config: &Path) -> anyhow::Result<String> {
    Ok(gateway_file(config)?.http.to_string())
}

/// What the gateway of the cluster whose configuration is `config` does.
pub(crate) fn gateway_file(config: &Path) -> anyhow::Result<GatewayFile> {
    settings(config, &config.with_file_name("gateway.toml"))
}

/// What the gateway does whose file is `path`.
pub(crate) fn settings(config: &Path, path: &Path) -> anyhow::Result<GatewayFile> {
    let text = fs::read_to_string(path).map_err(|error| {
        let advice = if config.exists() {
            "write http = \"ADDRESS:PORT\" into it: where the gateway listens".to_owned()
        } else {
            let config = config.display();
            format!("there is no {config}: start a cluster with `{} up`, or name one with --config", program())
        };
        anyhow::anyhow!("cannot read {}: {error}; {advice}", path.display())
    })?;
    toml::from_str(&text)
        .map_err(|error| anyhow::anyhow!("{}: {}: write http = \"ADDRESS:PORT\"", path.display(), error.message()))
}

/// Gives a cluster that was made before there was an S3 face an address for it, and one without users its first.
/// Where its catalog is stays written down, so that the next start finds the same objects. The user, if it made one.
pub(crate) fn complete(directory: &Path, catalog: Option<&str>) -> anyhow::Result<Option<s3::User>> {
    let config = directory.join("cluster.toml");
    let catalog = catalog.map(crate::catalog::without_password).transpose()?;
    let mut file = gateway_file(&config)?;
    let known = file.s3.is_some();
    let mut s3 = match file.s3.take() {
        Some(s3) => s3,
        None => S3File::at(free_address("S3")?),
    };
    let moved = catalog.is_some() && catalog != s3.catalog;
    s3.catalog = catalog.or(s3.catalog);
    let users = users(&config, Some(&s3));
    file.s3 = Some(s3);
    if moved || !known {
        write_gateway(&directory.join("gateway.toml"), &file)?;
    }
    crate::token::make(&config)?;
    Ok(if users.list()?.is_empty() { Some(users.add("admin")?) } else { None })
}

/// Lets objects up to this many bytes ride in their manifests.
pub(crate) fn set_inline(directory: &Path, bytes: u64) -> anyhow::Result<()> {
    let config = directory.join("cluster.toml");
    let mut file = gateway_file(&config)?;
    if let Some(s3) = &mut file.s3 {
        s3.inline = Some(bytes.to_string());
    }
    write_gateway(&directory.join("gateway.toml"), &file)
}

fn free_address(what: &str) -> anyhow::Result<SocketAddr> {
    let free = at_free_port(TcpListener::bind).with_context(|| format!("no free TCP port was found for {what}"))?;
    free.local_addr().with_context(|| format!("the socket for {what} has no address"))
}

fn write_gateway(path: &Path, file: &GatewayFile) -> anyhow::Result<()> {
    let text = toml::to_string(file).with_context(|| format!("{} cannot be made", path.display()))?;
    write_file(path, &text)
}

/// The gateways of the cluster after the first, each with a file that is made when it is not there. All is as for the
/// first one, but where they listen.
fn further_gateways(directory: &Path, count: u16) -> anyhow::Result<Vec<Door>> {
    let config = directory.join("cluster.toml");
    let file = gateway_file(&config)?;
    let (names, clean, first) = (file.names, file.clean, file.s3);
    let first = first.context("gateway.toml has no section [s3]")?;
    ensure!(
        count == 1 || first.catalog.is_some(),
        "{count} gateways need a catalog that they share: name its database with --catalog postgres://USER@HOST/DATABASE"
    );
    let further = |n: u16| {
        let path = directory.join(format!("gateway-{n}.toml"));
        let (http, listen) = match path.exists().then(|| settings(&config, &path)).transpose()? {
            Some(GatewayFile { http, s3: Some(s3), .. }) => (http, s3.listen),
            Some(GatewayFile { http, s3: None, .. }) => (http, free_address("S3")?),
            None => (free_address("a gateway")?, free_address("S3")?),
        };
        let s3 = S3File { listen, ..first.clone() };
        write_gateway(&path, &GatewayFile { http, names: names.clone(), s3: Some(s3.clone()), clean })?;
        Ok(Door { settings: path, http, s3: Some(s3) })
    };
    (2..=count).map(further).collect()
}

/// A cluster's directory: that of its configuration.
pub(crate) fn directory(config: &Path) -> &Path {
    config.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The file that says who may use S3.
pub(crate) fn users_file(config: &Path, s3: Option<&S3File>) -> PathBuf {
    let file = s3.and_then(|s3| s3.users.as_deref()).unwrap_or(Path::new("users.toml"));
    directory(config).join(file)
}

/// Who may use S3.
pub(crate) fn users(config: &Path, s3: Option<&S3File>) -> s3::Users {
    s3::Users::at(&users_file(config, s3))
}

/// The cluster in the data directory; a new one when there is none.
pub(crate) fn open_or_create(args: &UpArgs) -> anyhow::Result<Cluster> {
    let created = !args.data.join("cluster.toml").exists();
    if created {
        create(&args.data, &Shape { targets: args.targets.unwrap_or(TARGETS), transport: args.transport, slow: None })?;
    }
    let new_user = complete(&args.data, args.catalog.url.as_deref())?;
    let mut cluster = Cluster { created, new_user, ..Cluster::open(&args.data)? };
    cluster.gateways.extend(further_gateways(&cluster.directory, args.gateways)?);
    let count = cluster.targets.len();
    if let Some(asked) = args.targets.filter(|asked| *asked as usize != count) {
        let directory = cluster.directory.display();
        crate::output::say!(
            "reservoir: the cluster in {directory} has {count} targets and keeps them (asked for: {asked})"
        );
    }
    for Door { settings, http, s3 } in &cluster.gateways {
        let file = settings.file_name().unwrap_or_default().display();
        TcpListener::bind(http).with_context(|| {
            format!("the gateway's address {http} is in use: stop what uses it, or change http in {file}")
        })?;
        if let Some(address) = s3.as_ref().map(|s3| s3.listen) {
            TcpListener::bind(address).with_context(|| {
                format!("the S3 address {address} is in use: stop what uses it, or change s3.listen in {file}")
            })?;
        }
    }
    Ok(cluster)
}

/// What a new cluster looks like.
pub(crate) struct Shape {
    /// How many targets.
    pub(crate) targets: u32,
    /// How copies are placed and carried, if not by default.
    pub(crate) transport: Option<TransportArg>,
    /// A target with this many milliseconds added to each write.
    pub(crate) slow: Option<(u32, u64)>,
}

/// Makes the stores and writes key, gateway file and, last, the configuration: with it the cluster exists.
pub(crate) fn create(directory: &Path, shape: &Shape) -> anyhow::Result<()> {
    let targets = shape.targets;
    ensure!(
        targets >= 3,
        "three copies need as many targets at least, not {targets}: ask for 3 or more with --targets"
    );
    ensure!(shape.targets <= 500, "{} targets are too many for one machine: ask for at most 500", shape.targets);
    // Held until the cluster is made, so that no port is chosen twice.
    let gateway = at_free_port(TcpListener::bind).context("no free TCP port was found for the gateway")?;
    let (config, _ports, _pages) = new_config(directory, shape)?;
    // Checked before anything is written.
    config.map().map_err(|error| match error {
        node::ConfigError::Map { cause, .. } => anyhow::anyhow!(cause),
        other => other.into(),
    })?;
    let targets = directory.join("targets");
    fs::create_dir_all(&targets).with_context(|| format!("the directory {} cannot be made", targets.display()))?;
    make_stores(&config)?;
    write_file(&directory.join(&config.key_file), &format!("{}\n", crate::api::hex(&random_bytes()?)))?;
    let gateway = gateway.local_addr().context("the gateway's socket has no address")?;
    write_gateway(
        &directory.join("gateway.toml"),
        &GatewayFile { http: gateway, names: vec![], s3: None, clean: CleanFile::default() },
    )?;
    let text = toml::to_string(&config).context("cluster.toml cannot be made")?;
    write_file(&directory.join("cluster.toml"), &format!("{HEADER}{text}"))
}

/// Makes the targets' stores. Empty ones that are there were made for a cluster whose making was broken off; what has chunks
/// is left alone.
fn make_stores(config: &ClusterConfig) -> anyhow::Result<()> {
    let directory = |target: &TargetConfig| config.base().join(&target.data);
    for target in &config.targets {
        let directory = directory(target);
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        ensure!(
            names.iter().all(|name| name == IDENTITY || name == "lock"),
            "{} is in use, but {} is missing: put it back, or choose another directory with --data",
            directory.display(),
            config.path.display()
        );
        if names.iter().any(|name| name == IDENTITY) {
            fs::remove_file(directory.join(IDENTITY))
                .with_context(|| format!("the empty store in {} cannot be removed", directory.display()))?;
        }
    }
    config.targets.iter().try_for_each(|target| Ok(node::target::make_store(config, target.id)?))
}

const HEADER: &str = "# A Reservoir cluster on one machine. docs/operate.md explains each line.\n";

/// Binds a port that is free, and that the kernel gives to nobody who asks for any: the roles bind it again a moment later,
/// and a connection of somebody else must not have taken it by then.
fn at_free_port<T>(bind: impl Fn(SocketAddrV4) -> io::Result<T>) -> io::Result<T> {
    let random = RandomState::new();
    let port = |n: u16| PORTS.start + (random.hash_one(n) % PORTS.len() as u64) as u16;
    for port in (0..200).map(port) {
        if let Ok(bound) = bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
            return Ok(bound);
        }
    }
    bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
}

/// A configuration, and what holds its ports: those of targets and of their metrics.
fn new_config(directory: &Path, shape: &Shape) -> anyhow::Result<(ClusterConfig, Vec<UdpSocket>, Vec<TcpListener>)> {
    // All sockets are held until the cluster is made, so that none is chosen twice.
    let mut held = Vec::new();
    let mut port = || -> anyhow::Result<u16> {
        let socket = at_free_port(UdpSocket::bind).context("no free UDP port was found")?;
        let port = socket.local_addr().context("a UDP socket has no address")?.port();
        held.push(socket);
        Ok(port)
    };
    let mut pages = Vec::new();
    let mut page = || -> anyhow::Result<SocketAddr> {
        let listener = at_free_port(TcpListener::bind).context("no free TCP port was found")?;
        let address = listener.local_addr().context("a TCP socket has no address")?;
        pages.push(listener);
        Ok(address)
    };
    let capacity = capacity(directory, shape.targets)?;
    let mut targets = Vec::new();
    for id in 1..=shape.targets {
        targets.push(TargetConfig {
            id,
            domain: format!("disk-{id:03}"),
            moved: false,
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port()?),
            data: format!("targets/{id}").into(),
            capacity: format!("{}MiB", capacity >> 20),
            metrics: Some(page()?),
            write_delay_ms: shape.slow.filter(|(slow, _)| *slow == id).map_or(0, |(_, ms)| ms),
        });
    }
    let transport = match shape.transport {
        Some(TransportArg::Hash) => TransportName::Hash,
        None | Some(TransportArg::ReplicastM) => TransportName::ReplicastM,
        Some(TransportArg::ReplicastH) => TransportName::ReplicastH,
        Some(TransportArg::Leader) => TransportName::Leader,
    };
    let config = ClusterConfig {
        cluster: format!("local-{}", &crate::api::hex(&random_bytes()?)[..8]),
        epoch: 1,
        copies: 3,
        fewest_copies: None,
        group_cells: 3,
        // Two leaders that share members refuse each other's windows.
        overlap: transport != TransportName::Leader,
        key_file: "cluster.key".into(),
        network: Network { interface: None, multicast: MulticastChoice::Auto, multicast_port: port()?, mtu: None },
        protocol: Protocol { transport, ..Protocol::default() },
        targets,
        path: directory.join("cluster.toml"),
    };
    Ok((config, held, pages))
}

/// Half of the free space, shared by the targets.
fn capacity(directory: &Path, targets: u32) -> anyhow::Result<u64> {
    let space = rustix::fs::statvfs(directory)
        .with_context(|| format!("the free space of {} cannot be found out", directory.display()))?;
    let share = space.f_bavail.saturating_mul(space.f_frsize) / 2 / u64::from(targets);
    if share < CAPACITY.0 {
        bail!(
            "{} has too little free space: {targets} targets need {} MiB each twice over; free some, or choose another \
             directory with --data",
            directory.display(),
            CAPACITY.0 >> 20
        );
    }
    Ok(share.min(CAPACITY.1))
}

pub(crate) fn random_bytes() -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes)).context("/dev/urandom cannot be read")?;
    Ok(bytes)
}

/// Writes a whole file or none.
fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let partial = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        // One that a start left behind that was cut off may be readable by others.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        // Neither the name nor the contents may go in a power cut: targets refuse a cluster with another name.
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()
    };
    write().with_context(|| format!("{} cannot be written: choose another directory with --data", path.display()))
}

/// All that are missing are named at once: a disk that is not mounted may hold several.
fn ensure_stores(config: &ClusterConfig) -> anyhow::Result<()> {
    let missing = node::target::without_store(config);
    let [(id, dir), ..] = missing.as_slice() else { return Ok(()) };
    if missing.len() == 1 {
        return Ok(node::target::check_directory(config, *id)?);
    }
    let ids = missing.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>().join(", ");
    bail!(
        "targets {ids}: there is no store in their directories ({}, …): mount their disks; or, to begin with empty ones \
         (copies that were on the old ones are missing then), make a store in each with `{} target --config {} --id N --new`",
        dir.display(),
        program(),
        config.path.display()
    );
}

fn ensure_free(target: &TargetConfig) -> anyhow::Result<()> {
    UdpSocket::bind(target.address).map(drop).with_context(|| {
        format!(
            "target {}: its address {} cannot be had: stop what uses it, or change the address in cluster.toml",
            target.id, target.address
        )
    })?;
    let Some(address) = target.metrics else { return Ok(()) };
    TcpListener::bind(address).map(drop).with_context(|| {
        format!(
            "target {}: the address {address} of its metrics cannot be had: stop what uses it, or change `metrics` in \
             cluster.toml",
            target.id
        )
    })
}
