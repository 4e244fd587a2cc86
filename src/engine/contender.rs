//! [`Contender`]: a request for a lock, as the engine keeps it from its start to its end.
//!
//! | phase | means | leaves it by |
//! |---|---|---|
//! | `Joining` | the znode is being created, or the reply was lost | created, or out of retries |
//! | `Queued` | the znode exists; its turn has not come, or is unknown | its turn has come and the lease admits it; znode gone; numbers exhausted |
//! | `Owner` | the lock is held, while the lease lasts | lease over, or znode gone |
//!
//! Each phase also ends when the request is withdrawn, when the server refuses a call that the
//! request needs, and with the session. The engine then forgets the request. Its calls may still be
//! answered: the outcome finds nobody, and anything left on the server is taken back.
//!
//! A request makes one step after the other, and waits for one outcome at a time. Whatever wakes it meanwhile
//! may be newer than the outcome, so it makes another step before it rests. (Looks that only
//! shorten the wait run beside that: see [`super::ahead`].)

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ahead::Ahead;
use super::lease::ConnectionNumber;
use super::listing::Listing;
use super::report::Failure;
use super::{Engine, ParticipantId};
use crate::client::{Acl, CreateMode};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::retry::{RetryCounter, RetryPolicy};
use crate::time::{Moment, Priority};

/// The parameters of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestSpec {
    pub(crate) dir: ZNodePath,
    /// The name of the znode up to its sequence number, with a GUID: no other request has it.
    pub(crate) prefix: String,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) access: Access,
    /// The kind of znode for a missing directory.
    pub(crate) directory_mode: CreateMode,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contender {
    pub(super) spec: Arc<RequestSpec>,
    pub(super) phase: Phase,
    pub(super) activity: Activity,
    /// The znode whose change wakes the request: the one ahead, by a watch there or, for one of this
    /// session, by its deletion; its own znode, for an owner and one that takes over; or the directory,
    /// for a request that waits for any of those ahead. `None` for one that must first list the queue
    /// or look at its own znode, and for a new owner that has not looked there yet.
    pub(super) watched: Option<ZNodePath>,
    pub(super) ahead: Ahead,
    /// The names of directories that look like requests ahead, as looks have shown since the own znode
    /// exists. A request that comes later under such a name is not ahead, so they are never looked at again.
    pub(super) directories: BTreeSet<String>,
    /// A listing that it, or another request, has asked for, and that it has not read yet.
    pub(super) listing: Option<Arc<Listing>>,
    /// The next listing is due to a reconnect, which is no reason to expect the lock.
    pub(super) has_reconnected: bool,
    /// The time at which the request was made; later, the time at which it acquired the lock.
    pub(super) since: Moment,
    /// The number of requests ahead in the first listing; counted only if somebody asks for it.
    pub(super) number_ahead: Option<usize>,
    /// The replies in a row that could not be read.
    pub(super) unreadable: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Joining {
        /// The reply to a create was lost: the znode may exist, so it is searched for before another
        /// is created.
        unconfirmed: bool,
        /// `None` until an attempt has failed.
        failed: Option<Box<RetryCounter<Failure>>>,
    },
    Queued {
        znode: ZNodePath,
        /// It is known that a request is ahead of it, which was reported.
        is_behind: bool,
    },
    Owner {
        znode: ZNodePath,
        /// A revocation was reported to the holder.
        revocation_reported: bool,
    },
}

/// The state of calls that are made one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Activity {
    #[default]
    Idle,
    UnderWay,
    /// Under way, and one more step after that.
    Woken,
}

/// The action after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Again,
    /// It rests until something wakes it, perhaps a listing that it shares.
    Park,
    /// The outcome of a call, or of a proof that it shares, goes on with it.
    Pending,
}

/// A look of a request at a znode, on that connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Look {
    pub(super) id: ParticipantId,
    pub(super) path: ZNodePath,
    pub(super) connection: ConnectionNumber,
    pub(super) purpose: Purpose,
}

/// The purpose of a look at a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// To wait for the deletion of the request ahead.
    WaitFor,
    /// To own the lock, as nobody is ahead.
    TakeOver,
    /// To keep the lock.
    Verify,
}

