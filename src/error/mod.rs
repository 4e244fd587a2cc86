//! [`LockError`], the only error of this crate, [`LossReason`], why a lock was taken away, and
//! [`ZkError`], what a client reports.

mod kind;
mod loss;
mod operation;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::kind::ErrorKind;
pub use self::loss::LossReason;
pub(crate) use self::operation::Operation;
pub use zookeeper_connection::{ZkError, ZkResult};

/// The result of this crate's fallible functions. Signatures in these pages call it `Result`.
pub type Result<T> = std::result::Result<T, LockError>;

/// The reason why an operation failed.
///
/// The message names the operation, the path, the cause and what the caller can do, so it is complete
/// without the [`source`](std::error::Error::source), which is the server's or the client's own error.
/// Cloning is cheap: all who wait for one request get the same error.
/// [`kind`](LockError::kind) classifies an error by what the application can do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// The path breaks a rule of ZooKeeper or of this crate; nothing was sent.
    #[error("invalid path '{path}': {rule}")]
    #[non_exhaustive]
    InvalidPath {
        /// The path, escaped and shortened for display.
        path: String,
        /// The rule that it breaks.
        rule: &'static str,
    },

    /// An argument other than a path is out of bounds; nothing was sent.
    #[error("invalid {argument}: {rule}")]
    #[non_exhaustive]
    InvalidArgument {
        /// The name of the argument.
        argument: &'static str,
        /// The rule that it breaks.
        rule: String,
    },

    /// No server of the connect string answered in time.
    #[error(
        "connect: no ZooKeeper server could be reached within {timeout:?}, check the connect string and the servers; tried \
         {tried}"
    )]
    #[non_exhaustive]
    Connect {
        /// Each server that was tried, with the outcome.
        tried: String,
        /// The time allowed.
        timeout: Duration,
    },

    /// A server refused this client for its credentials:
    /// - It does not know the scheme of a credential of
    ///   [`SessionBuilder::auth`](crate::SessionBuilder::auth), or the credential is wrong.
    /// - No server accepts the authentication by SASL (`SessionBuilder::sasl_digest`, `SessionBuilder::kerberos`).
    /// - It demands an authentication, by SASL or another of its `enforce.auth.schemes`, and no
    ///   server of the list answered without one.
    #[error("connect to {servers}: {reason}")]
    #[non_exhaustive]
    CredentialsRefused {
        /// The servers of the connect string.
        servers: String,
        /// What the server refuses or demands.
        reason: &'static str,
    },

    /// The servers are none of ZooKeeper's, and their sessions end too early for a lock. Only
    /// ClickHouse Keeper is known for that. Connect to ZooKeeper.
    #[error("connect to {servers}: {reason}")]
    #[non_exhaustive]
    NotZooKeeper {
        /// The servers of the connect string.
        servers: String,
        /// What the servers are, and why no lock is safe there.
        reason: &'static str,
    },

    /// Contact was lost, or never came back, while the operation ran; it may or may not have taken
    /// effect. The session may live: try again.
    #[error("{operation} '{path}': connection lost; try again, the session may still live")]
    #[non_exhaustive]
    ConnectionLoss {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The client's error.
        #[source]
        source: ZkError,
    },

    /// Contact was lost during an attempt, and nothing shows whether it took effect or may still do so.
    /// Read the znode and continue from its current state. A server that was paused may pass a request on
    /// for about `syncLimit` of its ticks, 10 s by default.
    #[error(
        "{operation} '{path}': the reply was lost, and the current state does not show the outcome ({source}); read it \
         and continue from there"
    )]
    #[non_exhaustive]
    OutcomeUnknown {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The error that lost the reply, or kept the outcome from being read.
        #[source]
        source: ZkError,
    },

    /// The session ended, and with it every lock and every request on it; or, with the reason
    /// [`LeaseExpired`](LossReason::LeaseExpired), this lock's lease ended on a session that may
    /// live on ([`Session::state`](crate::Session::state) shows which). Connect a new session and
    /// lock again.
    #[error("{operation} '{path}': {}", how_it_was_lost(*reason))]
    #[non_exhaustive]
    SessionLost {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The reason for the end.
        reason: LossReason,
    },

    /// The root of the session's paths does not exist: the connect string names a chroot that
    /// nobody has created. Create it, or let
    /// [`SessionBuilder::create_chroot`](crate::SessionBuilder::create_chroot) do so.
    #[error(
        "{operation} '{path}': {} does not exist; create it first: SessionBuilder::create_chroot(true), or 'create' of \
         zkCli.sh for each znode on the way",
        named_chroot(chroot.as_deref())
    )]
    #[non_exhaustive]
    NoChroot {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode, below the chroot.
        path: String,
        /// The chroot. `None` for a client that does not
        /// [report](crate::client::ZooKeeperClient::chroot) it.
        chroot: Option<String>,
    },

    /// The sequence numbers of the lock directory have reached their end, 2147483647. Servers may
    /// repeat numbers there, so the numbers do not show which of two requests came first. The
    /// request is withdrawn. Delete the directory when it is empty: the numbers of a new one start
    /// at 0.
    #[error("the directory of '{path}' has no sequence numbers left; delete it when nobody holds the lock")]
    #[non_exhaustive]
    SequenceExhausted {
        /// The znode of the request.
        path: String,
    },

    /// A [`Revoker`](crate::Revoker) was given the path of a znode that is no lock request; nothing
    /// was written or deleted. The name of a request ends in a sequence number, and a request is
    /// deleted with its session. Neither holds for a lock directory.
    #[error("revoke '{path}': {rule}, so it is no lock request; give the path of the znode of one")]
    #[non_exhaustive]
    NotALockRequest {
        /// The path of the znode.
        path: String,
        /// The reason why the znode is no lock request.
        rule: &'static str,
    },

    /// A [`Revoker`](crate::Revoker) was given the path of a request that no longer exists, so
    /// there is no holder to ask. If the request held the lock, it has been released.
    #[error("revoke '{path}': there is no such lock request (any more); nothing is left to do")]
    #[non_exhaustive]
    NoSuchRequest {
        /// The path of the znode.
        path: String,
    },

    /// Another client deleted the znode of this request, so its place in the queue, or the lock, is
    /// gone. Lock again.
    #[error("the znode '{path}' of this lock request was deleted by another client; lock again")]
    #[non_exhaustive]
    RequestDeleted {
        /// The deleted znode.
        path: String,
    },

    /// The lock was held for as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows, and was lost
    /// then. The work under it may have overlapped with the next owner's.
    #[error(
        "'{path}' was held for longer than its max_hold allows, and was lost; lock again, or raise the limit"
    )]
    #[non_exhaustive]
    HeldTooLong {
        /// The znode, which is deleted.
        path: String,
    },

    /// The server refused the operation for lack of a permission. Check the ACL of the znode and
    /// the credentials added to the connection.
    #[error(
        "{operation} '{path}': access denied; the ACL grants this client no {permission} permission there"
    )]
    #[non_exhaustive]
    AccessDenied {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The permission that was missing.
        permission: &'static str,
        /// The client's error.
        #[source]
        source: ZkError,
    },

    /// The server refused the ACL of a new znode. There are two causes:
    /// - The ACL is empty, or has a scheme or an id that the server does not know. Correct it.
    /// - It grants rights to the client that creates the znode (scheme `auth`, as in
    ///   [`Acl::creator_all`](crate::Acl::creator_all)), and the client has no identity.
    ///   Authenticate the connection first, by [`SessionBuilder::auth`](crate::SessionBuilder::auth).
    #[error(
        "{operation} '{path}': the server refuses the ACL of the new znode; either the ACL is empty or has an unknown \
         scheme or id: correct it; or it is for its creator (scheme 'auth', as in creator_all), and this client has no \
         identity: authenticate the connection first (SessionBuilder::auth)"
    )]
    #[non_exhaustive]
    InvalidAcl {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The client's error.
        #[source]
        source: ZkError,
    },

    /// The [`CancelToken`](crate::CancelToken) was cancelled before the wait ended. No request is
    /// left in the queue.
    #[error("{operation} '{path}': cancelled by another thread; to wait again, take a new cancel token")]
    #[non_exhaustive]
    Cancelled {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the lock directory or znode, or the servers.
        path: String,
    },

    /// The closure of a [`Candidate`](crate::Candidate) panicked while it led. Leadership was
    /// released, and the candidate has ended. A panic elsewhere on the candidate's thread, which would be a mistake of this
    /// crate, is reported in the same way.
    #[error(
        "lead '{path}': the closure panicked, and the candidate has ended; fix it and start another ({message})"
    )]
    #[non_exhaustive]
    LeaderPanicked {
        /// The directory of the election.
        path: String,
        /// The message of the panic.
        message: String,
    },

    /// This guard or lock owns nothing, or no longer owns anything.
    #[error("{operation} '{path}': the lock is not held (any more); drop its guards and lock again")]
    #[non_exhaustive]
    NotOwner {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
    },

    /// The znode has data or belongs to a session, so it is no lock directory, and was left alone.
    #[error(
        "remove '{path}': it has data or belongs to a session, so it is no lock directory; it was left alone"
    )]
    #[non_exhaustive]
    NotALockDirectory {
        /// The znode.
        path: String,
    },

    /// The lock or the session was closed.
    #[error(
        "{operation} '{path}': closed by this process; use a new one, on a new session if that was closed"
    )]
    #[non_exhaustive]
    Closed {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode or directory.
        path: String,
    },

    /// A quota is exceeded, or the server throttles its clients. The source names the cause, except
    /// on the crate `zookeeper`, which does not report it. Nothing was done. Try again later.
    #[error(
        "{operation} '{path}': the server refuses, because a quota is exceeded or requests are throttled ({source}); \
         check the quota and try again later"
    )]
    #[non_exhaustive]
    Refused {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The client's error.
        #[source]
        source: ZkError,
    },

    /// The session has as many ephemeral znodes as one transaction can name; nothing was sent. Release locks, or
    /// use several sessions. If the servers have a larger `jute.maxbuffer`, state it:
    /// [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer).
    #[error(
        "{operation} '{path}': the paths of the session's ephemeral znodes may have {limit} bytes together, or its end \
         could take the ensemble down; release locks, use several sessions, or state a larger jute.maxbuffer of the \
         servers (SessionBuilder::jute_max_buffer)"
    )]
    #[non_exhaustive]
    SessionFull {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode or directory.
        path: String,
        /// The bound, in bytes.
        limit: usize,
    },

    /// The server, or the client that the session uses, does not implement the operation. Nothing
    /// was done. It needs a newer server, or a session of
    /// [`Session::connect`](crate::Session::connect).
    #[error(
        "{operation} '{path}': not implemented by this server or client; upgrade the server, or use the crate's own \
         connection"
    )]
    #[non_exhaustive]
    Unsupported {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
    },

    /// The server closes the connection whenever it gets this request, so it is not sent any more. The
    /// request may be longer than the server's `jute.maxbuffer`, or the server may not know the
    /// operation. A repetition on this session fails at once.
    #[error("{operation} '{path}': {source}")]
    #[non_exhaustive]
    EndsConnection {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The client's error, with the length of the request.
        #[source]
        source: ZkError,
    },

    /// The server refused the operation for the reason in the source.
    #[error("{operation} '{path}': the server answered: {source}")]
    #[non_exhaustive]
    Server {
        /// The attempted operation.
        operation: &'static str,
        /// The path of the znode.
        path: String,
        /// The client's error.
        #[source]
        source: ZkError,
    },

    /// An error of the application, made by [`LockError::other`].
    #[error("{source}")]
    #[non_exhaustive]
    Other {
        /// The application's error.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },

    /// The system refused a thread, or a file descriptor that a thread needs.
    #[error("no thread could be started ({source}); check the limits of the process")]
    #[non_exhaustive]
    Thread {
        /// The system's error.
        #[source]
        source: Arc<std::io::Error>,
    },
}

