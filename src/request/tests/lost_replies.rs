//! Tests of lost replies, at every step.

use crate::error::ErrorReason;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::locks::locking;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::request::{Observer, Place, Request, RequestEvent};

/// Injects the fault into each step of acquiring a lock behind another request and releasing it, and checks
/// that the outcome is the same as without the fault.
fn assert_no_trace_of(fault: impl Fn(&SimulatedClient, SimOperation, Effect)) {
    for operation in STEPS {
        for when in [Effect::Before, Effect::After] {
            let zk = SimulatedZooKeeper::new();
            zk.create(DIR, b"");
            let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
            let fixture = Fixture::join(&zk);
            let _reconnecting = fixture.reconnect_on_loss();
            let (lock, calls) = fixture.listening_with(patient_retries());
            fault(&fixture.client, operation, when);
            assert!(!lock.lock().unwrap(), "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 2, "never two znodes: {operation:?} {when:?}");
            zk.delete(&ahead);
            assert_eq!(next(&calls), Call::Acquired, "{operation:?} {when:?}");
            assert_eq!(zk.children(DIR).len(), 1);
            // A deletion whose reply was lost is pending. This is not an error.
            lock.unlock().unwrap();
            assert_eq!(next(&calls), Call::Released);
            eventually("the znode is gone", || zk.children(DIR).is_empty());
            assert_eq!(fixture.client.pending_faults(), 0, "the fault occurred: {operation:?} {when:?}");
        }
    }
}

#[test]
fn connection_loss_of_a_call_at_any_step_leaves_no_trace() {
    assert_no_trace_of(|client, operation, when| client.fail_next(operation, when, ZkError::ConnectionLoss));
}

#[test]
fn a_connection_cut_at_any_step_leaves_no_trace() {
    assert_no_trace_of(SimulatedClient::cut_next);
}

#[test]
fn a_client_that_panics_at_any_step_leaves_no_trace() {
    assert_no_trace_of(panic_in_next);
}

#[test]
fn lock_fails_after_its_attempts_when_the_client_always_panics() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for _ in 0..10 {
        panic_in_next(&fixture.client, SimOperation::Create, Effect::Before);
    }
    let error = fixture.blocking().lock().unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
    assert_eq!(fixture.client.pending_faults(), 0, "ten attempts");
    assert!(fixture.blocking().try_lock_for(deadline()).unwrap().is_some());
}

/// An observer that panics on the first event.
struct PanicsOnce(AtomicBool);

impl Observer for PanicsOnce {
    fn post(&self, _event: &RequestEvent) {
        if self.0.swap(false, Ordering::SeqCst) {
            std::panic::resume_unwind(Box::new("an observer panics on purpose"));
        }
    }
}

#[test]
fn request_continues_after_a_step_that_panics() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let support = ProtocolSupport::with_options(&fixture.session, quick_retries()).unwrap();
    let dir = ZNodePath::parse(DIR).unwrap();
    let observer = Arc::new(PanicsOnce(AtomicBool::new(true)));
    let spec = locking::spec(&dir, &support, Access::Exclusive(NamingScheme::Recipe));
    let request = Request::new(fixture.session.core(), &spec, observer);
    request.start();
    eventually("the request owns", || request.is_owner() && request.znode().is_some());
    zk.delete(request.znode().unwrap().as_str());
    eventually("the owner looks at its znode", || request.has_ended());
    eventually("no registration is left", || fixture.session.core().census().0 == 0);
}

/// One thread has installed the request of a lock but has not started it yet. Another thread already waits.
#[test]
fn thread_that_waits_for_a_request_which_is_yet_to_be_started_sees_it_own() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let support = ProtocolSupport::with_options(&fixture.session, quick_retries()).unwrap();
    let dir = ZNodePath::parse(DIR).unwrap();
    let observer = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let spec = locking::spec(&dir, &support, Access::Exclusive(NamingScheme::Recipe));
    let request = Request::new(fixture.session.core(), &spec, observer);
    let of_waiter = Arc::clone(&request);
    let placed = in_background(move || of_waiter.wait_until_placed(&[]).unwrap());
    eventually("the thread waits", || request.is_awaited());
    request.start();
    assert_eq!(next(&placed), Some(Place::Owner));
    request.withdraw();
}

