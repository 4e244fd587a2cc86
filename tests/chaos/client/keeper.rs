//! Keeps a session: connects one, and another one after a loss, as an application would.

use std::sync::Arc;

use parking_lot::Mutex;
use zookeeper_recipes_lock::{Session, SessionState};

use super::contender::class_of;
use super::journal::Journal;
use crate::plan::{SESSION_TIMEOUT, TICK};

pub struct Keeper {
    servers: String,
    session: Mutex<Option<Session>>,
    journal: Arc<Journal>,
}

impl Keeper {
    pub fn new(servers: &str, journal: &Arc<Journal>) -> Arc<Keeper> {
        Arc::new(Keeper {
            servers: servers.to_owned(),
            session: Mutex::new(None),
            journal: Arc::clone(journal),
        })
    }

    /// The session, a new one if needed. `None` if no server could be reached.
    pub fn session(&self) -> Option<Session> {
        let mut kept = self.session.lock();
        if let Some(session) = kept.as_ref().filter(|session| session.state() != SessionState::Lost) {
            return Some(session.clone());
        }
        *kept = None;
        let builder = Session::builder(&self.servers).session_timeout(SESSION_TIMEOUT).max_tick(TICK);
        match builder.connect() {
            Ok(session) => {
                assert_eq!(
                    session.session_timeout(),
                    SESSION_TIMEOUT,
                    "the server grants the requested timeout"
                );
                self.journal.note("main", "connected");
                *kept = Some(session.clone());
                Some(session)
            }
            Err(error) => {
                self.journal.note("main", &format!("unreachable error={}", class_of(&error)));
                None
            }
        }
    }

    /// Closes the current session, even if other threads use it.
    pub fn close(&self) {
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.close();
            self.journal.note("main", "closed");
        }
    }
}
