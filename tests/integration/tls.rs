//! Tests of TLS on real servers, and of the errors of clients that may not connect.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::TlsConfig;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorKind, ErrorReason, Session, SessionState};

use crate::fixtures::{LONG, unique_dir};
use crate::support::certificates::{Authority, Files, Identity};
use crate::support::ensemble::Ensemble;
use crate::support::server::{Server, ServerOptions, ServerTls};
use crate::support::wait::{deadline, eventually, scaled};

/// The authority that issues the certificates of both sides, and a directory for the files.
struct Fixture {
    authority: Authority,
    files: Files,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { authority: Authority::new(), files: Files::new() }
    }

    fn options(&self, identity: &Identity) -> ServerOptions {
        let identity = self.files.write_server_identity(identity);
        let authorities = self.files.write_authority(&self.authority);
        ServerOptions { tls: Some(ServerTls { identity, authorities }), ..ServerOptions::default() }
    }

    /// Returns the options of a server with a valid certificate.
    fn valid(&self) -> ServerOptions {
        self.options(&self.authority.issue(&["localhost"]))
    }

    /// Returns a client configuration that trusts the servers and has no certificate.
    fn trusting(&self) -> TlsConfig {
        TlsConfig::new().ca_file(self.files.write_authority(&self.authority))
    }

    /// Returns a client configuration with a valid certificate.
    fn client(&self) -> TlsConfig {
        with_certificate(self.trusting(), &self.files, &self.authority.issue(&["client"]))
    }
}

fn with_certificate(tls: TlsConfig, files: &Files, identity: &Identity) -> TlsConfig {
    let (certificate, key) = files.write_identity(identity);
    tls.client_certificate(certificate, key)
}

fn connect(servers: &str, tls: &TlsConfig) -> Session {
    Session::builder(servers).session_timeout(LONG).tls(tls.clone()).connect().unwrap()
}

#[test]
fn lock_over_tls_survives_a_restart_of_the_server() {
    let fixture = Fixture::new();
    let server = Server::with(fixture.valid());
    let session = connect(&server.tls_connect_string(), &fixture.client());
    let lock = BlockingWriteLock::new(&session, &unique_dir("tls")).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let guard = lock.lock().unwrap();
    let states = session.subscribe();
    server.stop();
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Suspended));
    server.restart();
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Connected));
    assert!(guard.is_owner(), "{:?}", guard.loss());
    guard.unlock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn tls_port_is_open_when_start_returns_unless_the_configuration_has_lost_it() {
    let fixture = Fixture::new();
    let server = Server::with(fixture.valid());
    for _ in 0..3 {
        TcpStream::connect(("127.0.0.1", server.tls_port())).unwrap();
        server.kill();
        server.restart();
    }
    server.kill();
    server.reconfigure("secureClientPortAddress=127.0.0.1", "");
    server.reconfigure(&format!("secureClientPort={}", server.tls_port()), "");
    server.restart();
    TcpStream::connect(("127.0.0.1", server.tls_port())).unwrap_err();
}

#[test]
fn client_with_an_encrypted_key_locks_over_tls() {
    let fixture = Fixture::new();
    let server = Server::with(fixture.valid());
    let identity = fixture.authority.issue(&["client"]);
    let (certificate, key) = fixture.files.write_encrypted_identity(&identity, "a-key-password");
    let tls = fixture.trusting().client_certificate(certificate, key);
    let servers = server.tls_connect_string();
    let session = connect(&servers, &tls.clone().key_password("a-key-password"));
    BlockingWriteLock::new(&session, &unique_dir("encrypted-key")).unwrap().lock().unwrap().unlock().unwrap();
    for (tls, rule) in [(tls.clone(), "no password is set"), (tls.key_password("another"), "is wrong")] {
        let error = Session::builder(&servers).tls(tls).connect().unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Permanent, ErrorReason::InvalidTls),
            "{error:?}"
        );
        assert!(error.to_string().contains(rule), "{error}");
    }
}

