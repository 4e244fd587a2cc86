//! Tests of locks and trackers on handles of the crate `zookeeper`, on real servers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report, and the output is shown with the report"
)]

#[path = "../../../tests/support/contract/mod.rs"]
mod contract;
#[path = "../../../tests/integration/fixtures.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod fixtures;
#[path = "../support/handle.rs"]
mod handle;
#[path = "../../../tests/support/one_server.rs"]
mod one_server;
#[path = "../../../tests/support/raw_client.rs"]
mod raw_client;
#[path = "../../../tests/support/mod.rs"]
mod support;

mod contract_of_clients;

use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::data::NodeTracker;
use zookeeper_recipes_lock::locks::{Repeat, RunOnce};
use zookeeper_recipes_lock::queue::LockDirectory;
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorKind, ErrorReason, LockError, LockOptions, LossReason, ProtocolSupport,
    RetryPolicy, Session, SessionState, Wait, WriteLock, ZooKeeperOperation,
};
use zookeeper_recipes_lock_blocking::{adapter, error_of, open_session};

use fixtures::{Call, ErrorVariant, LONG, Observer, RecordingListener, SHORT, next, session, unique_dir};
use support::relay::Relay;
use support::server;
use support::wait::{deadline, eventually};

/// Opens a session on a new handle.
fn on_a_handle(connect_string: &str, timeout: Duration) -> Session {
    let connect_string = connect_string.to_owned();
    let connect = move || ZooKeeper::connect(&connect_string, timeout, |_| {});
    open_session(connect, timeout, false).unwrap()
}

/// A call on a handle that is still starting may never be answered, so no call is made before the handle's
/// first state.
#[test]
fn handle_is_not_called_before_it_reports_its_state() {
    let relay = Relay::with_delay(server::shared().connect_string(), Duration::from_millis(10));
    // On a busy machine, the state may come too late, so this tries several times.
    let has_contact = |_| {
        let zk = ZooKeeper::connect(&relay.connect_string(), LONG, |_| {}).unwrap();
        adapter(zk, LONG).unwrap().subscribe(Arc::new(|_| {}))
    };
    assert!((0..20).any(has_contact));
}

fn cut_and_reconnect(relay: &Relay, session: &Session) {
    let states = session.subscribe();
    relay.cut();
    assert_eq!(next(&states), SessionState::Suspended);
    assert_eq!(next(&states), SessionState::Connected);
}

#[test]
fn lock_passes_between_a_handle_and_the_crates_connection() {
    let dir = unique_dir("handle-lock");
    let theirs = on_a_handle(&server::shared().connect_string(), LONG);
    let ours = session(server::shared());
    let locks = [&theirs, &ours, &theirs].map(|session| BlockingWriteLock::new(session, &dir).unwrap());
    let mut token = None;
    for lock in &locks {
        let guard = lock.lock().unwrap();
        assert!(guard.is_owner());
        for other in &locks {
            assert!(other.try_lock().unwrap().is_none());
            assert!(other.try_lock_for(Duration::from_millis(50)).unwrap().is_none());
        }
        let former = token.replace(guard.fencing_token().unwrap());
        assert!(former < token);
        guard.unlock().unwrap();
    }
    assert!(Observer::at(server::shared()).children(&dir).is_empty());
}

#[test]
fn waiters_on_a_handle_acquire_one_after_the_other() {
    let dir = unique_dir("handle-waiters");
    let (theirs, ours) = (on_a_handle(&server::shared().connect_string(), LONG), session(server::shared()));
    let observer = Observer::at(server::shared());
    let guard = BlockingWriteLock::new(&ours, &dir).unwrap().lock().unwrap();
    let lock = BlockingWriteLock::new(&theirs, &dir).unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..3).map(|_| scope.spawn(|| lock.lock().unwrap().unlock().unwrap())).collect();
        observer.await_children(&dir, 4);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        guard.unlock().unwrap();
    });
    assert!(observer.children(&dir).is_empty());
}

