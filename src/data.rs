//! Data kept beside a lock: reading and writing it, following it, and changing it only while a lock is held.
//!
//! The primary type in this module is [`RecoverableZooKeeper`], whose calls are retried after a lost connection and still
//! take effect at most once. [`NodeTracker`] keeps the current data of a znode at hand. A [`Transaction`] takes effect
//! only while the lock is held: see [`LockGuard::commit`](crate::LockGuard::commit).

pub use crate::locks::transaction::Transaction;
pub use crate::node_tracker::{NodeData, NodeTracker};
pub use crate::recoverable::RecoverableZooKeeper;
pub use zookeeper_connection::OpOutcome;
