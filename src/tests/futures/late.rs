//! Tests of waits whose outcome is collected late: by a task that is polled late, or by a thread that runs late.

use super::*;
use crate::LockOptions;
use crate::error::ErrorReason;
use crate::locks::{CohortLock, MultiLock, ReadWriteLock, Semaphore};
use crate::tests::{
    ManualRuntime, SteppedClient, await_replacement, open_client_on_manual_runtime, replacing_session,
};
use crate::time::Runtime as _;

const LIMIT: Duration = Duration::from_secs(1);

/// Longer than the time from an acquisition until the owner watches its znode.
const UNTIL_WATCHED: Duration = Duration::from_millis(500);

/// The future of any lock. Its guard is dropped at once.
type Acquiring<'a> = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send + 'a>>;

/// How a lock may be lost before the wait for it is collected.
#[derive(Clone, Copy, Debug)]
enum Lost {
    HeldTooLong,
    Deleted,
    WithItsSession,
}

const LOST: [Lost; 3] = [Lost::HeldTooLong, Lost::Deleted, Lost::WithItsSession];

impl Lost {
    fn reason(self) -> ErrorReason {
        match self {
            Lost::HeldTooLong => ErrorReason::HeldTooLong,
            Lost::Deleted => ErrorReason::NodeDeleted,
            Lost::WithItsSession => ErrorReason::SessionLost,
        }
    }
}

/// Locks of every kind below one directory, on a manual runtime.
struct Locks {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    runtime: Arc<ManualRuntime>,
    session: Session,
}

/// The directories in which the locks of [`Locks`] make the requests that own.
const DIRS: [&str; 4] = [DIR, "/shared", "/semaphore/leases", "/cohort"];

impl Locks {
    fn new() -> Locks {
        let server = SimulatedZooKeeper::new();
        DIRS.iter().for_each(|dir| server.create(dir, b""));
        let (client, runtime, session) = open_on_manual_runtime(&server, LONG);
        Locks { server, client, runtime, session }
    }

    fn options() -> LockOptions {
        LockOptions::new().max_hold(LIMIT)
    }

    fn exclusive(&self) -> BlockingWriteLock {
        BlockingWriteLock::with_options(&self.session, DIR, Locks::options()).unwrap()
    }

    fn shared(&self) -> ReadWriteLock {
        ReadWriteLock::with_options(&self.session, "/shared", Locks::options()).unwrap()
    }

    fn semaphore(&self) -> Semaphore {
        Semaphore::with_options(&self.session, "/semaphore", 1, Locks::options()).unwrap()
    }

    fn cohort(&self) -> CohortLock {
        let options = crate::locks::CohortOptions::new();
        CohortLock::with_options(&self.session, "/cohort", Locks::options(), options).unwrap()
    }

    /// Loses what was acquired in this way. Does not wait.
    fn lose(&self, how: Lost) {
        lose(&self.server, &self.client, &self.runtime, how);
    }
}

fn lose(server: &SimulatedZooKeeper, client: &SimulatedClient, runtime: &ManualRuntime, how: Lost) {
    runtime.advance(UNTIL_WATCHED);
    match how {
        Lost::HeldTooLong => runtime.advance(LIMIT),
        Lost::Deleted => {
            for dir in DIRS {
                server.children(dir).iter().for_each(|name| server.delete(&format!("{dir}/{name}")));
            }
        }
        Lost::WithItsSession => client.expire(),
    }
}

#[test]
fn lock_that_is_lost_before_its_future_is_polled_again_is_an_error() {
    for how in LOST {
        let locks = Locks::new();
        let (exclusive, shared, semaphore) = (locks.exclusive(), locks.shared(), locks.semaphore());
        let mut futures: [(&str, Acquiring<'_>); 3] = [
            ("lock", Box::pin(async { exclusive.lock_async().await.map(drop) })),
            ("read", Box::pin(async { shared.read_async().await.map(drop) })),
            ("acquire", Box::pin(async { semaphore.acquire_async().await.map(drop) })),
        ];
        let ahead: Vec<String> =
            DIRS[..3].iter().map(|dir| locks.server.create_sequential(dir, prefix(dir), None)).collect();
        let woken = Arc::new(Woken::default());
        futures.iter_mut().for_each(|(_, future)| assert!(poll(future, &woken).is_pending()));
        ahead.iter().for_each(|ahead| locks.server.delete(ahead));
        assert_eq!(woken.times(), 3, "all have acquired");
        locks.lose(how);
        for (kind, mut future) in futures {
            match poll(&mut future, &woken) {
                Poll::Ready(Err(error)) => assert_eq!(error.reason(), how.reason(), "{kind}: {error}"),
                other => panic!("{kind}, {how:?}: {other:?}"),
            }
        }
    }
}

/// The name of a request that excludes the requests of this directory's lock.
fn prefix(dir: &str) -> &'static str {
    match dir {
        "/shared" => "write-other-",
        "/semaphore/leases" => "_c_other-lease-",
        _ => "x-other-lock-",
    }
}

