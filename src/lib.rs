//! Distributed locks and leader election on [Apache ZooKeeper](https://zookeeper.apache.org).
//!
//! Threads in different processes queue up under a znode and take turns. An owner knows from its *lease* that it still
//! owns the lock: the lease ends before the servers can give the lock to anybody else. The crate is made for daemons
//! with many threads, and modeled on `WriteLock`, Apache's Java recipe. It can share a lock with programs that use that
//! recipe, Curator, go-zookeeper or kazoo. Async programs can [await](BlockingWriteLock::lock_async) a lock on any
//! runtime.
//!
//! The primary types in this crate are [`Session`], a connection to the servers that any number of locks
//! share, and [`BlockingWriteLock`], the exclusive lock. Dropping its [`LockGuard`] releases the lock.
//!
//! # When not to use it
//! - You have no ZooKeeper ensemble. Another lock service is less work than an ensemble that you run only for locks:
//!   see the guide on [choosing](guide::choosing).
//! - All threads are in one process, or all processes on one machine. A mutex or `flock` is faster, and cannot be lost.
//! - The lock protects rows of one Postgres database. Its advisory locks need no second system.
//! - Doing the work twice does no harm. A lock in Redis is enough.
//! - A late write would do damage, and the resource cannot refuse it. No lock service can stop a paused process from
//!   acting after it has lost its lock.
//!
//! If the work touches anything outside ZooKeeper, send the [`fencing_token`](LockGuard::fencing_token) with each
//! write, and let the resource refuse a token that is smaller than one it has seen.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_recipes_lock::{BlockingWriteLock, Session};
//!
//! # fn write(page: u32, token: i64) {}
//! let session = Session::connect("zk1:2181,zk2:2181,zk3:2181", Duration::from_secs(30))?;
//! let lock = BlockingWriteLock::new(&session, "/locks/report")?;
//!
//! let guard = lock.lock()?; // waits until it is our turn
//! let token = guard.fencing_token()?;
//! for page in 1..=3 {
//!     if guard.is_owner() { // check before each action
//!         write(page, token); // the storage refuses tokens that are too small
//!     }
//! }
//! guard.unlock()?; // dropping the guard releases the lock, too
//! # Ok::<(), zookeeper_recipes_lock::LockError>(())
//! ```
//!
//! # Which lock?
//! | need | type |
//! |---|---|
//! | one owner at a time, for the length of a scope, in a thread or a task | [`BlockingWriteLock`] |
//! | the same, with callbacks as in Java instead of a waiting thread | [`WriteLock`] |
//! | a leader that works until it loses the lead | [`Candidate`] |
//! | readers together, writers alone | [`ReadWriteLock`](locks::ReadWriteLock) |
//! | at most n at a time | [`Semaphore`](locks::Semaphore) |
//! | one lock for many threads of each process, handed over in memory | [`CohortLock`](locks::CohortLock) |
//! | several locks at once, all or none | [`MultiLock`](locks::MultiLock) |
//! | a lock that its holder may take again | [`ReentrantLock`](locks::ReentrantLock) |
//! | a lock for each of many resources | [`NamedLocks`](locks::NamedLocks) |
//! | a job that runs once for a key | [`RunOnce`](locks::RunOnce) |
//!
//! [`LockOptions`] set the ACL, the data, the names and the retries of a lock, and how long it may be held. A [`Wait`]
//! says when a wait ends: at a deadline, or when another thread cancels a [`CancelToken`].
//!
//! # When a call fails
//! A call that fails returns a [`LockError`]. Its [kind](ErrorKind) says what to do: retry, lock again, reconnect, or
//! give up.
//!
//! ```no_run
//! use std::{thread, time::Duration};
//! use zookeeper_recipes_lock::{BlockingWriteLock, ErrorKind, LockError, LockGuard, Session, Wait};
//!
//! const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
//!
//! /// Acquires the lock, on a new session if the old one is lost.
//! fn acquire(session: &mut Session, servers: &str, dir: &str) -> Result<LockGuard, LockError> {
//!     loop {
//!         let error = match BlockingWriteLock::new(session, dir).and_then(|lock| lock.lock()) {
//!             Ok(guard) => return Ok(guard),
//!             Err(error) => error,
//!         };
//!         match error.kind() {
//!             ErrorKind::Retry | ErrorKind::LockAgain => thread::sleep(Duration::from_secs(1)),
//!             ErrorKind::Reconnect => {
//!                 let builder = Session::builder(servers).session_timeout(SESSION_TIMEOUT);
//!                 *session = builder.wait_for_server(Wait::forever()).connect()?;
//!             }
//!             _ => return Err(error),
//!         }
//!     }
//! }
//! ```
//! [`SessionBuilder::replace_lost_sessions`] makes a session replace itself after a loss. Calls that wait for a lock
//! then wait on. Use it when threads share a session; otherwise each thread would open a replacement of its own.
//!
//! A lock that is held can be lost. Then [`LockGuard::is_owner`] turns false, [`LockGuard::lost`] receives the
//! [`LossReason`], and the [`LockListener`] of a [`WriteLock`] is called.
//!
//! | event | the owner | a waiter's call |
//! |---|---|---|
//! | connection lost, and restored in time | remains the owner | keeps waiting |
//! | no contact until the lease ends | [`LeaseExpired`](LossReason::LeaseExpired) | keeps waiting |
//! | session lost | [`SessionLost`](LossReason::SessionLost) | [`SessionLost`](ErrorReason::SessionLost) |
//! | another client deletes the znode | [`NodeDeleted`](LossReason::NodeDeleted) | [`NodeDeleted`](ErrorReason::NodeDeleted) |
//! | held for longer than its limit | [`HeldTooLong`](LossReason::HeldTooLong) | – |
//!
//! If the owner's process is killed, the next request in the queue acquires the lock [once the servers have ended the
//! session](guide::faults#the-process-of-a-holder-or-a-waiter-dies).
//!
//! The guide on [guarantees](guide::guarantees) lists the promises and their limits. The guide on
//! [faults](guide::faults) says what your program sees in each fault.
//!
//! # The modules
//! - [`locks`]: the locks in the table above that are not at the root of the crate.
//! - [`queue`]: seeing who holds a lock and who waits for it, whichever library they use; watching a leader;
//!   revoking a lock.
//! - [`data`]: reading, writing and following data kept beside a lock.
//! - [`events`]: what happens on a session, for metrics and audit logs.
//! - [`client`]: ZooKeeper's own types, such as ACLs.
//! - [`recipe`]: the names of requests, which let programs with different libraries share a lock.
//! - `fake`, with the feature `test-util`: an in-memory ZooKeeper for tests, with faults on command and a clock that
//!   the test advances.
//! - [`guide`]: the pages of the repository's `docs` directory, including one on [coming from
//!   Java](guide::coming_from_java).
//!
//! # Features
//! All features are off by default.
//! - `tls`: encrypted connections, using rustls with the process's `CryptoProvider`, or with `ring` if the
//!   process has none.
//! - `sasl`: SASL authentication with DIGEST-MD5 (`SessionBuilder::sasl_digest`).
//! - `kerberos`: `sasl`, plus Kerberos through the system's library (`SessionBuilder::kerberos`). Building
//!   needs the library's headers and libclang (Debian: `libkrb5-dev libclang-dev pkg-config`; RHEL:
//!   `krb5-devel clang-devel`). Running needs the library itself (Debian: `libgssapi-krb5-2`; RHEL:
//!   `krb5-libs`).
//! - `test-util`: the module `fake`.
//! - `seam`: the module `client::seam`, for adapters that run the locks on another client library. Unstable.
//!
//! Separate packages:
//! - `zklock`: a program that runs commands under a lock, and shows queues.
//! - `zookeeper-recipes-lock-metrics`: metrics for sessions and locks.
//! - `zookeeper-test-server`: real servers for tests, and a network that fails on command.
//!
//! # Logging
//! The crate logs through [`log`]:
//! - at `debug`, single steps, such as acquisitions and releases;
//! - at `info`, rare but normal events: for example, a session is connected, closed or replaced, a revocation is
//!   requested, a lock is downgraded, or an empty lock directory is removed;
//! - at `warn` and `error`, what an operator should see.
//!
//! A line about a request names its znode or directory. A loss of contact is logged immediately, but at most once a
//! minute. An outage that goes on is logged after one second, then at growing intervals.
//!
//! A thread of its own calls the logger, for all sessions and in the order of the events. So the logger may block, and
//! may call back into the crate; the lines that such a call causes come to the logger, too. A panic in the logger is
//! caught. The crate does not ask [`Log::enabled`](log::Log::enabled): it formats every line that
//! [`log::max_level`] lets through. [`Session::close`], and the drop of the last handle to a session, wait for the lines
//! so far, for at most 100 ms.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without a feature, links to the items that it adds are broken. A build with all features checks every link.
#![cfg_attr(
    not(all(feature = "tls", feature = "kerberos", feature = "seam", feature = "test-util")),
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

