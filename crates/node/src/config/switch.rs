//! Section `[[switch]]` of the cluster map: the aggregators.

use std::net::SocketAddr;

use protocol::aggregator::MEMORY;
use protocol::id::NodeId;
use serde::{Deserialize, Serialize};

use super::{ClusterConfig, ConfigError};

/// Section `[[switch]]`: an aggregator.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchConfig {
    /// Its id, unique among those of switches and targets, below 16,777,216.
    pub id: u32,
    /// Where it listens.
    pub address: SocketAddr,
    /// What its port carries, megabits per second; four times what `[protocol]` says of others when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_mbps: Option<u64>,
    /// Bytes of parity that it computes at once, with an optional unit. (256MiB)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Where it serves its metrics over HTTP (TCP); absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}

impl ClusterConfig {
    /// Bytes of parity that an aggregator computes at once.
    ///
    /// # Errors
    /// When it is no size.
    pub fn memory(&self, switch: &SwitchConfig) -> Result<u64, ConfigError> {
        let wrong = |text: &str| ConfigError::Value {
            path: self.path.clone(),
            problem: format!("switch {}: memory = {text:?}: write a size like \"256MiB\"", switch.id),
        };
        let Some(text) = &switch.memory else { return Ok(MEMORY) };
        protocol::size::parse(text).filter(|bytes| *bytes > 0).ok_or_else(|| wrong(text))
    }

    /// What is wrong with the switches, and what to write instead.
    pub(super) fn check_switches(&self) -> Result<(), String> {
        for (nth, switch) in self.switches.iter().enumerate() {
            let (id, address) = (switch.id, switch.address);
            let others = || self.switches[..nth].iter();
            if NodeId(id).is_initiator() {
                return Err(format!("switch {id}: choose an id below {}", NodeId::FIRST_INITIATOR));
            }
            if self.targets.iter().any(|target| target.id == id) || others().any(|other| other.id == id) {
                return Err(format!("switch {id}: another node has this id: choose one that none has"));
            }
            if self.targets.iter().any(|target| target.address == address)
                || others().any(|other| other.address == address)
            {
                return Err(format!("switch {id}: address = \"{address}\": another node has it: change one"));
            }
            if address.port() == 0 || address.is_ipv6() != self.is_ipv6() {
                return Err(format!("switch {id}: address = \"{address}\": name a port, and use the targets' family"));
            }
            if switch.link_mbps.is_some_and(|mbps| !(1..=1_000_000).contains(&mbps)) {
                return Err(format!("switch {id}: link_mbps: choose 1 to 1000000"));
            }
            self.memory(switch).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(switches: &str) -> Result<ClusterConfig, String> {
        let target = |n| {
            format!(
                "[[target]]\nid = {n}\ndomain = \"d{n}\"\naddress = \"10.0.0.{n}:7\"\ndata = \"t\"\ncapacity = \"1GiB\"\n"
            )
        };
        let targets: String = (1..=3).map(target).collect();
        let text = format!("cluster = \"c\"\nepoch = 1\nkey_file = \"k\"\n{targets}{switches}");
        ClusterConfig::parse(&text, Path::new("cluster.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn switches_are_in_the_map_and_wrong_ones_are_refused() {
        let good = "[[switch]]\nid = 9\naddress = \"10.0.0.9:7\"\nmemory = \"1MiB\"\n";
        let config = parse(good).expect("a good one");
        let map = config.map().expect("a good map");
        assert_eq!(map.aggregators(), [NodeId(9)]);
        assert_eq!(config.memory(&config.switches[0]).ok(), Some(1 << 20));
        let document = config.document().expect("a short one");
        let received = ClusterConfig::received(&document, &config).expect("a good one");
        assert_eq!((received.switches.len(), received.switches[0].address), (1, config.switches[0].address));
        for (switches, why) in [
            (good.replace("id = 9", "id = 2"), "another node has this id"),
            (good.replace("id = 9", "id = 20000000"), "below 16777216"),
            (good.replace("10.0.0.9", "10.0.0.2"), "another node has it"),
            (good.replace("10.0.0.9:7", "[fd00::1]:7"), "use the targets' family"),
            (good.replace("1MiB", "much"), "write a size like"),
            (format!("{good}link_mbps = 0\n"), "choose 1 to 1000000"),
            (format!("{good}{good}"), "another node has this id"),
        ] {
            let error = parse(&switches).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
