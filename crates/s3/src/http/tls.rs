//! TLS: a certificate and its key, read again when the files have changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// The files of a TLS endpoint, in PEM.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The certificate and its intermediates.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Which file it is, and when it was changed: a new one takes the place of the old.
type Stamp = (u64, i64, i64);

/// The certificate and key for new connections.
pub(crate) struct Tls {
    files: Certificate,
    read: Mutex<(Arc<ServerConfig>, [Stamp; 2])>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When one cannot be read, or the key is not that of the certificate.
    pub(crate) fn open(files: &Certificate) -> Result<Self, String> {
        let stamps = stamps(files);
        Ok(Self { files: files.clone(), read: Mutex::new((read(files)?, stamps)) })
    }

    /// The acceptor for the next connection. When the files have changed and cannot be used, that is logged, and the old
    /// ones stay in use.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut kept = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if stamps != kept.1 {
            match read(&self.files) {
                Ok(config) => *kept = (config, stamps),
                Err(why) => {
                    tracing::error!("the certificate stays as it was: {why}");
                    kept.1 = stamps;
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&kept.0))
    }
}

fn stamps(files: &Certificate) -> [Stamp; 2] {
    let stamp = |path: &Path| fs::metadata(path).map_or((0, 0, 0), |m| (m.ino(), m.mtime(), m.mtime_nsec()));
    [stamp(&files.chain), stamp(&files.key)]
}

fn read(files: &Certificate) -> Result<Arc<ServerConfig>, String> {
    let at = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let chain = CertificateDer::pem_file_iter(&files.chain).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|why| at(&files.chain, &why))?;
    if chain.is_empty() {
        return Err(at(&files.chain, &"there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|why| at(&files.key, &why))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().map_err(|why| why.to_string())?;
    let config = config.with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(|why| at(&files.key, &why))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn write(directory: &Path) -> Certificate {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let files = Certificate { chain: directory.join("cert.pem"), key: directory.join("key.pem") };
        replace(&files.chain, &made.cert.pem());
        replace(&files.key, &made.signing_key.serialize_pem());
        files
    }

    /// Another file of the same name: the time alone may be that of the one before.
    fn replace(path: &Path, text: &str) {
        fs::write(path.with_extension("new"), text).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    }

    #[test]
    fn a_certificate_is_taken_anew_when_it_is_good() {
        let directory = tempfile::tempdir().unwrap();
        let tls = Tls::open(&write(directory.path())).unwrap();
        let first = Arc::clone(tls.acceptor().config());
        assert!(Arc::ptr_eq(&first, tls.acceptor().config()));
        write(directory.path());
        let second = Arc::clone(tls.acceptor().config());
        assert!(!Arc::ptr_eq(&first, &second));
        replace(&directory.path().join("cert.pem"), "no certificate");
        assert!(Arc::ptr_eq(&second, tls.acceptor().config()));
    }

    #[test]
    fn files_that_do_not_fit_are_refused_with_the_reason() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (mine, theirs) = (write(one.path()), write(other.path()));
        assert!(Tls::open(&Certificate { key: theirs.key, ..mine.clone() }).is_err());
        fs::write(&mine.chain, "").unwrap();
        let why = Tls::open(&mine).err().unwrap();
        assert!(why.contains("cert.pem") && why.contains("no certificate"), "{why}");
        fs::remove_file(&mine.chain).unwrap();
        assert!(Tls::open(&mine).err().unwrap().contains("cert.pem"));
    }
}
