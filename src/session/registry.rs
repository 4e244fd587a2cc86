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

/// Something on a session that is notified of its changes: a lock request, a watch loop, or a
/// pending deletion.
pub(crate) trait Participant: Send + Sync {
    /// Must return at once: work that blocks goes to the session's workers.
    fn notify(self: Arc<Self>, why: Notification);

    /// The watch on this path, for which it has registered, fired. `is_deleted` is `false` where the
    /// client does not know.
    fn znode_changed(self: Arc<Self>, _path: &ZNodePath, _is_deleted: bool) {
        self.notify(Notification::LookAgain);
    }

    /// The znode at this path, for which it has registered, was deleted. It was that of an
    /// exclusive owner of this session.
    fn owner_left(self: Arc<Self>, _path: &ZNodePath) {
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
    /// The znodes of this session's exclusive requests until they are deleted, by their directories
    /// and numbers.
    own: HashMap<ZNodePath, BTreeMap<i32, OwnZNode>>,
}

struct OwnZNode {
    path: ZNodePath,
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
        let (Some((_, sequence)), Some(dir)) = (place(path), path.parent()) else { return };
        let own = OwnZNode { path: path.clone(), has_owned: false, is_leaving: false, is_refused: false };
        self.table.lock().own.entry(dir).or_default().insert(sequence, own);
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
        let (dir, sequence) = place(path)?;
        let mut table = self.table.lock();
        let (_, before) = table.own.get(dir)?.range(..sequence).next_back()?;
        let before = (!before.is_leaving).then(|| before.path.clone())?;
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
            match has_owned {
                true => participant.owner_left(path),
                false => participant.notify(Notification::LookAgain),
            }
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
        let queue = table.own.get(dir).into_iter().flat_map(BTreeMap::values);
        queue.filter(|own| own.path.name().starts_with(prefix)).map(|own| own.path.clone()).collect()
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
        let own = place(path).and_then(|(dir, sequence)| self.own.get_mut(dir)?.get_mut(&sequence));
        // A directory that is created anew counts from zero again.
        if let Some(own) = own.filter(|own| own.path == *path) {
            change(own);
        }
    }

    /// Removes an own znode. Returns whether its request has owned the lock.
    fn remove_own(&mut self, path: &ZNodePath) -> bool {
        let mut has_owned = None;
        self.with_own(path, |own| has_owned = Some(own.has_owned));
        if let Some((dir, sequence)) = has_owned.and_then(|_| place(path)) {
            if let Some(queue) = self.own.get_mut(dir) {
                queue.remove(&sequence);
                if queue.is_empty() {
                    self.own.remove(dir);
                }
            }
        }
        has_owned == Some(true)
    }
}

/// The directory and the number of a request's znode, if the number defines an order.
fn place(path: &ZNodePath) -> Option<(&str, i32)> {
    let sequence = generated_sequence(path.name())?;
    is_ordered(sequence).then(|| path.dir().map(|dir| (dir, sequence))).flatten()
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
