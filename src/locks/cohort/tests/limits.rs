//! Tests that a process holds the lock no longer than its options allow.

use std::time::Duration;

use super::{DIR, Fixture, KEEP, TIMEOUT, keeping};
use crate::fake::{SimOperation, SimulatedZooKeeper};
use crate::locks::locking::Released;
use crate::locks::{CohortLock, CohortOptions};
use crate::tests::{SteppedClient, open_client_on_manual_runtime};
use crate::{ErrorReason, LockOptions, LossReason};

const LIMIT: Duration = Duration::from_secs(10);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn limited(options: CohortOptions) -> Fixture {
    Fixture::with(LockOptions::new().max_hold(LIMIT), options)
}

#[test]
fn thread_loses_the_lock_at_the_limit_of_its_process() {
    let fixture = limited(keeping());
    let guard = fixture.lock.lock().unwrap();
    let lost = guard.lost().clone();
    let waiting = fixture.wait();
    fixture.runtime.advance(LIMIT - NANOSECOND);
    assert!(guard.is_owner() && guard.lease_remaining() == NANOSECOND);
    fixture.runtime.advance(NANOSECOND);
    assert_eq!((guard.is_owner(), guard.loss()), (false, Some(LossReason::HeldTooLong)));
    assert_eq!(lost.try_recv(), Ok(LossReason::HeldTooLong));
    let next = waiting.guard().unwrap();
    assert!(next.is_owner() && next.id() != guard.id(), "through another request");
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::HeldTooLong));
    assert!(next.is_owner());
}

#[test]
fn thread_loses_the_lock_at_a_limit_that_nobody_has_noticed() {
    let fixture = limited(keeping());
    let guard = fixture.lock.lock().unwrap();
    let id = guard.id().to_owned();
    let waiting = fixture.wait();
    fixture.runtime.suspend(LIMIT);
    assert_eq!((guard.is_owner(), guard.loss()), (false, Some(LossReason::HeldTooLong)));
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::HeldTooLong));
    assert!(waiting.guard().is_none_or(|next| next.id() != id && next.is_owner()));
}

#[test]
fn thread_that_gets_the_lock_from_another_has_at_least_half_of_the_time() {
    for (used, is_handed_over) in [(LIMIT / 2 - NANOSECOND, true), (LIMIT / 2, false)] {
        let fixture = limited(keeping());
        let guard = fixture.lock.lock().unwrap();
        let (id, waiting) = (guard.id().to_owned(), fixture.wait());
        fixture.runtime.advance(used);
        let expected = if is_handed_over { Released::Kept } else { Released::Deleted };
        assert_eq!(guard.unlock().unwrap(), expected);
        let next = waiting.guard().unwrap();
        assert_eq!(next.id() == id, is_handed_over);
        fixture.runtime.advance(LIMIT / 2);
        assert!(next.is_owner());
    }
}

#[test]
fn idle_lock_is_kept_no_longer_than_half_of_the_time() {
    let fixture = limited(keeping().keep_for(2 * LIMIT));
    drop(fixture.lock.lock().unwrap());
    fixture.runtime.advance(LIMIT / 2 - NANOSECOND);
    assert!(fixture.is_kept());
    fixture.runtime.advance(NANOSECOND);
    assert!(fixture.requests().is_empty());

    // The timer is late.
    let before = fixture.lock.lock().unwrap().id().to_owned();
    fixture.runtime.suspend(LIMIT / 2);
    let guard = fixture.lock.lock().unwrap();
    assert!(guard.is_owner() && guard.id() != before);

    let fixture = limited(keeping().keep_for(KEEP));
    let guard = fixture.lock.lock().unwrap();
    fixture.runtime.advance(LIMIT / 2);
    assert_eq!(guard.unlock().unwrap(), Released::Deleted, "not kept at all");
    assert_eq!(fixture.server.calls(SimOperation::Delete), 1, "{DIR}");
}

/// The znode of the process still exists when the thread calls `try_lock`.
#[test]
fn thread_that_tries_gets_a_kept_lock_whose_time_is_over_by_another_request() {
    let server = SimulatedZooKeeper::new();
    let client = SteppedClient::new(server.connect(TIMEOUT));
    let (runtime, session) = open_client_on_manual_runtime(client.clone());
    let options = LockOptions::new().max_hold(LIMIT);
    let lock = CohortLock::with_options(&session, DIR, options, keeping().keep_for(2 * LIMIT)).unwrap();
    let id = lock.lock().unwrap().id().to_owned();
    client.step_by_step();
    runtime.while_waiting(move || client.serve().is_some() || client.deliver());
    // The timer is late.
    runtime.suspend(LIMIT / 2);
    let guard = lock.try_lock().unwrap().expect("nobody holds the lock or waits for it");
    assert!(guard.is_owner() && guard.id() != id);
}
