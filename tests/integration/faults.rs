//! Tests of locks under faults: connections that are cut, refused or silent; sessions that end; servers that
//! restart; znodes that others delete.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::locks::Released;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LossReason, Session, SessionState, WriteLock};

use crate::fixtures::{
    Call, ErrorVariant, LONG, Observer, RecordingListener, SHORT, connect, next, session, unique_dir,
};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually, eventually_within, scaled};

/// A server behind a relay that can fail, and a directory.
struct Fixture {
    relay: Relay,
    observer: Observer,
    dir: String,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let relay = Relay::to(server::shared().connect_string());
        Fixture { relay, observer: Observer::at(server::shared()), dir: unique_dir(test) }
    }

    /// Opens a session through the relay.
    fn far(&self, timeout: Duration) -> Session {
        connect(&self.relay.connect_string(), timeout)
    }

    /// Opens a session that bypasses the relay, and holds a lock on it.
    fn held_nearby(&self) -> (Session, WriteLock) {
        let near = session(server::shared());
        let lock = WriteLock::new(&near, &self.dir).unwrap();
        assert!(lock.lock().unwrap());
        (near, lock)
    }

    fn children(&self) -> Vec<String> {
        self.observer.children(&self.dir)
    }

    /// Cuts the connection and waits until the session is proven to be alive again.
    fn cut_and_reconnect(&self, session: &Session) {
        let states = session.subscribe();
        self.relay.cut();
        await_state(&states, SessionState::Suspended);
        await_state(&states, SessionState::Connected);
    }
}

fn await_state(states: &crossbeam_channel::Receiver<SessionState>, wanted: SessionState) {
    let until = Instant::now() + deadline();
    while states.recv_deadline(until).unwrap_or_else(|_| panic!("state not reached: {wanted:?}")) != wanted {}
}

// ---- reconnects

#[test]
fn waiter_acquires_after_a_reconnect() {
    let fixture = Fixture::new("reconnect-waiting");
    let (_near, holder) = fixture.held_nearby();
    let far = fixture.far(LONG);
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&far, &fixture.dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    fixture.cut_and_reconnect(&far);
    // The watch on the old connection is gone, so only a watch on the new connection can fire.
    holder.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert!(waiter.is_owner());
}

#[test]
fn waiter_whose_turn_came_during_the_outage_acquires() {
    let fixture = Fixture::new("turn-in-outage");
    let (_near, holder) = fixture.held_nearby();
    let far = fixture.far(LONG);
    let waiter = WriteLock::new(&far, &fixture.dir).unwrap();
    assert!(!waiter.lock().unwrap());
    fixture.relay.refuse();
    holder.unlock().unwrap();
    assert!(!waiter.is_owner());
    fixture.relay.restore();
    eventually("the waiter owns the lock", || waiter.is_owner());
}

#[test]
fn owner_keeps_the_lock_through_a_short_disconnect() {
    let fixture = Fixture::new("reconnect-owning");
    let far = fixture.far(LONG);
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&far, &fixture.dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    let id = lock.id();
    let states = far.subscribe();
    fixture.relay.cut();
    await_state(&states, SessionState::Suspended);
    assert!(lock.is_owner(), "the lock must be owned while its lease lasts");
    await_state(&states, SessionState::Connected);
    assert!(lock.is_owner());
    assert_eq!(lock.id(), id);
    assert!(lock.lock().unwrap(), "the request must be the same");
    assert_eq!(fixture.children().len(), 1);
    lock.unlock().unwrap();
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn deletion_during_a_disconnect_is_reported_after_it() {
    let fixture = Fixture::new("gone-in-outage");
    let far = fixture.far(LONG);
    let guard = BlockingWriteLock::new(&far, &fixture.dir).unwrap().lock().unwrap();
    fixture.relay.refuse();
    fixture.observer.delete(guard.id());
    fixture.relay.restore();
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner());
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
}

#[test]
fn waiter_survives_a_restart_of_the_server() {
    let server = Server::start();
    let (ours, theirs) = (session(&server), session(&server));
    let dir = unique_dir("restart");
    let holder = WriteLock::new(&theirs, &dir).unwrap();
    assert!(holder.lock().unwrap());
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&ours, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    server.stop();
    eventually("the outage is noticed", || ours.state() == SessionState::Suspended);
    server.restart();
    eventually("both sessions are connected", || {
        ours.state() == SessionState::Connected && theirs.state() == SessionState::Connected
    });
    assert!(holder.is_owner() && !waiter.is_owner());
    holder.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
}

// ---- lost replies