#[test]
fn thread_that_waits_for_a_request_which_is_never_started_sees_its_end() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let support = ProtocolSupport::with_options(&fixture.session, quick_retries()).unwrap();
    let dir = ZNodePath::parse(DIR).unwrap();
    let observer = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let spec = locking::spec(&dir, &support, Access::Exclusive(NamingScheme::Recipe));
    let request = Request::new(fixture.session.core(), &spec, observer);
    let of_waiter = Arc::clone(&request);
    let placed = in_background(move || of_waiter.wait_until_placed(&[]).unwrap());
    eventually("the thread waits", || request.is_awaited());
    request.withdraw();
    assert_eq!(next(&placed), None);
}

#[test]
fn keep_alive_is_repeated_after_a_panic() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join_for(&zk, Duration::from_secs(5));
    let guard = fixture.blocking().lock().unwrap();
    for when in [Effect::Before, Effect::After] {
        panic_in_next(&fixture.client, SimOperation::SetData, when);
        eventually("the keep-alive panics", || fixture.client.pending_faults() == 0);
    }
    let calls = zk.calls(SimOperation::SetData);
    eventually("the session is kept alive", || zk.calls(SimOperation::SetData) > calls);
    assert!(guard.is_owner());
}

#[test]
fn create_with_a_lost_reply_is_found_and_not_repeated() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    zk.clear_log();
    fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
    let guard = fixture.blocking().lock().unwrap();
    assert_eq!(zk.calls(SimOperation::Create), 1);
    assert!(guard.is_owner());
    assert!(zk.exists(guard.id()));
}

#[test]
fn late_create_after_its_repetition_is_deleted_with_the_request() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let session = fixture.client.session_id();
    fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    let guard = fixture.blocking().lock().unwrap();
    let name = zk.children(DIR).remove(0);
    zk.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    guard.unlock().unwrap();
    eventually("neither znode is left", || zk.children(DIR).is_empty());
}

#[test]
fn second_znode_ahead_of_the_own_one_is_deleted() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let late = zk.clone();
    let session = fixture.client.session_id();
    fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    fixture.client.after_next(SimOperation::Create, move || {
        let name = late.children(DIR).remove(0);
        late.set_sequence(DIR, -5);
        late.create_sequential(DIR, &name[..name.len() - 10], Some(session));
    });
    let guard = fixture.blocking().try_lock_for(deadline()).unwrap().unwrap();
    assert!(guard.is_owner());
    assert_eq!(zk.children(DIR).len(), 1);
}

#[test]
fn lock_fails_after_its_attempts_when_every_create_fails() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for _ in 0..10 {
        fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::ConnectionLoss);
    }
    let error = fixture.blocking().lock().unwrap_err();
    assert!(error.is_connection_loss(), "{error}");
    assert_eq!(fixture.client.pending_faults(), 0, "ten attempts");
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap(), "the next request is a new one");
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn an_owner_survives_a_look_whose_reply_cannot_be_read() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let guard = fixture.blocking().lock().unwrap();
    fixture.client.fail_next(SimOperation::GetData, Effect::After, ZkError::MarshallingError);
    eventually("the owner looks at its znode", || fixture.client.pending_faults() == 0);
    let calls = zk.calls(SimOperation::GetData);
    fixture.client.disconnect();
    fixture.client.reconnect();
    eventually("the owner looks again", || zk.calls(SimOperation::GetData) > calls);
    assert!(guard.is_owner() && guard.loss().is_none());
}

/// The number of unreadable replies after which a request gives up.
const MAX_UNREADABLE: usize = 3;

