//! Metrics of the locks of [`zookeeper_recipes_lock`], by the crate [`metrics`].
//!
//! [`LockMetrics`] is an event hook of a session, which counts what happens. [`update_gauges`] sets the gauges: call it before
//! each scrape, or every few seconds.
//!
//! ```no_run
//! use zookeeper_recipes_lock::Session;
//! use zookeeper_recipes_lock_metrics::{LockMetrics, update_gauges};
//!
//! // After the recorder of `metrics` is installed.
//! let session = Session::builder("zk1,zk2,zk3").event_hook(LockMetrics::new()).connect()?;
//! // Before each scrape.
//! update_gauges([&session]);
//! # Ok::<(), zookeeper_recipes_lock::LockError>(())
//! ```
//!
//! # What the hook counts
//! - `zookeeper_lock_wait_seconds`, a histogram by `lock`: the times from a request to the acquisition.
//! - `zookeeper_lock_hold_seconds`, a histogram by `lock`: the times from the acquisition to the release.
//! - `zookeeper_locks_lost_total`, by `lock` and `reason`: locks that were taken away while they were held.
//! - `zookeeper_lock_waits_given_up_total`, by `lock`: requests that ended without their lock.
//! - `zookeeper_lock_hand_overs_total`, by `lock`: a `CohortLock` went from one thread of the process to another.
//! - `zookeeper_connections_total`, by `server`: connections to a server.
//! - `zookeeper_sessions_lost_total`, by `reason`.
//! - `zookeeper_lock_events_missed_total`: events that are in none of the above, because the hook was too slow.
//!
//! The label `lock` is the directory, and `reason` is the name of a [`LossReason`], such as `LeaseExpired`.
//!
//! # The gauges
//! They are those of the process, for all its sessions, and have no labels.
//! - `zookeeper_sessions_connected`: the sessions in the state `Connected`.
//! - `zookeeper_session_timeout_seconds`: the shortest session timeout.
//! - `zookeeper_locks_held` and `zookeeper_locks_waiting`: the requests that own a lock, and those that wait for one.
//! - `zookeeper_lock_oldest_wait_seconds`: the time for which the oldest of those that wait has waited; 0 if none waits.
//!
//! [`Session::requests`] has the same for each request, with the znode that it waits for.

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

/// Passes the events of a session and its locks on to the recorder of [`metrics`]. See the [crate].
///
/// Give it to [`SessionBuilder::event_hook`](zookeeper_recipes_lock::SessionBuilder::event_hook); each session gets one.
#[derive(Clone, Debug)]
#[must_use = "it counts nothing until it is given to a session"]
pub struct LockMetrics {
    labels_locks: bool,
}

impl LockMetrics {
    /// Makes a hook, and describes the metrics to the recorder, which should be installed before.
    pub fn new() -> LockMetrics {
        describe();
        LockMetrics { labels_locks: true }
    }

    /// Leaves the label `lock` out. Without this, every directory of a lock adds its time series: too many for
    /// `NamedLocks` or `RunOnce`, which have a directory for each name or key.
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
            SessionEvent::SessionLost(reason) => {
                counter!(SESSIONS_LOST, "reason" => name(*reason)).increment(1);
            }
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

/// Its texts may change; its names may not.
fn name(reason: LossReason) -> String {
    format!("{reason:?}")
}

/// Sets the gauges to what these sessions, all of the process, are and have now. Does no I/O and does not block.
///
/// Call it before each scrape or, where the exporter answers by itself, every few seconds.
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
    describe_histogram!(WAIT, Unit::Seconds, "The times from a request for a lock to the acquisition.");
    describe_histogram!(HOLD, Unit::Seconds, "The times from the acquisition of a lock to the release.");
    describe_counter!(LOST, "Locks that were taken away while they were held.");
    describe_counter!(GIVEN_UP, "Requests for a lock that ended without it.");
    describe_counter!(HAND_OVERS, "Hand-overs of a lock between threads of the process.");
    describe_counter!(CONNECTIONS, "Connections to a ZooKeeper server.");
    describe_counter!(SESSIONS_LOST, "ZooKeeper sessions that were lost.");
    describe_counter!(MISSED, "Events that are not counted, because the hook was too slow.");
    describe_gauge!(CONNECTED, "ZooKeeper sessions that are connected.");
    describe_gauge!(SESSION_TIMEOUT, Unit::Seconds, "The shortest session timeout.");
    describe_gauge!(HELD, "Locks that are held now.");
    describe_gauge!(WAITING, "Requests that wait for a lock now.");
    describe_gauge!(OLDEST_WAIT, Unit::Seconds, "The time for which the oldest waiting request has waited.");
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
