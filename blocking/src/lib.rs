//! Sessions of [`zookeeper-recipes-lock`](zookeeper_recipes_lock) on a ZooKeeper client whose calls block.
//!
//! For an application that has a handle of the crate [`zookeeper`] already: [`session_on`] takes locks on its session.
//! And for who has another client whose calls wait for their replies: implement [`BlockingClient`], and give
//! [`on_workers`] of it to [`Session::from_client`].
//!
//! Prefer [`Session::connect`] where you can. It survives disconnects that cost a handle its locks, needs
//! no thread for a call, and fewer round trips.
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
//! A handle logs thousands of lines a second under the target `zookeeper::` while no server can be reached.
//! With `env_logger`, `RUST_LOG=info,zookeeper::=off` leaves them out. Keep both colons: the filter matches prefixes, and
//! would leave out those of the locks, too.

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
mod workers;

use std::sync::Arc;
use std::time::Duration;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{LockError, Session};

pub use adapter::{adapter, error_of};
pub use client::{BlockingClient, on_workers};

/// Uses a handle of the crate `zookeeper` that the application has opened.
///
/// The handle stays the application's: closing this session, or dropping it, deletes the znodes
/// of its locks and leaves the rest alone. It keeps the handle until that is done, or there was no
/// contact for a session timeout. If the reply to the creation of a request was lost, it keeps the handle
/// until two minutes after that: the znode may appear late. The handle does not report which session
/// timeout a server has granted, and each server grants its own on every reconnect. So `session_timeout`
/// must be the smallest that any server of the ensemble grants to this handle: never more than
/// 20 of its ticks (40 s by default), nor more than its `maxSessionTimeout`, also after the
/// next change of the configuration. **A longer value breaks mutual exclusion.** Ticks of at
/// most 2 s are assumed.
///
/// **A busy handle loses all its locks at the first disconnect**: the crate `zookeeper` gives a
/// session up if it has not pinged for a session timeout, and it pings only after two thirds of
/// one without any request. Hold a lock that must survive a disconnect on a handle that does
/// nothing else, with a session timeout of at least ten ticks of the servers (20 s by default),
/// or better on a session that [`Session::connect`] opens.
///
/// A call that is made while the handle's I/O thread starts may get no answer, and then no later call
/// gets one. So this waits up to a tenth of a second for the handle's first state. An application that
/// calls the handle before should wait for a state, too.
///
/// The handle's default watcher receives no events of the locks.
///
/// # Errors
/// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for a timeout out of bounds,
/// [`NoServer`](crate::ErrorReason::NoServer) if the handle is closed or has no contact within that time,
/// [`Thread`](crate::ErrorReason::Thread).
pub fn session_on(zk: Arc<ZooKeeper>, session_timeout: Duration) -> Result<Session, LockError> {
    Session::from_client(on_workers(adapter(zk, session_timeout)))
}
