//! The first steps of a request: to join the queue.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose `execute` is [`Engine::join`]
//! here and [`Engine::evaluate`] in [`super::look`].

use std::sync::Arc;
use std::time::Duration;

use super::calls::{Pending, may_have_created};
use super::contender::{Contender, Next, Phase, RequestSpec};
use super::lease::ConnectionNumber;
use super::listing::Listing;
use super::parents::MissingParents;
use super::report::{Failure, Line, Report};
use super::{Engine, ParticipantId};
use crate::client::{Call, CreateMode, Enqueued, Reply, Stat};
use crate::error::{Operation, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::{Moment, Priority};

/// The least delay before a failed look is repeated, whatever the retry policy.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// The least delay before the third attempt to join, and each later one.
const MIN_JOIN_RETRY: Duration = Duration::from_millis(1);

/// The number of replies in a row that cannot be read after which a request gives up.
const MAX_UNREADABLE: u8 = 3;

impl Engine {
    /// Starts a request, with a number that was not used before. It needs no further inputs;
    /// [`Engine::withdraw`] ends it.
    pub(crate) fn start(&mut self, id: ParticipantId, spec: Arc<RequestSpec>, since: Moment) {
        let phase = Phase::Joining { unconfirmed: false, failed: None };
        self.contenders.insert(id, Contender::new(spec, phase, since));
        self.wake_or_lose(id);
    }

    /// Makes a request that holds the lock as its owner does, under the lease of that, with a znode
    /// that exists. Returns `false` if the owner holds it no longer.
    pub(crate) fn start_as_owner(
        &mut self,
        id: ParticipantId,
        spec: Arc<RequestSpec>,
        znode: ZNodePath,
        owner: ParticipantId,
    ) -> bool {
        if !self.lease.share(owner, id, self.now) {
            return false;
        }
        let phase = Phase::Owner { znode: znode.clone(), revocation_reported: false };
        self.contenders.insert(id, Contender::new(spec, phase, self.now));
        self.report(id, Report::Joined { znode, token: None });
        self.report(id, Report::Acquired { waited: Duration::ZERO });
        self.wake_or_lose(id);
        true
    }

    fn wake_or_lose(&mut self, id: ParticipantId) {
        match self.life.end_reason() {
            None => self.wake(id),
            Some(reason) => self.lose(id, reason),
        }
    }

    /// Creates the znode, and lists the queue unless a request of this session is ahead.
    pub(super) fn join(&mut self, id: ParticipantId) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let spec = Arc::clone(&contender.spec);
        // A reconnect may have woken it before its alarm. The delay to the next attempt counts from this one.
        self.alarms.clear(id);
        let RequestSpec { dir, prefix, data, acl, access, .. } = &*spec;
        let (data, acl) = (Arc::clone(data), Arc::clone(acl));
        if access.is_exclusive() && self.own_queues.last_stays(dir) {
            let create = Call::create(&dir.child(prefix), data, acl, CreateMode::EphemeralSequential);
            let pending = Pending::Created(id, spec);
            self.submit(create, Priority::Other, pending);
        } else {
            let enqueue = Call::create_and_list(dir, prefix.as_str(), data, acl);
            let pending = Pending::Enqueued(id, spec, self.lease.connection());
            self.submit(enqueue, Priority::Other, pending);
        }
        Next::Pending
    }

    /// Waits for the nearest request of this session. The next listing shows the others ahead.
    pub(super) fn created(
        &mut self,
        id: ParticipantId,
        spec: &Arc<RequestSpec>,
        created: ZkResult<(String, Option<Stat>)>,
    ) -> Next {
        let (path, stat) = match created {
            Ok(created) => created,
            Err(error) => return self.not_created(id, spec, error),
        };
        let Some(znode) = self.joined(id, path, stat) else { return Next::Park };
        let Some(before) = self.own_queues.before(&znode) else { return Next::Again };
        self.watchers.add(&before, id);
        self.listings.share_next(&spec.dir, id);
        self.set_watched(id, &before);
        self.placed(id, &before);
        Next::Park
    }

    pub(super) fn enqueued(
        &mut self,
        id: ParticipantId,
        spec: &Arc<RequestSpec>,
        connection: ConnectionNumber,
        enqueued: ZkResult<Enqueued>,
    ) -> Next {
        let Enqueued { path, stat, children } = match enqueued {
            Ok(enqueued) => enqueued,
            Err(error) => return self.not_created(id, spec, error),
        };
        if self.joined(id, path, stat).is_none() {
            return Next::Park;
        }
        if let Ok(children) = &children {
            self.warn_of_peers(id, children);
        }
        self.decide(id, &Listing::new(connection, children))
    }

    fn not_created(&mut self, id: ParticipantId, spec: &Arc<RequestSpec>, error: ZkError) -> Next {
        self.create_failed(&spec.dir, error);
        if !self.contenders.contains_key(&id) {
            // Withdrawn meanwhile. The znode may exist.
            if may_have_created(error) {
                self.sweep(&spec.dir);
            }
            return Next::Park;
        }
        match error {
            ZkError::NoNode => {
                let RequestSpec { dir, acl, directory_mode, .. } = &**spec;
                self.make_next_parent(id, MissingParents::of(dir, acl, *directory_mode))
            }
            error => self.join_failed(id, Operation::CREATE, error),
        }
    }

    /// Creates the directory and its missing parents.
    fn make_next_parent(&mut self, id: ParticipantId, missing: MissingParents) -> Next {
        let create = missing.call();
        self.submit(create, Priority::Other, Pending::MadeParent(id, missing));
        Next::Pending
    }

    pub(super) fn made_parent(
        &mut self,
        id: ParticipantId,
        mut missing: MissingParents,
        outcome: ZkResult<Reply>,
    ) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        match missing.answered(outcome) {
            Ok(true) => Next::Again,
            Ok(false) => self.make_next_parent(id, missing),
            Err(ZkError::NoNode) => {
                let (path, chroot) = (contender.spec.dir.clone(), self.settings.chroot.clone());
                self.fail(id, Failure::NoChroot { path, chroot });
                Next::Park
            }
            Err(error) => self.join_failed(id, Operation::CREATE, error),
        }
    }

    /// Searches for the znode of a create whose reply was lost, before it creates another one.
    pub(super) fn find_again(&mut self, id: ParticipantId) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let dir = contender.spec.dir.clone();
        self.alarms.clear(id);
        self.search(&dir, id);
        Next::Pending
    }

    /// Takes up a listing with this znode of the request, or without any.
    pub(super) fn searched(
        &mut self,
        id: ParticipantId,
        znode: Option<ZNodePath>,
        listing: &Arc<Listing>,
    ) -> Next {
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        let RequestSpec { dir, prefix, .. } = &*contender.spec;
        let without_number = dir.child(prefix);
        let Some(znode) = znode else {
            if let Phase::Joining { unconfirmed, .. } = &mut contender.phase {
                *unconfirmed = false;
            }
            return Next::Again;
        };
        self.budget.found(without_number.as_str(), znode.as_str());
        self.log(Line::FoundAgain(znode.clone()));
        let exists = Call::exists(&znode, false);
        self.submit(exists, Priority::Other, Pending::FoundAgain(id, znode, Arc::clone(listing)));
        Next::Pending
    }

    pub(super) fn found_again(
        &mut self,
        id: ParticipantId,
        znode: ZNodePath,
        listing: &Listing,
        found: ZkResult<Option<Stat>>,
    ) -> Next {
        if self.joined(id, znode.to_string(), found.unwrap_or_default()).is_none() {
            return Next::Park;
        }
        if found == Ok(None) {
            // Deleted since it was listed.
            self.lose_znode(id);
            return Next::Park;
        }
        self.decide(id, listing)
    }

    /// Notes the znode; `None` when the request was withdrawn meanwhile, and the znode is deleted
    /// again.
    fn joined(&mut self, id: ParticipantId, path: String, stat: Option<Stat>) -> Option<ZNodePath> {
        let znode = ZNodePath::from_server(path);
        let Some(contender) = self.contenders.get_mut(&id) else {
            self.remove(znode);
            return None;
        };
        contender.phase = Phase::Queued { znode: znode.clone(), is_behind: false };
        if contender.spec.access.is_exclusive() {
            self.own_queues.add(&znode);
        }
        self.report(id, Report::Joined { znode: znode.clone(), token: stat.map(|stat| stat.czxid) });
        Some(znode)
    }

    pub(super) fn join_failed(&mut self, id: ParticipantId, operation: Operation, error: ZkError) -> Next {
        if !self.contenders.contains_key(&id) {
            return Next::Park;
        }
        let chance = self.chance();
        let is_refused = !error.is_transient() && error != ZkError::SessionExpired;
        let is_final = is_refused && !self.tolerates(id, error);
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        let failure = Failure::Call { operation, path: contender.spec.dir.clone(), error };
        let Phase::Joining { unconfirmed, failed } = &mut contender.phase else { return Next::Park };
        if is_final {
            self.fail(id, failure);
            return Next::Park;
        }
        *unconfirmed = true;
        if error == ZkError::SessionExpired {
            // The end of the session ends the request, and gives the reason. It may have ended for
            // this process alone, with the znode left on the server.
            return Next::Park;
        }
        let failed = failed.get_or_insert_default();
        let next = failed.failed(failure.clone(), &contender.spec.retry, self.now, || chance);
        let attempts = failed.failures();
        let dir = contender.spec.dir.clone();
        self.log(Line::JoinFailed { dir, attempts, failure });
        match next {
            // Only the second attempt may be made at once: a client may refuse each on the spot.
            Ok(delay) if attempts > 1 => self.alarms.set(id, self.now.after(delay.max(MIN_JOIN_RETRY))),
            Ok(delay) => self.alarms.set(id, self.now.after(delay)),
            Err(first) => self.fail(id, first),
        }
        Next::Park
    }

    /// A look at the queue failed. The request looks again later, by the reconnect if contact was
    /// lost, or ends if the error is final.
    pub(super) fn look_failed(
        &mut self,
        id: ParticipantId,
        operation: Operation,
        path: &ZNodePath,
        error: ZkError,
    ) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let retry = contender.spec.retry.delay().max(MIN_RETRY);
        match error {
            // The end of the session ends the request, and gives the reason.
            ZkError::SessionExpired => {}
            error if !error.is_transient() && !self.tolerates(id, error) => {
                self.fail(id, Failure::Call { operation, path: path.clone(), error });
            }
            _ if self.in_contact() => self.alarms.set(id, self.now.after(retry)),
            _ => {}
        }
        Next::Park
    }

    /// Returns whether to look again after an error that is no outage. An owner does: its lease, not the
    /// look, says that it owns. A waiter does where a reply cannot be read, which it counts: the next
    /// one may be readable.
    fn tolerates(&mut self, id: ParticipantId, error: ZkError) -> bool {
        let Some(contender) = self.contenders.get_mut(&id) else { return false };
        if contender.is_owner() {
            return true;
        }
        if error != ZkError::MarshallingError {
            return false;
        }
        contender.unreadable = contender.unreadable.saturating_add(1);
        contender.unreadable < MAX_UNREADABLE
    }
}