#[test]
fn writers_lock_that_is_lost_before_its_future_is_polled_again_is_an_error() {
    let locks = Locks::new();
    let shared = locks.shared();
    let ahead = locks.server.create_sequential("/shared", "write-other-", None);
    let (mut writing, woken) = (Box::pin(shared.write_async()), Arc::new(Woken::default()));
    assert!(poll(&mut writing, &woken).is_pending());
    locks.server.delete(&ahead);
    locks.lose(Lost::HeldTooLong);
    let Poll::Ready(Err(error)) = poll(&mut writing, &woken) else { panic!("the lock is lost") };
    assert_eq!(error.reason(), ErrorReason::HeldTooLong, "{error}");
}

/// The lease may be over before any thread has noticed.
#[test]
fn lock_whose_lease_is_over_when_the_future_is_polled_is_an_error() {
    let locks = Locks::new();
    let lock = BlockingWriteLock::new(&locks.session, DIR).unwrap();
    let ahead = locks.server.create_sequential(DIR, "x-other-lock-", None);
    let (mut future, woken) = (Box::pin(lock.lock_async()), Arc::new(Woken::default()));
    assert!(poll(&mut future, &woken).is_pending());
    locks.server.delete(&ahead);
    locks.runtime.suspend(LONG);
    let Poll::Ready(Err(error)) = poll(&mut future, &woken) else { panic!("the lease is over") };
    assert_eq!(error.reason(), ErrorReason::LeaseExpired, "{error}");
}

/// A blocking call returns late if its thread does not run for a while.
#[test]
fn lock_that_is_lost_before_a_blocking_call_returns_is_an_error() {
    type Call = fn(&Locks) -> Result<(), LockError>;
    let calls: [(&str, Call); 5] = [
        ("lock", |locks| locks.exclusive().lock().map(drop)),
        ("write", |locks| locks.shared().write().map(drop)),
        ("acquire", |locks| locks.semaphore().acquire().map(drop)),
        ("cohort", |locks| locks.cohort().lock().map(drop)),
        ("multi", |locks| {
            let options = Locks::options();
            MultiLock::with_options(&locks.session, [DIR, "/cohort"], options).unwrap().lock().map(drop)
        }),
    ];
    for how in LOST {
        for (kind, call) in calls {
            let locks = Locks::new();
            let requests: Vec<String> =
                DIRS.iter().map(|dir| locks.server.create_sequential(dir, prefix(dir), None)).collect();
            let (server, client) = (locks.server.clone(), Arc::clone(&locks.client));
            let runtime = Arc::clone(&locks.runtime);
            // Runs on the thread that waits, which therefore returns only afterwards.
            let free = move || {
                requests.iter().for_each(|request| server.delete(request));
                lose(&server, &client, &runtime, how);
            };
            locks.runtime.at(locks.runtime.now().after(LIMIT), Box::new(free));
            let error = call(&locks).expect_err(kind);
            assert_eq!(error.reason(), how.reason(), "{kind}: {error}");
        }
    }
}

#[test]
fn lock_that_is_lost_before_a_try_lock_returns_is_an_error() {
    for is_cohort in [false, true] {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        let inner = server.connect(LONG);
        let client = SteppedClient::new(inner.clone());
        let (runtime, session) = open_client_on_manual_runtime(client.clone());
        client.step_by_step();
        let of_wait = Arc::clone(&client);
        runtime.while_waiting(move || {
            of_wait.move_all();
            inner.expire();
            of_wait.move_all();
            true
        });
        let outcome = match is_cohort {
            true => CohortLock::new(&session, DIR).unwrap().try_lock().map(|guard| guard.is_some()),
            false => BlockingWriteLock::new(&session, DIR).unwrap().try_lock().map(|guard| guard.is_some()),
        };
        let error = outcome.expect_err("the lock is lost");
        assert!(error.is_session_lost(), "{error}");
    }
}

