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
//! A request that shares the lock, or that may have two znodes, does none of this. Neither does one
//! behind a request of the same session, which needs no watch. One whose client blocks sets no
//! watches in advance: it looks at its own znode after the event.

use std::sync::Arc;

use super::steps::Next;
use super::{Phase, Request, State};
use crate::client::Call;
use crate::engine::lease::ConnectionNumber;
use crate::error::ZkResult;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::Outlook;
use crate::session::{Listing, Task, WatchOutcome, ZNodeChange};
use crate::time::Priority;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Ahead {
    /// The nearest request in a listing that has shown this one.
    nearest: Option<ZNodePath>,
    /// No other request was ahead in that listing.
    is_only_one: bool,
    /// The nearest request, which has left: it was the only one, or an exclusive owner.
    left: Option<(ZNodePath, LearnedBy)>,
    /// The connection on which the nearest one was seen and is watched since.
    pub(super) watched_on: Option<ConnectionNumber>,
    /// The request ahead of the nearest, with `true` once it is registered for.
    second: Option<(ZNodePath, bool)>,
    /// The watch on the own znode.
    own: Option<OwnWatch>,
    /// The number of the last one.
    last_own: u64,
    /// The second one has left since the last listing.
    pub(super) is_outdated: bool,
}

/// How a request learned that another has left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LearnedBy {
    /// Events come in the order of the changes: if the own znode had been deleted before, that event
    /// would have come first.
    Event,
    /// A client may deliver it before the events of earlier changes.
    Reply,
}

/// A watch on the own znode. An event ends it, and the next one has another number: the reply to a
/// look may come after the event that ended its watch.
struct OwnWatch {
    number: u64,
    /// The connection on which the znode was seen and is watched since.
    on: Option<ConnectionNumber>,
}

/// A watch that is being set.
enum Preparation {
    Own(ZNodePath, u64),
    Second(ZNodePath),
}

impl Preparation {
    fn path(&self) -> &ZNodePath {
        match self {
            Preparation::Own(path, _) | Preparation::Second(path) => path,
        }
    }
}

impl Ahead {
    /// Whether nobody is ahead: no request can get there, so this stays true while the own znode
    /// exists.
    pub(super) fn is_nobody(&self) -> bool {
        self.left.as_ref().is_some_and(|(left, _)| self.nearest.as_ref() == Some(left))
    }

    /// Whether nobody else was ahead in the last listing.
    pub(super) fn is_only_one(&self, path: &ZNodePath) -> bool {
        self.is_only_one && self.nearest.as_ref() == Some(path)
    }

    /// The request ahead of the nearest, if it is watched.
    pub(super) fn second(&self) -> Option<&ZNodePath> {
        self.second.as_ref().filter(|(_, is_registered)| *is_registered).map(|(path, _)| path)
    }

    /// The connection on which the own znode is watched.
    fn own_watched_on(&self) -> Option<ConnectionNumber> {
        self.own.as_ref()?.on
    }

    /// The present connection, if all that decides is known from its events: the own znode was seen
    /// and is watched there since, and an event has shown that the last request ahead has left.
    pub(super) fn owns_by_event_on(&self, present: ConnectionNumber) -> Option<ConnectionNumber> {
        let by_event = matches!(self.left, Some((_, LearnedBy::Event)));
        self.own_watched_on().filter(|connection| by_event && *connection == present)
    }

    /// Notes that a request has left that owned the lock exclusively, or that nobody else was
    /// ahead. Then no other is between it and this one.
    pub(super) fn left(&mut self, path: &ZNodePath, by: LearnedBy) {
        self.left = Some((path.clone(), by));
    }
}

impl State {
    /// The watches that are to be set, which are then under way.
    fn missing_watches(&mut self) -> Vec<Preparation> {
        let Phase::Queued { znode, .. } = &self.phase else { return Vec::new() };
        let Ahead { is_only_one, second, own, last_own, .. } = &mut self.ahead;
        let mut missing = Vec::new();
        if (*is_only_one || second.is_some()) && own.is_none() {
            *last_own += 1;
            *own = Some(OwnWatch { number: *last_own, on: None });
            missing.push(Preparation::Own(znode.clone(), *last_own));
        }
        if let Some((second, is_registered @ false)) = second {
            *is_registered = true;
            missing.push(Preparation::Second(second.clone()));
        }
        missing
    }

