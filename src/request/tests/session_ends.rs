//! The end of a session, at every step.

use super::*;

#[test]
fn call_fails_when_the_session_ends_at_any_step() {
    for operation in [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData] {
        for before in [true, false] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            zk.create_sequential(DIR, "x-other-lock-", None);
            let fixture = Fixture::join(&zk);
            let expiring = Arc::clone(&fixture.client);
            match before {
                true => fixture.client.before_next(operation, move || expiring.expire()),
                false => fixture.client.after_next(operation, move || expiring.expire()),
            }
            let error = fixture.blocking().lock().unwrap_err();
            assert!(error.is_session_lost(), "{operation:?} before={before}: {error}");
            assert_eq!(fixture.session.state(), SessionState::Lost);
            assert_eq!(zk.children(DIR).len(), 1);
        }
    }
}

#[test]
fn expiry_noticed_late_is_reported_once() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    fixture.client.disconnect();
    fixture.client.expire_silently();
    fixture.client.reconnect();
    assert_eq!(next(&calls), Call::Lost(LossReason::SessionExpired));
    assert!(!lock.is_owner());
    assert!(lock.unlock().unwrap_err().is_session_lost());
    drop(lock);
    assert!(calls.try_recv().is_err());
}

#[test]
fn lock_on_an_ended_session_makes_no_request() {
    for closed in [false, true] {
        let zk = SimulatedZooKeeper::new();
        let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
        let fixture = Fixture { client, session };
        let (lock, calls) = fixture.listening();
        match closed {
            true => fixture.session.close(),
            false => fixture.client.expire(),
        }
        zk.clear_log();
        let error = lock.lock().unwrap_err();
        assert!(if closed { error.is_closed() } else { error.is_session_lost() }, "{error}");
        assert!(calls.is_empty() && zk.log().is_empty(), "no request was made");
    }
}

#[test]
fn lease_ends_by_the_clock_without_contact() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_millis(800);
    let fixture = Fixture::join_for(&zk, timeout);
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    let waiting = Fixture::join_for(&zk, timeout);
    let (waiter, waiter_calls) = waiting.listening();
    assert!(!waiter.lock().unwrap());
    fixture.client.swallow();
    waiting.client.swallow();
    assert_eq!(next(&calls), Call::Lost(LossReason::LeaseExpired));
    assert!(!lock.is_owner());
    assert_eq!(next(&waiter_calls), Call::Dropped(LossReason::LeaseExpired));
    assert_eq!(waiting.session.state(), SessionState::Lost);
    fixture.client.release();
    waiting.client.release();
}

#[test]
fn idle_session_stays_alive() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_secs(32);
    let (client, runtime, session) = open_on_manual_runtime(&zk, timeout);
    let guard = Fixture { client, session }.blocking().lock().unwrap();
    let kept_alive = zk.calls(SimOperation::SetData);
    while runtime.elapsed() < 3 * timeout {
        assert!(guard.is_owner());
        runtime.advance(Duration::from_millis(100));
    }
    assert!(zk.calls(SimOperation::SetData) >= kept_alive + 3);
}

#[test]
fn lock_is_lost_after_its_lease_ended_even_if_the_session_survives() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_secs(32);
    let (client, runtime, session) = open_on_manual_runtime(&zk, timeout);
    let fixture = Fixture { client, session };
    let guard = fixture.blocking().lock().unwrap();
    fixture.client.disconnect();
    runtime.advance(timeout - Duration::from_secs(2));
    assert!(guard.is_owner());
    runtime.advance(Duration::from_secs(1));
    assert!(!guard.is_owner());
    assert_eq!(next(guard.lost()), LossReason::LeaseExpired);
    fixture.client.reconnect();
    assert_eq!(fixture.session.state(), SessionState::Connected);
    assert!(!guard.is_owner());
    assert!(zk.children(DIR).is_empty(), "its znode is removed");
    assert!(fixture.blocking().try_lock().unwrap().is_some());
}

#[test]
fn remaining_lease_ends_with_ownership() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_secs(32);
    let (client, runtime, session) = open_on_manual_runtime(&zk, timeout);
    let fixture = Fixture { client, session };
    let guard = fixture.blocking().lock().unwrap();
    fixture.client.disconnect();
    let remaining = guard.lease_remaining();
    assert!(Duration::ZERO < remaining && remaining < timeout, "{remaining:?}");
    runtime.advance(remaining - Duration::from_millis(1));
    assert!(guard.is_owner());
    assert_eq!(guard.lease_remaining(), Duration::from_millis(1));
    runtime.advance(Duration::from_millis(1));
    assert!(!guard.is_owner());
    assert_eq!(guard.lease_remaining(), Duration::ZERO);
}

#[test]
fn deletion_of_the_znode_leaves_no_lease() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    assert!(guard.lease_remaining() > Duration::ZERO);
    zk.delete(guard.id());
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert_eq!(guard.lease_remaining(), Duration::ZERO);
}
