//! How a connection finds out the servers' ticks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use super::server::{MIN_TIMEOUT_MS, SESSION, Server, accepted, answer};
use super::*;
use crate::Credential;
use crate::Granted;
use crate::Verbs;
use crate::codec::{ConnectRequest, Control, Request};
use crate::tests::{eventually, next};

/// Returns the report delay on a server with this minimum session timeout, which is two ticks.
fn report_delay(shortest_timeout_ms: i32) -> Duration {
    let tick = Duration::from_millis(u64::from(shortest_timeout_ms.unsigned_abs())) / 2;
    Granted::new(LONG).with_tick(tick).report_delay
}

/// Connects with a session timeout so long that nothing expires, and accepts ticks of any length.
fn connect(servers: &str) -> Arc<Connection> {
    connect_with_max_tick(servers, Duration::ZERO)
}

fn connect_with_max_tick(servers: &str, max_tick: Duration) -> Arc<Connection> {
    let options = ConnectionOptions { max_tick: Some(max_tick), ..ConnectionOptions::new(LONG) };
    connect_with(servers, &options).unwrap()
}

/// The minimum session timeout may be less than two ticks.
#[test]
fn tick_is_not_assumed_to_be_less_than_the_application_states() {
    let server = Server::start();
    let stated = Duration::from_secs(1);
    let connection = connect_with_max_tick(&server.address(), stated);
    let delay = Granted::new(LONG).with_tick(stated).report_delay;
    eventually("the answer comes", || connection.granted().report_delay == delay);
    let connection = super::connect(&server.address());
    let delay = Granted::new(LONG).with_tick(crate::DEFAULT_TICK).report_delay;
    eventually("the answer comes", || connection.granted().report_delay == delay);
}

/// Its minimum session timeout would say that the tick is longer.
#[test]
fn no_server_is_probed_if_the_tick_is_stated() {
    let server = Server::start();
    let stated = Duration::from_millis(1);
    let options = ConnectionOptions { tick: Some(stated), ..ConnectionOptions::new(LONG) };
    let connection = connect_with(&server.address(), &options).unwrap();
    let granted = Granted::new(LONG).with_tick(stated);
    assert_eq!(connection.granted(), granted);
    let events = events_of(&connection);
    let next = || events.iter().find(|event| !matches!(event, ClientEvent::PingAnswered { .. }));
    for connects in 1..=3 {
        // A probe would begin before this call is sent.
        connection.exists("/a", false).unwrap();
        assert_eq!(server.connections.load(Ordering::SeqCst), connects);
        server.disconnect();
        assert_eq!(next(), Some(ClientEvent::Disconnected));
        assert_eq!(next(), Some(ClientEvent::Connected(granted)), "and no other report delay");
    }
}

#[test]
fn report_delay_follows_from_the_servers_minimum_session_timeout() {
    let server = Server::start();
    let connection = connect(&server.address());
    let events = events_of(&connection);
    eventually("the answer comes", || connection.granted().report_delay == report_delay(MIN_TIMEOUT_MS));
    assert_eq!(connection.granted().session_timeout, LONG);
    // There is no event if the answer came before the subscription.
    for event in events.try_iter() {
        assert_eq!(event, ClientEvent::ReportDelay(report_delay(MIN_TIMEOUT_MS)));
    }
}

/// Returns whether a client with these credentials closes the session of its probe.
fn closes_probe(credentials: Vec<Credential>) -> bool {
    let (sender, closed) = unbounded();
    let server = Server::with(move |mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        client.write(&accepted(request.timeout_ms.max(MIN_TIMEOUT_MS), SESSION));
        if request.timeout_ms == 1 {
            let closes = Request::Control(Control::Close);
            sender
                .send(client.read().is_some_and(|frame| Request::decode(&frame).unwrap().1 == closes))
                .unwrap();
            return;
        }
        client.serve_accepted(|xid, request| (answer(xid, request), true));
    });
    let options = ConnectionOptions { credentials, ..ConnectionOptions::new(LONG) };
    let _connection = connect_with(&server.address(), &options).unwrap();
    next(&closed)
}

