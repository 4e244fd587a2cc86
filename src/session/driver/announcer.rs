//! [`Announcer`]: reports the states of a session to subscribers and to the log.

use std::fmt::Write as _;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;

use super::{Core, Driver};
use crate::engine::SessionEnd;
use crate::logging;
use crate::session::SessionState;
use crate::time::{Latch, Repetition, Setter};

/// For this long after a suspension was logged, no further one is logged.
const SUSPENSION_PAUSE: Duration = Duration::from_secs(60);

/// How many of the locks that a suspension concerns are named in its log line.
const NAMED_LOCKS: usize = 3;

pub(super) struct Announcer {
    /// The state that was announced last.
    announced: SessionState,
    /// Set when the next state is announced.
    changed: Setter,
    /// `None` once nothing more will be announced to them.
    subscribers: Option<Vec<Sender<SessionState>>>,
    /// Limits the log lines about suspensions.
    suspension: Repetition,
    /// Whether the current suspension, and its end, are left out of the log.
    is_quiet: bool,
    /// Whether the client itself logs each contact, with the server's name.
    names_contacts: bool,
}

impl Announcer {
    pub(super) fn new(names_contacts: bool) -> Announcer {
        Announcer {
            announced: SessionState::Suspended,
            changed: Setter::new(),
            subscribers: Some(Vec::new()),
            suspension: Repetition::default(),
            is_quiet: false,
            names_contacts,
        }
    }

    /// Disconnects the channels of the subscribers, and those of later ones.
    pub(super) fn disconnect(&mut self) {
        self.subscribers = None;
    }

    /// Leaves the end of the session out of the log.
    pub(super) fn skip_end(&mut self) {
        self.announced = SessionState::Lost;
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

    /// If the state has changed, logs it and sends it to the subscribers.
    pub(super) fn announce(&mut self) {
        let state = self.state();
        if state == self.announcer.announced {
            return;
        }
        self.log_state(state);
        let announcer = &mut self.announcer;
        announcer.announced = state;
        // Dropping the old setter sets its latch.
        announcer.changed = Setter::new();
        // The channels are unbounded, so this never waits. Subscribers without a receiver are removed.
        if let Some(subscribers) = &mut announcer.subscribers {
            subscribers.retain(|subscriber| subscriber.send(state).is_ok());
        }
    }

    /// Logs the state, unless a connection that comes and goes would fill the log.
    fn log_state(&mut self, state: SessionState) {
        let now = self.engine.now();
        let announcer = &mut self.announcer;
        if state == SessionState::Suspended {
            announcer.is_quiet = announcer.suspension.is_repeated(now, SUSPENSION_PAUSE);
        }
        let is_quiet = announcer.is_quiet && state != SessionState::Lost;
        let (level, text): (_, fn(&Driver) -> String) = match state {
            SessionState::Connected if announcer.names_contacts => (Level::Debug, Driver::connected),
            SessionState::Connected => (Level::Info, Driver::connected),
            SessionState::Suspended => (Level::Warn, Driver::suspended),
            SessionState::Lost if self.engine.end_reason() == Some(SessionEnd::Closed) => {
                (Level::Info, Driver::ended)
            }
            SessionState::Lost => (Level::Warn, Driver::ended),
        };
        if !is_quiet && logging::is_enabled(level) {
            logging::write_text(level, logging::SESSION, text(self));
        }
    }

    fn connected(&self) -> String {
        "ZooKeeper session connected".to_owned()
    }

    /// One line for all locks, because a session may hold thousands.
    fn suspended(&self) -> String {
        let now = self.engine.now();
        let owned = || self.seats.values().filter(|seat| seat.ownership.covers(now));
        let mut text = "ZooKeeper session suspended: no contact".to_owned();
        let count = owned().count();
        if count > 0 {
            let names: Vec<_> = owned().take(NAMED_LOCKS).map(|seat| seat.name().as_str()).collect();
            let others = if count > names.len() { ", …" } else { "" };
            // Cannot fail: a string takes everything.
            let _ =
                write!(text, "; locks owned until the lease ends: {count} ({}{others})", names.join(", "));
        }
        text
    }

    fn ended(&self) -> String {
        match self.engine.end_reason() {
            None | Some(SessionEnd::Closed) => "ZooKeeper session closed".to_owned(),
            Some(reason) if self.seats.is_empty() => format!("ZooKeeper session lost: {reason}"),
            Some(reason) => {
                format!("ZooKeeper session lost: {reason}; requests that end with it: {}", self.seats.len())
            }
        }
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
}
