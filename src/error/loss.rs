//! [`LossReason`]: why a lock or a request was lost.

use std::fmt;

/// The reason why a lock or a request was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The server ended the session, or the client gave it up.
    SessionExpired,
    /// The session was not proven alive in time.
    ///
    /// The server may have given the lock to another client. The session itself may live on.
    /// [`Session::state`](crate::Session::state) shows whether it does.
    LeaseExpired,
    /// Another client deleted the znode.
    NodeDeleted,
    /// A call that a request needs to get its lock has failed permanently.
    ///
    /// For example, the server refused the call because of an ACL, the retry policy gave up, or the sequence numbers
    /// are used up. An owner does not lose its lock in this way: it tries again while its lease lasts.
    Refused,
    /// This process closed the [`Session`](crate::Session).
    SessionClosed,
    /// The lock was held as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows.
    ///
    /// The session lives on.
    HeldTooLong,
}

impl LossReason {
    /// Returns whether the operation may succeed on a new session.
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
