//! [`EventHook`]: what happens on a session and with its locks, for metrics and audit logs.
//!
//! Origin: the event handler of the connection pool `r2d2`, a trait whose methods do nothing unless
//! they are overridden.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::driver::Core;
use super::happened::Happened;
use super::mailbox::Mailbox;
use super::seat::Seat;
use crate::engine::{Event, Place, RequestEvent};
use crate::error::LossReason;
use crate::external::External;
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::recipe::path::ZNodePath;
use crate::time::Runtime;

/// The largest number of events that wait for a slow hook. Later ones are counted, and dropped.
const MAX_WAITING: usize = 10_000;

#[cfg(test)]
mod tests;

/// Receives what happens on a session and with its locks, for metrics and audit logs.
///
/// Every method does nothing unless it is overridden, but for
/// [`session_replaced`](EventHook::session_replaced). Set the hook by
/// [`SessionBuilder::event_hook`](crate::SessionBuilder::event_hook), or for another client by
/// [`Session::set_event_hook`](crate::Session::set_event_hook).
///
/// The events arrive in order, one at a time, on a thread of the session, soon after they have
/// happened. No lock of this crate is held meanwhile, so a hook may call the crate. A hook
/// that blocks delays only later events; if more than 10,000 wait for it, the next ones are dropped
/// and [counted](EventHook::missed). A panic is logged, and costs only its event. The hook is dropped on such
/// a thread, too, soon after its session.
///
/// The package `zookeeper-recipes-lock-metrics` has a hook that exports metrics, for Prometheus for example.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use zookeeper_recipes_lock::events::{EventHook, LockLost};
///
/// #[derive(Default)]
/// struct Losses(AtomicU64);
///
/// impl EventHook for Losses {
///     fn lost(&self, event: &LockLost) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///         eprintln!("lost {} after {:?}: {}", event.lock.dir, event.held, event.reason);
///     }
/// }
/// ```
pub trait EventHook: Send + Sync {
    /// A server serves the session: at first, and after each change of the connection.
    fn connected(&self, event: &SessionConnected) {
        let _ = event;
    }

    /// Contact is lost; the session may live.
    fn suspended(&self) {}

    /// The session has ended, with all its locks; not after
    /// [`Session::close`](crate::Session::close).
    fn session_lost(&self, reason: LossReason) {
        let _ = reason;
    }

    /// Another session takes the place of the lost one. Calls [`connected`](EventHook::connected)
    /// unless overridden.
    fn session_replaced(&self, event: &SessionConnected) {
        self.connected(event);
    }

    /// A request is behind others in the queue. Not called for one that acquires at once.
    fn joined(&self, event: &LockJoined) {
        let _ = event;
    }

    /// A request has acquired its lock.
    fn acquired(&self, event: &LockAcquired) {
        let _ = event;
    }

    /// A thread has handed a [`CohortLock`](crate::locks::CohortLock) over to another one of its process,
    /// or has taken one that was kept.
    fn handed_over(&self, event: &LockHandedOver) {
        let _ = event;
    }

    /// A lock is released.
    fn released(&self, event: &LockReleased) {
        let _ = event;
    }

    /// A lock was taken away while it was held.
    fn lost(&self, event: &LockLost) {
        let _ = event;
    }

    /// A request has ended without acquiring its lock.
    fn gave_up(&self, event: &LockGivenUp) {
        let _ = event;
    }

    /// Receives the number of events that were dropped because the queue of this hook was full.
    fn missed(&self, events: u64) {
        let _ = events;
    }
}

impl<H: EventHook + ?Sized> EventHook for Arc<H> {
    fn connected(&self, event: &SessionConnected) {
        (**self).connected(event);
    }
    fn suspended(&self) {
        (**self).suspended();
    }
    fn session_lost(&self, reason: LossReason) {
        (**self).session_lost(reason);
    }
    fn session_replaced(&self, event: &SessionConnected) {
        (**self).session_replaced(event);
    }
    fn joined(&self, event: &LockJoined) {
        (**self).joined(event);
    }
    fn acquired(&self, event: &LockAcquired) {
        (**self).acquired(event);
    }
    fn handed_over(&self, event: &LockHandedOver) {
        (**self).handed_over(event);
    }
    fn released(&self, event: &LockReleased) {
        (**self).released(event);
    }
    fn lost(&self, event: &LockLost) {
        (**self).lost(event);
    }
    fn gave_up(&self, event: &LockGivenUp) {
        (**self).gave_up(event);
    }
    fn missed(&self, events: u64) {
        (**self).missed(events);
    }
}

