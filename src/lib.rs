//! Distributed locks and leader election on [Apache ZooKeeper](https://zookeeper.apache.org), for
//! threaded daemons.
//!
//! A blocking port of the Java recipe `WriteLock`, with its names and without its bugs. JVM, Go and
//! Python programs can share a lock with it.
//!
//! # What it cannot promise
//! No lock service can stop a process that has lost its lock from acting: a thread may be paused
//! between [`is_owner`](LockGuard::is_owner) and the action. Where the action reaches a resource
//! outside ZooKeeper, pass the [`fencing_token`](LockGuard::fencing_token) along and let the
//! resource refuse older ones.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_recipes_lock::{BlockingWriteLock, Session};
//!
//! # fn write_report() {}
//! let session = Session::connect("zk1:2181,zk2:2181,zk3:2181", Duration::from_secs(30))?;
//! let lock = BlockingWriteLock::new(&session, "/locks/report")?;
//!
//! let guard = lock.lock()?;
//! if guard.is_owner() {
//!     write_report();
//! }
//! drop(guard); // released
//! # Ok::<(), zookeeper_recipes_lock::LockError>(())
//! ```
//!
//! # Which lock?
//! | need | type | blocks? | when the session is lost |
//! |---|---|---|---|
//! | one at a time, in scoped code | [`BlockingWriteLock`] | the calling thread | the guard is no owner; [`LockGuard::lost`] |
//! | one at a time, without a thread that waits | [`WriteLock`] | only to join the queue | [`LockListener::lock_lost`] |
//! | readers together, writers alone | [`ReadWriteLock`] | the calling thread | as for a guard |
//! | a leader that does work | [`Candidate`], [`CandidateGroup`] | no: threads of their own | the closure should stop; it may lead again |
//! | many threads of each process on one lock | [`CohortLock`] | the calling thread | as for a guard |
//! | at most n at a time | [`Semaphore`] | the calling thread | the [`Permit`] is lost |
//! | several locks at once, all or none | [`MultiLock`] | the calling thread | all of them are lost |
//! | a lock that its holder may take again | [`ReentrantLock`] | the calling thread | as for a guard |
//! | a lock for each of many resources | [`NamedLocks`] | the calling thread | as for a guard |
//! | a job that runs once for a key | [`RunOnce`] | the calling thread | the job is asked to stop |
//!
//! In async programs, tasks await a lock without a thread: [`BlockingWriteLock::lock_async`].
//!
//! Any number of locks share a [`Session`], which is one connection. [`LockOptions`] set the ACL,
//! the data and the retries of a lock. [`LockGuard::commit`] changes znodes only while the lock is held.
//! [`RecoverableZooKeeper`] reads and writes the data next to a lock over lost connections.
//!
//! # When a call fails
//! ```no_run
//! use std::{thread, time::Duration};
//! use zookeeper_recipes_lock::{
//!     BlockingWriteLock, ErrorKind, LockError, LockGuard, Session, SessionState, Wait,
//! };
//!
//! /// Acquires the lock, on a new session if the last one is lost.
//! fn acquire(session: &mut Session, servers: &str, dir: &str) -> Result<LockGuard, LockError> {
//!     loop {
//!         if session.state() == SessionState::Lost {
//!             *session = Session::builder(servers).wait_for_server(Wait::forever()).connect()?;
//!         }
//!         match BlockingWriteLock::new(session, dir)?.lock() {
//!             Ok(guard) => return Ok(guard),
//!             Err(error) if error.reason() == ErrorReason::RequestDeleted => {} // by another client: join again
//!             Err(error) if error.kind() == ErrorKind::Normal => return Err(error),
//!             Err(_) => thread::sleep(Duration::from_secs(1)), // the session may live
//!         }
//!     }
//! }
//! ```
//! [`SessionBuilder::replace_lost_sessions`] does this for requests that wait. Threads that share a
//! session use it: one of them would connect a new session, and the others another one each.
//!
//! # Observing
//! - [`LockDirectory`] shows who holds a lock and who waits for it, whichever library they use, and
//!   deletes old requests.
//! - [`LeaderWatch`] shows a follower who leads, and reports changes. [`QueueWatch`] reports
//!   everybody who joins and leaves.
//! - [`NodeTracker`] keeps the current data of any znode.
//!
//! # What happens on failures
//! | event | owner | waiter |
//! |---|---|---|
//! | connection cut, back in time | remains the owner; its znode is checked after the reconnect | waits on |
//! | no contact until the lease ends | [`is_owner`](LockGuard::is_owner) becomes false; [`LeaseExpired`](LossReason::LeaseExpired) | waits on |
//! | session lost | [`SessionExpired`](LossReason::SessionExpired) or [`LeaseExpired`](LossReason::LeaseExpired) | its call returns [`SessionLost`](crate::ErrorReason::SessionLost), or [`request_dropped`](LockListener::request_dropped) is called |
//! | another client deletes the znode | [`NodeDeleted`](LossReason::NodeDeleted) | [`RequestDeleted`](crate::ErrorReason::RequestDeleted) |
//! | process killed | the next in the queue acquires after the session timeout | the others move up |
//!
//! A lost session stays lost. Connecting a new one, and contending again, is the application's
//! decision.
//!
//! # Differences from the Java recipe
//! - A request is named by a GUID, not by the session: two threads on one session can contend for
//!   one lock.
//! - Only the sequence numbers determine the order (ZOOKEEPER-2931).
//! - A predecessor that is deleted between the listing and the watch is noticed. The Java recipe
//!   waits for ever.
//! - The next in line also watches the request ahead of its predecessor, so that a hand-over takes
//!   one round trip.
//! - A wait survives a reconnect. So does an unlock during an outage: its znode is deleted later.
//! - Ownership ends with the lease, and a loss is reported.
//! - Listeners are called without any mutex held, in order. Errors are returned, not logged.
//!
//! # Features
//! None is on by default.
//! - `tls`: encrypted connections, by rustls with the `CryptoProvider` of the process, or `ring` if there is none.
//! - `sasl`: authentication by SASL with DIGEST-MD5: [`SessionBuilder::sasl_digest`].
//! - `kerberos`: `sasl`, and Kerberos by the system's library: [`SessionBuilder::kerberos`]. A build needs its headers and
//!   libclang (Debian: `libkrb5-dev libclang-dev pkg-config`; RHEL: `krb5-devel clang-devel`), and a program the library
//!   (`libgssapi-krb5-2`; `krb5-libs`).
//! - `test-util`: [`fake`], a ZooKeeper in memory with faults on command and a clock that a test
//!   sets.
//!
//! The program `zklock` runs commands under a lock and shows queues; it is a package of its name. The
//! package `zookeeper-recipes-lock-metrics` exports metrics. The package `zookeeper-test-server` has real servers for tests, and a network that fails on command.
//!
//! # Logging
//! The crate logs through [`log`]: `debug` for steps and for each lock that is acquired or released, `info`
//! for the session's states, `warn` and `error` for what an operator should see. A line about a lock names its znode or
//! directory. An outage is mentioned after a second, and then less and less often.
//!
//! The logger is called on the threads of the session and of the callers, without any mutex of this
//! crate held, so it may call this crate. It should not wait for a lock, as that blocks a thread of
//! the session. A panic of the logger is caught.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without some feature, what it adds cannot be linked to. With all of them, each link is checked.
#![cfg_attr(
    not(all(feature = "tls", feature = "kerberos", feature = "test-util")),
    allow(rustdoc::broken_intra_doc_links)
)]
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

