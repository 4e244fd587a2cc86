//! Locks that tasks wait for: what must hold whenever a future is polled, woken or dropped.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex;

use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::lock_order::assert_none_held;
use crate::tests::{
    SteppedClient, await_replacement, begin, deadline, eventually, in_background, logged_down_to, next,
    open_client_on_manual_runtime, open_on_manual_runtime, replacing_session,
};
use crate::{
    BlockingWriteLock, Candidate, LockError, LockGuard, LockResult, LossReason, MultiLock, ReadWriteLock,
    Semaphore, Session, SessionState,
};

const LONG: Duration = Duration::from_secs(30);
const DIR: &str = "/lock";

/// The time from an acquisition to the watch of the owner on its znode, and more.
const UNTIL_WATCHED: Duration = Duration::from_secs(1);

type Locking = Pin<Box<dyn Future<Output = LockResult<LockGuard>> + Send>>;

/// Records the thread of each wake-up of a task.
#[derive(Default)]
struct Woken(Mutex<Vec<Option<String>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        assert_none_held();
        self.0.lock().push(thread::current().name().map(str::to_owned));
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.lock().len()
    }

    fn assert_on_callback_threads(&self, what: &str) {
        let threads = self.0.lock();
        let is_callback = |thread: &Option<String>| thread.as_deref() == Some("zk-lock-worker");
        assert!(!threads.is_empty() && threads.iter().all(is_callback), "{what}: {threads:?}");
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>, woken: &Arc<Woken>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// An executor of one thread. Polls only when it is woken.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, begun) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = deadline().checked_sub(begun.elapsed()).expect("the future is woken and completes");
        thread::park_timeout(left);
    }
}

/// A lock on threads, behind a request of another client.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    session: Session,
    lock: BlockingWriteLock,
    ahead: String,
}

impl Fixture {
    fn new() -> Fixture {
        begin();
        let server = SimulatedZooKeeper::new();
        let ahead = server.create_sequential(DIR, "x-other-lock-", None);
        let client = server.connect(LONG);
        let session = Session::from_client(client.clone()).unwrap();
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        Fixture { server, client, session, lock, ahead }
    }

    fn future(&self) -> Locking {
        Box::pin(self.lock.lock_async())
    }

    /// A future whose request is in the queue.
    fn waiting(&self, woken: &Arc<Woken>) -> Locking {
        let before = self.requests();
        let mut future = self.future();
        assert!(poll(&mut future, woken).is_pending());
        self.await_requests(before + 1);
        future
    }

    fn requests(&self) -> usize {
        self.server.children(DIR).len()
    }

    fn await_requests(&self, count: usize) {
        eventually(&format!("{count} requests"), || self.requests() == count);
    }

    fn free(&self) {
        self.server.delete(&self.ahead);
    }

    fn guard(&self) -> LockGuard {
        self.free();
        block_on(self.lock.lock_async()).unwrap()
    }
}

/// A lock on a connection that moves on command, on one thread.
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
        let (_runtime, session) = open_client_on_manual_runtime(client.clone(), LONG);
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        client.step_by_step();
        Stepped { server, client, session, lock }
    }

    /// Moves one request to the server, or one reply or event back; `false` if there is none.
    fn step(&self) -> bool {
        self.client.serve().is_some() || self.client.deliver()
    }

    /// Takes so many steps. If none is left before, the request ahead leaves. Returns how many were taken.
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

    /// Nothing is left of the futures that are gone, and the lock can be acquired.
    fn assert_free(&self, what: &str) {
        self.client.hurry();
        assert!(self.server.children(DIR).is_empty(), "{what}: {:?}", self.server.children(DIR));
        assert_eq!(self.server.watch_count(), 0, "{what}: a watch is left");
        assert_eq!(self.session.core().census(), (0, 0), "{what}: a participant is left");
        assert!(self.lock.try_lock().unwrap().is_some(), "{what}");
    }
}

// ---- each step

#[test]
fn future_that_is_never_polled_sends_nothing() {
    let stepped = Stepped::new();
    drop(stepped.lock.lock_async());
    assert_eq!(stepped.client.requests(), 0);
    stepped.assert_free("never polled");
}

