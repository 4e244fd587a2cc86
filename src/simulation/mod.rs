//! A deterministic simulation of whole processes with their locks, sessions and faults: one seed, one run, always the
//! same.
//!
//! Everything above the client port is the crate's own code; below it is the [simulated ZooKeeper](crate::fake). Time is
//! a number, and of all threads exactly one runs: at each call to ZooKeeper, each callback and each wait it gives the
//! [baton](baton) back, and the [scheduler](scheduler) chooses by chance what happens next: another thread's next step,
//! a job for a worker, an event, a timer, the end of a session on the server, the passing of time, something that a
//! user does, or a [fault](faults). In half of the runs there are readers and writers among the locks, and writers that are
//! downgraded. After every step the [promises](checks) are checked; when the faults have stopped, everybody who waits must
//! own in turn, and nothing may be left at the end.
//!
//! A failure prints its seed and the last steps. `SIMULATION_SEED=<seed>` runs that seed alone and tells every step;
//! `SIMULATION_RUNS=<number>` runs as many, from that seed on when both are given. `scripts/simulate` does so with
//! optimization.
//!
//! # Limitations
//! Threads change only at the points named above, not between two instructions, so a data race is not found. One server,
//! which never lags behind; no drift of clocks; of the locks only those with a listener, whose waiting is the
//! scheduler's; one connection per session, opened without faults.

#![allow(clippy::print_stderr, reason = "a run that fails, or is watched, is told to a human")]

mod baton;
mod checks;
mod faults;
mod link;
mod locks;
mod network;
mod profile;
mod quiesce;
mod random;
mod run;
mod runtime;
mod scheduler;
mod workload;
mod world;

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use baton::Pool;
use run::Failure;

/// What the test suite runs; `scripts/simulate` runs more.
const RUNS: u64 = 3000;
const FIRST_SEED: u64 = 1;

#[test]
fn no_interleaving_and_no_fault_breaks_a_promise() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("SIMULATION_SEED");
    let runs = number("SIMULATION_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    let first = seed.unwrap_or(FIRST_SEED);
    if let Some((seed, failure)) = run_all(first, runs) {
        let trace = failure.trace.join("\n");
        panic!(
            "{trace}\n\nseed {seed}: {}\nSIMULATION_SEED={seed} runs it again and tells every step",
            failure.what
        );
    }
}

/// Runs these seeds on two threads and returns the first failure.
fn run_all(first: u64, runs: u64) -> Option<(u64, Failure)> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(None);
    let begun = Instant::now();
    let run_some = || {
        let mut pool = Pool::new();
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return;
            }
            let seed = first.wrapping_add(number);
            if let Err(failure) = run::run(seed, &mut pool, runs == 1) {
                stop.store(true, Ordering::Relaxed);
                found.lock().get_or_insert((seed, failure));
            }
        }
    };
    thread::scope(|scope| {
        let second = scope.spawn(run_some);
        run_some();
        let _ = second.join();
    });
    eprintln!("{} runs in {:.1?}", next.load(Ordering::Relaxed).min(runs), begun.elapsed());
    found.into_inner()
}
