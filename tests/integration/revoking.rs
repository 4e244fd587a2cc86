//! Tests of revocation: asking holders to release locks, and taking locks away.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zookeeper_recipes_lock::queue::{Revocation, Revoker};
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LockGuard, LossReason, Session, WriteLock};

use crate::child_test::ChildTest;
use crate::fixtures::{
    Call, ErrorVariant, LONG, Observer, RecordingListener, connect, next, session, unique_dir,
};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually};

/// A short grace period.
const SHORT_GRACE: Duration = Duration::from_millis(200);

fn revoker() -> Revoker {
    Revoker::new(&session(server::shared()))
}

fn hold(session: &Session, dir: &str) -> LockGuard {
    BlockingWriteLock::new(session, dir).unwrap().lock().unwrap()
}

// ---- requests

#[test]
fn revocation_is_reported_once_per_acquisition() {
    let session = session(server::shared());
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &unique_dir("asked"), listener).unwrap();
    let revoker = revoker();
    for _ in 0..2 {
        assert!(lock.lock().unwrap());
        assert_eq!(next(&calls), Call::Acquired);
        let id = lock.id().unwrap();
        revoker.request_revocation(&id).unwrap();
        assert_eq!(next(&calls), Call::RevocationRequested);
        revoker.request_revocation(&id).unwrap();
        assert!(lock.is_owner(), "the holder must decide when to release");
        lock.unlock().unwrap();
        assert_eq!(next(&calls), Call::Released);
    }
    assert!(calls.try_recv().is_err());
}

#[test]
fn revocation_message_is_that_of_the_recipe_page() {
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    let guard = hold(&session, &unique_dir("message"));
    observer.zk().set_data(guard.id(), b"unlock").unwrap();
    next(guard.revocation());
    let other = hold(&session, &unique_dir("message"));
    revoker().request_revocation(other.id()).unwrap();
    assert_eq!(observer.data(other.id()), b"unlock");
}

#[test]
fn revocation_of_a_waiter_is_reported_after_acquisition() {
    let session = session(server::shared());
    let dir = unique_dir("asked-waiting");
    let holder = hold(&session, &dir);
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    revoker().request_revocation(&waiter.id().unwrap()).unwrap();
    assert!(holder.revocation().is_empty(), "the message to the waiter must not reach the holder");
    holder.unlock().unwrap();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::RevocationRequested));
}

#[test]
fn revocation_during_a_disconnect_is_reported_after_the_reconnect() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let guard = hold(&far, &unique_dir("asked-in-outage"));
    // Wait for the watch, which is on the connection that will be lost.
    eventually("the holder watches its znode", || server.watch_count() == 1);
    relay.refuse();
    Revoker::new(&session(&server)).request_revocation(guard.id()).unwrap();
    assert!(guard.revocation().is_empty());
    relay.restore();
    next(guard.revocation());
    assert!(guard.is_owner());
}

// ---- force

#[test]
fn release_is_complied_and_the_next_request_acquires() {
    let session = session(server::shared());
    let dir = unique_dir("complies");
    let guard = hold(&session, &dir);
    let path = guard.id().to_owned();
    let complying = thread::spawn(move || {
        next(guard.revocation());
        guard.unlock().unwrap();
    });
    let waiting = thread::spawn({
        let session = session.clone();
        move || drop(hold(&session, &dir))
    });
    let revoked = revoker().force_revocation_after(&path, deadline()).unwrap();
    assert_eq!(revoked, Revocation::Complied);
    complying.join().unwrap();
    waiting.join().unwrap();
}

#[test]
fn holder_that_does_not_release_loses_the_lock_after_the_grace() {
    let session = session(server::shared());
    let dir = unique_dir("deaf");
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    let waiting = thread::spawn({
        let session = session.clone();
        move || drop(hold(&session, &dir))
    });
    let (revoker, id) = (revoker(), lock.id().unwrap());
    revoker.request_revocation(&id).unwrap();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::RevocationRequested));
    let begun = Instant::now();
    assert_eq!(revoker.force_revocation_after(&id, SHORT_GRACE).unwrap(), Revocation::Forced);
    assert!(begun.elapsed() >= SHORT_GRACE);
    assert_eq!(next(&calls), Call::Lost(LossReason::NodeDeleted));
    assert!(!lock.is_owner());
    waiting.join().unwrap();
}

