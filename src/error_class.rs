//! The classes of [`LockError`]: what an error means for the application.
//!
//! Origin: ZooKeeper's page on error handling, with its recoverable errors, fatal errors and normal state exceptions.

use crate::error::LockError;

/// What an error means for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Recoverable,
    Fatal,
    Normal,
}

impl LockError {
    /// Whether the same call can succeed later, as it is, on the same session if there is one.
    ///
    /// [`ConnectionLoss`](LockError::ConnectionLoss): it may have taken effect, so find out first
    /// where that matters. [`DeletePending`](LockError::DeletePending): the crate itself tries
    /// again, and nothing is left to do. [`Connect`](LockError::Connect),
    /// [`Thread`](LockError::Thread): try again after a while. [`Refused`](LockError::Refused): so
    /// too, but not for ever, as the server may not know the operation.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        self.class() == Class::Recoverable
    }

    /// Whether the session, or what the call was made on, has ended for good: everything that relied on it must be set up
    /// again on a new one, which only the application can do.
    ///
    /// [`SessionLost`](LockError::SessionLost): it is gone, and so are its locks.
    /// [`Closed`](LockError::Closed): this process has closed it itself.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        self.class() == Class::Fatal
    }

    /// Whether everything lives and the answer is just not the one that was wished for: the normal state of a tree that
    /// others change too, or a call that cannot be right.
    ///
    /// - [`Client`](LockError::Client): by its source, as `NodeExists`, `NoNode`, `BadVersion` or `NotEmpty`.
    /// - [`Cancelled`](LockError::Cancelled): as another thread of this process wished.
    /// - [`OutcomeUnknown`](LockError::OutcomeUnknown): read what is there and go on from that.
    /// - [`RequestDeleted`](LockError::RequestDeleted), [`NotOwner`](LockError::NotOwner): the lock is not held; lock again
    ///   if it is still wanted.
    /// - [`AccessDenied`](LockError::AccessDenied), [`NoChroot`](LockError::NoChroot),
    ///   [`SequenceExhausted`](LockError::SequenceExhausted): tell an operator, who can change it.
    /// - [`NoSuchRequest`](LockError::NoSuchRequest): nothing is left to do.
    /// - [`InvalidPath`](LockError::InvalidPath), [`InvalidArgument`](LockError::InvalidArgument),
    ///   [`InvalidAcl`](LockError::InvalidAcl), [`NotALockDirectory`](LockError::NotALockDirectory),
    ///   [`NotALockRequest`](LockError::NotALockRequest): correct the caller.
    /// - [`LeaderPanicked`](LockError::LeaderPanicked): correct the closure.
    #[must_use]
    pub fn is_normal(&self) -> bool {
        self.class() == Class::Normal
    }

    fn class(&self) -> Class {
        match self {
            LockError::Connect { .. }
            | LockError::ConnectionLoss { .. }
            | LockError::DeletePending { .. }
            | LockError::Refused { .. }
            | LockError::Thread { .. } => Class::Recoverable,
            LockError::SessionLost { .. } | LockError::Closed { .. } => Class::Fatal,
            LockError::InvalidPath { .. }
            | LockError::InvalidArgument { .. }
            | LockError::OutcomeUnknown { .. }
            | LockError::NoChroot { .. }
            | LockError::SequenceExhausted { .. }
            | LockError::RequestDeleted { .. }
            | LockError::NotALockRequest { .. }
            | LockError::NoSuchRequest { .. }
            | LockError::LeaderPanicked { .. }
            | LockError::AccessDenied { .. }
            | LockError::InvalidAcl { .. }
            | LockError::NotALockDirectory { .. }
            | LockError::Cancelled { .. }
            | LockError::NotOwner { .. }
            | LockError::Client { .. } => Class::Normal,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::client::ZkError;

    use super::*;
    use crate::error::LossReason;

    /// That no variant is left out is the compiler's to see, as `class` names each.
    #[test]
    fn every_error_is_of_exactly_one_class() {
        let (operation, path, timeout) = ("test", String::new(), Duration::ZERO);
        let (rule, reason, source) = ("rule", LossReason::SessionExpired, ZkError::NoNode);
        let recoverable = [
            LockError::Connect { tried: path.clone(), timeout },
            LockError::ConnectionLoss { operation, path: path.clone(), source },
            LockError::DeletePending { path: path.clone() },
            LockError::Refused { operation, path: path.clone(), source },
            LockError::Thread { source: std::io::ErrorKind::WouldBlock.into() },
        ];
        let fatal = [
            LockError::SessionLost { operation, path: path.clone(), reason },
            LockError::Closed { operation, path: path.clone() },
        ];
        let normal = [
            LockError::InvalidPath { path: path.clone(), rule },
            LockError::InvalidArgument { argument: "test", rule: rule.to_owned() },
            LockError::OutcomeUnknown { operation, path: path.clone(), source },
            LockError::NoChroot { operation, path: path.clone() },
            LockError::SequenceExhausted { path: path.clone() },
            LockError::RequestDeleted { path: path.clone() },
            LockError::NotALockRequest { path: path.clone(), rule },
            LockError::NoSuchRequest { path: path.clone() },
            LockError::LeaderPanicked { path: path.clone(), message: String::new() },
            LockError::AccessDenied { operation, path: path.clone(), permission: "READ", source },
            LockError::InvalidAcl { operation, path: path.clone(), source },
            LockError::Cancelled { operation, path: path.clone() },
            LockError::NotALockDirectory { path: path.clone() },
            LockError::NotOwner { operation, path: path.clone() },
            LockError::Client { operation, path, source },
        ];
        let classes = |error: &LockError| [error.is_recoverable(), error.is_fatal(), error.is_normal()];
        let of = |errors: &[LockError], expected: [bool; 3]| {
            errors.iter().for_each(|error| assert_eq!(classes(error), expected, "{error:?}"));
        };
        of(&recoverable, [true, false, false]);
        of(&fatal, [false, true, false]);
        of(&normal, [false, false, true]);
    }

    #[test]
    fn a_message_without_a_source_says_what_to_do() {
        let (operation, path) = ("lock", "/a".to_owned());
        let cases = [
            (LockError::Cancelled { operation, path: path.clone() }, "lock '/a': ", "another cancel handle"),
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
