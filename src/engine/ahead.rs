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

use super::calls::{CallId, Pending};
use super::contender::{Next, Phase};
use super::lease::ConnectionNumber;
use super::{Engine, ParticipantId, Sight};
use crate::client::{Call, Stat};
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
    pub(super) fn is_sole_predecessor(&self, path: &ZNodePath) -> bool {
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
    pub(super) fn note_departed(&mut self, path: &ZNodePath, by: LearnedBy) {
        self.departed = Some((path.clone(), by));
    }

    /// Nothing that was seen on the last connection counts any more. A request that was seen itself there
    /// looks again at each znode that it had watched, which shows what a listing would. A request behind
    /// one of its session watches none, and lists: they share it.
    pub(super) fn reconnected(&mut self, is_behind_own: bool) {
        self.is_outdated |= is_behind_own || self.own_watched_on().is_none() || !self.watches_own();
        self.watched_on = None;
        self.own = None;
        if let Some(second) = &mut self.second {
            second.is_looked_at = false;
        }
    }
}

impl Engine {
    /// Notes the requests ahead in a listing, and goes on waiting.
    pub(super) fn wait_behind(
        &mut self,
        id: ParticipantId,
        nearest: ZNodePath,
        outlook: Outlook<'_>,
    ) -> Next {
        let present = self.lease.connection();
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        // A request that shares the lock decides by listings alone.
        let may_know = contender.spec.access.is_exclusive();
        let second = match outlook {
            Outlook::Behind(second) if may_know => Some(contender.spec.dir.child(second)),
            _ => None,
        };
        let ahead = &mut contender.ahead;
        ahead.nearest = may_know.then(|| nearest.clone());
        ahead.is_sole_predecessor = may_know && outlook == Outlook::Next;
        ahead.is_outdated = false;
        let mut replaced = None;
        if ahead.second() != second.as_ref() {
            let second = second.map(|path| Second { path, is_looked_at: false });
            replaced = std::mem::replace(&mut ahead.second, second);
        }
        let still_watches = contender.watched.as_ref() == Some(&nearest) && ahead.watched_on == Some(present);
        let is_first = ahead.is_first();
        if let Some(replaced) = replaced.filter(|replaced| !self.needs_watch(id, &replaced.path)) {
            self.unwatch(&replaced.path, id);
        }
        if is_first {
            return Next::Again;
        }
        if still_watches {
            self.set_early_watches(id);
            return Next::Park;
        }
        self.watch_predecessor(id, nearest)
    }

    /// Sets the watches that are to shorten the wait and are missing: on the own znode, and on the
    /// second request. Nothing waits for the replies.
    pub(super) fn set_early_watches(&mut self, id: ParticipantId) {
        if !self.settings.is_ordered {
            return;
        }
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let Phase::Queued { znode, .. } = &contender.phase else { return };
        let connection = self.lease.connection();
        let ahead = &mut contender.ahead;
        let own = (ahead.watches_own() && ahead.own.is_none()).then(|| znode.clone());
        let second = match &mut ahead.second {
            Some(Second { path, is_looked_at: is_looked_at @ false }) => {
                *is_looked_at = true;
                Some(path.clone())
            }
            _ => None,
        };
        if let Some(own) = own {
            self.watchers.add(&own, id);
            let look = Call::get_data(&own, true);
            let call = self.submit(look, Priority::Other, Pending::EarlyWatchOnOwn(id, own, connection));
            if let Some(contender) = self.contenders.get_mut(&id) {
                contender.ahead.own = Some(OwnWatch::Setting(call));
            }
        }
        if let Some(second) = second {
            self.watchers.add(&second, id);
            let look = Call::get_data(&second, true);
            self.submit(look, Priority::Other, Pending::EarlyWatchOnSecond(id, second));
        }
    }

