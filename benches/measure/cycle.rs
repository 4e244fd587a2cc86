//! What a cycle of a lock that nobody else wants costs the process: its processor time, the times that its threads go
//! to sleep, and what it allocates.

use std::fs;
use std::time::{Duration, Instant};

use stats_alloc::Stats;
use zookeeper_recipes_lock::BlockingWriteLock;

use crate::allocated::allocations;
use crate::support::server::Server;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT, session};

const CYCLES: u32 = 10_000;
/// These cycles come first, so shared buffers have reached their final size.
const WARM_UP: u32 = 1_000;

/// The unit of the processor times in `/proc/self/stat`, which is the same on all systems, in microseconds.
const TICK: f64 = 10_000.0;

/// What the process has used so far.
struct Used {
    at: Instant,
    /// The processor times outside and inside the system, in ticks.
    user: f64,
    system: f64,
    sleeps: f64,
    allocated: Stats,
}

pub(crate) fn run(plan: &Plan, server: &Server) {
    let session = session(&server.connect_string(), Duration::from_secs(30));
    let lock = BlockingWriteLock::new(&session, &format!("{ROOT}/cycle")).expect("the path is valid");
    let cycle = || {
        let guard = lock.lock().expect("the lock is free");
        guard.unlock().expect("the server answers");
    };
    (0..WARM_UP).for_each(|_| cycle());
    let runs: Vec<[f64; 6]> = (0..plan.runs)
        .map(|_| {
            let before = Used::now();
            (0..CYCLES).for_each(|_| cycle());
            Used::now().per_cycle_since(&before)
        })
        .collect();
    let rows = [
        ("a cycle", "µs"),
        ("its processor time in this program", "µs"),
        ("its processor time in the system", "µs"),
        ("voluntary context switches of a cycle", ""),
        ("allocations of a cycle", ""),
        ("allocated in a cycle", "KiB"),
    ];
    for (column, (figure, unit)) in rows.into_iter().enumerate() {
        let numbers: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        print_row(figure, unit, &numbers, &Aim::None);
    }
}

impl Used {
    fn now() -> Used {
        let stat = fs::read_to_string("/proc/self/stat").expect("this is Linux");
        // The name of the program, in parentheses, may contain spaces.
        let (_, after_name) = stat.rsplit_once(')').expect("the name is in parentheses");
        let times: Vec<f64> =
            after_name.split_whitespace().skip(11).take(2).filter_map(|time| time.parse().ok()).collect();
        let [user, system] = times[..] else { panic!("{stat} has two times") };
        Used { at: Instant::now(), user, system, sleeps: sleeps(), allocated: allocations() }
    }

    fn per_cycle_since(&self, before: &Used) -> [f64; 6] {
        let allocated = self.allocated - before.allocated;
        [
            (self.at - before.at).as_secs_f64() * 1e6,
            (self.user - before.user) * TICK,
            (self.system - before.system) * TICK,
            self.sleeps - before.sleeps,
            allocated.allocations as f64,
            allocated.bytes_allocated as f64 / 1024.0,
        ]
        .map(|total| total / f64::from(CYCLES))
    }
}

/// Returns how often the threads of this process have gone to sleep.
fn sleeps() -> f64 {
    let threads = fs::read_dir("/proc/self/task").expect("this is Linux");
    threads
        .map(|thread| {
            let status = thread.expect("the directory can be read").path().join("status");
            // A thread may have ended since it was listed.
            let status = fs::read_to_string(status).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|number| number.trim().parse::<f64>().ok()).unwrap_or(0.0)
        })
        .sum()
}
