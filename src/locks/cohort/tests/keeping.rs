//! Tests of idle locks: they are kept, and are given up when another process requests them.

use std::time::Duration;

use super::{DIR, Fixture, KEEP, keeping};
use crate::client::{Acl, Permissions};
use crate::engine::SessionEnd;
use crate::error::ZkError;
use crate::fake::{Effect, SimOperation};
use crate::locks::locking::Released;
use crate::locks::{CohortLock, CohortOptions};
use crate::queue::{Revocation, Revoker};

#[test]
fn kept_lock_is_acquired_without_a_call() {
    let fixture = Fixture::kept();
    let first = fixture.lock.lock().unwrap();
    let token = fixture.server.stat(first.id()).unwrap().czxid;
    drop(first);
    fixture.server.clear_log();
    for _ in 0..10 {
        let guard = fixture.lock.lock().unwrap();
        assert!(guard.is_owner() && guard.loss().is_none());
        assert_eq!(guard.fencing_token().unwrap(), token);
        assert_eq!(guard.unlock().unwrap(), Released::Kept);
        assert!(fixture.lock.try_lock().unwrap().is_some());
    }
    assert!(fixture.server.log().is_empty(), "{:?}", fixture.server.log());
    fixture.assert_nothing_is_left();
}

#[test]
fn kept_lock_is_released_after_its_time_and_not_before() {
    let fixture = Fixture::kept();
    fixture.runtime.advance(KEEP / 2);
    drop(fixture.lock.lock().unwrap());
    fixture.runtime.advance(KEEP / 2);
    assert!(fixture.is_kept(), "it has been used since");
    fixture.runtime.advance(KEEP / 2 - Duration::from_nanos(1));
    assert!(fixture.is_kept());
    fixture.runtime.advance(Duration::from_nanos(1));
    assert!(fixture.requests().is_empty());
    fixture.assert_nothing_is_left();
}

#[test]
fn time_of_a_hold_does_not_count_as_idle() {
    let fixture = Fixture::kept();
    let guard = fixture.lock.lock().unwrap();
    fixture.runtime.advance(2 * KEEP);
    assert!(guard.is_owner());
    drop(guard);
    fixture.runtime.advance(KEEP / 2);
    assert!(fixture.is_kept());
    fixture.runtime.advance(KEEP / 2);
    assert!(fixture.requests().is_empty());
}

#[test]
fn without_keeping_a_release_deletes_the_znode() {
    let fixture = Fixture::new(keeping().keep_for(Duration::ZERO));
    assert_eq!(fixture.lock.lock().unwrap().unlock().unwrap(), Released::Deleted);
    drop(fixture.lock.lock().unwrap());
    assert!(fixture.requests().is_empty());
    fixture.assert_nothing_is_left();
}

#[test]
fn lock_may_be_kept_as_long_as_the_session_lives() {
    let fixture = Fixture::new(keeping().keep_for(Duration::MAX));
    drop(fixture.lock.lock().unwrap());
    fixture.runtime.advance(Duration::from_secs(10));
    assert!(fixture.is_kept());
    fixture.ask();
    assert_eq!(fixture.requests().len(), 1);
    fixture.assert_left_alone();
}

#[test]
fn request_of_any_library_ends_the_keeping() {
    for prefix in ["x-other-lock-", "_c_0b2e-lock-", "00ff__lock__", "00ff__rlock__", "read-", "lock-", "qn-"]
    {
        let fixture = Fixture::kept();
        let asked = fixture.server.create_sequential(DIR, prefix, Some(7));
        let left: Vec<_> = fixture.requests().iter().map(|name| format!("{DIR}/{name}")).collect();
        assert_eq!(left, [asked], "{prefix}");
        assert_eq!(fixture.runtime.elapsed(), Duration::ZERO);
    }
}

#[test]
fn other_children_do_not_end_the_keeping_and_the_watch_stays() {
    let fixture = Fixture::kept();
    for name in ["config", "x-3", "another"] {
        fixture.server.create(&format!("{DIR}/{name}"), b"");
        assert!(fixture.is_kept(), "{name}");
    }
    fixture.ask();
    assert_eq!(fixture.requests().len(), 4);
    assert!(!fixture.is_kept());
}

