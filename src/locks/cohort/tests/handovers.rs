//! Tests of hand-overs in memory: they are first come, first served, and bounded while another process waits.

use std::sync::Arc;
use std::time::Duration;

use super::{DIR, Entry, Fixture, KEEP, TIMEOUT, keeping};
use crate::fake::{SimOperation, SimulatedZooKeeper};
use crate::locks::CohortLock;
use crate::locks::locking::Released;
use crate::tests::{deadline, eventually, in_background, next};
use crate::{CancelToken, ErrorReason, Wait};

#[test]
fn threads_get_the_lock_in_the_order_in_which_they_came() {
    let server = SimulatedZooKeeper::new();
    let session = server.connect(TIMEOUT).open_session().unwrap();
    let lock = CohortLock::new(&session, DIR).unwrap();
    let first = lock.lock().unwrap();
    let (sender, order) = crossbeam_channel::unbounded();
    let mut threads = Vec::new();
    for number in 0..8 {
        let (lock, sender) = (lock.clone(), sender.clone());
        let waiting = lock.cohort().shared.waiters();
        let shared = Arc::clone(&lock.cohort().shared);
        threads.push(in_background(move || {
            let guard = lock.lock().unwrap();
            sender.send((number, guard.is_owner())).unwrap();
        }));
        eventually("it waits", || shared.waiters() > waiting);
    }
    server.clear_log();
    drop(first);
    for thread in threads {
        next(&thread);
    }
    let expected: Vec<_> = (0..8).map(|number| (number, true)).collect();
    assert_eq!(order.try_iter().collect::<Vec<_>>(), expected);
    assert_eq!(server.calls(SimOperation::Create) + server.calls(SimOperation::Delete), 0);
}

#[test]
fn handed_over_lock_is_no_longer_owned_by_the_former_guard() {
    let fixture = Fixture::new(keeping());
    let first = fixture.lock.lock().unwrap();
    let former = crate::locks::cohort::Grant {
        request: Arc::clone(&first.grant().request),
        tenure: first.grant().tenure,
    };
    let waiting = fixture.wait();
    assert!(waiting.guard().is_none());
    assert_eq!(first.unlock().unwrap(), Released::Kept);
    let second = waiting.guard().unwrap();
    assert!(second.is_owner());
    assert_ne!(former.request.tenure(), former.tenure);
    // Releasing the first grant again has no effect.
    fixture.lock.cohort().release(&former);
    assert!(second.is_owner() && !fixture.is_kept());
}

#[test]
fn waiter_of_another_process_waits_for_a_bounded_number_of_handovers() {
    for bound in [0, 1, 3] {
        let fixture = Fixture::new(keeping().max_handovers(bound));
        let mut guard = fixture.lock.lock().unwrap();
        // Hand-overs before the other client joins the queue do not count.
        for _ in 0..5 {
            let waiting = fixture.wait();
            drop(guard);
            guard = waiting.guard().unwrap();
        }
        let other = fixture.ask();
        let waiting: Vec<_> = (0..bound + 2).map(|_| fixture.wait()).collect();
        for handed_over in 0..bound {
            assert_eq!(guard.unlock().unwrap(), Released::Kept);
            guard = waiting[handed_over as usize].guard().unwrap();
        }
        assert_eq!(guard.unlock().unwrap(), Released::Deleted);
        let next = &waiting[bound as usize];
        assert!(next.guard().is_none());
        assert_eq!(fixture.requests().len(), 2, "the process joins again, behind the other");
        fixture.server.delete(&other);
        assert!(next.guard().unwrap().is_owner());
    }
}

#[test]
fn waiter_of_another_process_waits_for_a_bounded_time() {
    for bound in [Duration::ZERO, KEEP] {
        let fixture = Fixture::new(keeping().hand_over_for(bound));
        let guard = fixture.lock.lock().unwrap();
        fixture.runtime.advance(2 * KEEP);
        fixture.ask();
        let waiting = [fixture.wait(), fixture.wait()];
        let guard = if bound.is_zero() {
            guard
        } else {
            fixture.runtime.advance(bound - Duration::from_nanos(1));
            drop(guard);
            waiting[0].guard().unwrap()
        };
        fixture.runtime.advance(Duration::from_nanos(1));
        assert_eq!(guard.unlock().unwrap(), Released::Deleted);
        assert!(waiting[1].guard().is_none());
    }
}

#[test]
fn asked_by_a_revoker_the_process_hands_nothing_over() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    let asked = guard.revocation().clone();
    assert!(asked.is_empty() && guard.revocation().is_empty());
    fixture.runtime.advance(KEEP);
    fixture.server.set_data(guard.id(), b"unlock");
    assert_eq!(asked.try_recv(), Ok(()));
    assert!(guard.is_owner());
    let waiting = fixture.wait();
    assert_eq!(guard.unlock().unwrap(), Released::Deleted);
    // The request whose release was requested is gone. The process has a new one.
    assert!(waiting.guard().unwrap().revocation().is_empty());
}

#[test]
fn revocation_is_reported_to_a_holder_that_asks_for_it_later() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.runtime.advance(KEEP);
    fixture.server.set_data(guard.id(), b"unlock");
    assert_eq!(guard.revocation().try_recv(), Ok(()));
    assert!(guard.revocation().is_empty());
}

