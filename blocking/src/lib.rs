//! Runs the locks of [`zookeeper-recipes-lock`](zookeeper_recipes_lock) on a ZooKeeper client whose calls
//! block.
//!
//! - If your application already has a handle of the crate [`zookeeper`], [`session_on`] opens a lock session
//!   on that handle.
//! - If you have another client whose calls block, implement [`BlockingClient`] for it, wrap it with
//!   [`on_workers`], and pass the result to [`Session::from_client`].
//!
//! Prefer [`Session::connect`] where you can. Its session survives disconnects that cost a handle its locks,
//! needs no threads for calls, and makes fewer round trips.
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//! use zookeeper::ZooKeeper;
//! use zookeeper_recipes_lock::BlockingWriteLock;
//!
//! const SESSION_TIMEOUT: Duration = Duration::from_secs(20);
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let handle = Arc::new(ZooKeeper::connect("127.0.0.1:2181", SESSION_TIMEOUT, |_| {})?);
//! let session = zookeeper_recipes_lock_blocking::session_on(handle, SESSION_TIMEOUT)?;
//! let guard = BlockingWriteLock::new(&session, "/locks/nightly")?.lock()?;
//! # drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! While no server can be reached, a handle logs thousands of lines a second under the target `zookeeper::`.
//! With `env_logger`, `RUST_LOG=info,zookeeper::=off` suppresses them. Keep both colons: the filter matches
//! prefixes, and without the colons it would suppress the lines of the locks, too.

#![forbid(unsafe_code)]
#![warn(
    missing_debug_implementations,
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used
)]
#![cfg_attr(test, allow(clippy::expect_used, clippy::panic, clippy::unwrap_used))]

mod adapter;
mod client;
mod logging;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{LockError, Session};

pub use adapter::{adapter, error_of};
pub use client::{BlockingClient, on_workers};

/// Opens a session on the application's handle of the crate `zookeeper`.
///
/// **A busy handle loses all its locks on the first disconnect.** On a disconnect, the crate `zookeeper` gives up the
/// session if it has not sent a ping for a session timeout, and it sends a ping only after two thirds of a session
/// timeout without any request. If a lock must survive a disconnect, take it on a session that [`Session::connect`]
/// opens. If you cannot, use a handle that does nothing else, with a session timeout of at least ten ticks of
/// the servers (20 s by default).
///
/// # The session timeout
/// The handle does not report which session timeout a server has granted, and on every reconnect the new
/// server may grant another. So `session_timeout` must be the smallest that any server of the ensemble grants
/// to this handle. It must not exceed any server's `maxSessionTimeout`, which is 20 ticks (40 s) by default.
/// This must remain true when the configuration changes. **A longer value breaks mutual exclusion.** Ticks
/// are assumed to be no longer than 2 s.
///
/// # Use of the handle
/// The handle still belongs to the application. Its default watcher receives no events of the locks. Closing
/// or dropping the session deletes the znodes of its locks and leaves everything else alone. The session
/// keeps a reference to the handle until the znodes are deleted, or until there has been no contact for a
/// session timeout and two minutes more, because a server may keep the ZooKeeper session for longer than its
/// timeout. If the reply to the creation of a request's znode was lost, the session keeps the
/// reference until two minutes after that loss, because the znode may appear late.
///
/// A call that is made while the handle's I/O thread starts may never be answered, and then no later call is
/// answered either. So this function waits up to a tenth of a second for the handle to report a state. If the
/// application makes calls before it calls this function, it should wait for a state first, too.
///
/// # Errors
/// - [`InvalidArgument`](zookeeper_recipes_lock::ErrorReason::InvalidArgument): the timeout is out of bounds.
/// - [`NoServer`](zookeeper_recipes_lock::ErrorReason::NoServer): the handle is closed, or makes no contact within
///   `session_timeout`.
/// - [`Thread`](zookeeper_recipes_lock::ErrorReason::Thread): no thread can be started.
pub fn session_on(zk: Arc<ZooKeeper>, session_timeout: Duration) -> Result<Session, LockError> {
    Session::from_client(on_workers(adapter(zk, session_timeout)))
}
