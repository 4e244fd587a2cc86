//! Tests of sessions that are replaced when they are lost.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tests::{await_replacement, replacing_session, session_by_factory};

#[test]
fn waiters_keep_waiting_on_the_replaced_session() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = replacing_session(&zk, LONG);
    let (sender, calls) = unbounded();
    let listening = WriteLock::with_listener(&session, DIR, RecordingListener(sender)).unwrap();
    assert!(!listening.lock().unwrap());
    let blocking = BlockingWriteLock::new(&session, DIR).unwrap();
    let waiting = in_background(move || blocking.lock().map(|guard| guard.is_owner()));
    for _ in 0..3 {
        eventually("both are in the queue", || zk.children(DIR).len() == 3);
        next(&clients).expire();
    }
    eventually("both are in the queue", || zk.children(DIR).len() == 3);
    zk.delete(&ahead);
    assert_eq!(next(&calls), Call::Acquired, "the losses are not reported");
    listening.unlock().unwrap();
    assert!(next(&waiting).unwrap());
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn holder_loses_the_lock_when_its_session_is_replaced() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&zk, LONG);
    let states = session.subscribe();
    let (sender, calls) = unbounded();
    let lock = WriteLock::with_listener(&session, DIR, RecordingListener(sender)).unwrap();
    assert!(lock.lock().unwrap());
    next(&clients).expire();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Lost(LossReason::SessionLost)));
    assert_eq!(next(&states), SessionState::Lost);
    assert_eq!(next(&states), SessionState::Connected);
    assert!(!lock.is_owner());
    assert!(zk.children(DIR).is_empty(), "a lost owner does not rejoin");
    assert!(lock.lock().unwrap(), "it may lock again");
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn znodes_of_a_lost_session_are_deleted_on_the_next() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&zk, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let left = guard.id().to_owned();
    // The client gives up, as it does after being too busy to ping. On the server, the session lives on for
    // its timeout.
    next(&clients).give_up();
    assert_eq!(next(guard.lost()), LossReason::SessionLost);
    assert!(lock.try_lock_for(deadline()).unwrap().is_some(), "the lock is free before the old session ends");
    assert!(!zk.exists(&left));
}

#[test]
fn create_under_way_at_the_loss_of_the_session_is_undone_on_the_next() {
    for returns_late in [false, true] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let (session, clients) = replacing_session(&zk, LONG);
        let client = next(&clients);
        let (release, held) = crossbeam_channel::bounded::<()>(0);
        // The client gives up before the reply. On the server, the session lives on for its timeout.
        let gives_up = Arc::clone(&client);
        client.after_next(SimOperation::Create, move || {
            gives_up.give_up();
            if returns_late {
                let _ = held.recv();
            }
        });
        await_replacement(&session, || {
            let lock = BlockingWriteLock::new(&session, DIR).unwrap();
            assert!(lock.try_lock().unwrap_err().is_session_lost());
        });
        assert_eq!(zk.sessions().len(), 2);
        drop(release);
        eventually("the znode is deleted", || zk.children(DIR).is_empty());
        assert_eq!(zk.sessions().len(), 2, "the server did not delete the znode");
    }
}

#[test]
fn create_that_succeeds_after_the_session_was_replaced_is_undone() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let (session, clients) = replacing_session(&zk, Duration::from_secs(3));
    let client = next(&clients);
    // The lease ends in a partition, and the server does not receive the close.
    client.fail_next(SimOperation::Close, Effect::Before, ZkError::ConnectionLoss);
    client.swallow_next(SimOperation::Create, Effect::After);
    await_replacement(&session, || {
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        assert!(lock.try_lock().unwrap_err().is_session_lost());
    });
    assert_eq!(zk.children(DIR).len(), 1);
    client.release();
    eventually("the znode is deleted", || zk.children(DIR).is_empty());
    assert!(zk.sessions().contains(&client.session_id()), "the server did not delete the znode");
}

#[test]
fn close_ends_the_replacement_of_lost_sessions() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = replacing_session(&zk, LONG);
    let lock = Arc::new(BlockingWriteLock::new(&session, DIR).unwrap());
    let of_thread = Arc::clone(&lock);
    let waiting = in_background(move || of_thread.lock().map(drop));
    eventually("the request is in the queue", || zk.children(DIR).len() == 2);
    session.close();
    let error = next(&waiting).unwrap_err();
    assert!(error.is_closed(), "{error:?}");
    assert!(lock.lock().unwrap_err().is_closed());
    next(&clients);
    assert!(
        clients.recv_timeout(deadline()).is_err(),
        "the factory is dropped without making another client"
    );
    assert_eq!(session.state(), SessionState::Lost);
}

#[test]
fn close_between_two_sessions_ends_a_wait_with_closed() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    let (made, clients) = unbounded();
    let (of_factory, is_first) = (zk.clone(), AtomicBool::new(true));
    let session = session_by_factory(move || {
        if is_first.swap(false, Ordering::SeqCst) {
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            return Ok(client);
        }
        Err(LockError::no_server("a server", LONG))
    });
    let session = session.unwrap();
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let waiting = in_background(move || lock.lock().map(drop));
    eventually("the request is in the queue", || zk.children(DIR).len() == 2);
    next(&clients).expire();
    eventually("the loss is noticed", || session.state() == SessionState::Lost);
    session.close();
    let error = next(&waiting).unwrap_err();
    assert!(error.is_closed(), "{error}");
}
