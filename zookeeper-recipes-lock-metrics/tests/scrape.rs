//! Checks what Prometheus would scrape. All tests share the process's recorder. So each test has its own
//! directory, and only one of them sets the gauges.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the failure report")]

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use zookeeper_recipes_lock::fake::SimulatedZooKeeper;
use zookeeper_recipes_lock::locks::{CohortLock, CohortOptions};
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions, Session};
use zookeeper_recipes_lock_metrics::{LockMetrics, update_gauges};

const LONG: Duration = Duration::from_secs(3600);

fn endpoint() -> &'static PrometheusHandle {
    static ENDPOINT: OnceLock<PrometheusHandle> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let builder = PrometheusBuilder::new().set_buckets(&[0.1, 1.0, 10.0]).unwrap();
        builder.install_recorder().unwrap()
    })
}

/// Waits until a condition holds.
fn eventually(what: &str, mut is_met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}:\n{}", endpoint().render());
        thread::yield_now();
    }
}

/// Returns the value of a time series as Prometheus reads it.
fn scrape(series: &str) -> Option<f64> {
    let text = endpoint().render();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

fn await_value(series: &str, value: f64) {
    eventually(series, || scrape(series) == Some(value));
}

/// Returns a session on a simulated server whose events are counted.
fn session(server: &SimulatedZooKeeper) -> Session {
    counting(server, LockMetrics::new)
}

/// Makes the hook after the recorder is installed, which would otherwise miss the descriptions of the metrics.
fn counting(server: &SimulatedZooKeeper, hook: impl FnOnce() -> LockMetrics) -> Session {
    endpoint();
    let session = server.connect(LONG).open_session().unwrap();
    assert!(session.set_event_hook(hook()));
    session
}

#[test]
fn waits_holds_and_requests_that_are_given_up_are_counted() {
    let server = SimulatedZooKeeper::new();
    let (holder, waiter) = (session(&server), session(&server));
    let [held, waiting] =
        [&holder, &waiter].map(|session| BlockingWriteLock::new(session, "/counted").unwrap());
    let guard = held.lock().unwrap();
    assert!(waiting.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    await_value(r#"zookeeper_lock_wait_seconds_count{lock="/counted"}"#, 1.0);
    await_value(r#"zookeeper_lock_hold_seconds_count{lock="/counted"}"#, 1.0);
    await_value(r#"zookeeper_lock_hold_seconds_bucket{lock="/counted",le="+Inf"}"#, 1.0);
    await_value(r#"zookeeper_lock_waits_given_up_total{lock="/counted"}"#, 1.0);
}

#[test]
fn losses_are_counted_by_their_reason() {
    let server = SimulatedZooKeeper::new();
    endpoint();
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    assert!(session.set_event_hook(LockMetrics::new()));
    let [first, second] = ["/lost", "/deleted"].map(|dir| BlockingWriteLock::new(&session, dir).unwrap());
    let (_expired, deleted) = (first.lock().unwrap(), second.lock().unwrap());
    server.delete(deleted.id());
    await_value(r#"zookeeper_locks_lost_total{lock="/deleted",reason="NodeDeleted"}"#, 1.0);
    client.expire();
    await_value(r#"zookeeper_locks_lost_total{lock="/lost",reason="SessionLost"}"#, 1.0);
    await_value("zookeeper_sessions_lost_total", 1.0);
}

#[test]
fn hand_overs_are_counted_and_the_lock_may_be_left_out() {
    let server = SimulatedZooKeeper::new();
    let session = counting(&server, || LockMetrics::new().without_lock_label());
    let kept_long = CohortOptions::new().keep_for(LONG);
    let lock = CohortLock::with_options(&session, "/unlabelled", LockOptions::new(), kept_long).unwrap();
    drop(lock.lock().unwrap());
    drop(lock.lock().unwrap());
    await_value("zookeeper_lock_hand_overs_total", 1.0);
    await_value("zookeeper_lock_wait_seconds_count", 1.0);
    assert!(!endpoint().render().contains("/unlabelled"));
}

#[test]
fn gauges_show_owners_and_waiters_also_in_an_outage() {
    let server = SimulatedZooKeeper::new();
    let holder = session(&server);
    let client = server.connect(LONG);
    let waiter = client.open_session().unwrap();
    let update = || update_gauges([&holder, &waiter]);
    let gauges = || {
        update();
        ["sessions_connected", "locks_held", "locks_waiting"]
            .map(|name| scrape(&format!("zookeeper_{name}")).unwrap())
    };
    let oldest = || {
        update();
        scrape("zookeeper_lock_oldest_wait_seconds").unwrap()
    };
    assert_eq!(gauges(), [2.0, 0.0, 0.0]);
    assert_eq!(oldest(), 0.0);
    assert_eq!(scrape("zookeeper_session_timeout_seconds"), Some(LONG.as_secs_f64()));

    let guard = BlockingWriteLock::new(&holder, "/gauges").unwrap().lock().unwrap();
    client.disconnect();
    let lock = BlockingWriteLock::new(&waiter, "/gauges").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().map(drop));
        eventually("one waits", || gauges() == [1.0, 1.0, 1.0]);
        let earlier = oldest();
        eventually("the oldest wait grows", || oldest() > earlier);
        client.reconnect();
        drop(guard);
        waiting.join().unwrap().unwrap();
    });
    eventually("nobody waits or owns", || gauges() == [2.0, 0.0, 0.0]);
    assert_eq!(oldest(), 0.0);
}

#[test]
fn every_line_of_a_scrape_is_in_the_format_of_prometheus() {
    let server = SimulatedZooKeeper::new();
    let session = session(&server);
    BlockingWriteLock::new(&session, "/format \"a\"").unwrap().lock().unwrap().unlock().unwrap();
    await_value(r#"zookeeper_lock_hold_seconds_count{lock="/format \"a\""}"#, 1.0);
    let text = endpoint().render();
    assert!(text.contains("# HELP zookeeper_lock_hold_seconds The time"), "{text}");
    assert!(text.contains("# TYPE zookeeper_lock_hold_seconds histogram"), "{text}");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with("zookeeper_") && value.parse::<f64>().is_ok(), "{line}");
    }
}

#[cfg(unix)]
#[test]
fn lock_on_a_real_server_is_counted() {
    endpoint();
    let server = zookeeper_test_server::TestServer::start().unwrap();
    let session = Session::builder(server.connect_string()).event_hook(LockMetrics::new()).connect().unwrap();
    BlockingWriteLock::new(&session, "/real").unwrap().lock().unwrap().unlock().unwrap();
    await_value(r#"zookeeper_lock_wait_seconds_count{lock="/real"}"#, 1.0);
    await_value(r#"zookeeper_lock_hold_seconds_count{lock="/real"}"#, 1.0);
    let server = session.server().unwrap();
    await_value(&format!(r#"zookeeper_connections_total{{server="{server}"}}"#), 1.0);
}
