//! [`ErrorReason`]: what happened when an operation failed.

use super::{LossReason, ZkError};

/// What happened when an operation failed.
///
/// [`LockError::reason`](crate::LockError::reason) returns it. Match on the reasons that your program handles itself,
/// and on the [kind](crate::LockError::kind) for the rest.
///
/// ```
/// use zookeeper_recipes_lock::{ErrorReason, LockError};
///
/// fn is_shutdown(error: &LockError) -> bool {
///     matches!(error.reason(), ErrorReason::Cancelled | ErrorReason::Closed)
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorReason {
    /// An argument is out of bounds. Nothing was sent.
    ///
    /// If the argument is a path, [`path`](crate::LockError::path) returns it, escaped and shortened for
    /// display.
    InvalidArgument,
    /// The TLS configuration cannot be used, because a file cannot be read or has the wrong content. Nothing was sent.
    InvalidTls,
    /// At each server, the client refuses the server's certificate, or the server refuses the client's or wants one.
    ///
    /// The message has the cause for each server, and what to do. Only connecting fails for this reason: a session that
    /// exists goes on trying, because the files of the TLS configuration may be renewed.
    CertificateRefused,
    /// No server in the connect string answered in time.
    NoServer,
    /// A server refused the client because of its credentials.
    ///
    /// - The server does not know the scheme of a credential given to
    ///   [`SessionBuilder::auth`](crate::SessionBuilder::auth), or the credential is wrong.
    /// - No server accepts the SASL authentication (`SessionBuilder::sasl_digest`, `SessionBuilder::kerberos`).
    /// - The servers require authentication (SASL, or a scheme named in their `enforce.auth.schemes`), and each of them
    ///   turned away this client, which did not authenticate that way.
    CredentialsRefused,
    /// The servers are not ZooKeeper, and end sessions too early for a lock to be safe.
    ///
    /// ClickHouse Keeper is the only implementation known to do so. Connect to ZooKeeper instead.
    NotZooKeeper,
    /// Contact with the servers was lost during the operation, or was not restored in time.
    ///
    /// The operation may or may not have taken effect. The session may still live: try again.
    ConnectionLoss,
    /// The reply to an attempt was lost or could not be read, and the state that was read afterwards does not show
    /// whether the attempt took effect.
    ///
    /// The operation may even take effect later, because a server that was paused may still forward a request: usually
    /// within about `syncLimit` ticks (10 s in ZooKeeper's sample configuration), at most two minutes later. Read the
    /// znode, and continue from its current state.
    OutcomeUnknown,
    /// The session ended with all its locks and requests. Open a new session, unless this one replaces itself, and lock
    /// again.
    SessionLost,
    /// The lease of the lock ended, because the session was not proven alive in time.
    ///
    /// The server may have given the lock to another client. The session lived on when the lease ended: lock again. If
    /// the session has been lost since, the [kind](crate::LockError::kind) says so.
    LeaseExpired,
    /// The connect string names a chroot that does not exist.
    ///
    /// Create the chroot, or let [`SessionBuilder::create_chroot`](crate::SessionBuilder::create_chroot) do
    /// so.
    NoChroot,
    /// The lock directory has used up its sequence numbers, which end at 2147483647.
    ///
    /// Beyond that number, servers may repeat numbers, which then no longer show which of two requests came
    /// first. The request was withdrawn. Delete the directory when it is empty; a new one starts at 0.
    SequenceExhausted,
    /// The znode is not a lock. It was left alone.
    ///
    /// The data, name or lifetime of the znode shows that it serves another purpose. A
    /// [`Revoker`](crate::queue::Revoker) accepts only requests: their names end in a sequence number, and they are
    /// deleted with their sessions. [`remove_if_empty`](crate::queue::LockDirectory::remove_if_empty) removes
    /// only a directory that has neither children nor data, and that belongs to no session.
    NotALock,
    /// The request given to a [`Revoker`](crate::queue::Revoker) no longer exists.
    ///
    /// If the request held the lock, the lock has been released.
    NoSuchRequest,
    /// The connected server shows a znode that the leader of the ensemble does not have.
    ///
    /// The server has diverged from the others, and clients that are connected to it see an old queue. Nothing that a
    /// client does repairs the server: an operator must replace its data. The message names the server.
    ServerDiverged,
    /// Another client deleted the znode of the request.
    ///
    /// The lock, or the place in the queue, is lost. Lock again.
    NodeDeleted,
    /// The lock was lost because it was held as long as [`LockOptions::max_hold`](crate::LockOptions::max_hold) allows.
    ///
    /// The work under the lock may have overlapped with the next owner's work.
    HeldTooLong,
    /// The ACL of the znode does not grant this client the permission that the operation needs.
    ///
    /// Check the ACL, and the credentials given to the session.
    AccessDenied,
    /// The server refused the ACL of a new znode.
    ///
    /// - The ACL is empty, or has a scheme or an id that the server does not know. Correct it.
    /// - It grants rights to the client that creates the znode (scheme `auth`, as in
    ///   [`Acl::creator_all`](crate::client::Acl::creator_all)), but the client has no identity. First give the session
    ///   credentials with [`SessionBuilder::auth`](crate::SessionBuilder::auth).
    InvalidAcl,
    /// The [`CancelToken`](crate::CancelToken) was cancelled before the wait ended.
    ///
    /// The request was withdrawn. During an outage, its znode is deleted later, in the background.
    Cancelled,
    /// The closure of a [`Candidate`](crate::Candidate) panicked while it led.
    ///
    /// The leadership was released, and the candidate has ended. A panic elsewhere on the candidate's thread,
    /// which would be a bug in this crate, is reported in the same way.
    LeaderPanicked,
    /// The lock is not held, or no longer held. A [commit](crate::LockGuard::commit) has changed nothing.
    ///
    /// Drop its guards, and lock again.
    NotOwner,
    /// The lock or the session was closed by this process.
    Closed,
    /// A quota is exceeded, or the server throttles its clients.
    ///
    /// The server did nothing. Try again later. The error's source names the cause. After an `unlock`, there is nothing
    /// to try again: this process has released the lock, and the deletion of the znode is repeated in the background.
    Refused,
    /// The session already has as many ephemeral znodes as the servers can safely delete at its end. Nothing
    /// was sent.
    ///
    /// Release locks, or use several sessions. If the servers have a larger `jute.maxbuffer` than the
    /// default, pass the value to
    /// [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer).
    SessionFull,
    /// The servers could not handle the call, because it may take more of their `jute.maxbuffer` than there is. Nothing
    /// was sent.
    ///
    /// The servers may write more than they are sent: see
    /// [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer). Shorten the data, split the
    /// transaction, or name an identity in the ACL in place of [`Acl::creator_all`](crate::client::Acl::creator_all).
    /// If the servers have a larger `jute.maxbuffer` than the default, pass the value to the builder.
    CallTooLong,
    /// The server or the session's client does not implement the operation. Nothing was done.
    Unsupported,
    /// Three connections in a row ended when this request was sent.
    ///
    /// The request may be longer than the server's `jute.maxbuffer`, or the server may not know the operation. For one
    /// session timeout, the session does not send the request: the same call fails immediately.
    EndsConnection,
    /// The server refused the operation with this error.
    Server(ZkError),
    /// The system could not provide a thread or a file descriptor.
    Thread,
    /// An error of the application, made by [`LockError::other`](crate::LockError::other).
    Other,
}

