//! [`LossReason`]: why a lock was taken away.

use std::fmt;

/// The reason why a lock, or a request for one, was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The server ended the session, or the client library gave it up.
    SessionExpired,
    /// No proof of the session's life arrived in time, so the server may have given the lock to
    /// another client. The session itself may live on, and
    /// [`Session::state`](crate::Session::state) shows whether it does.
    LeaseExpired,
    /// Another client deleted the znode.
    NodeDeleted,
    /// The server refused a call that a request in the queue needs, for example after a change of an
    /// ACL. An owner is not lost by that: it looks again, for as long as its lease lasts.
    Refused,
    /// This process closed the [`Session`](crate::Session).
    SessionClosed,
    /// The lock was held for as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows. The session
    /// lives on.
    HeldTooLong,
}

impl LossReason {
    /// Returns whether the session is gone, so that the operation may succeed on a new one.
    pub(crate) fn is_session_loss(self) -> bool {
        matches!(self, LossReason::SessionExpired | LossReason::LeaseExpired)
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::SessionExpired => "session expired",
            LossReason::LeaseExpired => "no contact for too long",
            LossReason::NodeDeleted => "znode deleted by another client",
            LossReason::Refused => "refused by the server",
            LossReason::SessionClosed => "session closed",
            LossReason::HeldTooLong => "held for too long",
        })
    }
}
