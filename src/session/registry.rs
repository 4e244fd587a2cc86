//! [`Registry`]: who is to be notified when something happens on a session, and by which watch.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::error::LossReason;
use crate::lock_order::{Mutex, rank::REGISTRY};
use crate::recipe::path::ZNodePath;

/// Why a participant is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// A watch that it registered fired, or a time that it asked for has come.
    LookAgain,
    /// Some time has passed: a watch may be gone without an event.
    Routine,
    /// Contact was lost. Nothing can be done but to log it.
    Suspended,
    /// Contact was lost and is back: every watch is gone and must be set again.
    Reconnected,
    /// A lease may have ended.
    CheckLease,
    /// The session has ended; nothing further comes.
    SessionEnded(LossReason),
}

/// Something on a session that is notified of its changes: a lock request, a watch loop, or a
/// pending deletion.
pub(crate) trait Participant: Send + Sync {
    /// Must return at once: work that blocks goes to the session's workers.
    fn notify(self: Arc<Self>, why: Notification);
}

/// A participant's number on its session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ParticipantId(u64);

/// The participants of one session. One watch on a path serves all who wait for it.
#[derive(Default)]
pub(crate) struct Registry {
    table: Mutex<REGISTRY, Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// In the order in which they joined, which is the order in which they are woken.
    all: BTreeMap<ParticipantId, Arc<dyn Participant>>,
    watching: HashMap<ZNodePath, Vec<ParticipantId>>,
}

impl Registry {
    pub(crate) fn new_id(&self) -> ParticipantId {
        let mut table = self.table.lock();
        table.next += 1;
        ParticipantId(table.next)
    }

    pub(crate) fn add(&self, id: ParticipantId, participant: Arc<dyn Participant>) {
        self.table.lock().all.insert(id, participant);
    }

    pub(crate) fn remove(&self, id: ParticipantId) {
        let removed = self.table.lock().all.remove(&id);
        // Outside the lock: it may be the last handle.
        drop(removed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.lock().all.is_empty()
    }

    pub(crate) fn everybody(&self) -> Vec<Arc<dyn Participant>> {
        self.table.lock().all.values().cloned().collect()
    }

    /// Registers for the next event on the path; to be called before the watch is set, so that none
    /// is missed.
    pub(crate) fn watch(&self, path: &ZNodePath, id: ParticipantId) {
        let mut table = self.table.lock();
        let watching = table.watching.entry(path.clone()).or_default();
        if !watching.contains(&id) {
            watching.push(id);
        }
    }

    pub(crate) fn unwatch(&self, path: &ZNodePath, id: ParticipantId) {
        let mut table = self.table.lock();
        if let Some(watching) = table.watching.get_mut(path) {
            watching.retain(|other| *other != id);
            if watching.is_empty() {
                table.watching.remove(path);
            }
        }
    }

    pub(crate) fn is_watched(&self, path: &ZNodePath) -> bool {
        self.table.lock().watching.contains_key(path)
    }

    /// Takes out those who registered for the path.
    pub(crate) fn take_watching(&self, path: &ZNodePath) -> Vec<Arc<dyn Participant>> {
        let mut table = self.table.lock();
        let ids = table.watching.remove(path).unwrap_or_default();
        ids.iter().filter_map(|id| table.all.get(id).cloned()).collect()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, watched_paths) = {
            let table = self.table.lock();
            (table.all.len(), table.watching.len())
        };
        f.debug_struct("Registry").field("all", &all).field("watched_paths", &watched_paths).finish()
    }
}
