//! The plain data that crosses the border of the engine: what the driver passes in, and the [`Effect`]s that
//! come out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::life::SessionEnd;
use crate::client::{Acl, Call, CreateMode, Reply};
use crate::error::{ErrorReason, LockError, LossReason, Operation, ZkError, ZkResult};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::recipe::session_tag::SessionTag;
use crate::retry::RetryPolicy;
use crate::time::{Moment, Priority};

/// The number of a participant on its session; never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ParticipantId(pub(super) u64);

/// The number of a call on its session; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CallId(pub(super) u64);

// ---- in

/// Facts about a session and its client that never change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Settings {
    /// The path that the client prepends to all paths. It counts toward the limit of the [budget](super::budget).
    pub(crate) chroot: Option<String>,
    /// The longest time for which a session relies on its watches before a [routine look](super::clock::Routine) is
    /// due.
    pub(crate) routine_pause: Duration,
    /// The number of calls that may be under way before others have to wait: see [`window`](super::window).
    pub(crate) window: usize,
    /// The servers' `jute.maxbuffer`, in bytes.
    pub(crate) jute_max_buffer: usize,
    /// A moment before the session was opened, if one is known.
    pub(crate) opened_after: Option<Moment>,
    /// The part of GUIDs that distinguishes the session's requests from those of all other sessions.
    pub(crate) tag: SessionTag,
    /// The seed for the random delays of retries and of routine looks.
    pub(crate) seed: u64,
}

/// The parameters of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestSpec {
    pub(crate) dir: ZNodePath,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) access: Access,
    /// The kind of znode to create for the directory if it is missing.
    pub(crate) directory_mode: CreateMode,
    /// The longest time for which the request may hold the lock.
    pub(crate) max_hold: Option<Duration>,
}

impl RequestSpec {
    /// Returns the path of the lock or semaphore, as the application names it. The requests of a semaphore are in a
    /// directory below its path.
    pub(super) fn lock_path(&self) -> ZNodePath {
        let above = self.access.permits().and_then(|_| self.dir.parent());
        above.unwrap_or_else(|| self.dir.clone())
    }
}

/// What a tracker's look asks for next, or how the look has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookStep {
    /// Make this call. The look continues with the call's outcome.
    Call(Call),
    /// The look has ended, and has left a watch on everything whose change may outdate what it saw.
    Seen,
    /// The look has ended, but something changed meanwhile, so the look has left no watch.
    Changed,
    Failed(ZkError),
}

// ---- out

/// An instruction for the driver, which carries out its instructions in order. The driver releases its mutex
/// before it calls other code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Make this call, and pass its outcome to [`Engine::handle_reply`](super::Engine::handle_reply).
    Submit(CallId, Call, Priority),
    /// Remove the watch on this path from the server, before any later call sets it again.
    RemoveWatch(ZNodePath),
    /// Pass this event to the log, the hook, and the observer of the request.
    Happened(Event),
    /// Pass on the first outcome of this deletion.
    RemovalAnswered(ParticipantId, ZkResult<()>),
    /// Log that the connected server shows this znode, which the leader says does not exist.
    Diverged(ZNodePath),
    /// Keep this target, which could not be deleted before the session ended, for the next session.
    LeftBehind(ParticipantId, Target),
    /// Begin a look for this tracker, and pass its next step to [`Engine::handle_look`](super::Engine::handle_look).
    BeginLook(ParticipantId),
    /// Continue this tracker's look with the outcome of its call.
    ReadFor(ParticipantId, ZkResult<Reply>),
    /// Pass on the outcome of this call to the code outside the engine that has [asked](super::Engine::ask)
    /// for it.
    Answered(ParticipantId, ZkResult<Reply>),
    /// End this tracker, because the session has ended.
    Untracked(ParticipantId, SessionEnd),
    /// Call [`Engine::complete_end`](super::Engine::complete_end), which notifies the participants of the end.
    Ending,
    /// Close the client: nothing is left to do.
    Finished,
}

/// What a session leaves for the next session to delete.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The znode at this path.
    ZNode(ZNodePath),
    /// Every znode in this directory that a session with one of these tags has created. There may be some,
    /// because the reply to a create was lost.
    Strays { dir: ZNodePath, tags: BTreeSet<SessionTag> },
}

