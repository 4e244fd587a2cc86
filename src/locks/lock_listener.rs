//! [`LockListener`]: the callbacks of a lock. Only [`ListenerSlot`] calls them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::Sender;

use crate::error::LossReason;
use crate::external::External;
use crate::lock_order::{Mutex, rank::LISTENER};
use crate::locks::write_lock::{LockInner, WriteLock};
use crate::logging;
use crate::request::{Ending, Observer, Place, RequestEvent};
use crate::session::{Mailbox, Session};
use crate::time::Runtime;

/// The maximum number of events that wait for a listener.
const MAX_WAITING: usize = 1000;

/// The callbacks of a [`WriteLock`].
///
/// Implement this trait to react when a lock is acquired or lost, and pass the listener to
/// [`WriteLock::with_listener`]. A [`Sender`] of [`LockEvent`] is a listener, too.
///
/// ```
/// use zookeeper_recipes_lock::{LockListener, LossReason, WriteLock};
///
/// struct Announce;
///
/// impl LockListener for Announce {
///     fn lock_acquired(&self) {
///         println!("acquired");
///     }
///     fn lock_released(&self) {
///         println!("released");
///     }
///     fn lock_lost(&self, lock: &WriteLock, reason: LossReason) {
///         println!("lost: {reason}");
///         let _ = lock.lock(); // joins the queue again
///     }
/// }
/// ```
///
/// For each acquisition, [`lock_acquired`](LockListener::lock_acquired) is called exactly once, and later exactly one
/// of [`lock_released`](LockListener::lock_released) and [`lock_lost`](LockListener::lock_lost), unless the calls are
/// left out because the listener has [fallen behind](LockListener#threads). In between,
/// [`revocation_requested`](LockListener::revocation_requested) is called at most once.
///
/// # Threads
/// The calls for one lock come in order, one at a time, on a callback thread of the session or on the thread that
/// unlocks, closes or drops the lock. A call comes a moment after the event that it reports: check
/// [`is_owner`](WriteLock::is_owner) for the state *now*.
///
/// The crate holds no internal lock during a call. So a listener may lock, unlock, close or drop its own lock or any
/// other. The session stays open until the call returns. A panic in a listener is caught and logged, and affects
/// nothing else.
///
/// A listener that blocks delays only the later calls for its own lock. When 1,000 calls wait for the listener, the
/// oldest requests are left out, each with all its calls, and [counted](LockListener::missed).
///
/// A listener is dropped on a callback thread of the session, soon after the last lock has stopped using it. Its drop
/// may block, panic or use the crate.
///
/// # Order between processes
/// As in the Java recipe, [`lock_released`](LockListener::lock_released) is called while the znode is being deleted. So
/// the next owner, in another process, may be notified first. If work must be finished before another process acquires
/// the lock, finish it before you release the lock.
pub trait LockListener: Send + Sync {
    /// Called when the lock was acquired.
    fn lock_acquired(&self);

    /// Called when this process has released the lock by unlocking, closing or dropping it.
    fn lock_released(&self);

    /// Called when the lock was taken away.
    ///
    /// The session has ended or can no longer be proven alive, another client deleted the znode, or the lock was held
    /// for too long. [`is_owner`](WriteLock::is_owner) is already `false`: immediately stop what only the owner may do.
    /// Call [`lock`](WriteLock::lock) to join the queue again.
    ///
    /// The default calls [`lock_released`](LockListener::lock_released).
    fn lock_lost(&self, lock: &WriteLock, reason: LossReason) {
        let _ = (lock, reason);
        self.lock_released();
    }

    /// Called when another client asks this client to release the lock.
    ///
    /// The other client asks through a [`Revoker`](crate::queue::Revoker), or by writing `unlock` or Curator's
    /// `__REVOKE__` to the znode. This process decides whether and when to release the lock. If that takes too long,
    /// the other client may take the lock away [by force](crate::queue::Revoker::force_revocation_after).
    ///
    /// Called at most once for each acquisition. During the first 100 ms or so after the acquisition, the call may be
    /// held back until that time has passed. Never called if the ACL denies this client READ. The default does nothing.
    #[doc(alias = "RevocationListener")]
    fn revocation_requested(&self, lock: &WriteLock) {
        let _ = lock;
    }

    /// Called when a waiting request has ended without acquiring the lock.
    ///
    /// Not called for a request that this process has withdrawn. To join the queue again, call
    /// [`lock`](WriteLock::lock). If the session was lost, use a lock on a new session.
    ///
    /// On a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions), a lost session does not cause
    /// this call, because the request is made again on the next session. The default does nothing.
    fn request_dropped(&self, lock: &WriteLock, reason: LossReason) {
        let _ = (lock, reason);
    }

