//! A blocking client for one session of [Apache ZooKeeper](https://zookeeper.apache.org).
//!
//! The primary type in this crate is [`Connection`]: one session, connected to one server at a time. It makes calls
//! and sets watches that survive reconnects. It reports failures honestly: if the reply to a call was lost, the error
//! says so. A connection has one thread. It starts other threads only to resolve names, to fetch Kerberos tickets, to
//! write log lines and, with TLS, to check for changed files.
//!
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_connection::{Acl, Connection, CreateMode, Verbs, ZkError};
//!
//! let connection = Connection::open("zk1:2181,zk2:2181/app", Duration::from_secs(30))?;
//! match connection.create("/config", b"v1", &Acl::open_unsafe(), CreateMode::Persistent) {
//!     Ok(_) | Err(ZkError::NodeExists) => {}
//!     // The znode may or may not have been created: check.
//!     Err(ZkError::ConnectionLoss) => println!("{:?}", connection.exists("/config", false)?),
//!     Err(error) => return Err(error.into()),
//! }
//! let (data, stat) = connection.get_data("/config", false)?;
//! println!("{data:?} at version {}", stat.version);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does
//! - *Calls*: A method of [`Verbs`] waits for the reply. [`Connection::submit`] does not wait; it passes the outcome to
//!   a [`Done`]. Calls take effect and are answered in the order in which they were submitted, except that a call may
//!   be refused before earlier calls are answered. Each call is sent at most once.
//! - *Watches*: The client sets its watches again after a reconnect, and changes in between fire them. There is one
//!   exception, as with every client: if a znode did not exist, and is both created and deleted before the reconnect,
//!   the watch on its creation does not fire. The sink of [`Connection::subscribe`] receives a
//!   [`ClientEvent::NodeChanged`] for each fired watch. Fired watches and replies are delivered in the order in which
//!   the server sent them.
//! - *Reconnects*: If a connection is lost, the client tries all servers in turn. It accepts no server that lags behind
//!   what the session has seen in replies and events. If a server falls silent, the client leaves it while there is
//!   still time to reach another one.
//! - *State machine*: [`machine`] makes all decisions: about the session and its calls, which server to try and when,
//!   and what the log mentions. It has no I/O, no clock and no thread, so its behavior under any fault can be replayed.
//!
//! # Watches
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use zookeeper_connection::{ClientEvent, Connection, Verbs};
//! # let connection = Connection::open("zk1:2181", Duration::from_secs(30))?;
//! let (sender, changes) = crossbeam_channel::unbounded();
//! connection.subscribe(Arc::new(move |event| match event {
//!     ClientEvent::NodeChanged { .. } | ClientEvent::SessionLost => _ = sender.send(()),
//!     _ => {}
//! }));
//! loop {
//!     // Sets a watch. Any error ends this loop, for example that of a lost session.
//!     let (data, _) = connection.get_data("/config", true)?;
//!     println!("{data:?}");
//!     // Waits until the watch has fired or the session is lost.
//!     changes.recv()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! A call with `watch: true` sets a watch, which fires once. A watch of [`exists`](Verbs::exists) or
//! [`get_data`](Verbs::get_data) fires when the znode is created, changed or deleted. A watch of
//! [`get_children`](Verbs::get_children) fires when a child is created or deleted, or when the znode itself is deleted.
//! A connection has one event sink. The sink must not wait for a call, because replies arrive on the sink's thread.
//!
//! # Errors
//! [`ZkError`] says what each error means for its call. If the chroot does not exist, no znode below it exists, and a
//! create fails with `NoNode`; [`Connection::call_at_root`] can create the chroot. A session that is lost stays lost:
//! open another connection. A call waits at most a tenth of the session timeout for a connection. Once it is sent, it
//! fails if the server answers nothing for two fifths of the session timeout.
//!
//! # What it does not do
//! The client never repeats a call and never replaces a lost session. It has no recipes; the package
//! `zookeeper-recipes-lock` builds locks and elections on this client. It neither reads nor sets the ACLs of existing
//! znodes, and does not reconfigure ensembles.
//!
//! # What servers see
//! Besides the connection for its session, the client briefly opens a second one to each server that serves the
//! session, with a session of its own, to learn the server's minimum session timeout. From this, the client derives the
//! server's tick, on which [`Granted::report_delay`] depends. If a server does not answer on the second connection, the
//! client assumes that the tick is [`ConnectionOptions::max_tick`], or half of the session timeout if `max_tick` is not
//! set. A client that uses SASL does not authenticate on the second connection, and lets the session on it expire. If
//! [`ConnectionOptions::tick`] states the tick, there is no second connection.
//!
//! # Log
//! Log lines have the target [`ConnectionOptions::log_target`]. One thread passes the lines of all connections to the
//! logger, so a logger that blocks delays no connection and no call. Only [`Connection::close`] waits for it, for at most
//! 100 ms.
//!
//! # Stability
//! This package is released together with `zookeeper-recipes-lock`, under the same version. **Its interface may change
//! in any 0.x release.**
//!
//! # Features
//! - `tls`: encrypted connections, using rustls with the `CryptoProvider` of the process, or `ring` if there is none.
//! - `sasl`: SASL authentication with DIGEST-MD5: [`ConnectionOptions::sasl_digest`].
//! - `kerberos`: enables `sasl`, and adds Kerberos through the system's library: [`ConnectionOptions::kerberos`]. A
//!   build needs the library's headers and libclang (Debian: `libkrb5-dev libclang-dev pkg-config`; RHEL: `krb5-devel
//!   clang-devel`). A program needs the library itself (Debian: `libgssapi-krb5-2`; RHEL: `krb5-libs`).
//! - `test-util`: the server's side of the protocol, for tests.

