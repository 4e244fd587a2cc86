//! ZooKeeper's own types: ACLs, modes and metadata of znodes, server errors, and TLS and Kerberos settings.
//!
//! The primary type in this module is [`Acl`], which [`LockOptions::acl`](crate::LockOptions::acl) takes.

mod contained;
#[cfg(feature = "seam")]
#[cfg_attr(docsrs, doc(cfg(feature = "seam")))]
pub mod seam;
#[cfg(not(feature = "seam"))]
#[allow(unreachable_pub, reason = "public with the feature")]
mod seam;
mod verbs;

pub use crate::error::{ZkError, ZkResult};
pub(crate) use contained::contain_call;
pub(crate) use seam::{Identity, ZooKeeperClient};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use zookeeper_connection::TlsConfig;
#[cfg(any(test, feature = "test-util"))]
pub(crate) use zookeeper_connection::Verbs;
pub use zookeeper_connection::{Acl, CreateMode, Moment, Permissions, Stat};
pub(crate) use zookeeper_connection::{
    Ask, Call, ClientEvent, Done, Enqueued, EventSink, Granted, MaxBuffer, Names, Op, Reply, Transacted,
};
pub(crate) use zookeeper_connection::{DEFAULT_JUTE_MAX_BUFFER, OpOutcome};
#[cfg(feature = "kerberos")]
#[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
pub use zookeeper_connection::{KerberosConfig, KerberosTicket};
#[cfg(any(test, feature = "test-util"))]
pub(crate) use zookeeper_connection::{call_in_parts, path_of_child};

/// The path of the write that proves that the session is alive. The write changes nothing, because the znode does not
/// exist. Even if the znode existed, it would never have the version that the write requires. A read would prove less
/// (see the lease).
pub(crate) const KEEP_ALIVE_PATH: &str = "/zk-lock-keep-alive";

/// The path to use if the znode at the first path exists and its ACL denies the write, because a denied write proves
/// nothing.
pub(crate) const OTHER_KEEP_ALIVE_PATH: &str = "/zk-lock-keep-alive/none";