    /// Called when calls were left out because the listener was too slow.
    ///
    /// Up to 1,000 calls wait for a listener. `requests` is the number of requests that were left out since
    /// this method was last called. For these requests, neither the start nor the end is reported. The latest
    /// request is never left out. The default does nothing.
    fn missed(&self, requests: u64) {
        let _ = requests;
    }
}

/// Ignores every event.
impl LockListener for () {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}
}

/// An event of a lock, for a channel that serves as a [`LockListener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockEvent {
    /// See [`LockListener::lock_acquired`].
    Acquired,
    /// See [`LockListener::lock_released`].
    Released,
    /// See [`LockListener::lock_lost`].
    Lost(LossReason),
    /// See [`LockListener::revocation_requested`].
    RevocationRequested,
    /// See [`LockListener::request_dropped`].
    Dropped(LossReason),
}

/// Sends each event to a channel.
///
/// Sending never blocks: events that a full channel cannot take are lost. So use an unbounded channel.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::crossbeam_channel::unbounded;
/// use zookeeper_recipes_lock::{Session, WriteLock};
/// use zookeeper_recipes_lock::locks::LockEvent;
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let (sender, events) = unbounded();
/// let election = WriteLock::with_listener(&session, "/election", sender)?;
/// election.lock()?;
/// while events.recv() != Ok(LockEvent::Acquired) {}
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
impl LockListener for Sender<LockEvent> {
    fn lock_acquired(&self) {
        let _ = self.try_send(LockEvent::Acquired);
    }

    fn lock_released(&self) {
        let _ = self.try_send(LockEvent::Released);
    }

    fn lock_lost(&self, _lock: &WriteLock, reason: LossReason) {
        let _ = self.try_send(LockEvent::Lost(reason));
    }

    fn revocation_requested(&self, _lock: &WriteLock) {
        let _ = self.try_send(LockEvent::RevocationRequested);
    }

    fn request_dropped(&self, _lock: &WriteLock, reason: LossReason) {
        let _ = self.try_send(LockEvent::Dropped(reason));
    }
}

impl<L: LockListener + ?Sized> LockListener for Arc<L> {
    fn lock_acquired(&self) {
        (**self).lock_acquired();
    }

    fn lock_released(&self) {
        (**self).lock_released();
    }

    fn lock_lost(&self, lock: &WriteLock, reason: LossReason) {
        (**self).lock_lost(lock, reason);
    }

    fn revocation_requested(&self, lock: &WriteLock) {
        (**self).revocation_requested(lock);
    }

    fn request_dropped(&self, lock: &WriteLock, reason: LossReason) {
        (**self).request_dropped(lock, reason);
    }

    fn missed(&self, requests: u64) {
        (**self).missed(requests);
    }
}

type Listener = Arc<External<Arc<dyn LockListener>>>;

/// The listener of one lock, and the events that have not been delivered yet.
pub(crate) struct ListenerSlot {
    lock: Weak<LockInner>,
    listener: Mutex<LISTENER, Option<Listener>>,
    runtime: Arc<dyn Runtime>,
    events: Mailbox<LockEvent>,
    /// The number of requests that were left out because too many events waited.
    missed: AtomicU64,
}

