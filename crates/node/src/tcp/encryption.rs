//! Encryption between the nodes of one cluster: TLS 1.3, in which both sides prove that they have the cluster's key.
//!
//! Nodes trust whoever has the key, so it is all that they need: the identity that they show each other (Ed25519, a raw public key
//! as of RFC 7250) is derived from it. There is no certificate to hand out, or to run out. What was recorded cannot be read by
//! who learns the key later: each connection has a key of its own, from an exchange that is signed and not encrypted with it.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, ServerConnection, SignatureScheme, version,
};

/// What the identity is derived for; another one would be another identity.
const PURPOSE: &str = "reservoir 2026-11 tls identity of a cluster";
/// What comes before the 32 bytes of an Ed25519 key in PKCS #8.
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// Nobody looks at the name: who is there is said by the key, and within by what it signs.
const NAME: &str = "reservoir";

/// How the nodes of a cluster encrypt.
#[derive(Clone, Debug)]
pub(super) struct Encryption {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Encryption {
    /// That of the cluster with this key.
    ///
    /// # Errors
    /// When the cryptographic library refuses what it should do, as on a machine without random numbers.
    pub(super) fn of(key: &[u8; 32]) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let mut pkcs8 = PKCS8.to_vec();
        pkcs8.extend_from_slice(&blake3::derive_key(PURPOSE, key));
        let signing = ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8))?;
        let public = signing.public_key().ok_or(Error::General("the key has no public half".to_owned()))?.into_owned();
        let own = Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], signing));
        let same = Arc::new(SameKey { public, algorithms: provider.signature_verification_algorithms });
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&same) as Arc<dyn ServerCertVerifier>)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&own))));
        // Nothing is remembered of a connection: each proves the key anew, and an idle one keeps less.
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(same)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The side that connects.
    pub(super) fn client(&self) -> std::io::Result<Connection> {
        let name = ServerName::try_from(NAME).map_err(std::io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(&self.client), name);
        connection.map(Connection::from).map_err(std::io::Error::other)
    }

    /// The side that listens.
    pub(super) fn server(&self) -> std::io::Result<Connection> {
        let connection = ServerConnection::new(Arc::clone(&self.server));
        connection.map(Connection::from).map_err(std::io::Error::other)
    }
}

/// Takes whoever has the same key.
#[derive(Debug)]
struct SameKey {
    public: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl SameKey {
    fn is_it(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let same = shown.as_ref() == self.public.as_ref();
        same.then_some(()).ok_or(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.is_it(shown)?;
        verify_tls13_signature_with_raw_key(message, &self.public, signature, &self.algorithms)
    }
}

/// TLS 1.2 is not offered.
fn refused() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(rustls::PeerIncompatible::Tls12NotOffered))
}

impl ServerCertVerifier for SameKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.is_it(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refused()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for SameKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.is_it(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        refused()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
