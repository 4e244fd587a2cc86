//! The engine's instructions for its driver: [`Effect`].

use std::time::Duration;

use super::calls::CallId;
use super::removal::Target;
use super::{Engine, ParticipantId};
use crate::client::{Call, Reply};
use crate::error::{LockError, LossReason, Operation, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// An instruction for the driver, which takes them up in their order. What calls others is done after the
/// mutex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Effect {
    /// Make this call, and pass its outcome to [`Engine::replied`](super::Engine::replied).
    Submit(CallId, Call, Priority),
    /// Remove the watch on this path from the server. A look that follows sets it after that.
    RemoveWatch(ZNodePath),
    /// Something has happened to a request.
    Report(ParticipantId, Report),
    /// The first outcome of a deletion.
    Removed(ParticipantId, ZkResult<()>),
    /// Could not be deleted before the session ended: for a session that follows.
    LeftBehind(ParticipantId, Target),
    /// Begin a look at what is tracked: [`Engine::read_for`](super::Engine::read_for) or
    /// [`Engine::looked_at_tracked`](super::Engine::looked_at_tracked) follows.
    Look(ParticipantId),
    /// The outcome of a call of that look. One of the two follows.
    ReadFor(ParticipantId, ZkResult<Reply>),
    /// The outcome of a call that somebody else has [asked](super::Engine::ask) for.
    Answered(ParticipantId, ZkResult<Reply>),
    /// The session has ended, and the tracking with it.
    Untracked(ParticipantId, LossReason),
    /// A server serves the session.
    Connected,
    Suspended,
    /// Notify the participants of the end, by [`Engine::complete_end`](super::Engine::complete_end).
    Ending,
    /// Nothing is left to do: close the client.
    Finished,
    Log(Line),
}

/// An event of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Report {
    /// Its znode exists; with the fencing token, if the server has returned it.
    Joined { znode: ZNodePath, token: Option<i64> },
    /// It is behind another.
    Placed { ahead: ZNodePath, number_ahead: Option<usize> },
    /// It owns the lock.
    Acquired { waited: Duration },
    /// Another client asks for the lock.
    RevocationRequested,
    /// It has ended, so long after it was made, or has acquired the lock.
    Ended { was_owner: bool, how: Ending, time: Duration },
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
                LockError::NoChroot { operation: Operation::CREATE.name, path: path.to_string(), chroot }
            }
            Failure::SequenceExhausted { path } => LockError::SequenceExhausted { path: path.to_string() },
        }
    }
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Line {
    FoundAgain(ZNodePath),
    JoinFailed {
        dir: ZNodePath,
        attempts: u32,
        failure: Failure,
    },
    /// It is in the queue, behind another.
    Joined {
        znode: ZNodePath,
        ahead: ZNodePath,
    },
    Persistent(ZNodePath),
    /// It looks like a request.
    Directory(ZNodePath),
    Peers {
        dir: ZNodePath,
        mismatch: String,
    },
    Stray(ZNodePath),
    Acquired(ZNodePath),
    RevocationRequested(ZNodePath),
    Released(ZNodePath),
    /// A request has ended that was not withdrawn.
    Ended {
        name: ZNodePath,
        was_placed: bool,
        how: Ending,
    },
    Suspended {
        znode: ZNodePath,
        is_owner: bool,
    },
    CannotRemove {
        path: ZNodePath,
        error: ZkError,
    },
    CannotSweep {
        dir: ZNodePath,
        error: ZkError,
    },
    Removed {
        path: ZNodePath,
        was_refused: bool,
    },
    RemovedWithSession(ZNodePath),
    SessionEnded(LossReason),
}

impl Engine {
    pub(super) fn report(&mut self, id: ParticipantId, report: Report) {
        self.effects.push_back(Effect::Report(id, report));
    }

    pub(super) fn log(&mut self, line: Line) {
        self.effects.push_back(Effect::Log(line));
    }
}
