//! Tests that a callback thread drops every value from the application, whatever ends the value's use and on
//! whichever thread, and that a drop which panics or blocks harms nobody else.

use std::fmt;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;

use super::*;
use crate::client::{Call, Done, ZooKeeperClient};
use crate::error::{LockError, LossReason};
use crate::events::{EventHook, SessionEvent};
use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::session::{Factory, OnNewSession, Threads};
use crate::tests::{Wrapped, eventually, in_background, next, open_wrapped, replacing_session};
use crate::{BlockingWriteLock, CancelToken, LockListener, Session, SessionState, WriteLock};

const DIR: &str = "/locks/it";
const LONG: Duration = Duration::from_secs(30);

/// Reports the thread that drops it, then panics.
struct Probe(Sender<String>);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().unwrap_or_default().to_owned());
        // A second panic during unwinding would abort the process.
        if !thread::panicking() {
            resume_unwind(Box::new("dropped on purpose"));
        }
    }
}

fn probe() -> (Probe, Receiver<String>) {
    let (sender, dropped_on) = unbounded();
    (Probe(sender), dropped_on)
}

#[track_caller]
fn assert_dropped_on_a_worker(what: &str, dropped_on: &Receiver<String>) {
    assert_eq!(next(dropped_on), "zk-lock-worker", "{what}");
}

impl LockListener for Probe {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}
}

impl EventHook for Probe {
    fn on_event(&self, _event: &SessionEvent) {}
}

impl fmt::Debug for Probe {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        resume_unwind(Box::new("formatted on purpose"))
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        resume_unwind(Box::new("formatted on purpose"))
    }
}

impl std::error::Error for Probe {}

/// A client that belongs to the application.
struct Client {
    client: Arc<SimulatedClient>,
    /// Whether each call is answered on a thread of its own.
    starts_threads: bool,
    _probe: Probe,
}

impl Wrapped for Client {
    fn simulated(&self) -> &Arc<SimulatedClient> {
        &self.client
    }

    fn submit(&self, call: Call, done: Done) {
        if !self.starts_threads {
            return self.client.submit(call, done);
        }
        let client = Arc::clone(&self.client);
        thread::spawn(move || done.finish(client.call(&call)));
    }
}

#[test]
fn a_value_is_dropped_on_a_callback_thread_whichever_thread_has_the_last_handle() {
    let threads: Arc<dyn Runtime> = Threads::start().unwrap();
    for is_shut_down in [false, true] {
        if is_shut_down {
            threads.shut_down();
        }
        let (probe, dropped_on) = probe();
        let value = External::new("a probe", probe, &threads);
        next(&in_background(move || drop(value)));
        assert_dropped_on_a_worker("a value", &dropped_on);
    }
}

struct Scene {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    session: Session,
}

impl Scene {
    fn new() -> Scene {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        Scene { server, client, session }
    }
}

#[test]
fn a_listener_is_dropped_on_a_callback_thread_however_its_request_ends() {
    type End = fn(Scene, WriteLock);
    let ends: [(&str, End); 9] = [
        ("an unlock", |_, lock| drop(lock.unlock())),
        ("a drop", |_, lock| drop(lock)),
        ("a close", |_, lock| lock.close()),
        ("an expiry", |scene, lock| {
            scene.client.expire();
            eventually("the end is noticed", || lock.id().is_none());
        }),
        ("a deletion", |scene, lock| {
            scene.server.delete(&lock.id().unwrap());
            eventually("the owner notices the deletion", || !lock.is_owner());
        }),
        ("an outage", |scene, lock| {
            scene.client.disconnect();
            drop(lock);
        }),
        ("a closed session", |scene, _lock| scene.session.close()),
        ("the last handle of the session", |scene, lock| {
            drop(scene.session);
            drop(lock);
        }),
        ("another listener", |_, lock| lock.set_lock_listener(())),
    ];
    for (what, end) in ends {
        for waits in [false, true] {
            let scene = Scene::new();
            scene.server.create(DIR, b"");
            if waits {
                scene.server.create_sequential(DIR, "x-other-lock-", None);
            }
            let (listener, dropped_on) = probe();
            let lock = WriteLock::with_listener(&scene.session, DIR, listener).unwrap();
            assert_eq!(lock.lock().unwrap(), !waits);
            end(scene, lock);
            assert_dropped_on_a_worker(what, &dropped_on);
        }
    }
}

/// Runs `act` when the lock is lost.
struct OnLoss {
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    _probe: Probe,
}

impl LockListener for OnLoss {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}

    fn lock_lost(&self, _lock: &WriteLock, _reason: LossReason) {
        let act = self.act.lock().take();
        act.unwrap()();
    }
}

#[test]
fn a_listener_may_drop_its_lock_and_close_the_session_when_the_lock_is_lost() {
    for closes in [false, true] {
        let scene = Scene::new();
        let (probe, dropped_on) = probe();
        let (session, own) = (scene.session.clone(), Arc::new(Mutex::new(None::<WriteLock>)));
        let of_listener = Arc::clone(&own);
        let act = move || {
            if closes {
                session.close();
            }
            let lock = of_listener.lock().take();
            drop(lock);
        };
        let listener = OnLoss { act: Mutex::new(Some(Box::new(act))), _probe: probe };
        let lock = WriteLock::with_listener(&scene.session, DIR, listener).unwrap();
        assert!(lock.lock().unwrap());
        let id = lock.id().unwrap();
        *own.lock() = Some(lock);
        scene.server.delete(&id);
        assert_dropped_on_a_worker("a lock that its listener drops", &dropped_on);
    }
}

