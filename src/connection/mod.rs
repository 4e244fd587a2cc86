//! The crate's ZooKeeper connection.

pub(crate) mod codec;
