//! Tests of requests that are withdrawn or cancelled, at every step.

use crate::error::ErrorReason;
use std::fmt;

use super::*;
use crate::LockGuard;
use crate::locks::MultiLock;
use crate::tests::{SteppedClient, open_client};

#[test]
fn request_withdrawn_at_any_step_leaves_no_znode_and_pairs_its_calls() {
    for operation in STEPS {
        for before in [true, false] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
            let fixture = Fixture::join(&zk);
            let (lock, calls) = fixture.listening();
            let lock = Arc::new(lock);
            let at_step = Arc::clone(&lock);
            // This runs on the worker that makes the call.
            let withdraw = move || at_step.close();
            match before {
                true => fixture.client.before_next(operation, withdraw),
                false => fixture.client.after_next(operation, withdraw),
            }
            let _ = lock.lock();
            zk.delete(&ahead);
            lock.close();
            eventually("no znode is left", || zk.children(DIR).is_empty());
            drop(lock);
            let reported: Vec<Call> = calls.try_iter().collect();
            assert!(
                matches!(reported.as_slice(), [] | [Call::Acquired, Call::Released]),
                "{operation:?} before={before}: {reported:?}"
            );
        }
    }
}

#[test]
fn request_withdrawn_while_its_create_hangs_is_deleted_later() {
    for lost in [false, true] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let fixture = Fixture::join(&zk);
        fixture.client.swallow_next(SimOperation::Create, Effect::After);
        assert!(fixture.blocking().try_lock_for(Duration::from_millis(20)).unwrap().is_none());
        eventually("the create has taken effect", || zk.children(DIR).len() == 1);
        if lost {
            fixture.client.disconnect();
            fixture.client.reconnect();
        }
        fixture.client.release();
        eventually("the znode is deleted", || zk.children(DIR).is_empty());
    }
}

#[test]
fn request_withdrawn_during_a_create_with_an_unreadable_reply_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let (lock, _calls) = fixture.listening();
    let lock = Arc::new(lock);
    let withdrawn = Arc::clone(&lock);
    fixture.client.after_next(SimOperation::Create, move || withdrawn.close());
    fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::MarshallingError);
    let _ = lock.lock();
    eventually("the znode is deleted", || zk.children(DIR).is_empty());
    assert_eq!(fixture.client.pending_faults(), 0);
    assert_eq!(zk.calls(SimOperation::Delete), 1, "there was one znode");
}

#[test]
fn unlock_during_the_create_is_pending() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let (lock, calls) = fixture.listening();
    fixture.client.swallow_next(SimOperation::Create, Effect::After);
    thread::scope(|scope| {
        let locking = scope.spawn(|| lock.lock());
        eventually("the create has taken effect", || zk.children(DIR).len() == 1);
        assert_eq!(lock.unlock().unwrap(), Released::Pending);
        assert!(!locking.join().unwrap().unwrap());
    });
    fixture.client.release();
    eventually("the znode is deleted", || zk.children(DIR).is_empty());
    assert!(calls.is_empty());
}

#[test]
fn request_timed_out_during_its_retries_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let lock = fixture.blocking();
    for round in 0..300 {
        fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
        let _ = lock.try_lock_for(Duration::from_micros(round)).unwrap();
    }
    eventually("no znode is left", || zk.children(DIR).is_empty());
}

#[test]
fn waiter_acquires_after_a_predecessor_without_read_permission() {
    for read_checks in [ReadChecks::ReadsOnly, ReadChecks::Events, ReadChecks::EventsAndExists] {
        let zk = SimulatedZooKeeper::new();
        zk.set_read_checks(read_checks);
        zk.create(DIR, b"");
        let (fixture, other) = (Fixture::join(&zk), Fixture::join(&zk));
        let no_read = Acl::new(Permissions::DELETE, "world", "anyone");
        let lock = BlockingWriteLock::with_options(&fixture.session, DIR, LockOptions::new().acl([no_read]))
            .unwrap();
        let guard = lock.lock().unwrap();
        let (waiting, calls) = other.listening();
        assert!(!waiting.lock().unwrap(), "{read_checks:?}");
        // This is long enough for the owner to look at its own znode as well.
        assert!(calls.recv_timeout(Duration::from_millis(300)).is_err(), "{read_checks:?}");
        assert!(guard.is_owner(), "{read_checks:?}");
        drop(guard);
        assert_eq!(next(&calls), Call::Acquired, "{read_checks:?}");
    }
}

