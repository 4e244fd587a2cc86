//! Real ZooKeeper servers for tests, and a network that fails on command.
//!
//! A [`TestServer`] and the servers of a [`TestEnsemble`] listen on free loopback ports and keep
//! their data in a temporary directory. They end, and their data are removed, when the value is
//! dropped, when the test panics, and when its process is killed. A [`Relay`] stands for the network
//! between a client and a server.
//!
//! ```no_run
//! use std::time::Duration;
//! use zookeeper_recipes_lock::test_server::{Relay, TestServer};
//! use zookeeper_recipes_lock::{BlockingWriteLock, Session};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = TestServer::start()?;
//! let relay = Relay::to(&server.connect_string())?;
//! let session = Session::connect(&relay.connect_string(), Duration::from_secs(5))?;
//! let guard = BlockingWriteLock::new(&session, "/locks/report")?.lock()?;
//! relay.cut()?; // the session reconnects
//! assert!(guard.is_owner());
//! # Ok(())
//! # }
//! ```
//!
//! # What must be installed
//! - A Java runtime, in `JAVA_HOME` or on the `PATH`.
//! - ZooKeeper 3.5 or later. `ZOOKEEPER_HOME` names an unpacked release, or a directory with its jars.
//!   Without it, the jars are those of Debian's packages `libzookeeper-java` and `libslf4j-java` in
//!   `/usr/share/java`.
//! - `bash`, which watches over each server.
//!
//! Where one of them is missing, `start` fails with [`NotFound`](std::io::ErrorKind::NotFound), and
//! the message says what to install.
//!
//! Unix only.

// The tests in `tests/` include this module by its path: they need it without the feature. So it
// uses nothing of the crate.

mod ensemble;
pub(crate) mod java;
mod lane;
pub(crate) mod net;
mod options;
pub(crate) mod process;
mod relay;
mod server;
mod wait;

pub use ensemble::TestEnsemble;
pub use options::ServerOptions;
pub use relay::{Relay, RelayTrap};
pub use server::TestServer;