impl ListenerSlot {
    pub(crate) fn new(
        lock: Weak<LockInner>,
        listener: Option<Arc<dyn LockListener>>,
        session: &Session,
    ) -> ListenerSlot {
        let slot = ListenerSlot {
            lock,
            listener: Mutex::new(None),
            runtime: Arc::clone(session.core().runtime()),
            events: Mailbox::new(),
            missed: AtomicU64::new(0),
        };
        if let Some(listener) = listener {
            slot.set(listener);
        }
        slot
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn LockListener>> {
        self.listener.lock().as_ref().map(|listener| Arc::clone(&***listener))
    }

    pub(crate) fn set(&self, listener: Arc<dyn LockListener>) {
        let listener = Arc::new(External::new("a lock listener", listener, &self.runtime));
        let before = self.listener.lock().replace(listener);
        // Dropped outside the mutex.
        drop(before);
    }

    /// Calls the listener. No other code calls it.
    fn call(&self, lock: &WriteLock, event: LockEvent) {
        let listener = self.listener.lock().clone();
        let Some(listener) = listener else { return };
        // Report missed calls only between two requests.
        let missed = if begins(event) { self.missed.swap(0, Ordering::SeqCst) } else { 0 };
        if missed > 0 {
            if let Err(message) = listener.call(|listener| listener.missed(missed)) {
                logging::error!("a lock listener panicked on missed calls: {message}");
            }
        }
        let called = listener.call(|listener| match event {
            LockEvent::Acquired => listener.lock_acquired(),
            LockEvent::RevocationRequested => listener.revocation_requested(lock),
            LockEvent::Released => listener.lock_released(),
            LockEvent::Lost(reason) => listener.lock_lost(lock, reason),
            LockEvent::Dropped(reason) => listener.request_dropped(lock, reason),
        });
        if let Err(message) = called {
            logging::error!("a lock listener panicked on {event:?}: {message}");
        }
    }
}

impl LockEvent {
    /// Returns the listener's event for a request's event, or `None` if the listener is not told.
    fn of(event: &RequestEvent) -> Option<LockEvent> {
        match event {
            RequestEvent::Acquired { .. } => Some(LockEvent::Acquired),
            RequestEvent::RevocationRequested => Some(LockEvent::RevocationRequested),
            RequestEvent::Ended { place, how, .. } => match how {
                Ending::Withdrawn => (*place == Place::Owner).then_some(LockEvent::Released),
                Ending::Lost(reason) => Some(LockEvent::Lost(*reason)),
                Ending::Dropped(reason, _) => Some(LockEvent::Dropped(*reason)),
            },
            _ => None,
        }
    }
}

impl ListenerSlot {
    fn post_event(&self, event: LockEvent) {
        self.events.post_within(MAX_WAITING, event, |waiting| {
            self.missed.fetch_add(leave_out_oldest(waiting), Ordering::SeqCst);
        });
    }
}

impl Observer for ListenerSlot {
    fn post(&self, event: &RequestEvent) {
        if let Some(event) = LockEvent::of(event) {
            self.post_event(event);
        }
    }

    fn has_callbacks(&self) -> bool {
        self.events.is_waiting()
    }