/// The steps from the first poll to the acquisition lead through each state: the request is not sent, is at the
/// server, its reply is under way, it waits, its predecessor is gone, it owns the lock and was not polled.
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
    let Poll::Ready(Ok(guard)) = poll(&mut future, &woken) else { panic!("woken, and not ready") };
    assert!(guard.is_owner());
    drop((guard, future));
    stepped.client.move_all();
    stepped.assert_free("released");
}

/// As a blocking call returns it, whose thread runs only now.
#[test]
fn lock_that_is_acquired_before_it_is_closed_or_lost_is_still_returned() {
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
        let Poll::Ready(Ok(guard)) = poll(&mut first, &woken) else { panic!("it was acquired") };
        assert_eq!((guard.is_owner(), guard.loss().is_some()), (!is_lost, is_lost));
        let Poll::Ready(Err(error)) = poll(&mut second, &woken) else { panic!("it was behind") };
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
    assert_eq!(Arc::strong_count(&first), 1, "its waker is dropped");
    server.delete(&ahead);
    assert_eq!([&first, &last].map(|woken| woken.times()), [0, 1]);
    assert!(poll(&mut future, &last).is_ready());
}

// ---- ends of a wait

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
        eventually("both are woken", || woken.times() == 2);
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
    eventually("it is woken", || woken.times() > 0);
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
    assert!(matches!(error, LockError::RequestDeleted { .. }), "{error}");
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
        eventually("it is in the queue", is_queued);
        await_replacement(&session, || next(&clients).expire());
    }
    eventually("it is in the queue", is_queued);
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
        None => Err(LockError::Connect { tried: "nothing".to_owned(), timeout: Duration::ZERO }),
    };
    let session = Session::from_client_factory(factory).unwrap();
    server.create_sequential(DIR, "x-other-lock-", None);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let woken = Arc::new(Woken::default());
    let mut waiting: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut waiting, &woken).is_pending());
    eventually("it waits", || server.children(DIR).len() == 2);
    client.expire();
    eventually("the session is lost", || session.state() == SessionState::Lost);
    let mut unmade: Locking = Box::pin(lock.lock_async());
    assert!(poll(&mut unmade, &woken).is_pending());
    assert_eq!(woken.times(), 0);
    session.close();
    eventually("both are woken", || woken.times() == 2);
    woken.assert_on_callback_threads("a close between two sessions");
    for future in [waiting, unmade] {
        assert!(block_on(future).unwrap_err().is_closed());
    }
}

// ---- losses

#[test]
fn loss_completes_all_futures_that_wait_and_stays_in_the_channel() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    // One task, whose futures have the same waker.
    let woken = Arc::new(Woken::default());
    let mut futures = [(); 3].map(|()| Box::pin(guard.lost_async()));
    futures.iter_mut().for_each(|future| assert!(poll(future, &woken).is_pending()));
    let [dropped, one, other] = futures;
    drop(dropped);
    fixture.client.expire();
    eventually("each is woken", || woken.times() == 2);
    woken.assert_on_callback_threads("a loss");
    for future in [one, other] {
        assert_eq!(block_on(future), LossReason::SessionExpired);
    }
    assert_eq!(next(guard.lost()), LossReason::SessionExpired);
    assert_eq!(block_on(guard.lost_async()), LossReason::SessionExpired);
}

#[test]
fn end_of_the_lease_is_a_loss() {
    let server = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let woken = Arc::new(Woken::default());
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    client.disconnect();
    runtime.advance(LONG);
    assert!(woken.times() > 0);
    assert_eq!(poll(&mut lost, &woken), Poll::Ready(LossReason::LeaseExpired));
}

/// The timer's thread reports it.
#[test]
fn end_of_the_lease_wakes_on_a_callback_thread() {
    begin();
    let server = SimulatedZooKeeper::new();
    let client = server.connect(Duration::from_millis(500));
    let session = Session::from_client(client.clone()).unwrap();
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let woken = Arc::new(Woken::default());
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    client.disconnect();
    eventually("it is woken", || woken.times() > 0);
    woken.assert_on_callback_threads("the end of a lease");
    assert_eq!(block_on(lost), LossReason::LeaseExpired);
}

