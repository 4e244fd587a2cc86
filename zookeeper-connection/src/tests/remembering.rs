//! What connections learn of servers, and what becomes of it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::connecting::unused_address;
use super::server::{SESSION, Seen, Server, accepted, answer};
use super::*;
use crate::Verbs;
use crate::codec::{ConnectAnswer, Control, Request};
use crate::error::ZkError;
use crate::memory::Trouble;
use crate::tests::{eventually, next, wait::scaled};

/// Returns a server that answers handshakes and pings, and no call, as one does that is cut off from its leader.
fn server_that_answers_pings_only() -> Server {
    Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            Request::Control(Control::Ping) => answer(xid, request),
            _ => Vec::new(),
        });
    })
}

/// Returns a server that serves the sessions that it has opened itself. A new session is one of these.
fn server_that_knows_its_own_sessions() -> Server {
    Server::with(|mut client| {
        let Some(request) = client.read_connect() else { return };
        if request.session_id != 0 {
            return client.write(&unknown());
        }
        client.write(&accepted(request.timeout_ms, SESSION));
        client.serve_accepted(|xid, request| (answer(xid, request), true));
    })
}

fn unknown() -> Vec<u8> {
    let mut frame = Vec::new();
    ConnectAnswer::Refused.encode(&mut frame);
    frame
}

/// Opens sessions until one answers a call, as a program does that connects. Returns how long that took.
fn time_to_connect(servers: &str, options: &ConnectionOptions) -> Duration {
    let begun = Instant::now();
    loop {
        let connection = connect_with(servers, options).unwrap();
        loop {
            match connection.exists("/a", false) {
                Ok(_) => return begun.elapsed(),
                Err(ZkError::ConnectionLoss) => {}
                Err(error) => break assert_eq!(error, ZkError::SessionExpired),
            }
        }
    }
}

#[test]
fn connecting_beside_a_server_that_answers_pings_only_takes_less_than_a_quarter_of_the_session_timeout() {
    let (silent, healthy) = (server_that_answers_pings_only(), server_that_knows_its_own_sessions());
    let list = format!("{},{}", silent.address(), healthy.address());
    let session_timeout = scaled(Duration::from_millis(2000));
    for _ in 0..24 {
        let time = time_to_connect(&list, &ConnectionOptions::new(session_timeout));
        assert!(time < session_timeout / 4, "{time:?}");
    }
}

#[test]
fn connections_that_are_opened_at_once_learn_from_each_other() {
    let (silent, healthy) = (server_that_answers_pings_only(), server_that_knows_its_own_sessions());
    let list = format!("{},{}", silent.address(), healthy.address());
    let options = ConnectionOptions::new(scaled(Duration::from_millis(2000)));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| time_to_connect(&list, &options));
        }
    });
    let before = silent.connections.load(Ordering::SeqCst);
    assert!(before > 0, "each of the eight avoids the server of the one before");
    for _ in 0..10 {
        time_to_connect(&list, &options);
    }
    assert_eq!(silent.connections.load(Ordering::SeqCst), before);
}

#[test]
fn server_that_opens_sessions_and_answers_nothing_is_named_so_in_the_error() {
    let silent = Server::with(|mut client| {
        if let Some(request) = client.read_connect() {
            client.write(&accepted(request.timeout_ms, SESSION));
            while client.read().is_some() {}
        }
    });
    let error = |timeout| connect_error(&silent.address(), &ConnectionOptions::new(timeout));
    error_in_some_time(Duration::from_millis(800), error, |error| {
        error.contains("it accepted the session, but answered no call")
    });
}

fn trouble(options: &ConnectionOptions, server: &str) -> Option<Trouble> {
    options.memory.trouble(server.parse().unwrap())
}

