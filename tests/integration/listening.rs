//! Tests of locks with a listener on a healthy server: the order of the listener's calls, and which calls a
//! listener may make.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crossbeam_channel::{Sender, unbounded};
use zookeeper_recipes_lock::locks::Released;
use zookeeper_recipes_lock::{ErrorReason, LockListener, LossReason, WriteLock};

use crate::fixtures::{Call, ErrorVariant, Observer, RecordingListener, next, session, unique_dir};
use crate::support::server;
use crate::support::wait::eventually;

#[test]
fn listener_is_called_once_per_acquisition_and_release() {
    let session = session(server::shared());
    let dir = unique_dir("once");
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    for _ in 0..3 {
        assert!(lock.lock().unwrap());
        assert!(lock.lock().unwrap(), "a second call must not make a second request");
        assert!(lock.is_owner());
        assert_eq!(Observer::at(server::shared()).children(&dir).len(), 1);
        lock.unlock().unwrap();
        lock.unlock().unwrap();
        assert!(!lock.is_owner());
        assert_eq!(lock.id(), None);
        assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Released));
    }
    drop(lock);
    assert!(calls.try_recv().is_err(), "there must be no other calls");
}

#[test]
fn listener_of_a_waiting_lock_is_called_on_acquisition() {
    let session = session(server::shared());
    let dir = unique_dir("turn");
    let holder = WriteLock::new(&session, &dir).unwrap();
    assert!(holder.lock().unwrap());
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(!waiter.lock().unwrap());
    assert!(!waiter.lock().unwrap(), "a second call must not make a second request");
    assert!(!waiter.is_owner());
    assert_eq!(Observer::at(server::shared()).children(&dir).len(), 2);
    assert!(calls.try_recv().is_err());
    holder.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert!(waiter.is_owner());
    let stat = Observer::at(server::shared()).zk().exists(&waiter.id().unwrap()).unwrap().unwrap();
    assert_eq!(waiter.fencing_token().unwrap(), stat.czxid);
    assert!(matches!(holder.fencing_token(), Err(ref error) if error.reason() == ErrorReason::NotOwner));
    assert!(waiter.lock().unwrap());
    waiter.close();
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn leaving_the_queue_calls_no_listener() {
    let session = session(server::shared());
    let dir = unique_dir("leave");
    let holder = WriteLock::new(&session, &dir).unwrap();
    holder.lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let waiter = WriteLock::with_listener(&session, &dir, listener).unwrap();
    waiter.lock().unwrap();
    waiter.unlock().unwrap();
    assert_eq!(Observer::at(server::shared()).children(&dir).len(), 1);
    drop(waiter);
    assert!(calls.try_recv().is_err());
}

#[test]
fn closed_lock_stays_closed() {
    let session = session(server::shared());
    let dir = unique_dir("close");
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    lock.close();
    lock.close();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Released));
    assert!(lock.lock().unwrap_err().is_closed());
    lock.unlock().unwrap();
    assert!(lock.is_closed() && !lock.is_owner());
    assert_eq!(lock.id(), None);
    assert_eq!(lock.dir(), dir);
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn replaced_listener_gets_the_later_calls() {
    let session = session(server::shared());
    let (first, first_calls) = RecordingListener::new();
    let (second, second_calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &unique_dir("swap"), first).unwrap();
    lock.lock().unwrap();
    assert_eq!(next(&first_calls), Call::Acquired);
    lock.set_lock_listener(second);
    assert!(lock.lock_listener().is_some());
    lock.unlock().unwrap();
    assert_eq!(next(&second_calls), Call::Released);
    assert!(first_calls.try_recv().is_err());
}

/// A listener that calls its own lock when the lock is acquired.
struct CallsItsLock<F> {
    lock: Arc<OnceLock<WriteLock>>,
    listener: Arc<RecordingListener>,
    on_acquired: F,
}

impl<F: Fn(&WriteLock) + Send + Sync> LockListener for CallsItsLock<F> {
    fn lock_acquired(&self) {
        self.listener.lock_acquired();
        (self.on_acquired)(self.lock.await_value());
    }

