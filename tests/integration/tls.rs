//! Tests of TLS on real servers, and of the errors of clients that may not connect.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::TlsConfig;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, Session, SessionState};

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
        assert_eq!(error.reason(), ErrorReason::InvalidTls, "{error:?}");
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
    let time = scaled(Duration::from_secs(4));
    let builder = Session::builder(servers).session_timeout(LONG);
    let builder = match tls {
        Some(tls) => builder.tls(tls.clone()),
        None => builder,
    };
    let begun = Instant::now();
    let error = builder.wait_for_server(time).connect().unwrap_err();
    let elapsed = begun.elapsed();
    assert_eq!(error.reason(), ErrorReason::NoServer, "{case}: {error:?}");
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
    let cases: [(&str, &str, Option<TlsConfig>, &str); 7] = [
        ("no client certificate", &encrypted, Some(fixture.trusting()), "alert"),
        ("a client certificate of another authority", &encrypted, Some(of_stranger.0.clone()), "alert"),
        ("an expired client certificate", &encrypted, Some(expired.0.clone()), "alert"),
        ("another name", &encrypted, Some(fixture.client().server_name("zk.example")), "not valid for name"),
        ("another authority of the server", &encrypted, Some(trusting_stranger), "UnknownIssuer"),
        ("no TLS on the port with TLS", &encrypted, None, "expect TLS"),
        ("TLS on the plain port", &plain, Some(fixture.client()), "during the TLS handshake"),
    ];
    // A valid client can still connect, so the server is not to blame.
    connect(&encrypted, &fixture.client()).close();
    thread::scope(|scope| {
        for (case, servers, tls, cause) in &cases {
            scope.spawn(move || assert_refused(case, servers, tls.as_ref(), cause));
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
