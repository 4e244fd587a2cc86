//! Chaos on real servers. Client processes contend for a few locks, exclusively and as readers, and for the permits of
//! a semaphore, while servers, clients, the network and the KDC fail. The clients acquire by blocking calls and by
//! futures. Half of them authenticate by Kerberos, and half connect by TLS. Owners also read and replace data in
//! ZooKeeper's tree. A checker finds broken promises in the clients' journals.
//!
//! ```text
//! scripts/chaos [SECONDS] [--keep DIR] [--seed N]     a long run (600 s), optimized
//! cargo test --all-features --test chaos              a short one, among the other tests
//! ```
//!
//! - [`conductor`]: starts three servers, a KDC and the clients, alternates between chaos and calm, ends everything
//! - [`nemesis`]: injects faults, chosen by one seed
//! - [`network`]: what lies between a client and the servers, and the KDC
//! - [`client`]: a contending process, which is this program started again
//! - [`register`]: what the locks protect; it refuses old fencing tokens, and also sends the clients their orders
//! - [`history`]: the parsed journals: the checker, the figures, the pictures
//!
//! The seed determines the choices of the nemesis and the clients. The timing depends on real processes, so a
//! seed reproduces the kind of run but not every step of it.

#![allow(
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program, which prints its report, and whose panics are failure reports"
)]

mod arguments;
mod certificates;
mod client;
mod clock;
mod conductor;
mod history;
mod nemesis;
mod network;
mod plan;
mod random;
mod register;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use self::arguments::Role;

fn main() -> ExitCode {
    match arguments::parse(std::env::args().skip(1)) {
        Ok(Role::Conductor(plan)) => conductor::run(&plan),
        Ok(Role::Client(orders)) => client::run(orders),
        Ok(Role::Nothing) => {
            println!("chaos: 0 passed, 0 failed, 1 filtered out");
            ExitCode::SUCCESS
        }
        Ok(Role::List) => {
            println!("chaos: test");
            ExitCode::SUCCESS
        }
        Err(complaint) => {
            eprintln!("chaos: {complaint}\n{}", arguments::USAGE);
            ExitCode::from(2)
        }
    }
}
