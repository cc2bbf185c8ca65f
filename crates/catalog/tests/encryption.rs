//! Connections to a real PostgreSQL that are encrypted as their address says.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::fs;
use std::path::Path;

use catalog::{Catalog, Postgres};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use testkit::Postgres as Server;

/// A server whose certificate is that of `localhost`, and the certificate of its authority in `root.pem`.
fn server(place: &Path) -> Option<Server> {
    let mut root = CertificateParams::new(vec![]).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root_key = KeyPair::generate().unwrap();
    fs::write(place.join("root.pem"), root.self_signed(&root_key).unwrap().pem()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    start(&certificate.pem(), &key.serialize_pem())
}

/// `None`, with the reason printed, where there can be none.
fn start(certificate: &str, key: &str) -> Option<Server> {
    Server::start_encrypted(certificate, key).inspect_err(|why| println!("skipped: {why:#}")).ok()
}

fn open(url: &str, how: &str) -> Result<Postgres, String> {
    Postgres::open(&format!("{url}{how}"), None, "test").map_err(|error| error.to_string())
}

/// How many of the catalog's connections are encrypted, and how many are not, while `catalog` has one.
fn connections(server: &Server, catalog: &Postgres) -> (i64, i64) {
    catalog.buckets("", 1).unwrap();
    server.connections("reservoir").unwrap()
}

#[test]
fn connections_are_encrypted_as_the_address_says() {
    let place = tempfile::tempdir().unwrap();
    let Some(mut server) = server(place.path()) else { return };
    let by_address = server.database().unwrap();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let root = format!("&sslrootcert={}", place.path().join("root.pem").display());
    let count = |url: &str, how: &str| {
        let catalog = open(url, how).unwrap();
        let (encrypted, plain) = connections(&server, &catalog);
        assert!(encrypted + plain > 0, "{how}: the server knows of no connection");
        (encrypted > 0, plain > 0)
    };
    assert_eq!(count(&by_address, "?sslmode=disable"), (false, true));
    for (url, how) in [
        (&by_address, "".to_owned()),
        (&by_address, "?sslmode=prefer".to_owned()),
        (&by_address, "?sslmode=require".to_owned()),
        (&by_address, format!("?sslmode=require{root}")),
        (&by_address, format!("?sslmode=verify-ca{root}")),
        (&by_name, format!("?sslmode=verify-full{root}")),
    ] {
        assert_eq!(count(url, &how), (true, false), "{how}");
    }
    // Of another host; of nobody's; of another authority's.
    let other = open(&by_address, &format!("?sslmode=verify-full{root}")).unwrap_err();
    assert!(other.contains("certificate") && other.contains("its host as that certificate does"), "{other}");
    let mut another = CertificateParams::new(vec![]).unwrap();
    another.distinguished_name.push(DnType::CommonName, "another authority");
    let another = another.self_signed(&KeyPair::generate().unwrap()).unwrap();
    fs::write(place.path().join("root.pem"), another.pem()).unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let unknown = open(&by_name, &format!("?sslmode={mode}{root}")).unwrap_err();
        assert!(unknown.contains("UnknownIssuer") && unknown.contains("sslrootcert"), "{unknown}");
        assert!(!unknown.contains(Server::PASSWORD) && !unknown.contains('\n'), "{unknown}");
    }
    // Where only encrypted connections are taken.
    server.demand_encryption().unwrap();
    server.crash().unwrap();
    server.start_again().unwrap();
    let refused = open(&by_address, "?sslmode=disable").unwrap_err();
    assert!(refused.contains("sslmode=require"), "{refused}");
    open(&by_address, "?sslmode=require").unwrap();
}

#[test]
fn a_certificate_may_vouch_for_itself() {
    let place = tempfile::tempdir().unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    // As `openssl req -x509` makes them.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let path = place.path().join("server.pem");
    fs::write(&path, &certificate).unwrap();
    let Some(server) = start(&certificate, &key.serialize_pem()) else { return };
    let by_address = server.database().unwrap();
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let full = format!("?sslmode=verify-full&sslrootcert={}", path.display());
    let catalog = open(&by_name, &full).unwrap();
    let (encrypted, plain) = connections(&server, &catalog);
    assert!(encrypted > 0 && plain == 0);
    assert!(open(&by_address, &full).unwrap_err().contains("certificate"));
}

#[test]
fn a_server_without_a_certificate_is_not_asked_in_the_clear() {
    let Some(server) = Server::start().inspect_err(|why| println!("skipped: {why:#}")).ok() else { return };
    let url = server.database().unwrap();
    let refused = open(&url, "?sslmode=require").unwrap_err();
    assert!(refused.contains("set ssl = on"), "{refused}");
    assert!(connections(&server, &open(&url, "").unwrap()).1 > 0);
}
