//! A client process: several threads that contend for the locks, like the threads of a daemon.
//!
//! The conductor tells it the current stage. It writes a journal, and ends when the conductor's process ends.

mod blocking;
mod cohort;
mod contender;
mod futures;
mod holding;
mod journal;
mod keeper;
mod listening;
mod orders;
mod permits;
mod sharing;
mod state;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

pub use self::orders::Orders;

use self::contender::Contender;
use self::journal::Journal;
use self::keeper::Keeper;
use self::orders::{Conductor, Stage};
use crate::clock;
use crate::plan::THREADS;
use crate::support::leaks::threads_named;
use crate::support::wait::{deadline, holds_within};

/// The threads of the crate under test.
const CRATE_THREADS: &str = "zk-";

pub fn run(orders: Orders) -> ExitCode {
    log_to_stderr();
    let (conductor, incarnation) = Conductor::call(&orders);
    let journal = Journal::create(&orders, incarnation);
    journal.note_panics();
    journal.note_stalls();
    // Half of the clients share one session among their threads. In the others, each thread has a session of
    // its own, which is silent for long periods while a lock is held.
    let sessions = if orders.index % 2 == 0 { 1 } else { THREADS };
    let keepers: Vec<_> = (0..sessions).map(|_| Keeper::new(&orders, &journal)).collect();

    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let keeper = Arc::clone(&keepers[thread % sessions]);
            let contender = Contender::new(
                &orders,
                incarnation,
                thread,
                keeper,
                Arc::clone(&journal),
                Arc::clone(&conductor),
            );
            let name = format!("chaos-{thread}");
            thread::Builder::new().name(name).spawn(move || contender.run()).expect("a thread can be started")
        })
        .collect();
    let panicked = threads.into_iter().map(thread::JoinHandle::join).filter(Result::is_err).count();
    assert!(conductor.stage() == Stage::End, "{panicked} threads panicked");

    drop(keepers);
    holds_within(deadline(), || threads_named(CRATE_THREADS).is_empty());
    let left = threads_named(CRATE_THREADS);
    journal.note("main", &format!("end threads={}", left.len()));
    conductor.report(&format!("left {} {}", left.len(), left.join(",")));
    ExitCode::SUCCESS
}

/// Logs the crate's messages with the journals' clock, as evidence. `RUST_LOG` in the environment may raise the
/// level.
fn log_to_stderr() {
    env_logger::Builder::new()
        .parse_filters("zookeeper_recipes_lock=info")
        .parse_default_env()
        .format(|out, record| writeln!(out, "{} {} {}", clock::now(), record.level(), record.args()))
        .init();
}
