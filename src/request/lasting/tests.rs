//! Tests of requests that outlive their session, on the fake server. They cover every order of a loss and the
//! next session, with everything that an application may do in between.

use crate::engine::SessionEnd;
use crate::error::ErrorReason;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use parking_lot::Mutex as PlainMutex;

use super::*;
use crate::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};
use crate::locks::locking;
use crate::locks::{LockEvent, MultiLock, Released, Semaphore};
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::session::{Factory, Threads};
use crate::tests::{deadline, eventually, in_background, next};
use crate::time::{Job, Moment, Priority, Runtime};
use crate::{BlockingWriteLock, CancelToken, LockListener, ProtocolSupport, SessionState, Wait, WriteLock};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);

/// Threads that hold back callbacks until the test lets them run.
#[derive(Debug)]
struct HeldCallbacks {
    threads: Arc<Threads>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_shut: AtomicBool,
    held: PlainMutex<Vec<Job>>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
        let held = std::mem::take(&mut *self.held.lock());
        held.into_iter().for_each(|job| job());
    }

    fn holds(&self) -> bool {
        !self.held.lock().is_empty()
    }
}

impl Runtime for HeldCallbacks {
    fn now(&self) -> Moment {
        self.threads.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        if priority == Priority::Callback && self.gate.is_shut.load(Ordering::SeqCst) {
            self.gate.held.lock().push(job);
        } else {
            self.threads.submit(priority, job);
        }
    }

    fn at(&self, moment: Moment, job: Job) {
        self.threads.at(moment, job);
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        self.threads.spawn(name, body)
    }

    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        self.threads.wait(latches, deadline)
    }

    fn shut_down(&self) {
        self.threads.shut_down();
    }
}

/// A session that is replaced only when the test permits it. The test also decides when a loss is delivered.
struct Scene {
    server: SimulatedZooKeeper,
    session: Session,
    clients: Receiver<Arc<SimulatedClient>>,
    /// Receives a message whenever a session must be opened.
    asked: Receiver<()>,
    /// Each message permits one session to be opened. When the sender is dropped, no more sessions are
    /// opened.
    permits: Option<Sender<()>>,
    callbacks: Arc<Gate>,
    /// The znode of another client's request, ahead of all others.
    ahead: String,
}

impl Scene {
    fn new() -> Scene {
        let server = SimulatedZooKeeper::new();
        server.create(DIR, b"");
        let ahead = server.create_sequential(DIR, "x-other-lock-", Some(7));
        let ((made, clients), (permits, permitted)) = (unbounded(), unbounded());
        let (asks, asked) = unbounded();
        let callbacks = Arc::new(Gate::default());
        let (of_factory, gate) = (server.clone(), Arc::clone(&callbacks));
        let runtime = move || {
            let (threads, gate) = (Threads::start()?, Arc::clone(&gate));
            Ok(Arc::new(HeldCallbacks { threads, gate }) as Arc<dyn Runtime>)
        };
        permits.send(()).unwrap();
        let factory = Factory::new(runtime, move |runtime, _| {
            let _ = asks.send(());
            permitted.recv().map_err(LockError::other)?;
            let client = of_factory.connect(LONG);
            client.run_on(runtime);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        });
        let session = Session::open_replaced(factory).unwrap();
        next(&asked);
        Scene { server, session, clients, asked, permits: Some(permits), callbacks, ahead }
    }

    /// Loses the current session. No other session follows yet.
    fn lose(&self) {
        next(&self.clients).expire();
        next(&self.asked);
    }

    /// Opens the next session, and waits until every follower has been notified of it.
    fn replace(&self) {
        let (notified, is_notified) = unbounded();
        // Every earlier follower of the session is notified before this one.
        let last: Arc<dyn OnNewSession> = Arc::new(Notified(notified));
        self.session.follow(Arc::downgrade(&last));
        self.permits.as_ref().unwrap().send(()).unwrap();
        next(&is_notified);
    }

