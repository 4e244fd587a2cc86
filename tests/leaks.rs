//! Nothing is left: no thread, no znode, no watch, once everything is dropped. A binary of its own, as it looks at the
//! whole process.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report"
)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::leaks::{assert_no_threads, threads_named};
use support::relay::Relay;
use support::server::Server;
use support::wait::eventually;
use zookeeper_recipes_lock::{
    BlockingWriteLock, Candidate, Leadership, LockDirectory, NodeTracker, Revocation, Revoker, Session,
    WriteLock, ZooKeeper,
};

const LONG: Duration = Duration::from_secs(30);

/// One test, so that nobody else's threads are about.
#[test]
fn nothing_is_left_when_everything_is_dropped() {
    let server = Server::start();
    let znodes = server.metric("znode_count");
    a_thousand_waiting_locks_cost_no_thread_each(&server);
    timed_out_attempts_leave_no_watch(&server);
    a_thousand_trackers_cost_no_thread_each(&server);
    a_session_lost_in_silence_leaves_no_thread(&server);
    a_dropped_candidate_leaves_no_thread(&server);
    a_revocation_leaves_nothing(&server);
    a_borrowed_handle_is_all_that_stays(&server);
    a_failed_connect_leaves_no_thread(&server);
    // The directory of the locks and its parent, made on the way, are persistent.
    eventually("only the lock directory is left", || server.metric("znode_count") == znodes + 2);
    eventually("no session is left", || server.session_count() == 0);
    assert_eq!(server.watch_count(), 0);
}

fn a_thousand_waiting_locks_cost_no_thread_each(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let locks: Vec<WriteLock> = (0..1000)
        .map(|_| {
            let lock = WriteLock::new(&session, "/leaks/queue", None).unwrap();
            lock.lock().unwrap();
            lock
        })
        .collect();
    assert!(locks[0].is_owner());
    assert!(threads_named("zk-lock-").len() <= 20, "{:?}", threads_named("zk-lock-"));
    drop(session);
    drop(locks);
    assert_no_threads("zk-lock-");
}

fn timed_out_attempts_leave_no_watch(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/queue", None).unwrap();
    let guard = lock.lock().unwrap();
    for _ in 0..100 {
        assert!(lock.try_lock_for(Duration::from_millis(1)).unwrap().is_none());
    }
    eventually("the attempts' znodes are gone", || server.metric("ephemerals_count") == 1);
    // On the owner's znode, by its owner and by those that waited for it: one watch for a path and a session.
    eventually("one watch is left", || server.watch_count() <= 1);
    guard.unlock().unwrap();
}

fn a_thousand_trackers_cost_no_thread_each(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let directory = LockDirectory::new(&session, "/leaks/queue").unwrap();
    let (leader, queue) = (directory.watch_leader().unwrap(), directory.watch_queue().unwrap());
    let trackers: Vec<NodeTracker> =
        (0..1000).map(|number| NodeTracker::new(&session, &format!("/leaks/{number}")).unwrap()).collect();
    assert!(threads_named("zk-lock-").len() <= 20, "{:?}", threads_named("zk-lock-"));
    // Each holds the session: the last one lets it go.
    drop((session, directory, leader, queue));
    drop(trackers);
    assert_no_threads("zk-lock-");
}

fn a_session_lost_in_silence_leaves_no_thread(server: &Server) {
    let relay = Relay::to(server.connect_string());
    let session = Session::connect(&relay.connect_string(), Duration::from_secs(2)).unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/queue", None).unwrap();
    let guard = lock.lock().unwrap();
    relay.swallow();
    guard.lost().recv_timeout(support::wait::deadline()).unwrap();
    drop(guard);
    drop(lock);
    drop(session);
    // A call that is stuck holds its thread for as long as the network says nothing.
    relay.cut();
    assert_no_threads("zk-lock-");
}

fn a_dropped_candidate_leaves_no_thread(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let candidates: Vec<Candidate> = (0..3)
        .map(|_| {
            let lock = BlockingWriteLock::new(&session, "/leaks/queue", None).unwrap();
            let lead = |leadership: &Leadership| {
                while leadership.wait(LONG) {}
                Ok(())
            };
            Candidate::start(lock, lead).unwrap()
        })
        .collect();
    eventually("one leads", || candidates.iter().any(Candidate::is_leader));
    drop(session);
    drop(candidates);
    assert_no_threads("zk-lock-");
}

fn a_revocation_leaves_nothing(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let guard = BlockingWriteLock::new(&session, "/leaks/queue", None).unwrap().lock().unwrap();
    let revoker = Revoker::new(&session);
    assert_eq!(revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap(), Revocation::Forced);
    drop((guard, revoker, session));
    assert_no_threads("zk-lock-");
}

fn a_borrowed_handle_is_all_that_stays(server: &Server) {
    let zk = Arc::new(ZooKeeper::connect(&server.connect_string(), LONG, |_| {}).unwrap());
    let session = Session::from_zookeeper(Arc::clone(&zk), LONG).unwrap();
    let lock = WriteLock::new(&session, "/leaks/queue", None).unwrap();
    assert!(lock.lock().unwrap());
    drop(session);
    drop(lock);
    assert_no_threads("zk-lock-");
    assert_eq!(Arc::strong_count(&zk), 1);
    assert!(zk.get_children("/leaks/queue", false).unwrap().is_empty());
}

fn a_failed_connect_leaves_no_thread(server: &Server) {
    let relay = Relay::to(server.connect_string());
    relay.refuse();
    Session::connect(&relay.connect_string(), Duration::from_secs(1)).unwrap_err();
    relay.heal();
    relay.swallow();
    Session::connect(&relay.connect_string(), Duration::from_secs(1)).unwrap_err();
    relay.cut();
    assert_no_threads("zk-lock-");
}
