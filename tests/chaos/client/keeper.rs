//! Keeps a session: connects one, and another when it is lost, as an application would.

use std::sync::Arc;

use parking_lot::Mutex;
use zookeeper_recipes_lock::{Session, SessionState};

use super::contender::class_of;
use super::journal::Journal;
use crate::plan::SESSION_TIMEOUT;

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

    /// The session, a new one if need be; `None` when no server could be reached.
    pub fn session(&self) -> Option<Session> {
        let mut kept = self.session.lock();
        if let Some(session) = kept.as_ref().filter(|session| session.state() != SessionState::Lost) {
            return Some(session.clone());
        }
        *kept = None;
        match Session::connect(&self.servers, SESSION_TIMEOUT) {
            Ok(session) => {
                assert_eq!(session.session_timeout(), SESSION_TIMEOUT, "what the server grants");
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

    /// Closes the session in use, whoever else uses it.
    pub fn close(&self) {
        let session = self.session.lock().take();
        if let Some(session) = session {
            session.close();
            self.journal.note("main", "closed");
        }
    }
}
