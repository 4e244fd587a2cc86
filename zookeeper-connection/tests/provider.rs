//! Checks that TLS uses the crypto provider that the application has installed for its process.
//!
//! This is a separate binary with one test, because a process can install a provider only once.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::{CipherSuite, ServerConfig, ServerConnection};
use zookeeper_connection::{ConnectString, Connection, ConnectionOptions, TlsConfig};

const DEADLINE: Duration = Duration::from_secs(60);

/// A cipher suite that is not the first choice of `ring`.
const CHOSEN: CipherSuite = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;

type Issuer = CertifiedIssuer<'static, KeyPair>;

/// Starts a server that closes each connection after the handshake. Returns its address, and the cipher suites of the
/// handshakes.
fn serve(issuer: &Issuer) -> (String, Receiver<CipherSuite>) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = listener.local_addr().unwrap().to_string();
    let (sender, suites) = unbounded();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if let Some(suite) = suite_of(stream, &config) {
                let _ = sender.send(suite);
            }
        }
    });
    (address, suites)
}

fn suite_of(mut stream: TcpStream, config: &Arc<ServerConfig>) -> Option<CipherSuite> {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut connection = ServerConnection::new(Arc::clone(config)).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).ok()?;
    }
    connection.negotiated_cipher_suite().map(|suite| suite.suite())
}

/// Returns the cipher suite that a client with this configuration negotiates.
fn suite_with(tls: TlsConfig, issuer: &Issuer) -> CipherSuite {
    let (address, suites) = serve(issuer);
    let mut options = ConnectionOptions::new(Duration::from_secs(10));
    options.tls = Some(tls);
    let servers = ConnectString::parse(&address).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        // Connecting fails, because the server serves no session.
        let deadline = Some(Instant::now() + Duration::from_millis(500));
        assert!(Connection::connect(&servers, &options, deadline).is_err());
        if let Some(suite) = suites.try_iter().last() {
            return suite;
        }
    }
    panic!("no handshake is completed");
}

#[test]
fn provider_of_the_process_is_used_and_ring_without_one() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let files = tempfile::tempdir().unwrap();
    let ca = files.path().join("ca.pem");
    fs::write(&ca, issuer.pem()).unwrap();
    let tls = TlsConfig::new().ca_file(&ca);

    let by_ring = suite_with(tls.clone(), &issuer);
    assert_ne!(by_ring, CHOSEN);
    assert!(CryptoProvider::get_default().is_none(), "the library does not set a provider");

    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == CHOSEN);
    provider.install_default().unwrap();
    for tls in [tls.clone(), tls.danger_accept_any_server_name()] {
        assert_eq!(suite_with(tls, &issuer), CHOSEN);
    }
}
