//! [`ZkError`]: why a call of a ZooKeeper client failed.

/// The result of a call.
pub type ZkResult<T> = std::result::Result<T, ZkError>;

/// An error code of ZooKeeper.
///
/// # What an error means for its call
/// - `ConnectionLoss`, `OperationTimeout`, `SessionMoved`: The call may have taken effect. It may succeed if repeated
///   on this session.
/// - `QuotaExceeded`, `Throttled`: The call had no effect. It may succeed if repeated on this session.
/// - `NoNode`, `NodeExists`, `BadVersion`, `NotEmpty`, `NoChildrenForEphemerals`: The call had no effect, and fails
///   again unless others change the tree. If it was a write, the leader has answered it.
/// - `NoAuth`, `InvalidAcl`: The same, except that a server may have answered a write without asking the leader.
/// - All others: The call had no effect, and would fail again on this session. There are two exceptions, in which the
///   call may have taken effect. If the client cannot decode the reply, the error is `MarshallingError`. And a client
///   other than [`Connection`](crate::Connection) may fail a call that is under way when the session ends with
///   `SessionExpired`.
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
    /// The session has moved to another server, so this server does not answer the call.
    #[error("session moved to another server")]
    SessionMoved,
    /// The server refused the credentials, or requires some.
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
    /// The version of the znode is not the expected one.
    #[error("the znode has another version")]
    BadVersion,
    /// An ephemeral znode cannot have children.
    #[error("an ephemeral znode has no children")]
    NoChildrenForEphemerals,
    /// The server refuses the ACL.
    #[error("invalid ACL")]
    InvalidAcl,
    /// The server or the client refuses an argument, for example a path.
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
    /// The server has too many requests and refuses some of them.
    #[error("requests are throttled")]
    Throttled,
    /// The server does not implement the operation.
    ///
    /// The crate `zookeeper` also reports every code that it does not know as this error, for example an exceeded quota
    /// or throttling.
    #[error("not implemented")]
    Unimplemented,
    /// The paths of the session's ephemeral znodes would be too long together, so the call was not sent.
    ///
    /// This error comes from a layer that counts the znodes, not from a server or a [`Connection`](crate::Connection).
    /// Its code is the code of an exceeded quota.
    #[error("the paths of the session's ephemeral znodes may have at most {limit} bytes together")]
    SessionFull {
        /// The bound, in bytes.
        limit: usize,
    },
    /// What the servers would read or write for the call could be longer than their `jute.maxbuffer`, so the call was
    /// not sent.
    ///
    /// The client [checks](crate::MaxBuffer) the length. The code is that of bad arguments.
    #[error(
        "the call may take {bytes} bytes on the servers, and their jute.maxbuffer as set for this client allows {limit}"
    )]
    CallTooLong {
        /// The bound on the length of the call's request and transaction, in bytes.
        bytes: usize,
        /// The largest length that is allowed.
        limit: usize,
    },
    /// A local session cannot have an ephemeral znode.
    ///
    /// The session is local (`localSessionsEnabled`), and the server does not upgrade it to a global one
    /// (`localSessionsUpgradingEnabled`).
    #[error("a local session cannot have ephemeral znodes; set localSessionsUpgradingEnabled on the servers")]
    EphemeralOnLocalSession,
    /// Requests like this one ended several connections in a row, so this one was not sent.
    #[error(
        "the server closes the connection when it receives this request of {bytes} bytes: the request may be too long \
         for it (jute.maxbuffer), or the operation unknown"
    )]
    EndsConnection {
        /// The length of the request.
        bytes: usize,
    },
    /// Another code.
    #[error("error code {0}")]
    Other(i32),
}

/// What an error means for its call: the groups in the documentation of [`ZkError`], in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// No reply arrived.
    Lost,
    /// The server refuses the request for now.
    Declined,
    /// The server has handled the request, with this result.
    Answered,
    /// Like `Answered`, but perhaps not by the leader: with `enableEagerACLCheck`, the server that the client is
    /// connected to denies a write itself.
    Denied,
    /// The call cannot succeed on this session.
    Final,
}

impl ZkError {
    /// Returns the error with this code, which must not be zero.
    #[must_use]
    pub fn from_code(code: i32) -> ZkError {
        match code {
            -4 => ZkError::ConnectionLoss,
            -5 => ZkError::MarshallingError,
            -6 => ZkError::Unimplemented,
            // Java's client uses -122 for a single request that timed out.
            -7 | -122 => ZkError::OperationTimeout,
            -8 => ZkError::BadArguments,
            -101 => ZkError::NoNode,
            -102 => ZkError::NoAuth,
            -103 => ZkError::BadVersion,
            -108 => ZkError::NoChildrenForEphemerals,
            -110 => ZkError::NodeExists,
            -111 => ZkError::NotEmpty,
            // -12: the session is unknown.
            -112 | -12 => ZkError::SessionExpired,
            -114 => ZkError::InvalidAcl,
            // -124: the client has not authenticated, for example by SASL.
            -115 | -124 => ZkError::AuthFailed,
            -118 => ZkError::SessionMoved,
            -119 => ZkError::NotReadOnly,
            -120 => ZkError::EphemeralOnLocalSession,
            -125 => ZkError::QuotaExceeded,
            -127 => ZkError::Throttled,
            _ => ZkError::Other(code),
        }
    }

