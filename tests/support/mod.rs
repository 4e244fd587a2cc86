//! The test kit: real ZooKeeper servers, a network that fails on command, and waits with a deadline.
//!
//! Shared by the integration tests and the benchmarks. It knows nothing of the crate under test.

#![allow(dead_code, unreachable_pub, reason = "each test binary and benchmark uses a part of the kit")]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "in a test kit, a panic with a clear message is the error report"
)]

pub mod ensemble;
pub mod leaks;
pub mod net;
pub mod process;
pub mod relay;
pub mod server;

// In `src`, as the unit tests wait with it too.
#[path = "../../src/testing/wait.rs"]
pub mod wait;
