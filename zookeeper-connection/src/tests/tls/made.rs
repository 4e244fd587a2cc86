//! Certificates as people make them, with openssl, keytool and cert-manager. The script `made/make` made them, with all
//! their commands.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use super::{assert_refused, assert_serves, options_for};
use crate::tests::certificates::Files;
use crate::tests::connecting::unused_address;
use crate::tests::server::Server;
use crate::tests::{LONG, connect_with, connect_within, error_in_some_time};
use crate::{ConnectError, ConnectionOptions, TlsConfig};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Returns the path of a file of `made`.
fn file(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/src/tests/tls/made/{name}.pem", env!("CARGO_MANIFEST_DIR")))
}

fn chain(name: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file(name)).unwrap().map(Result::unwrap).collect()
}

fn key(name: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_file(file(name)).unwrap()
}

/// Returns the configuration of a client that trusts what the certificate's maker would have it trust: the authority, or
/// the certificate itself.
fn trusting(name: &str) -> TlsConfig {
    let authority = file(&format!("{name}-ca"));
    TlsConfig::new().ca_file(if authority.exists() { authority } else { file(name) })
}

/// Starts a server that presents these certificates and signs with this key, whether or not they belong together.
fn serve_with(
    version: &'static SupportedProtocolVersion,
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> Server {
    let certified = CertifiedKey::new(chain, any_supported_type(key).unwrap());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_protocol_versions(&[version]).unwrap().with_no_client_auth();
    let config = Arc::new(config.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified))));
    Server::with(move |client| {
        let encrypted = ServerConnection::new(Arc::clone(&config)).unwrap();
        client.within(|stream| StreamOwned::new(encrypted, stream)).serve();
    })
}

fn serve(name: &str) -> Server {
    serve_with(&TLS13, chain(name), &key(name))
}

#[test]
fn usual_certificates_are_accepted() {
    let names = [
        "openssl",
        "openssl-without-san",
        "openssl-rsa-4096",
        "openssl-p256",
        "keytool",
        "keytool-with-san",
        "cert-manager",
        "chain",
    ];
    for name in names {
        for version in VERSIONS {
            assert_serves(&serve_with(version, chain(name), &key(name)), &trusting(name));
        }
    }
}

#[test]
fn certificate_in_the_file_is_accepted_for_its_own_name_only() {
    for name in ["openssl", "openssl-without-san", "keytool"] {
        let server = serve(name);
        let options = |tls| options_for(&server, &tls, LONG);
        let error = connect_with("zk2:2281", &options(trusting(name))).unwrap_err().to_string();
        assert!(error.contains("not valid for name") && error.contains("TlsConfig::server_name"), "{error}");
        connect_with("zk2:2281", &options(trusting(name).server_name("zk1"))).unwrap();
        connect_with("zk2:2281", &options(trusting(name).server_name("ZK1"))).unwrap();
        assert_refused(&server, &trusting(name).server_name("zk2"), "not valid for name");
        assert_serves(&server, &trusting(name).server_name("zk2").danger_accept_any_server_name());
    }
}

/// Returns a certificate with this name, marked as an authority, as `openssl req -x509` marks it.
fn self_signed(key: &KeyPair, name: &str) -> rcgen::Certificate {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(key).unwrap()
}

#[test]
fn certificate_that_differs_from_the_one_in_the_file_is_refused() {
    let files = Files::new();
    let key = KeyPair::generate().unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let tls = TlsConfig::new().ca_file(files.write("ca.pem", &self_signed(&key, "zk1").pem()));
    // The subject and the key are the same.
    let other = self_signed(&key, "zk1");
    let server = serve_with(&TLS13, vec![other.der().clone()], &private);
    assert_refused(&server, &tls, "CaUsedAsEndEntity; this client cannot use");
    let any_name = tls.danger_accept_any_server_name();
    assert_refused(&server, &any_name, "if it is self-signed, TlsConfig::ca_file must have that very");
}

