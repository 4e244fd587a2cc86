//! Connecting to good and bad servers.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use super::ending::await_end;
use super::server::{Client, SESSION, Seen, Server, accepted, answer, refused};
use super::*;
use crate::Credential;
use crate::Names;
use crate::Verbs;
use crate::codec::{AUTHENTICATION_REQUIRED, ConnectAnswer, Control, ReplyHeader, Request};
use crate::error::ZkError;
use crate::io::resolver::NameService;
use crate::tests::{deadline, eventually, next, wait::scaled};

/// Returns the session timeout for tests that connect to bad servers.
fn short() -> Duration {
    scaled(Duration::from_millis(800))
}

/// Returns an address on which nobody listens: that of the client's end of a connection. A port that was merely free
/// might become that of another test's server.
pub(super) fn unused_address() -> String {
    static ENDS: LazyLock<[TcpStream; 2]> = LazyLock::new(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [client, listener.accept().unwrap().0]
    });
    ENDS[0].local_addr().unwrap().to_string()
}

/// Returns an address on which connections succeed but are never accepted.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn names(resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static) -> NameService {
    Arc::new(move |host, _port| resolve(host))
}

#[test]
fn connecting_returns_an_established_session() {
    let server = Server::start();
    let connection = connect(&server.address());
    assert_eq!(connection.session_id(), SESSION);
    assert_eq!(connection.server(), server.address());
    assert_eq!(connection.granted().session_timeout, LONG);
    assert!(matches!(next(&server.seen), Seen::Connected(request) if request.session_id == 0));
    assert_eq!(connection.get_data("/a", false).unwrap().0, b"data");
}

#[test]
fn error_has_the_outcome_of_every_server() {
    let closing = Server::with(drop);
    let garbage = Server::with(|mut client| client.write(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    let refusing = Server::with(|mut client| {
        client.read_connect();
        let mut frame = Vec::new();
        ConnectAnswer::ReadOnlyServer.encode(&mut frame);
        client.write(&frame);
        while client.read().is_some() {}
    });
    let half = Server::with(|mut client| {
        client.write(&accepted(10_000, SESSION)[..20]);
        while client.read().is_some() {}
    });
    let (_silent, silent) = silent_server();
    let unused = unused_address();
    let servers = [
        (closing.address(), "the server closed the connection; it may not be serving, may expect TLS, or"),
        (garbage.address(), "it refused the connection, or is not a ZooKeeper server"),
        (refusing.address(), "it refused the connection, or is not a ZooKeeper server"),
        (half.address(), "no answer"),
        (silent, "no answer"),
        (unused, "Connection refused"),
    ];
    let list: Vec<_> = servers.iter().map(|(address, _)| address.as_str()).collect();
    let error = |timeout| connect_error(&list.join(","), &ConnectionOptions::new(timeout));
    let outcomes = servers.each_ref().map(|(address, outcome)| format!("{address} ({outcome}"));
    error_in_some_time(Duration::from_millis(2400), error, |error| {
        outcomes.iter().all(|outcome| error.contains(outcome))
    });
}

#[test]
fn connecting_takes_no_longer_than_the_session_timeout() {
    let (_silent, silent) = silent_server();
    for servers in [silent, unused_address()] {
        let begun = Instant::now();
        let error = connect_error(&servers, &ConnectionOptions::new(short()));
        assert!(error.contains(&servers), "{error}");
        assert!(begun.elapsed() >= short());
        assert!(begun.elapsed() < short() + deadline() / 10);
    }
}

#[test]
fn cancelled_connecting_ends_at_once() {
    begin();
    let (listener, address) = silent_server();
    let servers = ConnectString::parse(&address).unwrap();
    let (cancel, cancelled) = bounded(0);
    let outcome = in_background(move || {
        Connection::connect_unless(&servers, &ConnectionOptions::new(LONG), None, &cancelled).map(drop)
    });
    let _accepted = listener.accept().unwrap();
    drop(cancel);
    assert!(matches!(next(&outcome), Err(ConnectError::Cancelled { servers }) if servers == address));
}

#[test]
fn one_good_server_is_enough() {
    let bad = Server::with(drop);
    let (_silent, silent) = silent_server();
    let good = Server::start();
    let servers = format!("{},{},{silent},{}", unused_address(), bad.address(), good.address());
    for _ in 0..5 {
        let connection = connect_with(&servers, &ConnectionOptions::new(4 * short())).unwrap();
        assert_eq!(connection.server(), good.address());
        connection.close();
    }
}

#[test]
fn answer_may_come_byte_by_byte() {
    let server = Server::with(|mut client| {
        let Some(request) = client.read_connect() else { return };
        for byte in accepted(request.timeout_ms, SESSION) {
            client.write(&[byte]);
            thread::yield_now();
        }
        while let Some(frame) = client.read() {
            let (xid, request) = Request::decode(&frame).unwrap();
            answer(xid, &request).iter().for_each(|byte| client.write(&[*byte]));
        }
    });
    let connection = connect(&server.address());
    assert_eq!(connection.get_children("/a", false).unwrap(), Names::from_iter(["child of /a"]));
}

#[test]
fn credentials_are_sent_first_and_refused_ones_are_an_error() {
    let secret = || Credential { scheme: "digest".to_owned(), auth: b"user:secret".to_vec() };
    let mut options = ConnectionOptions::new(LONG);
    options.credentials = vec![secret(), secret()];
    let server = Server::start();
    let connection = connect_with(&server.address(), &options).unwrap();
    connection.exists("/a", false).unwrap();
    next(&server.seen);
    let seen: Vec<_> = (0..3).map(|_| next(&server.seen)).collect();
    let expected = ["Auth", "Auth", "Exists(\"/a\")"].map(|request| Seen::Request(request.to_owned()));
    assert_eq!(seen, expected);

    let refusing = Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            Request::Control(Control::Auth { .. }) => refused(xid, ZkError::AuthFailed),
            request => answer(xid, request),
        });
    });
    let error = connect_with(&refusing.address(), &options).unwrap_err();
    assert!(matches!(error, ConnectError::CredentialsRefused { .. }), "{error}");
    assert!(error.to_string().contains(&refusing.address()), "{error}");
    for text in [format!("{options:?}"), format!("{connection:?}"), error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("secret"), "{text}");
    }
}

