//! Keeps a session open: connects one, and another one after a loss, as an application would.

use std::sync::Arc;

use parking_lot::Mutex;
use zookeeper_recipes_lock::client::KerberosConfig;
use zookeeper_recipes_lock::locks::{CohortLock, CohortOptions};
use zookeeper_recipes_lock::{LockOptions, Session, SessionBuilder, SessionState};

use super::contender::class_of;
use super::journal::Journal;
use super::orders::Orders;
use crate::certificates;
use crate::plan::{LOCKS, RAISED_TIMEOUT, SEMAPHORE, SESSION_TIMEOUT, TICK, has_tickets, uses_tls};

/// The servers have this name whatever address a client reaches them by.
const SERVER_PRINCIPAL: &str = "zookeeper/127.0.0.1";

pub struct Keeper {
    builder: SessionBuilder,
    /// How the journal refers to a new session.
    connected: &'static str,
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
    pub fn new(orders: &Orders, journal: &Arc<Journal>) -> Arc<Keeper> {
        // More than a server grants, unless it was restarted with a larger limit.
        let builder = Session::builder(&orders.servers).session_timeout(RAISED_TIMEOUT).max_tick(TICK);
        let (builder, connected) = match has_tickets(orders.index) {
            true => {
                let config = KerberosConfig::new().server_principal(SERVER_PRINCIPAL);
                (builder.kerberos(config), "authenticated")
            }
            false => (builder, "connected"),
        };
        let builder = match uses_tls(orders.index) {
            true => builder.tls(certificates::of_client(&orders.certificates)),
            false => builder,
        };
        Arc::new(Keeper { builder, connected, kept: Mutex::new(None), journal: Arc::clone(journal) })
    }

    /// Returns the session, opening a new one if needed. Returns `None` if no server can be reached.
    pub fn session(&self) -> Option<Session> {
        let mut kept = self.kept.lock();
        if let Some(kept) = kept.as_ref().filter(|kept| kept.session.state() != SessionState::Lost) {
            return Some(kept.session.clone());
        }
        *kept = None;
        match self.builder.clone().connect() {
            Ok(session) => {
                let granted = session.session_timeout();
                assert!([SESSION_TIMEOUT, RAISED_TIMEOUT].contains(&granted), "a server granted {granted:?}");
                self.journal.note("main", self.connected);
                *kept = Some(Kept::new(session.clone()));
                Some(session)
            }
            Err(error) => {
                self.journal.note("main", &format!("unreachable error={}", class_of(&error)));
                None
            }
        }
    }

    /// Returns the current session, and a lock that its threads share.
    pub fn cohort_lock(&self, lock: usize) -> Option<(Session, CohortLock)> {
        self.kept.lock().as_ref().map(|kept| (kept.session.clone(), kept.cohort_locks[lock].clone()))
    }

    /// Closes the current session even if other threads are using it.
    pub fn close(&self) {
        let kept = self.kept.lock().take();
        if let Some(Kept { session, .. }) = kept {
            session.close();
            self.journal.note("main", "closed");
        }
    }
}