fn named_chroot(chroot: Option<&str>) -> String {
    chroot.map_or_else(
        || "the chroot of the connect string".to_owned(),
        |chroot| format!("the chroot '{chroot}' of the connect string"),
    )
}

fn how_it_was_lost(reason: LossReason) -> String {
    match reason {
        LossReason::LeaseExpired => {
            format!("there was {reason}; lock again, on a new session if this one is lost")
        }
        reason => format!("the session is lost ({reason}); connect a new one"),
    }
}

impl LockError {
    /// Makes the error of a call by the application on its handle. So
    /// [`retry_operation`](crate::ProtocolSupport::retry_operation) repeats the call after a lost
    /// connection, and a factory of [`Session::from_client_factory`](crate::Session::from_client_factory) can fail.
    ///
    /// | `error` | becomes |
    /// |---|---|
    /// | `ConnectionLoss`, `OperationTimeout`, `SessionMoved` | [`ConnectionLoss`](LockError::ConnectionLoss) |
    /// | `SessionExpired` | [`SessionLost`](LockError::SessionLost) |
    /// | `NoAuth`, `AuthFailed` | [`AccessDenied`](LockError::AccessDenied) |
    /// | a quota, or throttling | [`Refused`](LockError::Refused) |
    /// | any other | that of this name, or [`Server`](LockError::Server) |
    ///
    /// ```
    /// use zookeeper_recipes_lock::{LockError, ZkError};
    ///
    /// let error = LockError::from_client("read", "/config", ZkError::ConnectionLoss);
    /// assert!(error.is_recoverable());
    /// assert_eq!(error.path(), Some("/config"));
    /// ```
    #[must_use]
    pub fn from_client(operation: &'static str, path: impl Into<String>, error: ZkError) -> LockError {
        let operation = Operation { name: operation, permission: "sufficient" };
        LockError::client(operation, path.into(), error)
    }

