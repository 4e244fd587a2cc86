//! Encrypted connections.

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::server::Server;
use super::*;
use crate::TlsConfig;
use crate::Verbs;
use crate::tests::certificates::{Authority, Files, Identity};
use crate::tests::{deadline, eventually, in_background, logged_down_to, next, wait::scaled};

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.issuer.der().clone()).unwrap();
    Arc::new(roots)
}

impl Files {
    fn trusting(&self, authority: &Authority) -> TlsConfig {
        TlsConfig::new().ca_file(self.write_authority(authority))
    }

    fn with_identity(&self, config: TlsConfig, identity: &Identity) -> TlsConfig {
        let (certificate, key) = self.write_identity(identity);
        config.client_certificate(certificate, key)
    }
}

/// A server with this identity, which asks clients for a certificate of the authority, if any.
fn serve(identity: &Identity, clients: Option<&Authority>) -> Server {
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => config.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap(),
        ),
    };
    let key = PrivateKeyDer::try_from(identity.key.serialize_der()).unwrap();
    let config = Arc::new(config.with_single_cert(vec![identity.certificate.der().clone()], key).unwrap());
    Server::with(move |client| {
        let encrypted = ServerConnection::new(Arc::clone(&config)).unwrap();
        client.within(|stream| StreamOwned::new(encrypted, stream)).serve();
    })
}

/// Connects to a server by the name `zk1`.
fn connect_to_zk1(server: &Server, tls: &TlsConfig, session_timeout: Duration) -> Result<Arc<Connection>> {
    let address: SocketAddr = server.address().parse().unwrap();
    let mut options = ConnectionOptions::new(session_timeout);
    options.tls = Some(tls.clone());
    options.names = Arc::new(move |_, _| Ok(vec![address]));
    connect_with("zk1:2281", &options)
}

fn assert_serves(server: &Server, tls: &TlsConfig) -> Arc<Connection> {
    let connection = connect_to_zk1(server, tls, LONG).unwrap();
    assert_eq!(connection.get_data("/a", false).unwrap().0, b"data");
    connection
}

#[track_caller]
fn assert_refused(server: &Server, tls: &TlsConfig, why: &str) {
    let mut timeout = scaled(Duration::from_millis(500));
    loop {
        let error = connect_to_zk1(server, tls, timeout).unwrap_err().to_string();
        if error.contains("zk1:2281 (") && error.contains(why) {
            return;
        }
        // A handshake on a busy machine may take longer than that.
        timeout *= 4;
        assert!(timeout < deadline(), "{why}: {error}");
    }
}

#[test]
fn calls_work_over_tls() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let connection = assert_serves(&server, &files.trusting(&authority));
    let data = vec![1; 1_000_000];
    for _ in 0..5 {
        connection.set_data("/a", &data, None).unwrap();
    }
    // The probe uses TLS too.
    eventually("the probe is answered", || connection.granted().report_delay < Duration::from_secs(10));
    connection.close();
}

#[test]
fn session_survives_an_end_without_an_alert() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let connection = assert_serves(&server, &files.trusting(&authority));
    let events = events_of(&connection);
    server.disconnect();
    assert!(events.iter().any(|event| event == ClientEvent::Disconnected));
    assert!(events.iter().any(|event| is_connected(&event)));
    connection.exists("/a", false).unwrap();
}

#[test]
fn certificate_for_another_name_is_refused_unless_it_is_accepted() {
    let (authority, files) = (Authority::new(), Files::new());
    let trusting = files.trusting(&authority);
    let server = serve(&authority.issue(&["zk2"]), None);
    assert_refused(&server, &trusting, "not valid for name");
    assert_serves(&server, &trusting.clone().server_name("zk2"));
    assert_serves(&server, &trusting.danger_accept_any_server_name());
    let stranger = files.trusting(&Authority::new()).danger_accept_any_server_name();
    assert_refused(&server, &stranger, "UnknownIssuer");
}

#[test]
fn certificate_may_be_for_an_address() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["127.0.0.1"]), None);
    let mut options = ConnectionOptions::new(LONG);
    options.tls = Some(files.trusting(&authority));
    connect_with(&server.address(), &options).unwrap();
}

#[test]
fn certificate_of_an_unknown_authority_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    assert_refused(&server, &files.trusting(&Authority::new()), "UnknownIssuer");
}

#[test]
fn expired_certificate_is_refused() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue_expired(&["zk1"]), None);
    assert_refused(&server, &files.trusting(&authority), "expired");
    assert_refused(&server, &files.trusting(&authority).danger_accept_any_server_name(), "expired");
}

#[test]
fn server_that_requires_a_client_certificate_gets_it() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), Some(&authority));
    let trusting = files.trusting(&authority);
    assert_refused(&server, &trusting, "CertificateRequired");
    assert_serves(&server, &files.with_identity(trusting.clone(), &authority.issue(&["client"])));
    let stranger = Authority::new().issue(&["client"]);
    assert_refused(&server, &files.with_identity(trusting, &stranger), "received fatal alert");
}

#[test]
fn renewed_files_are_read_at_the_next_connection() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), Some(&authority));
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let connection = assert_serves(&server, &tls);
    // Not usable: the former one counts.
    files.write("client.pem", "nothing");
    server.disconnect();
    eventually("it is connected again", || connection.exists("/a", false).is_ok());
    // Not accepted by the server: there is no contact until the next is written.
    files.write_identity(&Authority::new().issue(&["client of another authority"]));
    let events = events_of(&connection);
    server.disconnect();
    assert!(events.iter().any(|event| event == ClientEvent::Disconnected));
    files.write_identity(&authority.issue(&["a renewed client"]));
    assert!(events.iter().any(|event| is_connected(&event)));
}