    /// Opens the next session, before or after the loss of the last one is delivered.
    fn replace_and_deliver(&self, order: Order) {
        eventually("the loss waits for its delivery", || self.callbacks.holds());
        match order {
            Order::LossFirst => {
                self.callbacks.open();
                self.replace();
            }
            Order::LossLast => {
                self.replace();
                self.callbacks.open();
            }
        }
    }

    /// Asserts that no request joins the current session. A request that had joined would stay, as the owner
    /// or behind the other client's request.
    fn assert_nobody_joins(&self) {
        eventually("nobody is on the session", || self.session.core().census().0 == 0);
    }

    fn requests(&self) -> usize {
        self.server.children(DIR).len()
    }

    fn await_requests(&self, count: usize) {
        eventually(&format!("{count} requests"), || self.requests() == count);
    }

    fn listening(&self) -> (WriteLock, Receiver<LockEvent>) {
        let (events, received) = unbounded();
        (WriteLock::with_listener(&self.session, DIR, events).unwrap(), received)
    }

    fn blocking(&self) -> BlockingWriteLock {
        BlockingWriteLock::new(&self.session, DIR).unwrap()
    }

    /// Makes a request without a lock. Its events go to the returned channel.
    fn request(&self) -> (Arc<LastingRequest>, Receiver<String>) {
        let (events, received) = unbounded();
        let support = ProtocolSupport::new(&self.session);
        let dir = ZNodePath::parse(DIR).unwrap();
        let spec = locking::spec(&dir, &support, Access::Exclusive(NamingScheme::Recipe));
        (LastingRequest::new(&self.session, spec, true, Arc::new(Recorder(events))), received)
    }

    /// Closes the session without waiting for a call of the factory that may be in progress.
    fn close(&mut self) {
        self.permits = None;
        self.session.close();
    }
}

/// Sends a message when it is notified of a new session.
struct Notified(Sender<()>);

impl OnNewSession for Notified {
    fn new_session(&self) {
        let _ = self.0.send(());
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    LossFirst,
    LossLast,
}

const ORDERS: [Order; 2] = [Order::LossFirst, Order::LossLast];

/// Sends each event that it receives to a channel.
struct Recorder(Sender<String>);

impl Observer for Recorder {
    fn post(&self, event: &RequestEvent) {
        let heard = match event {
            RequestEvent::Acquired { .. } => "acquired".to_owned(),
            RequestEvent::Ended { how: Ending::Dropped(reason, _), .. } => format!("dropped: {reason:?}"),
            RequestEvent::Ended { how: Ending::Lost(reason), .. } => format!("lost: {reason:?}"),
            other => format!("{other:?}"),
        };
        let _ = self.0.send(heard);
    }
}

// ---- the loss and the next session

#[test]
fn a_waiter_joins_the_next_session_whether_that_comes_before_or_after_its_loss_is_delivered() {
    for order in ORDERS {
        let scene = Scene::new();
        let (request, heard) = scene.request();
        request.start();
        scene.await_requests(2);
        for _ in 0..3 {
            let former = request.request().unwrap();
            scene.callbacks.shut();
            scene.lose();
            scene.replace_and_deliver(order);
            eventually("the request is made again", || !Arc::ptr_eq(&former, &request.request().unwrap()));
            scene.await_requests(2);
        }
        scene.server.delete(&scene.ahead);
        assert_eq!(next(&heard), "acquired", "{order:?}");
        assert!(request.request().unwrap().is_owner());
        request.withdraw();
        scene.await_requests(0);
    }
}

#[test]
fn a_request_is_made_once_for_each_session_however_often_it_is_notified() {
    let scene = Scene::new();
    let (request, _heard) = scene.request();
    request.start();
    scene.await_requests(2);
    scene.lose();
    scene.replace();
    scene.await_requests(2);
    scene.server.clear_log();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| request.new_session());
            scope.spawn(|| request.deliver());
        }
    });
    assert_eq!(scene.server.calls(SimOperation::Create), 0);
    request.withdraw();
    scene.await_requests(1);
}

