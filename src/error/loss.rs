//! [`LossReason`]: why a lock or a request was lost.

use std::fmt;

/// The reason why a lock or a request was lost.
///
/// The [`ErrorReason`](crate::ErrorReason) of a call that fails for the same reason has the same name. Only `Failed` has
/// no counterpart: the call returns the error of what failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The session ended: the server ended it, or the client gave it up after a session timeout without contact.
    SessionLost,
    /// The session was not proven alive in time.
    ///
    /// The server may have given the lock to another client. The session lived on when the lease ended.
    /// [`Session::state`](crate::Session::state) shows whether it still does.
    LeaseExpired,
    /// Another client deleted the znode.
    NodeDeleted,
    /// A call that a request needs to get its lock has failed permanently.
    ///
    /// For example, the server refused the call because of an ACL, the retry policy gave up, or the sequence numbers
    /// are used up. An owner does not lose its lock in this way: it tries again while its lease lasts.
    Failed,
    /// This process closed the [`Session`](crate::Session).
    Closed,
    /// The lock was held as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows.
    ///
    /// The session lives on.
    HeldTooLong,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::SessionLost => "session lost",
            LossReason::LeaseExpired => "no contact for too long",
            LossReason::NodeDeleted => "znode deleted by another client",
            LossReason::Failed => "a call failed",
            LossReason::Closed => "session closed",
            LossReason::HeldTooLong => "held for too long",
        })
    }
}