#[test]
fn other_protocol_on_the_port_is_named_in_the_error() {
    let (authority, files) = (Authority::new(), Files::new());
    let tls = files.trusting(&authority);
    assert_refused(&Server::with(drop), &tls, "closed the connection during the TLS handshake");
    let talking = Server::with(|mut client| client.stream.write_all(&[0; 100]).unwrap());
    assert_refused(&talking, &tls, "TLS: ");
    let encrypted = serve(&authority.issue(&["zk1"]), None);
    let error = connect_error(&encrypted.address(), scaled(Duration::from_millis(500)));
    assert!(error.contains("closed the connection") || error.contains("no ZooKeeper server"), "{error}");
}

#[test]
fn unusable_file_is_an_invalid_argument_that_names_it() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = authority.issue(&["client"]);
    let certificate = files.write("client.pem", &identity.certificate.pem());
    let key = files.write("client.key", &identity.key.serialize_pem());
    let other_key = files.write("other.key", &authority.issue(&["other"]).key.serialize_pem());
    let empty = files.write("empty.pem", "");
    let broken = files.write("broken.pem", "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n");
    let missing = files.dir.path().join("missing.pem");
    let with_ca = |file: &PathBuf| TlsConfig::new().ca_file(file);
    let with_client = |certificate: &PathBuf, key: &PathBuf| {
        files.trusting(&authority).client_certificate(certificate, key)
    };
    let cases = [
        (with_ca(&missing), "missing.pem", "No such file"),
        (with_ca(&empty), "empty.pem", "no certificate in PEM format"),
        (with_ca(&broken), "broken.pem", "invalid peer certificate"),
        (with_client(&missing, &key), "missing.pem", "No such file"),
        (with_client(&certificate, &missing), "missing.pem", "No such file"),
        (with_client(&certificate, &empty), "empty.pem", "no private key in PEM format"),
        (with_client(&certificate, &other_key), "other.key", "cannot be used together"),
        (files.trusting(&authority).server_name("not a name"), "not a name", "not a valid server name"),
    ];
    for (tls, file, rule) in cases {
        let mut options = ConnectionOptions::new(LONG);
        options.tls = Some(tls);
        let error = connect_with("zk1", &options).unwrap_err();
        assert!(matches!(error, ConnectError::InvalidTls { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(file) && message.contains(rule), "{file}, {rule}: {message}");
    }
}

#[test]
fn debug_output_has_no_key() {
    let (authority, files) = (Authority::new(), Files::new());
    let identity = authority.issue(&["client"]);
    let tls = files.with_identity(files.trusting(&authority), &identity);
    let text = format!("{tls:?} {:?}", tls.load("test").unwrap());
    let key = identity.key.serialize_der();
    let printed = key.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    assert!(!text.contains(&printed[..40]) && !text.contains("PRIVATE KEY"), "{text}");
}

#[cfg(unix)]
#[test]
fn file_that_changes_while_it_is_read_is_read_again() {
    let (authority, files) = (Authority::new(), Files::new());
    // A pipe, whose reader waits for a writer. Each write changes its time.
    let pipe = files.dir.path().join("ca.pem");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    File::options().read(true).write(true).open(&pipe).unwrap().set_modified(long_ago).unwrap();
    let write = || {
        let (pipe, certificate) = (pipe.clone(), authority.issuer.pem());
        in_background(move || fs::write(pipe, certificate))
    };
    let first = write();
    let mut client = TlsConfig::new().ca_file(&pipe).load("test").unwrap();
    next(&first).unwrap();
    let second = write();
    // Another thread reads it.
    client.target("zk1").unwrap();
    next(&second).unwrap();
}

#[cfg(unix)]
#[test]
fn file_that_hangs_delays_no_reconnect() {
    let (authority, files) = (Authority::new(), Files::new());
    let server = serve(&authority.issue(&["zk1"]), None);
    let tls = files.trusting(&authority);
    let connection = assert_serves(&server, &tls);
    // A pipe, whose reader waits for a writer.
    let ca = files.dir.path().join("ca.pem");
    fs::remove_file(&ca).unwrap();
    assert!(Command::new("mkfifo").arg(&ca).status().unwrap().success());
    let events = events_of(&connection);
    for _ in 0..2 {
        server.disconnect();
        assert!(events.iter().any(|event| event == ClientEvent::Disconnected));
        let is_back = (0..).map(|_| next(&events)).any(|event| matches!(event, ClientEvent::Connected(_)));
        assert!(is_back);
    }
    // Ends the other thread.
    fs::write(&ca, authority.issuer.pem()).unwrap();
}

#[test]
fn files_that_cannot_be_used_again_are_named_once_for_each_cause() {
    let (authority, files) = (Authority::new(), Files::new());
    let tls = files.with_identity(files.trusting(&authority), &authority.issue(&["client"]));
    let mut loaded = tls.load("test").unwrap();
    let mut look = || logged_down_to(::log::Level::Warn, || loaded.look_now());
    assert!(look().is_empty());
    files.write("client.pem", "nothing");
    let lines = look();
    assert!(lines.len() == 1 && lines[0].contains("client.pem"), "{lines:?}");
    assert!(look().is_empty());
    fs::remove_file(files.dir.path().join("ca.pem")).unwrap();
    let lines = look();
    assert!(lines.len() == 1 && lines[0].contains("ca.pem"), "{lines:?}");
    files.write_authority(&authority);
    files.write_identity(&authority.issue(&["a renewed client"]));
    assert!(look().is_empty());
    files.write("client.key", "nothing");
    assert_eq!(look().len(), 1);
}