    fn lock_released(&self) {
        self.listener.lock_released();
    }

    fn lock_lost(&self, lock: &WriteLock, reason: LossReason) {
        self.listener.lock_lost(lock, reason);
    }
}

trait AwaitValue<T> {
    fn await_value(&self) -> &T;
}

impl<T> AwaitValue<T> for OnceLock<T> {
    fn await_value(&self) -> &T {
        eventually("the test has stored its lock", || self.get().is_some());
        self.get().unwrap()
    }
}

fn calls_of(test: &str, on_acquired: impl Fn(&WriteLock) + Send + Sync + 'static) -> Vec<Call> {
    let session = session(server::shared());
    let dir = unique_dir(test);
    let slot = Arc::new(OnceLock::new());
    let (listener, calls) = RecordingListener::new();
    let listener = CallsItsLock { lock: Arc::clone(&slot), listener, on_acquired };
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    slot.set(lock).unwrap();
    let _ = slot.get().unwrap().lock();
    let calls = vec![next(&calls), next(&calls)];
    Observer::at(server::shared()).await_children(&dir, 0);
    calls
}

#[test]
fn listener_may_unlock_its_own_lock() {
    let calls = calls_of("unlock-inside", |lock| assert_eq!(lock.unlock().unwrap(), Released::Deleted));
    assert_eq!(calls, [Call::Acquired, Call::Released]);
}

#[test]
fn listener_may_close_its_own_lock() {
    let calls = calls_of("close-inside", |lock| {
        assert!(lock.lock().unwrap());
        lock.close();
        assert!(lock.lock().is_err());
    });
    assert_eq!(calls, [Call::Acquired, Call::Released]);
}

#[test]
fn listener_may_unlock_and_lock_again() {
    let session = session(server::shared());
    let dir = unique_dir("again-inside");
    let slot = Arc::new(OnceLock::new());
    let (listener, calls) = RecordingListener::new();
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    let listener = CallsItsLock {
        lock: Arc::clone(&slot),
        listener,
        on_acquired: move |lock: &WriteLock| {
            if rounds.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 3 {
                lock.unlock().unwrap();
                lock.lock().unwrap();
            }
        },
    };
    slot.set(WriteLock::with_listener(&session, &dir, listener).unwrap()).unwrap();
    slot.get().unwrap().lock().unwrap();
    for _ in 0..3 {
        assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Released));
    }
    assert_eq!(next(&calls), Call::Acquired);
    eventually("the lock is held", || slot.get().unwrap().is_owner());
    assert_eq!(Observer::at(server::shared()).children(&dir).len(), 1);
}