#[test]
fn lock_over_tls_survives_the_death_of_the_leading_server() {
    let fixture = Fixture::new();
    let ensemble = Ensemble::with(3, &fixture.valid());
    let session = connect(&ensemble.tls_connect_string(), &fixture.client());
    let lock = BlockingWriteLock::new(&session, &unique_dir("tls-ensemble")).unwrap();
    let guard = lock.lock().unwrap();
    let states = session.subscribe();
    ensemble.kill(ensemble.leader());
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Suspended));
    assert_eq!(states.recv_timeout(deadline()), Ok(SessionState::Connected));
    assert!(guard.is_owner(), "{:?}", guard.loss());
    guard.unlock().unwrap();
}

/// Waits until an attempt to connect gets an answer, because the first handshakes of a server are slow.
fn await_first_handshake(servers: &str, tls: &TlsConfig) {
    eventually("the server completes a handshake", || {
        let builder = Session::builder(servers).tls(tls.clone()).wait_for_server(Duration::from_secs(2));
        builder.connect().map_or_else(|error| !error.to_string().contains("no answer"), |_| true)
    });
}

/// Asserts that connecting fails in time, with an error that names the server and the cause.
#[track_caller]
fn assert_refused(case: &str, servers: &str, tls: Option<&TlsConfig>, cause: &str) {
    let expected = (ErrorKind::Permanent, ErrorReason::CertificateRefused);
    assert_refused_with(expected, case, servers, tls, cause);
}

#[track_caller]
fn assert_refused_with(
    expected: (ErrorKind, ErrorReason),
    case: &str,
    servers: &str,
    tls: Option<&TlsConfig>,
    cause: &str,
) {
    let time = scaled(Duration::from_secs(8));
    let builder = Session::builder(servers).session_timeout(LONG);
    let builder = match tls {
        Some(tls) => builder.tls(tls.clone()),
        None => builder,
    };
    let begun = Instant::now();
    let error = builder.wait_for_server(time).connect().unwrap_err();
    let elapsed = begun.elapsed();
    assert_eq!((error.kind(), error.reason()), expected, "{case}: {error:?}");
    let message = error.to_string();
    println!("{case}: {message}");
    assert!(message.contains(&format!("{servers} (")) && message.contains(cause), "{case}: {message}");
    assert!(elapsed < time + deadline() / 6, "{case}: {elapsed:?}");
}

#[test]
fn client_that_may_not_connect_learns_the_cause_in_time() {
    let fixture = Fixture::new();
    let server = Server::with(fixture.valid());
    let (encrypted, plain) = (server.tls_connect_string(), server.connect_string());
    await_first_handshake(&encrypted, &fixture.client());
    let stranger = Authority::new();
    let of_stranger = (Files::new(), stranger.issue(&["client"]));
    let expired = (Files::new(), fixture.authority.issue_expired(&["client"]));
    let [of_stranger, expired] = [of_stranger, expired]
        .map(|(files, identity)| (with_certificate(fixture.trusting(), &files, &identity), files));
    let strange = Files::new();
    let trusting_stranger = TlsConfig::new().ca_file(strange.write_authority(&stranger));
    let wanted = "wants a certificate of this client: set one (TlsConfig::client_certificate)";
    let refused = "refuses this client's certificate (TlsConfig::client_certificate)";
    let certificates: [(&str, TlsConfig, &str); 5] = [
        ("no client certificate", fixture.trusting(), wanted),
        ("a client certificate of another authority", of_stranger.0.clone(), refused),
        ("an expired client certificate", expired.0.clone(), refused),
        ("another name", fixture.client().server_name("zk.example"), "not valid for name"),
        ("another authority of the server", trusting_stranger, "UnknownIssuer"),
    ];
    let ports: [(&str, &str, Option<TlsConfig>, &str); 2] = [
        ("no TLS on the port with TLS", &encrypted, None, "expect TLS"),
        ("TLS on the plain port", &plain, Some(fixture.client()), "during the TLS handshake"),
    ];
    // A valid client can still connect, so the server is not to blame.
    connect(&encrypted, &fixture.client()).close();
    thread::scope(|scope| {
        for (case, tls, cause) in &certificates {
            let encrypted = &encrypted;
            // The server closes the connection right after its alert, so the outcome could differ from time to time.
            scope.spawn(move || (0..10).for_each(|_| assert_refused(case, encrypted, Some(tls), cause)));
        }
        for (case, servers, tls, cause) in &ports {
            let tls = tls.as_ref();
            let expected = (ErrorKind::Retry, ErrorReason::NoServer);
            scope.spawn(move || assert_refused_with(expected, case, servers, tls, cause));
        }
    });
}

