//! [`Ahead`]: what a waiter knows about the requests ahead of it, and what it does about them before its
//! turn.
//!
//! The requests ahead of a waiter can only become fewer, because each new request gets a larger number. If a listing
//! has shown only one request ahead, the deletion of that request therefore ends the wait, however old the listing is.
//! (This does not hold if another request may take the number of that request, as in a downgrade. Such a listing never
//! leads to [`Outlook::Next`].) The waiter then has two things left to find out: whether its session lives, which the
//! lease shows, and whether its own znode exists. Suppose that it has already set a watch on its own znode, on the same
//! connection. If its own znode had already been deleted, that watch would have fired first. So the next waiter in line
//! owns the lock as soon as it receives the event of its predecessor's deletion. The hand-over takes one round trip; a
//! listing would add another.
//!
//! To learn that it is the next in line, a waiter also watches the request ahead of its predecessor. When
//! that request is deleted, the waiter lists the queue, usually while its predecessor holds the lock.
//!
//! Only exclusive requests do this. Readers and writers decide from listings alone, and requests for permits watch the
//! directory. An exclusive request behind a request of the same session needs no watch at all.

use super::border::{CallId, Event};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Asked, Contender, Next, Phase, Purpose};
use super::lease::ConnectionNumber;
use super::sight::Sight;
use crate::client::Call;
use crate::error::ZkResult;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::Outlook;
use crate::time::Priority;

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ahead {
    /// The nearest request ahead, according to the last listing that contained the request's own znode.
    nearest: Option<ZNodePath>,
    /// In that listing, no other request was ahead.
    is_sole_predecessor: bool,
    /// A request that has left, and that was either the only one ahead or an exclusive owner. It counts only while it
    /// is the nearest one.
    departed: Option<(ZNodePath, LearnedBy)>,
    /// The connection on which the nearest request was seen, and has been watched since.
    pub(super) watched_on: Option<ConnectionNumber>,
    /// The request ahead of the nearest one.
    second: Option<Second>,
    /// The watch on the request's own znode.
    own: Option<OwnWatch>,
    /// The queue must be listed again: the second request may have left since the last listing or is a directory, our
    /// own znode has changed, or we reconnected without a watch on our own znode that could stand in for a listing.
    pub(super) is_outdated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Second {
    path: ZNodePath,
    /// The read that sets the watch was sent on this connection.
    is_looked_at: bool,
}

/// The message by which a request learned that another has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum LearnedBy {
    /// An event. Events come in the order of the changes. If our own znode had been deleted earlier, the event of that
    /// deletion would have come first.
    Event,
    /// A reply. The request then reads its own znode before it takes the lock.
    Reply,
}

/// A watch on the request's own znode. An event ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OwnWatch {
    /// This call, which sets the watch, is under way. Its number is needed because an event or a reconnect may end
    /// this state before the reply comes. That reply must not be taken for the reply to a later call.
    Setting(CallId),
    /// The znode was seen on this connection, and has been watched since.
    Set(ConnectionNumber),
}

/// What we know about a change of a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZNodeChange {
    /// Something may have happened to the znode, perhaps its deletion, or the server refuses to delete it.
    Unknown,
    /// An event has reported its deletion.
    Deleted,
    /// The reply to a deletion by this session has shown that the znode is gone.
    Removed {
        /// The znode's request was an exclusive owner.
        has_owned: bool,
    },
}

impl Ahead {
    /// Returns whether it is known without a listing that nobody is ahead. No request can get ahead later, so this
    /// stays true while the request's own znode exists.
    pub(super) fn is_first(&self) -> bool {
        self.departed.as_ref().is_some_and(|(departed, _)| self.nearest.as_ref() == Some(departed))
    }

    /// Returns whether the request at `path` was the only one ahead in the last listing.
    fn was_sole(&self, path: &ZNodePath) -> bool {
        self.is_sole_predecessor && self.nearest.as_ref() == Some(path)
    }

    /// Returns the request ahead of the nearest one.
    pub(super) fn second(&self) -> Option<&ZNodePath> {
        self.second.as_ref().map(|second| &second.path)
    }

    /// Returns whether a watch on the request's own znode shortens the wait.
    fn watches_own(&self) -> bool {
        self.is_sole_predecessor || self.second.is_some()
    }

    /// Returns whether the request's own znode is watched, or a call that sets the watch is under way.
    pub(super) fn has_own_watch(&self) -> bool {
        self.own.is_some()
    }

    /// Returns the connection on which the request's own znode is watched.
    pub(super) fn own_watched_on(&self) -> Option<ConnectionNumber> {
        match self.own? {
            OwnWatch::Set(on) => Some(on),
            OwnWatch::Setting(_) => None,
        }
    }

    /// Returns the present connection if events alone show that it is the request's turn: its own znode was seen on
    /// that connection and has been watched there since, and an event has shown that the last request ahead has left.
    pub(super) fn owns_by_event_on(&self, present: ConnectionNumber) -> Option<ConnectionNumber> {
        let by_event = matches!(self.departed, Some((_, LearnedBy::Event)));
        self.own_watched_on().filter(|connection| by_event && *connection == present)
    }

