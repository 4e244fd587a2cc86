//! [`LockError`], the only error of this crate, and its classification: [`ErrorKind`], [`ErrorReason`] and
//! [`LossReason`]. [`ZkError`] is the error that a client's call returns.

mod kind;
mod loss;
mod operation;
mod reason;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

pub use self::kind::ErrorKind;
pub use self::loss::LossReason;
use self::operation::parent_of;
pub(crate) use self::operation::{Checked, Operation};
pub use self::reason::ErrorReason;
use zookeeper_connection::support::text::one_line;
pub use zookeeper_connection::{ZkError, ZkResult};

/// The result of this crate's fallible functions. The alias is private, so that the documentation shows the
/// full type.
pub(crate) type Result<T> = std::result::Result<T, LockError>;

/// The error of every fallible operation of this crate.
///
/// - [`kind`](LockError::kind) says what to do: retry, lock again, reconnect, or give up.
/// - [`reason`](LockError::reason) says what happened, for a `match`.
/// - The message names the operation, the path and the remedy. The [`source`](Error::source) is the underlying error
///   from the server, the system or the application, if there is one. Print both.
///
/// Cloning is cheap.
///
/// ```
/// use zookeeper_recipes_lock::{ErrorKind, ErrorReason, LockError};
///
/// fn react(error: &LockError) -> &'static str {
///     match error.reason() {
///         ErrorReason::Cancelled | ErrorReason::Closed => "shutting down",
///         _ => match error.kind() {
///             ErrorKind::Retry => "repeat the call after a pause",
///             ErrorKind::LockAgain => "drop the guards, and lock again",
///             ErrorKind::Reconnect => "open a new session, and lock again",
///             _ => "report the error to a person",
///         },
///     }
/// }
/// ```
#[derive(Clone)]
pub struct LockError {
    kind: ErrorKind,
    parts: Arc<Parts>,
}

type Cause = Arc<dyn Error + Send + Sync>;

struct Parts {
    reason: ErrorReason,
    operation: Option<&'static str>,
    path: Option<String>,
    /// Empty if `cause` is the application's own error, which is formatted only on demand.
    message: String,
    cause: Option<Cause>,
}

// An error is immutable, so a panic cannot leave it in an inconsistent state.
impl UnwindSafe for LockError {}
impl RefUnwindSafe for LockError {}

impl LockError {
    /// Converts the error of a call that the application made on its own client.
    ///
    /// [`retry_operation`](crate::ProtocolSupport::retry_operation) can then repeat the call after a lost connection.
    ///
    /// | `error` | reason |
    /// |---|---|
    /// | `ConnectionLoss`, `OperationTimeout`, `SessionMoved` | [`ConnectionLoss`](ErrorReason::ConnectionLoss) |
    /// | `SessionExpired` | [`SessionLost`](ErrorReason::SessionLost) |
    /// | `NoAuth`, `AuthFailed` | [`AccessDenied`](ErrorReason::AccessDenied) |
    /// | `QuotaExceeded`, `Throttled` | [`Refused`](ErrorReason::Refused) |
    /// | `Unimplemented` | [`Unsupported`](ErrorReason::Unsupported) |
    /// | `InvalidAcl`, `SessionFull`, `CallTooLong`, `EndsConnection` | the reason of the same name |
    /// | any other | [`Server`](ErrorReason::Server) |
    ///
    /// ```
    /// use zookeeper_recipes_lock::client::ZkError;
    /// use zookeeper_recipes_lock::{ErrorKind, LockError};
    ///
    /// let error = LockError::from_client("read", "/config", ZkError::ConnectionLoss);
    /// assert_eq!(error.kind(), ErrorKind::Retry);
    /// assert_eq!(error.path(), Some("/config"));
    /// ```
    #[must_use]
    pub fn from_client(operation: &'static str, path: impl Into<String>, error: ZkError) -> LockError {
        LockError::client(Operation::of_application(operation), path.into(), error)
    }