    fn deliver(&self) {
        // A lock that is gone was closed first, and closing delivers everything.
        let Some(lock) = WriteLock::of_call(&self.lock) else { return };
        self.events.deliver(|event| self.call(&lock, event));
    }
}

/// Returns whether this is the first event of a request.
fn begins(event: LockEvent) -> bool {
    matches!(event, LockEvent::Acquired | LockEvent::Dropped(_))
}

/// Removes all events of the oldest unreported request, unless that is the latest request. Returns how many requests
/// were removed.
fn leave_out_oldest(waiting: &mut VecDeque<LockEvent>) -> u64 {
    let mut firsts = waiting.iter().enumerate().filter(|(_, event)| begins(**event)).map(|(at, _)| at);
    let (Some(oldest), Some(next)) = (firsts.next(), firsts.next()) else { return 0 };
    waiting.drain(oldest..next);
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use crossbeam_channel::{Receiver, bounded, unbounded};

    use crate::fake::SimulatedZooKeeper;
    use crate::tests::eventually;

    /// Posts these events to the lock's listener, and delivers each.
    fn deliver(lock: &WriteLock, events: [LockEvent; 2]) {
        for event in events {
            lock.observer().post_event(event);
            lock.observer().deliver();
        }
    }

    fn lock_with(listener: impl LockListener + 'static) -> WriteLock {
        let client = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
        WriteLock::with_listener(&client.open_session().unwrap(), "/lock", listener).unwrap()
    }

    #[test]
    fn channel_gets_the_events_of_a_lock() {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(Duration::from_secs(30));
        let session = client.open_session().unwrap();
        let (sender, events) = crossbeam_channel::unbounded();
        let lock = WriteLock::with_listener(&session, "/lock", sender).unwrap();
        let next = || events.recv_timeout(crate::tests::deadline()).unwrap();
        assert!(lock.lock().unwrap());
        assert_eq!(next(), LockEvent::Acquired);
        lock.unlock().unwrap();
        assert_eq!(next(), LockEvent::Released);
        lock.lock().unwrap();
        assert_eq!(next(), LockEvent::Acquired);
        client.expire();
        assert_eq!(next(), LockEvent::Lost(LossReason::SessionLost));
    }

    /// Sets another listener when it is called, and panics when it is dropped.
    struct ReplacesItself {
        lock: Arc<OnceLock<WriteLock>>,
        successor: Arc<Counter>,
    }

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl LockListener for Counter {
        fn lock_acquired(&self) {}

        fn lock_released(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl LockListener for ReplacesItself {
        fn lock_acquired(&self) {
            if let Some(lock) = self.lock.get() {
                lock.set_lock_listener(self.successor.clone());
            }
        }

        fn lock_released(&self) {}
    }

    impl Drop for ReplacesItself {
        fn drop(&mut self) {
            panic_unless_panicking();
        }
    }

    /// Panics with a payload that panics again when it is dropped.
    struct PanicsWithItself(Arc<Counter>);

    impl Drop for PanicsWithItself {
        fn drop(&mut self) {
            panic_unless_panicking();
        }
    }

    impl LockListener for PanicsWithItself {
        fn lock_acquired(&self) {
            resume_unwind(Box::new(PanicsWithItself(Arc::clone(&self.0))));
        }

        fn lock_released(&self) {
            self.0.lock_released();
        }
    }

    /// A second panic during unwinding would abort the process.
    fn panic_unless_panicking() {
        if !thread::panicking() {
            resume_unwind(Box::new("on purpose"));
        }
    }

    #[test]
    fn a_listener_is_called_again_after_a_panic_whose_payload_panics_when_dropped() {
        let counter = Arc::new(Counter::default());
        let listener: Arc<dyn LockListener> = Arc::new(PanicsWithItself(Arc::clone(&counter)));
        let lock = lock_with(Arc::clone(&listener));
        deliver(&lock, [LockEvent::Acquired, LockEvent::Released]);
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        // Dropping the listener would panic as well.
        std::mem::forget((lock, listener));
    }

    #[test]
    fn listener_that_does_not_distinguish_a_loss_is_told_of_a_release() {
        let counter = Arc::new(Counter::default());
        let lock = lock_with(Arc::clone(&counter));
        deliver(&lock, [LockEvent::Acquired, LockEvent::Lost(LossReason::NodeDeleted)]);
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn listener_is_called_after_its_predecessor_panicked_on_drop() {
        let successor = Arc::new(Counter::default());
        let own = Arc::new(OnceLock::new());
        let first = ReplacesItself { lock: Arc::clone(&own), successor: Arc::clone(&successor) };
        let lock = own.get_or_init(|| lock_with(first));
        deliver(lock, [LockEvent::Acquired, LockEvent::Released]);
        assert_eq!(successor.0.load(Ordering::SeqCst), 1);
    }

    /// Records its calls. Acquisitions wait until the gate opens.
    struct Slow {
        gate: Receiver<()>,
        calls: Sender<LockEvent>,
        missed: Sender<u64>,
    }

    impl LockListener for Slow {
        fn lock_acquired(&self) {
            let _ = self.gate.recv();
            self.calls.lock_acquired();
        }

        fn lock_released(&self) {
            self.calls.lock_released();
        }

        fn lock_lost(&self, lock: &WriteLock, reason: LossReason) {
            self.calls.lock_lost(lock, reason);
        }

        fn missed(&self, requests: u64) {
            self.missed.send(requests).unwrap();
        }
    }

    #[test]
    fn events_that_wait_for_a_listener_are_bounded_and_the_latest_are_reported() {
        let (open, gate) = bounded::<()>(0);
        let ((sender, calls), (missing, missed)) = (unbounded(), unbounded());
        let lock = lock_with(Slow { gate, calls: sender, missed: missing });
        let slot = &lock.observer();
        slot.post_event(LockEvent::Acquired);
        thread::scope(|scope| {
            let delivering = scope.spawn(|| slot.deliver());
            // The listener has taken the first event, so the end of that acquisition is never left out.
            eventually("the listener is called", || !slot.has_callbacks());
            slot.post_event(LockEvent::Released);
            for _ in 0..3 * MAX_WAITING {
                slot.post_event(LockEvent::Acquired);
                slot.post_event(LockEvent::RevocationRequested);
                slot.post_event(LockEvent::Released);
                slot.post_event(LockEvent::Dropped(LossReason::NodeDeleted));
            }
            slot.post_event(LockEvent::Acquired);
            slot.post_event(LockEvent::Lost(LossReason::NodeDeleted));
            drop(open);
            delivering.join().unwrap();
        });
        let calls: Vec<_> = calls.try_iter().collect();
        assert_eq!(calls[..2], [LockEvent::Acquired, LockEvent::Released]);
        assert_eq!(calls[calls.len() - 2..], [LockEvent::Acquired, LockEvent::Lost(LossReason::NodeDeleted)]);
        assert!(calls.chunks(2).all(|pair| pair[0] == LockEvent::Acquired && pair[1] != LockEvent::Acquired));
        assert!(calls.len() <= MAX_WAITING, "{}", calls.len());
        // Each round has two requests, but `calls` records only the one that acquires the lock.
        let left_out: Vec<_> = missed.try_iter().collect();
        assert_eq!(left_out.len(), 1);
        let recorded = calls.len() as u64 / 2 - 2;
        assert!(left_out[0] >= 2 * (3 * MAX_WAITING as u64 - recorded) - 1, "{left_out:?}, {recorded}");
    }
}
