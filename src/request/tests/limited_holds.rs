//! Tests of holds that end at a limit, whatever the lease allows.

use super::*;
use crate::engine::SessionEnd;
use crate::error::ErrorReason;
use crate::events::SessionEvent;
use crate::locks::{
    CohortLock, CohortOptions, MultiLock, NamedLocks, ReadWriteLock, ReentrantLock, RunOnce, RunOutcome,
    Semaphore,
};
use crate::queue::Revoker;
use crate::tests::ManualRuntime;
use crate::time::Runtime;

const LIMIT: Duration = Duration::from_secs(10);
const NANOSECOND: Duration = Duration::from_nanos(1);

/// A session on a manual runtime, and the options of its locks.
struct Limited {
    zk: SimulatedZooKeeper,
    runtime: Arc<ManualRuntime>,
    fixture: Fixture,
}

fn limited_options() -> LockOptions {
    quick_retries().max_hold(LIMIT)
}

impl Limited {
    fn new() -> Limited {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let (client, runtime, session) = open_on_manual_runtime(&zk, LONG);
        Limited { zk, runtime, fixture: Fixture { client, session } }
    }

    fn lock(&self) -> BlockingWriteLock {
        BlockingWriteLock::with_options(&self.fixture.session, DIR, limited_options()).unwrap()
    }

    fn sharing(&self) -> ReadWriteLock {
        ReadWriteLock::with_options(&self.fixture.session, DIR, limited_options()).unwrap()
    }

    /// Lets this much time pass in small steps, in which the session keeps itself alive.
    fn pass(&self, time: Duration) {
        let until = self.runtime.now().after(time);
        while self.runtime.now() < until {
            self.runtime.advance(Duration::from_millis(100));
        }
    }

    fn requests(&self) -> usize {
        self.zk.children(DIR).len()
    }
}

fn is_held_too_long<T: std::fmt::Debug>(outcome: &Result<T, crate::LockError>) -> bool {
    matches!(outcome, Err(error) if error.reason() == ErrorReason::HeldTooLong)
}

#[test]
fn hold_ends_at_its_limit_and_then_the_znode_is_deleted() {
    let limited = Limited::new();
    let guard = Arc::new(limited.lock().lock().unwrap());
    let other = limited.fixture.blocking();
    limited.runtime.advance(LIMIT - NANOSECOND);
    assert!(guard.is_owner() && other.try_lock().unwrap().is_none());
    assert_eq!((guard.lease_remaining(), guard.loss(), limited.requests()), (NANOSECOND, None, 1));
    assert!(guard.lost().is_empty());
    let (at_deletion, was_owner) = unbounded();
    let of_guard = Arc::clone(&guard);
    limited.fixture.client.before_next(SimOperation::Delete, move || {
        let _ = at_deletion.send(of_guard.is_owner());
    });
    limited.runtime.advance(NANOSECOND);
    assert!(!guard.is_owner() && guard.lease_remaining().is_zero());
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::HeldTooLong));
    assert!(guard.reported().is_set());
    assert_eq!((was_owner.try_recv(), limited.requests()), (Ok(false), 0));
    assert_eq!(limited.fixture.session.state(), SessionState::Connected);
    let next = other.try_lock().unwrap().unwrap();
    limited.pass(10 * LIMIT);
    assert!(next.is_owner(), "without a limit");
    assert!(
        matches!(guard.commit(|changes| changes.delete("/other")), Err(error) if error.reason() == ErrorReason::NotOwner)
    );
    let guard = Arc::into_inner(guard).unwrap();
    assert!(is_held_too_long(&guard.unlock()));
}

#[test]
fn lock_after_a_loss_that_nobody_has_noticed_makes_a_new_request() {
    let limited = Limited::new();
    let (lock, calls) = limited.fixture.listening_with(limited_options());
    assert!(lock.lock().unwrap());
    assert_eq!(calls.try_recv(), Ok(Call::Acquired));
    limited.runtime.suspend(LIMIT);
    let _ = lock.lock().unwrap();
    limited.runtime.advance(Duration::ZERO);
    assert_eq!(calls.try_recv(), Ok(Call::Lost(LossReason::HeldTooLong)));
    assert_eq!(calls.try_recv(), Ok(Call::Acquired));
    assert!(lock.is_owner());
}