// For maintainers: `engine/mod.rs` begins with a walk through the files, `docs/design.md` with a map.

pub mod client;
pub mod data;
mod engine;
mod error;
mod external;
#[cfg(any(test, feature = "test-util"))]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub mod fake;
mod lock_options;
mod lock_order;
pub mod locks;
mod logging;
mod node_tracker;
mod operation;
mod protocol_support;
pub mod queue;
pub mod recipe;
mod recoverable;
mod request;
mod retry;
mod session;
#[cfg(test)]
mod tests;
mod time;
mod tracking;
mod wait;

use zookeeper_connection::support::{panics, process};

pub use error::{ErrorKind, ErrorReason, LockError, LossReason};
pub use lock_options::LockOptions;
pub use locks::blocking_write_lock::BlockingWriteLock;
pub use locks::candidate::Candidate;
pub use locks::leadership::Leadership;
pub use locks::lock_guard::LockGuard;
pub use locks::lock_listener::LockListener;
pub use locks::write_lock::WriteLock;
pub use operation::ZooKeeperOperation;
pub use protocol_support::ProtocolSupport;
#[cfg(any(test, zk_laws))]
#[doc(hidden)]
pub use recipe::laws;
pub use recipe::znode_name::ZNodeName;
pub use retry::RetryPolicy;
pub use session::events;
#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use session::own_connection;
pub use session::{Session, SessionBuilder, SessionState};
pub use wait::{CancelToken, Wait};

/// The channels that the public interface returns. Used from here, they need no dependency of their own.
pub use crossbeam_channel;

/// The README's examples, compiled.
#[cfg(all(doctest, feature = "test-util"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guides of the repository's `docs` directory. Their links to other files work there.
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("../docs/faults.md")]
    pub mod faults {}

    #[doc = include_str!("../docs/how-we-know.md")]
    pub mod how_we_know {}

    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[cfg(any(doc, all(unix, feature = "test-util")))]
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("../docs/sharing.md")]
    pub mod sharing {}

    #[doc = include_str!("../docs/coming-from-java.md")]
    pub mod coming_from_java {}

    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}
}