/// A contact with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionConnected {
    /// See [`Session::id`](crate::Session::id).
    pub session_id: Option<i64>,
    /// See [`Session::server`](crate::Session::server).
    pub server: Option<String>,
    /// See [`Session::session_timeout`](crate::Session::session_timeout).
    pub session_timeout: Duration,
}

/// The lock that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOfEvent {
    /// The directory.
    pub dir: String,
    /// The full path of the request's znode; `None` if it was never created.
    pub id: Option<String>,
    /// The requested lock mode.
    pub kind: LockKind,
}

impl LockOfEvent {
    fn of(seat: &Seat) -> LockOfEvent {
        LockOfEvent {
            dir: seat.spec.dir.to_string(),
            id: seat.znode.get().map(ZNodePath::to_string),
            kind: seat.spec.access.kind(),
        }
    }
}

/// A request that has not ended. See [`Session::requests`](crate::Session::requests).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestStatus {
    /// The lock.
    pub lock: LockOfEvent,
    /// The request owns the lock. Otherwise it waits.
    pub is_owner: bool,
    /// The time since the acquisition, for an owner; for another, since the request was made.
    pub age: Duration,
    /// The full path of the request that this one waits for, as far as it is known: in an outage, the one before that.
    /// `None` for an owner, and for a request that waits for nobody in particular.
    pub waits_for: Option<String>,
}

impl RequestStatus {
    pub(super) fn new(
        seat: &Seat,
        is_owner: bool,
        age: Duration,
        waits_for: Option<&ZNodePath>,
    ) -> RequestStatus {
        let waits_for = waits_for.map(ZNodePath::to_string);
        RequestStatus { lock: LockOfEvent::of(seat), is_owner, age, waits_for }
    }
}

/// See [`EventHook::joined`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockJoined {
    /// The lock.
    pub lock: LockOfEvent,
    /// The full path of the request that this one waits for.
    pub waits_for: String,
    /// The number of requests ahead. `None` behind a request of the same session, which is found
    /// without a listing.
    pub ahead: Option<usize>,
}

/// See [`EventHook::acquired`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockAcquired {
    /// The lock.
    pub lock: LockOfEvent,
    /// The time since the request was made.
    pub waited: Duration,
}

/// See [`EventHook::handed_over`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHandedOver {
    /// The lock. Its znode is that of the process.
    pub lock: LockOfEvent,
}

/// See [`EventHook::released`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockReleased {
    /// The lock.
    pub lock: LockOfEvent,
    /// The time since the acquisition.
    pub held: Duration,
}

/// See [`EventHook::lost`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockLost {
    /// The lock.
    pub lock: LockOfEvent,
    /// The reason for the loss.
    pub reason: LossReason,
    /// The time since the acquisition.
    pub held: Duration,
}

/// See [`EventHook::gave_up`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockGivenUp {
    /// The lock.
    pub lock: LockOfEvent,
    /// The reason why the request was taken out of the queue. `None` if its own caller gave up:
    /// at a deadline, by cancelling, by closing the lock, or with a `try_lock` that found others ahead.
    pub reason: Option<LossReason>,
    /// The time since the request was made.
    pub waited: Duration,
}

/// The events of a session, on their way to the hook.
pub(crate) struct Events {
    hook: External<Arc<dyn EventHook>>,
    /// What has happened, and on which session: a hook goes with those that replace it.
    mailbox: Mailbox<(Weak<Core>, Happened)>,
    /// A delivery is submitted that has not begun.
    is_submitted: AtomicBool,
    waiting: AtomicUsize,
    missed: AtomicU64,
}

impl Events {
    pub(super) fn new(hook: Arc<dyn EventHook>, runtime: &Arc<dyn Runtime>) -> Events {
        let hook = External::new("an event hook", hook, runtime);
        let (waiting, missed) = (AtomicUsize::new(0), AtomicU64::new(0));
        let is_submitted = AtomicBool::new(false);
        Events { hook, mailbox: Mailbox::new(), is_submitted, waiting, missed }
    }

