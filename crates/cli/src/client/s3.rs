//! The S3 API of a gateway as a client sees it: signed requests, over TLS where the gateway has a certificate.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use node::atomic_file;
use quick_xml::de::from_str;
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::signing::sign;
use rusty_s3::{Bucket, Method, UrlStyle};
use serde::{Deserialize, Serialize};
use ureq::config::Config;
use ureq::http::{Request, Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Timeout};

use super::CONNECT;
use crate::gateway_file;
use crate::location::{BUCKET, Location};
use crate::output::program;

const REGION: &str = "us-east-1";
/// How long a signed address is good, seconds.
const GOOD: u64 = 3_600;
/// Bytes of the largest answer that is a document.
const DOCUMENT: u64 = 64 << 20;

/// Why a request was refused, as the gateway says it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Refusal {
    code: Option<String>,
    message: String,
}

/// The buckets of a user, as the gateway lists them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Owned {
    buckets: Buckets,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Buckets {
    #[serde(default)]
    bucket: Vec<Named>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Named {
    name: String,
}

/// An object as it is listed.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) modified: String,
    pub(crate) etag: String,
    pub(crate) storage_class: String,
}

/// What S3 answered instead of doing it.
#[derive(Debug)]
pub(crate) struct Refused {
    code: String,
    text: String,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refused {}

/// Nobody who is trusted answers at the endpoint.
#[derive(Debug)]
struct Unreached(String);

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreached {}

/// Why nothing else in this bucket can be done either.
const OF_BUCKET: [&str; 5] =
    ["NoSuchBucket", "InvalidBucketName", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"];

/// Whether what failed for one object fails for all others in its bucket.
pub(crate) fn concerns_all(error: &anyhow::Error) -> bool {
    error.is::<Unreached>() || OF_BUCKET.iter().any(|code| is_refused(error, code))
}

/// Longer bodies are sent when the gateway wants them: it breaks off those of requests that it refuses, and then nobody would hear
/// why.
const ASKED_FIRST: usize = 64 << 10;

/// Whether S3 refused with this code.
pub(crate) fn is_refused(error: &anyhow::Error, code: &str) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.code == code)
}

/// An endpoint, and the keys of a user.
pub(crate) struct S3 {
    agent: Agent,
    endpoint: String,
    access_key: String,
    secret_key: String,
    /// What to do when it does not answer.
    advice: String,
    /// How long it may keep silent.
    patience: Duration,
}