/// One thread has installed the request of a lock but has not started it yet. Another thread already waits.
#[test]
fn a_thread_that_waits_for_a_request_which_is_yet_to_be_started_sees_it_own() {
    let scene = Scene::new();
    scene.server.delete(&scene.ahead);
    let (request, _heard) = scene.request();
    let of_waiter = Arc::clone(&request);
    let placed = in_background(move || of_waiter.wait_until_placed(&[]).unwrap());
    eventually("the thread waits", || request.request().is_some_and(|request| request.is_awaited()));
    request.start();
    assert_eq!(next(&placed), Some(Place::Owner));
    request.withdraw();
}

#[test]
fn a_request_that_is_taken_or_lost_before_its_start_joins_at_most_the_next_session() {
    for is_taken in [false, true] {
        let scene = Scene::new();
        let (request, _heard) = scene.request();
        let taken = is_taken.then(|| request.take().unwrap());
        scene.lose();
        scene.replace();
        request.start();
        if is_taken {
            scene.assert_nobody_joins();
        } else {
            scene.await_requests(2);
            request.withdraw();
        }
        drop(taken);
    }
}

#[test]
fn a_request_started_between_two_sessions_sends_nothing_before_the_next() {
    let scene = Scene::new();
    scene.lose();
    scene.server.clear_log();
    let (request, heard) = scene.request();
    request.start();
    assert!(request.request().is_none() && !request.is_over());
    assert_eq!(request.wait_until_placed(&[]).unwrap(), Some(Place::Unknown));
    assert_eq!(scene.server.calls(SimOperation::Create), 0);
    scene.replace();
    scene.await_requests(2);
    scene.server.delete(&scene.ahead);
    assert_eq!(next(&heard), "acquired");
    request.withdraw();
}

#[test]
fn a_request_joins_a_session_that_follows_just_before_it_asks_for_news() {
    let scene = Scene::new();
    scene.lose();
    let (request, _heard) = scene.request();
    scene.replace();
    request.start();
    scene.await_requests(2);
    request.withdraw();
}

#[test]
fn a_request_that_starts_on_a_session_which_was_replaced_is_made_again_by_the_loss_alone() {
    let scene = Scene::new();
    let (request, heard) = scene.request();
    let late = Request::new(scene.session.core(), &request.spec, Arc::clone(&request) as Arc<dyn Observer>);
    scene.lose();
    scene.replace();
    request.install(&late);
    scene.await_requests(2);
    scene.server.delete(&scene.ahead);
    assert_eq!(next(&heard), "acquired");
    request.withdraw();
}

#[test]
fn an_owner_is_not_made_again_on_the_next_session() {
    let scene = Scene::new();
    scene.server.delete(&scene.ahead);
    let (request, heard) = scene.request();
    request.start();
    assert_eq!(next(&heard), "acquired");
    scene.lose();
    scene.replace();
    assert_eq!(next(&heard), "lost: SessionLost");
    assert!(request.is_over());
    request.deliver();
    request.new_session();
    scene.assert_nobody_joins();
    request.withdraw();
}

#[test]
fn a_request_whose_znode_is_deleted_is_not_made_again() {
    let scene = Scene::new();
    let (request, heard) = scene.request();
    request.start();
    eventually("the request is in the queue", || {
        request.request().is_some_and(|request| request.znode().is_some())
    });
    let znode = request.request().unwrap().znode().unwrap();
    scene.server.delete(znode.as_str());
    // While another request is ahead, the request checks its own znode only in routine looks.
    scene.server.delete(&scene.ahead);
    assert_eq!(next(&heard), "dropped: NodeDeleted");
    assert!(request.is_over());
    assert!(request.end_error(Operation::LOCK).reason() == ErrorReason::NodeDeleted);
    scene.lose();
    scene.replace();
    scene.assert_nobody_joins();
    request.withdraw();
}

#[test]
fn a_lock_without_a_successor_hears_of_the_loss_at_once() {
    let server = SimulatedZooKeeper::new();
    server.create(DIR, b"");
    server.create_sequential(DIR, "x-other-lock-", Some(7));
    let client = server.connect(LONG);
    let session = client.open_session().unwrap();
    let (events, received) = unbounded();
    let lock = WriteLock::with_listener(&session, DIR, events).unwrap();
    assert!(!lock.lock().unwrap());
    client.expire();
    assert_eq!(next(&received), LockEvent::Dropped(LossReason::SessionLost));
}

