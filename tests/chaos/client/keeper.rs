//! Keeps a session: connects one, and another one after a loss, as an application would.

use std::sync::Arc;

use parking_lot::Mutex;
use zookeeper_recipes_lock::{CohortLock, CohortOptions, LockOptions, Session, SessionState};

use super::contender::class_of;
use super::journal::Journal;
use crate::plan::{LOCKS, RAISED_TIMEOUT, SEMAPHORE, SESSION_TIMEOUT, TICK};

pub struct Keeper {
    servers: String,
    kept: Mutex<Option<Kept>>,
    journal: Arc<Journal>,
}

/// A session, and the locks that its threads share.
struct Kept {
    session: Session,
    cohort_locks: Vec<CohortLock>,
}

impl Kept {
    fn new(session: Session) -> Kept {
        let lock = |dir: &&str| {
            let options = CohortOptions::new().max_handovers(8);
            CohortLock::with_options(&session, dir, LockOptions::new(), options).expect("the path is fine")
        };
        Kept { cohort_locks: LOCKS[..SEMAPHORE].iter().map(lock).collect(), session }
    }
}

impl Keeper {
    pub fn new(servers: &str, journal: &Arc<Journal>) -> Arc<Keeper> {
        Arc::new(Keeper { servers: servers.to_owned(), kept: Mutex::new(None), journal: Arc::clone(journal) })
    }

    /// The session, a new one if needed. `None` if no server could be reached.
    pub fn session(&self) -> Option<Session> {
        let mut kept = self.kept.lock();
        if let Some(kept) = kept.as_ref().filter(|kept| kept.session.state() != SessionState::Lost) {
            return Some(kept.session.clone());
        }
        *kept = None;
        // More than a server grants, unless it was restarted under a larger limit.
        let builder = Session::builder(&self.servers).session_timeout(RAISED_TIMEOUT).max_tick(TICK);
        match builder.connect() {
            Ok(session) => {
                let granted = session.session_timeout();
                assert!([SESSION_TIMEOUT, RAISED_TIMEOUT].contains(&granted), "a server grants {granted:?}");
                self.journal.note("main", "connected");
                *kept = Some(Kept::new(session.clone()));
                Some(session)
            }
            Err(error) => {
                self.journal.note("main", &format!("unreachable error={}", class_of(&error)));
                None
            }
        }
    }

    /// The current session, and a lock that its threads share.
    pub fn cohort_lock(&self, lock: usize) -> Option<(Session, CohortLock)> {
        self.kept.lock().as_ref().map(|kept| (kept.session.clone(), kept.cohort_locks[lock].clone()))
    }

    /// Closes the current session, even if other threads use it.
    pub fn close(&self) {
        let kept = self.kept.lock().take();
        if let Some(Kept { session, .. }) = kept {
            session.close();
            self.journal.note("main", "closed");
        }
    }
}
