//! The recipe rules: pure functions over names, without I/O, time or threads.

pub(crate) mod access;
pub(crate) mod counter;
pub(crate) mod kind;
#[cfg(any(test, feature = "test-util"))]
pub mod laws;
pub(crate) mod names;
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