#[test]
fn deadline_of_the_first_waiter_does_not_end_the_request_of_the_others() {
    let fixture = Fixture::new(keeping());
    fixture.server.create(DIR, b"");
    let ahead = fixture.ask();
    let deadline = || Wait::until_moment(fixture.session.core().now().after(KEEP));
    assert!(fixture.lock.try_lock_for(deadline()).unwrap().is_none());
    assert_eq!((fixture.runtime.elapsed(), fixture.requests().len()), (KEEP, 1));

    let first = fixture.wait();
    let request = fixture.requests();
    let second = fixture.wait();
    assert!(fixture.lock.try_lock_for(deadline()).unwrap().is_none());
    fixture.give_up(first);
    assert_eq!(fixture.requests(), request, "others still wait");
    fixture.server.delete(&ahead);
    assert!(second.guard().unwrap().is_owner());
}

#[test]
fn last_waiter_that_gives_up_leaves_the_queue() {
    let fixture = Fixture::new(keeping());
    fixture.server.create(DIR, b"");
    fixture.ask();
    let waiting = [fixture.wait(), fixture.wait()];
    waiting.into_iter().for_each(|waiting| fixture.give_up(waiting));
    assert_eq!(fixture.requests().len(), 1);
    assert!(fixture.wait().guard().is_none(), "it joins again");
    assert_eq!(fixture.requests().len(), 2);
}

#[test]
fn cancelled_waiter_returns_while_the_others_wait_on() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    let (token, cancelled) = (CancelToken::new(), fixture.session.core().now().after(KEEP));
    let wait = Wait::forever().cancelled_by(&token);
    crate::time::Runtime::at(&*fixture.runtime, cancelled, Box::new(move || token.cancel()));
    let error = fixture.lock.try_lock_for(&wait).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::Cancelled, "{error}");
    assert_eq!(fixture.session.core().now(), cancelled);
    assert!(
        matches!(fixture.lock.try_lock_for(&wait), Err(ref error) if error.reason() == ErrorReason::Cancelled)
    );
    drop(guard);
    assert!(fixture.is_kept());
}

#[test]
fn lock_granted_to_a_thread_that_leaves_goes_to_the_next() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    let (first, second) = (fixture.wait(), fixture.wait());
    drop(guard);
    fixture.give_up(first);
    assert!(second.guard().unwrap().is_owner());
}

#[test]
fn try_lock_fails_at_once_when_a_thread_of_the_process_holds_the_lock() {
    let fixture = Fixture::new(keeping());
    let guard = fixture.lock.lock().unwrap();
    fixture.server.clear_log();
    assert!(fixture.lock.try_lock().unwrap().is_none());
    assert!(fixture.server.log().is_empty());
    drop(guard);
    assert!(fixture.lock.try_lock().unwrap().is_some());
}

#[test]
fn try_lock_fails_at_once_when_a_thread_waits_whose_request_is_about_to_be_made() {
    let fixture = Fixture::new(keeping());
    let shared = &fixture.lock.cohort().shared;
    let waiting = shared.enter(false);
    assert!(matches!(waiting, Entry::Waits { .. }));
    assert!(matches!(shared.enter(true), Entry::Busy));
}

#[test]
fn refused_try_lock_leaves_no_znode() {
    let fixture = Fixture::new(keeping());
    fixture.server.create(DIR, b"");
    let ahead = fixture.ask();
    for _ in 0..3 {
        assert!(fixture.lock.try_lock().unwrap().is_none());
        assert_eq!(fixture.requests().len(), 1);
    }
    fixture.server.delete(&ahead);
    assert!(fixture.lock.try_lock().unwrap().unwrap().is_owner());
    fixture.assert_nothing_is_left();
}

#[test]
fn refused_try_lock_leaves_the_request_to_those_who_came_meanwhile() {
    let fixture = Fixture::new(keeping());
    fixture.server.create(DIR, b"");
    let ahead = fixture.ask();
    let (sender, entered) = crossbeam_channel::bounded(1);
    let cohort = Arc::clone(fixture.lock.cohort());
    fixture.client.before_next(SimOperation::GetData, move || {
        sender.send(cohort.shared.enter(false)).unwrap_or_default();
    });
    assert!(fixture.lock.try_lock().unwrap().is_none());
    assert_eq!(fixture.requests().len(), 2);
    let super::Entry::Waits { turn, .. } = next(&entered) else { panic!("the lock is held") };
    fixture.server.delete(&ahead);
    assert!(turn.outcome.take().unwrap().is_ok());
}

#[test]
fn closing_ends_the_waiting_of_all_threads() {
    let server = SimulatedZooKeeper::new();
    server.create(DIR, b"");
    server.create_sequential(DIR, "x-other-lock-", Some(7));
    let session = server.connect(TIMEOUT).open_session().unwrap();
    let lock = CohortLock::new(&session, DIR).unwrap();
    let threads = [(); 3].map(|()| {
        let lock = lock.clone();
        in_background(move || lock.lock().map(drop))
    });
    eventually("they wait", || lock.cohort().shared.waiters() == 3);
    lock.close();
    for thread in threads {
        assert!(next(&thread).unwrap_err().is_closed());
    }
    eventually("the request is withdrawn", || server.children(DIR).len() == 1);
    assert!(lock.try_lock_for(deadline()).unwrap_err().is_closed());
}

impl Fixture {
    /// Lets a waiting thread give up.
    fn give_up(&self, waiting: super::Waiting<'_>) {
        let super::Waiting { number, turn, .. } = waiting;
        drop(super::super::Ticket { cohort: self.lock.cohort(), number, turn });
    }
}
