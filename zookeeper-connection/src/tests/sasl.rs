//! SASL authentication, with a mechanism that the test controls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, never, unbounded};

#[cfg(feature = "kerberos")]
use super::connect_with;
use super::connecting::unused_address;
use super::server::{Client, Seen, Server, accepted, answer, refused};
use super::wait::scaled;
use super::{LONG, begin, deadline, error_in_some_time, eventually, next};
use crate::codec::{Control, Request, encode_sasl_token};
use crate::connection::ConnectionOptions;
use crate::machine::SaslStep;
use crate::sasl::{Exchange, Mechanism, Prepared};
use crate::tests::server::SESSION;
use crate::{ConnectError, ConnectString, Connection, Verbs, ZkError};

/// An exchange that expects one challenge.
struct OneRound;

impl Exchange for OneRound {
    fn step(&mut self, token: &[u8]) -> SaslStep {
        assert_eq!(token, b"challenge");
        SaslStep::LastToken(b"last".to_vec())
    }
}

fn prepared() -> Prepared {
    Prepared { exchange: Box::new(OneRound), first_token: b"first".to_vec() }
}

/// The options of a connection that authenticates with a mechanism of the test.
struct Authenticating {
    options: ConnectionOptions,
    mechanism: Mechanism,
}

fn with_mechanism(
    session_timeout: Duration,
    prepare: impl Fn(&str) -> Result<Prepared, String> + Send + Sync + 'static,
) -> Authenticating {
    Authenticating {
        options: ConnectionOptions::new(session_timeout),
        mechanism: Mechanism::with_tickets(prepare),
    }
}

fn authenticate(servers: &str, by: &Authenticating) -> Arc<Connection> {
    authenticate_within(deadline(), servers, by).unwrap()
}

/// Returns the error of an attempt to connect within the session timeout.
fn authenticate_error(servers: &str, by: &Authenticating) -> ConnectError {
    authenticate_within(by.options.session_timeout, servers, by).unwrap_err()
}

fn authenticate_within(
    limit: Duration,
    servers: &str,
    by: &Authenticating,
) -> Result<Arc<Connection>, ConnectError> {
    begin();
    let Authenticating { options, mechanism } = by;
    let deadline = Instant::now().checked_add(limit);
    let servers = ConnectString::parse(servers)?;
    Connection::connect_by(Some(mechanism.clone()), &servers, options, deadline, &never())
}

/// Reads a token, and answers with another one.
fn exchange(client: &mut Client, expected: &[u8], token: Option<&[u8]>) -> Option<()> {
    let frame = client.read()?;
    let (xid, request) = Request::decode(&frame).unwrap();
    assert_eq!(request, Request::Control(Control::Sasl { token: expected.into() }));
    let mut reply = Vec::new();
    encode_sasl_token(xid, token, &mut reply);
    client.write(&reply);
    Some(())
}

/// Serves a session that authenticates in one round.
fn serve(client: &mut Client) -> Option<()> {
    let request = client.read_connect()?;
    client.write(&accepted(request.timeout_ms, SESSION));
    exchange(client, b"first", Some(b"challenge"))?;
    exchange(client, b"last", None)?;
    if request.session_id == 0 {
        client.answer_first_ping()?;
    }
    client.serve_accepted(|xid, request| (answer(xid, request), true));
    Some(())
}

fn server() -> Server {
    Server::with(|mut client| _ = serve(&mut client))
}

#[test]
fn session_authenticates_on_every_connection() {
    let server = server();
    let by = with_mechanism(LONG, |_| Ok(prepared()));
    let connection = authenticate(&server.address(), &by);
    assert_eq!(connection.max_buffer, by.options.max_buffer().with_unknown_identity());
    for _ in 0..3 {
        assert!(connection.exists("/a", false).is_ok());
        server.disconnect();
        eventually("the loss is noticed", || connection.exists("/a", false).is_ok());
    }
}

