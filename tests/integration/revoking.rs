//! Locks that others ask for, and locks that others take away.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zookeeper_recipes_lock::{
    BlockingWriteLock, LockError, LockGuard, LossReason, Revocation, Revoker, Session, WriteLock,
};

use crate::fixtures::{Call, ErrorVariant, LONG, Notes, Onlooker, connect, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually};
use crate::twin::Twin;

/// A grace that is over soon.
const SHORT_GRACE: Duration = Duration::from_millis(200);

fn revoker() -> Revoker {
    Revoker::new(&session(server::shared()))
}

fn hold(session: &Session, dir: &str) -> LockGuard {
    BlockingWriteLock::new(session, dir).unwrap().lock().unwrap()
}

// ---- being asked

#[test]
fn a_listener_is_told_once_for_each_acquisition() {
    let session = session(server::shared());
    let (notes, calls) = Notes::new();
    let lock = WriteLock::with_listener(&session, &unique_dir("asked"), notes).unwrap();
    let revoker = revoker();
    for _ in 0..2 {
        assert!(lock.lock().unwrap());
        assert_eq!(next(&calls), Call::Acquired);
        let id = lock.id().unwrap();
        revoker.request_revocation(&id).unwrap();
        assert_eq!(next(&calls), Call::RevocationRequested);
        revoker.request_revocation(&id).unwrap();
        assert!(lock.is_owner(), "it is for the holder to decide");
        lock.unlock().unwrap();
        assert_eq!(next(&calls), Call::Released);
    }
    assert!(calls.try_recv().is_err());
}

#[test]
fn the_message_is_the_one_of_the_recipe_page() {
    let session = session(server::shared());
    let onlooker = Onlooker::at(server::shared());
    let guard = hold(&session, &unique_dir("message"));
    onlooker.zk().set_data(guard.id(), b"unlock".to_vec(), None).unwrap();
    next(guard.revocation());
    let other = hold(&session, &unique_dir("message"));
    revoker().request_revocation(other.id()).unwrap();
    assert_eq!(onlooker.data(other.id()), b"unlock");
}

#[test]
fn revocation_of_a_waiter_is_reported_after_acquisition() {
    let session = session(server::shared());
    let dir = unique_dir("asked-waiting");
    let holder = hold(&session, &dir);
    let (notes, calls) = Notes::new();
    let waiter = WriteLock::with_listener(&session, &dir, notes).unwrap();
    assert!(!waiter.lock().unwrap());
    revoker().request_revocation(&waiter.id().unwrap()).unwrap();
    assert!(holder.revocation().is_empty(), "another was asked");
    holder.unlock().unwrap();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::RevocationRequested));
}

