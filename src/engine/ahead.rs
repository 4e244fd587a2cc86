//! [`Ahead`]: what a waiting request knows of those ahead of it, and what it does about them before
//! its turn comes.
//!
//! The requests ahead of one can only become fewer: a new one gets a larger number. So a listing in
//! which only one request was ahead is as good later, and the deletion of that request ends the wait.
//! The request has then two things left to find out: that its session lives, which the lease says,
//! and that its own znode exists. A watch that was set on that before, on the same connection,
//! would have fired first if it did not. So the next request in line owns with the event of the
//! deletion, after one round trip, where a listing would take another.
//!
//! To learn that it is the next one, a request also watches the one ahead of its predecessor. When
//! that is deleted, it lists the queue, while its predecessor holds the lock.
//!
//! A request that shares the lock does none of this. Neither does one behind a request of the same session,
//! which needs no watch. One whose client is not ordered sets no watches in advance: it looks at its own
//! znode after the event.

use super::border::{CallId, Event};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Asked, Contender, Next, Phase, Purpose};
use super::lease::ConnectionNumber;
use super::sight::Sight;
use crate::client::port::Call;
use crate::error::ZkResult;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::Outlook;
use crate::time::Priority;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ahead {
    /// The nearest request in a listing that has shown this one.
    nearest: Option<ZNodePath>,
    /// No other request was ahead in that listing.
    is_sole_predecessor: bool,
    /// A request that has left and was the only one ahead, or an exclusive owner. It counts while it is
    /// the nearest one.
    departed: Option<(ZNodePath, LearnedBy)>,
    /// The connection on which the nearest one was seen and is watched since.
    pub(super) watched_on: Option<ConnectionNumber>,
    /// The request ahead of the nearest.
    second: Option<Second>,
    /// The watch on the own znode.
    own: Option<OwnWatch>,
    /// The next step is to list: the second one has left since the last listing, the own znode has changed,
    /// or contact was lost while no watch on the own znode could stand in for a listing.
    pub(super) is_outdated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Second {
    path: ZNodePath,
    /// A look has been sent there on this connection.
    is_looked_at: bool,
}

/// The message by which a request learned that another has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LearnedBy {
    /// Events come in the order of the changes: if the own znode had been deleted before, that event
    /// would have come first.
    Event,
    /// A client may deliver it before the events of earlier changes.
    Reply,
}

/// A watch on the own znode. An event ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnWatch {
    /// The look that sets it is under way. The reply to an earlier one may come after the event that
    /// ended its watch.
    Setting(CallId),
    /// The znode was seen on this connection, and is watched since.
    Set(ConnectionNumber),
}

/// A change of a znode, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZNodeChange {
    /// Something may have happened: an event of a deletion or anything else, or the server refuses to delete
    /// it.
    Unknown,
    /// An event of its deletion.
    Deleted,
    /// A reply showed that this session has deleted it.
    Removed {
        /// It was that of an exclusive owner.
        has_owned: bool,
    },
}

impl Ahead {
    /// Returns whether nobody is ahead: no request can get there, so this stays true while the own znode
    /// exists.
    pub(super) fn is_first(&self) -> bool {
        self.departed.as_ref().is_some_and(|(departed, _)| self.nearest.as_ref() == Some(departed))
    }

    /// Returns whether nobody else was ahead in the last listing.
    fn was_sole(&self, path: &ZNodePath) -> bool {
        self.is_sole_predecessor && self.nearest.as_ref() == Some(path)
    }

    /// The request ahead of the nearest.
    pub(super) fn second(&self) -> Option<&ZNodePath> {
        self.second.as_ref().map(|second| &second.path)
    }

    /// Returns whether a watch on the own znode shortens the wait.
    fn watches_own(&self) -> bool {
        self.is_sole_predecessor || self.second.is_some()
    }

    /// Returns whether the own znode is watched, or about to be.
    pub(super) fn has_own_watch(&self) -> bool {
        self.own.is_some()
    }

    /// The connection on which the own znode is watched.
    pub(super) fn own_watched_on(&self) -> Option<ConnectionNumber> {
        match self.own? {
            OwnWatch::Set(on) => Some(on),
            OwnWatch::Setting(_) => None,
        }
    }

