//! Events of a session and its locks, for metrics and audit logs.
//!
//! The primary type in this module is [`SessionEvent`], which an [`EventHook`] receives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::driver::Core;
use super::happened::Happened;
use super::mailbox::Mailbox;
use super::seat::Seat;
use crate::engine::{Event, Place, RequestEvent, SessionEnd};
use crate::error::LossReason;
use crate::external::External;
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::recipe::path::ZNodePath;
use crate::time::Runtime;

/// The maximum number of events that wait for a slow hook. Further events are counted and dropped.
const MAX_WAITING: usize = 10_000;

#[cfg(test)]
mod tests;

/// Receives the events of a session and its locks, for metrics and audit logs.
///
/// A closure that takes a [`SessionEvent`] is a hook. Install it with
/// [`SessionBuilder::event_hook`](crate::SessionBuilder::event_hook) or
/// [`Session::set_event_hook`](crate::Session::set_event_hook). The package `zookeeper-recipes-lock-metrics` has a hook
/// that exports metrics, for example to Prometheus.
///
/// ```no_run
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::events::SessionEvent;
///
/// let losses = Arc::new(AtomicU64::new(0));
/// let counted = Arc::clone(&losses);
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181")
///     .event_hook(move |event: &SessionEvent| {
///         if let SessionEvent::Lost(loss) = event {
///             counted.fetch_add(1, Ordering::Relaxed);
///             eprintln!("lost {} after {:?}: {}", loss.lock.dir, loss.held, loss.reason);
///         }
///     })
///     .connect()?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Threads
/// The events arrive in order, one at a time, on a callback thread of the session, soon after they happened. The crate
/// holds no internal lock during a call, so a hook may use the crate. If a call panics, the panic is logged, and the
/// hook receives the next event as usual. The hook is dropped on a callback thread, soon after its session.
///
/// A hook that blocks delays only later events. When 10,000 events wait for the hook, further ones are dropped and
/// [counted](SessionEvent::Missed).
pub trait EventHook: Send + Sync {
    /// Receives an event.
    fn on_event(&self, event: &SessionEvent);
}

impl<F: Fn(&SessionEvent) + Send + Sync> EventHook for F {
    fn on_event(&self, event: &SessionEvent) {
        self(event);
    }
}

/// An event of a session or of one of its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionEvent {
    /// A server serves the session, for the first time or on a new connection.
    Connected(SessionConnected),
    /// Contact was lost. The session may still be alive.
    Suspended,
    /// The session ended, with all its locks. Not reported after [`Session::close`](crate::Session::close).
    SessionLost,
    /// A new session has replaced the lost one, and a server serves it.
    SessionReplaced(SessionConnected),
    /// A request waits behind others in the queue.
    ///
    /// Not reported for a request that acquires its lock immediately.
    Joined(LockJoined),
    /// A request acquired its lock.
    Acquired(LockAcquired),
    /// A thread got a [`CohortLock`](crate::locks::CohortLock) that its process already owned.
    HandedOver(LockHandedOver),
    /// A lock was released.
    Released(LockReleased),
    /// A lock was taken away while it was held, or this process closed its session.
    Lost(LockLost),
    /// A request ended without having acquired its lock.
    GaveUp(LockGivenUp),
    /// This many events were dropped because the hook was too slow.
    Missed(u64),
}

/// The server and the session of an event, as they were when it happened.
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

/// The lock and the request that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockOfEvent {
    /// The directory.
    pub dir: String,
    /// The full path of the request's znode, or `None` if it was never created.
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

/// The state of a request that has not ended.
///
/// See [`Session::requests`](crate::Session::requests).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestStatus {
    /// The lock.
    pub lock: LockOfEvent,
    /// Whether the request owns the lock. Otherwise it waits.
    pub is_owner: bool,
    /// For an owner, the time since the acquisition. For a waiter, the time since the request was made.
    pub age: Duration,
    /// The full path of the request that this one waits for. During an outage, it is the last known one.
    ///
    /// `None` for an owner, and for a request that waits for no request in particular.
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

/// See [`SessionEvent::Joined`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockJoined {
    /// The lock.
    pub lock: LockOfEvent,
    /// The full path of the request that this one waits for.
    pub waits_for: String,
    /// The number of requests ahead.
    ///
    /// `None` if the request queues for an exclusive lock behind another such request of the same session, because the
    /// queue is then usually not listed.
    pub ahead: Option<usize>,
}

/// See [`SessionEvent::Acquired`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockAcquired {
    /// The lock.
    pub lock: LockOfEvent,
    /// The time since the request was made.
    pub waited: Duration,
}

