//! The cluster map as a file: which target is where. One TOML file serves every role.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};

mod document;
mod file;
mod layout;
mod machine;
mod network;
mod switch;

pub use layout::{CellConfig, LayoutConfig};
pub use network::{Balance, CarrierChoice, MulticastChoice, Network};
pub use switch::SwitchConfig;

use protocol::id::NodeId;
use protocol::limits;
use protocol::map::MapError;
use protocol::transport::Transport;
use protocol::wire::KEY_LEN;
use serde::{Deserialize, Serialize};

use network::{LEAST_MTU, of_family};

/// Headers of IPv4 and UDP, and of IPv6 and UDP.
const IP_UDP: (u32, u32) = (28, 48);

/// The file `cluster.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// Name of the cluster; datagrams of others are dropped.
    pub cluster: String,
    /// Version of this map: raise it with every change.
    pub epoch: u32,
    /// Copies of every chunk.
    #[serde(default = "three")]
    pub copies: u8,
    /// The fewest copies with which a put is acknowledged when no more failure domains are alive; the rest is made when they are. Left
    /// out, one less than `copies` when these are three or more, else all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_copies: Option<u8>,
    /// The fewest copies of an earlier map (its `min_copies`), if that had fewer: what was put then may have no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fewest_copies: Option<u8>,
    /// The epoch of a map by whose layout alone all was found that was stored then: no layout before it is needed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<u32>,
    /// The highest id that a target had when one was taken out: no target that is added has one up to this, as it may have been another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_id: Option<u32>,
    /// How long a target is down before it is taken out of the map and what it had is made again elsewhere; 0 is never. (600)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_after_seconds: Option<u32>,
    /// What is kept for maintenance of the time of each disk and port, in percent, whatever clients do; it has what they leave besides.
    /// (2)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_floor: Option<u8>,
    /// Whether copies stay where they are for now: none moves to where the map has it, or to an emptier target. (false)
    #[serde(default, skip_serializing_if = "is_no")]
    pub moves_paused: bool,
    /// For how long a target that said that it stops is not taken for down. (120)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_within_seconds: Option<u32>,
    /// Cells in a negotiating group; a cell has as many targets as there are copies, to less than twice as many. It is what the layout
    /// says, once there is one: `reservoir cluster plan` changes both.
    #[serde(default = "three_cells")]
    pub group_cells: usize,
    /// Whether neighbouring groups share cells, which evens out the load. Not for large clusters with `transport = "leader"`,
    /// whose leaders would not know of each other. The layout is made so: `reservoir cluster plan` makes another.
    #[serde(default = "yes")]
    pub overlap: bool,
    /// File with the cluster's key, 64 hexadecimal digits; relative to this file.
    pub key_file: PathBuf,
    /// The network.
    #[serde(default)]
    pub network: Network,
    /// Choices of the protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// The targets.
    #[serde(rename = "target")]
    pub targets: Vec<TargetConfig>,
    /// Those that aggregate what gateways put.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchConfig>,
    /// Where chunks belong. Absent only in maps from before there were cells in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutConfig>,
    /// Where they belonged before this map, when that was elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<LayoutConfig>,
    /// Where this was read from.
    #[serde(skip)]
    pub path: PathBuf,
}

/// Section `[protocol]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Protocol {
    /// `hash`, `replicast-m`, `replicast-h` or `leader`.
    #[serde(with = "by_name")]
    pub transport: Transport,
    /// With `leader`: whether gets ask it, too.
    pub lead_gets: bool,
    /// Chunks that an initiator works on at once.
    pub depth: usize,
    /// Port rate to begin with, megabits per second.
    pub link_mbps: u64,
    /// Whether initiators give windows back that begin late, and ask again.
    pub choosy: bool,
}

impl Default for Protocol {
    fn default() -> Self {
        Self { transport: Transport::REPLICAST_M, lead_gets: false, depth: 4, link_mbps: 10_000, choosy: false }
    }
}

