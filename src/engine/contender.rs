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
//!
//! A contender has and needs nobody else: an `on_…` method takes something up, an imperative is a step that acts, and
//! both return what is [next](Next), the end of the request included. Its files, from top to bottom, none of which
//! calls one above it: [`steps`](super::steps), [`join`](super::join), [`queue`](super::queue),
//! [`ahead`](super::ahead) and [`turn`](super::turn), [`watch`](super::watch), this one. [`ended`](super::ended) is how it
//! ends, and what it leaves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::border::{Event, Failure, ParticipantId, Place, RequestEvent, RequestSpec};
use super::commons::Commons;
use super::lease::ConnectionNumber;
use super::listing::Listing;
use super::parents::MissingParents;
use crate::error::{LossReason, Operation, ZkError};
use crate::recipe::path::ZNodePath;
use crate::retry::RetryCounter;
use crate::time::{Moment, Priority};

/// The least delay before a failed look is repeated, whatever the retry policy.
const MIN_RETRY: Duration = Duration::from_millis(10);

/// The number of replies in a row that cannot be read after which a request gives up.
const MAX_UNREADABLE: u8 = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Contender {
    pub(super) id: ParticipantId,
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

/// What a request does after an input, or after a step.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Next {
    /// Nothing changes: it goes on with the outcome of a call or of a proof, or rests as before.
    Stay,
    /// It makes a step, or one more after the call that is under way.
    Wake,
    /// It makes another step.
    Again,
    /// It rests until something wakes it, perhaps a listing that it shares.
    Rest,
    End(Loss),
}

/// Why a request ends that nobody has withdrawn; by a failure if there is one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) reason: LossReason,
    pub(super) failure: Option<Failure>,
}

/// What a request has asked for. It is declared here, taken up in [`Contender::on_reply`], and taken back in
/// [`Asked::nobody_waits`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asked {
    Create(Arc<RequestSpec>),
    Enqueue(Arc<RequestSpec>, ConnectionNumber),
    Parent(MissingParents),
    /// Whether this znode, which the listing has shown, still exists.
    FoundAgain(ZNodePath, Arc<Listing>),
    /// The children of the directory, with a watch.
    Count(ZNodePath, ConnectionNumber),
    /// The children of the directory, for a warning.
    Peers,
    /// A look: the data of a znode, with a watch.
    Data(WatchedRead),
    /// The look at a znode whose data this session may not read.
    Existence(WatchedRead),
    /// A watch on the own znode, before its turn.
    WatchOwn(ZNodePath, ConnectionNumber),
    /// A watch on the request ahead of the nearest.
    WatchSecond(ZNodePath),
    /// Whether the own znode exists.
    CheckOwn(ZNodePath),
}

/// A read of a znode that leaves a watch: the look of a request, on that connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WatchedRead {
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
        Next::End(Loss { reason: LossReason::Refused, failure: Some(failure) })
    }
}

impl Contender {
    pub(super) fn new(id: ParticipantId, spec: Arc<RequestSpec>, phase: Phase, since: Moment) -> Contender {
        Contender {
            id,
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

    /// The request ahead that is watched. `None` for one that waits for any of those ahead.
    pub(super) fn predecessor(&self) -> Option<&ZNodePath> {
        let Phase::Queued { znode, .. } = &self.phase else { return None };
        self.watched.as_ref().filter(|watched| *watched != znode && **watched != self.spec.dir)
    }

    pub(super) fn report(&self, commons: &mut Commons, event: RequestEvent) {
        commons.report(Event::Request(self.id, event));
    }

    // ---- what went wrong

    /// Its znode is gone. The end of the session deletes it too, and its event may come before anything
    /// else that shows that end.
    pub(super) fn lose_znode(&self, commons: &mut Commons) -> Next {
        commons.give_up_if_silent();
        match commons.lease.ended_at(self.id, commons.now) {
            Some(ended) => self.lose_hold(commons, ended),
            None => Next::lose(commons.end_reason().unwrap_or(LossReason::NodeDeleted)),
        }
    }

    /// Its hold has ended then, at its limit or with its lease.
    pub(super) fn lose_hold(&self, commons: &Commons, ended: Moment) -> Next {
        Next::lose(match commons.lease.has_reached_limit(self.id, ended) {
            true => LossReason::HeldTooLong,
            // The end of the session ends the lease too, before it is notified.
            false => commons.end_reason().unwrap_or(LossReason::LeaseExpired),
        })
    }

    /// A look at the queue failed. The request looks again later, by the reconnect if contact was
    /// lost, or ends if the error is final.
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
            _ if commons.in_contact() => commons.alarms.set(self.id, commons.now.after(retry)),
            _ => {}
        }
        Next::Rest
    }

    /// Returns whether to look again after an error that is no outage. An owner does: its lease, not the
    /// look, says that it owns. A waiter does where a reply cannot be read, which it counts: the next
    /// one may be readable.
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
