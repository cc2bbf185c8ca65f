//! A cluster in one directory of one machine: made once, found again.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use node::at_free_port;
use node::atomic_file;
use node::config::{Network, Protocol, SwitchConfig, TargetConfig};
use node::target::IDENTITY;
use node::{ClusterConfig, ConfigError};
use protocol::redundancy::Redundancy;
use protocol::transport::{Selection, Transport};

use crate::args::UpArgs;
use crate::gateway_file::{self, CleanFile, GatewayFile, S3File, StorageClass};
use crate::output::program;
use crate::password::without_password;

/// Where a cluster lives and what it consists of.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// Its configuration file.
    pub(crate) config_path: PathBuf,
    /// The ids of its targets.
    pub(crate) targets: Vec<u32>,
    /// The ids of its switches.
    pub(crate) switches: Vec<u32>,
    /// Its gateways; there is one at least.
    pub(crate) gateways: Vec<LocalGateway>,
    /// Whether it was made just now.
    pub(crate) created: bool,
    /// Its first user, if that was made just now.
    pub(crate) new_user: Option<s3::User>,
}

/// A gateway of a cluster on one machine.
#[derive(Debug)]
pub(crate) struct LocalGateway {
    /// Its file.
    pub(crate) settings: PathBuf,
    /// Its HTTP address.
    pub(crate) http: SocketAddr,
    /// Its S3 endpoint.
    pub(crate) s3: Option<S3File>,
}

impl LocalGateway {
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
        let gateway = gateway_file::load(&config_path)?;
        let here: Vec<&TargetConfig> = config.targets.iter().filter(|target| runs_here(&config, target)).collect();
        ensure_stores(&config, &here)?;
        for target in &here {
            ensure_free(target)?;
        }
        let targets = here.iter().map(|target| target.id).collect();
        let is_here = |switch: &&SwitchConfig| is_of_this_machine(switch.address.ip());
        let switches = config.switches.iter().filter(is_here).map(|switch| switch.id).collect();
        let gateways = vec![LocalGateway { settings, http: gateway.http, s3: gateway.s3 }];
        Ok(Self { directory, config_path, targets, switches, gateways, created: false, new_user: None })
    }

    /// The first gateway's HTTP address.
    pub(crate) fn gateway(&self) -> String {
        self.gateways.first().map(|gateway| gateway.http.to_string()).unwrap_or_default()
    }

    /// Whether commands find it without `--config`.
    pub(crate) fn default_directory(&self) -> bool {
        let default = fs::canonicalize("./data").ok();
        default.is_some() && default == fs::canonicalize(&self.directory).ok()
    }
}

/// Targets of a new cluster, unless something else is asked for.
const TARGETS: u32 = 9;
/// Smallest and largest capacity that a new target gets, and what suffices to try things out.
const CAPACITY: (u64, u64) = (128 << 20, 64 << 30);
const ENOUGH: u64 = 256 << 20;

/// Reads a cluster's configuration as it is.
pub(crate) fn read(path: &Path) -> anyhow::Result<ClusterConfig> {
    Ok(read_text(path)?.1)
}

/// The same, and the text that it was read from.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<(String, ClusterConfig)> {
    ClusterConfig::load_text(path).map_err(|error| match &error {
        node::ConfigError::Read { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => {
            anyhow::anyhow!("{error}, or make one with `{} up`", program())
        }
        _ => error.into(),
    })
}

/// Reads a cluster's configuration. One without cells gets those that it stands for; where they cannot be written, the cluster
/// works all the same, until its targets change.
pub(crate) fn load(path: &Path) -> anyhow::Result<ClusterConfig> {
    let config = read(path)?;
    if config.layout.is_some() {
        return Ok(config);
    }
    match ClusterConfig::take_over(path) {
        Ok(_) => read(path),
        Err(error @ ConfigError::Write { .. }) => {
            tracing::warn!(
                "{} has no cells, and they cannot be written there: {error}; before its targets change, write them with `{} \
                 cluster plan --write`",
                path.display(),
                program()
            );
            Ok(config)
        }
        Err(error) => Err(error.into()),
    }
}

