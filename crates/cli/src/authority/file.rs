//! Maps that are decided in a file: where one gateway is.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use node::ClusterConfig;

use super::{MapAuthority, Verdict};
use crate::gateway_file::GatewayFile;
use crate::local_cluster;

/// The map in the file of the gateway's machine.
pub(super) struct MapOfFile {
    path: PathBuf,
    /// Why this file follows another one.
    follows: Option<String>,
}

impl MapOfFile {
    /// For a gateway.
    pub(super) fn of_gateway(path: &Path) -> Self {
        Self { path: path.to_owned(), follows: None }
    }

    /// For an operator: files of other machines are copies, which must not go a way of their own.
    pub(super) fn of_operator(path: &Path, settings: Option<&GatewayFile>) -> Self {
        let follows = match settings {
            None => Some("no gateway.toml is beside it".to_owned()),
            Some(settings) if UdpSocket::bind((settings.http.ip(), 0)).is_err() => {
                Some(format!("its gateway's address {} is of another machine", settings.http))
            }
            Some(_) => None,
        };
        Self { path: path.to_owned(), follows }
    }
}

impl MapAuthority for MapOfFile {
    fn newest(&self) -> anyhow::Result<ClusterConfig> {
        local_cluster::read(&self.path)
    }

    fn propose(&self, from: &ClusterConfig, next: &ClusterConfig) -> anyhow::Result<Verdict> {
        let path = self.path.display();
        if let Some(why) = &self.follows {
            bail!(
                "{path} is a copy ({why}): the next map is made where the gateway runs, in its cluster.toml, and comes here by itself"
            );
        }
        let (text, present) = local_cluster::read_text(&self.path)?;
        let words = |config: &ClusterConfig| toml::to_string(config).context("a cluster map cannot be written");
        if words(&present)? != words(from)? {
            return Ok(Verdict::Conflict);
        }
        let next = ClusterConfig { path: self.path.clone(), ..next.clone() };
        let written = next.replace((&text, present.epoch)).context("the next map is not written")?;
        Ok(if written { Verdict::Decided } else { Verdict::Conflict })
    }

    fn location(&self) -> String {
        match self.follows {
            None => format!("in {}", self.path.display()),
            Some(_) => format!("where its gateway runs, and {} is a copy", self.path.display()),
        }
    }
}