    /// Takes up a look at the own znode. It only shortens the wait: after an error the request waits
    /// without.
    pub(super) fn early_watch_on_own_set(
        &mut self,
        id: ParticipantId,
        path: &ZNodePath,
        call: CallId,
        connection: ConnectionNumber,
        outcome: ZkResult<(Vec<u8>, Stat)>,
    ) {
        let sight = Sight::of_data(outcome);
        let waiting = self.contenders.get_mut(&id).filter(|contender| contender.is_queued());
        let wanted = waiting.filter(|contender| contender.ahead.own == Some(OwnWatch::Setting(call)));
        let is_lost = wanted.is_some_and(|contender| {
            let is_watched = matches!(sight, Ok(Sight::Watched { .. }));
            contender.ahead.own = is_watched.then_some(OwnWatch::Set(connection));
            sight == Ok(Sight::Gone)
        });
        self.forget_if_unneeded(id, path);
        if is_lost {
            self.lose_znode(id);
        }
    }

    /// Takes up a look at the second request, as one at the own znode.
    pub(super) fn early_watch_on_second_set(
        &mut self,
        id: ParticipantId,
        path: &ZNodePath,
        outcome: ZkResult<(Vec<u8>, Stat)>,
    ) {
        let sight = Sight::of_data(outcome);
        let waiting = self.contenders.get_mut(&id).filter(|contender| contender.is_queued());
        let wanted = waiting.filter(|contender| contender.ahead.second() == Some(path));
        let is_directory = matches!(sight, Ok(Sight::Watched { is_directory: true, .. }));
        let is_outdated = wanted.is_some_and(|contender| {
            if is_directory || !matches!(sight, Ok(Sight::Watched { .. })) {
                contender.ahead.second = None;
            }
            let is_outdated = is_directory || sight == Ok(Sight::Gone);
            contender.ahead.is_outdated |= is_outdated;
            is_outdated
        });
        self.forget_if_unneeded(id, path);
        if is_outdated {
            if is_directory {
                self.pass_over(id, path);
            }
            self.wake(id);
        }
    }

    /// Forgets a watch that a look has left, unless another look at the same path, or another watch
    /// there, is needed.
    fn forget_if_unneeded(&mut self, id: ParticipantId, path: &ZNodePath) {
        if !self.needs_watch(id, path) {
            self.remove_stray_watch(path, id);
        }
    }

    /// Returns whether a request waits for an event on a path, for whatever purpose.
    pub(super) fn needs_watch(&self, id: ParticipantId, path: &ZNodePath) -> bool {
        self.contenders.get(&id).is_some_and(|contender| {
            let has_own = contender.is_queued() && contender.ahead.own.is_some();
            contender.watched.as_ref() == Some(path)
                || contender.ahead.second() == Some(path)
                || (has_own && contender.znode() == Some(path))
        })
    }

    /// Takes up a change of a znode for which a request had registered.
    ///
    /// A request that was the only one ahead in a listing, or that has owned exclusively, had nobody ahead of
    /// it. If a listing has shown it as the nearest one, nobody is between the two, and this one is the first.
    pub(super) fn znode_changed(&mut self, id: ParticipantId, path: &ZNodePath, change: ZNodeChange) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let is_own = contender.znode() == Some(path);
        let is_deleted = change != ZNodeChange::Unknown;
        if is_own && is_deleted {
            // No other znode will ever have its name, so this is final.
            return self.lose_znode(id);
        }
        if !contender.is_queued() {
            return self.look_again(id);
        }
        let ahead = &mut contender.ahead;
        let is_last = ahead.is_sole_predecessor(path) || change == (ZNodeChange::Removed { has_owned: true });
        if is_own {
            ahead.own = None;
            ahead.is_outdated = true;
        } else if ahead.second() == Some(path) {
            ahead.second = None;
            ahead.is_outdated = true;
        } else if contender.watched.as_ref() == Some(path) && is_deleted && is_last {
            contender.watched = None;
            ahead.watched_on = None;
            let by = if change == ZNodeChange::Deleted { LearnedBy::Event } else { LearnedBy::Reply };
            ahead.note_departed(path, by);
        } else {
            return self.look_again(id);
        }
        self.wake(id);
    }
}