#[test]
fn name_with_several_addresses_is_tried_at_each() {
    let good = Server::start();
    let addresses: Vec<SocketAddr> =
        [unused_address(), good.address()].iter().map(|address| address.parse().unwrap()).collect();
    let mut options = ConnectionOptions::new(LONG);
    options.names = names(move |_| Ok(addresses.clone()));
    for _ in 0..5 {
        let connection = connect_with("zk:2181", &options).unwrap();
        assert_eq!(connection.server(), format!("zk:2181 ({})", good.address()));
    }
}

#[test]
fn name_service_that_hangs_or_fails_for_one_name_stops_no_other() {
    let good = Server::start();
    let address: SocketAddr = good.address().parse().unwrap();
    let (hold, held) = crossbeam_channel::bounded::<()>(0);
    let mut options = ConnectionOptions::new(LONG);
    options.names = names(move |host| match host {
        "stuck" => {
            let _ = held.recv();
            Err(io::Error::other("too late"))
        }
        "bad" => Err(io::Error::other("no such name")),
        "broken" => panic!("on purpose"),
        _ => Ok(vec![address]),
    });
    let connection = connect_with("stuck,bad,broken,good", &options).unwrap();
    assert!(connection.exists("/a", false).is_ok());
    let outcomes = ["stuck:2181 (its name was not", "bad:2181 (no such name)", "broken:2181 (on purpose)"];
    let error = |session_timeout| {
        connect_error("stuck,bad,broken", &ConnectionOptions { session_timeout, ..options.clone() })
    };
    error_in_some_time(Duration::from_millis(800), error, |error| {
        outcomes.iter().all(|outcome| error.contains(outcome))
    });
    drop(hold);
}

/// An attempt without an address fails at once. If it ended only when its time had passed, that time would double with
/// each attempt.
#[test]
fn name_without_an_address_is_soon_looked_up_again() {
    let good = Server::start();
    let address: SocketAddr = good.address().parse().unwrap();
    let lookups = AtomicUsize::new(0);
    let mut options = ConnectionOptions::new(LONG);
    options.names = names(move |_| match lookups.fetch_add(1, Ordering::SeqCst) {
        0 | 2 => Ok(Vec::new()),
        1 | 3 => Err(io::Error::other("no such name")),
        _ => Ok(vec![address]),
    });
    let begun = Instant::now();
    connect_with("zk", &options).unwrap();
    assert!(begun.elapsed() < deadline() / 10);
}

