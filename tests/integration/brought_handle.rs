//! Locks and trackers on handles of the crate `zookeeper` that the application has opened.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::conformance::own;
use zookeeper_recipes_lock::{
    BlockingWriteLock, LockError, LockOptions, LossReason, NodeTracker, ProtocolSupport, RetryPolicy,
    Session, SessionState, Wait, WriteLock, ZooKeeperOperation,
};

use crate::fixtures::{
    Call, ErrorVariant, LONG, Observer, RecordingListener, SHORT, next, session, unique_dir,
};
use crate::handle;
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{deadline, eventually};

/// A session on a new handle.
fn on_a_handle(connect_string: &str, timeout: Duration) -> Session {
    let handle = Arc::new(handle::connect(connect_string, timeout));
    Session::from_zookeeper(handle, timeout).unwrap()
}

/// A call on a handle that has yet to start may get no answer, so no call is made before its first state.
#[test]
fn handle_is_not_called_before_it_reports_its_state() {
    let relay = Relay::with_delay(server::shared().connect_string(), Duration::from_millis(10));
    // On a busy machine the state may come too late.
    let has_contact = |_| {
        let zk = Arc::new(ZooKeeper::connect(&relay.connect_string(), LONG, |_| {}).unwrap());
        own::adapter(zk, LONG).subscribe(Arc::new(|_| {}))
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
    // The watch was set on the old connection; only one on the new connection can fire.
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
        observer.zk().set_data(&path, data.into(), None).unwrap();
        eventually("the data are reported", || {
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

/// Writes on a handle of the application's.
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
        written.map(drop).map_err(|error| LockError::from_client("write", self.path, error.into()))
    }
}

#[test]
fn operation_on_a_handle_is_retried_after_a_lost_connection() {
    let relay = Relay::to(server::shared().connect_string());
    let handle = Arc::new(handle::connect(&relay.connect_string(), LONG));
    let session = Session::from_zookeeper(Arc::clone(&handle), LONG).unwrap();
    let path = unique_dir("handle-write");
    let policy = RetryPolicy::constant(Duration::from_millis(50)).with_attempts(u32::MAX);
    let options = LockOptions::new().retry(policy.with_total_time(deadline()));
    let support = ProtocolSupport::with_options(&session, options).unwrap();
    support.ensure_path_exists(&path).unwrap();

    relay.refuse();
    let mut write = Write { handle: &handle, path: &path, attempts: 0 };
    let error = write.execute().unwrap_err();
    assert!(error.is_recoverable() && error.path() == Some(&path), "{error:?}");
    thread::scope(|scope| {
        let retried = scope.spawn(|| support.retry_operation(|| write.execute()));
        relay.restore();
        retried.join().unwrap().unwrap();
    });
    assert!(write.attempts >= 2);
    let boxed: Box<dyn ZooKeeperOperation<Output = ()>> = Box::new(|| Err(LockError::other("no disk")));
    assert_eq!(support.retry_operation(boxed).unwrap_err().to_string(), "no disk", "it is not retried");
    assert_eq!(Observer::at(server::shared()).data(&path), b"new");
}

#[test]
fn factory_on_a_handle_that_fails_is_an_error() {
    let refused =
        Session::from_client_factory(|| -> Result<Arc<zookeeper_recipes_lock::fake::SimulatedClient>, _> {
            Err(LockError::from_client("connect", "the ensemble", zookeeper::ZkError::AuthFailed.into()))
        });
    assert!(matches!(refused, Err(LockError::AccessDenied { .. })), "{refused:?}");
}