#[test]
fn owner_and_waiter_on_a_handle_survive_a_reconnect() {
    let relay = Relay::to(server::shared().connect_string());
    let far = on_a_handle(&relay.connect_string(), LONG);
    let owned = BlockingWriteLock::new(&far, &unique_dir("handle-owner")).unwrap().lock().unwrap();
    let dir = unique_dir("handle-waiter");
    let near = session(server::shared());
    let ahead = BlockingWriteLock::new(&near, &dir).unwrap().lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&far, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    cut_and_reconnect(&relay, &far);
    assert!(owned.is_owner(), "{:?}", owned.loss());
    // The watch on the old connection is gone, so only a watch on the new connection can fire.
    ahead.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    owned.unlock().unwrap();
}

#[test]
fn owner_on_a_silent_handle_stops_before_another_acquires() {
    let relay = Relay::to(server::shared().connect_string());
    let far = on_a_handle(&relay.connect_string(), SHORT);
    let dir = unique_dir("handle-silence");
    let lock = BlockingWriteLock::new(&far, &dir).unwrap();
    let guard = lock.lock().unwrap();
    let near = session(server::shared());
    let waiter = WriteLock::new(&near, &dir).unwrap();
    assert!(!waiter.lock().unwrap());
    relay.swallow();
    let until = Instant::now() + deadline();
    while !waiter.is_owner() {
        assert!(Instant::now() < until, "the waiter did not take over");
        thread::yield_now();
    }
    assert!(!guard.is_owner(), "two owners at once");
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
    eventually("the session is lost", || far.state() == SessionState::Lost);
    assert!(lock.lock().unwrap_err().is_session_lost());
}

#[test]
fn deleted_znode_on_a_handle_is_a_loss() {
    let dir = unique_dir("handle-deleted");
    let session = on_a_handle(&server::shared().connect_string(), LONG);
    let guard = BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap();
    Observer::at(server::shared()).delete(guard.id());
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
}

#[test]
fn tracker_on_a_handle_reports_changes_also_after_a_reconnect() {
    let relay = Relay::to(server::shared().connect_string());
    let far = on_a_handle(&relay.connect_string(), LONG);
    let (path, observer) = (unique_dir("handle-tracker"), Observer::at(server::shared()));
    observer.create_persistent(&path);
    let tracker = NodeTracker::start(&far, &path, Wait::timeout(deadline())).unwrap();
    let set = |data: &str| {
        observer.zk().set_data(&path, data.as_bytes()).unwrap();
        eventually("the data is reported", || {
            tracker.current().unwrap().is_some_and(|node| *node.data == *data.as_bytes())
        });
    };
    set("1");
    set("2");
    cut_and_reconnect(&relay, &far);
    set("3");
    observer.delete(&path);
    assert!(tracker.wait_deleted(deadline()).unwrap());
}

/// An operation that writes through the application's handle.
struct Write<'a> {
    handle: &'a ZooKeeper,
    path: &'a str,
    attempts: usize,
}

impl ZooKeeperOperation for Write<'_> {
    type Output = ();

    fn execute(&mut self) -> Result<(), LockError> {
        self.attempts += 1;
        let written = self.handle.set_data(self.path, b"new".to_vec(), None);
        written.map(drop).map_err(|error| LockError::from_client("write", self.path, error_of(error)))
    }
}

#[test]
fn operation_on_a_handle_is_retried_after_a_lost_connection() {
    let relay = Relay::to(server::shared().connect_string());
    let handle = handle::connect(&relay.connect_string(), LONG);
    let session = on_a_handle(&relay.connect_string(), LONG);
    let path = unique_dir("handle-write");
    let policy = RetryPolicy::constant(Duration::from_millis(50)).with_attempts(u32::MAX);
    let options = LockOptions::new().retry(policy.with_total_time(deadline()));
    let support = ProtocolSupport::with_options(&session, options).unwrap();
    support.ensure_path_exists(&path).unwrap();

    relay.refuse();
    let mut write = Write { handle: &handle, path: &path, attempts: 0 };
    let error = write.execute().unwrap_err();
    assert!(error.kind() == ErrorKind::Retry && error.path() == Some(&path), "{error:?}");
    thread::scope(|scope| {
        let retried = scope.spawn(|| support.retry_operation(|| write.execute()));
        relay.restore();
        retried.join().unwrap().unwrap();
    });
    assert!(write.attempts >= 2);
    let boxed: Box<dyn ZooKeeperOperation<Output = ()>> = Box::new(|| Err(LockError::other("no disk")));
    assert_eq!(
        support.retry_operation(boxed).unwrap_err().to_string(),
        "no disk",
        "an error of the operation must not be retried"
    );
    assert_eq!(Observer::at(server::shared()).data(&path), b"new");
}

