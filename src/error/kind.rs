//! [`ErrorKind`]: what a [`LockError`] means for the application.
//!
//! Origin: ZooKeeper's page on error handling, with its recoverable errors, fatal errors and normal
//! state exceptions.

use super::LockError;

/// The meaning of a [`LockError`] for the application.
///
/// | kind | it means | what to do |
/// |---|---|---|
/// | `Recoverable` | something is missing for now, mostly contact; the session may live | repeat the call later |
/// | `Fatal` | the session, or the lock, has ended | set up on a new session what relied on it |
/// | `Normal` | everything works, and the answer is not the hoped-for one | handle it at the call; the same call fails again |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The same call can succeed later, on the same session if there is one.
    ///
    /// - [`ConnectionLoss`](LockError::ConnectionLoss): the call may have taken effect. Find out
    ///   first where that matters.
    /// - [`Connect`](LockError::Connect), [`Thread`](LockError::Thread): repeat after a while.
    /// - [`Refused`](LockError::Refused): repeat after a while.
    /// - [`SessionFull`](LockError::SessionFull): repeat when locks were released, or on another session.
    Recoverable,
    /// The session, or the lock, has ended for good. Only the application can set up again what
    /// relied on it. A call that was under way may have taken effect.
    ///
    /// - [`SessionLost`](LockError::SessionLost): the session is gone, with its locks. Or, with the reason
    ///   [`LeaseExpired`](crate::LossReason::LeaseExpired), the lock alone: see whether
    ///   [`Session::state`](crate::Session::state) is `Lost`.
    /// - [`Closed`](LockError::Closed): this process closed it.
    Fatal,
    /// Other clients change the tree too, or the call cannot be right.
    ///
    /// - [`Server`](LockError::Server): the source says more: `NodeExists`, `NoNode`, `BadVersion`,
    ///   `NotEmpty`.
    /// - [`Cancelled`](LockError::Cancelled): another thread of this process wanted it.
    /// - [`OutcomeUnknown`](LockError::OutcomeUnknown): read what exists and go on from there.
    /// - [`RequestDeleted`](LockError::RequestDeleted), [`HeldTooLong`](LockError::HeldTooLong),
    ///   [`NotOwner`](LockError::NotOwner): the lock is not held. Lock again if it is still needed.
    /// - [`AccessDenied`](LockError::AccessDenied), [`NoChroot`](LockError::NoChroot),
    ///   [`CredentialsRefused`](LockError::CredentialsRefused),
    ///   [`NotZooKeeper`](LockError::NotZooKeeper),
    ///   [`Unsupported`](LockError::Unsupported), [`EndsConnection`](LockError::EndsConnection),
    ///   [`SequenceExhausted`](LockError::SequenceExhausted): an operator must change something.
    /// - [`NoSuchRequest`](LockError::NoSuchRequest): nothing is left to do.
    /// - [`Other`](LockError::Other): the application has made it.
    /// - [`InvalidPath`](LockError::InvalidPath), [`InvalidArgument`](LockError::InvalidArgument),
    ///   [`InvalidAcl`](LockError::InvalidAcl),
    ///   [`NotALockDirectory`](LockError::NotALockDirectory),
    ///   [`NotALockRequest`](LockError::NotALockRequest),
    ///   [`LeaderPanicked`](LockError::LeaderPanicked): correct the program.
    Normal,
}