/// A connect request would renew the session, and thereby keep locks that a client without a ticket may no longer own.
#[test]
fn client_without_a_ticket_connects_to_no_server() {
    let server = server();
    let error = |timeout| {
        let options = with_mechanism(timeout, |_| Err("no ticket, on purpose".to_owned()));
        authenticate_error(&server.address(), &options)
    };
    let is_expected = |error: &ConnectError| error.to_string().contains("(no ticket, on purpose)");
    let error = error_in_some_time(Duration::from_millis(500), error, is_expected);
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[test]
fn client_whose_ticket_comes_later_connects_then() {
    let server = server();
    let attempts = AtomicUsize::new(0);
    let options = with_mechanism(LONG, move |_| match attempts.fetch_add(1, Ordering::SeqCst) {
        0..3 => Err("not yet".to_owned()),
        3 => panic!("on purpose"),
        _ => Ok(prepared()),
    });
    assert!(authenticate(&server.address(), &options).exists("/a", false).is_ok());
}

#[test]
fn ticket_that_never_comes_blocks_two_threads_at_most_and_no_other_server() {
    let good = server();
    let address: SocketAddr = good.address().parse().unwrap();
    let (hold, held) = bounded::<()>(0);
    let stuck = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&stuck);
    let mut options = with_mechanism(scaled(Duration::from_secs(5)), move |host| {
        if host == "stuck" {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = held.recv();
            return Err("too late".to_owned());
        }
        Ok(prepared())
    });
    options.options.names = Arc::new(move |_, _| Ok(vec![address]));
    let connection = authenticate("stuck,good", &options);
    for _ in 0..6 {
        assert!(connection.server().starts_with("good"), "{}", connection.server());
        good.disconnect();
        eventually("a server is connected again", || connection.exists("/a", false).is_ok());
    }
    let stuck = stuck.load(Ordering::SeqCst);
    assert!((1..=2).contains(&stuck), "one call to authenticate, and perhaps one in advance, but {stuck}");
    drop(hold);
}

/// Otherwise, every round would wait for the ticket, each longer than the last.
#[test]
fn only_the_first_round_waits_for_a_ticket_that_never_comes() {
    let (hold, held) = bounded::<()>(0);
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rounds);
    let options = with_mechanism(scaled(Duration::from_secs(4)), move |host| {
        if host == "127.0.0.1" {
            let _ = held.recv();
        }
        counted.fetch_add(1, Ordering::SeqCst);
        Err("no ticket, on purpose".to_owned())
    });
    let error = authenticate_error("127.0.0.1:1,127.0.0.2:1", &options).to_string();
    assert!(error.contains("127.0.0.1:1 (no ticket for the server in time"), "{error}");
    assert!(error.contains("127.0.0.2:1 (no ticket, on purpose)"), "{error}");
    // About 25. If every round waited, there would be four.
    assert!(rounds.load(Ordering::SeqCst) >= 6, "{rounds:?}");
    drop(hold);
}

/// This is what an application that replaces lost sessions does.
#[test]
fn successive_connections_share_one_thread_for_a_ticket_that_never_comes() {
    let server = server();
    let (hold, held) = bounded::<()>(0);
    let stuck = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&stuck);
    let options = with_mechanism(scaled(Duration::from_millis(300)), move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        let _ = held.recv();
        Ok(prepared())
    });
    for _ in 0..4 {
        authenticate_error(&server.address(), &options);
    }
    eventually("the thread begins", || stuck.load(Ordering::SeqCst) > 0);
    assert_eq!(stuck.load(Ordering::SeqCst), 1);
    drop(hold);
    let later = Authenticating { options: ConnectionOptions::new(LONG), ..options };
    assert!(authenticate(&server.address(), &later).exists("/a", false).is_ok());
}

#[test]
fn attempt_whose_ticket_does_not_come_says_so() {
    let server = server();
    let (hold, held) = bounded::<()>(0);
    let Authenticating { mechanism, .. } = with_mechanism(LONG, move |_| {
        let _ = held.recv();
        Err("too late".to_owned())
    });
    let error = |timeout| {
        let options = ConnectionOptions::new(timeout);
        authenticate_error(&server.address(), &Authenticating { options, mechanism: mechanism.clone() })
    };
    error_in_some_time(Duration::from_millis(800), error, |error| {
        error.to_string().contains("no ticket for the server in time")
    });
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
    drop(hold);
}