    /// Forgets what was seen on the last connection. If the request's own znode was watched there, and a watch on it
    /// still shortens the wait, the request rereads each znode that it had watched. These reads show what a listing
    /// would. Otherwise it lists the queue, and so does a request behind another one of its session. The requests of
    /// the session share that listing.
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
    /// Notes the requests ahead in a listing, and goes on waiting. Only exclusive requests use the outlook: writers,
    /// like readers, decide from listings alone.
    pub(super) fn wait_behind(
        &mut self,
        commons: &mut Commons,
        nearest: ZNodePath,
        outlook: Outlook<'_>,
    ) -> Next {
        // A request that shares the lock decides from listings alone.
        let uses_outlook = self.spec.access.is_exclusive();
        let second = match outlook {
            Outlook::Behind(second) if uses_outlook => Some(self.spec.dir.child(second)),
            _ => None,
        };
        let ahead = &mut self.ahead;
        ahead.nearest = uses_outlook.then(|| nearest.clone());
        ahead.is_sole_predecessor = uses_outlook && outlook == Outlook::Next;
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

    /// Waits for the deletion of the request ahead. An exclusive request needs no watch if the request ahead is an
    /// exclusive one of this session, and its deletion has not begun. A reader does need a watch, even behind a writer
    /// of this session. If another client deletes the writer's znode, the writer's request may go on waiting for the
    /// readers ahead of it. That request then wakes nobody, although the reader behind it need not wait any
    /// longer.
    pub(super) fn watch_predecessor(&mut self, commons: &mut Commons, ahead: ZNodePath) -> Next {
        if self.spec.access.is_exclusive() && commons.own_queues.is_in_queue(&ahead) {
            commons.watchers.add(&ahead, self.id);
            self.set_watched(commons, &ahead);
            self.note_place(commons, &ahead);
            return Next::Rest;
        }
        self.set_early_watches(commons);
        self.look(commons, ahead, Purpose::WaitFor)
    }

    /// Handles the read that sets the watch on the request ahead. Except for the early watches, the waiter
    /// watches no other znode. So a release wakes one waiter, or two with early watches, or the readers behind a
    /// writer.
    pub(super) fn on_predecessor_seen(
        &mut self,
        commons: &mut Commons,
        path: &ZNodePath,
        connection: ConnectionNumber,
        sight: &Sight,
    ) -> Next {
        match sight {
            Sight::Gone => {
                // The znode was deleted between the listing and the watch. The Java recipe waits forever here.
                self.forget_watch(commons);
                if commons.own_queues.has_owned(path) || self.ahead.was_sole(path) {
                    self.ahead.departed = Some((path.clone(), LearnedBy::Reply));
                }
                Next::Again
            }
            Sight::Directory => {
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

    /// Sets the early watches that are missing: on the request's own znode, and on the second request. They only
    /// shorten the wait, so no step waits for the replies.
    fn set_early_watches(&mut self, commons: &mut Commons) {
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

    /// Handles the read that sets the early watch on the request's own znode. The watch only shortens the wait, so
    /// after an error the request waits without it.
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

    /// Handles the read that sets the early watch on the second request. Here, too, the request waits without the watch
    /// after an error.
    pub(super) fn on_second_watched(
        &mut self,
        commons: &mut Commons,
        path: &ZNodePath,
        sight: ZkResult<Sight>,
    ) -> Next {
        let is_wanted = self.is_queued() && self.ahead.second() == Some(path);
        let is_directory = sight == Ok(Sight::Directory);
        let is_outdated = is_wanted && (is_directory || sight == Ok(Sight::Gone));
        if is_wanted && !matches!(sight, Ok(Sight::Watched { .. })) {
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

    /// Forgets the watch that a read has left, unless the request still needs a watch on that path.
    fn forget_if_unneeded(&self, commons: &mut Commons, path: &ZNodePath) {
        if !self.needs_watch(path) {
            commons.remove_stray_watch(path, self.id);
        }
    }

    // ---- changes

    /// Handles a change of a znode that the request waits for.
    ///
    /// Suppose that the znode of another request was deleted. If a listing had shown that request as the only
    /// one ahead, or if it had owned the lock exclusively, nobody was ahead of it. If a listing had also
    /// shown it as the nearest request ahead, nobody is between it and this request. So this request is now
    /// the first in the queue.
    pub(super) fn on_change(&mut self, commons: &mut Commons, path: &ZNodePath, change: ZNodeChange) -> Next {
        let is_own = self.znode() == Some(path);
        let is_deleted = change != ZNodeChange::Unknown;
        if is_own && is_deleted {
            // No other znode will ever have its name, so the loss is final.
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
            ahead.departed = Some((path.clone(), by));
        } else {
            return self.look_again(commons);
        }
        Next::Wake
    }
}
