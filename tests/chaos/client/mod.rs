//! A client process: some threads that contend for the locks, as the threads of a daemon would.
//!
//! It takes its stage from the conductor, writes a journal, and ends with the conductor's process.

mod blocking;
mod contender;
mod holding;
mod journal;
mod keeper;
mod listening;
mod orders;
mod sharing;

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
const CRATE_THREADS: &str = "zk-lock-";

pub fn run(orders: Orders) -> ExitCode {
    log_to_stderr();
    let (conductor, incarnation) = Conductor::call(&orders);
    let journal = Journal::create(&orders, incarnation);
    journal.note_panics();
    journal.note_stalls();
    // Half of the clients share one session among their threads; in the others each thread has one, which is then silent
    // for long while a lock is held.
    let sessions = if orders.index % 2 == 0 { 1 } else { THREADS };
    let keepers: Vec<_> = (0..sessions).map(|_| Keeper::new(&orders.servers, &journal)).collect();

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
    conductor.say(&format!("left {} {}", left.len(), left.join(",")));
    ExitCode::SUCCESS
}

/// Keeps the crate's own account, by the clock of the journals, as evidence. The environment's `RUST_LOG` may ask for more.
fn log_to_stderr() {
    env_logger::Builder::new()
        .parse_filters("zookeeper_recipes_lock=info")
        .parse_default_env()
        .format(|out, record| writeln!(out, "{} {} {}", clock::now(), record.level(), record.args()))
        .init();
}