    /// The present connection, if all that decides is known from its events: the own znode was seen
    /// and is watched there since, and an event has shown that the last request ahead has left.
    pub(super) fn owns_by_event_on(&self, present: ConnectionNumber) -> Option<ConnectionNumber> {
        let by_event = matches!(self.departed, Some((_, LearnedBy::Event)));
        self.own_watched_on().filter(|connection| by_event && *connection == present)
    }

    /// Notes that a request has left that owned the lock exclusively, or that nobody else was
    /// ahead. Then no other is between it and this one.
    fn note_departed(&mut self, path: &ZNodePath, by: LearnedBy) {
        self.departed = Some((path.clone(), by));
    }

    /// Nothing that was seen on the last connection counts any more. A request that was seen itself there
    /// looks again at each znode that it had watched, which shows what a listing would. A request behind
    /// one of its session watches none, and lists: they share it.
    pub(super) fn on_reconnect(&mut self, is_behind_own: bool) {
        self.is_outdated |= is_behind_own || self.own_watched_on().is_none() || !self.watches_own();
        self.watched_on = None;
        self.own = None;
        if let Some(second) = &mut self.second {
            second.is_looked_at = false;
        }
    }
}

impl Contender {
    /// Notes the requests ahead in a listing, and goes on waiting.
    pub(super) fn wait_behind(
        &mut self,
        commons: &mut Commons,
        nearest: ZNodePath,
        outlook: Outlook<'_>,
    ) -> Next {
        // A request that shares the lock decides by listings alone.
        let may_know = self.spec.access.is_exclusive();
        let second = match outlook {
            Outlook::Behind(second) if may_know => Some(self.spec.dir.child(second)),
            _ => None,
        };
        let ahead = &mut self.ahead;
        ahead.nearest = may_know.then(|| nearest.clone());
        ahead.is_sole_predecessor = may_know && outlook == Outlook::Next;
        ahead.is_outdated = false;
        let mut replaced = None;
        if ahead.second() != second.as_ref() {
            let second = second.map(|path| Second { path, is_looked_at: false });
            replaced = std::mem::replace(&mut ahead.second, second);
        }
        let present = commons.lease.connection();
        let still_watches = self.watched.as_ref() == Some(&nearest) && ahead.watched_on == Some(present);
        self.unwatch_unneeded(commons, replaced.map(|second| second.path));
        if self.ahead.is_first() {
            return Next::Again;
        }
        if still_watches {
            self.set_early_watches(commons);
            return Next::Rest;
        }
        self.watch_predecessor(commons, nearest)
    }

    /// Waits for the deletion of the request ahead. An exclusive request needs no watch if that is of this
    /// session. One that shares the lock does: another client may delete that znode, and its request
    /// may wait on for one that does not exclude this one.
    pub(super) fn watch_predecessor(&mut self, commons: &mut Commons, ahead: ZNodePath) -> Next {
        if self.spec.access.is_exclusive() && commons.own_queues.stays(&ahead) {
            commons.watchers.add(&ahead, self.id);
            self.set_watched(commons, &ahead);
            self.note_place(commons, &ahead);
            return Next::Rest;
        }
        self.set_early_watches(commons);
        self.look(commons, ahead, Purpose::WaitFor)
    }

    /// Takes up the watch on the request ahead, the only one that is watched: a release wakes one
    /// waiter, or the readers behind a writer.
    pub(super) fn on_predecessor_seen(
        &mut self,
        commons: &mut Commons,
        path: &ZNodePath,
        connection: ConnectionNumber,
        sight: &Sight,
    ) -> Next {
        match sight {
            Sight::Gone => {
                // Deleted between the listing and the watch. The Java recipe waits for ever here.
                self.forget_watch(commons);
                if commons.own_queues.has_owned(path) || self.ahead.was_sole(path) {
                    self.ahead.note_departed(path, LearnedBy::Reply);
                }
                Next::Again
            }
            Sight::Watched { is_directory: true, .. } => {
                self.forget_watch(commons);
                self.pass_over(commons, path);
                Next::Again
            }
            Sight::Watched { is_persistent, .. } => {
                self.note_place(commons, path);
                self.ahead.watched_on = Some(connection);
                if *is_persistent && commons.mentions_first(path) {
                    commons.report(Event::Persistent(path.clone()));
                }
                Next::Rest
            }
            Sight::Unreadable => {
                self.note_place(commons, path);
                Next::Rest
            }
        }
    }

    // ---- early watches

