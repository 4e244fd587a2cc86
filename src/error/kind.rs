//! [`ErrorKind`]: what to do about a [`LockError`].
//!
//! Origin: ZooKeeper's wiki page on error handling.

use super::{ErrorReason, LockError};

/// What to do about a [`LockError`].
///
/// - `Retry`: pause, and make the same call again.
/// - `LockAgain`: the lock is lost, but the session lives. Drop the guards, and lock again on the same session.
/// - `Reconnect`: the session has ended. Open a new session, and lock again on it.
/// - `Permanent`: do not repeat the call. Handle the [reason](LockError::reason), or report it.
///
/// ```
/// use zookeeper_recipes_lock::{ErrorKind, LockError};
///
/// fn advice(error: &LockError) -> &'static str {
///     match error.kind() {
///         ErrorKind::Retry => "repeat the call after a pause",
///         ErrorKind::LockAgain => "drop the guards, and lock again",
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
    #[doc(alias = "Recoverable")]
    Retry,
    /// The lock is not held, or no longer held, but the session lives. If you still need the lock, drop what is left of
    /// it, and lock again on the same session.
    ///
    /// - [`LeaseExpired`](ErrorReason::LeaseExpired), [`NodeDeleted`](ErrorReason::NodeDeleted),
    ///   [`HeldTooLong`](ErrorReason::HeldTooLong): the lock, or the place in the queue, was lost.
    /// - [`NotOwner`](ErrorReason::NotOwner): this guard will never own the lock again.
    /// - [`SessionLost`](ErrorReason::SessionLost), on a session that [replaces
    ///   itself](crate::SessionBuilder::replace_lost_sessions).
    LockAgain,
    /// The session has ended. A pending call may have taken effect.
    ///
    /// - [`SessionLost`](ErrorReason::SessionLost).
    /// - The reasons of [`LockAgain`](ErrorKind::LockAgain), if the session has been lost since.
    #[doc(alias = "Fatal")]
    Reconnect,
    /// The same call would fail again, or must not be repeated blindly.
    ///
    /// - [`Server`](ErrorReason::Server): another client has probably changed the tree. The server's error says more:
    ///   `NodeExists`, `NoNode`, `BadVersion`, `NotEmpty`.
    /// - [`OutcomeUnknown`](ErrorReason::OutcomeUnknown): read what exists, and continue from there.
    /// - [`Cancelled`](ErrorReason::Cancelled), [`Closed`](ErrorReason::Closed): this process ended the call.
    /// - The reasons of [`LockAgain`](ErrorKind::LockAgain), if this process has closed the session since.
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
    ///
    /// The kind is true of the session at the time when the error was made. It follows from the
    /// [reason](LockError::reason), unless the session has ended meanwhile or replaces itself; see [`ErrorKind`].
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl ErrorReason {
    /// The kind of an error on a session that lives or, for `SessionLost`, that does not replace itself.
    pub(super) fn kind(self) -> ErrorKind {
        match self {
            ErrorReason::NoServer
            | ErrorReason::ConnectionLoss
            | ErrorReason::Refused
            | ErrorReason::SessionFull
            | ErrorReason::Thread => ErrorKind::Retry,
            ErrorReason::LeaseExpired
            | ErrorReason::NodeDeleted
            | ErrorReason::HeldTooLong
            | ErrorReason::NotOwner => ErrorKind::LockAgain,
            ErrorReason::SessionLost => ErrorKind::Reconnect,
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
            | ErrorReason::Unsupported
            | ErrorReason::Server(_)
            | ErrorReason::Other => ErrorKind::Permanent,
        }
    }
}
