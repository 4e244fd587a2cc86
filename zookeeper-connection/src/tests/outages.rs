//! Lost connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::server::{SESSION, Seen, Server, answer};
use super::*;
use crate::codec::Request;
use crate::error::ZkError;
use crate::tests::{eventually, next, wait::scaled};
use crate::time::Moment;
use crate::{Call, Verbs};

fn connects(server: &Server) -> Vec<i64> {
    let connects = server.seen.try_iter().filter_map(|seen| match seen {
        Seen::Connected(request) => Some(request.session_id),
        _ => None,
    });
    connects.collect()
}

#[test]
fn session_is_resumed_after_a_lost_connection() {
    let server = Server::start();
    let connection = connect(&server.address());
    let events = events_of(&connection);
    for _ in 0..5 {
        server.disconnect();
        // The answer to the probe may come first.
        eventually("the disconnect is reported", || {
            events.try_iter().any(|event| event == ClientEvent::Disconnected)
        });
        assert!(is_connected(&next(&events)));
        connection.exists("/a", false).unwrap();
    }
    assert_eq!(connects(&server), [0, SESSION, SESSION, SESSION, SESSION, SESSION]);
}

#[test]
fn call_without_a_reply_fails_after_the_disconnect_was_reported() {
    let server = Server::with(|mut client| {
        client.serve_by(|xid, request| match request {
            Request::Call(Call::Exists { .. }) => Vec::new(),
            request => answer(xid, request),
        });
    });
    let connection = connect(&server.address());
    let events = events_of(&connection);
    let caller = Arc::clone(&connection);
    let result = crate::tests::in_background(move || {
        let result = caller.exists("/a", false);
        (result, events.try_iter().any(|event| event == ClientEvent::Disconnected))
    });
    let exists = Seen::Request("Exists(\"/a\")".to_owned());
    eventually("the request arrives", || server.seen.try_iter().any(|seen| seen == exists));
    server.disconnect();
    assert_eq!(next(&result), (Err(ZkError::ConnectionLoss), true));
}

#[test]
fn call_without_a_connection_waits_for_the_next_one() {
    let server = Server::start();
    let connection = connect(&server.address());
    for _ in 0..6 {
        server.disconnect();
        // The call is in flight when the connection is lost, or is kept for the next connection.
        let result = connection.exists("/a", false);
        assert!(matches!(result, Ok(_) | Err(ZkError::ConnectionLoss)), "{result:?}");
    }
    eventually("a call succeeds", || connection.exists("/a", false).is_ok());
}

#[test]
fn silent_server_is_left_within_the_session_timeout() {
    let silent = Server::with(|mut client| {
        client.accept();
        while client.read().is_some() {}
    });
    let options = ConnectionOptions::new(scaled(Duration::from_secs(5)));
    let connection = connect_with(&silent.address(), &options).unwrap();
    let events = events_of(&connection);
    // The request is never answered.
    let begun = std::time::Instant::now();
    assert_eq!(connection.exists("/a", false), Err(ZkError::ConnectionLoss));
    assert!(begun.elapsed() < options.session_timeout);
    assert!(events.try_iter().any(|event| event == ClientEvent::Disconnected));
}

#[test]
fn answer_to_a_ping_is_reported_with_a_time_before_the_ping() {
    let server = Server::start();
    let options = ConnectionOptions::new(scaled(Duration::from_millis(1000)));
    let before = Moment::now();
    let connection = connect_with(&server.address(), &options).unwrap();
    let (sender, pings) = unbounded();
    connection.subscribe(Arc::new(move |event| {
        if let ClientEvent::PingAnswered { sent } = event {
            let _ = sender.send((sent, Moment::now()));
        }
    }));
    let (first, second) = (next(&pings), next(&pings));
    // The second ping may be sent before the answer to the first one is reported.
    assert!(before < first.0 && first.0 < first.1 && first.0 < second.0 && second.0 < second.1);
}

#[test]
fn server_with_a_new_address_is_found() {
    let (former, new) = (Server::start(), Server::start());
    let current: Arc<Mutex<SocketAddr>> = Arc::new(Mutex::new(former.address().parse().unwrap()));
    let mut options = ConnectionOptions::new(LONG);
    let of_names = Arc::clone(&current);
    options.names = Arc::new(move |_, _| Ok(vec![*of_names.lock()]));
    let connection = connect_with("zk:2181", &options).unwrap();
    *current.lock() = new.address().parse().unwrap();
    eventually("the other address is used", || {
        former.disconnect();
        connection.server().contains(&new.address())
    });
    assert!(connection.exists("/a", false).is_ok());
    assert_eq!(new.port(), current.lock().port());
}