    /// Makes an error of anything else that has failed, for the closures and factories that return
    /// a [`LockError`]. Its [kind](LockError::kind) is [`Normal`](ErrorKind::Normal): it is not retried.
    ///
    /// ```
    /// use zookeeper_recipes_lock::LockError;
    ///
    /// let error = LockError::other("the disk is full");
    /// assert_eq!(error.to_string(), "the disk is full");
    /// ```
    #[must_use]
    pub fn other(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LockError {
        LockError::Other { source: Arc::from(source.into()) }
    }

    /// The path of the znode or the directory that the error is about, if it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            LockError::InvalidPath { path, .. }
            | LockError::ConnectionLoss { path, .. }
            | LockError::OutcomeUnknown { path, .. }
            | LockError::SessionLost { path, .. }
            | LockError::NoChroot { path, .. }
            | LockError::SequenceExhausted { path }
            | LockError::NotALockRequest { path, .. }
            | LockError::NoSuchRequest { path }
            | LockError::RequestDeleted { path }
            | LockError::HeldTooLong { path }
            | LockError::AccessDenied { path, .. }
            | LockError::InvalidAcl { path, .. }
            | LockError::Cancelled { path, .. }
            | LockError::LeaderPanicked { path, .. }
            | LockError::NotOwner { path, .. }
            | LockError::NotALockDirectory { path }
            | LockError::Closed { path, .. }
            | LockError::Refused { path, .. }
            | LockError::SessionFull { path, .. }
            | LockError::Unsupported { path, .. }
            | LockError::EndsConnection { path, .. }
            | LockError::Server { path, .. } => Some(path),
            LockError::InvalidArgument { .. }
            | LockError::Connect { .. }
            | LockError::CredentialsRefused { .. }
            | LockError::NotZooKeeper { .. }
            | LockError::Other { .. }
            | LockError::Thread { .. } => None,
        }
    }

    /// Converts a client's error on one znode.
    pub(crate) fn client(operation: Operation, path: impl fmt::Display, source: ZkError) -> LockError {
        let path = path.to_string();
        let Operation { name: operation, permission } = operation;
        match source {
            lost if lost.is_reply_lost() => LockError::ConnectionLoss { operation, path, source },
            ZkError::SessionExpired => {
                LockError::SessionLost { operation, path, reason: LossReason::SessionExpired }
            }
            ZkError::NoAuth | ZkError::AuthFailed => {
                LockError::AccessDenied { operation, path, permission, source }
            }
            ZkError::InvalidAcl => LockError::InvalidAcl { operation, path, source },
            ZkError::SessionFull { limit } => LockError::SessionFull { operation, path, limit },
            ZkError::Unimplemented => LockError::Unsupported { operation, path },
            ZkError::EndsConnection { .. } => LockError::EndsConnection { operation, path, source },
            declined if declined.is_declined() => LockError::Refused { operation, path, source },
            _ => LockError::Server { operation, path, source },
        }
    }

    /// The system could not start a thread.
    pub(crate) fn thread(source: std::io::Error) -> LockError {
        LockError::Thread { source: Arc::new(source) }
    }

    /// The error of an operation on a request, or on a session, that has ended for this reason.
    pub(crate) fn ended(operation: Operation, path: impl fmt::Display, reason: LossReason) -> LockError {
        let (operation, path) = (operation.name, path.to_string());
        match reason {
            LossReason::NodeDeleted => LockError::RequestDeleted { path },
            LossReason::HeldTooLong => LockError::HeldTooLong { path },
            LossReason::SessionClosed => LockError::Closed { operation, path },
            reason => LockError::SessionLost { operation, path, reason },
        }
    }

    /// The error of a call on a lock or a session that this process closed.
    pub(crate) fn closed(operation: Operation, path: impl fmt::Display) -> LockError {
        LockError::Closed { operation: operation.name, path: path.to_string() }
    }

    pub(crate) fn is_connection_loss(&self) -> bool {
        matches!(self, LockError::ConnectionLoss { .. })
    }

    /// Returns whether an `unlock` with this error found the lock lost.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self,
            LockError::SessionLost { .. }
                | LockError::RequestDeleted { .. }
                | LockError::HeldTooLong { .. }
                | LockError::Closed { .. }
        )
    }

    pub(crate) fn is_session_lost(&self) -> bool {
        matches!(self, LockError::SessionLost { .. })
    }
}

/// For tests that check for one variant.
#[cfg(test)]
impl LockError {
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, LockError::Closed { .. })
    }

    pub(crate) fn is_access_denied(&self) -> bool {
        matches!(self, LockError::AccessDenied { .. })
    }

    pub(crate) fn is_invalid_argument(&self) -> bool {
        matches!(self, LockError::InvalidPath { .. } | LockError::InvalidArgument { .. })
    }
}