#[test]
fn a_holder_that_was_asked_during_a_disconnect_is_told_after_the_reconnect() {
    let server = Server::start();
    let relay = Relay::to(server.connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let guard = hold(&far, &unique_dir("asked-in-outage"));
    // On the connection that goes.
    eventually("the holder has watched its znode", || server.watch_count() == 1);
    relay.refuse();
    Revoker::new(&session(&server)).request_revocation(guard.id()).unwrap();
    assert!(guard.revocation().is_empty());
    relay.restore();
    next(guard.revocation());
    assert!(guard.is_owner());
}

// ---- letting go, or not

#[test]
fn a_holder_that_lets_go_has_complied_and_the_next_one_acquires() {
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
fn a_holder_that_turns_a_deaf_ear_loses_the_lock_after_the_grace_and_is_told() {
    let session = session(server::shared());
    let dir = unique_dir("deaf");
    let (notes, calls) = Notes::new();
    let lock = WriteLock::with_listener(&session, &dir, notes).unwrap();
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
fn a_holder_that_cannot_be_reached_loses_the_lock_and_is_told_when_it_can() {
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let dir = unique_dir("unreachable");
    let guard = hold(&far, &dir);
    let token = guard.fencing_token().unwrap();
    relay.swallow();
    let revoked = revoker().force_revocation_after(guard.id(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    let next_guard = hold(&session(server::shared()), &dir);
    // Two at once, as nothing but its own clock tells this one: the documented price of force.
    assert!(next_guard.is_owner() && guard.is_owner());
    assert!(token < next_guard.fencing_token().unwrap());
    relay.restore();
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner() && next_guard.is_owner());
}

/// Runs itself in a process of its own, which holds the lock and is then stopped.
#[test]
fn a_holder_that_is_stopped_loses_the_lock_and_is_told_when_it_goes_on() {
    const NAME: &str = "revoking::a_holder_that_is_stopped_loses_the_lock_and_is_told_when_it_goes_on";
    if let Some((connect_string, dir)) = Twin::place() {
        let session = connect(&connect_string, LONG);
        let guard = hold(&session, &dir);
        Twin::say(guard.id());
        Twin::say(&format!("{:?}", next(guard.lost())));
        assert!(!guard.is_owner());
        return;
    }

    let dir = unique_dir("stopped");
    let mut twin = Twin::start(NAME, &dir);
    let id = twin.hear();
    twin.process().pause();
    assert_eq!(revoker().force_revocation_after(&id, SHORT_GRACE).unwrap(), Revocation::Forced);
    let next_guard = hold(&session(server::shared()), &dir);
    twin.process().signal(Signal::CONT);
    assert_eq!(twin.hear(), "NodeDeleted");
    assert!(next_guard.is_owner());
}

#[test]
fn a_waiter_can_be_thrown_out_of_the_queue() {
    let session = session(server::shared());
    let dir = unique_dir("thrown-out");
    let holder = hold(&session, &dir);
    let (notes, calls) = Notes::new();
    let waiter = WriteLock::with_listener(&session, &dir, notes).unwrap();
    assert!(!waiter.lock().unwrap());
    let revoked = revoker().force_revocation_after(&waiter.id().unwrap(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    holder.unlock().unwrap();
    // Found out when the queue moves.
    assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn a_holder_revokes_itself_on_its_own_session() {
    let session = session(server::shared());
    let guard = hold(&session, &unique_dir("own"));
    let revoked = Revoker::new(&session).force_revocation_after(guard.id(), SHORT_GRACE).unwrap();
    assert_eq!(revoked, Revocation::Forced);
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
}

// ---- paths

#[test]
fn a_request_that_is_gone_cannot_be_revoked() {
    let guard = hold(&session(server::shared()), &unique_dir("gone"));
    let path = guard.id().to_owned();
    guard.unlock().unwrap();
    for error in [
        revoker().request_revocation(&path).unwrap_err(),
        revoker().force_revocation_after(&path, deadline()).unwrap_err(),
    ] {
        assert!(matches!(&error, LockError::NoSuchRequest { path: named, .. } if *named == path), "{error}");
    }
}

#[test]
fn a_lock_directory_is_neither_written_nor_deleted() {
    let onlooker = Onlooker::at(server::shared());
    let parent = unique_dir("dirs");
    for dir in [format!("{parent}/orders"), format!("{parent}/order-0000000007")] {
        onlooker.create_persistent(&dir);
        for error in [
            revoker().request_revocation(&dir).unwrap_err(),
            revoker().force_revocation_after(&dir, Duration::ZERO).unwrap_err(),
        ] {
            assert!(matches!(error, LockError::NotALockRequest { .. }), "{error}");
        }
        assert_eq!(onlooker.data(&dir), b"");
    }
}

#[test]
fn a_revoker_on_a_closed_session_says_so() {
    let holding = session(server::shared());
    let guard = hold(&holding, &unique_dir("closed"));
    let other = session(server::shared());
    let revoker = Revoker::new(&other);
    other.close();
    assert!(revoker.request_revocation(guard.id()).unwrap_err().is_closed());
    assert!(guard.is_owner());
}
