//! What the lease concludes of the answers of real servers: nobody owns a lock that the server may have given away.

use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::{BlockingWriteLock, LockGuard, LossReason, SessionState, WriteLock};

use crate::fixtures::{LONG, connect, next, unique_dir};
use crate::support::ensemble::Ensemble;
use crate::support::relay::Relay;
use crate::support::server::{Server, ServerOptions};
use crate::support::wait::{deadline, eventually, eventually_within, scaled};

/// Blocks until the waiter owns the lock, and fails if it did so before the holder stopped.
fn takes_over_without_overlap(guard: &LockGuard, waiter: &WriteLock) {
    let until = Instant::now() + deadline();
    while !waiter.is_owner() {
        assert!(Instant::now() < until, "nobody took over");
        thread::yield_now();
    }
    assert!(!guard.is_owner(), "two owners at once");
}

/// A server grants a session timeout anew on every reconnect, and its configuration may have changed.
#[test]
fn the_lease_follows_a_shorter_timeout_that_is_granted_on_a_reconnect() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let far = connect(&relay.connect_string(), Duration::from_secs(40));
    let dir = unique_dir("regranted");
    let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    assert_eq!(far.session_timeout(), Duration::from_secs(40));
    server.stop();
    server.reconfigure("maxSessionTimeout=40000", "maxSessionTimeout=10000");
    server.restart();
    eventually("the session is back", || far.state() == SessionState::Connected);
    eventually("the owner goes on", || far.session_timeout() == Duration::from_secs(10));
    let near = connect(&server.connect_string(), LONG);
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    let settled = Instant::now() + Duration::from_secs(11);
    eventually("a session timeout has passed in contact", || {
        assert!(guard.is_owner() && !waiter.is_owner(), "contact keeps the lock");
        Instant::now() >= settled
    });
    relay.swallow();
    takes_over_without_overlap(&guard, &waiter);
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
}

/// An observer behind an observer master reports to the leader by two ways, of half a tick each.
#[test]
fn a_keep_alive_that_dies_with_an_observer_and_its_master_extends_no_lease() {
    const MASTER: usize = 0;
    const OBSERVER: usize = 3;
    let options =
        ServerOptions { tick_time_ms: 2000, min_session_timeout_ms: 4000, ..ServerOptions::default() };
    let ensemble = Ensemble::with_observer(&options);
    let leader = ensemble.leader();
    assert_ne!(leader, MASTER, "it was started when the others had a leader");
    let leader = ensemble.node(leader);
    let zxid = || {
        let answer = leader.four_letter("srvr");
        let zxid = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).map(str::to_owned);
        u64::from_str_radix(&zxid.expect("the leader says its zxid"), 16).expect("a number")
    };
    for attempt in 0..3 {
        ensemble.await_quorum();
        eventually("the observer serves", || ensemble.node(OBSERVER).serves());
        let dir = unique_dir("observer-dies-early");
        let far = connect(&ensemble.connect_string_of(OBSERVER), Duration::from_secs(6));
        let near = connect(&leader.connect_string(), LONG);
        let guard = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
        let waiter = WriteLock::new(&near, &dir).unwrap();
        assert!(!waiter.lock().unwrap());
        // Nobody else writes: the next transactions are a keep-alive and its confirmation.
        let idle = Instant::now() + Duration::from_millis(2800 + 300 * attempt);
        eventually("the locks are settled", || Instant::now() >= idle);
        let before = zxid();
        eventually("a keep-alive is confirmed", || zxid() >= before + 2);
        ensemble.pause(MASTER);
        ensemble.pause(OBSERVER);
        takes_over_without_overlap(&guard, &waiter);
        ensemble.resume(MASTER);
        ensemble.resume(OBSERVER);
        drop((guard, waiter));
    }
}

#[test]
fn a_server_that_is_frozen_does_not_hold_up_connecting_to_the_others() {
    let ensemble = Ensemble::start(3);
    ensemble.pause(ensemble.follower());
    for _ in 0..4 {
        let begun = Instant::now();
        let session = connect(&ensemble.connect_string(), Duration::from_secs(10));
        assert!(begun.elapsed() < scaled(Duration::from_millis(2500)), "{:?}", begun.elapsed());
        session.close();
    }
}

#[test]
fn closing_a_session_with_a_silent_server_takes_no_longer_than_its_silence() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let session = connect(&relay.connect_string(), Duration::from_secs(4));
    relay.swallow();
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < scaled(Duration::from_secs(3)), "{:?}", begun.elapsed());

    relay.restore();
    let session = connect(&relay.connect_string(), Duration::from_secs(4));
    relay.swallow();
    eventually_within(2 * deadline(), "the session is lost", || session.state() == SessionState::Lost);
    let begun = Instant::now();
    session.close();
    assert!(begun.elapsed() < scaled(Duration::from_millis(500)), "{:?}", begun.elapsed());
}
