//! [`ErrorKind`]: what to do about a [`LockError`].
//!
//! Origin: ZooKeeper's wiki page on error handling.

use super::{ErrorReason, LockError};

/// What to do about a [`LockError`].
///
/// - `Retry`: pause, and try again. If the lock is no longer held, lock again.
/// - `Reconnect`: open a new session, and lock again on it.
/// - `Permanent`: do not repeat the call. Handle the [reason](LockError::reason), or report it.
///
/// ```
/// use zookeeper_recipes_lock::{ErrorKind, LockError};
///
/// fn advice(error: &LockError) -> &'static str {
///     match error.kind() {
///         ErrorKind::Retry => "lock again after a pause",
///         ErrorKind::Reconnect => "open a new session, and lock again",
///         _ => "report the error to a person",
///     }
/// }
/// ```
///
/// ZooKeeper's own documentation calls these kinds recoverable errors, fatal errors and normal state
/// exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The same call can succeed later, on the same session.
    ///
    /// - [`ConnectionLoss`](ErrorReason::ConnectionLoss): the call may have taken effect. If that matters, find out
    ///   first whether it did.
    /// - [`NoServer`](ErrorReason::NoServer), [`Thread`](ErrorReason::Thread),
    ///   [`Refused`](ErrorReason::Refused).
    /// - [`SessionFull`](ErrorReason::SessionFull): release locks first, or use another session.
    /// - [`RequestDeleted`](ErrorReason::RequestDeleted), [`HeldTooLong`](ErrorReason::HeldTooLong): the lock is no
    ///   longer held. If you still need it, lock again.
    #[doc(alias = "Recoverable")]
    Retry,
    /// The session, or the lease of the lock, has ended. A pending call may have taken effect.
    ///
    /// - [`SessionLost`](ErrorReason::SessionLost): if the reason is
    ///   [`LossReason::LeaseExpired`](crate::LossReason::LeaseExpired), the session itself may live on.
    ///   [`Session::state`](crate::Session::state) shows whether it does. If so, lock again on the same
    ///   session.
    #[doc(alias = "Fatal")]
    Reconnect,
    /// The same call would fail again, or must not be repeated blindly.
    ///
    /// - [`Server`](ErrorReason::Server): another client has probably changed the tree. The server's error says more:
    ///   `NodeExists`, `NoNode`, `BadVersion`, `NotEmpty`.
    /// - [`OutcomeUnknown`](ErrorReason::OutcomeUnknown): read what exists, and continue from there.
    /// - [`Cancelled`](ErrorReason::Cancelled), [`Closed`](ErrorReason::Closed): this process ended the call.
    /// - [`NotOwner`](ErrorReason::NotOwner): this guard will never own the lock again. Drop it, and lock again.
    /// - [`NoSuchRequest`](ErrorReason::NoSuchRequest): nothing is left to do.
    /// - [`Other`](ErrorReason::Other): an error of the application.
    /// - [`AccessDenied`](ErrorReason::AccessDenied), [`NoChroot`](ErrorReason::NoChroot),
    ///   [`CredentialsRefused`](ErrorReason::CredentialsRefused),
    ///   [`NotZooKeeper`](ErrorReason::NotZooKeeper), [`InvalidTls`](ErrorReason::InvalidTls),
    ///   [`CertificateRefused`](ErrorReason::CertificateRefused),
    ///   [`Unsupported`](ErrorReason::Unsupported), [`EndsConnection`](ErrorReason::EndsConnection),
    ///   [`SequenceExhausted`](ErrorReason::SequenceExhausted), [`InvalidAcl`](ErrorReason::InvalidAcl),
    ///   [`ServerDiverged`](ErrorReason::ServerDiverged): an operator must change something.
    /// - [`InvalidArgument`](ErrorReason::InvalidArgument), [`CallTooLong`](ErrorReason::CallTooLong),
    ///   [`NotALock`](ErrorReason::NotALock), [`LeaderPanicked`](ErrorReason::LeaderPanicked): correct the program.
    #[doc(alias = "Normal")]
    Permanent,
}

impl LockError {
    /// Returns what to do about the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.reason().kind()
    }
}

impl ErrorReason {
    fn kind(self) -> ErrorKind {
        match self {
            ErrorReason::NoServer
            | ErrorReason::ConnectionLoss
            | ErrorReason::Refused
            | ErrorReason::SessionFull
            | ErrorReason::Thread
            | ErrorReason::RequestDeleted
            | ErrorReason::HeldTooLong => ErrorKind::Retry,
            ErrorReason::SessionLost(_) => ErrorKind::Reconnect,
            ErrorReason::InvalidArgument
            | ErrorReason::InvalidTls
            | ErrorReason::CertificateRefused
            | ErrorReason::CredentialsRefused
            | ErrorReason::EndsConnection
            | ErrorReason::CallTooLong
            | ErrorReason::NotZooKeeper
            | ErrorReason::OutcomeUnknown
            | ErrorReason::NoChroot
            | ErrorReason::SequenceExhausted
            | ErrorReason::NotALock
            | ErrorReason::NoSuchRequest
            | ErrorReason::ServerDiverged
            | ErrorReason::LeaderPanicked
            | ErrorReason::AccessDenied
            | ErrorReason::InvalidAcl
            | ErrorReason::Cancelled
            | ErrorReason::Closed
            | ErrorReason::NotOwner
            | ErrorReason::Unsupported
            | ErrorReason::Server(_)
            | ErrorReason::Other => ErrorKind::Permanent,
        }
    }
}
