//! [`LockListener`]: the callbacks of a lock; and [`ListenerSlot`], the only code that calls them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::Sender;

use crate::error::LossReason;
use crate::lock_order::{Mutex, rank::LISTENER};
use crate::locks::listening_lock::{ListeningLock, LockInner};
use crate::logging;
use crate::panics::contain;
use crate::request::{Observer, RequestEvent};
use crate::session::Mailbox;

/// The callbacks of a [`WriteLock`](crate::WriteLock) or a [`ReadLock`](crate::ReadLock).
///
/// Each acquisition leads to exactly one call of [`lock_acquired`](LockListener::lock_acquired),
/// and later to exactly one of [`lock_released`](LockListener::lock_released) or
/// [`lock_lost`](LockListener::lock_lost). Between the two there is at most one call of
/// [`revocation_requested`](LockListener::revocation_requested).
///
/// # Threads
/// The calls for one lock come in order and one at a time. They come on a callback thread of the
/// session, or on the thread that unlocks, closes or drops the lock. The crate holds no internal
/// lock meanwhile: a listener may lock, unlock, close or drop its own lock or any other. A listener
/// that blocks delays only the later calls for its own lock. A call comes a moment after the event;
/// ask [`is_owner`](crate::ListeningLock::is_owner) for the state *now*. A panic in a listener is
/// caught and logged, and affects nothing else.
///
/// The methods that ask for an answer get the lock: after a loss,
/// [`lock`](crate::ListeningLock::lock) joins the queue again. Its session stays open until the call
/// returns.
///
/// # Order
/// [`lock_released`](LockListener::lock_released) is called when the deletion of the znode is on its
/// way, as in the Java recipe. So the next owner, in another process, may hear of its acquisition
/// first. Work that must end before another process acquires belongs before the call that releases.
///
/// Origin: the Java interface of the same name, which has the first two methods.
pub trait LockListener: Send + Sync {
    /// The lock was acquired.
    fn lock_acquired(&self);

    /// The lock was released by this process: unlocked, closed or dropped.
    fn lock_released(&self);

    /// The lock was taken away: the session has ended or can no longer be proven alive, or another
    /// client deleted the znode. [`is_owner`](crate::ListeningLock::is_owner) is already false:
    /// stop at once what only the owner may do. Calls
    /// [`lock_released`](LockListener::lock_released) unless overridden.
    fn lock_lost(&self, lock: &ListeningLock, reason: LossReason) {
        let _ = (lock, reason);
        self.lock_released();
    }

    /// Another process asks for this lock, through a [`Revoker`](crate::Revoker) or by writing
    /// `unlock` to the znode. This process decides whether and when to release it. Called once for
    /// each acquisition, about 100 ms after it or later, and not where the ACL denies this client
    /// READ. Does nothing unless overridden.
    ///
    /// If the release takes too long, the other process may take the lock away [by
    /// force](crate::Revoker::force_revocation_after). Origin: "Recoverable Shared Locks" of
    /// ZooKeeper's recipe page; Curator's `RevocationListener`.
    fn revocation_requested(&self, lock: &ListeningLock) {
        let _ = lock;
    }

    /// A request that did not hold the lock has ended without being withdrawn, so it will never
    /// acquire the lock. Call [`lock`](crate::ListeningLock::lock) again; after a loss of the
    /// session, on a new one. Where lost sessions [are
    /// replaced](crate::SessionBuilder::replace_lost_sessions), the request is made again on the
    /// new session instead, without this call. Does nothing unless overridden.
    fn request_dropped(&self, lock: &ListeningLock, reason: LossReason) {
        let _ = (lock, reason);
    }
}

/// Ignores every event.
impl LockListener for () {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}
}

/// An event of a lock, as a channel receives it: see [`LockListener`].
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

/// Sends each event, and never blocks: what a full channel cannot take is lost, so use an unbounded one.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::crossbeam_channel::unbounded;
/// use zookeeper_recipes_lock::{LockEvent, Session, WriteLock};
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

    fn lock_lost(&self, _lock: &ListeningLock, reason: LossReason) {
        let _ = self.try_send(LockEvent::Lost(reason));
    }

    fn revocation_requested(&self, _lock: &ListeningLock) {
        let _ = self.try_send(LockEvent::RevocationRequested);
    }

    fn request_dropped(&self, _lock: &ListeningLock, reason: LossReason) {
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

    fn lock_lost(&self, lock: &ListeningLock, reason: LossReason) {
        (**self).lock_lost(lock, reason);
    }

    fn revocation_requested(&self, lock: &ListeningLock) {
        (**self).revocation_requested(lock);
    }

    fn request_dropped(&self, lock: &ListeningLock, reason: LossReason) {
        (**self).request_dropped(lock, reason);
    }
}

