//! [`Contender`]: a request for a lock, as the engine keeps it from its start to its end.
//!
//! A contender is in one of three phases:
//! - `Joining`: its znode is being created, or the reply to the create was lost. The phase ends when the znode
//!   exists, or when the retries are used up.
//! - `Queued`: its znode exists, but its turn is not known to have come, or the session's lease does not admit owners
//!   yet. The phase ends when its turn has come and the lease admits it as the owner, when its znode is gone, or when
//!   the sequence numbers are exhausted.
//! - `Owner`: it holds the lock while its lease lasts. The phase ends when the lease ends, when the hold reaches its
//!   limit, or when its znode is gone.
//!
//! Each phase also ends when the request is withdrawn, and when the session ends. The first two phases also end when
//! the server refuses a call that the request needs. When a request ends, the engine forgets it. If replies to its
//! calls still arrive, the engine removes whatever those calls have left on the server.
//!
//! A request takes one step after another, and waits for one outcome at a time. If something wakes it meanwhile, the
//! cause may be newer than the outcome, so the request takes another step before it rests. (Some reads run
//! alongside the steps: those that only shorten the wait, described in [`super::ahead`], and those of routine looks.)
//!
//! A contender depends on no other participant. A method named `on_…` handles an input. A method that performs a
//! step has an imperative name. Both return what comes [next](Next), which may be the end of the request. The files of
//! the contender form layers, and no method of a contender calls one in a file above its own. From top to bottom:
//! [`steps`](super::steps), [`join`](super::join), [`queue`](super::queue), [`ahead`](super::ahead) and
//! [`turn`](super::turn), [`watch`](super::watch), this one. [`ended`](super::ended) describes how a request ends, and
//! what it leaves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::border::{Event, Failure, ParticipantId, Place, RequestEvent, RequestSpec};
use super::commons::Commons;
use super::lease::ConnectionNumber;
use super::life::SessionEnd;
use super::listing::Listing;
use super::parents::MissingParents;
use crate::error::{LossReason, Operation, ZkError};
use crate::recipe::path::ZNodePath;
use crate::retry::RetryCounter;
use crate::time::{Moment, Priority};

/// The minimum delay before a failed read is repeated, whatever the retry policy says.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// The number of unreadable replies in a row that makes a request give up before it owns the lock.
const MAX_UNREADABLE: u8 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contender {
    pub(super) id: ParticipantId,
    pub(super) spec: Arc<RequestSpec>,
    pub(super) phase: Phase,
    /// The number of searches that have found no znode. The create before each of them may still take effect, so the
    /// next one has another name. Otherwise, if the directory is deleted and created again, a late znode might get the
    /// path of the request's znode.
    pub(super) attempt: u32,
    pub(super) activity: Activity,
    /// The znode whose change wakes the request:
    /// - for a waiter, the znode ahead (what wakes the waiter is the watch or, if that znode belongs to this session,
    ///   the reply to its deletion);
    /// - for a waiter that waits for any of the requests ahead, the directory;
    /// - for an owner, and for a request that takes over, its own znode.
    ///
    /// `None` for a request that must first list the queue or read its own znode, and for a new owner that has not read
    /// its znode yet.
    pub(super) watched: Option<ZNodePath>,
    pub(super) ahead: Ahead,
    /// The names of directories that look like requests ahead, found since this request's znode was created. If a
    /// request is later created with one of these names, it is newer and therefore not ahead. So the names are never
    /// checked again.
    pub(super) directories: BTreeSet<String>,
    /// A listing that has arrived and that this request has not used yet. This or another request asked for it.
    pub(super) listing: Option<Arc<Listing>>,
    /// The next listing is made only because of a reconnect, so the request has no reason to expect the lock from it.
    pub(super) has_reconnected: bool,
    /// The time at which the request was made; later, the time at which it acquired the lock.
    pub(super) since: Moment,
    /// The number of requests ahead in the first listing, counted only if an observer wants to know.
    pub(super) number_ahead: Option<usize>,
    /// The last refusal by a server for now, such as a used-up quota, unless the request has got an answer since. While
    /// there is one, the request does not know whether the lock is free.
    pub(super) refusal: Option<Failure>,
    /// The number of replies in a row that could not be read.
    pub(super) unreadable: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Joining {
        /// An attempt has failed, perhaps because the reply to a create was lost. The znode may exist, so the
        /// request searches for it before it creates another one.
        unconfirmed: bool,
        /// `None` until an attempt has failed.
        failed: Option<Box<RetryCounter<Failure>>>,
    },
    Queued {
        znode: ZNodePath,
        /// Another request is known to be ahead, and this was reported.
        is_behind: bool,
    },
    Owner {
        znode: ZNodePath,
        /// It has been reported that another client has asked the owner to release the lock.
        revocation_reported: bool,
    },
}

