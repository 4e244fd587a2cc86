//! The names of requests, by which programs with different libraries share a lock.
//!
//! The primary type in this module is [`NamingScheme`], which [`LockOptions::naming`](crate::LockOptions::naming) takes.

// For maintainers: the recipe rules, pure functions over names, without I/O, time or threads.

pub(crate) mod access;
pub(crate) mod counter;
pub(crate) mod kind;
#[cfg(any(test, zk_laws))]
pub mod laws;
pub(crate) mod naming_scheme;
pub(crate) mod order;
pub(crate) mod path;
pub(crate) mod peers;
pub(crate) mod permit;
pub(crate) mod queue;
pub(crate) mod resource;
pub(crate) mod revocation;
pub(crate) mod session_tag;
pub(crate) mod znode_name;

use zookeeper_connection::Stat;

pub use self::kind::LockKind;
pub use self::naming_scheme::NamingScheme;

/// Returns whether a znode has children, or had some, so that it is no request for a lock: those of every known
/// library are ephemeral, and an ephemeral znode cannot have children.
pub(crate) fn is_directory(stat: &Stat) -> bool {
    stat.num_children > 0 || stat.cversion != 0 || stat.is_container()
}