/// The listener of one lock, with the events that were not delivered yet.
pub(crate) struct ListenerSlot {
    lock: Weak<LockInner>,
    listener: Mutex<LISTENER, Option<Arc<dyn LockListener>>>,
    events: Mailbox<RequestEvent>,
    /// Lost sessions are replaced. A request that waits on a lost session is then made again on the
    /// next, so there is nothing to report until it is known that none follows.
    is_replaced: bool,
    /// The end of a request with its session is not reported. Who clears this reports it after all.
    is_withheld: AtomicBool,
}

impl ListenerSlot {
    pub(crate) fn new(
        lock: Weak<LockInner>,
        listener: Option<Arc<dyn LockListener>>,
        is_replaced: bool,
    ) -> ListenerSlot {
        let (listener, is_withheld) = (Mutex::new(listener), AtomicBool::new(false));
        ListenerSlot { lock, listener, events: Mailbox::new(), is_replaced, is_withheld }
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn LockListener>> {
        self.listener.lock().clone()
    }

    pub(crate) fn set(&self, listener: Option<Arc<dyn LockListener>>) {
        let before = std::mem::replace(&mut *self.listener.lock(), listener);
        // Outside the lock: dropping the listener runs the application's code.
        drop(before);
    }

    /// Returns whether the caller is to report what was withheld.
    pub(crate) fn release_withheld(&self) -> bool {
        self.is_withheld.swap(false, Ordering::SeqCst)
    }

    /// The only caller of listeners.
    fn call(&self, lock: &ListeningLock, event: RequestEvent) {
        if self.is_replaced && matches!(&event, RequestEvent::Dropped(reason, _) if reason.is_session_loss())
        {
            self.is_withheld.store(true, Ordering::SeqCst);
            let may_follow = lock.session().replacement().is_some_and(|replacement| !replacement.is_closed());
            if may_follow || !self.release_withheld() {
                return;
            }
        }
        let Some(listener) = self.get() else { return };
        // The closure owns the listener: this may be its last handle, and dropping it runs the
        // application's code, too.
        let reported = event.clone();
        let call = move || match reported {
            RequestEvent::Acquired => listener.lock_acquired(),
            RequestEvent::RevocationRequested => listener.revocation_requested(lock),
            RequestEvent::Released => listener.lock_released(),
            RequestEvent::Lost(reason) => listener.lock_lost(lock, reason),
            RequestEvent::Dropped(reason, _) => listener.request_dropped(lock, reason),
        };
        if let Err(message) = contain(call) {
            logging::error!("a lock listener panicked on {event:?}: {message}");
        }
    }
}

impl Observer for ListenerSlot {
    fn post(&self, event: RequestEvent) {
        self.events.post(event);
    }

    fn has_callbacks(&self) -> bool {
        self.events.is_waiting()
    }

    fn deliver(&self) {
        // A lock that is dropped has been closed, and has delivered everything.
        let Some(lock) = ListeningLock::of_call(&self.lock) else { return };
        self.events.deliver(|event| self.call(&lock, event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use crate::fake::SimulatedZooKeeper;
    use crate::{Session, WriteLock};

    /// Posts and delivers these events of a lock with this listener.
    fn deliver(lock: &WriteLock, events: [RequestEvent; 2]) {
        for event in events {
            lock.observer().post(event);
            lock.observer().deliver();
        }
    }

    fn lock_with(listener: impl LockListener + 'static) -> WriteLock {
        let client = SimulatedZooKeeper::new().connect(Duration::from_secs(30));
        WriteLock::with_listener(&Session::from_client(client).unwrap(), "/lock", listener).unwrap()
    }

    #[test]
    fn channel_gets_the_events_of_a_lock() {
        let server = SimulatedZooKeeper::new();
        let client = server.connect(Duration::from_secs(30));
        let session = Session::from_client(client.clone()).unwrap();
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
        assert_eq!(next(), LockEvent::Lost(LossReason::SessionExpired));
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
        deliver(&lock, [RequestEvent::Acquired, RequestEvent::Released]);
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        // Its drop panics as well.
        std::mem::forget((lock, listener));
    }

    #[test]
    fn listener_is_called_after_its_predecessor_panicked_on_drop() {
        let successor = Arc::new(Counter::default());
        let own = Arc::new(OnceLock::new());
        let first = ReplacesItself { lock: Arc::clone(&own), successor: Arc::clone(&successor) };
        let lock = own.get_or_init(|| lock_with(first));
        deliver(lock, [RequestEvent::Acquired, RequestEvent::Released]);
        assert_eq!(successor.0.load(Ordering::SeqCst), 1);
    }
}
