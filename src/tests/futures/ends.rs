//! Tests of what ends a wait and what does not.

use super::*;
use crate::SessionState;
use crate::error::ErrorReason;
use crate::tests::{await_replacement, replacing_session, session_by_factory};

#[test]
fn closing_the_lock_or_the_session_ends_a_wait_and_those_to_come() {
    for closes_session in [false, true] {
        let fixture = Fixture::new();
        let woken = Arc::new(Woken::default());
        let mut futures = [fixture.waiting(&woken), fixture.waiting(&woken)];
        match closes_session {
            true => fixture.session.close(),
            false => fixture.lock.close(),
        }
        eventually("both tasks are woken", || woken.times() == 2);
        woken.assert_on_callback_threads("a close");
        for future in &mut futures {
            assert!(matches!(poll(future, &woken), Poll::Ready(Err(error)) if error.is_closed()));
        }
        assert!(block_on(fixture.future()).unwrap_err().is_closed());
        fixture.await_requests(1);
    }
}

#[test]
fn lost_session_ends_a_wait() {
    let fixture = Fixture::new();
    let woken = Arc::new(Woken::default());
    let mut future = fixture.waiting(&woken);
    fixture.client.expire();
    eventually("the task is woken", || woken.times() > 0);
    woken.assert_on_callback_threads("a loss of the session");
    assert!(matches!(poll(&mut future, &woken), Poll::Ready(Err(error)) if error.is_session_lost()));
}

#[test]
fn deleted_request_ends_a_wait() {
    let fixture = Fixture::new();
    let future = fixture.waiting(&Arc::default());
    let own = fixture.server.children(DIR).into_iter().find(|name| !fixture.ahead.ends_with(name));
    fixture.server.delete(&format!("{DIR}/{}", own.unwrap()));
    let error = block_on(future).unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
}

#[test]
fn wait_goes_on_with_each_session_that_replaces_a_lost_one() {
    let server = SimulatedZooKeeper::new();
    let ahead = server.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = replacing_session(&server, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let woken = Arc::new(Woken::default());
    let mut future: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut future, &woken).is_pending());
    let is_queued = || server.children(DIR).len() == 2;
    for _ in 0..3 {
        eventually("the request is in the queue", is_queued);
        await_replacement(&session, || next(&clients).expire());
    }
    eventually("the request is in the queue", is_queued);
    assert_eq!(woken.times(), 0);
    server.delete(&ahead);
    assert!(block_on(future).unwrap().is_owner());
}

#[test]
fn closing_a_session_that_is_being_replaced_ends_a_wait() {
    begin();
    let server = SimulatedZooKeeper::new();
    let client = server.connect(LONG);
    let first = Mutex::new(Some(client.clone()));
    let factory = move || match first.lock().take() {
        Some(client) => Ok(client as _),
        None => Err(LockError::no_server("nothing", Duration::ZERO)),
    };
    let session = session_by_factory(factory).unwrap();
    server.create_sequential(DIR, "x-other-lock-", None);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let woken = Arc::new(Woken::default());
    let mut waiting: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut waiting, &woken).is_pending());
    eventually("the second request waits", || server.children(DIR).len() == 2);
    client.expire();
    eventually("the session is lost", || session.state() == SessionState::Lost);
    let mut unmade: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut unmade, &woken).is_pending());
    assert_eq!(woken.times(), 0);
    session.close();
    eventually("both tasks are woken", || woken.times() == 2);
    woken.assert_on_callback_threads("a close between two sessions");
    for future in [waiting, unmade] {
        assert!(block_on(future).unwrap_err().is_closed());
    }
}
