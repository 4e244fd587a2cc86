//! Measures the cost of a cycle, and of faults, on dedicated servers: the times and loads that the documentation states.
//!
//! ```text
//! cargo bench --bench measure                        everything, in twenty minutes
//! cargo bench --bench measure -- --quick             fewer runs, shorter times to measure, in five minutes
//! cargo bench --bench measure -- takeover memory     only these sections, of: cycle, takeover, restart, outage,
//!                                                    memory, survival, silence, transactions, packages
//! cargo bench --bench measure -- endurance           an hour, with --quick two minutes; only when it is named
//! ```
//!
//! It prints tables in Markdown. The results are measured, not asserted: next to each figure is its
//! target, and the exit status does not depend on it.

mod allocated;
mod child;
mod cycle;
mod endurance;
mod memory;
mod outage;
mod packages;
mod plot;
mod restart;
mod survival;
mod table;
mod takeover;
mod transactions;

#[path = "../../tests/support/mod.rs"]
mod support;
#[path = "../svg/mod.rs"]
mod svg;

use std::fs;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use zookeeper_recipes_lock::{LockListener, Session, WriteLock};

use self::support::server::Server;
use self::survival::Cut;

/// The parent of the locks' directories.
const ROOT: &str = "/measure";

/// The sections that share one table and one server, which some of them break.
const SHARING: [&str; 5] = ["cycle", "takeover", "restart", "outage", "memory"];
const SECTIONS: [&str; 10] = [
    "cycle",
    "takeover",
    "restart",
    "outage",
    "memory",
    "survival",
    "silence",
    "transactions",
    "packages",
    "endurance",
];
const USAGE: &str = "usage: cargo bench --bench measure -- [--quick] [SECTION]...";

/// The session timeouts for which survived outages and transactions are measured.
const SESSION_TIMEOUTS: [Duration; 4] =
    [Duration::from_secs(6), Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(40)];

/// The extent of the measurements.
struct Plan {
    runs: u32,
    outage: Duration,
    /// How long transactions are counted.
    count: Duration,
    session_timeouts: &'static [Duration],
    endurance: Duration,
}

fn main() -> ExitCode {
    // Cargo passes `--bench` to every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [child::HOLD, connect_string, dir, waiters, timeout, traffic] => {
            child::hold(connect_string, dir, waiters, timeout, traffic);
            return ExitCode::SUCCESS;
        }
        [child::ATTEMPT, connect_string, dir] => {
            memory::attempt(connect_string, dir);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    // Writes the log lines that RUST_LOG asks for. A child that holds a lock has a logger of its own.
    env_logger::builder().format_timestamp_micros().parse_default_env().init();
    let (options, sections): (Vec<&str>, Vec<&str>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    let unknown = options.iter().find(|option| **option != "--quick");
    if let Some(unknown) = unknown.or_else(|| sections.iter().find(|section| !SECTIONS.contains(section))) {
        eprintln!("unknown argument {unknown}\n{USAGE}\nsections: {}", SECTIONS.join(", "));
        return ExitCode::from(2);
    }
    let plan = if options.is_empty() {
        Plan {
            runs: 9,
            outage: Duration::from_secs(30),
            count: Duration::from_secs(120),
            session_timeouts: &SESSION_TIMEOUTS,
            endurance: Duration::from_secs(3600),
        }
    } else {
        Plan {
            runs: 3,
            outage: Duration::from_secs(5),
            count: Duration::from_secs(20),
            session_timeouts: &SESSION_TIMEOUTS[..2],
            endurance: Duration::from_secs(120),
        }
    };
    run(&plan, &sections);
    ExitCode::SUCCESS
}

fn run(plan: &Plan, sections: &[&str]) {
    let is_wanted = |section| sections.is_empty() || sections.contains(&section);
    install_server();
    table::print_machine();
    if SHARING.into_iter().any(is_wanted) {
        run_on_one_server(plan, is_wanted);
    }
    if is_wanted("survival") {
        survival::run(plan.session_timeouts, Cut::Refused);
    }
    if is_wanted("silence") {
        survival::run(plan.session_timeouts, Cut::Silent);
    }
    if is_wanted("transactions") {
        transactions::run(plan.session_timeouts, plan.count);
    }
    if is_wanted("packages") {
        packages::run();
    }
    if sections.contains(&"endurance") {
        endurance::run(plan.endurance);
    }
}

fn run_on_one_server(plan: &Plan, is_wanted: impl Fn(&'static str) -> bool) {
    let server = Server::start();
    table::print_head();
    if is_wanted("cycle") {
        cycle::run(plan, &server);
    }
    if is_wanted("takeover") {
        takeover::run(plan, &server);
    }
    if is_wanted("restart") {
        restart::run(plan, &server);
    }
    if is_wanted("outage") {
        outage::run(plan, &server);
    }
    if is_wanted("memory") {
        memory::run(plan, &server);
    }
}

fn install_server() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/zookeeper");
    let installed = Command::new(script).arg("install").status().expect("the script runs");
    assert!(installed.success(), "a measurement needs a ZooKeeper server");
}

fn session(connect_string: &str, timeout: Duration) -> Session {
    // Servers with longer ticks reveal them by their shortest session timeout.
    let builder = Session::builder(connect_string).session_timeout(timeout);
    builder.max_tick(Duration::from_millis(500)).connect().expect("the server is up")
}

/// Returns the memory of this process.
fn resident_kib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("VmRSS is in /proc/self/status")
}

/// A listener that sends the time at which the lock is acquired.
struct Clock(Sender<Instant>);

impl LockListener for Clock {
    fn lock_acquired(&self) {
        // The receiver may have been dropped.
        let _ = self.0.send(Instant::now());
    }

    fn lock_released(&self) {}
}

/// Joins a queue. The channel gets a message when the lock is acquired.
fn join_queue(session: &Session, dir: &str) -> (WriteLock, Receiver<Instant>) {
    let (clock, acquired) = unbounded();
    let lock = WriteLock::with_listener(session, dir, Clock(clock)).expect("the path is valid");
    lock.lock().expect("the server answers");
    (lock, acquired)
}

/// Returns the time from one moment to another in seconds; negative if the second moment is earlier.
fn seconds(from: Instant, to: Instant) -> f64 {
    (to - from).as_secs_f64() - (from - to).as_secs_f64()
}

/// Applies a function to all items at the same time.
fn in_parallel<T: Sync, R: Send>(items: &[T], function: impl Fn(&T) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| function(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the function does not panic")).collect()
    })
}