    /// Takes note of a watch that was set on this connection, or was not. Returns whether it is
    /// still wanted.
    fn end_preparation(&mut self, watch: &Preparation, watched_on: Option<ConnectionNumber>) -> bool {
        if !matches!(self.phase, Phase::Queued { .. }) {
            return false;
        }
        let is_wanted = match watch {
            Preparation::Own(_, number) => self.ahead.own.as_ref().is_some_and(|own| own.number == *number),
            Preparation::Second(path) => self.ahead.second() == Some(path),
        };
        match watch {
            _ if !is_wanted => {}
            Preparation::Own(_, number) => {
                self.ahead.own = watched_on.map(|on| OwnWatch { number: *number, on: Some(on) });
            }
            Preparation::Second(_) if watched_on.is_none() => self.ahead.second = None,
            Preparation::Second(_) => {}
        }
        is_wanted
    }

    /// Whether a watch on this path is set, or is being set.
    fn needs(&self, path: &ZNodePath) -> bool {
        let is_own = matches!(&self.phase, Phase::Queued { znode, .. } if znode == path);
        self.watched.as_ref() == Some(path)
            || self.ahead.second() == Some(path)
            || (is_own && self.ahead.own.is_some())
    }

    /// Whether the watch on the nearest request stands.
    fn still_watches(&self, nearest: &ZNodePath, connection: ConnectionNumber) -> bool {
        self.watched.as_ref() == Some(nearest) && self.ahead.watched_on == Some(connection)
    }
}

impl Request {
    /// Notes the requests ahead in a listing, and goes on waiting.
    pub(super) fn wait_behind(self: &Arc<Self>, znode: &ZNodePath, nearest: &str, listing: &Listing) -> Next {
        let dir = &self.spec.dir;
        let outlook = listing
            .children
            .as_ref()
            .map_or(Outlook::Unclear, |children| listing.outlook(self.spec.access, znode.name(), children));
        let nearest = dir.child(nearest);
        let (has_left, still_watches) = {
            let mut state = self.state.lock();
            // A request that may have two znodes, or that shares the lock, decides by listings
            // alone.
            let may_know = self.spec.access.is_exclusive() && !state.reply_lost;
            state.ahead.nearest = may_know.then(|| nearest.clone());
            state.ahead.is_only_one = may_know && outlook == Outlook::Next;
            state.ahead.is_outdated = false;
            let second = match outlook {
                Outlook::Behind(second) if may_know => Some(dir.child(second)),
                _ => None,
            };
            self.replace_second(&mut state, second);
            (state.ahead.is_nobody(), state.still_watches(&nearest, listing.connection))
        };
        match (has_left, still_watches) {
            (true, _) => Next::Again,
            (false, true) => {
                self.prepare();
                Next::Park
            }
            (false, false) => self.wait_for(nearest),
        }
    }

    fn replace_second(&self, state: &mut State, second: Option<ZNodePath>) {
        let is_same = state.ahead.second.as_ref().map(|(path, _)| path) == second.as_ref();
        if is_same {
            return;
        }
        let before = std::mem::replace(&mut state.ahead.second, second.map(|path| (path, false)));
        if let Some((before, true)) = before {
            self.core.engine().unwatch(&before, self.id);
        }
    }

    /// Sets the watches that are to shorten the wait and are missing: on the own znode, and on the
    /// second request. Nothing waits for the replies.
    pub(super) fn prepare(self: &Arc<Self>) {
        if !self.core.is_ordered() {
            return;
        }
        let connection = self.core.connection();
        let missing = self.state.lock().missing_watches();
        for watch in missing {
            self.core.engine().watch(watch.path(), self.id);
            let look = Call::get_data(watch.path(), true);
            let request = Arc::clone(self);
            self.core.send(Priority::Other, look, move |outcome| {
                request.prepared(&watch, connection, &WatchOutcome::of_data(outcome));
            });
        }
    }

