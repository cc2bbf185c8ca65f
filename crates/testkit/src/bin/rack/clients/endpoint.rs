//! Where objects are, for whoever has the keys.

use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use testkit::Cluster;
use ureq::Agent;

use super::Problem;

const BUCKET: &str = "rack";
/// How long a signed address is good: longer than all of this takes.
const GOOD: Duration = Duration::from_secs(24 * 3_600);
/// How long an operation may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// The most bytes of an object, or of a page of a list.
const MOST: u64 = 64 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Endpoint {
    bucket: Bucket,
    keys: Credentials,
}

/// Connections to it.
pub(super) fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None).build().into()
}

fn failed(error: &ureq::Error) -> Problem {
    Problem::Failed(error.to_string())
}

impl Endpoint {
    pub(super) fn of(cluster: &Cluster) -> anyhow::Result<Self> {
        let (access, secret) = cluster.keys();
        let endpoint = cluster.s3().parse().context("the S3 address is none")?;
        let bucket = Bucket::new(endpoint, UrlStyle::Path, BUCKET, "us-east-1").context("the bucket is none")?;
        Ok(Self { bucket, keys: Credentials::new(access, secret) })
    }

    /// The address of an object, for what `action` asks.
    fn signed<'a>(&self, action: &impl S3Action<'a>) -> String {
        action.sign_with_time(GOOD, &Timestamp::now()).to_string()
    }

    pub(super) fn make_bucket(&self, agent: &Agent) -> anyhow::Result<()> {
        let address = self.signed(&self.bucket.create_bucket(&self.keys));
        let answer = agent.put(address).config().http_status_as_error(false).build().send_empty()?;
        ensure!(
            answer.status().is_success() || answer.status() == 409,
            "the bucket cannot be made: {}",
            answer.status()
        );
        Ok(())
    }

    pub(super) fn put(&self, agent: &Agent, name: &str, bytes: &[u8]) -> Result<(), Problem> {
        let address = self.signed(&self.bucket.put_object(Some(&self.keys), name));
        agent.put(address).send(bytes).map(drop).map_err(|error| failed(&error))
    }

    /// The bytes of an object; `None`: there is none of this name.
    pub(super) fn get(&self, agent: &Agent, name: &str) -> Result<Option<Vec<u8>>, Problem> {
        let address = self.signed(&self.bucket.get_object(Some(&self.keys), name));
        match agent.get(address).call() {
            Ok(mut answer) => {
                let bytes = answer.body_mut().with_config().limit(MOST).read_to_vec();
                bytes.map(Some).map_err(|error| failed(&error))
            }
            Err(ureq::Error::StatusCode(404)) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    pub(super) fn remove(&self, agent: &Agent, name: &str) -> Result<(), Problem> {
        let address = self.signed(&self.bucket.delete_object(Some(&self.keys), name));
        agent.delete(address).call().map(drop).map_err(|error| failed(&error))
    }

    /// All names that begin with `prefix`, page by page.
    pub(super) fn list(&self, agent: &Agent, prefix: &str) -> Result<Vec<String>, Problem> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let mut action = self.bucket.list_objects_v2(Some(&self.keys));
            action.with_prefix(prefix);
            after.iter().for_each(|token: &String| action.with_continuation_token(token.clone()));
            let read = || agent.get(self.signed(&action)).call()?.body_mut().with_config().limit(MOST).read_to_string();
            let page = read().map_err(|error| failed(&error))?;
            let page =
                ListObjectsV2::parse_response(&page).map_err(|error| Problem::Wrong(format!("a list: {error}")))?;
            names.extend(page.contents.into_iter().map(|object| object.key));
            after = page.next_continuation_token;
            if after.is_none() {
                return Ok(names);
            }
        }
    }
}
