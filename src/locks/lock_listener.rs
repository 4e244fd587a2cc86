//! [`LockListener`]: the callbacks of a lock; and [`ListenerSlot`], the only code that calls them.

use std::sync::Arc;

use crate::error::LossReason;
use crate::lock_order::{Mutex, rank::LISTENER};
use crate::logging;
use crate::panics::contain;
use crate::request::{Event, Observer};
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
    fn lock_lost(&self, reason: LossReason) {
        let _ = reason;
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
    fn revocation_requested(&self) {}

    /// A request that did not hold the lock has ended without being withdrawn, so it will never
    /// acquire the lock. Call [`lock`](crate::ListeningLock::lock) again; after a loss of the
    /// session, on a new one. Where lost sessions [are
    /// replaced](crate::SessionBuilder::replace_lost_sessions), the request is made again on the
    /// new session instead, without this call. Does nothing unless overridden.
    fn request_dropped(&self, reason: LossReason) {
        let _ = reason;
    }
}

/// Ignores every event.
impl LockListener for () {
    fn lock_acquired(&self) {}

    fn lock_released(&self) {}
}

impl<L: LockListener + ?Sized> LockListener for Arc<L> {
    fn lock_acquired(&self) {
        (**self).lock_acquired();
    }

    fn lock_released(&self) {
        (**self).lock_released();
    }

    fn lock_lost(&self, reason: LossReason) {
        (**self).lock_lost(reason);
    }

    fn revocation_requested(&self) {
        (**self).revocation_requested();
    }

    fn request_dropped(&self, reason: LossReason) {
        (**self).request_dropped(reason);
    }
}

/// The listener of one lock, with the events that were not delivered yet.
pub(crate) struct ListenerSlot {
    listener: Mutex<LISTENER, Option<Arc<dyn LockListener>>>,
    events: Mailbox<Event>,
    /// Whether lost sessions are replaced. A request that waits on a lost session is then made
    /// again on the next, so there is nothing to report.
    is_replaced: bool,
}

impl ListenerSlot {
    pub(crate) fn new(listener: Option<Arc<dyn LockListener>>, is_replaced: bool) -> ListenerSlot {
        ListenerSlot { listener: Mutex::new(listener), events: Mailbox::new(), is_replaced }
    }

    pub(crate) fn get(&self) -> Option<Arc<dyn LockListener>> {
        self.listener.lock().clone()
    }

    pub(crate) fn set(&self, listener: Option<Arc<dyn LockListener>>) {
        let before = std::mem::replace(&mut *self.listener.lock(), listener);
        // Outside the lock: dropping the listener runs the application's code.
        drop(before);
    }

    /// The only caller of listeners.
    fn call(&self, event: Event) {
        if self.is_replaced && matches!(&event, Event::Dropped(reason, _) if reason.is_session_loss()) {
            return;
        }
        let Some(listener) = self.get() else { return };
        // The closure owns the listener: this may be its last handle, and dropping it runs the
        // application's code, too.
        let reported = event.clone();
        let call = move || match reported {
            Event::Acquired => listener.lock_acquired(),
            Event::RevocationRequested => listener.revocation_requested(),
            Event::Released => listener.lock_released(),
            Event::Lost(reason) => listener.lock_lost(reason),
            Event::Dropped(reason, _) => listener.request_dropped(reason),
        };
        if let Err(message) = contain(call) {
            logging::error!("a lock listener panicked on {event:?}: {message}");
        }
    }
}

impl Observer for ListenerSlot {
    fn post(&self, event: Event) {
        self.events.post(event);
    }

    fn has_callbacks(&self) -> bool {
        self.events.is_waiting()
    }

    fn deliver(&self) {
        self.events.deliver(|event| self.call(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::resume_unwind;
    use std::sync::Weak;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    /// Sets another listener when it is called, and panics when it is dropped.
    struct ReplacesItself {
        slot: Weak<ListenerSlot>,
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
            if let Some(slot) = self.slot.upgrade() {
                slot.set(Some(self.successor.clone()));
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
        let slot = ListenerSlot::new(Some(Arc::clone(&listener)), false);
        for event in [Event::Acquired, Event::Released] {
            slot.post(event);
            slot.deliver();
        }
        assert_eq!(counter.0.load(Ordering::SeqCst), 1);
        // Its drop panics as well.
        std::mem::forget((slot, listener));
    }

    #[test]
    fn listener_is_called_after_its_predecessor_panicked_on_drop() {
        let successor = Arc::new(Counter::default());
        let slot = Arc::new_cyclic(|slot| {
            let first = ReplacesItself { slot: slot.clone(), successor: Arc::clone(&successor) };
            ListenerSlot::new(Some(Arc::new(first)), false)
        });
        for event in [Event::Acquired, Event::Released] {
            slot.post(event);
            slot.deliver();
        }
        assert_eq!(successor.0.load(Ordering::SeqCst), 1);
    }
}
