//! [`Announcer`]: what subscribers and the log hear of the states of a session.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;

use super::{Core, Driver};
use crate::error::LossReason;
use crate::logging;
use crate::session::SessionState;
use crate::session::happened::Happened;
use crate::time::{Latch, Moment, Repetition, Setter};

/// The log names suspensions at most this often.
const SUSPENSION_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Announcer {
    /// The state that the subscribers know.
    announced: SessionState,
    /// Set when another state is announced.
    changed: Setter,
    subscribers: Vec<Sender<SessionState>>,
    /// Of the session, in the log.
    suspension: Repetition,
    /// Of its locks, in the log.
    suspensions: Repetition,
    /// The log does not name the present suspension of the session, nor its end.
    is_quiet: bool,
}

/// What the log is to say. Its logger is the application's: it may block, or call in here.
#[derive(Default)]
pub(super) struct ForLog {
    pub(super) announced: Vec<SessionState>,
    pub(super) happened: Vec<Happened>,
}

impl Announcer {
    pub(super) fn new() -> Announcer {
        Announcer {
            announced: SessionState::Suspended,
            changed: Setter::new(),
            subscribers: Vec::new(),
            suspension: Repetition::default(),
            suspensions: Repetition::default(),
            is_quiet: false,
        }
    }

    /// A connection that comes and goes must not fill the log.
    pub(super) fn forget_repetitions(&mut self, now: Moment, log: &mut ForLog) {
        let has_suspensions = log.happened.iter().any(Happened::is_suspension);
        if has_suspensions && self.suspensions.is_repeated(now, SUSPENSION_PAUSE) {
            log.happened.retain(|happened| !happened.is_suspension());
        }
        if log.announced.contains(&SessionState::Suspended) {
            self.is_quiet = self.suspension.is_repeated(now, SUSPENSION_PAUSE);
        }
        if self.is_quiet {
            log.announced.clear();
        }
    }
}

impl Driver {
    pub(super) fn state(&self) -> SessionState {
        if self.engine.end_reason().is_some() {
            SessionState::Lost
        } else if self.engine.is_connected() {
            SessionState::Connected
        } else {
            SessionState::Suspended
        }
    }

    /// Sends the subscribers the state if it has changed, and returns it then.
    pub(super) fn announce(&mut self) -> Option<SessionState> {
        let (state, is_closed) = (self.state(), self.is_closed());
        let announcer = &mut self.announcer;
        if state == announcer.announced {
            return None;
        }
        announcer.announced = state;
        // Dropping the former one sets it.
        announcer.changed = Setter::new();
        if is_closed {
            // The application has closed the session and knows that. Its channels are disconnected.
            announcer.subscribers.clear();
        }
        // An unbounded channel: this never waits. A subscriber whose receiver is gone is forgotten.
        announcer.subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        Some(state)
    }

    /// Idempotent: two threads may add the same channel when a session is replaced.
    fn subscribe(&mut self, subscriber: Sender<SessionState>) {
        let subscribers = &self.announcer.subscribers;
        let is_known = subscribers.iter().any(|other| other.same_channel(&subscriber));
        if !self.is_closed() && !is_known {
            self.announcer.subscribers.push(subscriber);
        }
    }

    fn is_closed(&self) -> bool {
        self.engine.end_reason() == Some(LossReason::SessionClosed)
    }
}

impl Core {
    /// The latch that is set when the subscribers next hear of another state.
    pub(crate) fn next_change(&self) -> Latch {
        self.driver.lock().announcer.changed.latch().clone()
    }

    pub(crate) fn subscribe(&self, subscriber: Sender<SessionState>) {
        self.driver.lock().subscribe(subscriber);
    }

    /// Sends the present state to a new subscriber; `false` if the receiver is gone.
    pub(in crate::session) fn announce_and_subscribe(&self, subscriber: Sender<SessionState>) -> bool {
        let mut driver = self.driver.lock();
        let listens = subscriber.send(driver.announcer.announced).is_ok();
        driver.subscribe(subscriber);
        listens
    }

    pub(super) fn write_to_log(self: &Arc<Self>, log: &ForLog) {
        for state in &log.announced {
            match state {
                SessionState::Connected => {
                    let level = if self.names_contacts { Level::Debug } else { Level::Info };
                    logging::log!(level, "ZooKeeper session connected");
                }
                SessionState::Suspended => logging::warn!("ZooKeeper session suspended: no contact"),
                // Its end is logged with the reason.
                SessionState::Lost => {}
            }
        }
        // The log is about to name, or has named, the loss.
        let is_news = |line: &&Happened| !line.is_suspension() || self.snapshot().end_reason.is_none();
        log.happened.iter().filter(is_news).for_each(Happened::log);
    }
}
