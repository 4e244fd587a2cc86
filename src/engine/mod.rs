//! The engine: what a session's requests decide by, as plain data.
//!
//! Nothing here starts a thread, makes a call, reads a clock or takes a mutex. The [`Engine`] learns
//! what has happened, and answers whom to wake and what to ask the server. The session holds it under
//! one mutex, and does the rest.

pub(crate) mod lease;
mod listings;
mod own;
#[cfg(test)]
mod tests;
mod watchers;

use self::listings::Listings;
use self::own::OwnQueues;
use self::watchers::Watchers;
use crate::recipe::path::ZNodePath;

/// The number of a participant on its session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ParticipantId(u64);

/// What the participants of one session wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Engine {
    last: u64,
    watchers: Watchers,
    own: OwnQueues,
    listings: Listings,
}

/// A deletion of this session that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deleted {
    /// Whether the znode was that of an exclusive owner.
    pub(crate) has_owned: bool,
    /// Those who have registered for it.
    pub(crate) wakes: Vec<ParticipantId>,
}

impl Engine {
    pub(crate) fn new_id(&mut self) -> ParticipantId {
        self.last += 1;
        ParticipantId(self.last)
    }

    // ---- watches

    /// Registers for the next event on the path; to be called before the watch is set, so that none
    /// is missed.
    pub(crate) fn watch(&mut self, path: &ZNodePath, id: ParticipantId) {
        self.watchers.add(path, id);
    }

    pub(crate) fn unwatch(&mut self, path: &ZNodePath, id: ParticipantId) {
        self.watchers.remove(path, id);
    }

    pub(crate) fn is_watched(&self, path: &ZNodePath) -> bool {
        self.watchers.any(path)
    }

    /// The watch on the path has fired: those who have registered for it are to be woken.
    pub(crate) fn fired(&mut self, path: &ZNodePath) -> Vec<ParticipantId> {
        self.watchers.take(path)
    }

    /// The number of paths for which somebody has registered.
    pub(crate) fn watched_paths(&self) -> usize {
        self.watchers.paths()
    }

    // ---- own znodes, whose deletion needs no watch

    /// An exclusive request has this znode.
    pub(crate) fn joined(&mut self, path: &ZNodePath) {
        self.own.add(path);
    }

    /// An exclusive request owns the lock.
    pub(crate) fn owns(&mut self, path: &ZNodePath) {
        self.own.owns(path);
    }

    /// A znode is being deleted.
    pub(crate) fn leaves(&mut self, path: &ZNodePath) {
        self.own.leaves(path);
    }

    /// Whether the znode is, until its deletion is confirmed, that of an exclusive request of this
    /// session that has owned the lock.
    pub(crate) fn has_owned(&self, path: &ZNodePath) -> bool {
        self.own.has_owned(path)
    }

    /// Whether the last exclusive request of this session is still in the queue.
    pub(crate) fn is_in_queue(&self, dir: &ZNodePath) -> bool {
        self.own.last_stays(dir)
    }

    /// The znodes of the exclusive requests with this prefix.
    pub(crate) fn own_with_prefix(&self, dir: &ZNodePath, prefix: &str) -> Vec<ZNodePath> {
        self.own.with_prefix(dir, prefix)
    }

    /// Registers for the deletion of the nearest own znode before this one. Returns its path.
    pub(crate) fn watch_before(&mut self, path: &ZNodePath, id: ParticipantId) -> Option<ZNodePath> {
        let before = self.own.before(path)?;
        self.watchers.add(&before, id);
        Some(before)
    }

    /// Registers for the deletion of a znode if this session is the one to delete it. Otherwise,
    /// or if that is under way and may fail, it needs a watch.
    pub(crate) fn watch_own(&mut self, path: &ZNodePath, id: ParticipantId) -> bool {
        let stays = self.own.stays(path);
        if stays {
            self.watchers.add(path, id);
        }
        stays
    }

    /// Registers for the deletion of a znode if that is under way and was not refused.
    pub(crate) fn watch_leaving(&mut self, path: &ZNodePath, id: ParticipantId) -> bool {
        let is_leaving = self.own.is_leaving(path);
        if is_leaving {
            self.watchers.add(path, id);
        }
        is_leaving
    }

    /// A reply has shown that this session has deleted the znode.
    pub(crate) fn deleted(&mut self, path: &ZNodePath) -> Deleted {
        Deleted { has_owned: self.own.remove(path), wakes: self.watchers.take(path) }
    }

    /// The server refuses to delete the znode. Those who wait for its deletion look again, and set a
    /// watch: another client may delete it.
    pub(crate) fn deletion_refused(&mut self, path: &ZNodePath) -> Vec<ParticipantId> {
        match self.own.refuse(path) {
            true => self.watchers.take(path),
            false => Vec::new(),
        }
    }

    // ---- listings

    /// A reader asks for a listing. Returns the readers of the one to be sent now, or nobody: one is
    /// under way that was sent before, and the reader gets the next.
    pub(crate) fn ask(&mut self, dir: &ZNodePath, reader: ParticipantId) -> Vec<ParticipantId> {
        self.listings.ask(dir, reader)
    }

    /// Has a reader get the next listing that another one asks for.
    pub(crate) fn share_next(&mut self, dir: &ZNodePath, reader: ParticipantId) {
        self.listings.share_next(dir, reader);
    }

    /// Forgets a reader that needs no listing any more.
    pub(crate) fn forget_reader(&mut self, dir: &ZNodePath, reader: ParticipantId) {
        self.listings.forget(dir, reader);
    }

    /// A listing has ended. Returns the readers of the one to be sent next, if anybody has asked since.
    pub(crate) fn listed(&mut self, dir: &ZNodePath) -> Vec<ParticipantId> {
        self.listings.ended(dir)
    }

    /// How many wait for the next listing of a directory.
    #[cfg(test)]
    pub(crate) fn readers(&self, dir: &ZNodePath) -> usize {
        self.listings.readers(dir)
    }
}
