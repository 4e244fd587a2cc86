//! A deterministic simulation of whole processes with their locks, sessions and faults. Each seed determines
//! one run.
//!
//! Everything down to the bytes is the crate's own code: the locks, the sessions, and the state machine of the
//! connection. Below it is a [network of bytes](wire) with several servers, which execute the requests on the [simulated
//! ZooKeeper](crate::fake). In half of the runs some clients authenticate by SASL.
//!
//! Time is a number, and exactly one thread runs at any time. At each call to ZooKeeper, each callback and
//! each wait, the thread returns the [baton](baton). The [scheduler](scheduler) then chooses the next step at
//! random: a step of another thread, a job of a worker, an event, a timer, the expiry of a session, the
//! passing of time, an action of a user, or a [fault](faults).
//!
//! What happens differs from run to run:
//! - In half of the runs, readers and writers share the directories of exclusive locks.
//! - In most runs, threads [use](guards) blocking, multiple and reentrant locks, share [cohort
//!   locks](cohorts) and [semaphores], downgrade, [stand](elections) for election, and revoke.
//! - Some [tasks](futures) wait for locks and give up at any moment.
//! - Owners read and write a register, in [turns].
//! - In many runs, users also run [jobs](jobs) once, [commit](transactions) changes, or make [records].
//! - In some runs, only clients with credentials may read the znodes of requests.
//! - Some links of the network are narrow, and users start more calls than such links can transmit.
//! - Some clients know only a load balancer.
//! - The servers' clocks run as fast as a client's, or faster or slower.
//! - In some runs, holds have a time limit.
//! - In half of the runs, the [application's code](application) blocks, panics and calls the library, wherever
//!   the library runs or drops it: listeners, hooks, wakers, closures, factories, clients.
//! - In some runs, users mix all of this.
//!
//! The [promises](checks) are checked after every step. Once the faults have stopped, every waiter must own
//! in turn, and nothing may be left at the end.
//!
//! The library waits through its [runtime](runtime), so the scheduler knows what each thread waits for. No
//! time passes while a thread can return from a call whose deadline has been reached or which was cancelled.
//! So such a call must return at that very moment.
//!
//! A failure prints its seed and the last steps. `SIMULATION_SEED=<seed>` runs that seed alone and prints
//! every step. `SIMULATION_RUNS=<number>` sets the number of runs, which start with that seed if both are
//! given. `scripts/simulate` does the same in an optimized build.
//!
//! # Limitations
//! Threads switch only at the points named above, never between two instructions, so data races are not
//! found. A stalled link between a server and the leader delays what the leader sends, not what the server proposes.
//! Clocks differ by the promised margin at most. The first sessions are opened without faults. The library clones a
//! waker between two looks at what a task waits for, but a clone cannot run code of the application without
//! `unsafe`, so nothing happens between these looks. No listener is so slow that calls are left out.

#![allow(clippy::print_stderr, reason = "reports failures and verbose runs")]

mod application;
mod baton;
mod checks;
mod clients;
mod cohorts;
mod elections;
mod faults;
mod futures;
mod guards;
mod holds;
mod jobs;
mod link;
mod locks;
mod outages;
mod profile;
mod quiesce;
pub(crate) mod random;
mod records;
mod run;
mod runtime;
mod scheduler;
mod seen;
mod semaphores;
mod transactions;
mod turns;
mod wire;
mod workload;
mod world;

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;

use baton::Pool;
use run::Failure;

/// The number of runs in the test suite; `scripts/simulate` runs more.
const RUNS: u64 = 150;
const FIRST_SEED: u64 = 1;

#[test]
fn no_interleaving_and_no_fault_breaks_a_promise() {
    crate::tests::begin_without_a_limit();
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("SIMULATION_SEED");
    let runs = number("SIMULATION_RUNS").unwrap_or(if seed.is_some() { 1 } else { RUNS });
    let first = seed.unwrap_or(FIRST_SEED);
    if let Some((seed, failure)) = run_all(first, runs) {
        let trace = failure.trace.join("\n");
        panic!(
            "{trace}\n\nseed {seed}: {}\nSIMULATION_SEED={seed} repeats the run and prints every step",
            failure.what
        );
    }
}

/// Names its seed if the thread of the run panics.
struct NamedInPanics(u64);

impl Drop for NamedInPanics {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("seed {}: the run panics", self.0);
        }
    }
}

/// Runs these seeds on two threads. Returns the first failure.
fn run_all(first: u64, runs: u64) -> Option<(u64, Failure)> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let found = Mutex::new(None);
    let (decoded, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let begun = Instant::now();
    let run_some = || {
        let mut pool = Pool::new();
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= runs {
                return;
            }
            let seed = first.wrapping_add(number);
            let _named = NamedInPanics(seed);
            match run::run(seed, &mut pool, runs == 1) {
                Ok(calls) => {
                    decoded.fetch_add(calls.decoded, Ordering::Relaxed);
                    others.fetch_add(calls.others, Ordering::Relaxed);
                }
                Err(failure) => {
                    stop.store(true, Ordering::Relaxed);
                    found.lock().get_or_insert((seed, failure));
                }
            }
        }
    };
    thread::scope(|scope| {
        let second = scope.spawn(run_some);
        run_some();
        let _ = second.join();
    });
    eprint!("{}", seen::report());
    eprintln!("{} runs in {:.1?}", next.load(Ordering::Relaxed).min(runs), begun.elapsed());
    let (decoded, others, found) = (decoded.into_inner(), others.into_inner(), found.into_inner());
    assert_eq!(others, 0, "calls of another client than the crate's own connection");
    assert!(decoded > 0 || found.is_some(), "no run has made a call");
    found
}