/// Servers that require authentication would refuse to close a session without credentials, and log an error.
#[test]
fn session_of_the_probe_is_closed_unless_the_servers_may_require_authentication() {
    assert!(closes_probe(Vec::new()));
    assert!(!closes_probe(vec![Credential { scheme: "digest".to_owned(), auth: b"user:secret".to_vec() }]));
}

#[test]
fn probe_without_an_answer_changes_nothing() {
    let server = Server::with(|mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        if request.timeout_ms != 1 {
            client.write(&accepted(request.timeout_ms, SESSION));
            client.answer_first_ping();
            while client.read().is_some() {}
        }
    });
    let connection = super::connect(&server.address());
    eventually("the probe comes", || server.connections.load(Ordering::SeqCst) == 2);
    assert_eq!(connection.granted().report_delay, Granted::new(LONG).report_delay);
}

/// Starts a server that does not answer the first probes. It grants half a second, so the next probe comes soon. The
/// test may change how many probes remain unanswered.
fn server_that_ignores_probes(count: usize) -> (Server, Arc<AtomicUsize>) {
    let unanswered = Arc::new(AtomicUsize::new(count));
    let ignored = Arc::clone(&unanswered);
    let server = Server::with(move |mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        let one_less = |count: usize| count.checked_sub(1);
        if request.timeout_ms == 1
            && ignored.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
        {
            return;
        }
        client.write(&accepted(request.timeout_ms.clamp(MIN_TIMEOUT_MS, 500), SESSION));
        client.serve_accepted(|xid, request| (answer(xid, request), true));
    });
    (server, unanswered)
}

#[test]
fn stated_tick_counts_while_no_probe_is_answered_and_a_longer_one_when_one_is() {
    let (server, unanswered) = server_that_ignores_probes(usize::MAX);
    let stated = Duration::from_millis(50);
    let connection = connect_with_max_tick(&server.address(), stated);
    let granted = Granted::new(connection.granted().session_timeout);
    // The second probe comes after the session timeout of half a second.
    let delay = granted.with_tick(stated).report_delay;
    eventually("the stated tick counts", || connection.granted().report_delay == delay);
    unanswered.store(0, Ordering::SeqCst);
    let tick = Duration::from_millis(MIN_TIMEOUT_MS.unsigned_abs().into()) / 2;
    eventually("the answer counts", || {
        connection.granted().report_delay == granted.with_tick(tick).report_delay
    });
}

#[test]
fn probe_without_an_answer_is_repeated() {
    let (server, _) = server_that_ignores_probes(2);
    let connection = connect(&server.address());
    let tick = Duration::from_millis(MIN_TIMEOUT_MS.unsigned_abs().into()) / 2;
    let delay = Granted::new(connection.granted().session_timeout).with_tick(tick).report_delay;
    eventually("a probe is answered", || connection.granted().report_delay == delay);
}

#[test]
fn tick_that_was_revealed_after_an_unanswered_probe_is_known_on_the_next_connection() {
    let (server, _) = server_that_ignores_probes(1);
    // The stated tick counts until the second probe is answered.
    let connection = connect_with_max_tick(&server.address(), Duration::from_millis(50));
    let tick = Duration::from_millis(MIN_TIMEOUT_MS.unsigned_abs().into()) / 2;
    let granted = Granted::new(connection.granted().session_timeout).with_tick(tick);
    eventually("the second probe is answered", || connection.granted() == granted);
    let (sender, events) = unbounded();
    connection.subscribe(Arc::new(move |event| drop(sender.send(event))));
    server.disconnect();
    let connected = events.iter().find(|event| matches!(event, ClientEvent::Connected(_)));
    assert_eq!(connected, Some(ClientEvent::Connected(granted)));
}