    /// Takes an event, in order. The caller may hold locks.
    pub(super) fn post(&self, core: Weak<Core>, happened: Happened) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING {
            self.mailbox.post((core, happened));
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver(&self) {
        self.mailbox.deliver(|(core, happened)| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.guarded(|hook| pass_on(hook, &core, &happened));
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed > 0 {
                self.guarded(|hook| hook.missed(missed));
            }
        });
    }

    fn guarded(&self, call: impl FnOnce(&dyn EventHook)) {
        if let Err(message) = self.hook.call(|hook| call(&**hook)) {
            logging::error!("an event hook panicked: {message}");
        }
    }
}

/// Returns whether the hook has a method for this.
fn is_for_hook(event: &Event) -> bool {
    match event {
        // The application has closed the session itself.
        Event::SessionEnded(reason) => *reason != LossReason::SessionClosed,
        Event::Connected | Event::Suspended | Event::SessionReplaced => true,
        Event::Request(_, event) => matches!(
            event,
            RequestEvent::Placed { .. }
                | RequestEvent::Acquired { .. }
                | RequestEvent::HandedOver
                | RequestEvent::Ended { .. }
        ),
        _ => false,
    }
}

fn pass_on(hook: &dyn EventHook, core: &Weak<Core>, happened: &Happened) {
    match (&happened.event, &happened.seat) {
        (Event::Connected, _) => contact_of(core).iter().for_each(|event| hook.connected(event)),
        (Event::SessionReplaced, _) => contact_of(core).iter().for_each(|event| hook.session_replaced(event)),
        (Event::Suspended, _) => hook.suspended(),
        (Event::SessionEnded(reason), _) => hook.session_lost(*reason),
        (Event::Request(_, event), Some(seat)) => pass_on_of_request(hook, seat, event),
        _ => {}
    }
}

fn pass_on_of_request(hook: &dyn EventHook, seat: &Seat, event: &RequestEvent) {
    let lock = LockOfEvent::of(seat);
    match event {
        RequestEvent::Placed { ahead, number_ahead } => {
            hook.joined(&LockJoined { lock, waits_for: ahead.to_string(), ahead: *number_ahead });
        }
        RequestEvent::Acquired { waited } => hook.acquired(&LockAcquired { lock, waited: *waited }),
        RequestEvent::HandedOver => hook.handed_over(&LockHandedOver { lock }),
        RequestEvent::Ended { place: Place::Owner, how, time } => match how.reason() {
            Some(reason) => hook.lost(&LockLost { lock, reason, held: *time }),
            None => hook.released(&LockReleased { lock, held: *time }),
        },
        RequestEvent::Ended { how, time, .. } => {
            hook.gave_up(&LockGivenUp { lock, reason: how.reason(), waited: *time });
        }
        _ => {}
    }
}

/// `None` if the session has been dropped meanwhile.
fn contact_of(core: &Weak<Core>) -> Option<SessionConnected> {
    let core = core.upgrade()?;
    let (session_id, server) = (core.client().session_id(), core.client().server());
    Some(SessionConnected { session_id, server, session_timeout: core.snapshot().session_timeout })
}

impl Core {
    /// Posts an event for the hook, if there is one. [`Core::deliver_events`] follows when the
    /// caller holds no lock.
    pub(super) fn post_event(self: &Arc<Self>, happened: &Happened) {
        if let Some(events) = self.events().filter(|_| is_for_hook(&happened.event)) {
            events.post(Arc::downgrade(self), happened.clone());
        }
    }

    /// Has the posted events delivered soon.
    pub(crate) fn deliver_events(&self) {
        let Some(events) = self.events().filter(|events| events.mailbox.is_waiting()) else { return };
        // One is enough: threads may be late.
        if !events.is_submitted.swap(true, Ordering::SeqCst) {
            let events = Arc::clone(events);
            self.run_callback(move || {
                events.is_submitted.store(false, Ordering::SeqCst);
                events.deliver();
            });
        }
    }

    /// Posts an event and has it delivered. The caller holds no lock.
    pub(crate) fn report_event(self: &Arc<Self>, event: Event, seat: Option<Arc<Seat>>) {
        self.post_event(&Happened { event, seat });
        self.deliver_events();
    }
}