#[test]
fn future_whose_lock_is_lost_with_its_session_joins_the_queue_again() {
    let server = SimulatedZooKeeper::new();
    let ahead = server.create_sequential(DIR, "x-other-lock-", None);
    let (session, clients) = replacing_session(&server, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let woken = Arc::new(Woken::default());
    let mut future: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut future, &woken).is_pending());
    eventually("the request waits", || server.children(DIR).len() == 2);
    server.delete(&ahead);
    eventually("the future has the lock", || woken.times() == 1);
    await_replacement(&session, || next(&clients).expire());
    let other = server.connect(LONG).open_session().unwrap();
    let theirs = BlockingWriteLock::new(&other, DIR).unwrap().lock().unwrap();
    assert!(poll(&mut future, &woken).is_pending(), "another client owns the lock");
    eventually("the future waits again", || server.children(DIR).len() == 2);
    assert!(theirs.is_owner());
    theirs.unlock().unwrap();
    assert!(block_on(future).unwrap().is_owner());
}

// ---- permits: no step depends on the task

/// Ten permits are free. Nobody polls the future that has its turn.
#[test]
fn future_that_nobody_polls_keeps_nobody_from_a_free_permit() {
    let server = SimulatedZooKeeper::new();
    ["/semaphore/locks", "/semaphore/leases"].iter().for_each(|dir| server.create(dir, b""));
    let client = SteppedClient::new(server.connect(LONG));
    let (_runtime, session) = open_client_on_manual_runtime(client.clone());
    let semaphore = Semaphore::new(&session, "/semaphore", 10).unwrap();
    client.step_by_step();
    let woken = Arc::new(Woken::default());
    let mut kept = Box::pin(semaphore.acquire_async());
    assert!(poll(&mut kept, &woken).is_pending());
    client.move_all();
    let queues = || ["locks", "leases"].map(|queue| server.children(&format!("/semaphore/{queue}")).len());
    assert_eq!(queues(), [0, 1], "the future has a permit, and its turn is over");
    assert_eq!(woken.times(), 1);
    let (_other, _runtime, session) = open_on_manual_runtime(&server, LONG);
    let permit = Semaphore::new(&session, "/semaphore", 10).unwrap().acquire().unwrap();
    assert!(permit.is_owner());
    let Poll::Ready(Ok(collected)) = poll(&mut kept, &woken) else { panic!("the future is ready") };
    assert!(collected.is_owner());
}

/// The steps lead through both queues: the request for the turn, the request for the permit, the end of the turn.
#[test]
fn future_of_a_permit_that_is_dropped_after_any_number_of_steps_leaves_nothing() {
    for steps in 0.. {
        let server = SimulatedZooKeeper::new();
        ["/semaphore/locks", "/semaphore/leases"].iter().for_each(|dir| server.create(dir, b""));
        let client = SteppedClient::new(server.connect(LONG));
        let (_runtime, session) = open_client_on_manual_runtime(client.clone());
        let semaphore = Semaphore::new(&session, "/semaphore", 1).unwrap();
        client.step_by_step();
        let woken = Arc::new(Woken::default());
        let mut future = Box::pin(semaphore.acquire_async());
        assert!(poll(&mut future, &woken).is_pending());
        let taken = (0..steps).take_while(|_| client.serve().is_some() || client.deliver()).count();
        let is_acquired = woken.times() > 0;
        drop(future);
        client.move_all();
        client.hurry();
        for queue in ["/semaphore/locks", "/semaphore/leases"] {
            assert!(server.children(queue).is_empty(), "{taken} steps: {:?}", server.children(queue));
        }
        assert_eq!((server.watch_count(), session.core().census()), (0, (0, 0)), "{taken} steps");
        assert_eq!(Arc::strong_count(&woken), 1, "a waker is left after {taken} steps");
        assert!(semaphore.try_acquire().unwrap().is_some(), "{taken} steps");
        if taken < steps {
            assert!(is_acquired && taken >= 6, "{taken} steps");
            break;
        }
    }
}

#[test]
fn blocking_call_leaves_its_thread_an_unpark_token() {
    begin();
    let server = SimulatedZooKeeper::new();
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    client.delay(Duration::from_millis(50));
    // As the waker of another future does that an executor polls on this thread.
    thread::current().unpark();
    guard.unlock().unwrap();
    let begun = Instant::now();
    thread::park_timeout(deadline());
    assert!(begun.elapsed() < deadline());
}
