//! ZooKeeper's own terms, as far as a lock's user needs them: ACLs, the modes and the state of znodes, the
//! errors of a server, and how a session is encrypted and authenticated.
//!
//! The primary type in this module is [`Acl`], which [`LockOptions::acl`](crate::LockOptions::acl) takes. To run the locks
//! on another client library, see [`port`].

mod contained;
pub mod port;
mod session_runtime;
mod verbs;

pub use crate::error::{ZkError, ZkResult};
pub(crate) use contained::contain_call;
#[cfg(test)]
pub(crate) use port::Verbs;
pub(crate) use port::{
    Ask, Call, ClientEvent, Done, Enqueued, EventSink, Granted, Op, Reply, SessionRuntime, Transacted,
    ZooKeeperClient,
};
pub(crate) use zookeeper_connection::OpOutcome;
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use zookeeper_connection::TlsConfig;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use zookeeper_connection::call_in_parts;
pub use zookeeper_connection::{Acl, CreateMode, Permissions, Stat};
#[cfg(feature = "kerberos")]
#[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
pub use zookeeper_connection::{KerberosConfig, KerberosTicket};

/// The path of the write that proves the session alive. It changes nothing: the znode does not
/// exist, and if it did, not at this version. A read would prove less (see the lease).
pub(crate) const KEEP_ALIVE_PATH: &str = "/zk-lock-keep-alive";

/// The path used instead if the other one exists and its ACL denies the write: a denial proves
/// nothing.
pub(crate) const OTHER_KEEP_ALIVE_PATH: &str = "/zk-lock-keep-alive/none";

/// The servers' `jute.maxbuffer` if nobody knows better: ZooKeeper's default, less a byte there.
pub(crate) const DEFAULT_JUTE_MAX_BUFFER: usize = 1024 * 1024;