// For maintainers: `engine/mod.rs` begins with a tour of the files, `docs/design.md` with a map.

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
pub use session::{Session, SessionBuilder, SessionState};
pub use wait::{CancelToken, Wait};

/// The crate whose channels the public interface returns.
///
/// Thanks to this re-export, programs need not depend on `crossbeam-channel` themselves.
pub use crossbeam_channel;

/// The README's examples, compiled.
#[cfg(all(doctest, feature = "test-util"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The pages of the repository's `docs` directory.
///
/// To decide: [guarantees](guide::guarantees), [choosing a lock](guide::choosing), and the
/// [evidence](guide::how_we_know). To write a program: [testing](guide::testing), [coming from Java](guide::coming_from_java),
/// [sharing locks with other libraries](guide::sharing). To run it: [operations](guide::operations), [faults](guide::faults),
/// [performance](guide::performance). To work on this crate: [design](guide::design).
#[cfg(any(doc, doctest))]
pub mod guide {
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("../docs/faults.md")]
    pub mod faults {}

    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("../docs/sharing.md")]
    pub mod sharing {}

    #[doc = include_str!("../docs/coming-from-java.md")]
    pub mod coming_from_java {}

    #[cfg(any(doc, all(unix, feature = "test-util")))]
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("../docs/performance.md")]
    pub mod performance {}

    #[doc = include_str!("../docs/how-we-know.md")]
    pub mod how_we_know {}

    #[doc = include_str!("../docs/design.md")]
    pub mod design {}
}
