//! Encrypted connections to PostgreSQL: `sslmode` and `sslrootcert` of an address, with the meaning that libpq gives them.

use std::path::Path;
use std::sync::Arc;

use ::postgres::Config;
use ::postgres::config::{Host, SslMode};
use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How connections are encrypted, and how the server is verified.
#[derive(Clone)]
pub(crate) struct Tls(MakeRustlsConnect);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// What an address says of encryption.
#[derive(Debug, Default, PartialEq, Eq)]
struct TlsOptions {
    mode: Option<String>,
    roots: Option<String>,
}

/// The address without what it says of encryption, which the client of PostgreSQL does not know, and that.
fn split(url: &str) -> (String, TlsOptions) {
    let mut options = TlsOptions::default();
    // A password may have a question mark.
    let from = url.find('@').unwrap_or(0);
    let Some(at) = url[from..].find('?').map(|at| from + at) else { return (url.to_owned(), options) };
    let mut kept = vec![];
    for part in url[at + 1..].split('&') {
        match part.split_once('=') {
            Some(("sslmode", mode)) => options.mode = Some(mode.to_owned()),
            Some(("sslrootcert", roots)) => {
                options.roots = Some(percent_decode_str(roots).decode_utf8_lossy().into_owned())
            }
            _ => kept.push(part),
        }
    }
    (format!("{}?{}", &url[..at], kept.join("&")), options)
}

/// The address without what it says of encryption, and a function that prepares connections so.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(crate) fn take(url: &str) -> Result<(String, Plan), String> {
    let (url, options) = split(url);
    let (mode, names) = match options.mode.as_deref() {
        Some("disable") => (SslMode::Disable, None),
        None | Some("prefer") => (SslMode::Prefer, None),
        // As in libpq, where a root that is given counts.
        Some("require") => (SslMode::Require, options.roots.as_ref().map(|_| false)),
        Some("verify-ca") => (SslMode::Require, Some(false)),
        Some("verify-full") => (SslMode::Require, Some(true)),
        Some(_) => {
            return Err(
                "has an address whose sslmode is none: write disable, prefer, require, verify-ca or verify-full".into(),
            );
        }
    };
    let roots = match (names, &options.roots) {
        (None, _) => None,
        (Some(names), Some(path)) => Some((read(Path::new(path))?, names)),
        (Some(_), None) => {
            return Err("has an address that asks who the database is, and does not say who vouches for it: add \
                        &sslrootcert=FILE with the certificates (PEM) of its authority"
                .into());
        }
    };
    Ok((url, Plan { mode, tls: Tls(MakeRustlsConnect::new(client(roots)?)) }))
}

/// How connections are made.
pub(crate) struct Plan {
    mode: SslMode,
    tls: Tls,
}

impl Plan {
    /// Prepares the settings of a connection.
    pub(crate) fn apply(self, config: &mut Config) -> Tls {
        // A socket in a directory does not leave the machine; libpq encrypts none either.
        let local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(if local { SslMode::Disable } else { self.mode });
        self.tls
    }
}

impl Tls {
    /// What makes connections.
    pub(crate) fn connector(&self) -> MakeRustlsConnect {
        self.0.clone()
    }
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let at = |why: &dyn std::fmt::Display| format!("has no usable sslrootcert: {}: {why}", path.display());
    let roots = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let roots = roots.map_err(|why| at(&why))?;
    if roots.is_empty() { Err(at(&"there is no certificate in it")) } else { Ok(roots) }
}

/// The settings of a client, to whom these vouch for a server, and for its name when that is asked for.
fn client(roots: Option<(Vec<CertificateDer<'static>>, bool)>) -> Result<ClientConfig, String> {
    let unusable = |why: &dyn std::fmt::Display| format!("has no usable sslrootcert: {why}");
    let provider = Arc::new(ring::default_provider());
    let check = match roots {
        None => None,
        Some((roots, names)) => {
            let mut store = RootCertStore::empty();
            for root in &roots {
                store.add(root.clone()).map_err(|why| unusable(&why))?;
            }
            let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(store), Arc::clone(&provider));
            Some(Check { roots, names, chains: chains.build().map_err(|why| unusable(&why))? })
        }
    };
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().map_err(|why| unusable(&why))?;
    Ok(config
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Vouching { check, provider }))
        .with_no_client_auth())
}

/// How a server is verified.
#[derive(Debug)]
struct Check {
    roots: Vec<CertificateDer<'static>>,
    /// Whether the certificate must be that of the host in the address.
    names: bool,
    chains: Arc<WebPkiServerVerifier>,
}

/// Asks no more of a server's certificate than the address does. That the server has its key is always asked.
#[derive(Debug)]
struct Vouching {
    check: Option<Check>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Vouching {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(check) = &self.check else { return Ok(ServerCertVerified::assertion()) };
        if check.roots.contains(certificate) {
            // It vouches for itself, which as an authority's certificate it could not do for a server.
            if check.names {
                rustls::client::verify_server_name(&ParsedCertificate::try_from(certificate)?, host)?;
            }
            return Ok(ServerCertVerified::assertion());
        }
        match check.chains.verify_server_cert(certificate, between, host, stapled, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !check.names => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn what_an_address_says_of_encryption_is_taken_from_it() {
        let options = |mode: &str, roots: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            TlsOptions { mode: some(mode), roots: some(roots) }
        };
        for (url, left, options) in [
            ("postgres://u@h/d", "postgres://u@h/d", options("", "")),
            ("postgres://u@h/d?sslmode=require", "postgres://u@h/d?", options("require", "")),
            (
                "postgres://u:p?w@h/d?a=b&sslmode=verify-full&sslrootcert=%2Fetc/a%20b.pem&c=d",
                "postgres://u:p?w@h/d?a=b&c=d",
                options("verify-full", "/etc/a b.pem"),
            ),
            ("postgres://h/d?user=u&sslmode=disable", "postgres://h/d?user=u", options("disable", "")),
        ] {
            assert_eq!(split(url), (left.to_owned(), options), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_verified_is_reported() {
        let refused = |url: &str| take(url).err().unwrap();
        assert!(refused("postgres://u@h/d?sslmode=allow").contains("verify-full"));
        assert!(refused("postgres://u@h/d?sslmode=verify-full").contains("sslrootcert=FILE"));
        assert!(refused("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/nowhere.pem").contains("/nowhere.pem"));
        assert!(refused("postgres://u@h/d?sslmode=require&sslrootcert=/dev/null").contains("no certificate"));
        assert!(take("postgres://u@h/d").is_ok() && take("postgres://u@h/d?sslmode=require").is_ok());
    }
}