#[test]
fn certificate_of_another_host_in_the_file_is_refused() {
    let tls = TlsConfig::new().ca_file(file("openssl")).ca_file(file("openssl-p256")).server_name("zk3");
    for name in ["openssl", "openssl-p256"] {
        assert_refused(&serve(name), &tls, "not valid for name \"zk3\"");
    }
}

#[test]
fn server_that_presents_the_certificate_in_the_file_without_its_key_is_refused() {
    for version in VERSIONS {
        let server = serve_with(version, chain("openssl-p256"), &key("cert-manager"));
        assert_refused(&server, &trusting("openssl-p256"), "BadSignature");
        let any_name = trusting("openssl-p256").danger_accept_any_server_name();
        assert_refused(&server, &any_name, "BadSignature");
    }
}

#[test]
fn certificate_in_the_file_is_accepted_only_while_it_is_valid() {
    for (name, why) in [("openssl-expired", "expired"), ("openssl-not-yet-valid", "not valid yet")] {
        let server = serve(name);
        assert_refused(&server, &trusting(name), why);
        assert_refused(&server, &trusting(name), "or correct the clock");
        assert_refused(&server, &trusting(name).danger_accept_any_server_name(), why);
    }
}

#[test]
fn common_name_counts_only_in_a_certificate_of_the_file() {
    let (server, tls) = (serve("issued-without-san"), trusting("issued-without-san"));
    assert_refused(&server, &tls, "not valid for any names");
    assert_refused(&server, &tls, "-addext subjectAltName=DNS:zk1");
}

#[test]
fn chain_without_its_intermediate_is_refused_with_advice() {
    let name = "chain-without-intermediate";
    assert_refused(
        &serve(name),
        &trusting(name),
        "UnknownIssuer; TlsConfig::ca_file must have the authority",
    );
}

#[test]
fn x509_v1_is_refused_with_the_command_that_makes_another_certificate() {
    for name in ["v1", "v1-self-signed"] {
        let command = "(openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=zk1 -addext \
                       subjectAltName=DNS:zk1 -keyout new.key -out new.pem)";
        for tls in [trusting(name), trusting(name).danger_accept_any_server_name()] {
            assert_refused(&serve(name), &tls, "X.509 v1, which has no subjectAltName");
            assert_refused(&serve(name), &tls, command);
        }
        let tls = TlsConfig::new().client_certificate(file(name), file(name));
        let error = tls.load("test").unwrap_err().to_string();
        assert!(error.contains("X.509 v1") && error.contains("openssl req -x509"), "{error}");
    }
}

/// One server of several may have a wrong certificate.
#[test]
fn server_with_a_refused_certificate_beside_a_good_one_ends_nothing() {
    let (good, bad) = (serve("openssl"), serve("keytool"));
    let addresses: [SocketAddr; 2] = [&good, &bad].map(|server| server.address().parse().unwrap());
    let mut options = options_for(&good, &trusting("openssl"), LONG);
    options.names = Arc::new(move |host, _| Ok(vec![addresses[usize::from(host == "zk2")]]));
    for _ in 0..10 {
        let connection = connect_with("zk1:2281,zk2:2281", &options).unwrap();
        assert_eq!(connection.server(), format!("zk1:2281 ({})", addresses[0]));
    }
    // One server cannot be reached, so another attempt may succeed.
    drop(good);
    let unreachable = unused_address().parse().unwrap();
    options.names = Arc::new(move |host, _| Ok(vec![if host == "zk2" { addresses[1] } else { unreachable }]));
    let error_within = |timeout| {
        let options = ConnectionOptions { session_timeout: timeout, ..options.clone() };
        connect_within(timeout, "zk1:2281,zk2:2281", &options).unwrap_err()
    };
    error_in_some_time(Duration::from_millis(500), error_within, |error| {
        let text = error.to_string();
        matches!(error, ConnectError::Unreachable { .. })
            && text.contains("zk1:2281 (Connection refused")
            && text.contains("zk2:2281 (TLS: ")
    });
}
