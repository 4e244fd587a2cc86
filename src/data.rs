//! Reads and writes of data that is kept beside a lock.
//!
//! The primary type in this module is [`RecoverableZooKeeper`], whose calls are retried after a lost connection and yet
//! take effect at most once. A [`NodeTracker`] follows the data of a znode. A [`Transaction`] takes effect only while a
//! lock is held: see [`LockGuard::commit`](crate::LockGuard::commit).

pub use crate::locks::transaction::Transaction;
pub use crate::node_tracker::{NodeData, NodeTracker};
pub use crate::recoverable::RecoverableZooKeeper;
pub use zookeeper_connection::OpOutcome;