#[test]
fn create_with_a_lost_reply_leaves_one_znode_and_acquires() {
    let fixture = Fixture::new("lost-reply");
    let far = fixture.far(LONG);
    let lock = BlockingWriteLock::new(&far, &fixture.dir).unwrap();
    drop(lock.lock().unwrap());
    fixture.observer.await_children(&fixture.dir, 0);
    thread::scope(|scope| {
        fixture.relay.hold_replies();
        let attempt = scope.spawn(|| lock.lock());
        fixture.observer.await_children(&fixture.dir, 1);
        let created = fixture.children();
        fixture.relay.cut();
        let guard = attempt.join().unwrap().unwrap();
        assert!(guard.is_owner());
        assert_eq!(fixture.children(), created);
        assert!(guard.id().ends_with(&created[0]), "the znode must be found, not created again");
    });
}

#[test]
fn create_with_a_lost_reply_is_undone_after_a_timeout() {
    let fixture = Fixture::new("lost-reply-given-up");
    let far = fixture.far(LONG);
    let lock = BlockingWriteLock::new(&far, &fixture.dir).unwrap();
    drop(lock.lock().unwrap());
    fixture.observer.await_children(&fixture.dir, 0);
    fixture.relay.hold_replies();
    let start = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(300)).unwrap().is_none());
    assert!(start.elapsed() < scaled(Duration::from_secs(10)), "the call must return by its deadline");
    fixture.observer.await_children(&fixture.dir, 1);
    fixture.relay.cut();
    fixture.observer.await_children(&fixture.dir, 0);
}

#[test]
fn unlock_during_an_outage_deletes_the_znode_after_it() {
    let fixture = Fixture::new("unlock-outage");
    let far = fixture.far(LONG);
    let guard = BlockingWriteLock::new(&far, &fixture.dir).unwrap().lock().unwrap();
    let states = far.subscribe();
    fixture.relay.refuse();
    await_state(&states, SessionState::Suspended);
    assert_eq!(guard.unlock().unwrap(), Released::Pending);
    assert_eq!(fixture.children().len(), 1, "the znode must exist as long as the session");
    fixture.relay.restore();
    fixture.observer.await_children(&fixture.dir, 0);
}

#[test]
fn guard_dropped_during_an_outage_is_released_after_it() {
    let fixture = Fixture::new("drop-outage");
    let far = fixture.far(LONG);
    let guard = BlockingWriteLock::new(&far, &fixture.dir).unwrap().lock().unwrap();
    fixture.relay.refuse();
    let start = Instant::now();
    drop(guard);
    assert!(start.elapsed() < scaled(Duration::from_secs(2)), "a drop must not wait");
    fixture.relay.restore();
    fixture.observer.await_children(&fixture.dir, 0);
}

#[test]
fn session_closed_during_an_outage_stays_closed() {
    let fixture = Fixture::new("close-outage");
    let far = fixture.far(LONG);
    let guard = BlockingWriteLock::new(&far, &fixture.dir).unwrap().lock().unwrap();
    let states = far.subscribe();
    fixture.relay.refuse();
    await_state(&states, SessionState::Suspended);
    far.close();
    assert!(!guard.is_owner());
    drop(guard);
    drop(far);
    // Connecting takes a while, during which the first attempts to close the session fail.
    assert!(Session::connect(&fixture.relay.connect_string(), Duration::from_secs(1)).is_err());
    fixture.relay.restore();
    // The client reconnects even though its session is closed. The znode must be deleted long before the
    // session timeout has passed.
    eventually_within(scaled(LONG / 2), "the znode is gone", || fixture.children().is_empty());
}

// ---- sessions that end

#[test]
fn owner_in_a_silent_partition_stops_before_another_acquires() {
    let fixture = Fixture::new("partition-owning");
    let far = fixture.far(SHORT);
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&far, &fixture.dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    let near = session(server::shared());
    let next_owner = WriteLock::new(&near, &fixture.dir).unwrap();
    assert!(!next_owner.lock().unwrap());
    fixture.relay.swallow();
    let until = Instant::now() + deadline();
    // Ask the new owner first. In the other order, a handover between the two questions would look like two
    // owners.
    while !(next_owner.is_owner() && lock.is_owner()) {
        assert!(Instant::now() < until, "the waiter did not take over");
        if next_owner.is_owner() {
            break;
        }
        thread::yield_now();
    }
    assert!(!lock.is_owner(), "two owners at once");
    assert_eq!(next(&calls), Call::Lost(LossReason::LeaseExpired));
    assert!(matches!(far.state(), SessionState::Suspended | SessionState::Lost));
}

#[test]
fn waiting_call_in_a_silent_partition_ends_with_the_session() {
    let fixture = Fixture::new("partition-waiting");
    let (_near, _holder) = fixture.held_nearby();
    let far = fixture.far(SHORT);
    let lock = BlockingWriteLock::new(&far, &fixture.dir).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().map(drop));
        fixture.observer.await_children(&fixture.dir, 2);
        fixture.relay.swallow();
        let start = Instant::now();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.is_session_lost(), "{error}");
        assert!(start.elapsed() < scaled(SHORT + Duration::from_secs(3)), "{:?}", start.elapsed());
    });
    assert_eq!(far.state(), SessionState::Lost);
    assert!(lock.lock().unwrap_err().is_session_lost());
    fixture.observer.await_children(&fixture.dir, 1);
    fixture.relay.restore();
    // A new session works immediately.
    let again = fixture.far(SHORT);
    let lock = BlockingWriteLock::new(&again, &fixture.dir).unwrap();
    assert!(lock.try_lock().unwrap().is_none());
}