/// Whether a step is under way. Steps are taken one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Activity {
    #[default]
    Idle,
    UnderWay,
    /// A step is under way, and another one must follow it.
    Woken,
}

/// What a request does after an input, or after a step.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    /// Nothing changes: the request waits for the outcome of a call or of a proof, or rests as before.
    Stay,
    /// The request takes a step now, or after the call that is under way.
    Wake,
    /// The request takes another step now.
    Again,
    /// The request rests until something wakes it, perhaps a listing that it shares.
    Rest,
    /// The request ends.
    End(Loss),
}

/// Why a request ends although nobody has withdrawn it, and the failure that caused the end, if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) reason: LossReason,
    pub(super) failure: Option<Failure>,
}

/// What a request has asked for with a call. [`Contender::on_reply`] handles the outcome. If the request has ended,
/// [`Asked::nobody_waits`] removes whatever the call has left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    Create(Arc<RequestSpec>),
    Enqueue(Arc<RequestSpec>, ConnectionNumber),
    Parent(MissingParents),
    /// By which transaction this znode was created, and whether it still exists.
    FoundAgain(ZNodePath),
    /// The children of the directory, with a watch.
    Count(ZNodePath, ConnectionNumber),
    /// The children of the directory, for a warning.
    Peers(ZNodePath),
    /// The data of a znode, with a watch.
    Data(WatchedRead),
    /// Whether a znode exists, with a watch. For a znode whose data this session may not read.
    Existence(WatchedRead),
    /// An early watch on the request's own znode.
    WatchOwn(ZNodePath, ConnectionNumber),
    /// An early watch on the request ahead of the nearest one.
    WatchSecond(ZNodePath),
    /// Whether the request's own znode exists.
    CheckOwn(ZNodePath),
}

/// A *look* of a request: a read, sent on this connection, that leaves a watch on the znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchedRead {
    pub(super) path: ZNodePath,
    pub(super) connection: ConnectionNumber,
    pub(super) purpose: Purpose,
}

/// The purpose of a watched read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    /// To wait for the deletion of the znode ahead.
    WaitFor,
    /// To become the owner, because nobody is ahead.
    TakeOver,
    /// To remain the owner.
    Verify,
}

impl Asked {
    /// Returns whether the call creates the znode of the request.
    pub(super) fn creates(&self) -> bool {
        matches!(self, Asked::Create(_) | Asked::Enqueue(..))
    }
}

impl Next {
    pub(super) fn lose(reason: LossReason) -> Next {
        Next::End(Loss { reason, failure: None })
    }

    pub(super) fn fail(failure: Failure) -> Next {
        Next::End(Loss { reason: LossReason::Failed, failure: Some(failure) })
    }
}

