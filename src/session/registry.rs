//! [`Registry`]: who is to be notified when something happens on a session, and by which watch.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::error::LossReason;
use crate::lock_order::{Mutex, rank::REGISTRY};
use crate::recipe::counter::is_ordered;
use crate::recipe::path::ZNodePath;
use crate::recipe::znode_name::generated_sequence;

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
    /// The znodes of this session's exclusive requests until they are deleted, by their directories.
    own: HashMap<ZNodePath, BTreeMap<Place, OwnZNode>>,
}

/// The place of a request's znode in the queue of its directory. A directory that is created anew
/// repeats numbers.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    sequence: i32,
    path: ZNodePath,
}

impl Place {
    /// Returns `None` if the number defines no order.
    fn of(path: &ZNodePath) -> Option<Place> {
        let sequence = generated_sequence(path.name()).filter(|sequence| is_ordered(*sequence))?;
        Some(Place { sequence, path: path.clone() })
    }
}

#[derive(Default)]
struct OwnZNode {
    /// Its request has owned the lock.
    has_owned: bool,
    /// It is being deleted.
    is_leaving: bool,
    /// The server refuses to delete it for now.
    is_refused: bool,
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
        self.table.lock().watch(path, id);
    }

    // ---- own znodes, whose deletion needs no watch

    /// Notes the znode of an exclusive request.
    pub(crate) fn joined(&self, path: &ZNodePath) {
        let (Some(place), Some(dir)) = (Place::of(path), path.parent()) else { return };
        self.table.lock().own.entry(dir).or_default().insert(place, OwnZNode::default());
    }

    /// Notes that an exclusive request owns the lock.
    pub(crate) fn owns(&self, path: &ZNodePath) {
        self.table.lock().with_own(path, |own| own.has_owned = true);
    }

    /// Notes that a znode is being deleted.
    pub(crate) fn leaves(&self, path: &ZNodePath) {
        self.table.lock().with_own(path, |own| own.is_leaving = true);
    }

    /// Whether the last exclusive request of this session is still in the queue.
    pub(crate) fn is_in_queue(&self, dir: &ZNodePath) -> bool {
        let table = self.table.lock();
        let last = table.own.get(dir).and_then(BTreeMap::last_key_value);
        last.is_some_and(|(_, own)| !own.is_leaving)
    }

    /// Registers for the deletion of the nearest own znode before this one. Returns its path.
    pub(crate) fn watch_before(&self, path: &ZNodePath, id: ParticipantId) -> Option<ZNodePath> {
        let mut table = self.table.lock();
        let (before, own) = table.own.get(path.dir()?)?.range(..Place::of(path)?).next_back()?;
        let before = (!own.is_leaving).then(|| before.path.clone())?;
        table.watch(&before, id);
        Some(before)
    }

    /// Registers for the deletion of a znode if this session is the one to delete it. Otherwise,
    /// or if that is under way and may fail, it needs a watch.
    pub(crate) fn watch_own(&self, path: &ZNodePath, id: ParticipantId) -> bool {
        let mut table = self.table.lock();
        let mut stays = false;
        table.with_own(path, |own| stays = !own.is_leaving);
        if stays {
            table.watch(path, id);
        }
        stays
    }

    /// Registers for the deletion of a znode if that is under way and was not refused.
    pub(crate) fn watch_leaving(&self, path: &ZNodePath, id: ParticipantId) -> bool {
        let mut table = self.table.lock();
        let mut is_leaving = false;
        table.with_own(path, |own| is_leaving = own.is_leaving && !own.is_refused);
        if is_leaving {
            table.watch(path, id);
        }
        is_leaving
    }

    /// Whether the znode is, until its deletion is confirmed, that of an exclusive request of this
    /// session that has owned the lock.
    pub(crate) fn has_owned(&self, path: &ZNodePath) -> bool {
        let mut has_owned = false;
        self.table.lock().with_own(path, |own| has_owned = own.has_owned);
        has_owned
    }

    /// Notifies those who wait for the deletion of the znode, which is done.
    pub(crate) fn deleted(&self, path: &ZNodePath) {
        let (has_owned, watching) = {
            let mut table = self.table.lock();
            (table.remove_own(path), table.take_watching(path))
        };
        for participant in watching {
            participant.znode_changed(path, ZNodeChange::Removed { has_owned });
        }
    }

    /// The server refuses to delete the znode. Those who wait for its deletion look again, and set a
    /// watch: another client may delete it.
    pub(crate) fn deletion_refused(&self, path: &ZNodePath) {
        let watching = {
            let mut table = self.table.lock();
            let mut is_news = false;
            table.with_own(path, |own| {
                own.is_leaving = true;
                is_news = !std::mem::replace(&mut own.is_refused, true);
            });
            if is_news { table.take_watching(path) } else { Vec::new() }
        };
        for participant in watching {
            participant.notify(Notification::LookAgain);
        }
    }

    /// The znodes of the exclusive requests with this prefix.
    pub(crate) fn own_with_prefix(&self, dir: &ZNodePath, prefix: &str) -> Vec<ZNodePath> {
        let table = self.table.lock();
        let queue = table.own.get(dir).into_iter().flat_map(BTreeMap::keys);
        queue.map(|place| &place.path).filter(|path| path.name().starts_with(prefix)).cloned().collect()
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
        self.table.lock().take_watching(path)
    }
}

impl Table {
    fn watch(&mut self, path: &ZNodePath, id: ParticipantId) {
        let watching = self.watching.entry(path.clone()).or_default();
        if !watching.contains(&id) {
            watching.push(id);
        }
    }

    fn take_watching(&mut self, path: &ZNodePath) -> Vec<Arc<dyn Participant>> {
        let ids = self.watching.remove(path).unwrap_or_default();
        ids.iter().filter_map(|id| self.all.get(id).cloned()).collect()
    }

    fn with_own(&mut self, path: &ZNodePath, change: impl FnOnce(&mut OwnZNode)) {
        let queue = path.dir().and_then(|dir| self.own.get_mut(dir));
        let own = queue.zip(Place::of(path)).and_then(|(queue, place)| queue.get_mut(&place));
        if let Some(own) = own {
            change(own);
        }
    }

    /// Removes an own znode. Returns whether its request has owned the lock.
    fn remove_own(&mut self, path: &ZNodePath) -> bool {
        let (Some(dir), Some(place)) = (path.dir(), Place::of(path)) else { return false };
        let Some(queue) = self.own.get_mut(dir) else { return false };
        let own = queue.remove(&place);
        if queue.is_empty() {
            self.own.remove(dir);
        }
        own.is_some_and(|own| own.has_owned)
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