#[test]
fn handle_that_cannot_be_opened_is_an_error() {
    let refused = open_session(|| Err(zookeeper::ZkError::AuthFailed), LONG, true);
    assert!(matches!(refused, Err(ref error) if error.reason() == ErrorReason::AccessDenied), "{refused:?}");
}

#[test]
fn closed_handle_is_refused() {
    let connect = || {
        let zk = handle::connect(&server::shared().connect_string(), LONG);
        zk.exists("/", false).and_then(|_| zk.close())?;
        Ok(zk)
    };
    let error = open_session(connect, Duration::from_secs(1), false).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NoServer, "{error}");
}

#[test]
fn transaction_on_a_handle_of_the_crate_zookeeper_is_unsupported() {
    let session = on_a_handle(&server::shared().connect_string(), LONG);
    let guard = BlockingWriteLock::new(&session, &unique_dir("commit")).unwrap().lock().unwrap();
    let error = guard.commit(|changes| changes.create("/made", "")).unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Permanent, ErrorReason::Unsupported), "{error:?}");
    guard.unlock().unwrap();
}

#[test]
fn watches_work_on_a_handle() {
    let dir = unique_dir("handle-watches");
    let theirs = on_a_handle(&server::shared().connect_string(), LONG);
    let directory = LockDirectory::new(&theirs, &dir).unwrap();
    let leader = directory.watch_leader(Wait::forever()).unwrap();
    let queue = directory.watch_queue(Wait::forever()).unwrap();
    let ours = session(server::shared());
    for _ in 0..3 {
        let lock = WriteLock::new(&ours, &dir).unwrap();
        assert!(lock.lock().unwrap());
        let leads = |path: Option<String>| leader.leader().unwrap().map(|leader| leader.path) == path;
        eventually("the candidate leads", || leads(lock.id()));
        eventually("the candidate is in the queue", || queue.names().unwrap().len() == 1);
        lock.unlock().unwrap();
        eventually("nobody leads", || leads(None));
        eventually("the queue is empty", || queue.names().unwrap().is_empty());
    }
}

#[test]
fn job_on_a_handle_of_the_crate_zookeeper_is_unsupported() {
    let session = on_a_handle(&server::shared().connect_string(), LONG);
    for repeat in [Repeat::Never, Repeat::UntilSuccess] {
        let jobs = RunOnce::with_options(&session, &unique_dir("once"), LockOptions::new(), repeat).unwrap();
        let error = jobs.run::<(), Infallible>("a", |_| panic!("it must not run")).unwrap_err();
        assert_eq!(error.reason(), ErrorReason::Unsupported, "{error:?}");
    }
}

#[test]
fn idle_session_on_a_handle_stays_in_contact_and_survives_a_disconnect() {
    let relay = Relay::to(server::shared().connect_string());
    let session = on_a_handle(&relay.connect_string(), SHORT);
    let states = session.subscribe();
    // Longer than the session or the handle lives without pings.
    assert!(states.recv_timeout(SHORT * 5 / 2).is_err(), "an idle session is in contact");
    cut_and_reconnect(&relay, &session);
}

#[test]
fn session_on_a_handle_ends_with_its_znodes_when_it_is_closed() {
    let dir = unique_dir("handle-closed");
    let session = on_a_handle(&server::shared().connect_string(), LONG);
    let guard = BlockingWriteLock::new(&session, &dir).unwrap().lock().unwrap();
    let observer = Observer::at(server::shared());
    observer.await_children(&dir, 1);
    session.close();
    assert!(!guard.is_owner());
    assert!(observer.children(&dir).is_empty(), "the session has ended before `close` returns");
}