    /// Takes up a look at the own znode, or at the second request. It only shortens the wait: after
    /// an error the request waits without.
    fn prepared(
        self: &Arc<Self>,
        watch: &Preparation,
        connection: ConnectionNumber,
        sight: &ZkResult<WatchOutcome>,
    ) {
        let is_watched = matches!(sight, Ok(WatchOutcome::Watched { .. }));
        let is_gone = *sight == Ok(WatchOutcome::Gone);
        let (is_wanted, is_needed) = {
            let mut state = self.state.lock();
            let is_wanted = state.end_preparation(watch, is_watched.then_some(connection));
            state.ahead.is_outdated |= is_wanted && is_gone;
            // A newer look at the same path may be under way, or another watch there be needed.
            let is_needed = state.needs(watch.path());
            if !is_needed {
                self.core.engine().unwatch(watch.path(), self.id);
            }
            (is_wanted, is_needed)
        };
        if !is_needed {
            self.core.remove_unwanted_watch(watch.path());
        }
        if is_wanted && is_gone {
            Arc::clone(self).wake();
        }
    }

    /// Forgets all watches: they have ended with their connection, or with the request.
    pub(super) fn forget_watches(&self, state: &mut State) {
        self.forget_watch(state);
        if let Some((second, true)) = state.ahead.second.take() {
            self.core.engine().unwatch(&second, self.id);
        }
        if state.ahead.own.take().is_some() {
            if let Phase::Queued { znode, .. } = &state.phase {
                self.core.engine().unwatch(znode, self.id);
            }
        }
    }

    /// Keeps the watch on the own znode for the owner that the request has become, and forgets the
    /// others.
    pub(super) fn keep_own_watch(&self, state: &mut State, znode: &ZNodePath, connection: ConnectionNumber) {
        let mut engine = self.core.engine();
        if let Some(second) = state.ahead.second() {
            engine.unwatch(second, self.id);
        }
        let was_looked_at = state.watched.as_ref() == Some(znode);
        if was_looked_at || state.ahead.own_watched_on() == Some(connection) {
            let before = state.watched.replace(znode.clone()).filter(|before| before != znode);
            before.iter().for_each(|before| engine.unwatch(before, self.id));
        } else if state.ahead.own.is_some() {
            engine.unwatch(znode, self.id);
        }
        state.ahead = Ahead::default();
    }

    /// Takes note of a change of a znode for which the request had registered. Returns true if the
    /// caller need only wake the request.
    pub(super) fn take_change(&self, path: &ZNodePath, change: ZNodeChange) -> bool {
        let is_deleted = change != ZNodeChange::Unknown;
        let mut state = self.state.lock();
        let (is_own, is_waiting) = match &state.phase {
            Phase::Queued { znode, .. } => (znode == path, true),
            Phase::Owner { znode, .. } => (znode == path, false),
            Phase::Joining(_) | Phase::Ended { .. } => return false,
        };
        if is_own && is_deleted {
            // No other znode will ever have its name, so this is final.
            state.is_deleted = true;
            return true;
        }
        if !is_waiting {
            return false;
        }
        if is_own {
            state.ahead.own = None;
            state.ahead.is_outdated = true;
            return true;
        }
        if state.ahead.second() == Some(path) {
            state.ahead.second = None;
            state.ahead.is_outdated = true;
            return true;
        }
        let is_last = state.ahead.is_only_one(path) || change == ZNodeChange::Removed { has_owned: true };
        if state.watched.as_ref() == Some(path) && is_deleted && is_last {
            state.watched = None;
            state.ahead.watched_on = None;
            let by = if change == ZNodeChange::Deleted { LearnedBy::Event } else { LearnedBy::Reply };
            state.ahead.left(path, by);
            return true;
        }
        false
    }
}