#[test]
fn loss_of_one_of_several_locks_completes_its_own_future_only() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let guard = MultiLock::new(&session, ["/a", "/b"]).unwrap().lock().unwrap();
    runtime.advance(UNTIL_WATCHED);
    let [one, other] = guard.guards() else { panic!("two locks") };
    let woken = Arc::new(Woken::default());
    let (mut of_one, mut of_other) = (Box::pin(one.lost_async()), Box::pin(other.lost_async()));
    assert!(poll(&mut of_one, &woken).is_pending() && poll(&mut of_other, &woken).is_pending());
    server.delete(one.id());
    assert_eq!(poll(&mut of_one, &woken), Poll::Ready(LossReason::NodeDeleted));
    assert!(poll(&mut of_other, &woken).is_pending());
    let before = woken.times();
    server.delete(other.id());
    assert_eq!(woken.times(), before + 1);
    assert_eq!(poll(&mut of_other, &woken), Poll::Ready(LossReason::NodeDeleted));
}

// ---- the other locks

#[test]
fn readers_share_and_a_writer_waits() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = Session::from_client(server.connect(LONG)).unwrap();
    let lock = ReadWriteLock::new(&session, DIR).unwrap();
    let (one, other) = (block_on(lock.read_async()).unwrap(), block_on(lock.read_async()).unwrap());
    let woken = Arc::new(Woken::default());
    let mut writing = Box::pin(lock.write_async());
    assert!(poll(&mut writing, &woken).is_pending());
    drop(one);
    eventually("two requests", || server.children(DIR).len() == 2);
    assert!(poll(&mut writing, &woken).is_pending());
    drop(other);
    assert!(block_on(writing).unwrap().is_owner());
}

#[test]
fn permit_that_is_awaited_in_either_queue_leaves_nothing_when_it_is_dropped() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = Session::from_client(server.connect(LONG)).unwrap();
    let semaphore = Semaphore::new(&session, "/jobs", 2).unwrap();
    let held = [(); 2].map(|()| block_on(semaphore.acquire_async()).unwrap());
    let woken = Arc::new(Woken::default());
    let (mut first, mut second) = (Box::pin(semaphore.acquire_async()), Box::pin(semaphore.acquire_async()));
    let waits = |queue: &str, count: usize| server.children(&format!("/jobs/{queue}")).len() == count;
    eventually("the first waits for a permit", || {
        assert!(poll(&mut first, &woken).is_pending());
        waits("leases", 3)
    });
    assert!(poll(&mut second, &woken).is_pending());
    eventually("the second waits for its turn", || waits("locks", 2));
    drop(second);
    eventually("it has left", || waits("locks", 1));
    drop(first);
    eventually("both have left", || waits("locks", 0) && waits("leases", 2));
    drop(held);
    let permit = block_on(semaphore.acquire_async()).unwrap();
    let mut lost = Box::pin(permit.lost_async());
    assert!(permit.is_owner() && poll(&mut lost, &woken).is_pending());
    server.delete(permit.id());
    assert_eq!(block_on(lost), LossReason::NodeDeleted);
}

#[test]
fn wait_for_a_permit_begins_again_on_the_session_that_replaces_a_lost_one() {
    let server = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&server, LONG);
    let semaphore = Semaphore::new(&session, "/jobs", 1).unwrap();
    let occupied = server.create_sequential("/jobs/leases", "other-lease-", None);
    let outcome = in_background({
        let future = semaphore.acquire_async();
        move || block_on(future)
    });
    let waits = || server.children("/jobs/leases").len() == 2;
    for _ in 0..2 {
        eventually("it waits for a permit", waits);
        await_replacement(&session, || next(&clients).expire());
    }
    eventually("it waits for a permit", waits);
    server.delete(&occupied);
    assert!(next(&outcome).unwrap().is_owner());
}

#[test]
fn end_of_a_candidate_wakes_on_a_callback_thread() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = Session::from_client(server.connect(LONG)).unwrap();
    let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, DIR).unwrap()).unwrap();
    assert!(candidate.wait_until_leader(deadline()).is_some());
    let woken = Arc::new(Woken::default());
    let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(candidate.ended_async());
    assert!(poll(&mut ended, &woken).is_pending());
    candidate.stop();
    eventually("it is woken", || woken.times() == 1);
    woken.assert_on_callback_threads("the end of a candidate");
    assert!(poll(&mut ended, &woken).is_ready());
    block_on(candidate.ended_async());
}

