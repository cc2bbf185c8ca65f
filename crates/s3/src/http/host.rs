//! Virtual hosts: `BUCKET.DOMAIN`. Requests to other hosts have the bucket in their path.

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The domain of virtual hosts.
#[derive(Clone, Debug)]
pub(crate) struct Domain(String);

impl Domain {
    /// The domain of this name.
    ///
    /// # Errors
    /// When it cannot be one: labels of letters, digits and hyphens, with dots between them, and no port.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let good = |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if name.split('.').all(good) {
            Ok(Self(name.to_ascii_lowercase()))
        } else {
            Err(format!("domain = {name:?} is no domain: write a name such as s3.example.org, without a port"))
        }
    }

    /// The bucket that a host stands for; `None` when its requests name buckets in their paths.
    pub(crate) fn bucket(&self, host: &str) -> Option<String> {
        let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
        let bucket = name.strip_suffix(&self.0)?.strip_suffix('.')?;
        (!bucket.is_empty()).then(|| bucket.to_owned())
    }
}

impl S3Host for Domain {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let virtual_host = VirtualHost::new(&self.0);
        Ok(match self.bucket(host) {
            Some(bucket) => virtual_host.with_bucket(bucket),
            None => virtual_host,
        })
    }
}

/// A host without its port.
#[must_use]
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_host_below_the_domain_is_a_bucket() {
        let domain = Domain::new("s3.Example.org").unwrap();
        for host in ["a.b.s3.example.org", "A.B.S3.EXAMPLE.ORG:9000", "a.b.s3.example.org."] {
            assert_eq!(domain.bucket(host).as_deref(), Some("a.b"), "{host}");
        }
        for host in ["s3.example.org", "s3.example.org:9000", ".s3.example.org", "as3.example.org", "other", "[::1]:80"]
        {
            assert_eq!(domain.bucket(host), None, "{host}");
        }
        for bad in ["", "a..b", "a:80", "a b", ".a"] {
            assert!(Domain::new(bad).is_err(), "{bad}");
        }
    }
}