#[test]
fn request_that_comes_before_the_watch_is_noticed() {
    let fixture = Fixture::new(keeping());
    let server = fixture.server.clone();
    // After the listing that acquires the lock.
    fixture.client.after_next(SimOperation::GetChildren, move || {
        server.create_sequential(DIR, "x-other-lock-", Some(7));
    });
    let guard = fixture.lock.lock().unwrap();
    assert_eq!(fixture.requests().len(), 2);
    assert_eq!(guard.unlock().unwrap(), Released::Deleted);
    assert_eq!(fixture.requests().len(), 1);
}

#[test]
fn watch_is_not_set_again_once_a_waiter_is_known() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.ask();
    fixture.server.clear_log();
    for _ in 0..5 {
        fixture.ask();
    }
    assert_eq!(fixture.server.calls(SimOperation::GetChildren), 0);
    assert_eq!(fixture.server.watch_count(), 0);
    assert!(guard.is_owner());
}

#[test]
fn watch_costs_one_call_for_any_number_of_cycles() {
    let fixture = Fixture::new(keeping());
    for _ in 0..10 {
        drop(fixture.lock.lock().unwrap());
    }
    // One listing acquires the lock, and one sets the watch.
    assert_eq!(fixture.server.calls(SimOperation::GetChildren), 2);
    // Two creates for the request, because its directory is missing at first.
    assert_eq!(fixture.server.calls(SimOperation::Create), 3);
}

#[test]
fn request_during_an_outage_is_noticed_after_the_reconnect() {
    let fixture = Fixture::kept();
    fixture.client.disconnect();
    fixture.ask();
    assert!(fixture.is_kept());
    drop(fixture.lock.lock().unwrap());
    fixture.client.reconnect();
    assert_eq!(fixture.requests().len(), 1);
}

#[test]
fn failed_look_for_waiters_is_repeated() {
    let fixture = Fixture::new(keeping());
    let server = fixture.server.clone();
    fixture.client.after_next(SimOperation::GetChildren, move || {
        server.create_sequential(DIR, "x-other-lock-", Some(7));
    });
    fixture.client.fail_nth(SimOperation::GetChildren, 2, Effect::Before, ZkError::ConnectionLoss);
    drop(fixture.lock.lock().unwrap());
    assert!(fixture.is_kept());
    fixture.runtime.advance(KEEP * 3 / 4);
    assert_eq!(fixture.requests().len(), 1);
}

#[test]
fn lock_whose_queue_cannot_be_read_is_not_kept() {
    let fixture = Fixture::new(keeping());
    let server = fixture.server.clone();
    // After the listing that acquires the lock.
    fixture.client.after_next(SimOperation::GetChildren, move || {
        server.set_acl(DIR, &[Acl::new(Permissions::DELETE, "world", "anyone")]);
    });
    drop(fixture.lock.lock().unwrap());
    assert!(fixture.requests().is_empty());
}

#[test]
fn directory_deleted_while_the_lock_is_kept_is_made_again() {
    let fixture = Fixture::kept();
    fixture.runtime.advance(KEEP / 4);
    for name in fixture.requests() {
        fixture.server.delete(&format!("{DIR}/{name}"));
    }
    fixture.server.delete(DIR);
    assert!(!fixture.is_kept());
    let guard = fixture.lock.lock().unwrap();
    assert!(guard.is_owner());
    drop(guard);
    fixture.assert_nothing_is_left();
}

#[test]
fn znode_of_a_kept_lock_that_is_deleted_is_made_again() {
    let fixture = Fixture::kept();
    // Late enough that the owner has set the watch on its znode.
    fixture.runtime.advance(KEEP / 4);
    fixture.server.delete(&format!("{DIR}/{}", fixture.requests()[0]));
    assert!(fixture.lock.lock().unwrap().is_owner());
    assert_eq!(fixture.requests().len(), 1);
}