/// A transport by its name.
mod by_name {
    use protocol::transport::Transport;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(transport: &Transport, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(transport)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Transport, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Section `[[target]]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its id, unique in the cluster, below 16,777,216.
    pub id: u32,
    /// The failure domain; copies of a chunk are kept in distinct ones.
    pub domain: String,
    /// Whether it holds copies from when it was in another domain.
    #[serde(default, skip_serializing_if = "is_no")]
    pub moved: bool,
    /// Whether it is in no cell, and takes no chunks.
    #[serde(default, skip_serializing_if = "is_no")]
    pub drain: bool,
    /// Where it listens. All targets of a cluster have addresses of one family.
    pub address: SocketAddr,
    /// Its directory, relative to this file.
    pub data: PathBuf,
    /// Bytes that it may fill, with an optional unit: `500MiB`, `10GiB`, `2TiB`.
    pub capacity: String,
    /// Where it serves its metrics over HTTP (TCP); absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// For experiments: its disk takes so many milliseconds longer for every sync.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub write_delay_ms: u64,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

fn is_no(yes: &bool) -> bool {
    !yes
}

fn three() -> u8 {
    3
}

fn yes() -> bool {
    true
}

fn three_cells() -> usize {
    3
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}; {advice}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {cause}; let this user write it")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}: {problem}")]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Line, and what is wrong in it.
        problem: String,
    },
    /// The map cannot serve.
    #[error("{path}: {cause}")]
    Map {
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: MapError,
    },
    /// A value is wrong.
    #[error("{path}: {problem}")]
    Value {
        /// Which file.
        path: PathBuf,
        /// What, and what to write instead.
        problem: String,
    },
}

/// What is wrong in `text`, with its line, in one line.
#[must_use]
pub fn problem(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    format!("line {line}: {}", error.message().replace('\n', " "))
}

/// The key of a cluster in this file.
///
/// # Errors
/// When the file cannot be read or is no key.
pub fn read_key(path: &Path) -> Result<[u8; KEY_LEN], ConfigError> {
    let path = path.to_owned();
    let advice = "copy it from another server or a backup, let this user read it, or correct `key_file`";
    let read = |cause| ConfigError::Read { path: path.clone(), cause, advice };
    let text = std::fs::read_to_string(&path).map_err(read)?;
    let key = hex_simd::decode_to_vec(text.trim()).ok().and_then(|key| key.try_into().ok());
    key.ok_or_else(|| {
        let problem = format!("a key is {} hexadecimal digits: restore the file from another server", 2 * KEY_LEN);
        ConfigError::Value { path, problem }
    })
}

/// After how many seconds a target that is down is taken out, when nothing else is said.
const OUT_AFTER: u32 = 600;

impl ClusterConfig {
    /// How long a target is down before it is taken out of the map; zero is never.
    #[must_use]
    pub fn out_after(&self) -> std::time::Duration {
        std::time::Duration::from_secs(self.out_after_seconds.unwrap_or(OUT_AFTER).into())
    }

    /// Checks a cluster map; `path` is where it stands, for messages and for relative paths in it.
    ///
    /// # Errors
    /// One line that says where and what.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)
            .map_err(|error| ConfigError::Syntax { path: path.to_owned(), problem: problem(text, &error) })?;
        config.path = path.to_owned();
        config.map()?;
        config.check_ranges()?;
        for target in &config.targets {
            config.capacity(target)?;
        }
        Ok(config)
    }

    /// Values that can be read, but with which nothing would work.
    fn check_ranges(&self) -> Result<(), ConfigError> {
        let mtu = self.network.mtu.map(u64::from);
        let ranges = [
            ("depth", Some(self.protocol.depth as u64), 1, limits::WAITING as u64),
            ("link_mbps", Some(self.protocol.link_mbps), 1, 1_000_000),
            ("mtu", mtu, u64::from(of_family(self.is_ipv6(), LEAST_MTU)), 65_535),
            ("group_cells", Some(self.group_cells as u64), 1, 10),
            ("workers", Some(self.network.workers.into()), 0, 64),
            ("gateway_workers", self.network.gateway_workers.map(u64::from), 0, 64),
            ("lanes", Some(self.network.lanes.into()), 1, 16),
            ("epoch", Some(u64::from(self.epoch)), 1, u64::from(u32::MAX)),
        ];
        let refuse = |problem| Err(ConfigError::Value { path: self.path.clone(), problem });
        for (name, value, least, most) in ranges {
            if let Some(value) = value.filter(|value| !(least..=most).contains(value)) {
                return refuse(format!("{name} = {value}: choose {least} to {most}"));
            }
        }
        let of_gateways = self.network.gateway_workers.unwrap_or(0);
        let for_tcp = [
            ("workers", self.network.workers, 0),
            ("gateway_workers", of_gateways, 0),
            ("lanes", self.network.lanes, 1),
        ];
        for (name, value, usual) in for_tcp {
            if value > usual && self.network.carrier == CarrierChoice::Udp {
                return refuse(format!("{name} are for TCP connections: write carrier = \"tcp\", or {name} = {usual}"));
            }
        }
        let checked = self.check_addresses().and_then(|()| self.check_places());
        checked.and_then(|()| self.check_switches()).or_else(refuse)
    }

    /// Where each node of the map listens.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (NodeId, SocketAddr)> + '_ {
        let targets = self.targets.iter().map(|target| (NodeId(target.id), target.address));
        targets.chain(self.switches.iter().map(|switch| (NodeId(switch.id), switch.address)))
    }

    /// Whether targets of one host are to use one directory, or to serve their metrics at one address.
    fn check_places(&self) -> Result<(), String> {
        let (mut directories, mut metrics) = (BTreeMap::new(), BTreeMap::new());
        for target in &self.targets {
            let id = target.id;
            let place: PathBuf = target.data.components().filter(|part| *part != Component::CurDir).collect();
            if let Some(other) = directories.insert((target.address.ip(), place), id) {
                return Err(format!(
                    "targets {other} and {id} have one directory, {}: change one",
                    target.data.display()
                ));
            }
            if let Some(address) = target.metrics
                && let Some(other) = metrics.insert((target.address.ip(), address), id)
            {
                return Err(format!("targets {other} and {id} have one address for metrics, {address}: change one"));
            }
        }
        Ok(())
    }

    /// What is wrong with the addresses, and what to write instead.
    fn check_addresses(&self) -> Result<(), String> {
        let mut addresses = BTreeMap::new();
        for TargetConfig { id, address, .. } in &self.targets {
            let wrong = |why: &str| Err(format!("target {id}: address = \"{address}\": {why}"));
            if address.port() == 0 {
                return wrong("name a port");
            }
            if let Some(other) = addresses.insert(*address, *id) {
                return Err(format!("targets {other} and {id} have one address, {address}: change one"));
            }
            if address.is_ipv6() != self.is_ipv6() {
                return wrong("the first target's is of the other family: use IPv4 for all targets, or IPv6 for all");
            }
            let IpAddr::V6(ip) = address.ip() else { continue };
            if ip.to_ipv4_mapped().is_some() {
                return wrong("write it as an IPv4 address");
            }
            if ip.is_unicast_link_local() {
                return wrong(
                    "it is of one link, and each host numbers its links by itself: use a global or unique local address",
                );
            }
        }
        match self.network.interface {
            Some(ip) if ip.is_ipv6() != self.is_ipv6() => {
                Err(format!("interface = \"{ip}\": the targets' addresses are of the other family: use one of theirs"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the cluster's network is IPv6. Else it is IPv4.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.targets.first().is_some_and(|target| target.address.is_ipv6())
    }

    /// The directory that relative paths count from.
    #[must_use]
    pub fn base(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("."))
    }

    /// The capacity of a target in bytes.
    ///
    /// # Errors
    /// When it is no size, or less than 64 MiB.
    pub fn capacity(&self, target: &TargetConfig) -> Result<u64, ConfigError> {
        protocol::size::parse(&target.capacity).filter(|n| *n >= 64 << 20).ok_or_else(|| ConfigError::Value {
            path: self.path.clone(),
            problem: format!(
                "target {}: capacity = {:?}: write a size of at least 64MiB and less than 16777216TiB, like \"1.5TiB\"",
                target.id, target.capacity
            ),
        })
    }

    /// The cluster's key.
    ///
    /// # Errors
    /// When the file cannot be read or is no key.
    pub fn key(&self) -> Result<[u8; KEY_LEN], ConfigError> {
        read_key(&self.base().join(&self.key_file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(with: &str) -> Result<ClusterConfig, ConfigError> {
        let targets: String = (1..=3)
            .map(|n| {
                format!(
                    "[[target]]\nid = {n}\ndomain = \"{n}\"\naddress = \"127.0.0.1:{n}\"\ndata = \"{n}\"\n\
                     capacity = \"64MiB\"\n"
                )
            })
            .collect();
        let text = format!("cluster = \"c\"\nepoch = 1\nkey_file = \"k\"\n{targets}");
        ClusterConfig::parse(&text.replacen("[[target]]", with, 1), Path::new("cluster.toml"))
    }

    #[test]
    fn a_key_is_hexadecimal_digits_and_nothing_else() {
        let place = tempfile::tempdir().expect("a directory");
        let mut config = map("[[target]]").expect("a good map");
        config.path = place.path().join("cluster.toml");
        let key = |text: &str| {
            std::fs::write(place.path().join("k"), text).expect("it can be written");
            config.key()
        };
        for good in ["5a".repeat(32), "5A".repeat(32), format!("\n{} ", "5a".repeat(32))] {
            assert_eq!(key(&good).ok(), Some([0x5a; KEY_LEN]), "{good:?}");
        }
        for bad in ["+a".repeat(32), "5a".repeat(31), "5a".repeat(33), "5g".repeat(32), "5ü".repeat(32), String::new()]
        {
            assert!(matches!(key(&bad), Err(ConfigError::Value { .. })), "{bad:?}");
        }
    }

    #[test]
    fn the_targets_of_a_cluster_have_addresses_of_one_family_that_all_hosts_understand() {
        let target = |id: u32, address: &str| {
            format!(
                "[[target]]\nid = {id}\ndomain = \"{id}\"\naddress = \"{address}\"\ndata = \"{id}\"\n\
                 capacity = \"64MiB\"\n"
            )
        };
        let six: String = (1..=3).map(|id| target(id, &format!("[fd00::1]:{id}"))).collect();
        let parse = |targets: &str, network: &str| {
            let text = format!("cluster = \"c\"\nepoch = 1\nkey_file = \"k\"\n[network]\n{network}\n{targets}");
            ClusterConfig::parse(&text, Path::new("cluster.toml"))
        };
        assert!(parse(&six, "interface = \"fd00::1\"").is_ok_and(|config| config.is_ipv6()));
        let refused = |targets: &str, network: &str, why: &str| {
            let error = parse(targets, network).expect_err("it cannot work").to_string();
            assert!(error.contains(why) && error.lines().count() == 1, "{error}");
        };
        for (address, why) in [
            ("127.0.0.1:4", "of the other family"),
            ("[::ffff:10.0.0.1]:4", "write it as an IPv4 address"),
            ("[fe80::1]:4", "use a global or unique local address"),
            ("[fd00::1]:0", "name a port"),
            ("[fd00::1]:2", "targets 2 and 4 have one address"),
        ] {
            refused(&format!("{six}{}", target(4, address)), "", why);
        }
        refused(&six, "interface = \"10.0.0.7\"", "of the other family");
        refused(&six, "mtu = 1279", "choose 1280 to 65535");
        assert!(parse(&six, "mtu = 1280").is_ok());
        refused(&six, "workers = 2", "write carrier = \"tcp\"");
        refused(&six, "gateway_workers = 1", "write carrier = \"tcp\"");
        refused(&six, "lanes = 2", "write carrier = \"tcp\"");
        refused(&six, "carrier = \"tcp\"\nlanes = 0", "choose 1 to 16");
        refused(&six, "carrier = \"tcp\"\nworkers = 65", "choose 0 to 64");
        refused(&six, "carrier = \"tcp\"\ngateway_workers = 65", "choose 0 to 64");
        refused(&six, "carrier = \"tcp\"\nbalance = \"rr\"", "choose one of round-robin");
        assert!(parse(&six, "carrier = \"tcp\"\nworkers = 2\nbalance = \"bytes\"").is_ok());
        let more = parse(&six, "carrier = \"tcp\"\nworkers = 2\ngateway_workers = 1").unwrap();
        assert_eq!(
            (more.network.workers_of(NodeId(1)), more.network.workers_of(NodeId(NodeId::FIRST_INITIATOR))),
            (2, 1)
        );
    }

    #[test]
    fn targets_of_one_host_have_directories_and_metrics_of_their_own() {
        let fourth = |address: &str, more: &str| {
            map(&format!(
                "[[target]]\nid = 4\ndomain = \"4\"\naddress = \"{address}:9\"\ncapacity = \"64MiB\"\n{more}\n[[target]]\n\
                 metrics = \"127.0.0.1:7\""
            ))
            .map_err(|error| error.to_string())
        };
        for data in ["1", "./1", "1/"] {
            let error =
                fourth("127.0.0.1", &format!("data = \"{data}\"")).expect_err("two stores cannot be in one place");
            assert!(error.contains("targets 4 and 1 have one directory"), "{error}");
        }
        let error =
            fourth("127.0.0.1", "data = \"4\"\nmetrics = \"127.0.0.1:7\"").expect_err("one of them would not start");
        assert!(error.contains("targets 4 and 1 have one address for metrics"), "{error}");
        assert!(fourth("127.0.0.2", "data = \"1\"\nmetrics = \"127.0.0.1:7\"").is_ok(), "of another host");
    }

    #[test]
    fn values_out_of_range_are_refused_in_one_line() {
        for bad in ["link_mbps = 9223372036854775807", "link_mbps = 0", "depth = 0"] {
            let error = map(&format!("[protocol]\n{bad}\n[[target]]")).expect_err("nothing would work with it");
            assert!(error.to_string().contains(&format!("{bad}: choose 1 to ")), "{error}");
        }
        let error = map("[[target]]\nid = 4\ndomain = \"4\"\naddress = \"127.0.0.1:4\"\ndata = \"4\"\n\
                         capacity = \"1\\nX\"\n[[target]]")
        .expect_err("no size");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}