impl Contender {
    pub(super) fn new(spec: Arc<RequestSpec>, phase: Phase, since: Moment) -> Contender {
        Contender {
            spec,
            phase,
            activity: Activity::Idle,
            watched: None,
            ahead: Ahead::default(),
            directories: BTreeSet::new(),
            listing: None,
            has_reconnected: false,
            since,
            number_ahead: None,
            unreadable: 0,
        }
    }

    /// Returns how urgent the next step is.
    pub(super) fn priority(&self) -> Priority {
        if self.is_owner() { Priority::Owner } else { Priority::Other }
    }

    pub(super) fn is_owner(&self) -> bool {
        matches!(self.phase, Phase::Owner { .. })
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.phase, Phase::Queued { .. })
    }

    pub(super) fn znode(&self) -> Option<&ZNodePath> {
        match &self.phase {
            Phase::Joining { .. } => None,
            Phase::Queued { znode, .. } | Phase::Owner { znode, .. } => Some(znode),
        }
    }

    /// The znode's path for a message; the directory's until the znode is known.
    pub(super) fn name(&self) -> &ZNodePath {
        self.znode().unwrap_or(&self.spec.dir)
    }
}

impl Engine {
    /// Has a request make a step, or one more after the call that is under way.
    pub(super) fn wake(&mut self, id: ParticipantId) {
        let Some(contender) = self.contenders.get_mut(&id) else { return };
        match contender.activity {
            Activity::Idle => {
                contender.activity = Activity::UnderWay;
                self.go_on(id, Next::Again);
            }
            Activity::UnderWay | Activity::Woken => contender.activity = Activity::Woken,
        }
    }

    /// Takes up an outcome for a request, and goes on with it.
    pub(super) fn go_on_with(&mut self, id: ParticipantId, take_up: impl FnOnce(&mut Engine) -> Next) {
        let next = take_up(self);
        self.go_on(id, next);
    }

    /// Makes steps until the request rests, or waits for an outcome.
    fn go_on(&mut self, id: ParticipantId, mut next: Next) {
        loop {
            let Some(contender) = self.contenders.get_mut(&id) else { return };
            match (&next, contender.activity) {
                (Next::Pending, _) => return,
                (Next::Park, Activity::Idle | Activity::UnderWay) => {
                    contender.activity = Activity::Idle;
                    return;
                }
                (Next::Park, Activity::Woken) => contender.activity = Activity::UnderWay,
                (Next::Again, _) => {}
            }
            next = self.step(id);
        }
    }

    fn step(&mut self, id: ParticipantId) -> Next {
        let Some(contender) = self.contenders.get_mut(&id) else { return Next::Park };
        let present = self.lease.connection();
        match &contender.phase {
            Phase::Joining { unconfirmed: true, .. } => self.find_again(id),
            Phase::Joining { unconfirmed: false, .. } => self.join(id),
            Phase::Owner { znode, .. } => {
                let znode = znode.clone();
                self.look(id, znode, Purpose::Verify)
            }
            Phase::Queued { znode, .. } if contender.ahead.is_first() => {
                let znode = znode.clone();
                match contender.ahead.owns_by_event_on(present) {
                    Some(watched_on) if self.lease.admits_owners(self.now) => {
                        self.acquire(id, &znode, watched_on)
                    }
                    _ => {
                        // Its reply comes before that to the look, if the client is ordered.
                        self.prove_beside();
                        self.look(id, znode, Purpose::TakeOver)
                    }
                }
            }
            Phase::Queued { .. } if contender.spec.access.watches_children() => self.count(id),
            Phase::Queued { .. } => match &contender.watched {
                Some(ahead) if contender.listing.is_none() && !contender.ahead.is_outdated => {
                    let ahead = ahead.clone();
                    self.watch_predecessor(id, ahead)
                }
                _ => {
                    let expects_lock = !std::mem::take(&mut contender.has_reconnected);
                    self.evaluate(id, expects_lock)
                }
            },
        }
    }
}