    /// Returns the code of the error.
    ///
    /// No server reports [`EndsConnection`](ZkError::EndsConnection). Its code is the code for a request that the
    /// server cannot decode.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            ZkError::ConnectionLoss => -4,
            ZkError::MarshallingError | ZkError::EndsConnection { .. } => -5,
            ZkError::Unimplemented => -6,
            ZkError::OperationTimeout => -7,
            ZkError::BadArguments | ZkError::CallTooLong { .. } => -8,
            ZkError::NoNode => -101,
            ZkError::NoAuth => -102,
            ZkError::BadVersion => -103,
            ZkError::NoChildrenForEphemerals => -108,
            ZkError::NodeExists => -110,
            ZkError::NotEmpty => -111,
            ZkError::SessionExpired => -112,
            ZkError::InvalidAcl => -114,
            ZkError::AuthFailed => -115,
            ZkError::SessionMoved => -118,
            ZkError::NotReadOnly => -119,
            ZkError::EphemeralOnLocalSession => -120,
            ZkError::QuotaExceeded | ZkError::SessionFull { .. } => -125,
            ZkError::Throttled => -127,
            ZkError::Other(code) => code,
        }
    }

    fn class(self) -> Class {
        match self {
            ZkError::ConnectionLoss | ZkError::OperationTimeout | ZkError::SessionMoved => Class::Lost,
            ZkError::QuotaExceeded | ZkError::Throttled => Class::Declined,
            ZkError::NoNode
            | ZkError::NodeExists
            | ZkError::BadVersion
            | ZkError::NotEmpty
            | ZkError::NoChildrenForEphemerals => Class::Answered,
            ZkError::NoAuth | ZkError::InvalidAcl => Class::Denied,
            ZkError::SessionExpired
            | ZkError::AuthFailed
            | ZkError::BadArguments
            | ZkError::NotReadOnly
            | ZkError::MarshallingError
            | ZkError::Unimplemented
            | ZkError::SessionFull { .. }
            | ZkError::CallTooLong { .. }
            | ZkError::EphemeralOnLocalSession
            | ZkError::EndsConnection { .. }
            | ZkError::Other(_) => Class::Final,
        }
    }

    /// Returns whether no reply came, so the call may have taken effect.
    pub fn is_reply_lost(self) -> bool {
        self.class() == Class::Lost
    }

    /// Returns whether the server refuses the request for now.
    pub fn is_declined(self) -> bool {
        self.class() == Class::Declined
    }

    /// Returns whether the same call may succeed later on the same session.
    pub fn is_transient(self) -> bool {
        self.is_reply_lost() || self.is_declined()
    }

    /// Returns whether a server has handled the request.
    pub fn is_answer(self) -> bool {
        matches!(self.class(), Class::Answered | Class::Denied)
    }

    /// Returns whether the leader has handled the request, if it was a write.
    pub fn is_leaders_answer(self) -> bool {
        self.class() == Class::Answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_match_the_protocol() {
        let errors = [
            (-4, ZkError::ConnectionLoss),
            (-5, ZkError::MarshallingError),
            (-6, ZkError::Unimplemented),
            (-7, ZkError::OperationTimeout),
            (-8, ZkError::BadArguments),
            (-101, ZkError::NoNode),
            (-102, ZkError::NoAuth),
            (-103, ZkError::BadVersion),
            (-108, ZkError::NoChildrenForEphemerals),
            (-110, ZkError::NodeExists),
            (-111, ZkError::NotEmpty),
            (-112, ZkError::SessionExpired),
            (-114, ZkError::InvalidAcl),
            (-115, ZkError::AuthFailed),
            (-118, ZkError::SessionMoved),
            (-119, ZkError::NotReadOnly),
            (-120, ZkError::EphemeralOnLocalSession),
            (-125, ZkError::QuotaExceeded),
            (-127, ZkError::Throttled),
        ];
        for (code, error) in errors {
            assert_eq!((ZkError::from_code(code), error.code()), (error, code));
        }
        for (code, error) in
            [(-12, ZkError::SessionExpired), (-122, ZkError::OperationTimeout), (-124, ZkError::AuthFailed)]
        {
            assert_eq!(ZkError::from_code(code), error);
        }
    }

    #[test]
    fn unknown_code_is_kept() {
        for code in [0, 1, -1, -2, -3, -13, -14, -100, -113, -121, -123, -126, -128, i32::MIN, i32::MAX] {
            assert_eq!((ZkError::from_code(code), ZkError::Other(code).code()), (ZkError::Other(code), code));
        }
    }

    #[test]
    fn a_transient_error_is_a_lost_reply_or_a_refusal_for_now_but_not_an_answer() {
        for error in [ZkError::ConnectionLoss, ZkError::OperationTimeout, ZkError::SessionMoved] {
            assert!(error.is_transient() && error.is_reply_lost() && !error.is_declined(), "{error:?}");
            assert!(!error.is_answer(), "{error:?}");
        }
        for error in [ZkError::QuotaExceeded, ZkError::Throttled] {
            assert!(error.is_transient() && error.is_declined() && !error.is_reply_lost(), "{error:?}");
            assert!(!error.is_answer(), "{error:?}");
        }
    }

    #[test]
    fn an_answer_is_not_transient() {
        for error in [ZkError::NoNode, ZkError::NodeExists, ZkError::BadVersion, ZkError::NotEmpty] {
            assert!(error.is_answer() && !error.is_transient(), "{error:?}");
            assert!(error.is_leaders_answer(), "{error:?}");
        }
    }

    #[test]
    fn a_denial_is_an_answer_that_the_leader_may_not_have_given() {
        for error in [ZkError::NoAuth, ZkError::InvalidAcl] {
            assert!(error.is_answer() && !error.is_leaders_answer() && !error.is_transient(), "{error:?}");
        }
    }

    #[test]
    fn a_final_error_is_neither_transient_nor_an_answer() {
        for error in [ZkError::SessionExpired, ZkError::AuthFailed, ZkError::Other(-200)] {
            assert!(!error.is_answer() && !error.is_transient(), "{error:?}");
        }
    }
}
