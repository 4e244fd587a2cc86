//! Tests of semaphores on real servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::locks::Semaphore;
use zookeeper_recipes_lock::{LossReason, Session, SessionState};

use crate::fixtures::{LONG, Observer, SHORT, connect, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually};

const PERMITS: u32 = 3;

fn semaphore(session: &Session, dir: &str) -> Semaphore {
    Semaphore::new(session, dir, PERMITS).unwrap()
}

fn leases(dir: &str) -> String {
    format!("{dir}/leases")
}

#[test]
fn no_more_hold_than_there_are_permits() {
    let dir = unique_dir("semaphore");
    let (inside, visits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let visit = || {
        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(now <= PERMITS as usize, "{now} permits are held at once");
        thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        visits.fetch_add(1, Ordering::SeqCst);
    };
    let sessions = [session(server::shared()), session(server::shared())];
    thread::scope(|scope| {
        for number in 0..8 {
            let semaphore = semaphore(&sessions[number % 2], &dir);
            scope.spawn(move || {
                for round in 0..25 {
                    if round % 5 == 0 {
                        if let Some(permit) = semaphore.try_acquire().unwrap() {
                            assert!(permit.is_owner());
                            visit();
                        }
                    }
                    let permit = semaphore.acquire().unwrap();
                    assert!(permit.is_owner());
                    visit();
                    permit.release().unwrap();
                }
            });
        }
    });
    assert!(visits.load(Ordering::SeqCst) >= 8 * 25);
    let observer = Observer::at(server::shared());
    observer.await_children(&leases(&dir), 0);
    observer.await_children(&format!("{dir}/locks"), 0);
}

#[test]
fn waiters_cost_one_watch_on_the_permits() {
    let server = Server::start();
    let (sessions, dir) = ([session(&server), session(&server), session(&server)], "/pool");
    let held: Vec<_> = (0..PERMITS).map(|_| semaphore(&sessions[0], dir).acquire().unwrap()).collect();
    let observer = Observer::at(&server);
    thread::scope(|scope| {
        let waiting: Vec<_> = sessions
            .iter()
            .map(|session| {
                let waiting = scope.spawn(|| semaphore(session, dir).acquire().map(drop));
                thread::yield_now();
                waiting
            })
            .collect();
        observer.await_children("/pool/locks", sessions.len());
        observer.await_children("/pool/leases", PERMITS as usize + 1);
        // There is a watch on the children and one on each permit. Each turn is watched by its own session
        // and by up to two requests behind it.
        let watches = 1 + PERMITS as usize + (1 + 2 + 3);
        eventually("all requests wait", || server.watch_count() == watches);
        drop(held);
        for waiter in waiting {
            waiter.join().unwrap().unwrap();
        }
    });
    observer.await_children("/pool/leases", 0);
    eventually("no watch is left", || server.watch_count() == 0);
}

#[test]
fn refused_and_timed_out_attempts_leave_nothing() {
    let server = Server::start();
    let session = session(&server);
    let semaphore = semaphore(&session, "/pool");
    let held: Vec<_> = (0..PERMITS).map(|_| semaphore.acquire().unwrap()).collect();
    for _ in 0..20 {
        assert!(semaphore.try_acquire().unwrap().is_none());
        assert!(semaphore.try_acquire_for(std::time::Duration::from_millis(5)).unwrap().is_none());
    }
    let observer = Observer::at(&server);
    observer.await_children("/pool/leases", PERMITS as usize);
    observer.await_children("/pool/locks", 0);
    eventually("only the permits are watched", || server.watch_count() <= PERMITS as usize);
    drop(held);
    eventually("no watch is left", || server.watch_count() == 0);
}

#[test]
fn waiter_acquires_after_a_reconnect_what_was_released_meanwhile() {
    let dir = unique_dir("semaphore-reconnect");
    let relay = Relay::to(server::shared().connect_string());
    let (near, far) = (session(server::shared()), connect(&relay.connect_string(), LONG));
    let held: Vec<_> = (0..PERMITS).map(|_| semaphore(&near, &dir).acquire().unwrap()).collect();
    let states = far.subscribe();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| semaphore(&far, &dir).acquire());
        Observer::at(server::shared()).await_children(&leases(&dir), PERMITS as usize + 1);
        relay.refuse();
        while next(&states) != SessionState::Suspended {}
        drop(held);
        relay.restore();
        assert!(waiting.join().unwrap().unwrap().is_owner());
    });
}

#[test]
fn permit_of_a_lost_session_is_lost_and_goes_to_another() {
    let dir = unique_dir("semaphore-lost");
    let relay = Relay::to(server::shared().connect_string());
    let (near, far) = (session(server::shared()), connect(&relay.connect_string(), SHORT));
    let lost = semaphore(&far, &dir).acquire().unwrap();
    let _held: Vec<_> = (1..PERMITS).map(|_| semaphore(&near, &dir).acquire().unwrap()).collect();
    assert!(semaphore(&near, &dir).try_acquire().unwrap().is_none());
    relay.swallow();
    let next_permit = semaphore(&near, &dir).try_acquire_for(deadline()).unwrap().unwrap();
    assert!(!lost.is_owner() && next_permit.is_owner());
    assert!(matches!(next(lost.lost()), LossReason::LeaseExpired | LossReason::SessionLost));
}

#[test]
fn requests_of_curator_take_permits() {
    let (session, dir) = (session(server::shared()), unique_dir("semaphore-curator"));
    let observer = Observer::at(server::shared());
    for _ in 0..PERMITS - 1 {
        let prefix = format!("{}/_c_5f0a5bd1-97a1-4c3c-9b2e-a7a4ab4c1ac9-lease-", leases(&dir));
        if !observer.exists(&leases(&dir)) {
            observer.create_persistent(&leases(&dir));
        }
        let (acl, mode) = (Acl::open_unsafe(), CreateMode::EphemeralSequential);
        observer.zk().create(&prefix, b"", &acl, mode).unwrap();
    }
    let permit = semaphore(&session, &dir).acquire().unwrap();
    assert!(semaphore(&session, &dir).try_acquire().unwrap().is_none());
    permit.release().unwrap();
    assert!(semaphore(&session, &dir).try_acquire().unwrap().is_some());
}