#[test]
fn tickets_for_all_servers_are_fetched_after_a_contact() {
    let servers = [server(), server()];
    let addresses = servers.each_ref().map(|server| server.address().parse::<SocketAddr>().unwrap());
    let (fetched, tickets) = unbounded();
    let mut options = with_mechanism(scaled(Duration::from_secs(20)), move |host| {
        let _ = fetched.send(host.to_owned());
        Ok(prepared())
    });
    let [first, second] = addresses;
    options.options.names = Arc::new(move |host, _| Ok(vec![if host == "first" { first } else { second }]));
    let connection = authenticate("first,second", &options);
    let mut missing = vec!["first", "second"];
    while !missing.is_empty() {
        let ticket = next(&tickets);
        missing.retain(|host| *host != ticket);
    }
    let unused = if connection.server().starts_with("first") { &servers[1] } else { &servers[0] };
    assert!(unused.seen.try_iter().next().is_none(), "the client does not connect to it");
}

#[test]
fn server_without_sasl_is_never_used() {
    let without = Server::with(|mut client| {
        let Some(request) = client.read_connect() else { return };
        client.write(&accepted(request.timeout_ms, SESSION));
        let _ = exchange(&mut client, b"first", None);
        assert!(client.read().is_none(), "nothing is sent without the client's identity");
    });
    let error =
        |timeout| authenticate_error(&without.address(), &with_mechanism(timeout, |_| Ok(prepared())));
    error_in_some_time(Duration::from_millis(500), error, |error| {
        error.to_string().contains("does not use SASL")
    });
    let with = server();
    let servers = format!("{},{}", without.address(), with.address());
    let options = with_mechanism(LONG, |_| Ok(prepared()));
    assert_eq!(authenticate(&servers, &options).server(), with.address());
}

/// Starts a server that accepts sessions, and refuses their first token.
fn refusing() -> Server {
    Server::with(|mut client| {
        let Some(request) = client.read_connect() else { return };
        client.write(&accepted(request.timeout_ms, SESSION));
        if let Some(frame) = client.read() {
            let (xid, _) = Request::decode(&frame).unwrap();
            client.write(&refused(xid, ZkError::AuthFailed));
        }
    })
}

#[test]
fn refusal_is_the_error_at_the_deadline_when_another_server_cannot_be_reached() {
    let list = format!("{},{}", refusing().address(), unused_address());
    let error = |timeout| authenticate_error(&list, &with_mechanism(timeout, |_| Ok(prepared())));
    error_in_some_time(Duration::from_secs(1), error, |error| {
        matches!(error, ConnectError::CredentialsRefused { .. })
    });
}

#[test]
fn session_that_all_servers_refuse_fails_at_once() {
    let servers = [refusing(), refusing()];
    let list = format!("{},{}", servers[0].address(), servers[1].address());
    let error = authenticate_error(&list, &with_mechanism(LONG, |_| Ok(prepared())));
    assert!(matches!(error, ConnectError::CredentialsRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("refuse the SASL authentication"), "{error}");
    for server in servers {
        let connected = server.seen.try_iter().filter(|seen| matches!(seen, Seen::Connected(_))).count();
        // Once or twice, but after a delay, the servers are counted anew.
        assert!((1..=10).contains(&connected), "asked {connected} times");
    }
}

#[cfg(feature = "kerberos")]
#[test]
fn two_mechanisms_at_once_are_refused() {
    let mut options = ConnectionOptions::new(LONG);
    options.sasl_digest = Some(crate::SaslDigest { user: "app".to_owned(), password: "secret".to_owned() });
    options.kerberos = Some(crate::KerberosConfig::new());
    let error = connect_with("127.0.0.1:1", &options).unwrap_err();
    assert!(matches!(error, ConnectError::InvalidSasl { .. }), "{error:?}");
}