#[test]
fn kept_lock_whose_lease_has_ended_is_not_acquired() {
    let fixture = Fixture::new(keeping().keep_for(Duration::MAX));
    drop(fixture.lock.lock().unwrap());
    let before = fixture.requests();
    // Nobody notices the end of the lease.
    fixture.runtime.suspend(super::TIMEOUT);
    let waiting = fixture.wait();
    let guard = waiting.guard();
    assert!(guard.as_ref().is_none_or(crate::locks::CohortGuard::is_owner));
    assert_ne!(fixture.requests(), before);
}

#[test]
fn revocation_of_a_kept_lock_releases_it() {
    let fixture = Fixture::kept();
    fixture.runtime.advance(KEEP / 4);
    let other = fixture.server.connect(super::TIMEOUT).open_session().unwrap();
    let path = format!("{DIR}/{}", fixture.requests()[0]);
    let revoked = Revoker::new(&other).force_revocation_after(&path, KEEP);
    assert_eq!(revoked.unwrap(), Revocation::Complied);
}

#[test]
fn last_handle_releases_a_kept_lock() {
    let fixture = Fixture::kept();
    let clone = fixture.lock.clone();
    fixture.assert_two_handles(clone);
}

#[test]
fn closing_releases_a_kept_lock_and_ends_every_later_call() {
    let fixture = Fixture::kept();
    let clone = fixture.lock.clone();
    clone.close();
    assert!(fixture.requests().is_empty());
    assert!(fixture.lock.lock().unwrap_err().is_closed());
    assert!(fixture.lock.try_lock().unwrap_err().is_closed());
    clone.close();
    fixture.assert_nothing_is_left();
}

#[test]
fn guard_outlives_its_lock_and_is_not_kept_then() {
    let Fixture { server, session, lock, .. } = Fixture::new(keeping());
    let guard = lock.lock().unwrap();
    drop(lock);
    assert!(guard.is_owner());
    assert_eq!(guard.unlock().unwrap(), Released::Deleted);
    assert!(server.children(DIR).is_empty());
    drop(session);
}

#[test]
fn end_of_the_session_ends_the_keeping() {
    let fixture = Fixture::kept();
    fixture.session.core().end(SessionEnd::Closed);
    assert!(!fixture.is_kept());
    assert!(fixture.lock.lock().unwrap_err().is_closed());
    assert!(fixture.lock.try_lock().unwrap_err().is_closed());
}

#[test]
fn two_locks_of_one_session_have_a_place_each() {
    let fixture = Fixture::kept();
    let other = CohortLock::new(&fixture.session, DIR).unwrap();
    let guard = other.lock().unwrap();
    assert!(guard.is_owner() && !fixture.is_kept());
    assert!(fixture.lock.try_lock().unwrap().is_none());
    assert_eq!(fixture.requests().len(), 1);
}

#[test]
fn named_cohort_lock_is_shared_while_it_is_in_use() {
    let fixture = Fixture::new(keeping());
    let locks = crate::locks::NamedLocks::new(&fixture.session, "/named").unwrap();
    let options = CohortOptions::new().keep_for(Duration::MAX);
    let first = locks.cohort("a", options).unwrap();
    drop(first.lock().unwrap());
    fixture.server.clear_log();
    drop(locks.cohort("a", CohortOptions::new()).unwrap().lock().unwrap());
    assert!(fixture.server.log().is_empty());
    drop(first);
    assert!(fixture.server.children("/named/a").is_empty());
    for number in 0..100 {
        drop(locks.cohort(&number.to_string(), options).unwrap());
    }
    let closed = locks.cohort("a", options).unwrap();
    closed.close();
    drop(locks.cohort("a", options).unwrap().lock().unwrap());
    assert!(locks.cohort("", options).unwrap_err().is_invalid_argument());
    // Unused locks are removed now and then, not at each call.
    assert!((2..20).contains(&locks.cohorts_remembered()), "{}", locks.cohorts_remembered());
}

impl Fixture {
    /// Like [`assert_nothing_is_left`](Fixture::assert_nothing_is_left), while another client waits.
    fn assert_left_alone(self) {
        drop(self.lock);
        assert_eq!(self.server.children(DIR).len(), 1);
    }

    fn assert_two_handles(self, clone: CohortLock) {
        drop(clone);
        assert!(self.is_kept());
        self.assert_nothing_is_left();
    }
}
