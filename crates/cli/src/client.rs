//! The commands that speak to a gateway: its status over HTTP, objects over S3.

mod download;
mod partial;
mod s3;
mod upload;

use std::time::Duration;

use anyhow::bail;
use ureq::http::Response;
use ureq::{Agent, Body, Timeout};

use crate::api::{Refusal, Status};
use crate::args::TableArgs;
use crate::gateway_file;
use crate::output::{self, program};
pub(crate) use download::{WITH_CHECKSUMS, header};
pub(crate) use s3::{Listed, S3, concerns_all, is_refused};

/// How long a gateway may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A gateway's address and how to speak with it.
pub(crate) struct Gateway {
    agent: Agent,
    base: String,
    /// What to do when it does not answer.
    advice: String,
    /// How long it may keep silent.
    patience: Duration,
}

impl Gateway {
    /// The gateway that a cluster's configuration names.
    pub(crate) fn of(table: &TableArgs) -> anyhow::Result<Self> {
        Ok(Self::at(&gateway_file::address(&table.config)?, table.patience()?, output::advice()))
    }

    /// The gateway at `address` (host and port), which may neither take nor send anything for as long as `patience` lasts.
    pub(crate) fn at(address: &str, patience: Duration, advice: String) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT.min(patience)))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience))
            .build();
        let agent = Agent::new_with_config(agent);
        Self { agent, base: format!("http://{address}"), advice, patience }
    }

    /// The address without the path, for people.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn good(&self, answer: Result<Response<Body>, ureq::Error>) -> anyhow::Result<Response<Body>> {
        let mut answer = answer.map_err(|error| {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            if matches!(&error, ureq::Error::Io(io) if [BrokenPipe, ConnectionReset].contains(&io.kind())) {
                return anyhow::anyhow!(
                    "the gateway at {} broke off: see its log, and `{} status`, then try again",
                    self.base,
                    program()
                );
            }
            if matches!(error, ureq::Error::Timeout(Timeout::PerRead | Timeout::PerWrite)) {
                return self.stalled();
            }
            anyhow::anyhow!("the gateway at {} does not answer ({error}): {}", self.base, self.advice)
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        match answer.body_mut().read_json::<Refusal>() {
            Ok(refusal) => bail!("{}", refusal.error),
            Err(_) => bail!("the gateway at {} answered {status}: see its log", self.base),
        }
    }

    fn stalled(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "the gateway at {} kept silent for {} s: see its log; if it is only slow, wait longer with --timeout",
            self.base,
            self.patience.as_secs()
        )
    }

    /// The cluster at a glance.
    pub(crate) fn status(&self) -> anyhow::Result<Status> {
        let mut answer = self.good(self.agent.get(format!("{}/v1/status", self.base)).call())?;
        let body = answer.body_mut().with_config().limit(1 << 30);
        body.read_json().map_err(|error| match error {
            ureq::Error::Timeout(_) => self.stalled(),
            error => anyhow::anyhow!("the gateway at {} answered something unreadable: {error}", self.base),
        })
    }
}