/// Gives a cluster that was made before there was an S3 endpoint an address for one, one without users its first, and one
/// without keys these.
/// Where its catalog is stays written down, so that the next start finds the same objects. The user, if it made one.
pub(crate) fn complete(
    directory: &Path,
    catalog: Option<&str>,
    redundancy: Option<Redundancy>,
) -> anyhow::Result<Option<s3::User>> {
    let config = directory.join("cluster.toml");
    let catalog = catalog.map(without_password).transpose()?;
    let mut file = gateway_file::load(&config)?;
    let known = file.s3.is_some();
    let mut s3 = match file.s3.take() {
        Some(s3) => s3,
        None => S3File::at(free_address(file.http.ip(), "S3")?),
    };
    let moved = catalog.is_some() && catalog != s3.catalog;
    s3.catalog = catalog.or(s3.catalog);
    // Copies the cluster map says.
    let code = redundancy.filter(|redundancy| !known && matches!(redundancy, Redundancy::Code(_)));
    s3.storage_class.extend(code.map(|code| ("STANDARD".to_owned(), StorageClass::of(code))));
    let users = gateway_file::users(&config, Some(&s3));
    gateway_file::keys(&config, Some(&s3)).ensure()?;
    file.s3 = Some(s3);
    if moved || !known {
        gateway_file::write(&directory.join("gateway.toml"), &file)?;
    }
    Ok(if users.list()?.is_empty() { Some(users.add("admin")?) } else { None })
}

fn free_address(interface: IpAddr, what: &str) -> anyhow::Result<SocketAddr> {
    let free =
        at_free_port(interface, TcpListener::bind).with_context(|| format!("no free TCP port was found for {what}"))?;
    free.local_addr().with_context(|| format!("the socket for {what} has no address"))
}

/// The gateways of the cluster after the first, each with a file that is made when it is not there. All is as for the
/// first one, but where they listen.
fn further_gateways(directory: &Path, count: u16) -> anyhow::Result<Vec<LocalGateway>> {
    let config = directory.join("cluster.toml");
    let file = gateway_file::load(&config)?;
    let (interface, names, clean, first) = (file.http.ip(), file.names, file.clean, file.s3);
    let first = first.context("gateway.toml has no section [s3]")?;
    check_catalog(count, first.catalog.as_deref())?;
    let further = |n: u16| {
        let path = directory.join(format!("gateway-{n}.toml"));
        let (http, listen) = match path.exists().then(|| gateway_file::load_from(&config, &path)).transpose()? {
            Some(GatewayFile { http, s3: Some(s3), .. }) => (http, s3.listen),
            Some(GatewayFile { http, s3: None, .. }) => (http, free_address(interface, "S3")?),
            None => (free_address(interface, "a gateway")?, free_address(interface, "S3")?),
        };
        let s3 = S3File { listen, ..first.clone() };
        gateway_file::write(&path, &GatewayFile { http, names: names.clone(), s3: Some(s3.clone()), clean })?;
        Ok(LocalGateway { settings: path, http, s3: Some(s3) })
    };
    (2..=count).map(further).collect()
}

/// Whether so many gateways share a catalog, if they have to.
fn check_catalog(gateways: u16, catalog: Option<&str>) -> anyhow::Result<()> {
    ensure!(
        gateways == 1 || catalog.is_some(),
        "{gateways} gateways need a catalog that they share: name its database with --catalog postgres://USER@HOST/DATABASE"
    );
    Ok(())
}

