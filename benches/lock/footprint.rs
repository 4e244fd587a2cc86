//! The memory of a waiting lock, measured in a separate process so that nothing else affects the numbers.

use std::fs;

use zookeeper_recipes_lock::{BlockingWriteLock, LockListener, Session, WriteLock};

use crate::measure::{Plan, measure_in_child};
use crate::table::{print_numbers, print_title};
use crate::{ROOT, session};

/// The argument that makes this program the measured process.
pub(crate) const CHILD: &str = "--footprint-of";

const WAITING: usize = 1_000;
/// These locks are created first, so shared buffers and threads have reached their final size.
const WARM_UP: usize = 100;

const AIM_KIB: f64 = 4.0;
/// The aim for the threads that all these locks add.
const MAX_WORKERS: f64 = 16.0;

struct Idle;

impl LockListener for Idle {
    fn lock_acquired(&self) {}
    fn lock_released(&self) {}
}

/// The size of this process, as reported by the system.
pub(crate) struct Size {
    pub(crate) resident_kib: f64,
    pub(crate) threads: f64,
}

pub(crate) fn run(plan: &Plan, connect_string: &str) {
    let measured: Vec<[f64; 2]> =
        (0..plan.footprints).map(|_| measure_in_child(&[CHILD, connect_string])).collect();
    let kib: Vec<f64> = measured.iter().map(|[kib, _]| *kib).collect();
    let threads: Vec<f64> = measured.iter().map(|[_, threads]| *threads).collect();
    print_title(&format!("{WAITING} more locks waiting on one session"), "");
    print_numbers("resident KiB for each lock", &kib, "< 4", |kib| kib < AIM_KIB);
    print_numbers("threads for all of them", &threads, "≤ 16", |threads| threads <= MAX_WORKERS);
}

/// Takes the role of the measured process: prints the growth in KiB per lock, and in threads for all locks.
pub(crate) fn child(connect_string: &str) {
    let (holder, waiter) = (session(connect_string), session(connect_string));
    let dir = format!("{ROOT}/awaited-{}", std::process::id());
    let held = BlockingWriteLock::new(&holder, &dir).expect("the path is valid");
    let guard = held.lock().expect("the lock is free");

    let warm_up = wait_with(&waiter, &dir, WARM_UP);
    let before = Size::now();
    let locks = wait_with(&waiter, &dir, WAITING);
    let after = Size::now();
    let kib = (after.resident_kib - before.resident_kib) / WAITING as f64;
    println!("{kib} {}", after.threads - before.threads);

    waiter.close();
    drop((warm_up, locks, guard));
}

fn wait_with(session: &Session, dir: &str, count: usize) -> Vec<WriteLock> {
    (0..count)
        .map(|_| {
            let lock = WriteLock::with_listener(session, dir, Idle).expect("the path is valid");
            assert!(!lock.lock().expect("the server answers"), "the lock is held");
            lock
        })
        .collect()
}

impl Size {
    pub(crate) fn now() -> Size {
        let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            number.unwrap_or_else(|| panic!("{name} is in /proc/self/status"))
        };
        Size { resident_kib: number("VmRSS"), threads: number("Threads") }
    }
}
