//! A client of S3 for tests: signed addresses over real sockets.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::str::FromStr;
use std::time::Duration;

use jiff::Timestamp;
use rusty_s3::signing::sign;
use rusty_s3::{Bucket, Method, UrlStyle};
use ureq::Agent;

use crate::common::Cluster;

/// How long an answer to bare bytes may take.
const EXCHANGE: Duration = Duration::from_secs(30);

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The text of the first element of this name in the body; empty when there is none.
    pub(crate) fn element(&self, name: &str) -> String {
        self.elements(name).into_iter().next().unwrap_or_default()
    }

    /// The texts of all elements of this name in the body.
    pub(crate) fn elements(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let text = self.text();
        text.split(&open).skip(1).filter_map(|rest| Some(rest.split_once(&close)?.0.to_owned())).collect()
    }

    /// Panics unless the status is this one.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:?}: {}", self.headers, self.text());
        self
    }

    /// Panics unless it is this error.
    #[track_caller]
    pub(crate) fn fails(self, status: u16, code: &str) -> Self {
        let this = self.is(status);
        assert_eq!(this.element("Code"), code, "{}", this.text());
        this
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// A client with keys.
#[derive(Clone, Debug)]
pub(crate) struct S3 {
    pub(crate) endpoint: String,
    pub(crate) key: String,
    pub(crate) secret: String,
    agent: Agent,
}

impl S3 {
    /// With the keys of the first user, at the endpoint that `up` printed.
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let printed = cluster.output();
        let line = |name: &str| {
            let found = printed.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
            found.unwrap_or_else(|| panic!("no {name}: {printed}")).to_owned()
        };
        let secret = String::from_utf8(cluster.run(&["user", "show", "admin", "--secret"])).unwrap();
        Self::new(&line("endpoint"), &line("access key"), secret.trim_end())
    }

    pub(crate) fn new(endpoint: &str, key: &str, secret: &str) -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(120)));
        let agent = config.build().new_agent();
        Self { endpoint: endpoint.to_owned(), key: key.to_owned(), secret: secret.to_owned(), agent }
    }

    /// An address that is signed at `date`, good for 5 minutes.
    pub(crate) fn address(
        &self,
        method: &str,
        bucket: &str,
        key: &str,
        query: &[(&str, &str)],
        date: Timestamp,
    ) -> String {
        self.address_with(method, (bucket, key), query, &[], date)
    }

    /// An address whose signature covers headers.
    pub(crate) fn address_with(
        &self,
        method: &str,
        (bucket, key): (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        date: Timestamp,
    ) -> String {
        let mut url = self.endpoint.parse().unwrap();
        if !bucket.is_empty() {
            let bucket = Bucket::new(url, UrlStyle::Path, bucket.to_owned(), "us-east-1").unwrap();
            url = bucket.object_url(key);
        }
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "DELETE" => Method::Delete,
            other => panic!("{other}"),
        };
        let mut query = query.to_vec();
        query.sort_unstable();
        let mut headers = headers.to_vec();
        headers.sort_unstable();
        let (query, headers) = (query.into_iter(), headers.into_iter());
        sign(&date, method, url, &self.key, &self.secret, None, "us-east-1", 300, query, headers).to_string()
    }

    /// Asks; the headers are signed.
    pub(crate) fn ask(
        &self,
        method: &str,
        (bucket, key): (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let address = self.address_with(method, (bucket, key), query, headers, Timestamp::now());
        self.send(method, &address, headers, body).expect("an answer")
    }

    /// Sends bytes, and nothing more when `ends`; reads until the other end has no more to say.
    pub(crate) fn exchange(&self, sent: &[u8], ends: bool) -> String {
        let mut stream = TcpStream::connect(self.host()).unwrap();
        stream.set_read_timeout(Some(EXCHANGE)).unwrap();
        // The other end may have refused it before it was whole.
        let _ = stream.write_all(sent);
        if ends {
            let _ = stream.shutdown(Shutdown::Write);
        }
        let mut answer = vec![];
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// The host and the port.
    pub(crate) fn host(&self) -> &str {
        self.endpoint.strip_prefix("http://").unwrap()
    }

    /// Asks, and whatever goes wrong below HTTP is an error.
    pub(crate) fn send(
        &self,
        method: &str,
        address: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        let mut request = ureq::http::Request::builder().method(ureq::http::Method::from_str(method).unwrap());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.uri(address);
        let answer = if matches!(method, "PUT" | "POST") {
            self.agent.run(request.body(body).expect("a request"))?
        } else {
            self.agent.run(request.body(()).expect("a request"))?
        };
        let status = answer.status().as_u16();
        let headers = answer.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().to_owned()));
        let headers = headers.collect();
        let body = answer.into_body().into_with_config().limit(1 << 30).read_to_vec()?;
        Ok(Answer { status, headers, body })
    }

    pub(crate) fn put(&self, bucket: &str, key: &str, body: &[u8]) -> Answer {
        self.ask("PUT", (bucket, key), &[], &[], body)
    }

    pub(crate) fn get(&self, bucket: &str, key: &str) -> Answer {
        self.ask("GET", (bucket, key), &[], &[], b"")
    }

    pub(crate) fn head(&self, bucket: &str, key: &str) -> Answer {
        self.ask("HEAD", (bucket, key), &[], &[], b"")
    }

    pub(crate) fn delete(&self, bucket: &str, key: &str) -> Answer {
        self.ask("DELETE", (bucket, key), &[], &[], b"")
    }

    pub(crate) fn list(&self, bucket: &str, query: &[(&str, &str)]) -> Answer {
        self.ask("GET", (bucket, ""), query, &[], b"")
    }
}
