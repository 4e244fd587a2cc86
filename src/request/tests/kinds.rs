//! Tests of the kinds of errors: what an error tells the program to do is true when it is made.

use super::*;
use crate::LockGuard;
use crate::error::{ErrorKind, ErrorReason};
use crate::locks::{CohortLock, MultiLock, NamedLocks, ReadWriteLock, Semaphore};
use crate::tests::{ManualRuntime, await_replacement, replacing_session};

const TIMEOUT: Duration = Duration::from_secs(32);
const LIMIT: Duration = Duration::from_secs(10);

struct Scene {
    zk: SimulatedZooKeeper,
    runtime: Arc<ManualRuntime>,
    fixture: Fixture,
}

impl Scene {
    fn new() -> Scene {
        let zk = SimulatedZooKeeper::new();
        let (client, runtime, session) = open_on_manual_runtime(&zk, TIMEOUT);
        Scene { zk, runtime, fixture: Fixture { client, session } }
    }

    fn lock(&self) -> BlockingWriteLock {
        let options = quick_retries().max_hold(LIMIT);
        BlockingWriteLock::with_options(&self.fixture.session, DIR, options).unwrap()
    }

    /// Makes the owner lose its lock for this reason, while its session lives.
    fn lose(&self, guard: &LockGuard, reason: LossReason) {
        match reason {
            LossReason::NodeDeleted => {
                self.zk.delete(guard.id());
                // A new owner first reads its znode a moment after the acquisition.
                self.runtime.advance(Duration::from_secs(1));
            }
            LossReason::HeldTooLong => self.runtime.advance(LIMIT),
            LossReason::LeaseExpired => {
                self.fixture.client.disconnect();
                self.runtime.advance(TIMEOUT - Duration::from_secs(1));
                self.fixture.client.reconnect();
            }
            reason => panic!("the session does not survive {reason:?}"),
        }
        assert_eq!(next(guard.lost()), reason);
        assert_eq!(self.fixture.session.state(), SessionState::Connected, "{reason:?}");
    }
}

#[test]
fn lost_lock_is_to_be_locked_again_while_its_session_lives_and_not_afterwards() {
    let losses = [LossReason::LeaseExpired, LossReason::NodeDeleted, LossReason::HeldTooLong];
    for reason in losses {
        for kind in [ErrorKind::LockAgain, ErrorKind::Reconnect, ErrorKind::Permanent] {
            let scene = Scene::new();
            // The lease ends before this limit.
            let lock = match reason {
                LossReason::LeaseExpired => scene.fixture.blocking(),
                _ => scene.lock(),
            };
            let guard = lock.lock().unwrap();
            scene.lose(&guard, reason);
            match kind {
                ErrorKind::Reconnect => scene.fixture.client.expire(),
                ErrorKind::Permanent => scene.fixture.session.close(),
                _ => {}
            }
            let of_commit = guard.commit(|changes| changes.delete("/a")).unwrap_err();
            assert_eq!((of_commit.reason(), of_commit.kind()), (ErrorReason::NotOwner, kind), "{reason:?}");
            let of_unlock = guard.unlock().unwrap_err();
            assert_eq!((of_unlock.reason(), of_unlock.kind()), (reason.into(), kind), "{of_unlock}");
            match kind {
                ErrorKind::LockAgain => drop(lock.try_lock().unwrap().unwrap()),
                _ => assert_eq!(lock.try_lock().unwrap_err().kind(), kind, "{reason:?}"),
            }
        }
    }
}

#[test]
fn lost_waiter_is_to_lock_again_while_its_session_lives() {
    let zk = SimulatedZooKeeper::new();
    let guard = Fixture::join(&zk).blocking().lock().unwrap();
    let fixture = Fixture::join(&zk);
    let waiting = in_background({
        let lock = fixture.blocking();
        move || lock.lock()
    });
    eventually("the waiter is queued", || zk.children(DIR).len() == 2);
    let waiter = zk.children(DIR).into_iter().find(|name| !guard.id().ends_with(name.as_str())).unwrap();
    zk.delete(&format!("{DIR}/{waiter}"));
    drop(guard);
    let error = next(&waiting).unwrap_err();
    assert_eq!((error.reason(), error.kind()), (ErrorReason::NodeDeleted, ErrorKind::LockAgain), "{error}");
    fixture.client.expire();
    let error = fixture.blocking().lock().unwrap_err();
    assert_eq!((error.reason(), error.kind()), (ErrorReason::SessionLost, ErrorKind::Reconnect), "{error}");
}

