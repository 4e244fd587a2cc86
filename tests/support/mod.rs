//! The test kit: real ZooKeeper servers, a network that fails on command, and waits with a deadline.
//!
//! The integration tests, the tests of `zklock` and the benchmarks share it. It wraps the servers and the
//! network of the package `zookeeper-test-server` so that errors panic. All that the kit knows about the
//! crate under test is the names of its threads.

#![allow(dead_code, unreachable_pub, reason = "each test binary and benchmark uses a part of the kit")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "in a test kit, a panic with a clear message is the error report"
)]

pub mod counter;
pub mod ensemble;
pub mod leaks;
pub mod net;
pub mod process;
pub mod relay;
pub mod server;

pub use zookeeper_test_server as test_server;

// These modules are in `src` because the unit tests use them, too.
#[path = "../../src/tests/certificates.rs"]
pub mod certificates;
#[path = "../../src/tests/panics.rs"]
pub mod panics;
#[path = "../../src/tests/wait.rs"]
pub mod wait;
#[path = "../../src/tests/watchdog.rs"]
pub mod watchdog;