/// The cluster in the data directory; a new one when there is none.
pub(crate) fn open_or_create(args: &UpArgs) -> anyhow::Result<Cluster> {
    let created = !args.data.join("cluster.toml").exists();
    if created {
        check_catalog(args.gateways, args.catalog.url.as_deref())?;
        let interface = if args.ipv6 { Ipv6Addr::LOCALHOST.into() } else { LOOPBACK };
        let targets = args.targets.unwrap_or(TARGETS);
        let (transport, out_after, redundancy) = (args.transport, args.out_after, args.redundancy);
        let shape = Shape {
            targets,
            switches: args.switches.unwrap_or(0),
            redundancy,
            interface,
            transport,
            slow: None,
            out_after,
            network: Network { carrier: args.carrier.unwrap_or_default(), encrypt: args.encrypt, ..Network::default() },
        };
        create(&args.data, &shape)?;
    }
    let new_user = complete(&args.data, args.catalog.url.as_deref(), args.redundancy.filter(|_| created))?;
    let mut cluster = Cluster { created, new_user, ..Cluster::open(&args.data)? };
    cluster.gateways.extend(further_gateways(&cluster.directory, args.gateways)?);
    say_what_stays(&cluster, args)?;
    for LocalGateway { settings, http, s3 } in &cluster.gateways {
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

/// Says in what a cluster that is there differs from what was asked for.
fn say_what_stays(cluster: &Cluster, args: &UpArgs) -> anyhow::Result<()> {
    let (directory, count) = (cluster.directory.display(), cluster.targets.len());
    if let Some(asked) = args.targets.filter(|asked| *asked as usize != count) {
        crate::output::say!(
            "reservoir: the cluster in {directory} has {count} targets and keeps them (asked for: {asked})"
        );
    }
    let config = load(&cluster.config_path)?;
    let classes = gateway_file::load(&cluster.config_path)?.s3.map(|s3| s3.redundancies()).transpose()?;
    let standard = classes.unwrap_or_default().remove("STANDARD");
    let own = standard.unwrap_or(Redundancy::Copies(config.copies));
    if let Some(asked) = args.redundancy.filter(|asked| !cluster.created && *asked != own) {
        let how = match (standard, asked) {
            (None, Redundancy::Copies(_)) => "`reservoir cluster plan --copies` changes that",
            _ => "`STANDARD` in `[s3.storage_class]` of gateway.toml says how",
        };
        let own = match own {
            Redundancy::Copies(copies) => format!("{copies} copies of each object"),
            Redundancy::Code(code) => format!("each object as {code}"),
        };
        crate::output::say!("reservoir: the cluster in {directory} keeps {own} (asked for: {asked}); {how}");
    }
    if let Some(asked) = args.out_after.filter(|asked| config.out_after().as_secs() != u64::from(*asked)) {
        let own = config.out_after().as_secs();
        crate::output::say!(
            "reservoir: the cluster in {directory} keeps its own `out_after_seconds`, {own} (asked for: {asked}): change cluster.toml"
        );
    }
    if let Some(asked) = args.carrier.filter(|asked| config.network.carrier != *asked) {
        let own = config.network.carrier.name();
        crate::output::say!(
            "reservoir: the cluster in {directory} is carried by {own} (asked for: {}): stop all of it and change `carrier` in \
             cluster.toml",
            asked.name()
        );
    }
    if args.encrypt && !config.network.encrypt {
        crate::output::say!(
            "reservoir: the cluster in {directory} does not encrypt (asked for: --encrypt): stop all of it and write encrypt = true into \
             [network] of cluster.toml"
        );
    }
    if args.ipv6 && !config.is_ipv6() {
        crate::output::say!("reservoir: the cluster in {directory} is on IPv4 and stays there (asked for: --ipv6)");
    }
    Ok(())
}

/// Where a cluster on one machine is, unless something else is asked for.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Copies of each object of a new cluster, unless something else is asked for.
const COPIES: Redundancy = Redundancy::Copies(3);

/// What a new cluster looks like.
pub(crate) struct Shape {
    /// How many targets.
    pub(crate) targets: u32,
    /// How many switches that aggregate.
    pub(crate) switches: u16,
    /// How objects are kept, if not by default.
    pub(crate) redundancy: Option<Redundancy>,
    /// The address of all its nodes.
    pub(crate) interface: IpAddr,
    /// How copies are placed and carried, if not by default.
    pub(crate) transport: Option<Transport>,
    /// A target with this many milliseconds added to each write.
    pub(crate) slow: Option<(u32, u64)>,
    /// After how many seconds a target that is down is taken out, if not by default.
    pub(crate) out_after: Option<u32>,
    /// What carries messages and payload, and how.
    pub(crate) network: Network,
}

/// Makes the stores and writes key, gateway file and, last, the configuration: with it the cluster exists.
pub(crate) fn create(directory: &Path, shape: &Shape) -> anyhow::Result<()> {
    let targets = shape.targets;
    let redundancy = shape.redundancy.unwrap_or(COPIES);
    let (pieces, what) = (redundancy.pieces(), redundancy.noun());
    ensure!(
        targets as usize >= pieces.max(3),
        "{targets} targets are too few for {pieces} {what} in a cluster of 3 targets at least: ask for {} or more with --targets",
        pieces.max(3)
    );
    ensure!(shape.targets <= 500, "{} targets are too many for one machine: ask for at most 500", shape.targets);
    // Held until the cluster is made, so that no port is chosen twice.
    let gateway = at_free_port(shape.interface, TcpListener::bind).with_context(|| {
        let (interface, v6) = (shape.interface, shape.interface.is_ipv6());
        let advice = if v6 { ": without IPv6 on this machine, leave --ipv6 out" } else { "" };
        format!("no free TCP port was found for the gateway at {interface}{advice}")
    })?;
    let (config, _ports, _pages) = new_config(directory, shape)?;
    // Checked before anything is written.
    let config = config.with_first_layout().map_err(|error| match error {
        node::ConfigError::Map { cause, .. } => anyhow::anyhow!(cause),
        other => other.into(),
    })?;
    let targets = directory.join("targets");
    fs::create_dir_all(&targets).with_context(|| format!("the directory {} cannot be made", targets.display()))?;
    make_stores(&config)?;
    let write = |path: &Path, text: &str| {
        let failed = || format!("{} cannot be written: choose another directory with --data", path.display());
        atomic_file::write(path, text).with_context(failed)
    };
    write(&directory.join(&config.key_file), &format!("{}\n", random_hex::<32>()?))?;
    let gateway = gateway.local_addr().context("the gateway's socket has no address")?;
    gateway_file::write(
        &directory.join("gateway.toml"),
        &GatewayFile { http: gateway, names: vec![], s3: None, clean: CleanFile::default() },
    )?;
    let text = toml::to_string(&config).context("cluster.toml cannot be made")?;
    write(&directory.join("cluster.toml"), &format!("{HEADER}{text}"))
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

/// What stands before a map that the program writes.
pub(crate) const HEADER: &str = "# A Reservoir cluster on one machine. docs/operate.md explains each line.\n";

/// After how many seconds a target that is down is taken out of a cluster on one machine, when nothing else is said.
const OUT_AFTER: u32 = 30;

/// The ports of a cluster on one machine are its memory, which is faster than a cable of 10 Gb/s: at that rate windows
/// would be longer than copies take, and many clients would wait for them.
const LOOPBACK_MBPS: u64 = 25_000;

/// A configuration, and what holds its ports: those of targets and of their metrics.
fn new_config(directory: &Path, shape: &Shape) -> anyhow::Result<(ClusterConfig, Vec<UdpSocket>, Vec<TcpListener>)> {
    // All sockets are held until the cluster is made, so that none is chosen twice.
    let mut held = Vec::new();
    let mut port = || -> anyhow::Result<u16> {
        let socket = at_free_port(shape.interface, UdpSocket::bind).context("no free UDP port was found")?;
        let port = socket.local_addr().context("a UDP socket has no address")?.port();
        held.push(socket);
        Ok(port)
    };
    let mut pages = Vec::new();
    let mut page = || -> anyhow::Result<SocketAddr> {
        let listener = at_free_port(shape.interface, TcpListener::bind).context("no free TCP port was found")?;
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
            drain: false,
            address: SocketAddr::new(shape.interface, port()?),
            data: format!("targets/{id}").into(),
            capacity: format!("{}MiB", capacity >> 20),
            metrics: Some(page()?),
            write_delay_ms: shape.slow.filter(|(slow, _)| *slow == id).map_or(0, |(_, ms)| ms),
        });
    }
    let mut switches = Vec::new();
    for nth in 0..shape.switches {
        let address = SocketAddr::new(shape.interface, port()?);
        let (link_mbps, memory, metrics) = (None, None, Some(page()?));
        switches.push(SwitchConfig { id: FIRST_SWITCH + u32::from(nth), address, link_mbps, memory, metrics });
    }
    let transport = shape.transport.unwrap_or(Protocol::default().transport);
    let config = ClusterConfig {
        cluster: format!("local-{}", random_hex::<4>()?),
        epoch: 1,
        // What names chunks of a code is kept as copies that survive the same.
        copies: shape.redundancy.unwrap_or(COPIES).in_copies().pieces() as u8,
        min_copies: None,
        fewest_copies: None,
        out_after_seconds: Some(shape.out_after.unwrap_or(OUT_AFTER)),
        maintenance_floor: None,
        moves_paused: false,
        restart_within_seconds: None,
        group_cells: 3,
        // Two leaders that share members refuse each other's windows.
        overlap: transport.selection != Selection::Leader,
        key_file: "cluster.key".into(),
        network: Network { multicast_port: port()?, ..shape.network.clone() },
        protocol: Protocol { transport, link_mbps: LOOPBACK_MBPS, ..Protocol::default() },
        targets,
        layout: None,
        previous: None,
        switches,
        settled: None,
        last_id: None,
        path: directory.join("cluster.toml"),
    };
    Ok((config, held, pages))
}

/// The id of the first switch of a new cluster: targets that join do not come as far.
const FIRST_SWITCH: u32 = 1_000_000;

/// Half of the free space, shared by the targets; of little, so much of the other half as suffices to try things out.
fn capacity(directory: &Path, targets: u32) -> anyhow::Result<u64> {
    let space = rustix::fs::statvfs(directory)
        .with_context(|| format!("the free space of {} cannot be found out", directory.display()))?;
    let share = space.f_bavail.saturating_mul(space.f_frsize) / u64::from(targets);
    if share < CAPACITY.0 {
        bail!(
            "{} has too little free space: {targets} targets need {} MiB each; free some, or choose another directory with --data",
            directory.display(),
            CAPACITY.0 >> 20
        );
    }
    Ok((share / 2).max(share.min(ENOUGH)).min(CAPACITY.1))
}

/// So many bytes that nobody knows, in hex.
pub(crate) fn random_hex<const BYTES: usize>() -> anyhow::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).context("the system gives no random numbers")?;
    Ok(hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower))
}

/// Whether an address is one of this machine.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Whether `up` runs a target: not one that joined by itself, on another machine or from a directory of its own.
fn runs_here(config: &ClusterConfig, target: &TargetConfig) -> bool {
    let own = target.data.parent().filter(|_| target.data.is_absolute()).map(|above| above.join("cluster.toml"));
    is_of_this_machine(target.address.ip()) && own.is_none_or(|own| own == config.path || !own.exists())
}

/// All that are missing are reported at once: a disk that is not mounted may hold several.
fn ensure_stores(config: &ClusterConfig, of: &[&TargetConfig]) -> anyhow::Result<()> {
    let mut missing = node::target::without_store(config);
    missing.retain(|(id, _)| of.iter().any(|target| target.id == *id));
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