#[test]
fn session_that_replaces_itself_is_not_to_be_connected_again() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&zk, LONG);
    let lock = BlockingWriteLock::with_options(&session, DIR, quick_retries()).unwrap();
    let (first, client) = (lock.lock().unwrap(), next(&clients));
    await_replacement(&session, || client.expire());
    let error = first.unlock().unwrap_err();
    assert_eq!((error.reason(), error.kind()), (ErrorReason::SessionLost, ErrorKind::LockAgain), "{error}");
    let (second, client) = (lock.try_lock_for(deadline()).unwrap().unwrap(), next(&clients));
    await_replacement(&session, || client.expire());
    session.close();
    let error = second.unlock().unwrap_err();
    assert_eq!((error.reason(), error.kind()), (ErrorReason::SessionLost, ErrorKind::Permanent), "{error}");
}

/// Returns options whose retries outlast the wait, but not the faults.
fn waiting_retries() -> LockOptions {
    LockOptions::new().retry(RetryPolicy::constant(MOMENT / 10).with_attempts(u32::MAX))
}

/// Waits for each kind of lock for a moment. Returns the error, if any.
fn try_each_for(session: &Session, wait: Duration) -> Vec<(&'static str, Option<LockError>)> {
    let options = waiting_retries;
    let write = BlockingWriteLock::with_options(session, DIR, options()).unwrap();
    let shared = ReadWriteLock::with_options(session, DIR, options()).unwrap();
    let semaphore = Semaphore::with_options(session, DIR, 1, options()).unwrap();
    let multi = MultiLock::with_options(session, [DIR, "/locks/other"], options()).unwrap();
    let cohort = CohortLock::with_options(session, DIR, options(), Default::default()).unwrap();
    let named = NamedLocks::with_options(session, DIR, options()).unwrap();
    vec![
        ("write", write.try_lock_for(wait).map(drop).err()),
        ("read", shared.try_read_for(wait).map(drop).err()),
        ("shared write", shared.try_write_for(wait).map(drop).err()),
        ("semaphore", semaphore.try_acquire_for(wait).map(drop).err()),
        ("multi", multi.try_lock_for(wait).map(drop).err()),
        ("cohort", cohort.try_lock_for(wait).map(drop).err()),
        ("named", named.get("it").unwrap().try_lock_for(wait).map(drop).err()),
    ]
}

const MOMENT: Duration = Duration::from_millis(100);

#[test]
fn deadline_reports_that_servers_have_refused_the_request() {
    for refusal in [ZkError::QuotaExceeded, ZkError::Throttled] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let fixture = Fixture::join(&zk);
        for _ in 0..500 {
            fixture.client.fail_next(SimOperation::Create, Effect::Before, refusal);
        }
        for (lock, error) in try_each_for(&fixture.session, MOMENT) {
            let error = error.unwrap_or_else(|| panic!("{lock}: the refusal is hidden"));
            assert_eq!((error.reason(), error.kind()), (ErrorReason::Refused, ErrorKind::Retry), "{error}");
        }
    }
}

#[test]
fn deadline_reports_that_servers_have_refused_to_list_the_queue() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for _ in 0..500 {
        fixture.client.fail_next(SimOperation::GetChildren, Effect::Before, ZkError::Throttled);
    }
    let lock = BlockingWriteLock::with_options(&fixture.session, DIR, waiting_retries()).unwrap();
    let error = lock.try_lock_for(MOMENT).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Refused, "{error}");
}

#[test]
fn deadline_says_that_others_hold_the_lock_after_a_refusal_that_has_passed() {
    let zk = SimulatedZooKeeper::new();
    let _guard = Fixture::join(&zk).blocking().lock().unwrap();
    let fixture = Fixture::join(&zk);
    let lock = BlockingWriteLock::with_options(&fixture.session, DIR, patient_retries()).unwrap();
    for operation in [SimOperation::Create, SimOperation::GetChildren] {
        fixture.client.fail_next(operation, Effect::Before, ZkError::Throttled);
        assert!(lock.try_lock_for(deadline() / 20).unwrap().is_none(), "{operation:?}");
        assert_eq!(fixture.client.pending_faults(), 0, "{operation:?}");
    }
}
