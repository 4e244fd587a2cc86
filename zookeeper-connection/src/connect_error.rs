//! [`ConnectError`]: why no session could be opened.

use std::io;
use std::sync::Arc;

/// The reason why no session could be opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connect string is malformed; nothing was sent.
    #[error("invalid connect string: {rule}")]
    InvalidConnectString {
        /// The rule that the connect string breaks.
        rule: String,
    },
    /// The chroot of the connect string breaks a rule for paths; nothing was sent.
    #[error("invalid path '{path}': {rule}")]
    InvalidChroot {
        /// The path, escaped and shortened for display.
        path: String,
        /// The rule that the path breaks.
        rule: &'static str,
    },
    /// The TLS configuration or one of its files is unusable; nothing was sent.
    #[error("invalid TLS configuration: {rule}")]
    InvalidTls {
        /// The rule that the configuration breaks.
        rule: String,
    },
    /// The SASL configuration contradicts itself; nothing was sent.
    #[error("invalid SASL configuration: {rule}")]
    InvalidSasl {
        /// The rule that the configuration breaks.
        rule: String,
    },
    /// No server served the session before the deadline, or before the session ended.
    #[error("no ZooKeeper server could be reached (tried {tried}); check the connect string and the servers")]
    Unreachable {
        /// The servers, with the outcome of the attempts to reach them.
        tried: String,
    },
    /// At each server, the client refuses the server's certificate, or the server refuses the client's or wants one.
    #[error("no ZooKeeper server can be used, because certificates are refused: {tried}")]
    CertificateRefused {
        /// The servers, each with what was refused there and what to do.
        tried: String,
    },
    /// A server refuses the client's credentials, or requires credentials that the client does not have.
    #[error("connect to {servers}: {reason}")]
    CredentialsRefused {
        /// The servers of the connect string.
        servers: String,
        /// What the server refuses or requires.
        reason: &'static str,
    },
    /// The servers are not ZooKeeper servers, and end sessions too early.
    #[error("connect to {servers}: {reason}")]
    NotZooKeeper {
        /// The servers of the connect string.
        servers: String,
        /// What the servers are, and why they are refused.
        reason: &'static str,
    },
    /// The wait was cancelled by another thread.
    #[error("connect to {servers}: cancelled by another thread")]
    Cancelled {
        /// The servers of the connect string.
        servers: String,
    },
    /// The system refused to start a thread, or to open a file descriptor that a thread needs.
    #[error("no thread could be started, or no file opened ({source}); check the limits of the process")]
    Thread {
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
}

impl ConnectError {
    pub(crate) fn thread(error: io::Error) -> ConnectError {
        ConnectError::Thread { source: Arc::new(error) }
    }
}