/// The time of an earlier acquisition does not count.
#[test]
fn limit_counts_from_the_acquisition() {
    let limited = Limited::new();
    let ahead = limited.zk.create_sequential(DIR, "x-other-lock-", Some(7));
    let (lock, calls) = limited.fixture.listening_with(limited_options());
    assert!(!lock.lock().unwrap());
    limited.runtime.advance(2 * LIMIT);
    limited.zk.delete(&ahead);
    assert_eq!(calls.try_recv(), Ok(Call::Acquired));
    limited.runtime.advance(LIMIT - NANOSECOND);
    assert!(lock.is_owner());
    limited.runtime.advance(NANOSECOND);
    assert!(!lock.is_owner());
    assert_eq!(calls.try_recv(), Ok(Call::Lost(LossReason::HeldTooLong)));
    assert!(is_held_too_long(&lock.unlock()));
    assert!(lock.lock().unwrap(), "it may lock again");
}

#[test]
fn loss_is_known_before_anybody_has_noticed_and_stays_the_same() {
    let limited = Limited::new();
    let guard = limited.lock().lock().unwrap();
    limited.runtime.suspend(LIMIT);
    assert!(!guard.is_owner() && guard.lost().is_empty());
    assert_eq!((guard.loss(), limited.requests()), (Some(LossReason::HeldTooLong), 1));
    // The reason stays, even after the end of the session.
    limited.runtime.suspend(LONG);
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    limited.fixture.client.expire();
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    limited.runtime.advance(Duration::ZERO);
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::HeldTooLong));
    assert_eq!(limited.fixture.session.state(), SessionState::Lost);
    assert!(is_held_too_long(&guard.unlock()));
}

#[test]
fn limit_that_has_come_is_the_reason_whatever_shows_the_loss_first() {
    let ends: [fn(&Limited, &str); 4] = [
        |limited, _| limited.fixture.session.close(),
        |limited, _| limited.fixture.client.expire(),
        |limited, znode| limited.zk.delete(znode),
        |limited, _| limited.fixture.client.disconnect(),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let limited = Limited::new();
        let guard = limited.lock().lock().unwrap();
        limited.runtime.advance(Duration::from_secs(1));
        limited.runtime.suspend(LIMIT - Duration::from_secs(1));
        end(&limited, guard.id());
        limited.runtime.advance(Duration::ZERO);
        assert_eq!(guard.loss(), Some(LossReason::HeldTooLong), "{number}");
        assert_eq!(guard.lost().try_recv(), Ok(LossReason::HeldTooLong), "{number}");
    }
}

#[test]
fn lease_that_ends_before_the_limit_is_the_reason() {
    let limited = Limited::new();
    let options = quick_retries().max_hold(LONG);
    let lock = BlockingWriteLock::with_options(&limited.fixture.session, DIR, options).unwrap();
    let guard = lock.lock().unwrap();
    limited.fixture.client.disconnect();
    let remaining = guard.lease_remaining();
    assert!(remaining < LONG);
    limited.runtime.suspend(remaining);
    assert_eq!((guard.is_owner(), guard.loss()), (false, Some(LossReason::LeaseExpired)));
    // The limit is reached before anybody has noticed the end of the lease.
    limited.runtime.suspend(LONG);
    assert_eq!(guard.loss(), Some(LossReason::LeaseExpired));
    limited.runtime.advance(Duration::ZERO);
    assert_eq!(guard.loss(), Some(LossReason::LeaseExpired));
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::LeaseExpired));
}

#[test]
fn limit_holds_during_an_outage_and_the_znode_is_deleted_after_it() {
    let limited = Limited::new();
    let guard = limited.lock().lock().unwrap();
    limited.fixture.client.disconnect();
    limited.runtime.advance(LIMIT - NANOSECOND);
    assert!(guard.is_owner());
    limited.runtime.advance(NANOSECOND);
    assert_eq!((guard.is_owner(), guard.loss()), (false, Some(LossReason::HeldTooLong)));
    assert_eq!(limited.requests(), 1);
    limited.fixture.client.reconnect();
    limited.runtime.advance(Duration::from_millis(1));
    assert_eq!((guard.is_owner(), limited.requests()), (false, 0));
    assert_eq!(limited.fixture.session.state(), SessionState::Connected);
    assert!(limited.fixture.blocking().try_lock().unwrap().is_some());
}