impl LockError {
    /// Returns what the error means for the application.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            LockError::Connect { .. }
            | LockError::ConnectionLoss { .. }
            | LockError::Refused { .. }
            | LockError::SessionFull { .. }
            | LockError::Thread { .. } => ErrorKind::Recoverable,
            LockError::SessionLost { .. } | LockError::Closed { .. } => ErrorKind::Fatal,
            LockError::InvalidPath { .. }
            | LockError::InvalidArgument { .. }
            | LockError::CredentialsRefused { .. }
            | LockError::EndsConnection { .. }
            | LockError::NotZooKeeper { .. }
            | LockError::OutcomeUnknown { .. }
            | LockError::NoChroot { .. }
            | LockError::SequenceExhausted { .. }
            | LockError::RequestDeleted { .. }
            | LockError::HeldTooLong { .. }
            | LockError::NotALockRequest { .. }
            | LockError::NoSuchRequest { .. }
            | LockError::LeaderPanicked { .. }
            | LockError::AccessDenied { .. }
            | LockError::InvalidAcl { .. }
            | LockError::NotALockDirectory { .. }
            | LockError::Cancelled { .. }
            | LockError::NotOwner { .. }
            | LockError::Unsupported { .. }
            | LockError::Other { .. }
            | LockError::Server { .. } => ErrorKind::Normal,
        }
    }

    /// Returns whether the [kind](LockError::kind) is [`Recoverable`](ErrorKind::Recoverable).
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.kind() == ErrorKind::Recoverable
    }

    /// Returns whether the [kind](LockError::kind) is [`Fatal`](ErrorKind::Fatal).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.kind() == ErrorKind::Fatal
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::{LossReason, ZkError};

    /// The compiler checks that `kind` covers every variant.
    #[test]
    fn every_error_has_its_kind() {
        let (operation, path, timeout) = ("test", String::new(), Duration::ZERO);
        let (rule, reason, source) = ("rule", LossReason::SessionExpired, ZkError::NoNode);
        let recoverable = [
            LockError::Connect { tried: path.clone(), timeout },
            LockError::ConnectionLoss { operation, path: path.clone(), source },
            LockError::Refused { operation, path: path.clone(), source },
            LockError::SessionFull { operation, path: path.clone(), limit: 1 },
            LockError::thread(std::io::ErrorKind::WouldBlock.into()),
        ];
        let fatal = [
            LockError::SessionLost { operation, path: path.clone(), reason },
            LockError::Closed { operation, path: path.clone() },
        ];
        let normal = [
            LockError::InvalidPath { path: path.clone(), rule },
            LockError::InvalidArgument { argument: "test", rule: rule.to_owned() },
            LockError::CredentialsRefused { servers: path.clone(), reason: "a reason" },
            LockError::NotZooKeeper { servers: path.clone(), reason: "a reason" },
            LockError::Unsupported { operation, path: path.clone() },
            LockError::OutcomeUnknown { operation, path: path.clone(), source },
            LockError::EndsConnection { operation, path: path.clone(), source },
            LockError::NoChroot { operation, path: path.clone(), chroot: None },
            LockError::SequenceExhausted { path: path.clone() },
            LockError::RequestDeleted { path: path.clone() },
            LockError::HeldTooLong { path: path.clone() },
            LockError::NotALockRequest { path: path.clone(), rule },
            LockError::NoSuchRequest { path: path.clone() },
            LockError::LeaderPanicked { path: path.clone(), message: String::new() },
            LockError::AccessDenied { operation, path: path.clone(), permission: "READ", source },
            LockError::InvalidAcl { operation, path: path.clone(), source },
            LockError::Cancelled { operation, path: path.clone() },
            LockError::NotALockDirectory { path: path.clone() },
            LockError::NotOwner { operation, path: path.clone() },
            LockError::Server { operation, path, source },
            LockError::other("test"),
        ];
        let assert_kind = |errors: &[LockError], kind| {
            for error in errors {
                let predicates = (kind == ErrorKind::Recoverable, kind == ErrorKind::Fatal);
                assert_eq!(error.kind(), kind, "{error:?}");
                assert_eq!((error.is_recoverable(), error.is_fatal()), predicates, "{error:?}");
            }
        };
        assert_kind(&recoverable, ErrorKind::Recoverable);
        assert_kind(&fatal, ErrorKind::Fatal);
        assert_kind(&normal, ErrorKind::Normal);
    }

    #[test]
    fn a_message_without_a_source_names_the_remedy() {
        let (operation, path) = ("lock", "/a".to_owned());
        let cases = [
            (LockError::Cancelled { operation, path: path.clone() }, "lock '/a': ", "new cancel token"),
            (LockError::NotOwner { operation, path: path.clone() }, "lock '/a': ", "lock again"),
            (LockError::Closed { operation, path: path.clone() }, "lock '/a': ", "new session"),
            (
                LockError::NotALockRequest { path: path.clone(), rule: "rule" },
                "revoke '/a': ",
                "give the path",
            ),
            (LockError::LeaderPanicked { path, message: "boom".into() }, "lead '/a': ", "start another"),
            (LockError::Connect { tried: "b".into(), timeout: Duration::ZERO }, "connect: ", "check"),
        ];
        for (error, beginning, advice) in cases {
            let message = error.to_string();
            assert!(message.starts_with(beginning) && message.contains(advice), "{message}");
        }
    }
}
