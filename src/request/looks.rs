//! The looks of a request: at the queue, at the request ahead, at its own znode.

use std::sync::Arc;
use std::time::Duration;

use super::ahead::LearnedBy;
use super::steps::Next;
use super::{Event, Phase, Request, State};
use crate::client::Call;
use crate::engine::lease::{Admission, ConnectionNumber};
use crate::error::{LockError, Operation, ZkError, ZkResult};
use crate::logging;
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::queue::{Decision, count_ahead, find_duplicate};
use crate::recipe::revocation;
use crate::session::events::{self, Joined, LockAcquired};
use crate::session::{Listing, Task, WatchOutcome};

/// About how long, and no longer, a lock must be held before its znode is looked at. This saves a
/// short hold a round trip. A deletion by another client is noticed after this delay plus one server
/// notification.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// The interval between looks at an unreadable znode, whose watch the server may not report.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

/// The interval between checks for a proof of the session's life, for a request whose turn has
/// come.
const LEASE_LOOK: Duration = Duration::from_millis(100);

/// What follows from a look at a znode, at this path and on this connection.
type AfterLook = fn(&Arc<Request>, ZNodePath, ConnectionNumber, WatchOutcome) -> Next;

impl Request {
    /// Acts on the listing that was asked for, or asks for one, which wakes the request.
    pub(super) fn evaluate(self: &Arc<Self>, znode: &ZNodePath, may_own: bool) -> Next {
        let listing = self.state.lock().listing.take();
        if let Some(listing) = listing {
            return self.decide(znode, &listing);
        }
        self.core.list_for(&self.spec.dir, self.id, may_own);
        Next::Park
    }

    pub(super) fn decide(self: &Arc<Self>, znode: &ZNodePath, listing: &Listing) -> Next {
        let children = match &listing.children {
            Ok(children) => children,
            Err(ZkError::NoNode) => &Names::default(),
            Err(error) => return self.look_failed(Operation::LIST, &self.spec.dir, *error),
        };
        let may_be_doubled = self.state.lock().reply_lost;
        let find = || find_duplicate(&self.spec.prefix, znode.name(), children);
        if let Some(duplicate) = may_be_doubled.then(find).flatten() {
            return self.delete_duplicate(duplicate);
        }
        match listing.decide(self.spec.access, znode.name(), children) {
            Decision::Owner => {
                self.warn_of_peers(znode, children);
                self.acquire(znode, listing.connection)
            }
            Decision::Exhausted => {
                self.fail(LockError::SequenceExhausted { path: znode.to_string() });
                Next::Park
            }
            Decision::WaitFor(nearest) => {
                self.note_number_ahead(znode, children);
                self.wait_behind(znode, nearest, listing)
            }
            Decision::Full => {
                self.note_number_ahead(znode, children);
                self.wait_for_any(znode)
            }
            Decision::Missing => {
                self.lose_znode();
                Next::Park
            }
        }
    }

    /// Counts the requests ahead in the first listing, for an event.
    fn note_number_ahead(&self, znode: &ZNodePath, children: &Names) {
        if self.core.events().is_some() {
            let count = count_ahead(znode.name(), children);
            self.state.lock().number_ahead.get_or_insert(count);
        }
    }

    /// Waits for any of the requests ahead to leave. A listing that left no watch is repeated with
    /// one.
    fn wait_for_any(self: &Arc<Self>, znode: &ZNodePath) -> Next {
        let dir = &self.spec.dir;
        self.placed(dir);
        let is_watched = self.state.lock().watched.as_ref() == Some(dir);
        if is_watched { Next::Park } else { self.count(znode.clone()) }
    }

    /// Counts the requests ahead, in a listing that leaves a watch on the children of the directory.
    /// Only a request whose number decides does so, and only the first that waits: a lock in front
    /// of the directory spares it a herd.
    pub(super) fn count(self: &Arc<Self>, znode: ZNodePath) -> Next {
        let dir = self.spec.dir.clone();
        let connection = self.core.connection();
        {
            let mut state = self.state.lock();
            if !matches!(state.phase, Phase::Queued { .. }) {
                return Next::Park;
            }
            state.watched = Some(dir.clone());
        }
        self.core.engine().watch(&dir, self.id);
        self.call(Call::get_children(&dir, true), move |request, children| {
            // The request may have ended, or been woken, during the call.
            let is_watched = request.state.lock().watched.as_ref() == Some(&dir);
            if !is_watched {
                request.core.remove_watch(&dir, request.id);
            }
            let next = request.decide(&znode, &Listing::new(connection, children));
            if matches!(request.state.lock().phase, Phase::Owner { .. }) {
                request.leave_directory(&dir);
            }
            next
        })
    }

