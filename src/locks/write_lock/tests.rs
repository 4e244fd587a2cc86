//! Tests of the lock with a listener, on the fake server.

use super::*;
use crate::error::ErrorReason;
use std::time::Duration;

use crossbeam_channel::unbounded;

use crate::LossReason;
use crate::client::{Acl, Permissions};
use crate::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::locks::LockEvent;
use crate::tests::{deadline, eventually, in_background, next, open_on_manual_runtime, session_by_factory};

const LONG: Duration = Duration::from_secs(30);

/// A client, and a lock on its session.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    lock: WriteLock,
}

impl Fixture {
    fn new() -> Fixture {
        let server = SimulatedZooKeeper::new();
        server.create("/locks/it", b"");
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let lock = WriteLock::new(&session, "/locks/it").unwrap();
        Fixture { server, client, lock }
    }

    fn owning() -> Fixture {
        let fixture = Fixture::new();
        assert!(fixture.lock.lock().unwrap());
        fixture
    }

    fn waiting() -> Fixture {
        let fixture = Fixture::new();
        fixture.server.create_sequential("/locks/it", "x-other-lock-", None);
        assert!(!fixture.lock.lock().unwrap());
        fixture
    }

    fn delete_znode(&self) {
        self.server.delete(&self.lock.id().unwrap());
    }

    fn await_end(&self) {
        eventually("the end of the request is noticed", || self.lock.id().is_none());
    }
}

/// The lock is not released before the znode is deleted, whichever thread has begun to release it.
#[test]
fn second_unlock_does_not_report_a_deletion_that_is_still_to_come() {
    let fixture = Arc::new(Fixture::owning());
    fixture.client.swallow();
    let first = in_background({
        let fixture = Arc::clone(&fixture);
        move || fixture.lock.unlock()
    });
    eventually("the first call has begun", || !fixture.lock.is_owner());
    let second = in_background({
        let fixture = Arc::clone(&fixture);
        move || fixture.lock.unlock()
    });
    assert_ne!(next(&second).unwrap(), Released::Deleted);
    fixture.client.release();
    assert_eq!(next(&first).unwrap(), Released::Deleted);
    assert_eq!(fixture.lock.unlock().unwrap(), Released::Deleted);
}

#[test]
fn unlock_reports_a_noticed_loss_once() {
    let fixture = Fixture::owning();
    fixture.delete_znode();
    fixture.await_end();
    let error = fixture.lock.unlock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
    fixture.lock.unlock().unwrap();

    let fixture = Fixture::owning();
    fixture.client.expire();
    fixture.await_end();
    assert!(fixture.lock.unlock().unwrap_err().is_session_lost());
    fixture.lock.unlock().unwrap();

    let fixture = Fixture::owning();
    fixture.lock.session().close();
    assert!(fixture.lock.unlock().unwrap_err().is_closed());
}

#[test]
fn unlock_is_pending_until_the_znode_is_deleted() {
    let fixture = Fixture::owning();
    fixture.client.disconnect();
    for _ in 0..3 {
        assert_eq!(fixture.lock.unlock().unwrap(), Released::Pending);
        assert!(!fixture.lock.is_owner() && fixture.lock.id().is_none());
    }
    fixture.client.reconnect();
    eventually("the znode is deleted", || fixture.lock.unlock().unwrap() == Released::Deleted);
    assert!(fixture.server.children("/locks/it").is_empty());

    let fixture = Fixture::owning();
    let acl = [Acl::new(Permissions::READ | Permissions::CREATE, "world", "anyone")];
    fixture.server.set_acl("/locks/it", &acl);
    assert!(fixture.lock.unlock().unwrap_err().is_access_denied());
    assert_eq!(fixture.lock.unlock().unwrap(), Released::Pending);
    // Meanwhile, the lock can be locked again.
    fixture.lock.lock().unwrap();
}

#[test]
fn unlock_reports_an_unnoticed_deletion() {
    let fixture = Fixture::owning();
    let server = fixture.server.clone();
    let znode = fixture.lock.id().unwrap();
    fixture.client.before_next(SimOperation::Delete, move || server.delete(&znode));
    let error = fixture.lock.unlock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
}

#[test]
fn unlock_without_ownership_succeeds() {
    Fixture::new().lock.unlock().unwrap();
    Fixture::waiting().lock.unlock().unwrap();

    let deleted = Fixture::waiting();
    let (server, znode) = (deleted.server.clone(), deleted.lock.id().unwrap());
    deleted.client.before_next(SimOperation::Delete, move || server.delete(&znode));
    deleted.lock.unlock().unwrap();

    let dropped = Fixture::waiting();
    dropped.client.expire();
    dropped.await_end();
    dropped.lock.unlock().unwrap();

    let closed = Fixture::owning();
    closed.lock.close();
    closed.lock.unlock().unwrap();
}

#[test]
fn lock_that_is_unlocked_meanwhile_is_not_owned() {
    let server = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&server, LONG);
    let lock = Arc::new(WriteLock::new(&session, "/locks/it").unwrap());
    let at_step = Arc::clone(&lock);
    // The request starts within the call that makes it.
    client.before_next(SimOperation::Create, move || {
        at_step.unlock().unwrap();
    });
    assert!(!lock.lock().unwrap());
    assert!(lock.lock().unwrap(), "it may lock again");
}

#[test]
fn request_that_waits_for_a_session_is_dropped_when_none_follows() {
    let server = SimulatedZooKeeper::new();
    server.create_sequential("/locks/it", "x-ahead-lock-", None);
    let (made, clients) = unbounded();
    let (go, may_go) = unbounded();
    let of_factory = server.clone();
    go.send(()).unwrap();
    let session = session_by_factory(move || {
        may_go.recv().map_err(LockError::other)?;
        let client = of_factory.connect(LONG);
        let _ = made.send(Arc::clone(&client));
        Ok(client)
    });
    let session = session.unwrap();
    let (events, received) = unbounded::<LockEvent>();
    let lock = WriteLock::with_listener(&session, "/locks/it", events).unwrap();
    assert!(!lock.lock().unwrap());
    next(&clients).expire();
    eventually("the loss is noticed", || {
        lock.request().is_some_and(|request| request.was_dropped_with_its_session())
    });
    let closed = in_background(move || session.close());
    assert_eq!(next(&received), LockEvent::Dropped(LossReason::Closed));
    drop(go);
    next(&closed);
    drop(lock);
    assert_eq!(received.try_iter().count(), 0, "once");
}

#[test]
fn lock_requested_between_two_sessions_is_acquired_on_the_next() {
    let server = SimulatedZooKeeper::new();
    let (made, clients) = unbounded();
    let (go, may_go) = unbounded();
    let of_factory = server.clone();
    go.send(()).unwrap();
    let session = session_by_factory(move || {
        let _ = may_go.recv_timeout(deadline());
        let client = of_factory.connect(LONG);
        let _ = made.send(Arc::clone(&client));
        Ok(client)
    });
    let session = session.unwrap();
    let lock = WriteLock::new(&session, "/locks/it").unwrap();
    next(&clients).expire();
    eventually("the loss is noticed", || session.core().snapshot().end_reason.is_some());
    assert!(!lock.lock().unwrap());
    go.send(()).unwrap();
    eventually("it joins the queue", || lock.is_owner());
    session.close();
    assert!(lock.lock().unwrap_err().is_closed());
}