#[test]
fn a_waiter_looks_again_after_replies_that_cannot_be_read() {
    for operation in [SimOperation::GetChildren, SimOperation::GetData] {
        let zk = SimulatedZooKeeper::new();
        let ahead = zk.create_sequential(DIR, "x-ahead-lock-", None);
        let fixture = Fixture::join(&zk);
        for _ in 1..MAX_UNREADABLE {
            fixture.client.fail_next(operation, Effect::After, ZkError::MarshallingError);
        }
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        assert_eq!(fixture.client.pending_faults(), 0, "{operation:?}");
        // The count starts over.
        for _ in 1..MAX_UNREADABLE {
            fixture.client.fail_next(operation, Effect::After, ZkError::MarshallingError);
        }
        match operation {
            SimOperation::GetChildren => zk.set_data(&lock.id().unwrap(), b"changed"),
            _ => {
                fixture.client.disconnect();
                fixture.client.reconnect();
            }
        }
        eventually("the waiter looks again", || fixture.client.pending_faults() == 0);
        zk.delete(&ahead);
        assert_eq!(next(&calls), Call::Acquired, "{operation:?}");
    }
}

#[test]
fn a_waiter_is_dropped_after_three_replies_in_a_row_that_cannot_be_read() {
    for operation in [SimOperation::GetChildren, SimOperation::GetData] {
        let zk = SimulatedZooKeeper::new();
        zk.create_sequential(DIR, "x-ahead-lock-", None);
        let fixture = Fixture::join(&zk);
        // With each look at its predecessor, the waiter also reads its own znode.
        let reads = if operation == SimOperation::GetData { 2 } else { 1 };
        for _ in 0..reads * MAX_UNREADABLE {
            fixture.client.fail_next(operation, Effect::After, ZkError::MarshallingError);
        }
        let (lock, calls) = fixture.listening();
        let error = lock.lock().unwrap_err();
        assert!(error.reason() == ErrorReason::Server(ZkError::MarshallingError), "{error}");
        assert_eq!(next(&calls), Call::Dropped(LossReason::Failed));
        assert_eq!(fixture.client.pending_faults(), 0, "{operation:?}");
    }
}

#[test]
fn create_whose_reply_cannot_be_read_is_found_and_not_repeated() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    zk.clear_log();
    fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::MarshallingError);
    let guard = fixture.blocking().lock().unwrap();
    assert_eq!(zk.calls(SimOperation::Create), 1);
    assert_eq!(zk.children(DIR).len(), 1);
    assert!(guard.is_owner() && zk.exists(guard.id()));
}

#[test]
fn search_for_an_unconfirmed_znode_is_repeated_after_replies_that_cannot_be_read() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    zk.clear_log();
    fixture.client.fail_next(SimOperation::Create, Effect::After, ZkError::ConnectionLoss);
    for _ in 1..MAX_UNREADABLE {
        fixture.client.fail_next(SimOperation::GetChildren, Effect::After, ZkError::MarshallingError);
    }
    let guard = fixture.blocking().lock().unwrap();
    assert_eq!(fixture.client.pending_faults(), 0);
    assert_eq!(zk.calls(SimOperation::Create), 1);
    assert!(guard.is_owner() && zk.exists(guard.id()));
}

#[test]
fn joining_fails_after_three_replies_in_a_row_that_cannot_be_read() {
    for create_error in [ZkError::ConnectionLoss, ZkError::MarshallingError] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let fixture = Fixture::join(&zk);
        fixture.client.fail_next(SimOperation::Create, Effect::After, create_error);
        let of_create = usize::from(create_error == ZkError::MarshallingError);
        for _ in of_create..MAX_UNREADABLE {
            fixture.client.fail_next(SimOperation::GetChildren, Effect::After, ZkError::MarshallingError);
        }
        let error = fixture.blocking().lock().unwrap_err();
        assert!(error.reason() == ErrorReason::Server(ZkError::MarshallingError), "{error}");
        assert_eq!(fixture.client.pending_faults(), 0, "{create_error:?}");
        eventually("no znode is left", || zk.children(DIR).is_empty());
    }
}