#![cfg_attr(docsrs, feature(doc_cfg))]
// A link to an item of a disabled feature cannot be resolved. With all features, every link is checked.
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

mod acl;
mod call;
mod chroot;
#[doc(hidden)]
pub mod codec;
mod connect_error;
mod connect_string;
mod connection;
mod credential;
mod error;
mod event;
#[doc(hidden)]
pub mod exchange;
mod io;
#[cfg(any(test, feature = "loopback"))]
#[doc(hidden)]
pub mod loopback;
pub mod machine;
mod max_buffer;
mod memory;
mod names;
mod path;
#[doc(hidden)]
pub mod sasl;
#[doc(hidden)]
pub mod support;
#[cfg(test)]
mod tests;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod verbs;
mod znode;

#[cfg(test)]
extern crate self as zookeeper_connection;

pub use acl::{Acl, Permissions};
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub use call::call_in_parts;
pub use call::{Ask, Call, Done, Enqueued, Reply};
pub use chroot::Chroot;
pub use connect_error::ConnectError;
pub use connect_string::ConnectString;
#[doc(hidden)]
pub use connection::TickNote;
pub use connection::{Connection, ConnectionOptions};
pub use credential::Credential;
pub use error::{ZkError, ZkResult};
pub use event::{ClientEvent, DEFAULT_TICK, EventSink, Granted};
pub use max_buffer::{DEFAULT_JUTE_MAX_BUFFER, MaxBuffer};
pub use memory::ServerMemory;
pub use names::{Names, NamesIter};
#[doc(hidden)]
pub use path::{broken_rule, is_forbidden, path_of_child, printable};
#[cfg(feature = "sasl")]
#[cfg_attr(docsrs, doc(cfg(feature = "sasl")))]
pub use sasl::SaslDigest;
#[cfg(feature = "kerberos")]
#[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
pub use sasl::{KerberosConfig, KerberosTicket};
pub use time::Moment;
#[doc(hidden)]
pub use time::{Clock, MAX_SLEEP, SystemClock};
#[cfg(feature = "tls")]
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
pub use tls::TlsConfig;
pub use transaction::{Op, OpOutcome, Transacted};
pub use verbs::Verbs;
pub use znode::{CreateMode, Stat};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