#[test]
fn deadlines_hold_and_drops_return_while_packets_are_swallowed() {
    let fixture = Fixture::new("silence");
    let far = fixture.far(LONG);
    let lock = BlockingWriteLock::new(&far, &fixture.dir).unwrap();
    let guard = lock.lock().unwrap();
    let listening = WriteLock::new(&far, &fixture.dir).unwrap();
    assert!(!listening.lock().unwrap());
    fixture.relay.swallow();
    let start = Instant::now();
    for _ in 0..40 {
        // There are many attempts, because each may leave a thread stuck.
        assert!(lock.try_lock_for(Duration::from_millis(10)).unwrap().is_none());
    }
    drop(guard);
    drop(listening);
    drop(lock);
    drop(far);
    assert!(start.elapsed() < scaled(Duration::from_secs(5)), "{:?}", start.elapsed());
    fixture.relay.restore();
    fixture.observer.await_children(&fixture.dir, 0);
}

#[test]
fn session_that_the_servers_do_not_know_is_reported_as_lost() {
    let server = Server::start();
    let observer_dir = unique_dir("unknown-session");
    let session = session(&server);
    let states = session.subscribe();
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &observer_dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    // A server that has lost its data does not know the session, and refuses to resume it.
    server.stop();
    fs::remove_dir_all(server.dir().join("data").join("version-2")).unwrap();
    server.restart();
    // The server accepts a client only if the client has seen no transaction that is later than the server's
    // last one.
    let observer = Observer::at(&server);
    for number in 0..200 {
        observer.create_persistent(&format!("/busy-{number}"));
    }
    await_state(&states, SessionState::Lost);
    assert_eq!(next(&calls), Call::Lost(LossReason::SessionLost));
    assert!(!lock.is_owner());
    assert!(lock.lock().unwrap_err().is_session_lost());
    assert!(lock.unlock().unwrap_err().is_session_lost());
    let again = crate::fixtures::session(&server);
    assert!(WriteLock::new(&again, &observer_dir).unwrap().lock().unwrap());
}

#[test]
fn queued_request_is_dropped_when_its_session_is_lost() {
    let fixture = Fixture::new("dropped");
    let (_near, _holder) = fixture.held_nearby();
    let far = fixture.far(SHORT);
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&far, &fixture.dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    fixture.relay.swallow();
    assert_eq!(next(&calls), Call::Dropped(LossReason::SessionLost));
    assert!(calls.try_recv().is_err(), "a lock that was not acquired must not be released or lost");
}

// ---- deleted znodes

#[test]
fn owner_gets_the_loss_when_another_deletes_its_znode() {
    let fixture = Fixture::new("deleted-owning");
    let near = session(server::shared());
    let blocking = BlockingWriteLock::new(&near, &fixture.dir).unwrap();
    let guard = blocking.lock().unwrap();
    let token = guard.fencing_token().unwrap();
    fixture.observer.delete(guard.id());
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner());
    assert_eq!(guard.fencing_token().unwrap(), token, "the resource, not the lock, must refuse the token");
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));

    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&near, &fixture.dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    fixture.observer.delete(&lock.id().unwrap());
    assert_eq!(next(&calls), Call::Lost(LossReason::NodeDeleted));
    assert!(!lock.is_owner());
    assert!(lock.lock().unwrap(), "the lock must make a new request");
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn with_lock_fails_when_the_lock_was_taken_away() {
    let fixture = Fixture::new("deleted-inside");
    let near = session(server::shared());
    let lock = BlockingWriteLock::new(&near, &fixture.dir).unwrap();
    let error = lock.with_lock(|guard| fixture.observer.delete(guard.id())).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
}

#[test]
fn waiters_of_a_deleted_queue_fail_and_can_join_again() {
    let fixture = Fixture::new("deleted-parent");
    let (_near, holder) = fixture.held_nearby();
    let waiting = session(server::shared());
    let lock = BlockingWriteLock::new(&waiting, &fixture.dir).unwrap();
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| lock.lock().map(drop))).collect();
        fixture.observer.await_children(&fixture.dir, 4);
        let mut children = fixture.children();
        children.reverse();
        for child in children {
            fixture.observer.delete(&format!("{}/{child}", fixture.dir));
        }
        fixture.observer.delete(&fixture.dir);
        for waiter in waiters {
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
        }
    });
    eventually("the holder notices", || !holder.is_owner());
    assert!(lock.try_lock().unwrap().is_some(), "the directory must be created again");
}
