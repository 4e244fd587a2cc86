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

use crossbeam_channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use support::leaks::{assert_no_threads, threads_named};
use support::relay::Relay;
use support::server::Server;
use support::wait::{deadline, eventually};
use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{
    BlockingWriteLock, Candidate, Leadership, LockDirectory, NodeTracker, Revocation, Revoker, Session, Wait,
    WriteLock,
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
    a_connect_that_succeeds_after_its_deadline_leaves_no_session(&server);
    // The directory of the locks and its parent, made on the way, are persistent.
    eventually("only the lock directory is left", || server.metric("znode_count") == znodes + 2);
    eventually("no session is left", || server.session_count() == 0);
    assert_eq!(server.watch_count(), 0);
}

fn a_thousand_waiting_locks_cost_no_thread_each(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let locks: Vec<WriteLock> = (0..1000)
        .map(|_| {
            let lock = WriteLock::new(&session, "/leaks/queue").unwrap();
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
    let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
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
    let (leader, queue) =
        (directory.watch_leader(Wait::forever()).unwrap(), directory.watch_queue(Wait::forever()).unwrap());
    let trackers: Vec<NodeTracker> = (0..1000)
        .map(|number| NodeTracker::start(&session, &format!("/leaks/{number}"), Wait::forever()).unwrap())
        .collect();
    assert!(threads_named("zk-lock-").len() <= 20, "{:?}", threads_named("zk-lock-"));
    // Each holds the session: the last one lets it go.
    drop((session, directory, leader, queue));
    drop(trackers);
    assert_no_threads("zk-lock-");
}

fn a_session_lost_in_silence_leaves_no_thread(server: &Server) {
    let relay = Relay::to(server.connect_string());
    let session = Session::connect(&relay.connect_string(), Duration::from_secs(2)).unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
    let guard = lock.lock().unwrap();
    relay.swallow();
    guard.lost().recv_timeout(deadline()).unwrap();
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
            let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
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
    let guard = BlockingWriteLock::new(&session, "/leaks/queue").unwrap().lock().unwrap();
    let revoker = Revoker::new(&session);
    assert_eq!(revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap(), Revocation::Forced);
    drop((guard, revoker, session));
    assert_no_threads("zk-lock-");
}

fn a_borrowed_handle_is_all_that_stays(server: &Server) {
    let zk = Arc::new(ZooKeeper::connect(&server.connect_string(), LONG, |_| {}).unwrap());
    let session = Session::from_zookeeper(Arc::clone(&zk), LONG).unwrap();
    let lock = WriteLock::new(&session, "/leaks/queue").unwrap();
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
    relay.restore();
    relay.swallow();
    Session::connect(&relay.connect_string(), Duration::from_secs(1)).unwrap_err();
    relay.cut();
    assert_no_threads("zk-lock-");
}

/// The client library's handle comes when the call has returned, and during an outage. A handle that
/// is merely dropped then waits for the server, or keeps its session after the outage.
fn a_connect_that_succeeds_after_its_deadline_leaves_no_session(server: &Server) {
    let relay = Relay::to(server.connect_string());
    let (begins, go_on) = Gate::close();
    Session::connect(&relay.connect_string(), Duration::from_secs(2)).unwrap_err();
    begins.try_recv().expect("the client library began to connect, and was held up");
    relay.swallow();
    drop(go_on);
    assert_no_threads("zk-lock-connect");
    relay.restore();
    eventually("the client library's thread ends", || threads_named("io").is_empty());
    assert_no_threads("zk-lock-");
}

/// A logger that holds up the client library as it begins to connect.
struct Gate;

/// Where it says that it begins, and what is disconnected when it may go on.
static GATE: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

impl Gate {
    /// Returns where the next connect is announced, and what lets it go on when it is dropped.
    fn close() -> (Receiver<()>, Sender<()>) {
        let ((begin, begins), (go_on, may_go_on)) = (bounded(1), bounded(0));
        *GATE.lock() = Some((begin, may_go_on));
        log::set_logger(&Gate).expect("no other logger is set");
        log::set_max_level(log::LevelFilter::Debug);
        (begins, go_on)
    }
}

impl log::Log for Gate {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("zookeeper::")
    }

    fn log(&self, record: &log::Record<'_>) {
        let begins =
            self.enabled(record.metadata()) && record.args().to_string().starts_with("Initiating connection");
        let gate = if begins { GATE.lock().take() } else { None };
        if let Some((begin, may_go_on)) = gate {
            begin.send(()).expect("the test waits for it");
            let _ = may_go_on.recv_timeout(deadline());
        }
    }

    fn flush(&self) {}
}
