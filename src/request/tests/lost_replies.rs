//! Replies lost, at every step.

use super::*;

/// Has one call fail in one way while a lock is acquired behind another and released, and checks that nothing of it shows.
fn assert_no_trace_of(fault: impl Fn(&SimulatedClient, SimOperation, Effect)) {
    for operation in STEPS {
        for when in [Effect::Before, Effect::After] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
            let party = Party::join(&zk);
            let _mending = party.mend();
            let (lock, calls) = party.listening();
            fault(&party.client, operation, when);
            assert!(!lock.lock().unwrap(), "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 2, "never two znodes: {operation:?} {when:?}");
            zk.delete(&ahead);
            assert_eq!(next(&calls), Call::Acquired, "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 1);
            // A deletion whose reply is lost says that it is pending, and is made good.
            match lock.unlock() {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, LockError::DeletePending { .. }), "{error}"),
            }
            assert_eq!(next(&calls), Call::Released);
            eventually("the znode is gone", || zk.children(DIR).is_empty());
            assert_eq!(party.client.pending_faults(), 0, "the fault struck: {operation:?} {when:?}");
        }
    }
}

#[test]
fn a_call_that_fails_at_any_step_leaves_no_trace() {
    assert_no_trace_of(|client, operation, when| client.fail_next(operation, when, ZkError::ConnectionLoss));
}

#[test]
fn a_connection_cut_at_any_step_leaves_no_trace() {
    assert_no_trace_of(SimulatedClient::cut_next);
}

#[test]
fn a_create_that_came_through_is_found_again_not_repeated() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    zk.clear_log();
    party.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
    let guard = party.blocking().lock().unwrap();
    assert_eq!(zk.calls(SimOperation::Create), 1);
    assert!(guard.is_owner());
    assert!(zk.exists(guard.id()));
}

#[test]
fn a_create_that_comes_through_after_its_repetition_blocks_nobody() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let session = party.client.session_id();
    party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    let guard = party.blocking().lock().unwrap();
    let name = zk.children(DIR).remove(0);
    zk.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    guard.unlock().unwrap();
    eventually("neither znode is left", || zk.children(DIR).is_empty());
}

#[test]
fn a_second_znode_ahead_of_the_own_one_is_deleted() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    let late = zk.clone();
    let session = party.client.session_id();
    party.client.after_next(SimOperation::Create, move || {
        let name = late.children(DIR).remove(0);
        late.set_sequence(DIR, -5);
        late.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    });
    let guard = party.blocking().try_lock_for(deadline()).unwrap().unwrap();
    assert!(guard.is_owner());
    assert_eq!(zk.children(DIR).len(), 1);
}

#[test]
fn a_request_that_cannot_be_made_is_given_up_after_its_attempts() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let party = Party::join(&zk);
    for _ in 0..10 {
        party.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let error = party.blocking().lock().unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
    assert_eq!(party.client.pending_faults(), 0, "ten attempts");
    let (lock, calls) = party.listening();
    assert!(lock.lock().unwrap(), "the next request is a new one");
    assert_eq!(next(&calls), Call::Acquired);
}