impl S3 {
    /// The gateway of the cluster whose configuration is `config`, as `user`, or as the first of the local users. It may
    /// neither take nor send anything for as long as `patience` lasts.
    pub(crate) fn of(config: &Path, user: Option<&str>, patience: Duration, advice: String) -> anyhow::Result<Self> {
        let settings = config.with_file_name("gateway.toml");
        let s3 = gateway_file::load(config)?.s3.with_context(|| {
            format!(
                "{} has no section [s3]: write listen = \"ADDRESS:PORT\" into one, and start the gateway again",
                settings.display()
            )
        })?;
        let users = gateway_file::users(config, Some(&s3));
        let user = match user {
            Some(name) => users.get(name)?,
            None => users.list()?.into_iter().next().with_context(|| {
                let file = gateway_file::users_file(config, Some(&s3));
                format!(
                    "{} has no user: make one with `{} user add NAME`, or copy it from where the gateway runs",
                    file.display(),
                    program()
                )
            })?,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT.min(patience)))
            .timeout_per_read(Some(patience))
            .timeout_per_write(Some(patience));
        let (access_key, secret_key) = (user.access_key, user.secret_key);
        let (agent, endpoint) = match s3.certificate(atomic_file::directory(config))? {
            None => (Agent::new_with_config(agent.build()), s3.endpoint()),
            Some(files) => {
                let agent = agent.tls_config(trusting(&files.chain)?).build();
                // A certificate is for a name; whoever has it listens at the address.
                let port = s3.listen.port();
                let place = s3.domain.as_ref().map_or_else(|| s3.listen.to_string(), |name| format!("{name}:{port}"));
                let agent = Agent::with_parts(agent, DefaultConnector::default(), At(reachable(s3.listen)));
                (agent, format!("https://{place}"))
            }
        };
        Ok(Self { agent, endpoint, access_key, secret_key, advice, patience })
    }

    /// Where it is.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A signed address, good for an hour, for whoever sends these headers.
    pub(crate) fn address(
        &self,
        method: Method,
        (bucket, key): (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let url = self.endpoint.parse().with_context(|| format!("{} is no address", self.endpoint))?;
        let bucket = Bucket::new(url, UrlStyle::Path, bucket.to_owned(), REGION)
            .with_context(|| format!("there can be no bucket {bucket:?}"))?;
        let (mut query, mut headers) = (query.to_vec(), headers.to_vec());
        query.sort_unstable();
        headers.sort_unstable();
        let (now, url, key, secret) = (Timestamp::now(), bucket.object_url(key), &self.access_key, &self.secret_key);
        Ok(sign(&now, method, url, key, secret, None, REGION, GOOD, query.into_iter(), headers.into_iter()).to_string())
    }

    /// Asks. An answer that is not what was asked for is an error, [`Refused`] where S3 says why.
    pub(crate) fn ask(
        &self,
        method: Method,
        at: (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<Response<Body>> {
        let address = self.address(method, at, query, headers)?;
        let mut request = Request::builder().method(method.to_str()).uri(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.len() > ASKED_FIRST {
            request = request.header("expect", "100-continue");
        }
        let request = request.body(()).context("a request cannot be made")?;
        let answer = match method {
            Method::Put | Method::Post => self.agent.run(request.map(|()| body)),
            Method::Get | Method::Head | Method::Delete => self.agent.run(request),
        };
        let answer = answer.map_err(|error| self.failed(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let refused = self.refused(at, answer);
        if method == Method::Head && refused.code == "NoSuchKey" {
            // The answer does not say whether it is the object or its bucket that is missing.
            self.ask(Method::Head, (at.0, ""), &[], &[], b"")?;
        }
        Err(refused.into())
    }

    /// Asks for a document.
    pub(crate) fn document(
        &self,
        method: Method,
        at: (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> anyhow::Result<String> {
        let mut answer = self.ask(method, at, query, headers, body)?;
        answer.body_mut().with_config().limit(DOCUMENT).read_to_string().map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &ureq::Error) -> anyhow::Error {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let endpoint = &self.endpoint;
        match error {
            ureq::Error::Io(io) if [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&io.kind()) => {
                anyhow::anyhow!(
                    "the gateway at {endpoint} broke off: see its log, and `{} status`, then try again",
                    program()
                )
            }
            ureq::Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => anyhow::anyhow!(
                "the gateway at {endpoint} kept silent for {} s: see its log; if it is only slow, wait longer with --timeout",
                self.patience.as_secs()
            ),
            _ => Unreached(match untrusted(error) {
                Some(why) => format!("the certificate of the gateway at {endpoint} is not trusted: {why}"),
                None => format!("the gateway at {endpoint} does not answer ({error}): {}", self.advice),
            })
            .into(),
        }
    }

    fn refused(&self, (bucket, key): (&str, &str), mut answer: Response<Body>) -> Refused {
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(DOCUMENT).read_to_string().unwrap_or_default();
        let Refusal { code, message } = from_str(&text).unwrap_or_default();
        let code = match (code, status.as_u16()) {
            (Some(code), _) => code,
            // The answer to a HEAD has no body to say why.
            (None, 404) => (if key.is_empty() { "NoSuchBucket" } else { "NoSuchKey" }).to_owned(),
            (None, _) => status.to_string(),
        };
        let what = Location { bucket: bucket.to_owned(), key: key.to_owned() };
        let program = program();
        let text = match code.as_str() {
            "NoSuchBucket" if bucket == BUCKET => format!("there is no bucket {bucket:?} yet: the first put makes it"),
            "NoSuchBucket" => format!(
                "there is no bucket {bucket:?}: `{program} ls s3://` shows the buckets, and `{program} mb s3://{bucket}` makes this one"
            ),
            "NoSuchKey" => format!("there is no object {what}: `{program} ls s3://{bucket}` shows what there is"),
            "InvalidBucketName" => format!(
                "there can be no bucket {bucket:?}: names of buckets have 3 to 63 small letters, digits, dots and hyphens, and begin and \
                 end with a letter or digit"
            ),
            _ => format!("the gateway at {} refused {what}: {code}: {message}", self.endpoint),
        };
        Refused { code, text: text.trim_end_matches([':', ' ']).to_owned() }
    }

    /// Makes a bucket; one that is the user's already is as good.
    pub(crate) fn make_bucket(&self, bucket: &str) -> anyhow::Result<()> {
        match self.ask(Method::Put, (bucket, ""), &[], &[], b"") {
            Err(error) if !is_refused(&error, "BucketAlreadyOwnedByYou") => Err(error),
            _ => Ok(()),
        }
    }

    /// The names of the user's buckets.
    pub(crate) fn buckets(&self) -> anyhow::Result<Vec<String>> {
        let url = self.endpoint.parse().with_context(|| format!("{} is no address", self.endpoint))?;
        let (now, key, secret) = (Timestamp::now(), &self.access_key, &self.secret_key);
        let none = std::iter::empty;
        let address = sign(&now, Method::Get, url, key, secret, None, REGION, GOOD, none(), none());
        let mut answer = self.agent.get(address.as_str()).call().map_err(|error| self.failed(&error))?;
        ensure!(answer.status().is_success(), self.refused(("", ""), answer));
        let text = answer.body_mut().with_config().limit(DOCUMENT).read_to_string().map_err(|e| self.failed(&e))?;
        let owned: Owned = from_str(&text)
            .with_context(|| format!("the gateway at {} listed the buckets unreadably", self.endpoint))?;
        Ok(owned.buckets.bucket.into_iter().map(|bucket| bucket.name).collect())
    }

    /// The objects whose keys begin like this, in the order of their keys, a page at a time.
    pub(crate) fn objects<'a>(&'a self, at: &'a Location) -> impl Iterator<Item = anyhow::Result<Listed>> + Send + 'a {
        let (mut page, mut token, mut begun) = (Vec::new().into_iter(), None::<String>, false);
        std::iter::from_fn(move || {
            loop {
                if let Some(object) = page.next() {
                    return Some(Ok(object));
                }
                if begun && token.is_none() {
                    return None;
                }
                begun = true;
                match self.page(at, token.take()) {
                    Ok((objects, next)) => (page, token) = (objects.into_iter(), next),
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }

    fn page(&self, at: &Location, token: Option<String>) -> anyhow::Result<(Vec<Listed>, Option<String>)> {
        let mut query = vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", at.key.as_str())];
        query.extend(token.as_deref().map(|token| ("continuation-token", token)));
        let text = self.document(Method::Get, (&at.bucket, ""), &query, &[], b"")?;
        let page = ListObjectsV2::parse_response(&text)
            .with_context(|| format!("the gateway at {} listed {at} unreadably", self.endpoint))?;
        let listed = page.contents.into_iter().map(|object| Listed {
            key: object.key,
            size: object.size.unwrap_or(0),
            modified: object.last_modified.unwrap_or_default(),
            etag: object.etag.unwrap_or_default().trim_matches('"').to_owned(),
            storage_class: object.storage_class.unwrap_or_else(|| "STANDARD".to_owned()),
        });
        Ok((listed.collect(), page.next_continuation_token))
    }

    /// Removes an object, one that is not there as well; or a bucket, with an empty key.
    pub(crate) fn remove(&self, bucket: &str, key: &str) -> anyhow::Result<()> {
        self.ask(Method::Delete, (bucket, key), &[], &[], b"").map(drop)
    }
}

/// Trust in the certificates of a file alone, and in those of `AWS_CA_BUNDLE`, as other clients have it.
fn trusting(chain: &Path) -> anyhow::Result<TlsConfig> {
    let bundle = std::env::var_os("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
    let mut trusted: Vec<Certificate<'static>> = Vec::new();
    for path in [Some(chain.to_owned()), bundle.map(Into::into)].into_iter().flatten() {
        let pem = fs::read(&path).with_context(|| {
            format!(
                "the certificate {} cannot be read: correct `certificate` in gateway.toml, or AWS_CA_BUNDLE",
                path.display()
            )
        })?;
        for item in parse_pem(&pem) {
            if let PemItem::Certificate(certificate) = item.with_context(|| format!("{} is no PEM", path.display()))? {
                trusted.push(certificate);
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = RootCerts::Specific(Arc::new(trusted));
    Ok(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
}

/// Why a server's certificate is not taken for its own, and what to do, if that is what failed.
fn untrusted(error: &ureq::Error) -> Option<String> {
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref()?,
        _ => return None,
    };
    let rustls::Error::InvalidCertificate(why) = error else { return None };
    let why = match why {
        // Its type is that of another crate.
        rustls::CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "it says that it is an authority's: make it with `openssl req -addext basicConstraints=critical,CA:FALSE …`"
                .to_owned()
        }
        rustls::CertificateError::NotValidForName | rustls::CertificateError::NotValidForNameContext { .. } => {
            format!(
                "{why}: it has to name the `domain` or the address of [s3] in gateway.toml (`-addext subjectAltName=…`)"
            )
        }
        rustls::CertificateError::UnknownIssuer => {
            format!(
                "{why}: copy the `certificate` of its gateway.toml here, or name its authority's with AWS_CA_BUNDLE"
            )
        }
        why => format!("{why}: give the gateway another `certificate` in its gateway.toml"),
    };
    Some(why)
}

/// The address to ask a server that listens there: one that listens everywhere also does so on this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, listen.port())
}

/// Every name is at this address.
#[derive(Debug)]
struct At(SocketAddr);

impl Resolver for At {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut all = self.empty();
        all.push(self.0);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let text = "<Error><Code>X</Code><Message>a &lt;b&gt; &amp;lt;</Message><RequestId>1</RequestId></Error>";
        let Refusal { code, message } = from_str(text).unwrap();
        assert_eq!((code.as_deref(), message.as_str()), (Some("X"), "a <b> &lt;"));
        assert_eq!(from_str::<Refusal>("not found").unwrap_or_default().code, None);
        let names = |inside: &str| -> Vec<String> {
            let text = format!(
                "<?xml version=\"1.0\"?><ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Buckets>{inside}\
                 </Buckets><Owner><ID>o</ID></Owner></ListAllMyBucketsResult>"
            );
            let owned: Owned = from_str(&text).unwrap();
            owned.buckets.bucket.into_iter().map(|bucket| bucket.name).collect()
        };
        assert_eq!(names(""), Vec::<String>::new());
        let bucket = |name: &str| format!("<Bucket><CreationDate>d</CreationDate><Name>{name}</Name></Bucket>");
        assert_eq!(names(&[bucket("a"), bucket("b-c")].concat()), ["a", "b-c"]);
    }
}