#[test]
fn end_of_a_candidate_whose_thread_panics_outside_the_closure_wakes_too() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, LONG);
    server.create_sequential(DIR, "x-other-lock-", None);
    let (go, may_go) = unbounded::<()>();
    // On the candidate's thread, which waits for its election.
    runtime.while_waiting(move || {
        let _ = may_go.recv_timeout(deadline());
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, DIR).unwrap()).unwrap();
    let woken = Arc::new(Woken::default());
    let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(candidate.ended_async());
    assert!(poll(&mut ended, &woken).is_pending());
    go.send(()).unwrap();
    eventually("it is woken", || woken.times() == 1);
    assert!(poll(&mut ended, &woken).is_ready());
    assert!(matches!(candidate.error(), Some(LockError::LeaderPanicked { .. })), "{candidate:?}");
}

// ---- wakers, which are the code of executors

/// Does something when it is woken.
struct Does<F: Fn() + Send + Sync + 'static>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        assert_none_held();
        (self.0)();
    }
}

fn waker(does: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(does)))
}

fn poll_with<F: Future + ?Sized>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

/// A task that its waker polls, and ends with the outcome of its future.
struct PollsAtOnce(Mutex<Option<Locking>>, Sender<LockResult<LockGuard>>);

impl Wake for PollsAtOnce {
    fn wake(self: Arc<Self>) {
        let Some(mut future) = self.0.lock().take() else { return };
        match poll_with(&mut future, &Waker::from(Arc::clone(&self))) {
            Poll::Ready(outcome) => drop(self.1.send(outcome)),
            Poll::Pending => *self.0.lock() = Some(future),
        }
    }
}

#[test]
fn waker_may_poll_its_future() {
    let fixture = Fixture::new();
    let (sender, outcomes) = unbounded();
    for count in 2..4 {
        Arc::new(PollsAtOnce(Mutex::new(Some(fixture.future())), sender.clone())).wake();
        fixture.await_requests(count);
    }
    fixture.free();
    for _ in 0..2 {
        assert!(next(&outcomes).unwrap().is_owner());
    }
}

#[test]
fn waker_may_drop_its_future() {
    let fixture = Fixture::new();
    let task: Arc<Mutex<Option<Locking>>> = Arc::default();
    let (of_waker, (sender, woken)) = (Arc::clone(&task), unbounded());
    let drops = waker(move || {
        let future = of_waker.lock().take();
        drop(future);
        let _ = sender.send(());
    });
    let mut future = fixture.future();
    assert!(poll_with(&mut future, &drops).is_pending());
    *task.lock() = Some(future);
    fixture.await_requests(2);
    let behind = fixture.waiting(&Arc::default());
    fixture.free();
    next(&woken);
    assert!(block_on(behind).unwrap().is_owner());
}

#[test]
fn waker_that_panics_is_named_in_the_log_and_costs_no_other_task_its_wake_up() {
    let server = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    let panics = waker(|| std::panic::resume_unwind(Box::new("on purpose")));
    let woken = Arc::new(Woken::default());
    let mut futures = [(); 3].map(|()| Box::pin(guard.lost_async()));
    let [first, between, last] = &mut futures;
    assert!(poll_with(first, &panics).is_pending());
    assert!(poll(between, &woken).is_pending());
    assert!(poll_with(last, &panics).is_pending());
    client.disconnect();
    let lines = logged_down_to(log::Level::Error, || runtime.advance(LONG));
    assert_eq!(woken.times(), 1);
    assert_eq!(lines, ["the waker of a future panicked: on purpose"; 2]);
}

#[test]
fn waker_that_blocks_delays_no_other_task_and_no_lock() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (release, stuck) = unbounded::<()>();
    let (began, at_work) = unbounded();
    let mut blocking: Vec<_> = (0..8).map(|_| Box::pin(guard.lost_async())).collect();
    for future in &mut blocking {
        let (stuck, began) = (stuck.clone(), began.clone());
        let blocks = waker(move || {
            began.send(()).unwrap();
            let _ = stuck.recv();
        });
        assert!(poll_with(future, &blocks).is_pending());
    }
    let woken = Arc::new(Woken::default());
    let mut behind = fixture.waiting(&woken);
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    fixture.server.delete(guard.id());
    (0..8).for_each(|_| next(&at_work));
    eventually("the others are woken", || woken.times() == 2);
    assert!(matches!(poll(&mut behind, &woken), Poll::Ready(Ok(_))));
    assert!(BlockingWriteLock::new(&fixture.session, "/other").unwrap().try_lock().unwrap().is_some());
    drop(release);
}

