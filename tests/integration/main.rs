//! The integration tests: everything that needs a real ZooKeeper server, in one binary.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report, and the output is shown with the report"
)]

#[path = "../support/acl.rs"]
mod acl;
#[path = "../support/contract/mod.rs"]
mod contract;
#[path = "../support/one_server.rs"]
mod one_server;
#[path = "../support/raw_client.rs"]
mod raw_client;
#[path = "../support/mod.rs"]
mod support;

mod child_test;
mod fixtures;

mod bounds;
mod clients;
mod cohorts;
mod committing;
mod connecting;
mod counter_end;
mod directories;
mod distributed;
mod electing;
mod ensemble;
mod faults;
mod futures;
#[cfg(feature = "kerberos")]
mod kerberos;
mod kit;
mod lease;
mod listening;
mod locking;
mod multi;
mod ported;
mod published;
mod reactions;
mod recoverable;
mod reentrant;
mod revoking;
mod running_once;
#[cfg(feature = "sasl")]
mod sasl;
mod semaphores;
mod servers;
mod sharing;
#[cfg(feature = "tls")]
mod tls;
mod tracking;
