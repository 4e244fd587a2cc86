//! Tests of locks that pass from one request of a session to the next.

use super::*;
use crate::tests::{SteppedClient, open_client};

fn waiting(fixture: &Fixture, count: usize) -> Vec<(WriteLock, Receiver<Call>)> {
    let locks: Vec<_> = (0..count).map(|_| fixture.listening()).collect();
    for (lock, _) in &locks {
        assert!(!lock.lock().unwrap());
    }
    locks
}

#[test]
fn a_request_behind_another_of_its_session_joins_without_a_listing() {
    let zk = SimulatedZooKeeper::new();
    // Time stands still, so the owner does not look at its znode.
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let fixture = Fixture { client, session };
    let _guard = fixture.blocking().lock().unwrap();
    zk.clear_log();
    let _waiting = waiting(&fixture, 10);
    assert_eq!(zk.calls(SimOperation::GetChildren), 0);
    assert_eq!(zk.calls(SimOperation::GetData), 0, "no watch");
}

#[test]
fn waiters_of_one_session_take_over_in_order_with_one_listing() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let locks = waiting(&fixture, 10);
    zk.clear_log();
    guard.unlock().unwrap();
    for (lock, calls) in &locks {
        assert_eq!(next(calls), Call::Acquired);
        assert!(lock.is_owner());
        lock.unlock().unwrap();
    }
    assert_eq!(zk.calls(SimOperation::GetChildren), 1);
}

#[test]
fn a_request_of_another_session_in_between_acquires_first() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let between = zk.create_sequential(DIR, "x-between-lock-", None);
    let locks = waiting(&fixture, 2);
    guard.unlock().unwrap();
    eventually("the waiter watches the request in between", || zk.calls(SimOperation::GetData) > 0);
    assert!(locks.iter().all(|(lock, _)| !lock.is_owner()));
    zk.delete(&between);
    for (lock, calls) in &locks {
        assert_eq!(next(calls), Call::Acquired);
        lock.unlock().unwrap();
    }
}

#[test]
fn a_waiter_whose_predecessor_gives_up_does_not_take_over() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let locks = waiting(&fixture, 2);
    locks[0].0.unlock().unwrap();
    eventually("the second waiter looks", || zk.calls(SimOperation::GetChildren) > 1);
    assert!(guard.is_owner() && !locks[1].0.is_owner());
    guard.unlock().unwrap();
    assert_eq!(next(&locks[1].1), Call::Acquired);
}

#[test]
fn a_waiter_whose_znode_was_deleted_does_not_take_over() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let locks = waiting(&fixture, 2);
    guard.unlock().unwrap();
    assert_eq!(next(&locks[0].1), Call::Acquired);
    zk.delete(&locks[1].0.id().unwrap());
    locks[0].0.unlock().unwrap();
    assert_eq!(next(&locks[1].1), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn a_failed_look_at_the_own_znode_is_repeated_before_a_take_over() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let locks = waiting(&fixture, 2);
    guard.unlock().unwrap();
    assert_eq!(next(&locks[0].1), Call::Acquired);
    fixture.client.fail_next(SimOperation::GetData, Effect::Before, ZkError::ConnectionLoss);
    locks[0].0.unlock().unwrap();
    assert_eq!(next(&locks[1].1), Call::Acquired);
    assert_eq!(fixture.client.pending_faults(), 0);
}

#[test]
fn a_lock_whose_owner_watches_its_znode_passes_without_a_listing() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    let locks = waiting(&fixture, 2);
    guard.unlock().unwrap();
    assert_eq!(next(&locks[0].1), Call::Acquired);
    zk.clear_log();
    let is_watched = |call: &crate::fake::Call| call.operation == SimOperation::GetData && call.executed;
    eventually("the owner watches its znode", || zk.log().iter().any(is_watched));
    // The event of the deletion arrives before the reply to the delete.
    locks[0].0.unlock().unwrap();
    assert_eq!(next(&locks[1].1), Call::Acquired);
    assert_eq!(zk.calls(SimOperation::GetChildren), 0);
}

#[test]
fn waiter_behind_its_session_learns_at_once_that_the_directory_was_created_anew() {
    let zk = SimulatedZooKeeper::new();
    let client = zk.connect(LONG);
    let stepped = SteppedClient::new(Arc::clone(&client));
    let fixture = Fixture { session: open_client(stepped.clone()).unwrap(), client };
    zk.create(DIR, b"");
    let first = zk.create_sequential(DIR, "x-other-lock-", None);
    // The reply to this request's create is lost, so the request must search for its znode.
    fixture.client.cut_next(SimOperation::Create, Effect::After);
    let (ahead, calls_ahead) = fixture.listening();
    let placed = in_background(move || (ahead.lock(), ahead));
    eventually("contact is lost", || fixture.session.state() == SessionState::Suspended);
    fixture.client.reconnect();
    let (_, ahead) = next(&placed);
    let behind = waiting(&fixture, 1).remove(0);
    // Now both requests have seen the queue, so they will not share the next listing.
    zk.set_data(&first, b"changed");
    stepped.step_by_step();
    let number = |lock: &WriteLock| lock.id().unwrap().rsplit('-').next().unwrap().to_owned();
    let number_ahead = number(&ahead);
    for znode in [behind.0.id().unwrap(), ahead.id().unwrap(), first] {
        zk.delete(&znode);
    }
    zk.delete(DIR);
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    // This request gets the same number as the session's first request, and joins before that request learns
    // of its end.
    let (again, _calls) = fixture.listening();
    let joined = in_background(move || (again.lock(), again));
    eventually("the request joins", || stepped.requests() > 0);
    while stepped.serve().is_some() {}
    stepped.hurry();
    assert_eq!(next(&calls_ahead), Call::Dropped(LossReason::NodeDeleted));
    assert_eq!(next(&behind.1), Call::Dropped(LossReason::NodeDeleted));
    let (outcome, again) = next(&joined);
    assert!(!outcome.unwrap());
    assert_eq!(number(&again), number_ahead);
}
