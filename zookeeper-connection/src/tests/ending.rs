//! How a session ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::server::{Client, Seen, Server, answer};
use super::*;
use crate::Credential;
use crate::Verbs;
use crate::codec::{ConnectAnswer, Control, Request};
use crate::error::ZkError;
use crate::io;
use crate::tests::{deadline, eventually, next, wait::scaled};
use crate::{Call, Done};

/// Waits until the I/O thread has ended.
pub(super) fn await_end(connection: &Connection) {
    let ended = connection.shared.ended.recv_timeout(deadline());
    assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
}

fn assert_ended(connection: &Connection) {
    await_end(connection);
    assert_eq!(connection.exists("/a", false), Err(ZkError::SessionExpired));
    assert_eq!(connection.create_and_list("/a", "x", b"", &[]), Err(ZkError::SessionExpired));
}

/// Serves one session, and refuses it on its next connection.
fn expire(mut client: Client) {
    match client.read_connect() {
        Some(request) if request.session_id == 0 => {
            client.write(&super::server::accepted(request.timeout_ms, super::server::SESSION));
            client.answer_first_ping();
            while client.read().is_some() {}
        }
        Some(_) => {
            let mut frame = Vec::new();
            ConnectAnswer::Refused.encode(&mut frame);
            client.write(&frame);
        }
        None => {}
    }
}

#[test]
fn session_timeout_without_bounds_is_the_longest_that_the_protocol_knows() {
    let server = Server::start();
    let connection = Connection::open(&server.address(), Duration::MAX).unwrap();
    assert_eq!(connection.granted().session_timeout, Duration::from_millis(i32::MAX as u64));
    connection.close();
    assert_ended(&connection);
}

/// The server refuses the credentials on every connection but the first, and then closes the connection.
#[test]
fn session_whose_credentials_are_refused_later_is_lost_and_closed() {
    let refuses = Arc::new(AtomicBool::new(false));
    let refusing = Arc::clone(&refuses);
    let server = Server::with(move |mut client| {
        let refuses = refusing.load(Ordering::SeqCst);
        let mut is_open = true;
        client.serve_while(|xid, request| match request {
            Request::Control(Control::Auth { .. }) if refuses => {
                is_open = false;
                (super::server::refused(xid, ZkError::AuthFailed), false)
            }
            request => (answer(xid, request), is_open),
        });
    });
    let mut options = ConnectionOptions::new(LONG);
    options.credentials = vec![Credential { scheme: "digest".to_owned(), auth: b"ada:secret".to_vec() }];
    let connection = connect_with(&server.address(), &options).unwrap();
    let events = events_of(&connection);
    connection.exists("/a", false).unwrap();
    refuses.store(true, Ordering::SeqCst);
    server.disconnect();
    await_end(&connection);
    assert_ended(&connection);
    let events: Vec<_> = events.try_iter().filter(|event| !is_connected(event)).collect();
    let taken_up = ClientEvent::TakenUp { session_timeout: LONG };
    assert_eq!(events, [ClientEvent::Disconnected, taken_up, ClientEvent::SessionLost]);
    let requests = server.seen.try_iter().filter_map(|seen| match seen {
        Seen::Request(request) => Some(request),
        _ => None,
    });
    assert_eq!(requests.collect::<Vec<_>>(), ["Auth", "Exists(\"/a\")", "Auth", "Close"]);
}

#[test]
fn close_ends_the_session_at_the_server_and_the_thread() {
    let server = Server::start();
    let connection = connect(&server.address());
    let events = events_of(&connection);
    connection.close();
    assert_ended(&connection);
    let seen: Vec<_> = server.seen.iter().take(3).collect();
    assert_eq!(seen[1..], [Seen::Request("Close".to_owned()), Seen::Disconnected]);
    assert!(events.iter().all(|event| is_connected(&event)), "no event comes afterwards");
    connection.close();
    assert!(!connection.subscribe(Arc::new(|_| {})));
}

#[test]
fn dropping_the_last_handle_closes_the_session_without_blocking() {
    // The server answers nothing.
    let server = Server::with(|mut client| {
        client.serve_by(|_, _| Vec::new());
    });
    let connection = connect(&server.address());
    let begun = Instant::now();
    drop(connection);
    assert!(begun.elapsed() < deadline() / 10);
    let close = Seen::Request("Close".to_owned());
    eventually("the request arrives", || server.seen.try_iter().any(|seen| seen == close));
}

#[test]
fn close_returns_when_the_session_has_ended_by_itself() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            Request::Control(Control::Close) => Vec::new(),
            request => answer(xid, request),
        });
    });
    let options = ConnectionOptions::new(scaled(Duration::from_millis(500)));
    let connection = connect_with(&server.address(), &options).unwrap();
    connection.close();
    assert_ended(&connection);
}

#[test]
fn expired_session_is_reported_once_and_fails_every_call() {
    let server = Server::with(expire);
    let connection = connect(&server.address());
    let events = events_of(&connection);
    server.disconnect();
    await_end(&connection);
    let events: Vec<_> = events.try_iter().filter(|event| !is_connected(event)).collect();
    assert_eq!(events, [ClientEvent::Disconnected, ClientEvent::SessionLost]);
    assert_ended(&connection);
}

#[test]
fn late_subscriber_receives_the_loss() {
    let server = Server::with(expire);
    let connection = connect(&server.address());
    server.disconnect();
    await_end(&connection);
    let (sender, events) = unbounded();
    assert!(!connection.subscribe(Arc::new(move |event| sender.send(event).unwrap())));
    let lost = events.iter().find(|event| !is_connected(event));
    assert_eq!(lost, Some(ClientEvent::SessionLost));
}

#[test]
fn connection_closed_or_dropped_on_its_own_thread_ends() {
    for closes in [true, false] {
        let server = Server::start();
        let connection = connect(&server.address());
        let shared = Arc::clone(&connection.shared);
        let moved = Arc::clone(&connection);
        let done = Done::new(move |_| {
            assert!(io::thread::is_io_thread());
            if closes {
                moved.close();
            }
            drop(moved);
        });
        connection.submit(Call::exists("/a", false).call, done);
        drop(connection);
        let ended = shared.ended.recv_timeout(deadline());
        assert_eq!(ended, Err(crossbeam_channel::RecvTimeoutError::Disconnected));
    }
}

#[test]
fn calls_in_flight_fail_when_the_session_is_closed() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            Request::Call(Call::Exists { .. }) => Vec::new(),
            // The reply to a later request comes out of order, because `Exists` is unanswered.
            request => answer(xid, request),
        });
    });
    let connection = connect(&server.address());
    let caller = Arc::clone(&connection);
    let result = crate::tests::in_background(move || caller.exists("/a", false));
    let exists = Seen::Request("Exists(\"/a\")".to_owned());
    eventually("the request arrives", || server.seen.try_iter().any(|seen| seen == exists));
    connection.close();
    assert!(next(&result).is_err());
}

#[test]
fn failed_connecting_leaves_no_thread() {
    let server = Server::with(drop);
    let options = ConnectionOptions::new(scaled(Duration::from_millis(200)));
    connect_error(&server.address(), &options);
    // The attempts end with the thread.
    eventually("the attempts end", || {
        let before = server.connections.load(std::sync::atomic::Ordering::SeqCst);
        std::thread::sleep(scaled(Duration::from_millis(300))); // longer than any pause
        before == server.connections.load(std::sync::atomic::Ordering::SeqCst)
    });
}
