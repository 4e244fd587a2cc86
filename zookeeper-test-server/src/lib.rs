//! Real ZooKeeper servers for tests, and a network that fails on command.
//!
//! - A [`TestServer`] is one server; a [`TestEnsemble`] is several servers that elect a leader. They listen on free
//!   loopback ports and keep their data in temporary directories. They end, and their data is removed, when the value
//!   is dropped, when the test panics, and when the test process is killed.
//! - A [`Relay`] stands for the network between a client and a server, and fails on command.
//! - A [`TestKdc`] issues tickets to clients that authenticate with Kerberos.
//!
//! ```no_run
//! use zookeeper_test_server::{Relay, TestServer};
//!
//! # fn connect(servers: &str) -> std::io::Result<()> { Ok(()) }
//! # fn main() -> std::io::Result<()> {
//! let server = TestServer::start()?;
//! let relay = Relay::to(&server.connect_string())?;
//! let client = connect(&relay.connect_string())?; // any ZooKeeper client
//! relay.cut()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Requirements
//! - A Java runtime, in `JAVA_HOME` or on the `PATH`.
//! - ZooKeeper 3.5 or later. `ZOOKEEPER_HOME` names an unpacked release or a directory with its jars. If it is
//!   not set, the crate uses the jars of Debian's packages `libzookeeper-java` and `libslf4j-java` in
//!   `/usr/share/java`.
//! - `bash`, which supervises each server.
//! - For a [`TestKdc`], MIT Kerberos: Debian's packages `krb5-kdc`, `krb5-admin-server` and `krb5-user`.
//!
//! If one of these is missing, `start` fails with [`NotFound`](std::io::ErrorKind::NotFound), and the error
//! message says what to install.
//!
//! The crate works only on Unix.

#![cfg(unix)]
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub, rust_2018_idioms)]

mod daemon;
mod ensemble;
#[doc(hidden)]
pub mod java;
#[doc(hidden)]
pub mod kdc;
mod lane;
#[doc(hidden)]
pub mod net;
mod options;
#[doc(hidden)]
pub mod process;
mod relay;
mod sasl;
mod server;
mod wait;

pub use ensemble::TestEnsemble;
pub use kdc::TestKdc;
pub use options::ServerOptions;
pub use relay::{Relay, RelayTrap};
pub use server::TestServer;