impl ErrorReason {
    /// Returns the reason for a client's error.
    pub(super) fn of_client(error: ZkError) -> ErrorReason {
        match error {
            lost if lost.is_reply_lost() => ErrorReason::ConnectionLoss,
            ZkError::SessionExpired => ErrorReason::SessionLost,
            ZkError::NoAuth | ZkError::AuthFailed => ErrorReason::AccessDenied,
            ZkError::InvalidAcl => ErrorReason::InvalidAcl,
            ZkError::SessionFull { .. } => ErrorReason::SessionFull,
            ZkError::CallTooLong { .. } => ErrorReason::CallTooLong,
            ZkError::Unimplemented => ErrorReason::Unsupported,
            ZkError::EndsConnection { .. } => ErrorReason::EndsConnection,
            declined if declined.is_declined() => ErrorReason::Refused,
            error => ErrorReason::Server(error),
        }
    }

    /// Returns what happened and what to do, for the message of a [`LockError`](crate::LockError). Empty for reasons
    /// whose text depends on more than the reason.
    pub(super) fn text(self) -> &'static str {
        match self {
            ErrorReason::ConnectionLoss => "connection lost; try again, the session may still live",
            ErrorReason::SessionLost => {
                "the session is lost; connect a new one, unless it replaces itself, and lock again"
            }
            ErrorReason::LeaseExpired => {
                "there was no contact for too long, so the lease of the lock has ended; lock again, on a new session \
                 if this one is lost"
            }
            ErrorReason::SequenceExhausted => {
                "the directory has no sequence numbers left; delete it when it is empty"
            }
            ErrorReason::NoSuchRequest => "there is no such lock request (any more); nothing is left to do",
            ErrorReason::NodeDeleted => "another client deleted the znode of this lock request; lock again",
            ErrorReason::HeldTooLong => {
                "held for longer than max_hold allows, and therefore lost; lock again, or raise the limit"
            }
            ErrorReason::InvalidAcl => {
                "the server refuses the ACL of the new znode; if the ACL is empty or has an unknown scheme or id, \
                 correct it; if it is for the creator (scheme 'auth', as in creator_all), this client has no \
                 identity: authenticate the connection first (SessionBuilder::auth)"
            }
            ErrorReason::Cancelled => "cancelled by another thread; to wait again, use a new cancel token",
            ErrorReason::NotOwner => {
                "the lock is not held, or no longer held; drop its guards and lock again"
            }
            ErrorReason::Closed => {
                "closed by this process; create a new one, on a new session if the session was closed"
            }
            ErrorReason::Unsupported => {
                "not implemented by this server or client; upgrade the server, or use the crate's own connection"
            }
            ErrorReason::InvalidArgument
            | ErrorReason::InvalidTls
            | ErrorReason::CertificateRefused
            | ErrorReason::NoServer
            | ErrorReason::CredentialsRefused
            | ErrorReason::NotZooKeeper
            | ErrorReason::OutcomeUnknown
            | ErrorReason::NoChroot
            | ErrorReason::NotALock
            | ErrorReason::ServerDiverged
            | ErrorReason::AccessDenied
            | ErrorReason::LeaderPanicked
            | ErrorReason::Refused
            | ErrorReason::SessionFull
            | ErrorReason::CallTooLong
            | ErrorReason::EndsConnection
            | ErrorReason::Server(_)
            | ErrorReason::Thread
            | ErrorReason::Other => "",
        }
    }
}

/// The reason for the error of a call on something that was lost for this reason.
impl From<LossReason> for ErrorReason {
    fn from(reason: LossReason) -> ErrorReason {
        match reason {
            LossReason::SessionLost => ErrorReason::SessionLost,
            LossReason::LeaseExpired => ErrorReason::LeaseExpired,
            LossReason::NodeDeleted => ErrorReason::NodeDeleted,
            LossReason::HeldTooLong => ErrorReason::HeldTooLong,
            LossReason::Closed => ErrorReason::Closed,
            // What has failed has an error of its own, which takes the place of this one.
            LossReason::Failed => ErrorReason::NotOwner,
        }
    }
}
