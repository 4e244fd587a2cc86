//! Tests of futures that are polled, woken and dropped after each step of their connection.

use super::*;
use crate::tests::{SteppedClient, open_client_on_manual_runtime};

/// A lock on a connection that moves messages only on command, all on one thread.
struct Stepped {
    server: SimulatedZooKeeper,
    client: Arc<SteppedClient>,
    session: Session,
    lock: BlockingWriteLock,
}

impl Stepped {
    fn new() -> Stepped {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        let client = SteppedClient::new(server.connect(LONG));
        let (_runtime, session) = open_client_on_manual_runtime(client.clone());
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        client.step_by_step();
        Stepped { server, client, session, lock }
    }

    /// Moves one request to the server, or one reply or event back. Returns `false` if there is none.
    fn step(&self) -> bool {
        self.client.serve().is_some() || self.client.deliver()
    }

    /// Takes `steps` steps. If it runs out of steps earlier, the request ahead leaves. Returns the number of
    /// steps taken.
    fn take(&self, steps: usize, ahead: Option<&str>) -> usize {
        let mut taken = 0;
        let mut may_leave = ahead;
        while taken < steps {
            match self.step() {
                true => taken += 1,
                false => match may_leave.take() {
                    Some(ahead) => self.server.delete(ahead),
                    None => break,
                },
            }
        }
        taken
    }

    /// Asserts that dropped futures have left nothing behind, and that the lock can be acquired.
    fn assert_free(&self, what: &str) {
        self.client.hurry();
        assert!(self.server.children(DIR).is_empty(), "{what}: {:?}", self.server.children(DIR));
        assert_eq!(self.server.watch_count(), 0, "{what}: a watch is left");
        assert_eq!(self.session.core().census(), (0, 0), "{what}: a request is left");
        assert!(self.lock.try_lock().unwrap().is_some(), "{what}");
    }
}

#[test]
fn future_that_is_never_polled_sends_nothing() {
    let stepped = Stepped::new();
    drop(stepped.lock.lock_async());
    assert_eq!(stepped.client.requests(), 0);
    stepped.assert_free("never polled");
}

/// The steps from the first poll to the acquisition lead through every state: the request is unsent; it is at the
/// server; its reply is on its way; it waits; its predecessor is gone; it owns the lock, but the future has not been
/// polled yet.
#[test]
fn future_that_is_dropped_after_any_number_of_steps_leaves_nothing() {
    for (is_ahead, least) in [(false, 2), (true, 6)] {
        for steps in 0.. {
            let stepped = Stepped::new();
            let ahead = is_ahead.then(|| stepped.server.create_sequential(DIR, "x-other-lock-", None));
            let woken = Arc::new(Woken::default());
            let mut future: Locking = Box::pin(stepped.lock.lock_async());
            assert!(poll(&mut future, &woken).is_pending());
            let taken = stepped.take(steps, ahead.as_deref());
            let is_acquired = woken.times() > 0;
            drop(future);
            assert_eq!(Arc::strong_count(&woken), 1, "a waker is left after {taken} steps");
            stepped.client.move_all();
            if let Some(ahead) = ahead.filter(|ahead| stepped.server.exists(ahead)) {
                stepped.server.delete(&ahead);
            }
            stepped.assert_free(&format!("dropped after {taken} steps, with one ahead: {is_ahead}"));
            if taken < steps {
                assert!(is_acquired && taken >= least, "{taken} steps");
                break;
            }
        }
    }
}

#[test]
fn future_is_woken_once_and_ready_then() {
    let stepped = Stepped::new();
    let ahead = stepped.server.create_sequential(DIR, "x-other-lock-", None);
    let woken = Arc::new(Woken::default());
    let mut future: Locking = Box::pin(stepped.lock.lock_async());
    assert!(poll(&mut future, &woken).is_pending());
    while stepped.step() {
        assert!(poll(&mut future, &woken).is_pending());
    }
    assert_eq!(woken.times(), 0);
    stepped.server.delete(&ahead);
    while stepped.step() {}
    assert_eq!(woken.times(), 1);
    let Poll::Ready(Ok(guard)) = poll(&mut future, &woken) else {
        panic!("the future was woken, so it must be ready")
    };
    assert!(guard.is_owner());
    drop((guard, future));
    stepped.client.move_all();
    stepped.assert_free("released");
}

#[test]
fn lock_that_is_acquired_before_it_is_closed_is_still_returned_and_one_that_is_lost_is_not() {
    for is_lost in [false, true] {
        let server = SimulatedZooKeeper::new();
        let ahead = server.create_sequential(DIR, "x-other-lock-", None);
        let (client, _runtime, session) = open_on_manual_runtime(&server, LONG);
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        let woken = Arc::new(Woken::default());
        let mut futures = [(); 2].map(|()| Box::pin(lock.lock_async()));
        futures.iter_mut().for_each(|future| assert!(poll(future, &woken).is_pending()));
        server.delete(&ahead);
        match is_lost {
            true => client.expire(),
            false => lock.close(),
        }
        let [mut first, mut second] = futures;
        let Poll::Ready(outcome) = poll(&mut first, &woken) else {
            panic!("the first future acquired before the end")
        };
        assert_eq!(outcome.as_ref().ok().map(LockGuard::is_owner), (!is_lost).then_some(true));
        let Poll::Ready(Err(error)) = poll(&mut second, &woken) else {
            panic!("the second future was still waiting")
        };
        assert_eq!((error.is_closed(), error.is_session_lost()), (!is_lost, is_lost));
    }
}

#[test]
fn task_that_has_polled_last_is_woken() {
    let server = SimulatedZooKeeper::new();
    let ahead = server.create_sequential(DIR, "x-other-lock-", None);
    let (_client, _runtime, session) = open_on_manual_runtime(&server, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let (first, last) = (Arc::new(Woken::default()), Arc::new(Woken::default()));
    let mut future: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut future, &first).is_pending());
    assert!(poll(&mut future, &last).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "the waker must be dropped");
    server.delete(&ahead);
    assert_eq!([&first, &last].map(|woken| woken.times()), [0, 1]);
    assert!(poll(&mut future, &last).is_ready());
}
