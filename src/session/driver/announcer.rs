//! [`Announcer`]: reports the states of a session to subscribers and to the log.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;

use super::{Core, Driver};
use crate::logging;
use crate::session::SessionState;
use crate::session::happened::Happened;
use crate::time::{Latch, Moment, Repetition, Setter};

/// For this long after a suspension was logged, no further one is logged.
const SUSPENSION_PAUSE: Duration = Duration::from_secs(60);

pub(super) struct Announcer {
    /// The state that was announced to the subscribers last.
    announced: SessionState,
    /// Set when the next state is announced.
    changed: Setter,
    /// `None` once nothing more will be announced to them.
    subscribers: Option<Vec<Sender<SessionState>>>,
    /// Limits the log lines about suspensions of the session.
    suspension: Repetition,
    /// Limits the log lines about suspensions of its locks.
    suspensions: Repetition,
    /// Whether the current suspension of the session, and its end, are left out of the log.
    is_quiet: bool,
}

/// The events to log. The logger belongs to the application: it may block or call this crate.
#[derive(Default)]
pub(super) struct ForLog {
    pub(super) announced: Vec<SessionState>,
    pub(super) happened: Vec<Happened>,
    pub(super) client_panics: Vec<ClientPanic>,
}

pub(super) struct ClientPanic {
    pub(super) consequence: &'static str,
    pub(super) message: String,
}

impl Announcer {
    pub(super) fn new() -> Announcer {
        Announcer {
            announced: SessionState::Suspended,
            changed: Setter::new(),
            subscribers: Some(Vec::new()),
            suspension: Repetition::default(),
            suspensions: Repetition::default(),
            is_quiet: false,
        }
    }

    /// Disconnects the channels of the subscribers, and those of later ones.
    pub(super) fn disconnect(&mut self) {
        self.subscribers = None;
    }

    /// Removes repeated lines, so that a connection that comes and goes does not fill the log.
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

    /// If the state has changed, sends it to the subscribers and returns it.
    pub(super) fn announce(&mut self) -> Option<SessionState> {
        let state = self.state();
        let announcer = &mut self.announcer;
        if state == announcer.announced {
            return None;
        }
        announcer.announced = state;
        // Dropping the old setter sets its latch.
        announcer.changed = Setter::new();
        // The channels are unbounded, so this never waits. Subscribers without a receiver are removed.
        if let Some(subscribers) = &mut announcer.subscribers {
            subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        }
        Some(state)
    }

    /// Adds a subscriber. Idempotent, because two threads may add the same channel when a session is replaced.
    fn subscribe(&mut self, subscriber: Sender<SessionState>) {
        let Some(subscribers) = &mut self.announcer.subscribers else { return };
        if !subscribers.iter().any(|other| other.same_channel(&subscriber)) {
            subscribers.push(subscriber);
        }
    }
}

impl Core {
    /// The latch that is set when the next state is announced.
    pub(crate) fn next_change(&self) -> Latch {
        self.driver.lock().announcer.changed.latch().clone()
    }

    pub(crate) fn subscribe(&self, subscriber: Sender<SessionState>) {
        self.driver.lock().subscribe(subscriber);
    }

    /// Disconnects the channels of the subscribers, unless others send to them as well.
    pub(in crate::session) fn disconnect_subscribers(&self) {
        self.driver.lock().announcer.disconnect();
    }

    /// Adds a subscriber and sends it the state that was announced last. Returns `false` if the receiver is gone.
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
                // The end of the session is logged with its reason.
                SessionState::Lost => {}
            }
        }
        // After the end of the session, the loss is logged instead of the suspension.
        let is_current = |line: &&Happened| !line.is_suspension() || self.snapshot().end_reason.is_none();
        log.happened.iter().filter(is_current).for_each(Happened::log);
        for ClientPanic { consequence, message } in &log.client_panics {
            logging::error!("the ZooKeeper client panicked, so {consequence}: {message}");
        }
    }
}