/// Executors drop what belongs to a task with its last waker.
#[test]
fn waker_is_dropped_under_no_mutex() {
    struct Task(Sender<()>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            assert_none_held();
            self.0.send(()).unwrap();
        }
    }

    fn task() -> (Waker, Receiver<()>) {
        let (sender, dropped) = unbounded();
        (Waker::from(Arc::new(Task(sender))), dropped)
    }

    let fixture = Fixture::new();
    let (mut future, (first, first_dropped)) = (fixture.future(), task());
    assert!(poll_with(&mut future, &first).is_pending());
    drop(first);
    let (second, second_dropped) = task();
    assert!(first_dropped.is_empty() && poll_with(&mut future, &second).is_pending());
    // The second takes its place.
    assert!(!first_dropped.is_empty());
    drop(second);
    assert!(second_dropped.is_empty());
    drop(future);
    assert!(!second_dropped.is_empty());
    let (third, third_dropped) = task();
    let guard = fixture.guard();
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll_with(&mut lost, &third).is_pending());
    drop(third);
    fixture.client.expire();
    next(&third_dropped);
}

/// A lock lives longer than its waits.
#[test]
fn dropped_futures_leave_no_waker_behind() {
    let fixture = Fixture::new();
    let woken = Arc::new(Woken::default());
    for _ in 0..10 {
        drop(fixture.waiting(&woken));
        fixture.await_requests(1);
    }
    assert_eq!((Arc::strong_count(&woken), woken.times()), (1, 0));
    let guard = fixture.guard();
    for _ in 0..10 {
        assert!(poll(&mut Box::pin(guard.lost_async()), &woken).is_pending());
    }
    assert_eq!(Arc::strong_count(&woken), 1);
}

// ---- at random

/// Tasks that give up at any moment, on several threads.
#[test]
fn one_owner_at_a_time_and_nothing_left_when_futures_are_dropped_at_random() {
    begin();
    let server = SimulatedZooKeeper::new();
    server.create(DIR, b"");
    let owners = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let (server, owners) = (server.clone(), Arc::clone(&owners));
            in_background(move || {
                let session = Session::from_client(server.connect(LONG)).unwrap();
                let lock = BlockingWriteLock::new(&session, DIR).unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                let acquired = (1..=200).filter(|number| match number % 20 {
                    0 => owns(&owners, block_on(lock.lock_async())),
                    _ => acquires(&lock, &owners, &mut random),
                });
                let acquired = acquired.count();
                drop(lock);
                session.close();
                acquired
            })
        })
        .collect();
    let acquired: usize = threads.iter().map(next).sum();
    assert!(acquired >= 40, "{acquired}");
    assert!(server.children(DIR).is_empty(), "{:?}", server.children(DIR));
    assert_eq!(server.watch_count(), 0);
}

fn owns(owners: &AtomicUsize, guard: LockResult<LockGuard>) -> bool {
    let guard = guard.unwrap();
    assert!(guard.is_owner());
    assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners");
    thread::yield_now();
    owners.fetch_sub(1, Ordering::SeqCst);
    true
}

/// Polls a future some times, and returns whether it has acquired the lock.
fn acquires(lock: &BlockingWriteLock, owners: &AtomicUsize, random: &mut fastrand::Rng) -> bool {
    let woken = Arc::new(Woken::default());
    let mut future: Locking = Box::pin(lock.lock_async());
    for _ in 0..random.usize(0..60) {
        if let Poll::Ready(guard) = poll(&mut future, &woken) {
            return owns(owners, guard);
        }
        // Other threads and the server go on meanwhile.
        thread::yield_now();
        if random.u8(0..16) == 0 {
            future = Box::pin(lock.lock_async());
        }
    }
    false
}
