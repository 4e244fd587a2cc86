//! The looks of a request: at the queue, at the request ahead, at its own znode.

use std::sync::Arc;
use std::time::Duration;

use super::ahead::LearnedBy;
use super::calls::Pending;
use super::contender::{Contender, Look, Next, Phase, Purpose};
use super::lease::{Admission, ConnectionNumber};
use super::listing::Listing;
use super::report::{Failure, Line, Report};
use super::{Effect, Engine, ParticipantId, Sight};
use crate::client::{Call, Stat};
use crate::error::{Operation, ZkError, ZkResult};
use crate::recipe::names::Names;
use crate::recipe::path::ZNodePath;
use crate::recipe::peers::mismatch;
use crate::recipe::queue::{Decision, count_ahead};
use crate::recipe::revocation;
use crate::time::Priority;

/// About how long, and no longer, a lock must be held before its znode is looked at. This saves a
/// short hold a round trip. A deletion by another client is noticed after this delay plus one server
/// notification.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// The interval between the times that requests share, so that thousands of them a second that end
/// before their time cost the timer few wake-ups.
const SHARED_STEP: Duration = Duration::from_millis(10);

/// The interval between looks at an unreadable znode, whose watch the server may not report.
const UNREADABLE_LOOK: Duration = Duration::from_secs(1);

/// The largest number of znodes that are remembered as mentioned in the log.
const MAX_MENTIONED: usize = 1000;

impl Engine {
    // ---- listings

    /// Acts on the listing that was asked for, or asks for one, which wakes the request.
    ///
    /// One that `expects_lock` has a proof made at once, which it will need to own.
    pub(super) fn evaluate(&mut self, id: ParticipantId, expects_lock: bool) -> Next {
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        if let Some(listing) = contender.listing.take() {
            return self.decide(id, &listing);
        }
        let dir = contender.spec.dir.clone();
        let readers = self.listings.ask(&dir, id);
        if !readers.is_empty() {
            if expects_lock {
                self.prove_beside();
            }
            self.list(dir, readers);
        }
        Next::Park
    }

    fn list(&mut self, dir: ZNodePath, readers: Vec<ParticipantId>) {
        let connection = self.lease.connection();
        let list = Call::get_children(&dir, false);
        self.submit(list, Priority::Other, Pending::Listed { dir, connection, readers });
    }

    pub(super) fn listed(&mut self, dir: &ZNodePath, listing: Listing, readers: &[ParticipantId]) {
        // Before the readers get this one: they may ask for the next.
        let next = self.listings.ended(dir);
        if !next.is_empty() {
            self.list(dir.clone(), next);
        }
        let kinds = readers.iter().filter_map(|id| Some(self.contenders.get(id)?.spec.access));
        let listing = Arc::new(if readers.len() > 1 { listing.in_order_for(kinds) } else { listing });
        for id in readers {
            let contender = self.contenders.get_mut(id).filter(|contender| contender.is_queued());
            if let Some(contender) = contender {
                contender.listing = Some(Arc::clone(&listing));
                self.wake(*id);
            }
        }
    }

