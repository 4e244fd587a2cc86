//! Compares the locks with the same protocol written by hand on the crate's own connection (`raw`), and on
//! bare sockets without any client (`floor`), on a dedicated server.
//!
//! ```text
//! cargo bench --bench lock                  everything, in less than five minutes
//! cargo bench --bench lock -- --quick       fewer and shorter rounds, in less than 40 s
//! cargo bench --bench lock -- handover      only these sections: uncontended, cohort,
//!                                                                handover, distance, readers, contenders,
//!                                                                queue, is_owner, footprint, futures
//! ```
//!
//! Our calls and the raw ones alternate within each round, so a busy machine slows both down equally. The
//! results are measured, not asserted: `ok` or `over` appears next to each aim, and the exit status does not
//! depend on it.

mod cohort;
mod contenders;
mod distance;
mod footprint;
mod futures;
mod handover;
mod is_owner;
mod measure;
mod queue;
mod raw;
mod readers;
mod table;
mod uncontended;

#[path = "../floor/mod.rs"]
mod floor;
#[path = "../../tests/support/raw_client.rs"]
mod raw_client;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::process::{Command, ExitCode};
use std::time::Duration;

use zookeeper_recipes_lock::Session;
use zookeeper_recipes_lock::client::CreateMode;

use self::floor::FloorLock;
use self::measure::Plan;
use self::raw::RawLock;
use self::support::server::Server;

/// Long enough that no keep-alive disturbs a round. With the server's default ticks, up to 40 s are possible.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// The data of each request's znode, in our requests and the raw ones.
const DATA: &[u8] = b"benchmark/12345";

/// The parent of the locks' directories.
const ROOT: &str = "/bench";

/// The number of cycles after which the server has compiled its code.
const WARM_UP_CYCLES: usize = 4_000;

const SECTIONS: [&str; 10] = [
    "uncontended",
    "cohort",
    "handover",
    "distance",
    "readers",
    "contenders",
    "queue",
    "is_owner",
    "footprint",
    "futures",
];
const USAGE: &str = "usage: cargo bench --bench lock -- [--quick] [SECTION]...";

fn main() -> ExitCode {
    // Cargo passes `--bench` to every benchmark.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [footprint::CHILD, connect_string] => {
            footprint::child(connect_string);
            return ExitCode::SUCCESS;
        }
        [futures::CHILD, connect_string, dirs] => {
            futures::child(connect_string, dirs);
            return ExitCode::SUCCESS;
        }
        [queue::CHILD, connect_string, waiting, sessions] => {
            queue::child(connect_string, waiting, sessions);
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let (options, sections): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = options
        .iter()
        .find(|option| **option != "--quick")
        .or_else(|| sections.iter().find(|section| !SECTIONS.contains(section)))
    {
        eprintln!("unknown argument {unknown}\n{USAGE}\nsections: {}", SECTIONS.join(", "));
        return ExitCode::from(2);
    }
    run(&Plan::new(!options.is_empty()), &sections);
    ExitCode::SUCCESS
}

fn run(plan: &Plan, sections: &[&str]) {
    let is_wanted = |section| sections.is_empty() || sections.contains(&section);
    let server = start_server();
    let connect_string = server.connect_string();
    table::print_head(plan);
    if is_wanted("uncontended") {
        for threads in [1, 16] {
            uncontended::run(plan, &connect_string, threads);
        }
    }
    if is_wanted("cohort") {
        for threads in [1, 8] {
            cohort::run(plan, &connect_string, threads);
        }
        cohort::run_idle(plan, &connect_string);
        cohort::run_shared(plan, &connect_string);
    }
    if is_wanted("handover") {
        for sessions in [8, 100] {
            handover::run(plan, &connect_string, sessions);
        }
    }
    if is_wanted("distance") {
        distance::run(plan, &connect_string);
    }
    if is_wanted("readers") {
        readers::run(plan, &connect_string, 100);
    }
    if is_wanted("contenders") {
        contenders::run(plan, &connect_string, 1_000);
    }
    if is_wanted("queue") {
        let queues: &[(usize, usize)] =
            if plan.is_quick { &[(1_000, 1)] } else { &[(1_000, 1), (10_000, 1), (10_000, 100)] };
        for (waiting, sessions) in queues {
            queue::run(plan, &connect_string, *waiting, *sessions);
        }
    }
    if is_wanted("is_owner") {
        is_owner::run(&connect_string);
    }
    if is_wanted("footprint") {
        footprint::run(plan, &connect_string);
    }
    if is_wanted("futures") {
        futures::run(plan);
    }
}

fn start_server() -> Server {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/zookeeper");
    let installed = Command::new(script).arg("install").status().expect("the script runs");
    assert!(installed.success(), "a benchmark needs a ZooKeeper server");
    let server = Server::start();
    warm_up(&server.connect_string());
    server
}

fn warm_up(connect_string: &str) {
    let zk = raw::connect(connect_string);
    raw::create(&zk, ROOT, CreateMode::Persistent);
    let dir = format!("{ROOT}/warm-up");
    raw::create(&zk, &dir, CreateMode::Persistent);
    let lock = RawLock::new(&zk, &dir);
    for _ in 0..WARM_UP_CYCLES {
        lock.cycle();
    }
}

/// Returns a lock on a bare socket. Its directory is created if it is missing.
fn floor_lock(connect_string: &str, dir: &str) -> FloorLock {
    FloorLock::new(connect_string, SESSION_TIMEOUT, dir, DATA)
}

/// Opens a session of the crate under test.
fn session(connect_string: &str) -> Session {
    Session::connect(connect_string, SESSION_TIMEOUT).expect("the server is up")
}