#[test]
fn server_that_accepts_and_closes_is_not_asked_without_a_pause() {
    let closing = Server::with(drop);
    let begun = Instant::now();
    connect_error(&closing.address(), &ConnectionOptions::new(short()));
    let attempts = closing.connections.load(Ordering::SeqCst);
    // Pauses grow from 10 to 20 ms to a twentieth of the session timeout.
    let most = 1 + begun.elapsed().as_millis() / 10;
    assert!(u128::try_from(attempts).unwrap() <= most, "{attempts} of at most {most}");
}

/// Accepts a session, and answers its first request with the authentication-required error, as a server with
/// `enforce.auth.enabled` does.
fn serve_none_without_authentication(client: &mut Client) {
    let Some(request) = client.read_connect() else { return };
    client.write(&accepted(request.timeout_ms, SESSION));
    if let Some(frame) = client.read() {
        let (xid, _) = Request::decode(&frame).unwrap();
        let mut reply = Vec::new();
        ReplyHeader { xid, zxid: 0, error: AUTHENTICATION_REQUIRED }.encode(&mut reply);
        client.write(&reply);
    }
}

#[test]
fn server_that_demands_an_authentication_refuses_a_session_at_once() {
    let demanding = Server::with(|mut client| serve_none_without_authentication(&mut client));
    begin();
    let servers = ConnectString::parse(&demanding.address()).unwrap();
    let error = Connection::connect(&servers, &ConnectionOptions::new(LONG), None).unwrap_err();
    assert!(matches!(error, ConnectError::CredentialsRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("requires SASL authentication"), "{error}");
}

#[test]
fn unauthenticated_session_is_lost_when_servers_begin_to_demand_authentication() {
    let demands = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&demands);
    let server = Server::with(move |mut client| match begun.load(Ordering::SeqCst) {
        true => serve_none_without_authentication(&mut client),
        false => client.serve(),
    });
    let options = ConnectionOptions::new(scaled(Duration::from_millis(1000)));
    let connection = connect_with(&server.address(), &options).unwrap();
    demands.store(true, Ordering::SeqCst);
    server.disconnect();
    eventually("the session is lost", || connection.exists("/a", false) == Err(ZkError::SessionExpired));
    // So the session is not presented again.
    await_end(&connection);
}

#[test]
fn clickhouse_keeper_is_refused_by_name() {
    let keeper = Server::with(|mut client| {
        if client.read_connect().is_some() {
            let mut frame = Vec::new();
            ConnectAnswer::ClickHouseKeeper.encode(&mut frame);
            client.write(&frame);
            while client.read().is_some() {}
        }
    });
    let error = connect_with(&keeper.address(), &ConnectionOptions::new(LONG)).unwrap_err();
    assert!(matches!(error, ConnectError::NotZooKeeper { .. }), "{error:?}");
    assert!(error.to_string().contains("ClickHouse Keeper"), "{error}");
}

/// Returns an address that never answers, like that of a host that is down.
fn black_hole() -> (TcpListener, Vec<mio::net::TcpStream>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    // These connections fill the queue of the listener.
    let streams = (0..3).map(|_| mio::net::TcpStream::connect(address).unwrap()).collect();
    (listener, streams, address.to_string())
}

#[test]
fn healthy_server_is_found_among_ten_addresses_that_never_answer() {
    let holes: Vec<_> = (0..10).map(|_| black_hole()).collect();
    let server = Server::start();
    let mut list: Vec<_> = holes.iter().map(|(_, _, address)| address.clone()).collect();
    list.push(server.address());
    let options = ConnectionOptions::new(scaled(Duration::from_secs(8)));
    let begun = Instant::now();
    let connection = connect_with(&list.join(","), &options).unwrap();
    // Each address has a fortieth of the session timeout before the next one is tried as well.
    assert!(begun.elapsed() < options.session_timeout / 2, "{:?}", begun.elapsed());
    let events = events_of(&connection);
    let mut reconnects = [0; 5].map(|_| {
        let begun = Instant::now();
        server.disconnect();
        eventually("the disconnect is reported", || {
            events.try_iter().any(|event| event == ClientEvent::Disconnected)
        });
        while !is_connected(&next(&events)) {}
        begun.elapsed()
    });
    // The server that served last is the second.
    reconnects.sort_unstable();
    assert!(reconnects[2] < options.session_timeout / 16, "{reconnects:?}");
}