    pub(super) fn decide(&mut self, id: ParticipantId, listing: &Listing) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let Some(znode) = contender.znode().cloned() else { return Next::Park };
        let spec = Arc::clone(&contender.spec);
        let of_requests = listing.without(&contender.directories);
        let listing = of_requests.as_ref().unwrap_or(listing);
        let children = match &listing.children {
            Ok(children) => children,
            Err(ZkError::NoNode) => &Names::default(),
            Err(error) => return self.look_failed(id, Operation::LIST, &spec.dir, *error),
        };
        match listing.decide(spec.access, znode.name(), children) {
            Decision::Owner => {
                self.warn_of_peers(id, children);
                self.acquire(id, &znode, listing.connection)
            }
            Decision::Exhausted => {
                self.fail(id, Failure::SequenceExhausted { path: znode });
                Next::Park
            }
            Decision::WaitFor(nearest) => {
                self.note_number_ahead(id, &znode, children);
                let outlook = listing.outlook(spec.access, znode.name(), children);
                self.wait_behind(id, spec.dir.child(nearest), outlook)
            }
            Decision::Full => {
                self.note_number_ahead(id, &znode, children);
                self.wait_for_any(id)
            }
            Decision::Missing => {
                self.lose_znode(id);
                Next::Park
            }
        }
    }

    /// Counts the requests ahead in the first listing.
    fn note_number_ahead(&mut self, id: ParticipantId, znode: &ZNodePath, children: &Names) {
        if !self.counts_ahead {
            return;
        }
        if let Some(contender) = self.contenders.get_mut(&id) {
            contender.number_ahead.get_or_insert_with(|| count_ahead(znode.name(), children));
        }
    }

    /// Waits for any of the requests ahead to leave. A listing that left no watch is repeated with
    /// one.
    fn wait_for_any(&mut self, id: ParticipantId) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let dir = contender.spec.dir.clone();
        let is_watched = contender.watched.as_ref() == Some(&dir);
        self.placed(id, &dir);
        if is_watched { Next::Park } else { self.count(id) }
    }

    /// Counts the requests ahead, in a listing that leaves a watch on the children of the directory.
    /// Only a request whose number decides does so, and only the first that waits: a lock in front
    /// of the directory spares it a herd.
    pub(super) fn count(&mut self, id: ParticipantId) -> Next {
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        let dir = contender.spec.dir.clone();
        contender.watched = Some(dir.clone());
        self.watchers.add(&dir, id);
        let pending = Pending::Counted(id, dir.clone(), self.lease.connection());
        self.submit(Call::get_children(&dir, true), Priority::Other, pending);
        Next::Pending
    }

    pub(super) fn counted(&mut self, id: ParticipantId, dir: &ZNodePath, listing: &Listing) -> Next {
        // The request may have ended, or been woken, during the call.
        let is_watched =
            self.contenders.get(&id).is_some_and(|contender| contender.watched.as_ref() == Some(dir));
        if !is_watched {
            self.remove_stray_watch(dir, id);
        }
        let next = self.decide(id, listing);
        // An owner does not need it.
        let left = self.contenders.get_mut(&id).filter(|contender| contender.is_owner());
        if left.is_some_and(|contender| contender.watched.take_if(|watched| watched == dir).is_some()) {
            self.remove_stray_watch(dir, id);
        }
        next
    }

    // ---- owning

    /// Takes the lock, which was seen to be free on that connection.
    pub(super) fn acquire(
        &mut self,
        id: ParticipantId,
        znode: &ZNodePath,
        connection: ConnectionNumber,
    ) -> Next {
        if !self.contenders.get(&id).is_some_and(Contender::is_queued) {
            return Next::Park;
        }
        match self.lease.admit(id, connection, self.now) {
            Admission::Admitted => {}
            Admission::Unproven => return self.await_proof(id),
            // Contact was lost since: the listing may be older, and the znode gone.
            Admission::Outdated => return Next::Again,
        }
        self.own_queues.note_owner(znode);
        self.keep_own_watch(id, znode, connection);
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        contender.phase = Phase::Owner { znode: znode.clone(), revocation_reported: false };
        contender.listing = None;
        contender.unreadable = 0;
        let waited = self.now.since(std::mem::replace(&mut contender.since, self.now));
        self.report(id, Report::Acquired { waited });
        self.log(Line::Acquired(znode.clone()));
        self.alarms.set(id, self.now.after(OWN_WATCH_DELAY).rounded_down(SHARED_STEP));
        Next::Park
    }

    /// Takes up the watch on an owner's znode, which still exists: the owner goes on under the present epoch of
    /// the lease.
    fn verified(&mut self, id: ParticipantId, connection: ConnectionNumber, sight: &Sight) -> Next {
        match sight {
            _ if !self.lease.renew(id, connection, self.now) => self.lose_lease(id),
            Sight::Watched { data, version, .. } if revocation::is_requested(data, *version) => {
                self.report_revocation(id);
            }
            _ => {}
        }
        Next::Park
    }

    /// Notifies the owner, once, that another client asks for the lock.
    fn report_revocation(&mut self, id: ParticipantId) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let Phase::Owner { znode, revocation_reported } = &mut contender.phase else { return };
        if !std::mem::replace(revocation_reported, true) {
            let znode = znode.clone();
            self.report(id, Report::RevocationRequested);
            self.log(Line::RevocationRequested(znode));
        }
    }

    pub(crate) fn is_revocation_requested(&self, id: ParticipantId) -> bool {
        let contender = self.contenders.get(&id);
        contender.is_some_and(|of| matches!(of.phase, Phase::Owner { revocation_reported: true, .. }))
    }

    // ---- waiting

    /// Waits for the deletion of the request ahead. An exclusive request needs no watch if that is of this
    /// session. One that shares the lock does: another client may delete that znode, and its request
    /// may wait on for one that does not exclude this one.
    pub(super) fn watch_predecessor(&mut self, id: ParticipantId, ahead: ZNodePath) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        if contender.spec.access.is_exclusive() && self.own_queues.stays(&ahead) {
            self.watchers.add(&ahead, id);
            self.set_watched(id, &ahead);
            self.placed(id, &ahead);
            return Next::Park;
        }
        self.set_early_watches(id);
        self.look(id, ahead, Purpose::WaitFor)
    }

    /// Notes for which znode the request has registered.
    pub(super) fn set_watched(&mut self, id: ParticipantId, path: &ZNodePath) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        contender.ahead.watched_on = None;
        let before = contender.watched.replace(path.clone());
        if let Some(before) = before.filter(|before| !self.needs_watch(id, before)) {
            self.unwatch(&before, id);
        }
    }

    /// Takes up the watch on the request ahead, the only one that is watched: a release wakes one
    /// waiter, or the readers behind a writer.
    fn predecessor_watched(
        &mut self,
        id: ParticipantId,
        ahead: &ZNodePath,
        connection: ConnectionNumber,
        sight: &Sight,
    ) -> Next {
        if *sight == Sight::Gone {
            // Deleted between the listing and the watch. The Java recipe waits for ever here.
            let has_owned = self.own_queues.has_owned(ahead);
            self.forget_watch(id);
            let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
            if has_owned || contender.ahead.is_sole_predecessor(ahead) {
                contender.ahead.note_departed(ahead, LearnedBy::Reply);
            }
            return Next::Again;
        }
        if let Sight::Watched { is_directory: true, .. } = sight {
            self.forget_watch(id);
            self.pass_over(id, ahead);
            return Next::Again;
        }
        self.placed(id, ahead);
        if let Sight::Watched { is_persistent, .. } = sight {
            if let Some(contender) = self.contenders.get_mut(&id) {
                contender.ahead.watched_on = Some(connection);
            }
            if *is_persistent && self.mentions_first(ahead) {
                self.log(Line::Persistent(ahead.clone()));
            }
        }
        Next::Park
    }

    /// Has a request wait no more for a znode that is a directory.
    pub(super) fn pass_over(&mut self, id: ParticipantId, directory: &ZNodePath) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        contender.directories.insert(directory.name().to_owned());
        if self.mentions_first(directory) {
            self.log(Line::Directory(directory.clone()));
        }
    }

    /// Records that the request is behind another.
    pub(super) fn placed(&mut self, id: ParticipantId, ahead: &ZNodePath) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let Phase::Queued { is_behind, znode } = &mut contender.phase else { return };
        let is_news = !std::mem::replace(is_behind, true);
        contender.unreadable = 0;
        if is_news {
            let (znode, number_ahead) = (znode.clone(), contender.number_ahead);
            self.report(id, Report::Placed { ahead: ahead.clone(), number_ahead });
            self.log(Line::Joined { znode, ahead: ahead.clone() });
        }
    }

    // ---- looks

    /// Looks at a znode and leaves a watch there.
    pub(super) fn look(&mut self, id: ParticipantId, path: ZNodePath, purpose: Purpose) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let priority = contender.priority();
        self.set_watched(id, &path);
        self.watchers.add(&path, id);
        let (look, connection) = (Call::get_data(&path, true), self.lease.connection());
        self.submit(look, priority, Pending::Looked(Look { id, path, connection, purpose }));
        Next::Pending
    }

    pub(super) fn looked(&mut self, look: Look, outcome: ZkResult<(Vec<u8>, Stat)>) -> Next {
        if outcome == Err(ZkError::NoAuth) {
            let Some(contender) = self.contenders.get(&look.id) else {
                self.remove_stray_watch(&look.path, look.id);
                return Next::Park;
            };
            let priority = contender.priority();
            let exists = Call::exists(&look.path, true);
            self.submit(exists, priority, Pending::LookedAtUnreadable(look));
            return Next::Pending;
        }
        self.watched(&look, Sight::of_data(outcome))
    }

    pub(super) fn watched(&mut self, look: &Look, sight: ZkResult<Sight>) -> Next {
        let Look { id, ref path, connection, purpose } = *look;
        // The request may have ended, or been woken, during the call, which had registered it
        // again.
        let is_watched =
            self.contenders.get(&id).is_some_and(|contender| contender.watched.as_ref() == Some(path));
        // A look at an unreadable znode that has gone leaves a watch on its creation.
        if !is_watched || sight == Ok(Sight::Gone) {
            self.remove_stray_watch(path, id);
        }
        if !self.contenders.contains_key(&id) {
            return Next::Park;
        }
        let sight = match sight {
            Ok(sight) => sight,
            Err(error) => return self.look_failed(id, Operation::WATCH, path, error),
        };
        if sight == Sight::Unreadable {
            self.alarms.set(id, self.now.after(UNREADABLE_LOOK));
        }
        match purpose {
            Purpose::WaitFor => self.predecessor_watched(id, path, connection, &sight),
            _ if sight == Sight::Gone => {
                self.lose_znode(id);
                Next::Park
            }
            // From a predecessor that is deleted. No request was between the two in a listing, and none can
            // get there. So all that was left to see is that the own znode exists.
            Purpose::TakeOver => self.acquire(id, path, connection),
            Purpose::Verify => self.verified(id, connection, &sight),
        }
    }

    /// A routine look: a watch can be used up silently, as a server withholds the event from a client
    /// that may not read the znode any more (CVE-2024-23944), and a change of an ACL fires no watch.
    pub(super) fn look_at_routine(&mut self, id: ParticipantId) {
        let Some(contender) = self.contenders.get(&id) else { return };
        match &contender.phase {
            // It is repeated by its retry policy.
            Phase::Joining { .. } => return,
            Phase::Owner { .. } => {
                // Requests that do not count this one may have come after it.
                let dir = contender.spec.dir.clone();
                let list = Call::get_children(&dir, false);
                self.submit(list, Priority::Other, Pending::ListedPeers(id, dir));
            }
            // The listing that it is woken for shows its own znode as well.
            Phase::Queued { .. } if contender.spec.access.watches_children() => {}
            Phase::Queued { znode, .. } => {
                // Many waiters do not watch their own znode, and learn of its deletion when the queue moves.
                let (exists, znode) = (Call::exists(znode, false), znode.clone());
                self.submit(exists, Priority::Other, Pending::CheckedOwn(id, znode));
            }
        }
        self.wake(id);
    }

    pub(super) fn checked_own(
        &mut self,
        id: ParticipantId,
        path: &ZNodePath,
        found: &ZkResult<Option<Stat>>,
    ) {
        let is_own = self.contenders.get(&id).is_some_and(|contender| contender.znode() == Some(path));
        if is_own && *found == Ok(None) {
            self.lose_znode(id);
        }
    }

    /// Names in the log a request of another library that may own beside this one. Once per session
    /// and directory.
    pub(super) fn warn_of_peers(&mut self, id: ParticipantId, children: &Names) {
        let Some(contender) = self.contenders.get(&id) else { return };
        let Some(znode) = contender.znode() else { return };
        let Some(mismatch) = mismatch(znode.name(), children) else { return };
        let dir = contender.spec.dir.clone();
        if self.mentions_first(&dir) {
            self.log(Line::Peers { dir, mismatch });
        }
    }

    /// Returns whether the log has not mentioned this znode yet, which it does now.
    pub(crate) fn mentions_first(&mut self, path: &ZNodePath) -> bool {
        if self.mentioned.len() == MAX_MENTIONED {
            self.mentioned.clear();
        }
        self.mentioned.insert(path.clone())
    }

    // ---- watches

    /// Ends a participant's wait for the next event on a path, if it waits. The watch is removed from the
    /// server if nobody else waits for it.
    pub(super) fn unwatch(&mut self, path: &ZNodePath, id: ParticipantId) {
        if self.watchers.remove(path, id) {
            self.effects.push_back(Effect::RemoveWatch(path.clone()));
        }
    }

    /// As [`unwatch`](Engine::unwatch), after a look that may have left a watch although its maker has
    /// ended its wait.
    pub(super) fn remove_stray_watch(&mut self, path: &ZNodePath, id: ParticipantId) {
        self.watchers.remove(path, id);
        if !self.watchers.any(path) {
            self.effects.push_back(Effect::RemoveWatch(path.clone()));
        }
    }

    fn forget_watch(&mut self, id: ParticipantId) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        contender.ahead.watched_on = None;
        let watched = contender.watched.take();
        if let Some(watched) = watched.filter(|watched| !self.needs_watch(id, watched)) {
            self.unwatch(&watched, id);
        }
    }

    /// Keeps the watch on the own znode for the owner that the request becomes, and forgets the
    /// others.
    fn keep_own_watch(&mut self, id: ParticipantId, znode: &ZNodePath, connection: ConnectionNumber) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        let ahead = std::mem::take(&mut contender.ahead);
        let was_looked_at = contender.watched.as_ref() == Some(znode);
        let mut unwatched: Vec<ZNodePath> = ahead.second().cloned().into_iter().collect();
        if was_looked_at || ahead.own_watched_on() == Some(connection) {
            unwatched.extend(contender.watched.replace(znode.clone()).filter(|before| before != znode));
        }
        for path in unwatched {
            self.unwatch(&path, id);
        }
    }

    /// Wakes a request that had registered for a path on which something has happened.
    pub(super) fn look_again(&mut self, id: ParticipantId) {
        let Some(contender) = self.contenders.get(&id) else { return };
        // The event was of a znode ahead that this session is deleting. The reply to that says more.
        let ahead = contender.watched.as_ref().filter(|_| contender.is_queued());
        let leaving = ahead.filter(|ahead| self.own_queues.is_leaving(ahead)).cloned();
        match leaving {
            Some(leaving) => self.watchers.add(&leaving, id),
            None => {
                self.forget_watch(id);
                self.wake(id);
            }
        }
    }
}