/// A slow server is no server that refuses the second connection.
#[test]
fn probe_whose_answer_takes_half_the_session_timeout_is_answered_in_the_end() {
    const GRANTED_MS: u64 = 2000;
    let server = Server::with(|mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        let is_probe = request.timeout_ms == 1;
        if is_probe {
            std::thread::sleep(Duration::from_millis(GRANTED_MS) / 2);
        }
        let timeout = if is_probe { MIN_TIMEOUT_MS } else { GRANTED_MS as i32 };
        client.write(&accepted(timeout, SESSION));
        client.serve_accepted(|xid, request| (answer(xid, request), true));
    });
    let connection = connect(&server.address());
    let tick = Duration::from_millis(MIN_TIMEOUT_MS.unsigned_abs().into()) / 2;
    let delay = Granted::new(Duration::from_millis(GRANTED_MS)).with_tick(tick).report_delay;
    eventually("the probe is answered", || connection.granted().report_delay == delay);
}

#[test]
fn server_that_never_stops_answering_the_probe_does_not_block_the_thread() {
    let server = Server::with(|mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        client.write(&accepted(request.timeout_ms.max(MIN_TIMEOUT_MS), SESSION));
        if request.timeout_ms != 1 {
            client.serve_accepted(|xid, request| (answer(xid, request), true));
            return;
        }
        let flood = vec![0; 1 << 16];
        while client.stream.write_all(&flood).is_ok() {}
    });
    let connection = connect(&server.address());
    for _ in 0..100 {
        connection.exists("/a", false).unwrap();
    }
}

#[test]
fn server_is_probed_again_only_if_it_grants_another_session_timeout() {
    let long_ms = i32::try_from(LONG.as_millis()).unwrap();
    let [shortest, granted, probes] = [8000, long_ms, 0].map(|value| Arc::new(AtomicI32::new(value)));
    let (min, max, asked) = (Arc::clone(&shortest), Arc::clone(&granted), Arc::clone(&probes));
    let server = Server::with(move |mut client| {
        let request = ConnectRequest::decode(&client.read().unwrap()).unwrap();
        let is_probe = request.timeout_ms == 1;
        asked.fetch_add(i32::from(is_probe), Ordering::SeqCst);
        let timeout = if is_probe { &min } else { &max };
        client.write(&accepted(timeout.load(Ordering::SeqCst), SESSION));
        if !is_probe && request.session_id == 0 {
            client.answer_first_ping();
        }
        while client.read().is_some() {}
    });
    let connection = connect(&server.address());
    eventually("the answer comes", || connection.granted().report_delay == report_delay(8000));
    // The minimum session timeout of the server, how much less than `LONG` it grants, and the longest minimum known by
    // then. The first and the last change of the minimum go unnoticed.
    let changes = [(20_000, 0, 8000), (2000, 1000, 8000), (10_000, 0, 10_000), (30_000, 0, 10_000)];
    for ((tick, less, longest), questions) in changes.into_iter().zip([1, 2, 3, 3]) {
        let is_known = questions == probes.load(Ordering::SeqCst);
        shortest.store(tick, Ordering::SeqCst);
        granted.store(long_ms - less, Ordering::SeqCst);
        let events = events_of(&connection);
        server.disconnect();
        let mut delays = events.iter().filter_map(|event| match event {
            ClientEvent::Connected(granted) => Some(granted.report_delay),
            ClientEvent::ReportDelay(report_delay) => Some(report_delay),
            _ => None,
        });
        if !is_known {
            let timeout = Duration::from_millis(u64::from((long_ms - less).unsigned_abs()));
            assert_eq!(delays.next(), Some(Granted::new(timeout).report_delay), "before the answer");
        }
        assert_eq!(delays.next(), Some(report_delay(longest)), "tick {tick}");
        assert_eq!(probes.load(Ordering::SeqCst), questions, "tick {tick}");
    }
}
