//! Tests of losses, refusals, and sessions that end.

use std::time::Duration;

use super::{DIR, Fixture, KEEP, TIMEOUT, keeping};
use crate::client::{Acl, Permissions};
use crate::engine::SessionEnd;
use crate::fake::{SimOperation, SimulatedZooKeeper};
use crate::locks::CohortLock;
use crate::tests::{deadline, eventually, in_background, next, replacing_session, session_by_factory};
use crate::{ErrorReason, LockError, LossReason, SessionState};

#[test]
fn lock_is_not_handed_over_after_the_end_of_its_lease() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    let id = guard.id().to_owned();
    let waiting = fixture.wait();
    // Nobody notices the end of the lease yet.
    fixture.runtime.suspend(TIMEOUT);
    assert!(!guard.is_owner() && guard.lease_remaining().is_zero());
    let error = guard.unlock().unwrap_err();
    assert!(error.reason() == ErrorReason::LeaseExpired, "{error}");
    let next = waiting.guard();
    assert!(next.is_none_or(|guard| guard.id() != id && guard.is_owner()));
}

#[test]
fn waiters_join_again_after_the_holder_has_lost_the_lock() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.runtime.advance(KEEP);
    let (lost, other) = (guard.lost().clone(), fixture.ask());
    let waiting = [fixture.wait(), fixture.wait()];
    fixture.server.delete(guard.id());
    assert_eq!(lost.try_recv(), Ok(LossReason::NodeDeleted));
    assert!(!guard.is_owner());
    assert_eq!(guard.loss(), Some(LossReason::NodeDeleted));
    assert_eq!(fixture.requests().len(), 2, "they have joined behind the other client");
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
    fixture.server.delete(&other);
    drop(waiting[0].guard().unwrap());
    assert!(waiting[1].guard().unwrap().is_owner());
}

#[test]
fn loss_is_reported_to_a_holder_that_asks_for_it_later() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.runtime.advance(KEEP);
    fixture.server.delete(guard.id());
    assert_eq!(guard.lost().try_recv(), Ok(LossReason::NodeDeleted));
    assert!(guard.lost().is_empty());
    drop(guard);
    assert!(fixture.lock.lock().unwrap().lost().is_empty());
}

