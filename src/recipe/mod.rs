//! The recipe rules: pure functions over names, without I/O, time or threads.

pub(crate) mod access;
pub(crate) mod path;
pub(crate) mod queue;
pub(crate) mod znode_name;