#[test]
fn listener_may_drop_its_own_lock() {
    struct Dropper {
        lock: std::sync::Mutex<Option<WriteLock>>,
        listener: Arc<RecordingListener>,
    }
    impl LockListener for Dropper {
        fn lock_acquired(&self) {
            self.listener.lock_acquired();
            drop(self.lock.lock().unwrap().take());
        }
        fn lock_released(&self) {
            self.listener.lock_released();
        }
    }
    let session = session(server::shared());
    let dir = unique_dir("drop-inside");
    let holder = WriteLock::new(&session, &dir).unwrap();
    holder.lock().unwrap();
    let (listener, calls) = RecordingListener::new();
    let dropper = Arc::new(Dropper { lock: std::sync::Mutex::new(None), listener });
    let lock = WriteLock::with_listener(&session, &dir, Arc::clone(&dropper)).unwrap();
    assert!(!lock.lock().unwrap());
    *dropper.lock.lock().unwrap() = Some(lock);
    holder.unlock().unwrap();
    assert_eq!((next(&calls), next(&calls)), (Call::Acquired, Call::Released));
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn listener_may_use_other_locks_of_the_session() {
    let session = session(server::shared());
    let dir = unique_dir("others-inside");
    let (done, finished) = unbounded();
    struct Chain {
        next: WriteLock,
        done: crossbeam_channel::Sender<bool>,
    }
    impl LockListener for Chain {
        fn lock_acquired(&self) {
            let owned = self.next.lock().unwrap();
            self.done.send(owned && self.next.is_owner()).unwrap();
        }
        fn lock_released(&self) {}
    }
    // Enough locks to occupy all threads of a small pool.
    let locks: Vec<WriteLock> = (0..40)
        .map(|number| {
            let next = WriteLock::new(&session, &format!("{dir}/inner-{number}")).unwrap();
            let chain = Chain { next, done: done.clone() };
            let lock = WriteLock::with_listener(&session, &format!("{dir}/outer-{number}"), chain).unwrap();
            lock.lock().unwrap();
            lock
        })
        .collect();
    for _ in &locks {
        assert!(next(&finished));
    }
}

#[test]
fn blocked_listeners_delay_no_other() {
    struct Blocks(crossbeam_channel::Receiver<()>);
    impl LockListener for Blocks {
        fn lock_acquired(&self) {
            let _ = self.0.recv();
        }
        fn lock_released(&self) {}
    }
    let session = session(server::shared());
    let dir = unique_dir("blocks");
    let (release, released) = crossbeam_channel::bounded(0);
    // Enough locks to occupy all threads of a small pool.
    let blocked: Vec<WriteLock> = (0..40)
        .map(|number| {
            let listener = Blocks(released.clone());
            let lock = WriteLock::with_listener(&session, &format!("{dir}/{number}"), listener).unwrap();
            assert!(lock.lock().unwrap());
            lock
        })
        .collect();
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    lock.unlock().unwrap();
    drop(release);
    assert!(blocked.iter().all(|lock| lock.is_owner()));
}

#[test]
fn panicking_listener_affects_no_other() {
    struct Panics;
    impl LockListener for Panics {
        fn lock_acquired(&self) {
            panic!("on purpose");
        }
        fn lock_released(&self) {
            panic!("on purpose");
        }
    }
    let session = session(server::shared());
    let dir = unique_dir("panics");
    for _ in 0..20 {
        let lock = WriteLock::with_listener(&session, &dir, Panics).unwrap();
        assert!(lock.lock().unwrap());
        lock.unlock().unwrap();
    }
    let (listener, calls) = RecordingListener::new();
    let lock = WriteLock::with_listener(&session, &dir, listener).unwrap();
    assert!(lock.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn lock_lost_calls_lock_released_unless_overridden() {
    struct ReleasedOnly(crossbeam_channel::Sender<()>);
    impl LockListener for ReleasedOnly {
        fn lock_acquired(&self) {}
        fn lock_released(&self) {
            self.0.send(()).unwrap();
        }
    }
    let (sender, calls) = unbounded();
    let session = session(server::shared());
    let lock = WriteLock::with_listener(&session, &unique_dir("lost"), ReleasedOnly(sender)).unwrap();
    assert!(lock.lock().unwrap());
    session.close();
    next(&calls);
}

/// A listener that drops its lock when the lock is lost, and reports the thread that drops the listener.
struct DropsItsLock {
    lock: Arc<Mutex<Option<WriteLock>>>,
    dropped_on: Sender<String>,
}

impl LockListener for DropsItsLock {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}

    fn lock_lost(&self, _lock: &WriteLock, _reason: LossReason) {
        let lock = self.lock.lock().unwrap().take();
        drop(lock);
    }
}

impl Drop for DropsItsLock {
    fn drop(&mut self) {
        let _ = self.dropped_on.send(thread::current().name().unwrap_or_default().to_owned());
    }
}

#[test]
fn listener_that_drops_its_lost_lock_is_dropped_on_a_callback_thread() {
    let session = session(server::shared());
    let other = Observer::at(server::shared());
    let (dropped_on, threads) = unbounded();
    for _ in 0..100 {
        let own = Arc::new(Mutex::new(None));
        let listener = DropsItsLock { lock: Arc::clone(&own), dropped_on: dropped_on.clone() };
        let lock = WriteLock::with_listener(&session, &unique_dir("dropped"), listener).unwrap();
        assert!(lock.lock().unwrap());
        let id = lock.id().unwrap();
        *own.lock().unwrap() = Some(lock);
        other.delete(&id);
        assert_eq!(next(&threads), "zk-lock-worker");
    }
}