#[test]
fn a_hook_and_a_client_are_dropped_on_callback_threads() {
    for (starts_threads, expires) in [(false, false), (false, true), (true, false), (true, true)] {
        let server = SimulatedZooKeeper::new();
        let simulated = server.connect(LONG);
        let (of_client, client_dropped_on) = probe();
        let client = Client { client: simulated.clone(), starts_threads, _probe: of_client };
        let session = open_wrapped(Arc::new(client)).unwrap();
        let (hook, hook_dropped_on) = probe();
        assert!(session.set_event_hook(hook));
        let (refused, refused_dropped_on) = probe();
        assert!(!session.set_event_hook(refused));
        assert_dropped_on_a_worker("a refused hook", &refused_dropped_on);
        let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
        match expires {
            // This thread then acts as one of the client's threads.
            true => simulated.expire(),
            false => session.close(),
        }
        drop((guard, session));
        assert_dropped_on_a_worker("a hook", &hook_dropped_on);
        assert_dropped_on_a_worker("a client", &client_dropped_on);
        // By now, the client's event sink has no session.
        drop(simulated);
    }
}

/// Drops a lock on the thread that replaces sessions.
struct DropsItsLock(Mutex<Option<WriteLock>>);

impl OnNewSession for DropsItsLock {
    fn new_session(&self) {
        let lock = self.0.lock().take();
        drop(lock);
    }
}

#[test]
fn sessions_are_replaced_after_a_listener_panicked_on_drop() {
    let server = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&server, LONG);
    let follower = Arc::new(DropsItsLock(Mutex::new(None)));
    let registered: Arc<dyn OnNewSession> = follower.clone();
    // The follower is notified of the new session before the lock is.
    session.follow(Arc::downgrade(&registered));
    server.create(DIR, b"");
    server.create_sequential(DIR, "x-other-lock-", None);
    let (listener, dropped_on) = probe();
    let lock = WriteLock::with_listener(&session, DIR, listener).unwrap();
    assert!(!lock.lock().unwrap());
    *follower.0.lock() = Some(lock);
    next(&clients).expire();
    assert_dropped_on_a_worker("a lock that is dropped during a replacement", &dropped_on);
    next(&clients).expire();
    next(&clients);
    eventually("there is contact again", || session.state() == SessionState::Connected);
}

#[test]
fn sessions_are_replaced_after_each_value_of_a_factory_panicked() {
    let server = SimulatedZooKeeper::new();
    let (made, clients) = unbounded();
    let (reports, dropped_on) = unbounded();
    let (of_factory, factory_dropped_on) = probe();
    let (number, zookeeper) = (Mutex::new(0), server.clone());
    let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
    let client = move |runtime: &Arc<dyn Runtime>, _: &CancelToken| {
        let _ = &of_factory;
        let mut number = number.lock();
        *number += 1;
        let probe = Probe(reports.clone());
        if *number % 2 == 0 {
            return Err(LockError::other(probe));
        }
        let client = zookeeper.connect(LONG);
        made.send(Arc::clone(&client)).unwrap();
        client.run_on(runtime);
        Ok(Arc::new(Client { client, starts_threads: false, _probe: probe }) as Arc<dyn ZooKeeperClient>)
    };
    let session = Session::open_replaced(Factory::new(runtime, client)).unwrap();
    for _ in 0..3 {
        next(&clients).expire();
        // These two may be dropped in either order.
        assert_dropped_on_a_worker("a lost client, or an error", &dropped_on);
        assert_dropped_on_a_worker("an error, or a lost client", &dropped_on);
    }
    next(&clients);
    eventually("there is contact again", || session.state() == SessionState::Connected);
    drop(session);
    assert_dropped_on_a_worker("the last client", &dropped_on);
    assert_dropped_on_a_worker("the factory", &factory_dropped_on);
}

/// Waits when it is dropped, then uses the session.
struct Slow {
    gate: Receiver<()>,
    session: Session,
    done: Sender<Result<(), LockError>>,
}

impl LockListener for Slow {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.gate.recv();
        let again = BlockingWriteLock::new(&self.session, "/locks/again").unwrap();
        let outcome = again.lock().map(drop);
        self.session.close();
        let _ = self.done.send(outcome);
    }
}

#[test]
fn a_listener_that_blocks_when_it_is_dropped_delays_nobody_and_may_use_the_session() {
    let scene = Scene::new();
    let (open, gate) = bounded::<()>(0);
    let (sender, done) = unbounded();
    // Enough listeners to exhaust a small pool of threads.
    for number in 0..20 {
        let (gate, session, done) = (gate.clone(), scene.session.clone(), sender.clone());
        let dir = format!("/locks/{number}");
        let lock = WriteLock::with_listener(&scene.session, &dir, Slow { gate, session, done }).unwrap();
        assert!(lock.lock().unwrap());
        scene.server.delete(&lock.id().unwrap());
    }
    let lock = BlockingWriteLock::new(&scene.session, DIR).unwrap();
    next(&in_background(move || lock.lock().unwrap().unlock().unwrap()));
    assert!(done.is_empty());
    // Open the gate for only one of them, because it closes the session.
    open.send(()).unwrap();
    next(&done).unwrap();
    assert_eq!(scene.session.state(), SessionState::Lost);
}