#[test]
fn limit_outlasts_a_reconnect() {
    let limited = Limited::new();
    let guard = limited.lock().lock().unwrap();
    limited.fixture.client.disconnect();
    limited.runtime.advance(LIMIT / 2);
    limited.fixture.client.reconnect();
    limited.runtime.advance(LIMIT / 2 - NANOSECOND);
    assert!(guard.is_owner());
    limited.runtime.advance(NANOSECOND);
    assert_eq!((guard.is_owner(), limited.requests()), (false, 0));
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
}

#[test]
fn release_at_the_limit_is_late_and_one_before_it_is_not() {
    for (left, is_late) in [(NANOSECOND, false), (Duration::ZERO, true)] {
        let limited = Limited::new();
        let guard = limited.lock().lock().unwrap();
        limited.runtime.suspend(LIMIT - left);
        assert_eq!(is_held_too_long(&guard.unlock()), is_late);
        assert_eq!(limited.requests(), 0);
        limited.runtime.advance(LIMIT);
    }
    let limited = Limited::new();
    let outcome = limited.lock().with_lock(|_| limited.runtime.suspend(LIMIT));
    assert!(is_held_too_long(&outcome));
}

/// One thread sees that the limit is reached while another thread, which read the clock earlier, handles the
/// end of the session.
#[test]
fn limit_that_a_reader_has_seen_stays_the_reason() {
    let limited = Limited::new();
    let guard = Arc::new(limited.lock().lock().unwrap());
    limited.runtime.suspend(LIMIT - NANOSECOND);
    let (of_reader, runtime) = (Arc::clone(&guard), Arc::clone(&limited.runtime));
    limited.runtime.after_next_reading(move || {
        runtime.suspend(NANOSECOND);
        assert!(!of_reader.is_owner());
    });
    limited.fixture.session.core().end(SessionEnd::Expired);
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::HeldTooLong));
}

#[test]
fn downgrade_does_not_extend_the_limit() {
    let limited = Limited::new();
    let writer = limited.sharing().write().unwrap();
    limited.runtime.advance(LIMIT / 2);
    let reader = writer.downgrade().unwrap();
    limited.runtime.advance(LIMIT / 2 - NANOSECOND);
    assert!(reader.is_owner() && reader.lease_remaining() == NANOSECOND);
    limited.runtime.advance(NANOSECOND);
    assert_eq!((reader.is_owner(), reader.loss()), (false, Some(LossReason::HeldTooLong)));
    assert_eq!(limited.requests(), 0);

    let writer = limited.sharing().write().unwrap();
    limited.runtime.suspend(LIMIT);
    let failed = writer.downgrade().unwrap_err();
    assert_eq!(failed.error.reason(), ErrorReason::NotOwner, "{failed}");
    assert_eq!(failed.guard.loss(), Some(LossReason::HeldTooLong));
}

#[test]
fn limits_of_readers_are_separate() {
    let limited = Limited::new();
    let first = limited.sharing().read().unwrap();
    limited.runtime.advance(LIMIT / 2);
    let second = limited.sharing().read().unwrap();
    limited.runtime.advance(LIMIT / 2);
    assert!(!first.is_owner() && second.is_owner());
    limited.runtime.advance(LIMIT / 2);
    assert!(!second.is_owner());
}

#[test]
fn first_limit_ends_several_locks_and_the_wait_for_the_others() {
    let limited = Limited::new();
    let session = &limited.fixture.session;
    let options = limited_options();
    let lock = MultiLock::with_options(session, ["/locks/a", "/locks/b"], options).unwrap();
    let guard = lock.lock().unwrap();
    limited.runtime.advance(LIMIT);
    assert_eq!((guard.is_owner(), guard.loss()), (false, Some(LossReason::HeldTooLong)));
    assert!(is_held_too_long(&guard.unlock()));

    let second = BlockingWriteLock::new(session, "/locks/b").unwrap().lock().unwrap();
    let waiting = Wait::until_moment(limited.runtime.now().after(2 * LIMIT));
    let begun = limited.runtime.now();
    let outcome = lock.try_lock_for(waiting);
    assert!(is_held_too_long(&outcome), "{outcome:?}");
    assert_eq!(limited.runtime.now(), begun.after(LIMIT));
    assert!(second.is_owner());
}

