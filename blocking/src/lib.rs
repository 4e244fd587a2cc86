//! Runs the locks of [`zookeeper-recipes-lock`](zookeeper_recipes_lock) on the crate [`zookeeper`].
//!
//! Prefer [`Session::connect`] where you can: see [what this package costs](#what-it-costs). It is for programs that must
//! reach the servers through the crate `zookeeper`.
//!
//! ```no_run
//! use std::time::Duration;
//! use zookeeper::ZooKeeper;
//! use zookeeper_recipes_lock::BlockingWriteLock;
//!
//! const SESSION_TIMEOUT: Duration = Duration::from_secs(20);
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let connect = || ZooKeeper::connect("127.0.0.1:2181", SESSION_TIMEOUT, |_| {});
//! let session = zookeeper_recipes_lock_blocking::open_session(connect, SESSION_TIMEOUT, false)?;
//! let guard = BlockingWriteLock::new(&session, "/locks/nightly")?.lock()?;
//! # drop(guard);
//! # Ok(())
//! # }
//! ```
//!
//! # What it costs
//! A session of this crate takes over what the library's own client does:
//! - **Order.** A single thread makes the calls of a session, one after the other. So the calls of a session share one
//!   round trip at a time, and a call that is stuck holds up all others, including what keeps a lease alive.
//! - **Events.** An event that comes during a call is passed on after the reply. A hand-over is as late as the call.
//! - **Pings.** The crate `zookeeper` does not report its pings. So the session makes a read whenever it has made no call
//!   for five sixths of the session timeout. If the answer takes a sixth of it, the session is given up.
//! - **Disconnects.** On a disconnect, the crate `zookeeper` gives up the session if it has not sent a ping for a session
//!   timeout, and it sends a ping only after two thirds of a session timeout without any request. A session that holds a
//!   lock makes requests more often. **So the first disconnect costs a session all its locks.**
//! - **Old data.** The crate `zookeeper` may move to a server whose state is older than what it has already reported.
//! - **A session that was replaced silently.** If the ZooKeeper session expires during a write, the crate `zookeeper` may
//!   make that write on its next session. A znode that is created in this way is deleted again; other writes stay.
//! - **A close without contact.** If a session is closed or lost while the handle has no contact, the crate `zookeeper` may
//!   resume the ZooKeeper session later, and keep it alive until the process ends. Its requests then block others.
//! - `RunOnce` and `LockGuard::commit` need transactions, which the crate `zookeeper` does not have.
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
mod calls;
mod connection_state;
mod convert;
mod logging;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::client::seam::ZooKeeperClient;
use zookeeper_recipes_lock::{LockError, Session};

pub use convert::error_of;

/// Opens a session on the handle that `connect` opens.
///
/// The handle belongs to the session, which closes it. With `replace_lost_sessions`, the session opens another handle
/// after each loss: see
/// [`SessionBuilder::replace_lost_sessions`](zookeeper_recipes_lock::SessionBuilder::replace_lost_sessions). Each call of
/// `connect` must open a new ZooKeeper session.
///
/// # The session timeout
/// The handle does not report which session timeout a server has granted, and on every reconnect the new
/// server may grant another. So `session_timeout` must be the smallest that any server of the ensemble grants
/// to the handle. It must not exceed any server's `maxSessionTimeout`, which is 20 ticks (40 s) by default.
/// This must remain true when the configuration changes. **A longer value breaks mutual exclusion.** Ticks
/// are assumed to be no longer than 2 s.
///
/// # Errors
/// - The error of the first call of `connect`, as [`error_of`] converts it.
/// - [`InvalidArgument`](zookeeper_recipes_lock::ErrorReason::InvalidArgument): the timeout is out of bounds.
/// - [`NoServer`](zookeeper_recipes_lock::ErrorReason::NoServer): the handle makes no contact within `session_timeout`.
/// - [`Thread`](zookeeper_recipes_lock::ErrorReason::Thread): no thread can be started.
pub fn open_session(
    connect: impl Fn() -> zookeeper::ZkResult<ZooKeeper> + Send + Sync + 'static,
    session_timeout: Duration,
    replace_lost_sessions: bool,
) -> Result<Session, LockError> {
    let client = move || client(connect(), session_timeout);
    Session::from_factory(client, replace_lost_sessions)
}

fn client(
    connected: zookeeper::ZkResult<ZooKeeper>,
    session_timeout: Duration,
) -> Result<Arc<dyn ZooKeeperClient>, LockError> {
    let zk = connected.map_err(|error| LockError::from_client("connect", "the ensemble", error_of(error)))?;
    let adapter = adapter::Adapter::new(zk, session_timeout);
    Ok(Arc::new(adapter.map_err(LockError::other)?))
}

/// Wraps a handle, for the tests of the contract of clients.
#[doc(hidden)]
pub fn adapter(zk: ZooKeeper, session_timeout: Duration) -> Result<Arc<dyn ZooKeeperClient>, LockError> {
    client(Ok(zk), session_timeout)
}
