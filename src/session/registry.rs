//! [`Registry`]: who is to be notified when something happens on a session, and by which watch.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::listings::Listing;
use crate::engine::{Engine, ParticipantId};
use crate::error::LossReason;
use crate::lock_order::{Mutex, MutexGuard, rank::REGISTRY};
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

/// What is known of a change of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZNodeChange {
    /// An event, of a deletion or anything else.
    Unknown,
    /// An event of its deletion.
    Deleted,
    /// A reply showed that this session has deleted it.
    Removed {
        /// It was that of an exclusive owner.
        has_owned: bool,
    },
}

/// Something on a session that is notified of its changes: a lock request, a watch loop, or a
/// pending deletion.
pub(crate) trait Participant: Send + Sync {
    /// Must return at once: work that blocks goes to the session's workers.
    fn notify(self: Arc<Self>, why: Notification);

    /// The znode at this path, for which it has registered, has changed.
    fn znode_changed(self: Arc<Self>, _path: &ZNodePath, _change: ZNodeChange) {
        self.notify(Notification::LookAgain);
    }

    /// Takes a listing that was sent after it was asked for.
    fn take_listing(&self, _listing: &Arc<Listing>) {}

    /// Decides by the listing. Must return at once.
    fn decide(self: Arc<Self>) {}
}

/// The participants of one session, and the engine that decides for them.
#[derive(Default)]
pub(crate) struct Registry {
    table: Mutex<REGISTRY, Table>,
}

#[derive(Default)]
struct Table {
    /// In the order in which they joined, which is the order in which they are woken.
    all: BTreeMap<ParticipantId, Arc<dyn Participant>>,
    engine: Engine,
}

/// Access to the engine of a session.
pub(crate) struct EngineGuard<'a>(MutexGuard<'a, REGISTRY, Table>);

impl Registry {
    pub(crate) fn engine(&self) -> EngineGuard<'_> {
        EngineGuard(self.table.lock())
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

    pub(crate) fn get(&self, ids: &[ParticipantId]) -> Vec<Arc<dyn Participant>> {
        self.table.lock().get(ids)
    }

    /// Takes out those who registered for the path, as its watch has fired.
    pub(crate) fn take_watching(&self, path: &ZNodePath) -> Vec<Arc<dyn Participant>> {
        let mut table = self.table.lock();
        let wakes = table.engine.fired(path);
        table.get(&wakes)
    }

    /// Notifies those who wait for the deletion of the znode, which is done.
    pub(crate) fn deleted(&self, path: &ZNodePath) {
        let (has_owned, watching) = {
            let mut table = self.table.lock();
            let deleted = table.engine.deleted(path);
            (deleted.has_owned, table.get(&deleted.wakes))
        };
        for participant in watching {
            participant.znode_changed(path, ZNodeChange::Removed { has_owned });
        }
    }

    /// The server refuses to delete the znode.
    pub(crate) fn deletion_refused(&self, path: &ZNodePath) {
        let watching = {
            let mut table = self.table.lock();
            let wakes = table.engine.deletion_refused(path);
            table.get(&wakes)
        };
        for participant in watching {
            participant.notify(Notification::LookAgain);
        }
    }
}

impl Table {
    fn get(&self, ids: &[ParticipantId]) -> Vec<Arc<dyn Participant>> {
        ids.iter().filter_map(|id| self.all.get(id).cloned()).collect()
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.0.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.0.engine
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, watched_paths) = {
            let table = self.table.lock();
            (table.all.len(), table.engine.watched_paths())
        };
        f.debug_struct("Registry").field("all", &all).field("watched_paths", &watched_paths).finish()
    }
}
