//! Tests of races with the predecessor in the queue.

use super::*;
use crate::error::ErrorReason;
use crate::fake::SequenceEnd;

#[test]
fn predecessor_deleted_between_listing_and_watch_is_noticed() {
    for operation in [SimOperation::GetData, SimOperation::GetChildren] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
        let fixture = Fixture::join(&zk);
        let gone = zk.clone();
        match operation {
            SimOperation::GetData => fixture.client.before_next(operation, move || gone.delete(&ahead)),
            _ => fixture.client.after_next(operation, move || gone.delete(&ahead)),
        }
        let (lock, calls) = fixture.listening();
        lock.lock().unwrap();
        assert_eq!(next(&calls), Call::Acquired, "{operation:?}");
        assert!(lock.is_owner());
        // This also removes the owner's watch on its own znode.
        lock.unlock().unwrap();
        assert_eq!(zk.watch_count(), 0, "a watch on a missing znode would remain");
    }
}

#[test]
fn predecessor_deleted_right_after_the_watch_is_noticed() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let fixture = Fixture::join(&zk);
    let gone = zk.clone();
    fixture.client.after_next(SimOperation::GetData, move || gone.delete(&ahead));
    assert!(fixture.blocking().try_lock_for(deadline()).unwrap().is_some());
}

#[test]
fn write_to_the_predecessor_is_no_release() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let fixture = Fixture::join(&zk);
    let (lock, calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    for _ in 0..3 {
        let watches = zk.watch_count();
        zk.set_data(&ahead, b"changed");
        eventually("the watch is set again", || zk.watch_count() == watches);
    }
    assert!(calls.try_recv().is_err() && !lock.is_owner());
    zk.delete(&ahead);
    assert_eq!(next(&calls), Call::Acquired);
}

/// Denies READ to everyone.
fn hide(zk: &SimulatedZooKeeper, znode: &str) {
    zk.set_acl(znode, &[Acl::new(Permissions::DELETE, "world", "anyone")]);
}

#[test]
fn waiter_notices_a_release_without_an_event() {
    for read_checks in [ReadChecks::Events, ReadChecks::EventsAndExists] {
        let zk = SimulatedZooKeeper::new();
        zk.set_read_checks(read_checks);
        let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
        let fixture = Fixture::join(&zk);
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        hide(&zk, &ahead);
        zk.clear_log();
        zk.delete(&ahead);
        assert!(operations(&zk).is_empty() && !lock.is_owner(), "{read_checks:?}: the event is withheld");
        fixture.session.core().look_routinely();
        assert_eq!(next(&calls), Call::Acquired, "{read_checks:?}");
    }
}

#[test]
fn owner_notices_a_deletion_without_an_event() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    eventually("the owner watches its znode", || zk.watch_count() == 1);
    hide(&zk, guard.id());
    zk.delete(guard.id());
    fixture.session.core().look_routinely();
    assert_eq!(guard.lost().recv_timeout(deadline()), Ok(LossReason::NodeDeleted));
}

#[test]
fn routine_look_of_a_waiter_is_a_read_of_its_znode_and_of_its_predecessor() {
    let zk = SimulatedZooKeeper::new();
    zk.create_sequential(DIR, "x-other-lock-", None);
    let fixture = Fixture::join(&zk);
    let (lock, _calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    // The waiter is next in line, so it watches its own znode and its predecessor.
    eventually("the waiter watches both", || zk.watch_count() == 2);
    zk.clear_log();
    fixture.session.core().look_routinely();
    eventually("the waiter looks", || operations(&zk) == [SimOperation::Exists, SimOperation::GetData]);
    assert_eq!(zk.watch_count(), 2);
}

/// This holds for an exclusive request and for a writer, behind a reader and behind an exclusive request.
#[test]
fn waiter_notices_the_deletion_of_its_znode_while_the_queue_stays() {
    let delete_unseen = |fixture: &Fixture, zk: &SimulatedZooKeeper, own: &str| {
        hide(zk, own);
        zk.delete(own);
        fixture.session.core().look_routinely();
    };
    for ahead in ["_c_0b2e-__READ__", "x-other-lock-"] {
        let zk = SimulatedZooKeeper::new();
        zk.create_sequential(DIR, ahead, None);
        let fixture = Fixture::join(&zk);
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        delete_unseen(&fixture, &zk, &lock.id().unwrap());
        assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted), "behind {ahead}");

        let zk = SimulatedZooKeeper::new();
        zk.create_sequential(DIR, ahead, None);
        let fixture = Fixture::join(&zk);
        let writer = fixture.waiting_writer(&zk);
        let own = zk.children(DIR).into_iter().find(|name| name.starts_with("write-")).unwrap();
        delete_unseen(&fixture, &zk, &format!("{DIR}/{own}"));
        let error = writer.outcome().unwrap_err();
        assert_eq!(error.reason(), ErrorReason::NodeDeleted, "behind {ahead}: {error}");
    }
}

#[test]
fn watch_that_fires_after_unlock_acquires_nothing() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let fixture = Fixture::join(&zk);
    let (lock, calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    lock.unlock().unwrap();
    zk.delete(&ahead);
    let other = fixture.blocking();
    assert!(other.try_lock_for(deadline()).unwrap().is_some(), "the queue is empty");
    assert!(!lock.is_owner());
    assert!(calls.try_recv().is_err());
}

#[test]
fn queue_at_the_end_of_the_counter_accepts_one_request_beyond_it() {
    for end in [SequenceEnd::Wraps, SequenceEnd::Sticks, SequenceEnd::Mixes] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        zk.set_sequence(DIR, i32::MAX - 2);
        zk.set_sequence_end(end);
        let fixture = Fixture::join(&zk);
        let locks: Vec<_> = (0..6).map(|_| fixture.listening()).collect();
        let (queued, refused) = locks.split_at(3);
        for (lock, _) in queued {
            lock.lock().unwrap();
        }
        for (lock, calls) in refused {
            let refusal = lock.lock();
            assert!(
                matches!(refusal, Err(ref error) if error.reason() == ErrorReason::SequenceExhausted),
                "{end:?}: {refusal:?}"
            );
            assert_eq!(next(calls), Call::Dropped(LossReason::Failed));
        }
        eventually("the refused requests are gone", || zk.children(DIR).len() == queued.len());
        assert_owns_in_turn(queued);
        assert!(refused[0].0.lock().unwrap(), "{end:?}: a lone request owns");
    }
}

#[test]
fn queue_stays_in_order_from_negative_to_positive_numbers() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.set_sequence(DIR, -3);
    let fixture = Fixture::join(&zk);
    let locks: Vec<_> = (0..6).map(|_| fixture.listening()).collect();
    for (lock, _) in &locks {
        lock.lock().unwrap();
    }
    assert_owns_in_turn(&locks);
}

fn assert_owns_in_turn(locks: &[(WriteLock, Receiver<Call>)]) {
    for (position, (lock, calls)) in locks.iter().enumerate() {
        assert_eq!(next(calls), Call::Acquired, "number {position}");
        assert!(locks.iter().enumerate().all(|(other, (lock, _))| lock.is_owner() == (other == position)));
        lock.unlock().unwrap();
    }
}