    /// Removes the watch on the children of the directory, which an owner does not need.
    fn leave_directory(&self, dir: &ZNodePath) {
        let was_watched = self.state.lock().watched.take_if(|watched| watched == dir).is_some();
        if was_watched {
            self.core.remove_watch(dir, self.id);
        }
    }

    /// Takes the lock, which a listing on that connection has shown to be free.
    pub(super) fn acquire(self: &Arc<Self>, znode: &ZNodePath, connection: ConnectionNumber) -> Next {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Queued { .. }) {
            return Next::Park;
        }
        match self.core.admit(self.id, &self.ownership, connection) {
            Admission::Admitted => {}
            Admission::Unproven => {
                drop(state);
                return self.block(Request::await_lease);
            }
            // Contact was lost since: the listing may be older, and the znode gone.
            Admission::Outdated => return Next::Again,
        }
        state.phase = Phase::Owner { znode: znode.clone(), revocation_reported: false };
        self.core.engine().owns(znode);
        self.observer.post(Event::Acquired);
        self.post_acquired(&mut state, znode);
        state.listing = None;
        self.keep_own_watch(&mut state, znode, connection);
        state.unreadable = 0;
        state.awaited = None;
        drop(state);
        self.core.deliver_events();
        logging::info!("acquired {znode}");
        self.wake_after_about(OWN_WATCH_DELAY);
        Next::Park
    }

    /// Posts the event of an acquisition at this moment.
    pub(super) fn post_acquired(&self, state: &mut State, znode: &ZNodePath) {
        let now = self.core.now();
        let waited = now.since(std::mem::replace(&mut state.since, now));
        self.core.post_event(|| {
            events::Event::Acquired(LockAcquired { lock: self.lock_of_event(Some(znode)), waited })
        });
    }

    /// It is this request's turn, but the session is not proven alive for long enough. A proof
    /// needs a request and its confirmation. Blocks.
    fn await_lease(self: &Arc<Self>) -> Next {
        if let Err(error) = self.core.prove_life() {
            return self.look_failed(Operation::WATCH, &self.spec.dir, error);
        }
        if !self.core.admits_owners() {
            self.wake_after(LEASE_LOOK);
            return Next::Park;
        }
        Next::Again
    }

    /// Takes the lock from a predecessor of this session, which owned it and is deleted. No request
    /// was between the two in a listing, and none can get there. So all that is left to see is that
    /// the own znode exists.
    pub(super) fn take_over(
        self: &Arc<Self>,
        znode: ZNodePath,
        connection: ConnectionNumber,
        sight: WatchOutcome,
    ) -> Next {
        if sight == WatchOutcome::Gone {
            self.lose_znode();
            return Next::Park;
        }
        self.acquire(&znode, connection)
    }

    /// Waits for the deletion of the request ahead. An exclusive request needs no watch if that is of this
    /// session. One that shares the lock does: another client may delete that znode, and its request
    /// may wait on for one that does not exclude this one.
    pub(super) fn wait_for(self: &Arc<Self>, ahead: ZNodePath) -> Next {
        let needs_watch = !self.spec.access.is_exclusive() || !self.core.engine().watch_own(&ahead, self.id);
        if needs_watch {
            self.prepare();
            return self.watch(ahead, Request::waits_for);
        }
        if self.set_watched(&ahead) {
            self.placed(&ahead);
        }
        Next::Park
    }

    /// Notes for which znode the request has registered; `false` when it has ended meanwhile.
    pub(super) fn set_watched(&self, path: &ZNodePath) -> bool {
        let mut state = self.state.lock();
        let is_waiting = matches!(state.phase, Phase::Queued { .. });
        state.ahead.watched_on = None;
        let before = match is_waiting {
            true => state.watched.replace(path.clone()).filter(|before| before != path),
            false => Some(path.clone()),
        };
        if let Some(before) = before {
            self.core.engine().unwatch(&before, self.id);
        }
        is_waiting
    }

    /// Takes up the watch on the request ahead, the only one that is watched: a release wakes one
    /// waiter, or the readers behind a writer.
    pub(super) fn waits_for(
        self: &Arc<Self>,
        ahead: ZNodePath,
        connection: ConnectionNumber,
        sight: WatchOutcome,
    ) -> Next {
        if sight == WatchOutcome::Gone {
            // Deleted between the listing and the watch. The Java recipe waits for ever here.
            let has_owned = self.core.engine().has_owned(&ahead);
            let mut state = self.state.lock();
            self.forget_watch(&mut state);
            if has_owned || state.ahead.is_only_one(&ahead) {
                state.ahead.left(&ahead, LearnedBy::Reply);
            }
            return Next::Again;
        }
        self.placed(&ahead);
        let is_persistent = matches!(sight, WatchOutcome::Watched { is_persistent: true, .. });
        if is_persistent && self.core.mentions_first(&ahead) {
            logging::warn!("requests wait for {ahead}, which is persistent: no session's end deletes it");
        }
        if matches!(sight, WatchOutcome::Watched { .. }) {
            self.state.lock().ahead.watched_on = Some(connection);
        }
        Next::Park
    }

    /// Records that the request is behind another.
    pub(super) fn placed(&self, ahead: &ZNodePath) {
        let mut state = self.state.lock();
        let Phase::Queued { seen, znode } = &mut state.phase else { return };
        let is_news = !std::mem::replace(seen, true);
        let znode = znode.clone();
        state.unreadable = 0;
        state.awaited = None;
        if is_news {
            self.core.post_event(|| {
                let lock = self.lock_of_event(Some(&znode));
                events::Event::Joined(Joined {
                    lock,
                    waits_for: ahead.to_string(),
                    ahead: state.number_ahead,
                })
            });
        }
        drop(state);
        if is_news {
            self.core.deliver_events();
            logging::debug!("{znode} waits for {ahead}");
        }
    }

    /// A create whose reply was lost took effect after all, beside its repetition. Its znode would
    /// block others, or this request.
    fn delete_duplicate(self: &Arc<Self>, name: &str) -> Next {
        let duplicate = self.spec.dir.child(name);
        logging::warn!("deleting {duplicate}, a second znode of one request");
        self.call(Call::delete(&duplicate, None), move |request, outcome| match outcome {
            Ok(()) | Err(ZkError::NoNode) => Next::Again,
            Err(error) => request.look_failed(Operation::DELETE, &duplicate, error),
        })
    }

    /// Takes up the watch on an owner's znode: takes over the session's current epoch if it still
    /// exists.
    pub(super) fn verified(
        self: &Arc<Self>,
        _znode: ZNodePath,
        connection: ConnectionNumber,
        sight: WatchOutcome,
    ) -> Next {
        match sight {
            WatchOutcome::Gone => self.lose_znode(),
            _ if !self.core.renew(self.id, connection) => self.lose_lease(),
            WatchOutcome::Watched { data, version, .. } if revocation::is_requested(&data, version) => {
                self.report_revocation();
            }
            WatchOutcome::Watched { .. } | WatchOutcome::Unreadable => {}
        }
        Next::Park
    }

    /// Notifies the owner, once, that another client asks for the lock.
    fn report_revocation(&self) {
        let mut state = self.state.lock();
        let Phase::Owner { znode, revocation_reported } = &mut state.phase else { return };
        if std::mem::replace(revocation_reported, true) {
            return;
        }
        self.observer.post(Event::RevocationRequested);
        let znode = znode.clone();
        drop(state);
        logging::info!("somebody asks to release {znode}");
    }

    /// Looks at a znode and leaves a watch there.
    pub(super) fn watch(self: &Arc<Self>, path: ZNodePath, then: AfterLook) -> Next {
        let connection = self.core.connection();
        let before = {
            let mut state = self.state.lock();
            if matches!(state.phase, Phase::Ended { .. }) {
                return Next::Park;
            }
            state.ahead.watched_on = None;
            state.watched.replace(path.clone())
        };
        if let Some(before) = before.filter(|before| *before != path) {
            self.core.engine().unwatch(&before, self.id);
        }
        self.core.engine().watch(&path, self.id);
        self.call(Call::get_data(&path, true), move |request, outcome| match outcome {
            Err(ZkError::NoAuth) => request.watch_unreadable(path, connection, then),
            outcome => request.watched(path, connection, WatchOutcome::of_data(outcome), then),
        })
    }

    fn watch_unreadable(
        self: &Arc<Self>,
        path: ZNodePath,
        connection: ConnectionNumber,
        then: AfterLook,
    ) -> Next {
        self.call(Call::exists(&path, true), move |request, outcome| {
            request.watched(path, connection, WatchOutcome::of_exists(outcome), then)
        })
    }

    fn watched(
        self: &Arc<Self>,
        path: ZNodePath,
        connection: ConnectionNumber,
        sight: ZkResult<WatchOutcome>,
        then: AfterLook,
    ) -> Next {
        // The request may have ended, or been woken, during the call, which had registered it
        // again.
        let is_watched = self.state.lock().watched.as_ref() == Some(&path);
        // A look at an unreadable znode that has gone leaves a watch on its creation.
        if !is_watched || sight == Ok(WatchOutcome::Gone) {
            self.core.remove_watch(&path, self.id);
        }
        match sight {
            Ok(sight) => {
                if sight == WatchOutcome::Unreadable {
                    self.wake_after(UNREADABLE_LOOK);
                }
                then(self, path, connection, sight)
            }
            Err(error) => self.look_failed(Operation::WATCH, &path, error),
        }
    }
}