#[test]
fn silent_and_refusing_addresses_are_remembered_after_a_failed_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let (closing, unused) = (Server::with(drop), unused_address());
    let list = format!("{silent},{},{unused}", closing.address());
    let options = ConnectionOptions::new(Duration::ZERO);
    let error =
        |session_timeout| connect_error(&list, &ConnectionOptions { session_timeout, ..options.clone() });
    error_in_some_time(Duration::from_millis(1200), error, |error| error.contains("no answer"));
    assert_eq!(trouble(&options, &silent), Some(Trouble::Silent));
    for refusing in [closing.address(), unused] {
        assert_eq!(trouble(&options, &refusing), Some(Trouble::Refusing), "{refusing}");
    }
}

#[test]
fn server_that_answers_a_call_is_not_avoided_any_longer() {
    let serves = Arc::new(AtomicBool::new(false));
    let begun = Arc::clone(&serves);
    let server = Server::with(move |mut client| {
        client.serve_by(|xid, request| match request {
            Request::Control(Control::Ping | Control::Close) => answer(xid, request),
            _ if begun.load(Ordering::SeqCst) => answer(xid, request),
            _ => Vec::new(),
        });
    });
    let options = ConnectionOptions::new(scaled(Duration::from_millis(1000)));
    let connection = connect_with(&server.address(), &options).unwrap();
    assert_eq!(connection.exists("/a", false), Err(ZkError::ConnectionLoss));
    assert_eq!(trouble(&options, &server.address()), Some(Trouble::Silent));
    serves.store(true, Ordering::SeqCst);
    eventually("a call is answered", || connection.exists("/a", false).is_ok());
    assert_eq!(trouble(&options, &server.address()), None);
    connection.close();
    assert_eq!(trouble(&options, &server.address()), None);
}

/// A name service whose answer can be changed. While there is no answer, lookups hang.
#[derive(Clone, Default)]
struct NameService(Arc<Mutex<Option<io::Result<SocketAddr>>>>);

impl NameService {
    fn answer_with(&self, server: &Server) {
        *self.0.lock() = Some(Ok(server.address().parse().unwrap()));
    }

    fn hang(&self) {
        *self.0.lock() = None;
    }

    fn fail(&self) {
        *self.0.lock() = Some(Err(io::Error::other("no such name")));
    }

