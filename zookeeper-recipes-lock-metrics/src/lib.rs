//! Metrics for the locks of [`zookeeper_recipes_lock`], recorded with the crate [`metrics`].
//!
//! [`LockMetrics`] is an event hook that counts what happens on a session. [`update_gauges`] sets the gauges;
//! call it before each scrape, or every few seconds.
//!
//! ```no_run
//! use zookeeper_recipes_lock::Session;
//! use zookeeper_recipes_lock_metrics::{LockMetrics, update_gauges};
//!
//! // The recorder of `metrics` must be installed by now.
//! let session = Session::builder("zk1,zk2,zk3").event_hook(LockMetrics::new()).connect()?;
//! // Before each scrape.
//! update_gauges([&session]);
//! # Ok::<(), zookeeper_recipes_lock::LockError>(())
//! ```
//!
//! # Counters and histograms
//! - `zookeeper_lock_wait_seconds`, a histogram by `lock`: the time from a request to the acquisition.
//! - `zookeeper_lock_hold_seconds`, a histogram by `lock`: the time from the acquisition to the release.
//! - `zookeeper_locks_lost_total`, by `lock` and `reason`: locks that were lost while they were held.
//! - `zookeeper_lock_waits_given_up_total`, by `lock`: requests that ended without acquiring the lock.
//! - `zookeeper_lock_hand_overs_total`, by `lock`: how often a thread got a `CohortLock` that its process already
//!   owned, because another thread handed it over or the process had kept it.
//! - `zookeeper_connections_total`, by `server`: connections to a server.
//! - `zookeeper_sessions_lost_total`: sessions that were lost.
//! - `zookeeper_lock_events_missed_total`: events that the other metrics miss because the hook was too slow.
//!
//! The label `lock` is the directory of the lock. `reason` is the name of a [`LossReason`], such as
//! `LeaseExpired`.
//!
//! # Gauges
//! The gauges cover the sessions that are passed to [`update_gauges`], and have no labels.
//! - `zookeeper_sessions_connected`: the number of sessions in the state `Connected`.
//! - `zookeeper_session_timeout_seconds`: the shortest session timeout.
//! - `zookeeper_locks_held`: the number of requests that own a lock.
//! - `zookeeper_locks_waiting`: the number of requests that wait for a lock.
//! - `zookeeper_lock_oldest_wait_seconds`: how long the oldest waiting request has waited; 0 if none waits.
//!
//! [`Session::requests`] returns each request's state and age, and the znode that it waits for.

#![forbid(unsafe_code)]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    rust_2018_idioms,
    clippy::print_stdout,
    clippy::print_stderr
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use std::time::Duration;

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use zookeeper_recipes_lock::events::{EventHook, LockOfEvent, SessionEvent};
use zookeeper_recipes_lock::{LossReason, Session, SessionState};

const WAIT: &str = "zookeeper_lock_wait_seconds";
const HOLD: &str = "zookeeper_lock_hold_seconds";
const LOST: &str = "zookeeper_locks_lost_total";
const GIVEN_UP: &str = "zookeeper_lock_waits_given_up_total";
const HAND_OVERS: &str = "zookeeper_lock_hand_overs_total";
const CONNECTIONS: &str = "zookeeper_connections_total";
const SESSIONS_LOST: &str = "zookeeper_sessions_lost_total";
const MISSED: &str = "zookeeper_lock_events_missed_total";
const CONNECTED: &str = "zookeeper_sessions_connected";
const SESSION_TIMEOUT: &str = "zookeeper_session_timeout_seconds";
const HELD: &str = "zookeeper_locks_held";
const WAITING: &str = "zookeeper_locks_waiting";
const OLDEST_WAIT: &str = "zookeeper_lock_oldest_wait_seconds";

/// An event hook that records the metrics of a session and its locks. See the [crate docs](crate).
///
/// Pass one to [`SessionBuilder::event_hook`](zookeeper_recipes_lock::SessionBuilder::event_hook) for each
/// session.
#[derive(Clone, Debug)]
#[must_use = "a hook records nothing until it is passed to a session"]
pub struct LockMetrics {
    labels_locks: bool,
}

impl LockMetrics {
    /// Creates a hook and describes the metrics to the recorder, which should already be installed.
    pub fn new() -> LockMetrics {
        describe();
        LockMetrics { labels_locks: true }
    }

