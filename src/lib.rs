//! Distributed locks and leader election on [Apache ZooKeeper](https://zookeeper.apache.org), for threaded daemons.
//!
//! A blocking port of the Java recipe `WriteLock`, with its names kept and its bugs left behind, that shares one lock
//! with JVM, Go and Python programs.
//!
//! # What it does not promise
//! No lock service can stop a process that has lost its lock from acting: a thread may be paused between asking
//! [`is_owner`](LockGuard::is_owner) and the action. Where the action reaches a resource outside ZooKeeper, send the
//! [`fencing_token`](LockGuard::fencing_token) along and let the resource refuse older ones.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_recipes_lock::{BlockingWriteLock, Session};
//!
//! # fn write_report() {}
//! let session = Session::connect("zk1:2181,zk2:2181,zk3:2181", Duration::from_secs(10))?;
//! let lock = BlockingWriteLock::new(&session, "/locks/report", None)?;
//!
//! let guard = lock.lock()?;
//! if guard.is_owner() {
//!     write_report();
//! }
//! drop(guard); // released
//! # Ok::<(), zookeeper_recipes_lock::LockError>(())
//! ```
//!
//! # Blocking or with a listener
//! - [`BlockingWriteLock`] blocks until the lock is there and returns a [`LockGuard`]. For scoped code.
//! - [`WriteLock`] joins the queue and returns; a [`LockListener`] is told when the lock comes and goes. For leader
//!   election, and for many locks in one process: a waiting one costs no thread.
//! - [`ReadWriteLock`] is held by many readers or by one writer; it comes in both ways.
//! - [`Candidate`] stands for election on a thread of its own, and runs a closure whenever it leads.
//!
//! All stand on a [`Session`], one connection that any number of locks share.
//!
//! On top of the blocking one there are [`MultiLock`], for several locks at once, [`ReentrantLock`], which its holder may
//! acquire again, and [`NamedLocks`], which finds a lock by the name of what it guards. [`RecoverableZooKeeper`] reads
//! and writes the data next to a lock over lost connections.
//!
//! # Looking on
//! - [`LockDirectory`] shows who holds a lock and who waits for it, whichever library they use, and clears up what is left
//!   over.
//! - [`LeaderWatch`] tells a follower who leads, and when that changes; [`QueueWatch`] tells of everybody who comes and goes.
//! - [`NodeTracker`] keeps the current data of any znode.
//!
//! # What happens when something fails
//! | event | owner | waiter |
//! |---|---|---|
//! | connection cut, back in time | owns on; its znode is checked after the reconnect | waits on |
//! | no contact until the lease ends | [`is_owner`](LockGuard::is_owner) turns false, told [`LeaseExpired`](LossReason::LeaseExpired) | waits on |
//! | session lost | told [`SessionExpired`](LossReason::SessionExpired) or [`LeaseExpired`](LossReason::LeaseExpired) | its call returns [`SessionLost`](LockError::SessionLost), or its listener is told [`request_dropped`](LockListener::request_dropped) |
//! | znode deleted by another | told [`NodeDeleted`](LossReason::NodeDeleted) | [`RequestDeleted`](LockError::RequestDeleted) |
//! | process killed | the next in the queue acquires after the session timeout | the others move up |
//!
//! A lost session stays lost: connecting a new one, and contending again, is the application's decision.
//!
//! # Differences from the Java recipe
//! - A request is named by a GUID, not by the session: two threads on one session can contend for one lock.
//! - The order is that of the sequence numbers alone (ZOOKEEPER-2931).
//! - A predecessor that vanishes between the listing and the watch is noticed; the Java recipe waits for ever.
//! - Waiting survives a reconnect, and so does an unlock during an outage: its znode is deleted later.
//! - Ownership ends with the lease, and a loss is told.
//! - Listeners are called outside all locks, in order; errors are returned, not logged.
//!
//! # Logging
//! Through [`log`], always with the znode or the directory: `debug` for steps, `info` for acquired, released and the
//! session's life, `warn` for what an operator should see. The client library logs thousands of lines a second under the
//! target `zookeeper::` while no server can be reached; with `env_logger`, `RUST_LOG=info,zookeeper::=off` silences it
//! (with both colons: the filter goes by prefix, and would silence this crate too).
//!
//! The logger is called on the session's threads and on those of the callers, while this crate
//! holds no lock: it may call this crate. It should not wait for a lock, as a thread of the session
//! waits with it. A panic of the logger is caught.

#![forbid(unsafe_code)]
#![warn(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    rust_2018_idioms,
    clippy::missing_errors_doc,
    clippy::print_stdout,
    clippy::print_stderr
)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod client;
mod directory;
mod error;
mod error_class;
#[cfg(any(test, feature = "test-util"))]
pub mod fake;
mod lock_order;
mod locks;
mod logging;
mod node_tracker;
mod operation;
mod panics;
mod protocol_support;
mod recipe;
mod recoverable;
mod request;
mod retry;
mod session;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod testing;
mod tracking;
mod wait;

pub use client::{
    Acl, ClientEvent, CreateMode, EventSink, Granted, Permissions, Stat, ZkError, ZkResult, ZooKeeperClient,
};
pub use directory::{LeaderWatch, LockDirectory, LockInfo, QueueWatch};
pub use error::{LockError, LossReason, Result};
pub use locks::{
    BlockingWriteLock, Candidate, DowngradeError, Leadership, LockGuard, LockListener, MultiGuard, MultiLock,
    NamedLocks, ReadGuard, ReadLock, ReadWriteLock, ReentrantGuard, ReentrantLock, Revocation, Revoker,
    WriteGuard, WriteLock,
};
pub use node_tracker::{NodeData, NodeTracker};
pub use operation::ZooKeeperOperation;
pub use protocol_support::ProtocolSupport;
pub use recipe::kind::LockKind;
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub use recipe::laws;
pub use recipe::naming_scheme::NamingScheme;
pub use recipe::znode_name::ZNodeName;
pub use recoverable::RecoverableZooKeeper;
pub use retry::RetryPolicy;
pub use session::{Session, SessionState};
pub use wait::{CancelToken, Wait};

pub use zookeeper::ZooKeeper;

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/guarantees.md")]
struct Guarantees;

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_shared_among_threads_is_send_and_sync() {
        fn assert_send_sync<T: Send + Sync>() {}
        assert_send_sync::<crate::Session>();
        assert_send_sync::<crate::WriteLock>();
        assert_send_sync::<crate::BlockingWriteLock>();
        assert_send_sync::<crate::LockGuard>();
        assert_send_sync::<crate::ReadWriteLock>();
        assert_send_sync::<crate::ReadLock>();
        assert_send_sync::<crate::ReadGuard>();
        assert_send_sync::<crate::WriteGuard>();
        assert_send_sync::<crate::DowngradeError>();
        assert_send_sync::<crate::ProtocolSupport>();
        assert_send_sync::<crate::RecoverableZooKeeper>();
        assert_send_sync::<crate::MultiLock>();
        assert_send_sync::<crate::MultiGuard>();
        assert_send_sync::<crate::ReentrantLock>();
        assert_send_sync::<crate::NamedLocks>();
        assert_send_sync::<crate::LockDirectory>();
        assert_send_sync::<crate::LeaderWatch>();
        assert_send_sync::<crate::QueueWatch>();
        assert_send_sync::<crate::NodeTracker>();
        assert_send_sync::<crate::Revoker>();
        assert_send_sync::<crate::Candidate>();
        assert_send_sync::<crate::Leadership>();
        assert_send_sync::<crate::LockError>();
    }
}
