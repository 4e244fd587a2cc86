//! The first steps of a request, by which it joins the queue.
//!
//! Origin: the Java class `WriteLock.LockZooKeeperOperation`, whose `execute` is [`Contender::join`]
//! here and [`Contender::evaluate`] in [`super::queue`].

use std::sync::Arc;
use std::time::Duration;

use super::border::{Failure, RequestEvent, RequestSpec};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::{Asked, Contender, Next, Phase};
use super::lease::ConnectionNumber;
use super::listing::Listing;
use super::parents::MissingParents;
use crate::client::{Call, CreateMode, Enqueued, Stat};
use crate::error::{Operation, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The minimum delay before the third attempt to join, and before each later one.
const MIN_JOIN_RETRY: Duration = Duration::from_millis(1);

impl Contender {
    /// Creates the znode, and lists the queue. An exclusive request behind another one of its session needs
    /// no listing, so it only creates its znode. So when thousands of threads ask for a lock at once, only the first
    /// request lists the queue.
    pub(super) fn join(&mut self, commons: &mut Commons) -> Next {
        // A reconnect may have woken the request before its alarm did. The next delay counts from this
        // attempt.
        commons.alarms.clear(self.id);
        let spec = Arc::clone(&self.spec);
        let prefix = self.znode_prefix(commons);
        let RequestSpec { dir, data, acl, access, .. } = &*self.spec;
        let (data, acl) = (Arc::clone(data), Arc::clone(acl));
        if access.is_exclusive() && commons.own_queues.will_follow(dir) {
            let create = Call::create(&dir.child(&prefix), data, acl, CreateMode::EphemeralSequential);
            commons.submit(create, Priority::Other, Pending::Request(self.id, Asked::Create(spec)));
        } else {
            if access.is_exclusive() {
                commons.own_queues.begin_joining(dir, self.id);
            }
            let enqueue = Call::create_and_list(dir, prefix, data, acl);
            let asked = Asked::Enqueue(spec, commons.lease.connection());
            commons.submit(enqueue, Priority::Other, Pending::Request(self.id, asked));
        }
        Next::Stay
    }

    /// Handles the outcome of a create without a listing: waits for the nearest request of this session that is ahead.
    /// The next listing shows the other requests ahead.
    pub(super) fn on_created(
        &mut self,
        commons: &mut Commons,
        created: ZkResult<(String, Option<Stat>)>,
    ) -> Next {
        let (path, stat) = match created {
            Ok(created) => created,
            Err(error) => return self.on_create_failed(commons, error),
        };
        let znode = ZNodePath::from_server(path);
        self.note_znode(commons, &znode, stat);
        let Some(before) = commons.own_queues.before(&znode) else { return Next::Again };
        commons.watchers.add(&before, self.id);
        commons.listings.share_next(&self.spec.dir, self.id);
        self.set_watched(commons, &before);
        self.note_place(commons, &before);
        Next::Rest
    }

    pub(super) fn on_enqueued(
        &mut self,
        commons: &mut Commons,
        connection: ConnectionNumber,
        enqueued: ZkResult<Enqueued>,
    ) -> Next {
        commons.own_queues.end_joining(&self.spec.dir, self.id);
        let Enqueued { path, stat, children } = match enqueued {
            Ok(enqueued) => enqueued,
            Err(error) => return self.on_create_failed(commons, error),
        };
        self.note_znode(commons, &ZNodePath::from_server(path), stat);
        if let Ok(children) = &children {
            self.warn_of_peers(commons, &self.spec.dir, children);
        }
        self.decide(commons, &Listing::new(connection, children))
    }

    fn on_create_failed(&mut self, commons: &mut Commons, error: ZkError) -> Next {
        let RequestSpec { dir, acl, directory_mode, .. } = &*self.spec;
        commons.note_failed_create(dir, error);
        match error {
            ZkError::NoNode => {
                let missing = MissingParents::of(dir, acl, *directory_mode);
                self.make_next_parent(commons, missing)
            }
            error => {
                let dir = dir.clone();
                self.join_failed(commons, Operation::LOCK, dir, error)
            }
        }
    }

    /// Creates the next missing parent of the directory or, last of all, the directory itself.
    fn make_next_parent(&self, commons: &mut Commons, missing: MissingParents) -> Next {
        let create = missing.call();
        commons.submit(create, Priority::Other, Pending::Request(self.id, Asked::Parent(missing)));
        Next::Stay
    }

    pub(super) fn on_parent_made<T>(
        &mut self,
        commons: &mut Commons,
        mut missing: MissingParents,
        outcome: ZkResult<T>,
    ) -> Next {
        match missing.answered(outcome) {
            Ok(true) => Next::Again,
            Ok(false) => self.make_next_parent(commons, missing),
            Err(ZkError::NoNode) => {
                let (path, chroot) = (self.spec.dir.clone(), commons.settings.chroot.clone());
                Next::fail(Failure::NoChroot { path, chroot })
            }
            Err(error) => self.join_failed(commons, Operation::CREATE, missing.next().clone(), error),
        }
    }

    // ---- after a lost reply

    /// Searches for the znode of a create whose reply was lost.
    pub(super) fn find_again(&self, commons: &mut Commons) -> Next {
        commons.alarms.clear(self.id);
        commons.search(&self.spec.dir, self.id);
        Next::Stay
    }

    /// Handles the end of the search. `znode` is what the search found for the request, if anything.
    pub(super) fn on_searched(&mut self, commons: &mut Commons, znode: Option<ZNodePath>) -> Next {
        let Some(znode) = znode else {
            self.attempt = self.attempt.wrapping_add(1);
            if let Phase::Joining { unconfirmed, .. } = &mut self.phase {
                *unconfirmed = false;
            }
            return Next::Again;
        };
        let without_number = self.spec.dir.child(&self.znode_prefix(commons));
        commons.calls.budget.note_found(without_number.as_str(), znode.as_str());
        self.report(commons, RequestEvent::FoundAgain { znode: znode.clone() });
        let exists = Call::exists(&znode, false);
        let asked = Asked::FoundAgain(znode);
        commons.submit(exists, Priority::Other, Pending::Request(self.id, asked));
        Next::Stay
    }

    pub(super) fn on_found_again(
        &mut self,
        commons: &mut Commons,
        znode: &ZNodePath,
        found: ZkResult<Option<Stat>>,
    ) -> Next {
        self.note_znode(commons, znode, found.unwrap_or_default());
        if found == Ok(None) {
            // The znode was deleted after it was listed.
            return self.lose_znode(commons);
        }
        Next::Again
    }

    /// Notes that the request has this znode.
    fn note_znode(&mut self, commons: &mut Commons, znode: &ZNodePath, stat: Option<Stat>) {
        self.refusal = None;
        self.phase = Phase::Queued { znode: znode.clone(), is_behind: false };
        if self.spec.access.is_exclusive() {
            commons.own_queues.add(znode);
        }
        let token = stat.map(|stat| stat.czxid);
        self.report(commons, RequestEvent::Joined { znode: znode.clone(), token });
    }

    /// Handles a failed attempt to join. The request makes another one after a delay, or ends if the error is
    /// final or the retries are used up.
    pub(super) fn join_failed(
        &mut self,
        commons: &mut Commons,
        operation: Operation,
        path: ZNodePath,
        error: ZkError,
    ) -> Next {
        let drawn = commons.draw();
        let is_refused = !error.is_transient() && error != ZkError::SessionExpired;
        let is_final = is_refused && !self.tolerates(error);
        let failure = Failure::Call { operation, path, error };
        self.note_refusal(&failure);
        let Phase::Joining { unconfirmed, failed } = &mut self.phase else { return Next::Rest };
        if is_final {
            return Next::fail(failure);
        }
        *unconfirmed = true;
        if error == ZkError::SessionExpired {
            // The end of the session ends the request, and gives the reason. The session may have ended in this process
            // alone, so the znode may be left on the server.
            return Next::Rest;
        }
        let failed = failed.get_or_insert_default();
        let next = failed.failed(failure.clone(), &self.spec.retry, commons.now, || drawn);
        let attempts = failed.failures();
        self.report(commons, RequestEvent::AttemptFailed { attempts, failure });
        let delay = match next {
            // Only the second attempt may follow at once, because a client may refuse every attempt on the spot.
            Ok(delay) if attempts > 1 => delay.max(MIN_JOIN_RETRY),
            Ok(delay) => delay,
            Err(first) => return Next::fail(first),
        };
        commons.alarms.set(self.id, commons.now.after(delay));
        Next::Rest
    }
}