impl Contender {
    pub(super) fn new(id: ParticipantId, spec: Arc<RequestSpec>, phase: Phase, since: Moment) -> Contender {
        Contender {
            id,
            spec,
            phase,
            attempt: 0,
            activity: Activity::Idle,
            watched: None,
            ahead: Ahead::default(),
            directories: BTreeSet::new(),
            listing: None,
            has_reconnected: false,
            since,
            number_ahead: None,
            refusal: None,
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

    pub(super) fn place(&self) -> Place {
        match self.phase {
            Phase::Owner { .. } => Place::Owner,
            Phase::Queued { is_behind: true, .. } => Place::Queued,
            Phase::Queued { is_behind: false, .. } | Phase::Joining { .. } => Place::Unknown,
        }
    }

    pub(super) fn znode(&self) -> Option<&ZNodePath> {
        match &self.phase {
            Phase::Joining { .. } => None,
            Phase::Queued { znode, .. } | Phase::Owner { znode, .. } => Some(znode),
        }
    }

    /// Returns the name of the znode that the present attempt creates, without the sequence number.
    pub(super) fn znode_prefix(&self, commons: &Commons) -> String {
        commons.znode_prefix(self.spec.access, self.id, self.attempt)
    }

    /// Returns the znode ahead that wakes the request. Returns `None` if that znode is not known, or if the request
    /// waits for any of the requests ahead.
    pub(super) fn predecessor(&self) -> Option<&ZNodePath> {
        let Phase::Queued { znode, .. } = &self.phase else { return None };
        self.watched.as_ref().filter(|watched| *watched != znode && **watched != self.spec.dir)
    }

    pub(super) fn report(&self, commons: &mut Commons, event: RequestEvent) {
        commons.report(Event::Request(self.id, event));
    }

    // ---- what went wrong

    /// Ends the request because its znode is gone. The cause may be the end of the session, which also deletes the
    /// znode. The deletion event may arrive before any other sign that the session has ended.
    pub(super) fn lose_znode(&self, commons: &mut Commons) -> Next {
        commons.give_up_if_silent();
        match commons.lease.ended_at(self.id, commons.now) {
            Some(ended) => self.lose_hold(commons, ended),
            None => Next::lose(commons.end_reason().map_or(LossReason::NodeDeleted, LossReason::from)),
        }
    }

    /// Ends the request because its hold ended at `ended`, either at its limit or with its lease.
    pub(super) fn lose_hold(&self, commons: &Commons, ended: Moment) -> Next {
        Next::lose(match commons.lease.has_reached_limit(self.id, ended) {
            true => LossReason::HeldTooLong,
            // The end of the session also ends the lease, before the request is notified.
            false if self.is_owner() => SessionEnd::loss_of_hold(commons.end_reason()),
            // A waiter has no lease of its own.
            false => commons.end_reason().map_or(LossReason::LeaseExpired, LossReason::from),
        })
    }

    /// Handles a failed read. The request ends if the error is final. Otherwise it reads again after a delay
    /// or, if contact was lost, after the reconnect.
    pub(super) fn look_failed(
        &mut self,
        commons: &mut Commons,
        operation: Operation,
        path: &ZNodePath,
        error: ZkError,
    ) -> Next {
        let retry = self.spec.retry.delay().max(MIN_RETRY);
        match error {
            // The end of the session ends the request, and gives the reason.
            ZkError::SessionExpired => {}
            error if !error.is_transient() && !self.tolerates(error) => {
                return Next::fail(Failure::Call { operation, path: path.clone(), error });
            }
            _ => {
                self.note_refusal(&Failure::Call { operation, path: path.clone(), error });
                if commons.in_contact() {
                    commons.alarms.set(self.id, commons.now.after(retry));
                }
            }
        }
        Next::Rest
    }

    /// Notes a failed call if a server has refused it for now.
    pub(super) fn note_refusal(&mut self, failure: &Failure) {
        if matches!(failure, Failure::Call { error, .. } if error.is_declined()) {
            self.refusal = Some(failure.clone());
        }
    }

    /// Returns whether the request survives an error that is not an outage. An owner does, because a failed read does
    /// not show that the lock is lost; the lease decides that. A waiter survives a few unreadable replies in a row,
    /// because the next one may be readable.
    pub(super) fn tolerates(&mut self, error: ZkError) -> bool {
        if self.is_owner() {
            return true;
        }
        if error != ZkError::MarshallingError {
            return false;
        }
        self.unreadable = self.unreadable.saturating_add(1);
        self.unreadable < MAX_UNREADABLE
    }
}
