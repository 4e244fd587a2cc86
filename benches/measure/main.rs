//! Measures what faults cost: times and loads that the documentation speaks of, on servers of its own.
//!
//! ```text
//! scripts/measure                     all of it, in ten minutes
//! scripts/measure --quick             fewer runs, shorter times to measure, in three minutes
//! scripts/measure takeover memory     the sections named, of: takeover, restart, outage, memory,
//!                                     survival
//! ```
//!
//! It prints tables in Markdown. What comes out is measured, not asserted: beside each figure stands
//! what it should be, and the exit status says nothing of it.

mod allocated;
mod child;
mod memory;
mod outage;
mod restart;
mod survival;
mod table;
mod takeover;

#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use zookeeper_recipes_lock::{LockListener, Session, WriteLock};

use self::support::server::Server;

/// Below it lie the directories of the locks.
const ROOT: &str = "/measure";

const SECTIONS: [&str; 5] = ["takeover", "restart", "outage", "memory", "survival"];
const USAGE: &str = "usage: scripts/measure [--quick] [SECTION]...";

/// For which it is measured how long an outage an idle owner survives.
const SESSION_TIMEOUTS: [Duration; 4] =
    [Duration::from_secs(6), Duration::from_secs(10), Duration::from_secs(20), Duration::from_secs(40)];

/// How much is measured.
struct Plan {
    runs: u32,
    outage: Duration,
    /// For which it is measured how long an outage an idle owner survives.
    session_timeouts: &'static [Duration],
}

fn main() -> ExitCode {
    // Cargo passes `--bench` to every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [child::HOLD, connect_string, dir, waiters, timeout] => {
            child::hold(connect_string, dir, waiters, timeout);
            return ExitCode::SUCCESS;
        }
        [child::ATTEMPT, connect_string, dir] => {
            memory::attempt(connect_string, dir);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let (options, sections): (Vec<&str>, Vec<&str>) =
        arguments.iter().partition(|argument| argument.starts_with('-'));
    let unknown = options.iter().find(|option| **option != "--quick");
    if let Some(unknown) = unknown.or_else(|| sections.iter().find(|section| !SECTIONS.contains(section))) {
        eprintln!("unknown argument {unknown}\n{USAGE}\nsections: {}", SECTIONS.join(", "));
        return ExitCode::from(2);
    }
    let plan = if options.is_empty() {
        Plan { runs: 9, outage: Duration::from_secs(30), session_timeouts: &SESSION_TIMEOUTS }
    } else {
        Plan { runs: 3, outage: Duration::from_secs(5), session_timeouts: &SESSION_TIMEOUTS[..2] }
    };
    run(&plan, &sections);
    ExitCode::SUCCESS
}

fn run(plan: &Plan, sections: &[&str]) {
    let is_wanted = |section| sections.is_empty() || sections.contains(&section);
    install_server();
    table::print_machine();
    if sections != ["survival"] {
        run_faults(plan, is_wanted);
    }
    if is_wanted("survival") {
        survival::run(plan.session_timeouts);
    }
}

fn run_faults(plan: &Plan, is_wanted: impl Fn(&'static str) -> bool) {
    let server = Server::start();
    table::print_head();
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
    Session::connect(connect_string, timeout).expect("the server is up")
}

/// Says when the lock is acquired.
struct Clock(Sender<Instant>);

impl LockListener for Clock {
    fn lock_acquired(&self) {
        // Nobody may want to know.
        let _ = self.0.send(Instant::now());
    }

    fn lock_released(&self) {}
}

/// Joins a queue; the channel tells when the turn has come.
fn join_queue(session: &Session, dir: &str) -> (WriteLock, Receiver<Instant>) {
    let (clock, acquired) = unbounded();
    let lock = WriteLock::with_listener(session, dir, Clock(clock)).expect("the path is valid");
    lock.lock().expect("the server answers");
    (lock, acquired)
}

/// The time from one moment to another, in seconds, negative when that came first.
fn seconds(from: Instant, to: Instant) -> f64 {
    (to - from).as_secs_f64() - (from - to).as_secs_f64()
}