#[test]
fn unreachable_holder_loses_the_lock_and_gets_a_late_report() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let dir = unique_dir("unreachable");
    let guard = hold(&far, &dir);
    let token = guard.fencing_token().unwrap();
    relay.swallow();
    let revoked = revoker().force_revocation_after(guard.id(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    let next_guard = hold(&session(server::shared()), &dir);
    // There are two owners at once. This is the documented price of force: the holder only has its own clock
    // to go by.
    assert!(next_guard.is_owner() && guard.is_owner());
    assert!(token < next_guard.fencing_token().unwrap());
    relay.restore();
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner() && next_guard.is_owner());
}

/// Runs this test in another process, which holds the lock and is then stopped.
#[test]
fn stopped_holder_loses_the_lock_and_gets_a_late_report() {
    const NAME: &str = "revoking::stopped_holder_loses_the_lock_and_gets_a_late_report";
    if let Some((connect_string, dir)) = ChildTest::arguments() {
        let session = connect(&connect_string, LONG);
        let guard = hold(&session, &dir);
        ChildTest::send(guard.id());
        ChildTest::send(&format!("{:?}", next(guard.lost())));
        assert!(!guard.is_owner());
        return;
    }

    let dir = unique_dir("stopped");
    let mut child = ChildTest::start(NAME, &dir);
    let id = child.receive();
    child.process().pause();
    assert_eq!(revoker().force_revocation_after(&id, SHORT_GRACE).unwrap(), Revocation::Forced);
    let next_guard = hold(&session(server::shared()), &dir);
    child.process().signal(Signal::CONT);
    assert_eq!(child.receive(), "NodeDeleted");
    assert!(next_guard.is_owner());
}

#[test]
fn revoked_waiter_leaves_the_queue() {
    let session = session(server::shared());
    let dir = unique_dir("thrown-out");
    let holder = hold(&session, &dir);
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    let revoked = revoker().force_revocation_after(&waiter.id().unwrap(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    holder.unlock().unwrap();
    // The waiter does not notice until the queue moves.
    assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn holder_can_revoke_itself_on_the_same_session() {
    let session = session(server::shared());
    let guard = hold(&session, &unique_dir("own"));
    let revoked = Revoker::new(&session).force_revocation_after(guard.id(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
}

// ---- paths

#[test]
fn revoking_a_missing_request_is_no_such_request() {
    let guard = hold(&session(server::shared()), &unique_dir("gone"));
    let path = guard.id().to_owned();
    guard.unlock().unwrap();
    for error in [
        revoker().request_revocation(&path).unwrap_err(),
        revoker().force_revocation_after(&path, deadline()).unwrap_err(),
    ] {
        assert_eq!((error.reason(), error.path()), (ErrorReason::NoSuchRequest, Some(&*path)), "{error}");
    }
}

#[test]
fn revoker_neither_writes_nor_deletes_a_lock_directory() {
    let observer = Observer::at(server::shared());
    let parent = unique_dir("dirs");
    for dir in [format!("{parent}/orders"), format!("{parent}/order-0000000007")] {
        observer.create_persistent(&dir);
        for error in [
            revoker().request_revocation(&dir).unwrap_err(),
            revoker().force_revocation_after(&dir, Duration::ZERO).unwrap_err(),
        ] {
            assert_eq!(error.reason(), ErrorReason::NotALock, "{error}");
        }
        assert_eq!(observer.data(&dir), b"");
    }
}

#[test]
fn revoker_on_a_closed_session_fails() {
    let holding = session(server::shared());
    let guard = hold(&holding, &unique_dir("closed"));
    let other = session(server::shared());
    let revoker = Revoker::new(&other);
    other.close();
    assert!(revoker.request_revocation(guard.id()).unwrap_err().is_closed());
    assert!(guard.is_owner());
}