    fn options(&self, session_timeout: Duration) -> ConnectionOptions {
        let mut options = ConnectionOptions::new(session_timeout);
        let service = self.clone();
        options.names = Arc::new(move |_, _| {
            loop {
                match &*service.0.lock() {
                    Some(Ok(address)) => return Ok(vec![*address]),
                    Some(Err(error)) => return Err(io::Error::other(error.to_string())),
                    None => {}
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        options
    }
}

/// A server whose address is given to another ensemble at some time.
fn server_of_two_ensembles() -> (Server, Arc<AtomicBool>) {
    let is_foreign = Arc::new(AtomicBool::new(false));
    let foreign = Arc::clone(&is_foreign);
    let server = Server::with(move |mut client| match foreign.load(Ordering::SeqCst) {
        true => {
            if client.read_connect().is_some() {
                client.write(&unknown());
            }
        }
        false => client.serve(),
    });
    (server, is_foreign)
}

fn refusals(server: &Server) -> usize {
    server.seen.try_iter().filter(|seen| matches!(seen, Seen::Connected(_))).count()
}

#[test]
fn next_session_finds_a_server_at_its_address_although_the_name_service_hangs() {
    let (server, names) = (Server::start(), NameService::default());
    names.answer_with(&server);
    let options = names.options(LONG);
    drop(connect_with("zk", &options).unwrap());
    names.hang();
    let begun = Instant::now();
    connect_with("zk", &options.clone()).unwrap();
    assert!(begun.elapsed() < deadline() / 10);
    names.fail();
    connect_with("zk", &options).unwrap();
}

#[test]
fn session_does_not_ask_a_former_address_if_the_name_service_answers_in_time() {
    let ((former, is_foreign), new, names) =
        (server_of_two_ensembles(), Server::start(), NameService::default());
    names.answer_with(&former);
    let connection = connect_with("zk", &names.options(LONG)).unwrap();
    let events = events_of(&connection);
    names.answer_with(&new);
    is_foreign.store(true, Ordering::SeqCst);
    former.seen.try_iter().for_each(drop);
    former.disconnect();
    eventually("the new address is used", || connection.server().contains(&new.address()));
    connection.exists("/a", false).unwrap();
    assert!(!events.try_iter().any(|event| event == ClientEvent::SessionLost));
    assert_eq!(refusals(&former), 0);
}

#[test]
fn session_that_is_unknown_at_a_former_address_goes_on_at_the_new_one() {
    for fails in [false, true] {
        let ((former, is_foreign), new, names) =
            (server_of_two_ensembles(), Server::start(), NameService::default());
        names.answer_with(&former);
        let connection = connect_with("zk", &names.options(LONG)).unwrap();
        let events = events_of(&connection);
        if fails {
            names.fail()
        } else {
            names.hang()
        }
        is_foreign.store(true, Ordering::SeqCst);
        former.seen.try_iter().for_each(drop);
        former.disconnect();
        let mut refused = 0;
        eventually("the other ensemble does not know the session", || {
            refused += refusals(&former);
            refused >= 3
        });
        names.answer_with(&new);
        eventually("the new address is used", || connection.server().contains(&new.address()));
        connection.exists("/a", false).unwrap();
        assert!(!events.try_iter().any(|event| event == ClientEvent::SessionLost));
    }
}

/// Otherwise, the next session would be opened in the other ensemble.
#[test]
fn next_session_is_not_opened_at_a_former_address_at_which_the_last_one_was_unknown() {
    let ((former, is_foreign), names) = (server_of_two_ensembles(), NameService::default());
    names.answer_with(&former);
    let options = names.options(LONG);
    let connection = connect_with("zk", &options).unwrap();
    names.fail();
    is_foreign.store(true, Ordering::SeqCst);
    former.seen.try_iter().for_each(drop);
    former.disconnect();
    let mut refused = 0;
    eventually("the client knows that the other ensemble does not know the session", || {
        refused += refusals(&former);
        refused >= 2
    });
    assert!(connect_within(deadline() / 20, "zk", &options).is_err());
    let is_new = |seen: &Seen| matches!(seen, Seen::Connected(request) if request.session_id == 0);
    assert!(!former.seen.try_iter().any(|seen| is_new(&seen)), "a new session was asked for");
    drop(connection);
    names.answer_with(&former);
    is_foreign.store(false, Ordering::SeqCst);
    connect_with("zk", &options).unwrap();
}

#[test]
fn session_that_is_unknown_at_a_current_address_is_lost_at_once() {
    let ((server, is_foreign), names) = (server_of_two_ensembles(), NameService::default());
    names.answer_with(&server);
    let connection = connect_with("zk", &names.options(LONG)).unwrap();
    let events = events_of(&connection);
    is_foreign.store(true, Ordering::SeqCst);
    server.disconnect();
    while next(&events) != ClientEvent::SessionLost {}
}

#[test]
fn session_that_is_unknown_at_a_former_address_is_lost_within_a_session_timeout() {
    let ((former, is_foreign), names) = (server_of_two_ensembles(), NameService::default());
    names.answer_with(&former);
    let session_timeout = scaled(Duration::from_millis(1500));
    let connection = connect_with("zk", &names.options(session_timeout)).unwrap();
    let events = events_of(&connection);
    names.fail();
    is_foreign.store(true, Ordering::SeqCst);
    former.disconnect();
    let begun = Instant::now();
    while next(&events) != ClientEvent::SessionLost {}
    assert!(begun.elapsed() < session_timeout + deadline() / 10);
    assert_eq!(connection.exists("/a", false), Err(ZkError::SessionExpired));
}