    /// Wraps any other error of the application.
    ///
    /// Use this in closures that must return a `LockError`. The [kind](LockError::kind) is
    /// [`Permanent`](ErrorKind::Permanent), so the operation is not retried.
    ///
    /// ```
    /// use zookeeper_recipes_lock::LockError;
    ///
    /// let error = LockError::other("the disk is full");
    /// assert_eq!(error.to_string(), "the disk is full");
    /// ```
    #[must_use]
    pub fn other(source: impl Into<Box<dyn Error + Send + Sync>>) -> LockError {
        let cause = Cause::from(source.into());
        LockError::build(ErrorReason::Other, None, None, String::new(), Some(cause))
    }

    /// Returns what happened.
    #[must_use]
    pub fn reason(&self) -> ErrorReason {
        self.parts.reason
    }

    /// Returns the operation that failed, in words: `lock`, `set the data of`.
    ///
    /// `None` for an error that is not about one operation, such as an invalid argument.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.parts.operation
    }

    /// Returns the path of the znode or directory that the error is about, if any.
    ///
    /// If a connect was cancelled, returns the servers of the connect string.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.parts.path.as_deref()
    }

    fn build(
        reason: ErrorReason,
        operation: Option<&'static str>,
        path: Option<String>,
        message: String,
        cause: Option<Cause>,
    ) -> LockError {
        // The message may show the text of others.
        let message = one_line(&message);
        let parts = Arc::new(Parts { reason, operation, path, message, cause });
        LockError { kind: reason.kind(), parts }
    }

    /// The error of an operation on a path.
    fn on(
        reason: ErrorReason,
        operation: &'static str,
        path: impl fmt::Display,
        text: impl fmt::Display,
        cause: Option<Cause>,
    ) -> LockError {
        let message = format!("{operation} '{path}': {text}");
        LockError::build(reason, Some(operation), Some(path.to_string()), message, cause)
    }

    fn connecting(reason: ErrorReason, message: String) -> LockError {
        LockError::build(reason, Some("connect"), None, message, None)
    }

    pub(crate) fn invalid_path(path: String, rule: &str) -> LockError {
        let message = format!("invalid path '{path}': {rule}");
        LockError::build(ErrorReason::InvalidArgument, None, Some(path), message, None)
    }

    pub(crate) fn invalid_argument(argument: &str, rule: impl fmt::Display) -> LockError {
        let message = format!("invalid {argument}: {rule}");
        LockError::build(ErrorReason::InvalidArgument, None, None, message, None)
    }

    pub(crate) fn invalid_tls(rule: &str) -> LockError {
        LockError::connecting(ErrorReason::InvalidTls, format!("invalid TLS configuration: {rule}"))
    }

    /// At each server, a certificate was refused. `tried` names the servers, and what happened.
    pub(crate) fn certificate_refused(tried: &str) -> LockError {
        let message =
            format!("connect: no ZooKeeper server can be used, because certificates are refused: {tried}");
        LockError::connecting(ErrorReason::CertificateRefused, message)
    }

    /// No server served the session within `timeout`. `tried` names the servers, and what happened.
    pub(crate) fn no_server(tried: impl fmt::Display, timeout: Duration) -> LockError {
        let message = format!(
            "connect: no ZooKeeper server could be reached within {timeout:?} (tried {tried}); check the connect \
             string and the servers"
        );
        LockError::connecting(ErrorReason::NoServer, message)
    }

    /// A server refused the client before a session was established.
    pub(crate) fn turned_away(reason: ErrorReason, servers: &str, why: &str) -> LockError {
        LockError::connecting(reason, format!("connect to {servers}: {why}"))
    }

    /// Converts the error of a client's call on one znode.
    pub(crate) fn client(operation: Operation, path: impl fmt::Display, source: ZkError) -> LockError {
        let (name, path) = (operation.name, path.to_string());
        let reason = ErrorReason::of_client(source);
        let text = match (reason, source) {
            (ErrorReason::AccessDenied, ZkError::AuthFailed) => {
                "the server does not accept this client's authentication; correct the credentials".to_owned()
            }
            (ErrorReason::AccessDenied, _) => missing_permission(operation, &path),
            // Whatever else may be missing, a creation needs nothing but the parent.
            (_, ZkError::NoNode) if operation == Operation::CREATE => {
                format!("its parent '{}' does not exist; create that first", parent_of(&path))
            }
            (_, ZkError::NoChildrenForEphemerals) if operation == Operation::CREATE => {
                let parent = parent_of(&path);
                format!("its parent '{parent}' belongs to a session, and such a znode has no children")
            }
            (ErrorReason::Refused, _) => format!(
                "the server refuses the request, because a quota is exceeded or requests are throttled ({source}); \
                 check the quota and try again later"
            ),
            (_, ZkError::SessionFull { limit }) => format!(
                "the paths of a session's ephemeral znodes may total at most {limit} bytes, because ending a session \
                 with more than that could take the ensemble down; release locks, or use several sessions; if all \
                 servers have a larger jute.maxbuffer, pass its value to SessionBuilder::jute_max_buffer"
            ),
            (_, ZkError::CallTooLong { bytes, limit }) => format!(
                "the servers may write {bytes} bytes for this call, and at most {limit} are allowed, because a longer \
                 transaction could take the ensemble down; shorten the data, split the transaction, or name identities \
                 in ACLs in place of creator_all; if all servers have a larger jute.maxbuffer, pass its value to \
                 SessionBuilder::jute_max_buffer"
            ),
            (ErrorReason::EndsConnection, _) => source.to_string(),
            (ErrorReason::Server(_), _) => format!("the server answered: {source}"),
            _ => reason.text().to_owned(),
        };
        LockError::on(reason, name, path, text, Some(Arc::new(source)))
    }

    /// The reply was lost because of `source`, and nothing shows whether the operation took effect.
    pub(crate) fn outcome_unknown(
        operation: Operation,
        path: impl fmt::Display,
        source: ZkError,
    ) -> LockError {
        let text = format!(
            "the reply was lost, and the current state does not show the outcome ({source}); read the state and \
             continue from there"
        );
        let cause: Cause = Arc::new(source);
        LockError::on(ErrorReason::OutcomeUnknown, operation.name, path, text, Some(cause))
    }

    pub(crate) fn no_chroot(
        operation: Operation,
        path: impl fmt::Display,
        chroot: Option<&str>,
    ) -> LockError {
        let chroot = chroot.map_or_else(String::new, |chroot| format!(" '{chroot}'"));
        let text = format!(
            "the chroot{chroot} of the connect string does not exist; create it first, with \
             SessionBuilder::create_chroot(true) or, for each znode of its path, with 'create' in zkCli.sh"
        );
        LockError::on(ErrorReason::NoChroot, operation.name, path, text, None)
    }

    /// An operation of the application, whose path is unknown, was to be attempted after the close.
    pub(crate) fn closed_before_retry() -> LockError {
        let (operation, reason) = ("retry", ErrorReason::Closed);
        let message = format!("{operation}: {}", reason.text());
        LockError::build(reason, Some(operation), None, message, None)
    }

    pub(crate) fn not_a_lock_request(path: impl fmt::Display, rule: &str) -> LockError {
        let text = format!("{rule}, so it is not a lock request; give the path of a request's znode");
        LockError::on(ErrorReason::NotALock, Operation::REVOKE.name, path, text, None)
    }

    pub(crate) fn not_a_lock_directory(path: impl fmt::Display) -> LockError {
        let text = "it has data or belongs to a session, so it is not a lock directory; it was not removed";
        LockError::on(ErrorReason::NotALock, "remove", path, text, None)
    }

    /// The connected server shows a znode that the leader does not have. `server` is `None` if the client does not name
    /// it.
    pub(crate) fn server_diverged(
        operation: Operation,
        path: impl fmt::Display,
        server: Option<&str>,
    ) -> LockError {
        let server = server.unwrap_or("the connected server");
        let text = format!(
            "{server} still shows this znode, which the leader of the ensemble does not have: that server has diverged \
             from the others, and its clients see an old queue; while all other servers serve, stop that server, \
             delete 'version-2' from its dataDir and dataLogDir, and start it again"
        );
        LockError::on(ErrorReason::ServerDiverged, operation.name, path, text, None)
    }

    /// An ephemeral znode was to be created, but there is one that this session does not own.
    pub(crate) fn znode_of_another(
        operation: Operation,
        path: impl fmt::Display,
        owner: Option<i64>,
    ) -> LockError {
        let text = match owner {
            Some(session) => format!(
                "the znode exists, and belongs to session {session:#x}; it is deleted when that session ends, so create \
                 it again after that"
            ),
            None => "the znode exists, and is persistent: it belongs to no session".to_owned(),
        };
        let source = ZkError::NodeExists;
        LockError::on(ErrorReason::Server(source), operation.name, path, text, Some(Arc::new(source)))
    }

    pub(crate) fn leader_panicked(dir: &str, message: &str) -> LockError {
        let text = format!(
            "the closure panicked ({message}), and the candidate has ended; fix the closure and start another \
             candidate"
        );
        LockError::on(ErrorReason::LeaderPanicked, "lead", dir, text, None)
    }

    /// The system could not start a thread, or open a file.
    pub(crate) fn thread(source: impl Into<Arc<std::io::Error>>) -> LockError {
        let source: Arc<std::io::Error> = source.into();
        let message = format!(
            "no thread could be started, or no file opened ({source}); check the limits of the process"
        );
        LockError::build(ErrorReason::Thread, None, None, message, Some(source))
    }

    /// The error of an operation on a request or a session that has ended for this reason.
    pub(crate) fn ended(operation: Operation, path: impl fmt::Display, reason: LossReason) -> LockError {
        LockError::of(reason.into(), operation, path)
    }

    /// The error of an operation on a path, for a reason that needs no further text.
    pub(crate) fn of(reason: ErrorReason, operation: Operation, path: impl fmt::Display) -> LockError {
        LockError::on(reason, operation.name, path, reason.text(), None)
    }

    /// Replaces the kind that follows from the reason by one that is true of the session.
    pub(crate) fn with_kind(self, kind: ErrorKind) -> LockError {
        LockError { kind, ..self }
    }

    pub(crate) fn is_connection_loss(&self) -> bool {
        self.reason() == ErrorReason::ConnectionLoss
    }

    pub(crate) fn is_session_lost(&self) -> bool {
        self.reason() == ErrorReason::SessionLost
    }

    /// Returns whether this is the error of an `unlock` that found the lock lost.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self.reason(),
            ErrorReason::SessionLost
                | ErrorReason::LeaseExpired
                | ErrorReason::NodeDeleted
                | ErrorReason::HeldTooLong
                | ErrorReason::Closed
        )
    }
}

/// Names the permission that the client lacks, and the znode whose ACL the servers check for it.
fn missing_permission(operation: Operation, path: &str) -> String {
    let Operation { permission, checked, .. } = operation;
    let parent = parent_of(path);
    let acl = match checked {
        Checked::Itself => format!("the ACL of '{path}'"),
        Checked::Parent => format!("the ACL of its parent '{parent}'"),
        Checked::Either => format!("the ACL of '{path}' or of its parent '{parent}'"),
    };
    format!("access denied; {acl} must grant this client {permission} permission")
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason(), &self.parts.cause) {
            (ErrorReason::Other, Some(cause)) => cause.fmt(f),
            _ => f.write_str(&self.parts.message),
        }
    }
}

impl fmt::Debug for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockError")
            .field("reason", &self.parts.reason)
            .field("message", &format_args!("{self}"))
            .finish_non_exhaustive()
    }
}

impl Error for LockError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.parts.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}