/// See [`SessionEvent::HandedOver`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHandedOver {
    /// The lock, with the znode of the process.
    pub lock: LockOfEvent,
}

/// See [`SessionEvent::Released`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockReleased {
    /// The lock.
    pub lock: LockOfEvent,
    /// The time since the acquisition.
    pub held: Duration,
}

/// See [`SessionEvent::Lost`].
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

/// See [`SessionEvent::GaveUp`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockGivenUp {
    /// The lock.
    pub lock: LockOfEvent,
    /// The reason why the request was taken out of the queue.
    ///
    /// `None` if the caller gave up: its deadline passed, it was cancelled, the lock was closed, or a `try_lock` found
    /// others ahead.
    pub reason: Option<LossReason>,
    /// The time since the request was made.
    pub waited: Duration,
}

/// The events of a session, on their way to the hook.
pub(crate) struct Events {
    hook: External<Arc<dyn EventHook>>,
    mailbox: Mailbox<Happened>,
    /// Whether a delivery has been submitted but has not started yet.
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

    /// Queues an event. The caller may hold mutexes.
    pub(super) fn post(&self, happened: Happened) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < MAX_WAITING {
            self.mailbox.post(happened);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deliver(&self) {
        self.mailbox.deliver(|happened| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(event) = hook_event(happened) {
                self.pass_on(&event);
            }
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed > 0 {
                self.pass_on(&SessionEvent::Missed(missed));
            }
        });
    }

    fn pass_on(&self, event: &SessionEvent) {
        if let Err(message) = self.hook.call(|hook| hook.on_event(event)) {
            logging::error!("an event hook panicked: {message}");
        }
    }
}

/// Returns whether hooks receive this event.
fn is_for_hook(event: &Event) -> bool {
    match event {
        // The application itself has closed the session.
        Event::SessionEnded(reason) => *reason != SessionEnd::Closed,
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

/// Converts an event to the form that hooks receive. Returns `None` for an event that is not for hooks.
fn hook_event(Happened { event, seat, contact }: Happened) -> Option<SessionEvent> {
    match event {
        Event::Connected => contact.map(SessionEvent::Connected),
        Event::SessionReplaced => contact.map(SessionEvent::SessionReplaced),
        Event::Suspended => Some(SessionEvent::Suspended),
        Event::SessionEnded(_) => Some(SessionEvent::SessionLost),
        Event::Request(_, event) => seat.and_then(|seat| hook_event_of_request(&seat, &event)),
        _ => None,
    }
}

fn hook_event_of_request(seat: &Seat, event: &RequestEvent) -> Option<SessionEvent> {
    let lock = LockOfEvent::of(seat);
    Some(match event {
        RequestEvent::Placed { ahead, number_ahead } => {
            SessionEvent::Joined(LockJoined { lock, waits_for: ahead.to_string(), ahead: *number_ahead })
        }
        RequestEvent::Acquired { waited } => SessionEvent::Acquired(LockAcquired { lock, waited: *waited }),
        RequestEvent::HandedOver => SessionEvent::HandedOver(LockHandedOver { lock }),
        RequestEvent::Ended { place: Place::Owner, how, time } => match how.reason() {
            Some(reason) => SessionEvent::Lost(LockLost { lock, reason, held: *time }),
            None => SessionEvent::Released(LockReleased { lock, held: *time }),
        },
        RequestEvent::Ended { how, time, .. } => {
            SessionEvent::GaveUp(LockGivenUp { lock, reason: how.reason(), waited: *time })
        }
        _ => return None,
    })
}

impl Core {
    /// Posts an event for the hook, if there is one. [`Core::deliver_events`] must follow once the caller holds no
    /// mutex.
    pub(super) fn post_event(&self, happened: Happened) {
        if let Some(events) = self.events().filter(|_| is_for_hook(&happened.event)) {
            events.post(happened);
        }
    }

    /// Submits the delivery of the posted events.
    pub(crate) fn deliver_events(&self) {
        let Some(events) = self.events().filter(|events| events.mailbox.is_waiting()) else { return };
        // One delivery takes all events, so no second one is submitted before the first has started.
        if !events.is_submitted.swap(true, Ordering::SeqCst) {
            let events = Arc::clone(events);
            self.run_callback(move || {
                events.is_submitted.store(false, Ordering::SeqCst);
                events.deliver();
            });
        }
    }

    /// Posts an event and submits its delivery. The caller holds no mutex.
    pub(crate) fn report_event(&self, event: Event, seat: Option<Arc<Seat>>) {
        self.post_event(Happened { event, seat, contact: None });
        self.deliver_events();
    }
}
