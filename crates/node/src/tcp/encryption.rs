//! Encryption between the nodes of one cluster: TLS 1.3, in which both sides prove that they have the cluster's key.
//!
//! Nodes trust whoever has the key, so it is all that they need: the identity that they show each other (Ed25519, a raw public key
//! as of RFC 7250) is derived from it. There is no certificate to hand out, or to run out. What was recorded cannot be read by
//! who learns the key later: each connection has a key of its own, from an exchange that is signed and not encrypted with it.
//!
//! To sign is dear, and whoever connects could have a target sign. So the first message already shows that its sender has the
//! key, in the name that it calls ([`Calling`]). Whoever has not even overheard one is refused before a key is agreed on.

use std::sync::Arc;

use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error,
    ServerConfig, ServerConnection, SignatureScheme, version,
};

/// What the identity is derived for; another one would be another identity.
const PURPOSE: &str = "reservoir 2026-11 tls identity of a cluster";
/// What comes before the 32 bytes of an Ed25519 key in PKCS #8.
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// What the proof in a called name is derived for.
const CALLING: &str = "reservoir 2026-11 tls hello of a cluster";
/// What called names end with.
const NAME: &str = "reservoir";

/// How the nodes of a cluster encrypt.
#[derive(Clone, Debug)]
pub(super) struct Encryption {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    calling: Calling,
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
        let calling = Calling { key: blake3::derive_key(CALLING, key) };
        let called = Called { calling: calling.clone(), own: AlwaysResolvesServerRawPublicKeys::new(own) };
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(same)
            .with_cert_resolver(Arc::new(called));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), calling })
    }

    /// The side that connects.
    pub(super) fn client(&self) -> std::io::Result<Connection> {
        let connection = ClientConnection::new(Arc::clone(&self.client), self.calling.name()?);
        connection.map(Connection::from).map_err(std::io::Error::other)
    }

    /// The side that listens.
    pub(super) fn server(&self) -> std::io::Result<Connection> {
        let connection = ServerConnection::new(Arc::clone(&self.server));
        connection.map(Connection::from).map_err(std::io::Error::other)
    }
}

/// The name that a node calls: what nobody has called before, and a proof that it has the key. Whoever has heard it can call it
/// again, and have a signature that is of no use to him.
#[derive(Clone, Debug)]
struct Calling {
    key: [u8; 32],
}

impl Calling {
    fn name(&self) -> std::io::Result<ServerName<'static>> {
        let nonce = format!("{:016x}", getrandom::u64()?);
        let proof = self.proof(&nonce).to_hex();
        let (first, rest) = proof.split_at(proof.len() / 2);
        ServerName::try_from(format!("{nonce}.{first}.{rest}.{NAME}")).map_err(std::io::Error::other)
    }

    fn is_shown_by(&self, name: &str) -> bool {
        let parts: Vec<&str> = name.split('.').collect();
        let [nonce, first, rest, NAME] = parts[..] else { return false };
        // Compared in a time that does not depend on where they differ.
        blake3::Hash::from_hex([first, rest].concat()).is_ok_and(|proof| proof == self.proof(nonce))
    }

    fn proof(&self, nonce: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.key, nonce.as_bytes())
    }
}

/// Answers those that call as a node of the cluster does.
#[derive(Debug)]
struct Called {
    calling: Calling,
    own: AlwaysResolvesServerRawPublicKeys,
}

impl ResolvesServerCert for Called {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_node = hello.server_name().is_some_and(|name| self.calling.is_shown_by(name));
        if is_node { self.own.resolve(hello) } else { None }
    }

    fn only_raw_public_keys(&self) -> bool {
        true
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    /// What a target says to a first message, and what it thinks of it.
    fn answer(target: &Encryption, hello: &mut Connection) -> (Vec<u8>, Result<(), Error>) {
        let (mut said, mut answer) = (Vec::new(), Vec::new());
        hello.write_tls(&mut said).unwrap();
        let mut connection = target.server().unwrap();
        connection.read_tls(&mut said.as_slice()).unwrap();
        let result = connection.process_new_packets().map(drop);
        connection.write_tls(&mut answer).unwrap();
        (answer, result)
    }

    #[test]
    fn only_who_shows_the_key_at_once_has_a_target_sign() {
        let (target, other) = (Encryption::of(&[1; 32]).unwrap(), Encryption::of(&[2; 32]).unwrap());
        let (signed, result) = answer(&target, &mut target.client().unwrap());
        assert!(result.is_ok() && signed.len() > 200, "{result:?}, {} bytes", signed.len());
        let name = |name: &str| ServerName::try_from(name.to_owned()).unwrap();
        let call = |name| ClientConnection::new(Arc::clone(&target.client), name).unwrap().into();
        let proof = target.calling.proof("0").to_hex();
        let of_another = format!("1.{}.{}.{NAME}", &proof[..32], &proof[32..]);
        let strangers =
            [other.client().unwrap(), call(name(NAME)), call(name("0.0.0.reservoir")), call(name(&of_another))];
        for mut stranger in strangers {
            let (alert, result) = answer(&target, &mut stranger);
            assert!(result.is_err() && alert.len() == 7, "{result:?}, {} bytes", alert.len());
        }
        assert_ne!(
            target.calling.name().unwrap(),
            target.calling.name().unwrap(),
            "what was heard once may be called again"
        );
    }
}
