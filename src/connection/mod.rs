//! The crate's ZooKeeper connection.

pub(crate) mod codec;
pub(crate) mod credential;
pub(crate) mod machine;
