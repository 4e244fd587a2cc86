//! Tests of the program `zklock` on real servers.

#![cfg(unix)]
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report, and its output is shown with it"
)]

#[path = "../../../tests/support/mod.rs"]
mod support;

mod checking;
mod ending;
#[cfg(target_os = "linux")]
mod guarding;
mod observing;
mod once;
mod program;
mod removing;
mod running;
mod silence;
mod systemd;
#[cfg(target_os = "linux")]
mod terminal;
mod usage;