// ---- what an application does meanwhile

#[test]
fn a_request_that_is_withdrawn_between_two_sessions_is_not_made_again() {
    for order in ORDERS {
        for is_taken in [false, true] {
            let scene = Scene::new();
            let (request, heard) = scene.request();
            request.start();
            scene.await_requests(2);
            scene.callbacks.shut();
            scene.lose();
            match is_taken {
                true => drop(request.take()),
                false => request.withdraw(),
            }
            scene.replace_and_deliver(order);
            assert!(request.is_over());
            scene.assert_nobody_joins();
            assert!(heard.is_empty());
        }
    }
}

#[test]
fn a_request_that_is_withdrawn_while_it_is_made_again_leaves_nothing() {
    let scene = Scene::new();
    let (request, _heard) = scene.request();
    request.start();
    scene.await_requests(2);
    let core = scene.session.core();
    // Act as the thread that makes the request again, and withdraw the request before that thread's last
    // step.
    let again = Request::new(core, &request.spec, Arc::clone(&request) as Arc<dyn Observer>);
    request.withdraw();
    request.install(&again);
    scene.await_requests(1);
    scene.assert_nobody_joins();
    assert!(again.was_withdrawn() && request.request().is_none());
}

#[test]
fn a_request_that_is_given_up_is_dropped_with_its_observer() {
    for sessions in 0..3 {
        let scene = Scene::new();
        let (request, heard) = scene.request();
        request.start();
        scene.await_requests(2);
        for _ in 0..sessions {
            scene.lose();
            scene.replace();
            scene.await_requests(2);
        }
        request.withdraw();
        let weak = Arc::downgrade(&request);
        drop(request);
        eventually("nobody holds the request", || weak.strong_count() == 0);
        assert!(heard.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
    }
}

#[test]
fn a_blocking_call_times_out_between_two_sessions_and_is_not_made_again() {
    let scene = Scene::new();
    let (lock, multi) = (scene.blocking(), MultiLock::new(&scene.session, [DIR]).unwrap());
    let semaphore = Semaphore::new(&scene.session, "/permits", 1).unwrap();
    scene.lose();
    assert!(lock.try_lock_for(SHORT).unwrap().is_none());
    assert!(multi.try_lock_for(SHORT).unwrap().is_none());
    assert!(semaphore.try_acquire_for(SHORT).unwrap().is_none());
    scene.replace();
    scene.assert_nobody_joins();
    scene.server.delete(&scene.ahead);
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn a_blocking_call_that_waited_on_a_lost_session_times_out_before_the_next() {
    let scene = Scene::new();
    let lock = scene.blocking();
    let waiting = in_background(move || lock.try_lock_for(SHORT * 10).map(|guard| guard.is_some()));
    scene.await_requests(2);
    scene.lose();
    assert!(!next(&waiting).unwrap());
    scene.replace();
    scene.assert_nobody_joins();
}

#[test]
fn a_blocking_call_is_cancelled_between_two_sessions() {
    let scene = Scene::new();
    let (lock, cancel) = (scene.blocking(), CancelToken::new());
    let wait = Wait::forever().cancelled_by(&cancel);
    let waiting = in_background(move || lock.try_lock_for(&wait).map(drop));
    scene.await_requests(2);
    scene.lose();
    cancel.cancel();
    assert!(matches!(next(&waiting), Err(ref error) if error.reason() == ErrorReason::Cancelled));
    scene.replace();
    scene.assert_nobody_joins();
}

#[test]
fn a_call_that_only_tries_fails_between_two_sessions() {
    let scene = Scene::new();
    scene.lose();
    assert!(scene.blocking().try_lock().unwrap_err().is_session_lost());
    let multi = MultiLock::new(&scene.session, [DIR]).unwrap();
    assert!(multi.try_lock().unwrap_err().is_session_lost());
    let semaphore = Semaphore::new(&scene.session, "/permits", 1).unwrap();
    assert!(semaphore.try_acquire().unwrap_err().is_session_lost());
    let cohort = crate::locks::CohortLock::new(&scene.session, DIR).unwrap();
    assert!(cohort.try_lock().unwrap_err().is_session_lost());
    // The call that failed must not block a later call.
    scene.replace();
    scene.server.delete(&scene.ahead);
    assert!(cohort.try_lock().unwrap().is_some());
}

#[test]
fn a_permit_is_awaited_in_turn_again_on_the_next_session() {
    let scene = Scene::new();
    let [turns, leases] = ["/permits/locks", "/permits/leases"];
    for dir in [turns, leases] {
        scene.server.create(dir, b"");
    }
    let held = scene.server.create_sequential(leases, "x-other-lease-", Some(7));
    let semaphore = Semaphore::new(&scene.session, "/permits", 1).unwrap();
    let waiting = in_background(move || semaphore.acquire().map(|permit| permit.is_owner()));
    eventually("the thread waits for a permit", || scene.server.children(leases).len() == 2);
    scene.lose();
    let before = scene.server.create_sequential(turns, "x-other-lock-", Some(7));
    scene.replace();
    eventually("the thread waits for its turn", || scene.server.children(turns).len() == 2);
    assert_eq!(scene.server.children(leases).len(), 1, "it is another request's turn");
    scene.server.delete(&before);
    eventually("the thread waits for a permit", || scene.server.children(leases).len() == 2);
    scene.server.delete(&held);
    assert!(next(&waiting).unwrap());
}

#[test]
fn a_lock_that_is_unlocked_between_two_sessions_is_not_acquired_on_the_next() {
    for order in ORDERS {
        let scene = Scene::new();
        let (lock, events) = scene.listening();
        assert!(!lock.lock().unwrap());
        scene.callbacks.shut();
        scene.lose();
        lock.unlock().unwrap();
        scene.replace_and_deliver(order);
        scene.assert_nobody_joins();
        scene.server.delete(&scene.ahead);
        assert!(!lock.is_owner() && lock.id().is_none());
        assert!(events.is_empty());
        assert!(lock.lock().unwrap(), "it may lock again");
    }
}

#[test]
fn a_lock_whose_lease_ended_is_not_made_again_after_its_unlock() {
    let scene = Scene::new();
    let (lock, events) = scene.listening();
    assert!(!lock.lock().unwrap());
    // The znode may outlive the lease, until the server ends the session.
    drop(next(&scene.clients));
    scene.session.core().end(SessionEnd::Silent);
    next(&scene.asked);
    assert_eq!(lock.unlock().unwrap(), Released::Pending);
    scene.replace();
    scene.server.delete(&scene.ahead);
    eventually("the former znode is deleted", || scene.requests() == 0);
    scene.assert_nobody_joins();
    assert!(!lock.is_owner() && events.is_empty());
}

#[test]
fn a_second_call_between_two_sessions_makes_no_second_request() {
    let scene = Scene::new();
    let (lock, events) = scene.listening();
    assert!(!lock.lock().unwrap());
    scene.lose();
    for _ in 0..3 {
        assert!(!lock.lock().unwrap());
    }
    scene.replace();
    scene.await_requests(2);
    assert!(!lock.lock().unwrap());
    assert_eq!(scene.requests(), 2);
    scene.server.delete(&scene.ahead);
    assert_eq!(next(&events), LockEvent::Acquired);
}

/// Panics when its lock is acquired, and locks again when the lock is lost.
struct CallsBack(Sender<bool>);

impl LockListener for CallsBack {
    fn lock_acquired(&self) {
        std::panic::resume_unwind(Box::new("a listener panics on purpose"));
    }

    fn lock_released(&self) {}

    fn lock_lost(&self, lock: &WriteLock, _reason: LossReason) {
        let _ = self.0.send(lock.lock().unwrap());
    }
}

#[test]
fn a_listener_that_panics_and_locks_again_between_two_sessions_owns_on_the_next() {
    for order in ORDERS {
        let scene = Scene::new();
        scene.server.delete(&scene.ahead);
        let (sender, locked_again) = unbounded();
        let lock = WriteLock::with_listener(&scene.session, DIR, CallsBack(sender)).unwrap();
        for _ in 0..2 {
            lock.lock().unwrap();
            eventually("the lock is owned", || lock.is_owner());
            if matches!(order, Order::LossLast) {
                scene.callbacks.shut();
                scene.lose();
                scene.replace();
                scene.callbacks.open();
                next(&locked_again);
            } else {
                scene.lose();
                assert!(!next(&locked_again), "there is no session");
                scene.replace();
            }
            eventually("the lock is owned again", || lock.is_owner());
        }
        assert_eq!(scene.requests(), 1);
    }
}

// ---- no other session follows

#[test]
fn the_end_is_reported_once_if_the_session_is_closed_before_or_after_the_loss_is_delivered() {
    for order in ORDERS {
        let mut scene = Scene::new();
        let (request, heard) = scene.request();
        let (lock, events) = scene.listening();
        request.start();
        assert!(!lock.lock().unwrap());
        scene.callbacks.shut();
        scene.lose();
        if matches!(order, Order::LossFirst) {
            scene.callbacks.open();
            scene.callbacks.shut();
            assert!(heard.is_empty());
        }
        scene.close();
        scene.callbacks.open();
        assert_eq!(next(&heard), "dropped: Closed", "{order:?}");
        assert_eq!(next(&events), LockEvent::Dropped(LossReason::Closed), "{order:?}");
        assert!(request.is_over() && request.end_error(Operation::LOCK).is_closed());
        request.closed();
        request.deliver();
        assert!(heard.is_empty() && events.is_empty());
        assert!(lock.lock().is_err());
    }
}

#[test]
fn a_request_that_is_started_after_the_close_hears_of_it() {
    for is_lost in [false, true] {
        let mut scene = Scene::new();
        if is_lost {
            scene.lose();
        }
        scene.close();
        let (request, heard) = scene.request();
        request.start();
        assert_eq!(next(&heard), "dropped: Closed");
        assert!(heard.is_empty() && request.is_over());
        assert!(scene.blocking().lock().unwrap_err().is_closed());
    }
}

#[test]
fn a_close_ends_a_blocking_call_that_begins_between_two_sessions() {
    let mut scene = Scene::new();
    let lock = scene.blocking();
    scene.lose();
    let waiting = in_background(move || lock.lock().map(drop));
    scene.close();
    assert!(next(&waiting).unwrap_err().is_closed());
}

#[test]
fn close_of_a_lock_between_two_sessions_ends_its_request() {
    let scene = Scene::new();
    let (lock, events) = scene.listening();
    assert!(!lock.lock().unwrap());
    scene.lose();
    lock.close();
    scene.replace();
    scene.assert_nobody_joins();
    assert!(events.is_empty());
}

#[test]
fn the_last_handle_of_a_session_may_be_dropped_while_a_request_waits_for_the_next() {
    let scene = Scene::new();
    let (request, heard) = scene.request();
    request.start();
    scene.await_requests(2);
    scene.lose();
    let Scene { server, session, permits, clients, .. } = scene;
    drop((session, permits));
    // Wait until the thread that replaces sessions has ended.
    while clients.recv_timeout(deadline()).is_ok() {}
    request.deliver();
    assert!(heard.is_empty());
    eventually("every session is closed", || server.sessions().is_empty());
    request.withdraw();
}

#[test]
fn a_session_that_is_lost_as_soon_as_it_is_opened_is_followed_by_the_next() {
    let scene = Scene::new();
    let (request, heard) = scene.request();
    request.start();
    scene.await_requests(2);
    for _ in 0..3 {
        scene.callbacks.shut();
        scene.lose();
        scene.replace();
        // This session's request is lost, too, before the previous loss is delivered.
        scene.lose();
        scene.callbacks.open();
        scene.replace();
        scene.await_requests(2);
    }
    scene.server.delete(&scene.ahead);
    assert_eq!(next(&heard), "acquired");
    assert_eq!(scene.session.state(), SessionState::Connected);
    request.withdraw();
}
