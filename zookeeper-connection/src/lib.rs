//! One session of [Apache ZooKeeper](https://zookeeper.apache.org), for programs that block.
//!
//! A [`Connection`] is one session, on one server of the list at a time. It makes calls, sets watches that
//! survive reconnects, and reports honestly: a call whose reply was lost says so. It has one thread, and others for as long as
//! names are resolved, Kerberos tickets are fetched or, with TLS, changed files are read.
//!
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_connection::{Acl, Connection, CreateMode, Verbs, ZkError};
//!
//! let connection = Connection::open("zk1:2181,zk2:2181/app", Duration::from_secs(30))?;
//! match connection.create("/config", b"v1", &Acl::open_unsafe(), CreateMode::Persistent) {
//!     Ok(_) | Err(ZkError::NodeExists) => {}
//!     // It may have been created: look.
//!     Err(ZkError::ConnectionLoss) => println!("{:?}", connection.exists("/config", false)?),
//!     Err(error) => return Err(error.into()),
//! }
//! let (data, stat) = connection.get_data("/config", false)?;
//! println!("{data:?} at version {}", stat.version);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does
//! - *Calls*: [`Verbs`] waits for each reply; [`Connection::submit`] does not, and takes a [`Done`]. Calls take
//!   effect, and are answered, in the order in which they were submitted; only a refusal may come earlier. A call is
//!   sent once, and never repeated.
//! - *Watches* are set again after a reconnect, without a gap in what they notice. [`Connection::subscribe`]
//!   reports them as [`ClientEvent::NodeChanged`], in order among the replies.
//! - *Reconnects*: to the next server of the list, which must have taken up everything of which the session has
//!   seen a reply or an event. A server that is silent is left in time for another one.
//! - *The state machine* behind it, [`machine`], has no I/O, no clock and no thread, so that each of its
//!   behaviors under faults can be replayed.
//!
//! # Watches
//! ```no_run
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # use zookeeper_connection::{ClientEvent, Connection, Verbs};
//! # let connection = Connection::open("zk1:2181", Duration::from_secs(30))?;
//! let (sender, changes) = crossbeam_channel::unbounded();
//! connection.subscribe(Arc::new(move |event| match event {
//!     ClientEvent::NodeChanged { path, .. } => drop(sender.send(path)),
//!     ClientEvent::SessionLost => {} // and `changes` ends when the connection is dropped
//!     _ => {}
//! }));
//! loop {
//!     let (data, _) = connection.get_data("/config", true)?; // sets a watch
//!     println!("{data:?}");
//!     changes.recv()?; // it has fired: look again
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! A call with `watch: true` sets a watch, which fires once. That of [`exists`](Verbs::exists) and
//! [`get_data`](Verbs::get_data) fires when the znode is created, changed or deleted; that of
//! [`get_children`](Verbs::get_children) when a child comes or goes, or the znode is deleted. There is one sink; the sink must
//! not wait for a call, as the replies come on its thread.
//!
//! # Errors
//! [`ZkError`] has a table of what each error means for its call. A missing chroot shows itself as `NoNode` of every call;
//! [`Connection::call_at_root`] can create it. A session that is lost stays lost: open another connection.
//! A call waits at most a tenth of the session timeout for a connection, and two fifths of it for an answer.
//!
//! # What it does not do
//! It repeats no call, opens no second session when one is lost, and has no recipe. The package
//! `zookeeper-recipes-lock` has locks and elections on it. It reads and sets no ACLs of znodes
//! that exist, and does not reconfigure ensembles.
//!
//! # What servers see
//! Beside the session, a second connection for a moment, once for each server: it learns the server's minimum session
//! timeout, and from that its tick, which [`Granted::report_delay`] depends on. A client that uses SASL does not authenticate
//! there, and leaves that session to end by itself. [`ConnectionOptions::max_tick`] is what counts
//! until that is known. Log lines have the target of [`ConnectionOptions::log_target`], and are written by another thread.
//!
//! # Stability
//! This package is released with `zookeeper-recipes-lock` and has its version. **Its interface may change in any
//! 0.x release.**
//!
//! # Features
//! - `tls`: encrypted connections, by rustls with the `CryptoProvider` of the process, or `ring` if there is none.
//! - `sasl`: authentication by SASL with DIGEST-MD5: [`ConnectionOptions::sasl_digest`].
//! - `kerberos`: `sasl`, and Kerberos by the system's library: [`ConnectionOptions::kerberos`]. A build needs its headers and
//!   libclang (Debian: `libkrb5-dev libclang-dev pkg-config`; RHEL: `krb5-devel clang-devel`), and a program the library
//!   (`libgssapi-krb5-2`; `krb5-libs`).
//! - `test-util`: the servers' side of the protocol, for tests.

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

mod acl;
mod call;
mod chroot;
#[doc(hidden)]
pub mod codec;
mod connect_error;
mod connect_string;
mod connection;
mod credential;
mod driver;
mod error;
mod event;
#[doc(hidden)]
pub mod exchange;
pub mod machine;
mod names;
mod path;
mod probe;
mod resolver;
#[doc(hidden)]
pub mod sasl;
mod servers;
mod shared;
#[doc(hidden)]
pub mod support;
#[cfg(test)]
mod tests;
mod time;
#[cfg(feature = "tls")]
mod tls;
mod transaction;
mod transport;
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
pub use connection::{Connection, ConnectionOptions};
pub use credential::Credential;
pub use error::{ZkError, ZkResult};
pub use event::{ClientEvent, DEFAULT_TICK, EventSink, Granted};
pub use names::{Names, NamesIter};
#[doc(hidden)]
pub use path::{broken_rule, is_forbidden, printable};
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

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
