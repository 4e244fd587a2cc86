//! Sessions that are replaced.

use super::*;

/// A session whose clients come from a factory, and the newest of these.
fn self_healing(zk: &SimulatedZooKeeper) -> (Session, Receiver<Arc<SimulatedClient>>) {
    let (made, clients) = unbounded();
    let zk = zk.clone();
    let session = Session::from_client_factory(move || {
        let client = zk.connect(LONG);
        let _ = made.send(Arc::clone(&client));
        Ok(client)
    });
    (session.unwrap(), clients)
}

#[test]
fn a_waiter_waits_on_when_its_session_is_replaced() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = self_healing(&zk);
    let (told, calls) = unbounded();
    let listening = WriteLock::with_listener(&session, DIR, Notes(told)).unwrap();
    assert!(!listening.lock().unwrap());
    let blocking = BlockingWriteLock::new(&session, DIR).unwrap();
    let waiting = in_background(move || blocking.lock().map(|guard| guard.is_owner()));
    for _ in 0..3 {
        eventually("both stand in the queue", || zk.children(DIR).len() == 3);
        next(&clients).expire();
    }
    eventually("both stand in the queue", || zk.children(DIR).len() == 3);
    zk.delete(&ahead);
    assert_eq!(next(&calls), Call::Acquired, "the losses are not reported");
    listening.unlock().unwrap();
    assert!(next(&waiting).unwrap());
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn a_holder_loses_its_lock_when_its_session_is_replaced() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = self_healing(&zk);
    let states = session.subscribe();
    let (told, calls) = unbounded();
    let lock = WriteLock::with_listener(&session, DIR, Notes(told)).unwrap();
    assert!(lock.lock().unwrap());
    next(&clients).expire();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Lost(LossReason::SessionExpired)));
    assert_eq!(next(&states), SessionState::Lost);
    assert_eq!(next(&states), SessionState::Connected);
    assert!(!lock.is_owner());
    assert!(zk.children(DIR).is_empty(), "nobody joined again for it");
    assert!(lock.lock().unwrap(), "but it may");
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn znodes_left_by_a_lost_session_are_deleted_on_the_next() {
    let zk = SimulatedZooKeeper::new();
    let (session, clients) = self_healing(&zk);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let left = guard.id().to_owned();
    // The client gives up, as it does when it was too busy to ping, and the session lives on for
    // its timeout.
    next(&clients).give_up();
    assert_eq!(next(guard.lost()), LossReason::SessionExpired);
    assert!(
        lock.try_lock_for(deadline()).unwrap().is_some(),
        "without waiting for the end of the old session"
    );
    assert!(!zk.exists(&left));
}

#[test]
fn a_closed_session_is_not_replaced() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = self_healing(&zk);
    let lock = Arc::new(BlockingWriteLock::new(&session, DIR).unwrap());
    let of_thread = Arc::clone(&lock);
    let waiting = in_background(move || of_thread.lock().map(drop));
    eventually("it stands in the queue", || zk.children(DIR).len() == 2);
    session.close();
    let error = next(&waiting).unwrap_err();
    assert!(error.is_closed(), "{error:?}");
    assert!(lock.lock().unwrap_err().is_closed());
    next(&clients);
    assert!(clients.recv_timeout(deadline()).is_err(), "the factory is gone, and made no other");
    assert_eq!(session.state(), SessionState::Lost);
}
