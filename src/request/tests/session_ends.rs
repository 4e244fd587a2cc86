//! Tests of the end of a session, at every step.

use super::*;

use log::Level;

use crate::time::{Priority, Runtime};

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
    assert_eq!(next(&calls), Call::Lost(LossReason::SessionLost));
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
    let timeout = Duration::from_secs(3);
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
    assert_eq!(next(&waiter_calls), Call::Dropped(LossReason::SessionLost));
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

/// The event of the deletion arrives before any other sign that the session has ended.
#[test]
fn deletion_seen_after_the_lease_ended_is_the_end_of_the_lease() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_secs(32);
    for pause in [31, 33] {
        let (client, runtime, session) = open_on_manual_runtime(&zk, timeout);
        let fixture = Fixture { client, session };
        let (lock, calls) = fixture.listening();
        assert!(lock.lock().unwrap());
        assert_eq!(next(&calls), Call::Acquired);
        runtime.advance(Duration::from_millis(100));
        runtime.suspend(Duration::from_secs(pause));
        zk.delete(&lock.id().unwrap());
        assert_eq!(next(&calls), Call::Lost(LossReason::LeaseExpired), "after {pause} s");
    }
}

#[test]
fn deletion_of_a_waiter_seen_after_the_session_ended_is_its_end() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    let timeout = Duration::from_secs(32);
    for (pause, reason) in [(10, LossReason::NodeDeleted), (33, LossReason::SessionLost)] {
        let (client, runtime, session) = open_on_manual_runtime(&zk, timeout);
        let fixture = Fixture { client, session };
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        runtime.suspend(Duration::from_secs(pause));
        zk.delete(&lock.id().unwrap());
        assert_eq!(next(&calls), Call::Dropped(reason), "after {pause} s");
    }
}

#[test]
fn lines_about_an_owner_keep_the_order_of_its_events() {
    let zk = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zk, LONG);
    let guard = Fixture { client: client.clone(), session }.blocking().lock().unwrap();
    // The participants are notified of both events when this job has ended.
    let lines = logged(|| {
        runtime.submit(
            Priority::Other,
            Box::new(move || {
                client.disconnect();
                client.expire_silently();
                client.report_expiry();
            }),
        );
    });
    assert!(guard.loss().is_some());
    let of_owner = lines.iter().filter(|line| line.contains(guard.id()) && !line.starts_with("ZooKeeper"));
    let of_owner: Vec<_> = of_owner.map(|line| line.split(' ').next()).collect();
    assert_eq!(of_owner, [Some("suspended"), Some("lost")], "{lines:?}");
}

/// A session may have thousands of locks.
#[test]
fn suspended_session_has_one_line_for_all_its_locks_and_a_lost_one_a_line_for_each_lost_lock() {
    let zk = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    zk.create_sequential("/locks/waiting", "x-other-lock-", None);
    let waiting = WriteLock::new(&session, "/locks/waiting").unwrap();
    assert!(!waiting.lock().unwrap());
    let owner =
        |number| BlockingWriteLock::new(&session, &format!("/locks/{number}")).unwrap().lock().unwrap();
    let guards: Vec<_> = (0..4).map(owner).collect();
    let suspended = logged_down_to(Level::Warn, || client.disconnect());
    let named = guards[..3].iter().map(|guard| guard.id()).collect::<Vec<_>>().join(", ");
    let expected =
        format!("ZooKeeper session suspended: no contact; locks owned until the lease ends: 4 ({named}, …)");
    assert_eq!(suspended, [expected]);
    client.reconnect();
    let mut lost = logged_down_to(Level::Warn, || client.expire());
    assert_eq!(lost.remove(0), "ZooKeeper session lost: session expired; requests that end with it: 5");
    let expected = guards.iter().map(|guard| format!("lost {}: session lost", guard.id()));
    assert_eq!(lost, expected.collect::<Vec<_>>());
}

#[test]
fn line_about_the_end_of_a_session_that_holds_nothing_counts_nothing() {
    let zk = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let lines = logged_down_to(Level::Info, || client.disconnect());
    assert_eq!(lines, ["ZooKeeper session suspended: no contact"]);
    client.reconnect();
    let lines = logged_down_to(Level::Info, || client.expire());
    assert_eq!(lines, ["ZooKeeper session lost: session expired"]);
    drop(session);
    let (_client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    assert_eq!(logged_down_to(Level::Info, || session.close()), ["ZooKeeper session closed"]);
}

#[test]
fn removals_that_wait_for_contact_are_no_news() {
    let zk = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let fixture = Fixture { client, session };
    let guard = fixture.blocking().lock().unwrap();
    let lines = logged_down_to(Level::Info, || {
        fixture.client.disconnect();
        drop(guard);
        fixture.client.expire_silently();
        fixture.client.report_expiry();
    });
    assert!(!lines.iter().any(|line| line.contains("remove")), "{lines:?}");
}

/// Locks again whenever the lock is lost.
struct Perseveres(Sender<bool>);

impl LockListener for Perseveres {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}

    fn lock_lost(&self, lock: &WriteLock, _reason: LossReason) {
        let _ = self.0.send(lock.lock().unwrap());
    }
}

#[test]
fn listener_locks_again_after_a_loss() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let (sender, owns) = unbounded();
    let lock = WriteLock::with_listener(&fixture.session, DIR, Perseveres(sender)).unwrap();
    assert!(lock.lock().unwrap());
    for _ in 0..2 {
        zk.delete(&lock.id().unwrap());
        // Whether the listener owns the lock at once depends on whether the deletion of the former znode is
        // known.
        next(&owns);
        eventually("the lock is owned again", || lock.is_owner());
    }
    drop(lock);
    eventually("a dropped lock is closed", || zk.children(DIR).is_empty());
}