    /// Omits the label `lock`.
    ///
    /// With the label, every lock directory adds time series. With `NamedLocks` or `RunOnce`, there are too many of
    /// these, because each name or key has a directory.
    pub fn without_lock_label(self) -> LockMetrics {
        LockMetrics { labels_locks: false }
    }

    fn labels(&self, lock: &LockOfEvent) -> Vec<Label> {
        self.labels_locks.then(|| Label::new("lock", lock.dir.clone())).into_iter().collect()
    }
}

impl Default for LockMetrics {
    fn default() -> LockMetrics {
        LockMetrics::new()
    }
}

impl EventHook for LockMetrics {
    fn on_event(&self, event: &SessionEvent) {
        match event {
            SessionEvent::Connected(contact) | SessionEvent::SessionReplaced(contact) => {
                let server = contact.server.clone().unwrap_or_default();
                counter!(CONNECTIONS, "server" => server).increment(1);
            }
            SessionEvent::SessionLost => counter!(SESSIONS_LOST).increment(1),
            SessionEvent::Acquired(event) => {
                histogram!(WAIT, self.labels(&event.lock)).record(event.waited);
            }
            SessionEvent::HandedOver(event) => {
                counter!(HAND_OVERS, self.labels(&event.lock)).increment(1);
            }
            SessionEvent::Released(event) => {
                histogram!(HOLD, self.labels(&event.lock)).record(event.held);
            }
            SessionEvent::Lost(event) => {
                let mut labels = self.labels(&event.lock);
                labels.push(Label::new("reason", name(event.reason)));
                counter!(LOST, labels).increment(1);
            }
            SessionEvent::GaveUp(event) => counter!(GIVEN_UP, self.labels(&event.lock)).increment(1),
            SessionEvent::Missed(events) => counter!(MISSED).increment(*events),
            _ => {}
        }
    }
}

/// Returns the name of the variant, which is stable. The text of `Display` may change.
fn name(reason: LossReason) -> String {
    format!("{reason:?}")
}

/// Sets the gauges to the current state of these sessions.
///
/// Pass all sessions of the process. Call this before each scrape or, if the exporter answers scrapes on its
/// own, every few seconds. It does no I/O and does not block.
pub fn update_gauges<'a>(sessions: impl IntoIterator<Item = &'a Session>) {
    let (mut connected, mut held, mut waiting) = (0_u32, 0_u32, 0_u32);
    let (mut shortest_timeout, mut oldest_wait) = (None, Duration::ZERO);
    for session in sessions {
        connected += u32::from(session.state() == SessionState::Connected);
        let timeout = session.session_timeout();
        shortest_timeout = Some(shortest_timeout.map_or(timeout, |shortest: Duration| shortest.min(timeout)));
        for request in session.requests() {
            if request.is_owner {
                held += 1;
            } else {
                waiting += 1;
                oldest_wait = oldest_wait.max(request.age);
            }
        }
    }
    gauge!(CONNECTED).set(connected);
    gauge!(HELD).set(held);
    gauge!(WAITING).set(waiting);
    gauge!(OLDEST_WAIT).set(oldest_wait);
    if let Some(timeout) = shortest_timeout {
        gauge!(SESSION_TIMEOUT).set(timeout);
    }
}

fn describe() {
    describe_histogram!(WAIT, Unit::Seconds, "The time from a request for a lock to its acquisition.");
    describe_histogram!(HOLD, Unit::Seconds, "The time from the acquisition of a lock to its release.");
    describe_counter!(LOST, "Locks that were lost while they were held.");
    describe_counter!(GIVEN_UP, "Requests that ended without acquiring the lock.");
    describe_counter!(HAND_OVERS, "Acquisitions of a CohortLock that the process already owned.");
    describe_counter!(CONNECTIONS, "Connections to a ZooKeeper server.");
    describe_counter!(SESSIONS_LOST, "ZooKeeper sessions that were lost.");
    describe_counter!(MISSED, "Events that were not counted because the hook was too slow.");
    describe_gauge!(CONNECTED, "ZooKeeper sessions that are connected.");
    describe_gauge!(SESSION_TIMEOUT, Unit::Seconds, "The shortest session timeout.");
    describe_gauge!(HELD, "Locks that are held now.");
    describe_gauge!(WAITING, "Requests that wait for a lock now.");
    describe_gauge!(OLDEST_WAIT, Unit::Seconds, "How long the oldest waiting request has waited.");
}

/// The README's example is compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