#[test]
fn thread_that_enters_again_does_not_extend_the_limit() {
    let limited = Limited::new();
    let lock = ReentrantLock::new(limited.lock());
    let outer = lock.lock().unwrap();
    limited.runtime.advance(LIMIT - NANOSECOND);
    let inner = lock.lock().unwrap();
    assert!(inner.is_owner());
    limited.runtime.advance(NANOSECOND);
    assert!(!outer.is_owner() && !inner.is_owner());
    assert!(matches!(lock.lock(), Err(error) if error.reason() == ErrorReason::NotOwner));
    drop((outer, inner));
    assert!(lock.lock().unwrap().is_owner());
}

#[test]
fn job_that_runs_too_long_has_no_lock() {
    let limited = Limited::new();
    let session = &limited.fixture.session;
    let jobs = RunOnce::with_options(session, "/jobs", limited_options(), Default::default());
    let outcome = jobs.unwrap().run("it", |guard| {
        limited.runtime.advance(LIMIT - NANOSECOND);
        let before = guard.is_owner();
        limited.runtime.advance(NANOSECOND);
        Ok::<_, ()>((before, guard.is_owner(), guard.loss()))
    });
    assert_eq!(outcome.unwrap(), RunOutcome::Ran((true, false, Some(LossReason::HeldTooLong))));
}

#[test]
fn hold_of_no_time_is_refused() {
    let limited = Limited::new();
    let session = &limited.fixture.session;
    let none = || LockOptions::new().max_hold(Duration::ZERO);
    let refusals = [
        BlockingWriteLock::with_options(session, DIR, none()).err(),
        WriteLock::with_options(session, DIR, none(), ()).err(),
        ReadWriteLock::with_options(session, DIR, none()).err(),
        CohortLock::with_options(session, DIR, none(), CohortOptions::new()).err(),
        MultiLock::with_options(session, [DIR], none()).err(),
        Semaphore::with_options(session, DIR, 1, none()).err(),
        NamedLocks::with_options(session, DIR, none()).err(),
        RunOnce::with_options(session, DIR, none(), Default::default()).err(),
        Revoker::with_options(session, none()).err(),
        ProtocolSupport::with_options(session, none()).err(),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        assert!(refusal.is_some_and(|error| error.is_invalid_argument()), "{number}");
    }
}

#[test]
fn hold_of_any_length_needs_no_limit() {
    let limited = Limited::new();
    let options = LockOptions::new().max_hold(Duration::MAX);
    let lock = BlockingWriteLock::with_options(&limited.fixture.session, DIR, options).unwrap();
    let guard = lock.lock().unwrap();
    limited.pass(10 * LIMIT);
    assert!(guard.is_owner() && guard.lease_remaining() < LONG);
}

#[test]
fn limit_that_passes_within_the_call_is_its_error() {
    let limited = Limited::new();
    let session = &limited.fixture.session;
    let runtime = Arc::clone(&limited.runtime);
    // The limit passes during the acquisition, before the call that acquires the lock continues.
    let hook = move |event: &SessionEvent| {
        if matches!(event, SessionEvent::Acquired(_)) {
            runtime.advance(LIMIT);
        }
    };
    assert!(session.set_event_hook(hook));
    let lock = limited.lock();
    let cohort = CohortLock::with_options(session, DIR, limited_options(), CohortOptions::new()).unwrap();
    for outcome in [
        lock.lock().map(drop),
        lock.try_lock().map(drop),
        cohort.lock().map(drop),
        cohort.try_lock().map(drop),
    ] {
        assert!(is_held_too_long(&outcome), "{outcome:?}");
        assert_eq!(limited.requests(), 0);
    }
}
