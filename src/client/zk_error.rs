//! [`ZkError`]: why a call of a ZooKeeper client failed.

/// The result of a call of a [`ZooKeeperClient`](crate::ZooKeeperClient).
pub type ZkResult<T> = std::result::Result<T, ZkError>;

/// An error code of ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ZkError {
    /// Contact was lost before a reply arrived. The call may have taken effect.
    #[error("connection lost")]
    ConnectionLoss,
    /// No reply arrived in time. The call may have taken effect.
    #[error("operation timed out")]
    OperationTimeout,
    /// The session has ended.
    #[error("session expired")]
    SessionExpired,
    /// The session has moved to another server, so this server ignores the call.
    #[error("session moved to another server")]
    SessionMoved,
    /// The server refused the credentials.
    #[error("authentication failed")]
    AuthFailed,
    /// The ACL grants no permission for the call.
    #[error("not permitted by the ACL")]
    NoAuth,
    /// The znode does not exist.
    #[error("no such znode")]
    NoNode,
    /// The znode already exists.
    #[error("the znode exists")]
    NodeExists,
    /// The znode has children.
    #[error("the znode has children")]
    NotEmpty,
    /// The znode has another version.
    #[error("the znode has another version")]
    BadVersion,
    /// An ephemeral znode cannot have children.
    #[error("an ephemeral znode has no children")]
    NoChildrenForEphemerals,
    /// The server refuses the ACL.
    #[error("invalid ACL")]
    InvalidAcl,
    /// The server refuses an argument, a path for example.
    #[error("bad arguments")]
    BadArguments,
    /// The server is read-only because it has no contact with a quorum.
    #[error("the server is read-only")]
    NotReadOnly,
    /// The server cannot decode the request, or the client cannot decode the reply.
    #[error("marshalling error")]
    MarshallingError,
    /// The quota of a parent directory is exceeded.
    #[error("quota exceeded")]
    QuotaExceeded,
    /// The server has too many requests and refuses some.
    #[error("requests are throttled")]
    Throttled,
    /// The server does not implement the operation. The crate `zookeeper` also reports every code
    /// that it does not know as this, including an exceeded quota and throttling.
    #[error("not implemented")]
    Unimplemented,
    /// Another code.
    #[error("error code {0}")]
    Other(i32),
}