    /// Sets the watches that are to shorten the wait and are missing: on the own znode, and on the
    /// second request. Nothing waits for the replies.
    fn set_early_watches(&mut self, commons: &mut Commons) {
        if !commons.settings.is_ordered {
            return;
        }
        let Phase::Queued { znode, .. } = &self.phase else { return };
        if self.ahead.watches_own() && self.ahead.own.is_none() {
            let asked = Asked::WatchOwn(znode.clone(), commons.lease.connection());
            self.ahead.own = Some(OwnWatch::Setting(self.watch_early(commons, znode, asked)));
        }
        if let Some(Second { path, is_looked_at: false }) = &self.ahead.second {
            let path = path.clone();
            self.watch_early(commons, &path, Asked::WatchSecond(path.clone()));
            self.ahead.second = Some(Second { path, is_looked_at: true });
        }
    }

    fn watch_early(&self, commons: &mut Commons, path: &ZNodePath, asked: Asked) -> CallId {
        commons.watchers.add(path, self.id);
        commons.submit(Call::get_data(path, true), Priority::Other, Pending::Request(self.id, asked))
    }

    /// Takes up a look at the own znode. It only shortens the wait: after an error the request waits
    /// without.
    pub(super) fn on_own_watched(
        &mut self,
        commons: &mut Commons,
        path: &ZNodePath,
        call: CallId,
        connection: ConnectionNumber,
        sight: ZkResult<Sight>,
    ) -> Next {
        let is_wanted = self.is_queued() && self.ahead.own == Some(OwnWatch::Setting(call));
        if is_wanted {
            let is_watched = matches!(sight, Ok(Sight::Watched { .. }));
            self.ahead.own = is_watched.then_some(OwnWatch::Set(connection));
        }
        self.forget_if_unneeded(commons, path);
        if is_wanted && sight == Ok(Sight::Gone) { self.lose_znode(commons) } else { Next::Stay }
    }

    /// Takes up a look at the second request, as one at the own znode.
    pub(super) fn on_second_watched(
        &mut self,
        commons: &mut Commons,
        path: &ZNodePath,
        sight: ZkResult<Sight>,
    ) -> Next {
        let is_wanted = self.is_queued() && self.ahead.second() == Some(path);
        let is_directory = matches!(sight, Ok(Sight::Watched { is_directory: true, .. }));
        let is_outdated = is_wanted && (is_directory || sight == Ok(Sight::Gone));
        if is_wanted && (is_directory || !matches!(sight, Ok(Sight::Watched { .. }))) {
            self.ahead.second = None;
        }
        self.ahead.is_outdated |= is_outdated;
        self.forget_if_unneeded(commons, path);
        if !is_outdated {
            return Next::Stay;
        }
        if is_directory {
            self.pass_over(commons, path);
        }
        Next::Wake
    }

    /// Forgets a watch that a look has left, unless another look at the same path, or another watch
    /// there, is needed.
    fn forget_if_unneeded(&self, commons: &mut Commons, path: &ZNodePath) {
        if !self.needs_watch(path) {
            commons.remove_stray_watch(path, self.id);
        }
    }

    // ---- changes

    /// Takes up a change of a znode for which the request had registered.
    ///
    /// A request that was the only one ahead in a listing, or that has owned exclusively, had nobody ahead of
    /// it. If a listing has shown it as the nearest one, nobody is between the two, and this one is the first.
    pub(super) fn on_change(&mut self, commons: &mut Commons, path: &ZNodePath, change: ZNodeChange) -> Next {
        let is_own = self.znode() == Some(path);
        let is_deleted = change != ZNodeChange::Unknown;
        if is_own && is_deleted {
            // No other znode will ever have its name, so this is final.
            return self.lose_znode(commons);
        }
        if !self.is_queued() {
            return self.look_again(commons);
        }
        let ahead = &mut self.ahead;
        let is_last = ahead.was_sole(path) || change == (ZNodeChange::Removed { has_owned: true });
        if is_own {
            ahead.own = None;
            ahead.is_outdated = true;
        } else if ahead.second() == Some(path) {
            ahead.second = None;
            ahead.is_outdated = true;
        } else if self.watched.as_ref() == Some(path) && is_deleted && is_last {
            self.watched = None;
            ahead.watched_on = None;
            let by = if change == ZNodeChange::Deleted { LearnedBy::Event } else { LearnedBy::Reply };
            ahead.note_departed(path, by);
        } else {
            return self.look_again(commons);
        }
        Next::Wake
    }
}