/// Cancels a call at each of its steps while it waits behind another request.
fn assert_cancellable<G: fmt::Debug>(call: impl Fn(&Fixture, &Wait) -> Result<Option<G>, LockError>) {
    for step in [SimOperation::Create, SimOperation::GetChildren, SimOperation::GetData] {
        for after in [false, true] {
            let zk = SimulatedZooKeeper::new();
            let ahead = zk.create_sequential(DIR, "x-ahead-lock-", None);
            let fixture = Fixture::join(&zk);
            let cancel = CancelToken::new();
            let cancel_at_step = {
                let cancel = cancel.clone();
                move || cancel.cancel()
            };
            match after {
                false => fixture.client.before_next(step, cancel_at_step),
                true => fixture.client.after_next(step, cancel_at_step),
            }
            let wait = Wait::timeout(deadline()).cancelled_by(&cancel);
            let outcome = call(&fixture, &wait);
            assert!(
                matches!(outcome, Err(ref error) if error.reason() == ErrorReason::Cancelled),
                "{step:?} {after}: {outcome:?}"
            );
            // The create may still be under way.
            eventually("only the request ahead is left", || {
                zk.calls(SimOperation::Delete) == 1 && zk.children(DIR).len() == 1
            });
            zk.delete(&ahead);
            assert!(
                matches!(call(&fixture, &wait), Err(ref error) if error.reason() == ErrorReason::Cancelled)
            );
            assert!(zk.children(DIR).is_empty(), "no request was made");
        }
    }
}

#[test]
fn call_cancelled_at_any_step_leaves_no_znode() {
    assert_cancellable(|fixture, wait| fixture.blocking().try_lock_for(wait));
    assert_cancellable(|fixture, wait| fixture.sharing().try_read_for(wait));
    assert_cancellable(|fixture, wait| fixture.sharing().try_write_for(wait));
    assert_cancellable(|fixture, wait| MultiLock::new(&fixture.session, [DIR]).unwrap().try_lock_for(wait));
}

#[test]
fn lock_closed_during_lock_leaves_no_znode_and_no_registration() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for _ in 0..300 {
        let (lock, _calls) = fixture.listening();
        thread::scope(|scope| {
            scope.spawn(|| lock.lock());
            scope.spawn(|| lock.close());
        });
    }
    eventually("no znode is left", || zk.children(DIR).is_empty());
    eventually("no registration is left", || fixture.session.core().census().0 == 0);
}

#[test]
fn deletion_failed_at_unlock_is_repeated_after_a_reconnect() {
    for when in [Effect::Before, Effect::After] {
        let zk = SimulatedZooKeeper::new();
        let fixture = Fixture::join(&zk);
        let guard = fixture.blocking().lock().unwrap();
        fixture.client.cut_next(SimOperation::Delete, when);
        assert_eq!(guard.unlock().unwrap(), Released::Pending);
        fixture.client.reconnect();
        eventually("the znode is gone", || zk.children(DIR).is_empty());
    }
}

/// Returns an owner on a client whose calls proceed only on command.
fn owner_step_by_step(zk: &SimulatedZooKeeper) -> (Fixture, Arc<SteppedClient>, LockGuard) {
    let client = zk.connect(LONG);
    let stepped = SteppedClient::new(Arc::clone(&client));
    let fixture = Fixture { session: open_client(stepped.clone()).unwrap(), client };
    let guard = fixture.blocking().lock().unwrap();
    stepped.step_by_step();
    (fixture, stepped, guard)
}

#[test]
fn unlock_without_contact_is_pending_at_once() {
    let zk = SimulatedZooKeeper::new();
    let (fixture, stepped, guard) = owner_step_by_step(&zk);
    fixture.client.disconnect();
    while stepped.deliver() {}
    let released = in_background(move || guard.unlock());
    assert_eq!(next(&released).unwrap(), Released::Pending);
    fixture.client.reconnect();
    stepped.hurry();
    eventually("the znode is deleted", || zk.children(DIR).is_empty());
}

#[test]
fn unlock_whose_deletion_is_under_way_when_contact_is_lost_is_pending_at_once() {
    let zk = SimulatedZooKeeper::new();
    let (fixture, stepped, guard) = owner_step_by_step(&zk);
    let znode = guard.id().to_owned();
    let released = in_background(move || guard.unlock());
    eventually("the deletion is under way", || stepped.requests() > 0);
    fixture.client.disconnect();
    while stepped.deliver() {}
    assert_eq!(next(&released).unwrap(), Released::Pending);
    fixture.client.reconnect();
    stepped.hurry();
    eventually("the znode is deleted", || !zk.exists(&znode));
}