#[test]
fn expired_certificate_of_the_server_is_named_in_the_error() {
    let fixture = Fixture::new();
    let server = Server::with(fixture.options(&fixture.authority.issue_expired(&["localhost"])));
    let servers = server.tls_connect_string();
    await_first_handshake(&servers, &fixture.client());
    assert_refused("an expired certificate", &servers, Some(&fixture.client()), "expired");
    let any_name = fixture.client().danger_accept_any_server_name();
    assert_refused("an expired certificate, any name", &servers, Some(&any_name), "expired");
}

/// Runs a script of bash in a directory.
#[track_caller]
fn run(script: &str, dir: &Path) {
    let output = Command::new("bash").args(["-euc", script]).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Joins a key and a certificate in a directory. Returns the options of a server that has both, and that trusts the
/// clients whose certificate, or whose authority, is in a file there.
fn server_options(dir: &Path, key: &str, certificate: &str, clients: &str) -> ServerOptions {
    let identity = dir.join("identity.pem");
    let [key, certificate] = [key, certificate].map(|file| fs::read_to_string(dir.join(file)).unwrap());
    fs::write(&identity, key + &certificate).unwrap();
    ServerOptions {
        tls: Some(ServerTls { identity, authorities: dir.join(clients) }),
        ..ServerOptions::default()
    }
}

fn assert_locks(options: ServerOptions, tls: &TlsConfig) {
    let server = Server::with(options);
    let session = connect(&server.tls_connect_string(), tls);
    BlockingWriteLock::new(&session, &unique_dir("made")).unwrap().lock().unwrap().unlock().unwrap();
}

/// Returns the commands in the section about TLS of the page for operators, for a server on this machine.
fn documented_commands() -> Vec<String> {
    let page = include_str!("../../docs/operations.md").replace("zk1.example.com", "localhost");
    let (_, section) = page.split_once("\n### TLS\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let blocks = section.split("```sh\n").skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}

#[test]
fn certificates_made_by_the_documented_commands_are_accepted() {
    let [self_signed, keystore, authority] = documented_commands().try_into().unwrap();
    // As the guide of ZooKeeper makes it: the name is only in the CN.
    let guide = keystore.replace("-ext SAN=dns:localhost", "");
    assert_ne!(keystore, guide);
    let key_of_store = "openssl pkcs12 -in zk1.jks -passin pass:password -nodes -nocerts -out zk1.key";
    let with_client = |keystore| [&self_signed, keystore, key_of_store].join("\n");
    for (script, servers, clients) in [
        (self_signed.clone(), "zk1.pem", "client.pem"),
        (with_client(&keystore), "zk1.pem", "client.pem"),
        (with_client(&guide), "zk1.pem", "client.pem"),
        (authority, "ca.pem", "ca.pem"),
    ] {
        let files = Files::new();
        let dir = files.dir.path();
        run(&script, dir);
        let tls = TlsConfig::new()
            .ca_file(dir.join(servers))
            .client_certificate(dir.join("client.pem"), dir.join("client.key"));
        assert_locks(server_options(dir, "zk1.key", "zk1.pem", clients), &tls);
    }
}

#[test]
fn command_in_the_message_about_x509_v1_makes_a_certificate_that_is_accepted() {
    let files = Files::new();
    let dir = files.dir.path();
    let v1 = "openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout zk1.key -out zk1.csr
        openssl x509 -req -in zk1.csr -signkey zk1.key -out zk1.pem";
    run(&format!("{}\n{v1}", documented_commands()[0]), dir);
    let tls = TlsConfig::new().client_certificate(dir.join("client.pem"), dir.join("client.key"));
    let server = Server::with(server_options(dir, "zk1.key", "zk1.pem", "client.pem"));
    let servers = server.tls_connect_string();
    let trusting = |file| tls.clone().ca_file(dir.join(file));
    await_first_handshake(&servers, &trusting("zk1.pem"));
    let error = Session::builder(&servers).tls(trusting("zk1.pem")).connect().unwrap_err().to_string();
    assert!(error.contains("X.509 v1"), "{error}");
    let (_, command) = error.split_once("make another one (").unwrap();
    run(command.split_once(')').unwrap().0, dir);
    assert_locks(server_options(dir, "new.key", "new.pem", "client.pem"), &trusting("new.pem"));
}