/// The place of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The request does not own the lock yet. Its znode is not known to exist, or no other request is known to be
    /// ahead.
    Unknown,
    /// Another request is known to be ahead.
    Queued,
    Owner,
}

/// Something that has happened. The log and the hook get the events that concern them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A server serves the session.
    Connected,
    /// Contact is lost, but the session may still live.
    Suspended,
    /// The session has ended, and with it everything that lives on it.
    SessionEnded(SessionEnd),
    /// Another session replaces one that was lost. The engine never reports this, because it has only one session.
    SessionReplaced,
    Request(ParticipantId, RequestEvent),
    /// Requests wait for this znode, which is persistent: the end of its session does not delete it.
    Persistent(ZNodePath),
    /// This znode has the name of a request, but is a directory.
    Directory(ZNodePath),
    /// Requests of another library, or of another kind of lock, in this directory may own at the same time as ours.
    Peers {
        dir: ZNodePath,
        mismatch: String,
    },
    /// The session begins to delete this znode, which belongs to no request. The znode was created by this session or
    /// by one that it has replaced.
    Stray(ZNodePath),
    Removed {
        path: ZNodePath,
        was_refused: bool,
    },
    CannotRemove {
        path: ZNodePath,
        error: ZkError,
    },
    RemovedWithSession(ZNodePath),
    CannotSweep {
        dir: ZNodePath,
        error: ZkError,
    },
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestEvent {
    /// An attempt to join has failed.
    AttemptFailed { attempts: u32, failure: Failure },
    /// A search has found the request's znode, after the reply to the create was lost.
    FoundAgain { znode: ZNodePath },
    /// The request's znode exists. `token` is the fencing token, if the server has returned it.
    Joined { znode: ZNodePath, token: Option<i64> },
    /// Another request is ahead of this one; reported once. `ahead` is the znode ahead or, for a request for a permit,
    /// the directory.
    Placed { ahead: ZNodePath, number_ahead: Option<usize> },
    /// The request owns the lock.
    Acquired { waited: Duration },
    /// A thread has handed the lock over to another thread of its process. The engine never reports this,
    /// because it sees both threads as the same owner.
    HandedOver,
    /// Contact is lost. The request lives on; if it is the owner, it owns the lock until its lease ends.
    Suspended { is_owner: bool },
    /// Another client asks the owner to release the lock.
    RevocationRequested,
    /// The request has ended. `place` is where it was until then. `time` is how long it waited or, for an
    /// owner, how long it held the lock.
    Ended { place: Place, how: Ending, time: Duration },
}

/// How a request has ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    Withdrawn,
    /// The request has lost the lock.
    Lost(LossReason),
    /// The request has ended before it owned the lock. The failure, if there is one, is the cause.
    Dropped(LossReason, Option<Failure>),
}

/// The failure of a request, or of one attempt to join.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Failure {
    Call { operation: Operation, path: ZNodePath, error: ZkError },
    NoChroot { path: ZNodePath, chroot: Option<String> },
    SequenceExhausted { path: ZNodePath },
}

impl RequestEvent {
    /// Returns whether the request's lock must learn of the event. The lock need not learn that a waiter was
    /// withdrawn, because the lock itself has withdrawn it.
    pub(crate) fn is_for_lock(&self) -> bool {
        match self {
            RequestEvent::Acquired { .. } | RequestEvent::RevocationRequested => true,
            RequestEvent::Ended { place, how, .. } => *how != Ending::Withdrawn || *place == Place::Owner,
            _ => false,
        }
    }
}

impl Ending {
    pub(crate) fn reason(&self) -> Option<LossReason> {
        match self {
            Ending::Withdrawn => None,
            Ending::Lost(reason) | Ending::Dropped(reason, _) => Some(*reason),
        }
    }
}

impl From<Failure> for LockError {
    fn from(failure: Failure) -> LockError {
        match failure {
            Failure::Call { operation, path, error } => LockError::client(operation, path, error),
            Failure::NoChroot { path, chroot } => {
                LockError::no_chroot(Operation::CREATE, path, chroot.as_deref())
            }
            Failure::SequenceExhausted { path } => {
                LockError::of(ErrorReason::SequenceExhausted, Operation::LOCK, path)
            }
        }
    }
}