#[test]
fn refusal_of_the_server_is_returned_to_all_who_wait() {
    let fixture = Fixture::new(keeping());
    fixture.server.create_with_acl(DIR, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    assert!(fixture.lock.lock().unwrap_err().is_access_denied());
    assert!(fixture.lock.try_lock().unwrap_err().is_access_denied());
    let cohort = std::sync::Arc::clone(fixture.lock.cohort());
    let (sender, entered) = crossbeam_channel::bounded(1);
    fixture.client.before_next(SimOperation::Create, move || {
        sender.send(cohort.shared.enter(false)).unwrap_or_default();
    });
    assert!(fixture.lock.try_lock().unwrap_err().is_access_denied());
    let super::Entry::Waits { turn, .. } = next(&entered) else { panic!("nobody holds it") };
    let Some(Err(error)) = turn.outcome.take() else { panic!("it still waits") };
    assert!(error.is_access_denied(), "{error}");
    fixture.server.set_acl(DIR, &Acl::open_unsafe());
    assert!(fixture.lock.lock().unwrap().is_owner());
}

#[test]
fn deletion_of_the_waiting_znode_is_returned_to_all_who_wait() {
    let fixture = Fixture::new(keeping());
    fixture.server.create(DIR, b"");
    let ahead = fixture.ask();
    let waiting = [fixture.wait(), fixture.wait()];
    let own = fixture.requests().into_iter().find(|name| !ahead.ends_with(name)).unwrap();
    fixture.server.delete(&format!("{DIR}/{own}"));
    fixture.server.delete(&ahead);
    for waiting in &waiting {
        let Some(Err(error)) = waiting.turn() else { panic!("it still waits") };
        assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
    }
    assert!(fixture.lock.lock().unwrap().is_owner());
}

#[test]
fn end_of_the_session_is_returned_to_all_who_wait() {
    for closes in [false, true] {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        server.create_sequential(DIR, "x-other-lock-", Some(7));
        let client = server.connect(TIMEOUT);
        let session = client.open_session().unwrap();
        let lock = CohortLock::new(&session, DIR).unwrap();
        let threads = [(); 3].map(|()| {
            let lock = lock.clone();
            in_background(move || lock.lock().map(drop).unwrap_err())
        });
        eventually("they wait", || lock.cohort().shared.waiters() == 3);
        if closes {
            session.close();
        } else {
            client.expire();
        }
        for thread in threads {
            let error = next(&thread);
            assert_eq!((error.is_closed(), error.is_session_lost()), (closes, !closes), "{error}");
        }
        let error = lock.lock().unwrap_err();
        assert_eq!((error.is_closed(), error.is_session_lost()), (closes, !closes), "{error}");
    }
}

#[test]
fn waiters_join_the_queue_of_a_session_that_replaces_a_lost_one() {
    let server = SimulatedZooKeeper::new();
    server.create(DIR, b"");
    let ahead = server.create_sequential(DIR, "x-other-lock-", Some(7_000));
    let (session, clients) = replacing_session(&server, TIMEOUT);
    let lock = CohortLock::new(&session, DIR).unwrap();
    let threads = [(); 3].map(|()| {
        let lock = lock.clone();
        in_background(move || lock.lock().map(|guard| guard.is_owner()))
    });
    eventually("they wait", || lock.cohort().shared.waiters() == 3);
    let first = next(&clients);
    first.expire();
    next(&clients);
    eventually("they wait again", || server.children(DIR).len() == 2);
    server.delete(&ahead);
    for thread in threads {
        assert!(next(&thread).unwrap());
    }
    assert_eq!(session.state(), SessionState::Connected);
}

#[test]
fn holder_and_waiters_of_a_replaced_session_end_as_each_should() {
    let server = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&server, TIMEOUT);
    let lock = CohortLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let of_thread = lock.clone();
    let waiting = in_background(move || of_thread.lock().map(|guard| guard.is_owner()));
    eventually("it waits", || lock.cohort().shared.waiters() == 1);
    next(&clients).expire();
    assert!(next(&waiting).unwrap(), "the next session has the lock");
    assert_eq!(guard.loss(), Some(LossReason::SessionLost));
    assert!(guard.unlock().unwrap_err().is_session_lost());
    assert!(lock.try_lock_for(deadline()).unwrap().is_some());
}

#[test]
fn closing_a_replaced_session_ends_the_waiting_for_it() {
    let server = SimulatedZooKeeper::new();
    let (made, clients) = crossbeam_channel::unbounded();
    let of_factory = server.clone();
    let session = session_by_factory(move || {
        if made.is_empty() && made.send(of_factory.connect(TIMEOUT)).is_ok() {
            return Ok(of_factory.connect(TIMEOUT));
        }
        Err(LockError::no_server("nothing", Duration::ZERO))
    });
    let session = session.unwrap();
    let lock = CohortLock::new(&session, DIR).unwrap();
    let _guard = lock.lock().unwrap();
    assert_eq!(clients.len(), 1);
    let of_thread = lock.clone();
    let waiting = in_background(move || of_thread.lock().map(drop));
    eventually("it waits", || lock.cohort().shared.waiters() == 1);
    session.core().end(SessionEnd::Expired);
    eventually("the loss is noticed", || session.state() == SessionState::Lost);
    assert!(lock.try_lock().is_ok_and(|guard| guard.is_none()) || waiting.is_empty());
    session.close();
    assert!(next(&waiting).unwrap_err().is_closed());
}

#[test]
fn outage_during_the_last_release_leaves_nothing_behind() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.ask();
    fixture.client.disconnect();
    drop(guard);
    assert_eq!(fixture.requests().len(), 2);
    fixture.client.reconnect();
    assert_eq!(fixture.requests().len(), 1);
}
