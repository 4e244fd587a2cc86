//! What crosses the border of the engine, as plain data: what its driver passes in, and the [`Effect`]s that it
//! gives out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

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

/// The facts that a session learns once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Settings {
    /// See [`ZooKeeperClient::is_ordered`](crate::client::port::ZooKeeperClient::is_ordered).
    pub(crate) is_ordered: bool,
    /// See [`ZooKeeperClient::owns_session`](crate::client::port::ZooKeeperClient::owns_session).
    pub(crate) owns_session: bool,
    /// See [`ZooKeeperClient::min_idle_for_ping`](crate::client::port::ZooKeeperClient::min_idle_for_ping).
    pub(crate) min_idle_for_ping: Duration,
    /// See [`ZooKeeperClient::chroot`](crate::client::port::ZooKeeperClient::chroot).
    pub(crate) chroot: Option<String>,
    /// The longest time for which a session relies on its watches, without a routine look.
    pub(crate) routine_pause: Duration,
    /// The number of calls under way beyond which others wait: see [`window`](super::window).
    pub(crate) window: usize,
    /// See [`ZooKeeperClient::jute_max_buffer`](crate::client::port::ZooKeeperClient::jute_max_buffer).
    pub(crate) jute_max_buffer: usize,
    /// The session was opened after this moment, if that is known.
    pub(crate) opened_after: Option<Moment>,
    /// Distinguishes the requests of the session from those of all others.
    pub(crate) tag: SessionTag,
    /// The seed of what is drawn at random: the delays of retries and of routine looks.
    pub(crate) seed: u64,
}

/// The parameters of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RequestSpec {
    pub(crate) dir: ZNodePath,
    /// The name of the znode up to its sequence number. `Request::new` makes it, with a GUID: no other request has it.
    pub(crate) prefix: String,
    pub(crate) data: Arc<[u8]>,
    pub(crate) acl: Arc<[Acl]>,
    pub(crate) retry: RetryPolicy,
    pub(crate) access: Access,
    /// The kind of znode for a missing directory.
    pub(crate) directory_mode: CreateMode,
    /// The longest time for which it holds the lock.
    pub(crate) max_hold: Option<Duration>,
}

/// The next step of a look for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookStep {
    /// Make this call. Its outcome follows.
    Call(Call),
    /// The look has ended, and has left a watch on everything that may outdate it.
    Seen,
    /// The look has ended. Something changed meanwhile, so no watch was left.
    Changed,
    Failed(ZkError),
}

// ---- out

/// An instruction for the driver, which takes them up in their order. What calls others is done after the
/// mutex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Make this call, and pass its outcome to [`Engine::handle_reply`](super::Engine::handle_reply).
    Submit(CallId, Call, Priority),
    /// Remove the watch on this path from the server. A look that follows sets it after that.
    RemoveWatch(ZNodePath),
    /// Something has happened: for the log, the hook, and the observer of a request.
    Happened(Event),
    /// The first outcome of a deletion.
    RemovalAnswered(ParticipantId, ZkResult<()>),
    /// Could not be deleted before the session ended: for a session that follows.
    LeftBehind(ParticipantId, Target),
    /// Begin a look at what is tracked. [`Engine::handle_look`](super::Engine::handle_look) gets its next step.
    BeginLook(ParticipantId),
    /// Go on with that look, with the outcome of its call.
    ReadFor(ParticipantId, ZkResult<Reply>),
    /// The outcome of a call that somebody else has [asked](super::Engine::ask) for.
    Answered(ParticipantId, ZkResult<Reply>),
    /// The session has ended, and the tracking with it.
    Untracked(ParticipantId, LossReason),
    /// Notify the participants of the end, by [`Engine::complete_end`](super::Engine::complete_end).
    Ending,
    /// Nothing is left to do: close the client.
    Finished,
}

/// What a session leaves at its end, for the one that follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The znode at this path.
    ZNode(ZNodePath),
    /// Whatever sessions with these tags have in this directory: the reply to a create was lost.
    Strays { dir: ZNodePath, tags: BTreeSet<SessionTag> },
}

/// The place of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Its znode does not exist yet, or no listing has shown it.
    Unknown,
    /// Known to be behind another.
    Queued,
    Owner,
}

/// What has happened. The log prints it and the hook gets it, as far as it concerns them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A server serves the session.
    Connected,
    /// Contact is lost; the session may live.
    Suspended,
    /// The session has ended, and all that lives on it with it.
    SessionEnded(LossReason),
    /// Another session takes the place of one that was lost. Not of the engine, which has one session.
    SessionReplaced,
    Request(ParticipantId, RequestEvent),
    /// Requests wait for this znode, which no session's end deletes.
    Persistent(ZNodePath),
    /// This znode is named as a request, but is a directory.
    Directory(ZNodePath),
    /// Requests of other libraries in this directory may own beside ours.
    Peers {
        dir: ZNodePath,
        mismatch: String,
    },
    /// This znode of the session, which no request has, is to be deleted.
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
    /// A search has found its znode, whose creation was not confirmed.
    FoundAgain { znode: ZNodePath },
    /// Its znode exists; with the fencing token, if the server has returned it.
    Joined { znode: ZNodePath, token: Option<i64> },
    /// It is behind another.
    Placed { ahead: ZNodePath, number_ahead: Option<usize> },
    /// It owns the lock.
    Acquired { waited: Duration },
    /// A thread has handed the lock over to another one of its process. Not of the engine, for which both are the
    /// same owner.
    HandedOver,
    /// Contact is lost; the request lives, and an owner owns on until its lease ends.
    Suspended { is_owner: bool },
    /// Another client asks for the lock.
    RevocationRequested,
    /// The request has ended, and was there then. `time` is how long it waited or, for an owner, how long it held the
    /// lock.
    Ended { place: Place, how: Ending, time: Duration },
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    Withdrawn,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Taken out of the queue; by a failure if there is one.
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
    /// Returns whether it is news to the lock of the request: a turning point that the lock has not caused itself, or
    /// the release of what it has owned.
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
