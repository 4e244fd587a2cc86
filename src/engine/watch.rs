//! The watches of a request, and the reads that set them.

use super::border::{Event, RequestEvent};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Asked, Contender, Next, Phase, Purpose, WatchedRead};
use super::lease::ConnectionNumber;
use crate::client::Call;
use crate::client::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::mismatch;

impl Contender {
    /// Reads the request's own znode, and leaves a watch there.
    pub(super) fn look_at_own(&mut self, commons: &mut Commons, purpose: Purpose) -> Next {
        match self.znode().cloned() {
            Some(znode) => self.look(commons, znode, purpose),
            None => Next::Rest,
        }
    }

    /// Reads a znode, and leaves a watch there.
    pub(super) fn look(&mut self, commons: &mut Commons, path: ZNodePath, purpose: Purpose) -> Next {
        self.set_watched(commons, &path);
        commons.watchers.add(&path, self.id);
        let get = Call::get_data(&path, true);
        let asked = Asked::Data(WatchedRead { path, connection: commons.lease.connection(), purpose });
        commons.submit(get, self.priority(), Pending::Request(self.id, asked));
        Next::Stay
    }

    /// Notes that from now on a change of this znode wakes the request, and a change of the previous one no
    /// longer does.
    pub(super) fn set_watched(&mut self, commons: &mut Commons, path: &ZNodePath) {
        self.ahead.watched_on = None;
        let before = self.watched.replace(path.clone());
        self.unwatch_unneeded(commons, before);
    }

    pub(super) fn forget_watch(&mut self, commons: &mut Commons) {
        self.ahead.watched_on = None;
        let watched = self.watched.take();
        self.unwatch_unneeded(commons, watched);
    }

    pub(super) fn unwatch_unneeded(&self, commons: &mut Commons, path: Option<ZNodePath>) {
        if let Some(path) = path.filter(|path| !self.needs_watch(path)) {
            commons.unwatch(&path, self.id);
        }
    }

    /// Returns whether the request waits for an event on a path, for whatever purpose.
    pub(super) fn needs_watch(&self, path: &ZNodePath) -> bool {
        let needs_own = self.is_queued() && self.ahead.has_own_watch();
        self.watched.as_ref() == Some(path)
            || self.ahead.second() == Some(path)
            || (needs_own && self.znode() == Some(path))
    }

    /// Prepares the watches for a request that becomes the owner: keeps the watch on its own znode, if there is one,
    /// and removes those on the requests ahead.
    pub(super) fn keep_own_watch(
        &mut self,
        commons: &mut Commons,
        znode: &ZNodePath,
        connection: ConnectionNumber,
    ) {
        let ahead = std::mem::take(&mut self.ahead);
        let was_looked_at = self.watched.as_ref() == Some(znode);
        let mut unwatched: Vec<ZNodePath> = ahead.second().cloned().into_iter().collect();
        if was_looked_at || ahead.own_watched_on() == Some(connection) {
            unwatched.extend(self.watched.replace(znode.clone()).filter(|before| before != znode));
        }
        for path in unwatched {
            commons.unwatch(&path, self.id);
        }
    }

    /// Looks again because something has happened to a znode that the request waits for.
    pub(super) fn look_again(&mut self, commons: &mut Commons) -> Next {
        // If this session is deleting the znode ahead, the reply to that deletion will say more than the event.
        let ahead = self.watched.as_ref().filter(|_| self.is_queued());
        if let Some(leaving) = ahead.filter(|ahead| commons.own_queues.is_leaving(ahead)) {
            commons.watchers.add(leaving, self.id);
            return Next::Stay;
        }
        self.forget_watch(commons);
        Next::Wake
    }

    /// Notes that a request is ahead of this one, and reports it the first time.
    pub(super) fn note_place(&mut self, commons: &mut Commons, ahead: &ZNodePath) {
        let Phase::Queued { is_behind, .. } = &mut self.phase else { return };
        self.unreadable = 0;
        if !std::mem::replace(is_behind, true) {
            let number_ahead = self.number_ahead;
            self.report(commons, RequestEvent::Placed { ahead: ahead.clone(), number_ahead });
        }
    }

    /// Notes that a znode ahead is a directory, for which the request no longer waits.
    pub(super) fn pass_over(&mut self, commons: &mut Commons, directory: &ZNodePath) {
        self.directories.insert(directory.name().to_owned());
        if commons.mentions_first(directory) {
            commons.report(Event::Directory(directory.clone()));
        }
    }

    /// Reports a request that may own the lock at the same time as this one, once per session and directory.
    /// The children are those of `dir`.
    pub(super) fn warn_of_peers(&self, commons: &mut Commons, dir: &ZNodePath, children: &Names) {
        let Some(mismatch) = self.znode().and_then(|znode| mismatch(znode.name(), children)) else { return };
        if commons.mentions_first(dir) {
            commons.report(Event::Peers { dir: dir.clone(), mismatch });
        }
    }
}
