//! Attempts on a held lock: the memory that remains allocated after many of them.

use std::time::Duration;

use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, RetryPolicy};

use crate::allocated::allocated_blocks;
use crate::child::{ATTEMPT, Child};
use crate::support::server::Server;
use crate::support::wait::eventually;
use crate::table::{Aim, print_row};
use crate::{Plan, ROOT, resident_kib, session};

const FEW: usize = 10;
const MANY: usize = 1_000;

/// So short that the lock is never acquired. It often passes before the reply to the create arrives.
const TIMEOUT: Duration = Duration::from_millis(1);

const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn run(plan: &Plan, server: &Server) {
    let grown: Vec<Vec<f64>> = (0..plan.runs)
        .map(|run| {
            let dir = format!("{ROOT}/memory-{run}");
            Child::start(&[ATTEMPT, &server.connect_string(), &dir]).numbers()
        })
        .collect();
    let of = |index: usize| grown.iter().map(|grown| grown[index]).collect::<Vec<f64>>();
    let figure = format!("blocks allocated after {MANY} attempts that timed out, more than after {FEW}");
    print_row(&figure, "blocks", &of(0), &Aim::AtMost(100.0));
    print_row("… resident memory that grew meanwhile", "KiB", &of(1), &Aim::AtMost(1024.0));
}

/// Takes the role of the measured process: prints its growth in blocks and in resident KiB.
pub(crate) fn attempt(connect_string: &str, dir: &str) {
    let (holding, waiting) =
        (session(connect_string, SESSION_TIMEOUT), session(connect_string, SESSION_TIMEOUT));
    let held = BlockingWriteLock::new(&holding, dir).expect("the path is valid");
    let _guard = held.lock().expect("the lock is free");
    let lock = BlockingWriteLock::new(&waiting, dir).expect("the path is valid");
    let observing = session(connect_string, SESSION_TIMEOUT);
    let observer = RecoverableZooKeeper::new(&observing, RetryPolicy::default());
    let time_out = |attempts: usize| {
        for _ in 0..attempts {
            assert!(lock.try_lock_for(TIMEOUT).expect("the server answers").is_none(), "it is held");
        }
        eventually("the attempts' znodes are deleted", || {
            observer.get_children(dir).is_ok_and(|children| children.len() == 1)
        });
        (allocated_blocks() as f64, resident_kib())
    };
    let few = time_out(FEW);
    let many = time_out(MANY - FEW);
    println!("{} {}", many.0 - few.0, many.1 - few.1);
}
