//! The names of requests, by which programs that use different libraries share a lock.
//!
//! The primary type in this module is [`NamingScheme`], which [`LockOptions::naming`](crate::LockOptions::naming)
//! takes.

// For maintainers: these are the rules of the recipes, as pure functions over names, without I/O, time or threads.
// `queue` and `permit` decide who owns the lock, using the order that `counter` defines. `access`, `naming_scheme` and
// `znode_name` define the names of requests, and `peers` knows the names that other libraries use.

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

/// Returns whether a znode is a directory, which means that it has or had children, or is a container. A directory is
/// not a request, because the requests of every known library are ephemeral, and an ephemeral znode cannot have
/// children.
pub(crate) fn is_directory(stat: &Stat) -> bool {
    stat.num_children > 0 || stat.cversion != 0 || stat.is_container()
}
