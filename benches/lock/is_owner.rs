//! The call that an owner makes before every action.

use std::hint::black_box;
use std::time::Instant;

use zookeeper_recipes_lock::{BlockingWriteLock, WriteLock};

use crate::table::{print_numbers, print_title};
use crate::{ROOT, session};

/// Most of this is the system call that detects a forked child.
const AIM_NANOS: f64 = 300.0;
const BATCHES: usize = 500;
const CALLS: u32 = 1_000;

pub(crate) fn run(connect_string: &str) {
    let session = session(connect_string);
    let blocking = BlockingWriteLock::new(&session, &format!("{ROOT}/asked")).expect("the path is valid");
    let guard = blocking.lock().expect("the lock is free");
    let lock = WriteLock::new(&session, &format!("{ROOT}/asked-too")).expect("the path is valid");
    assert!(lock.lock().expect("the lock is free"));

    print_title("is_owner()", "ns per call");
    print_numbers("LockGuard", &time_calls(|| guard.is_owner()), "< 300", |median| median < AIM_NANOS);
    print_numbers("WriteLock", &time_calls(|| lock.is_owner()), "< 300", |median| median < AIM_NANOS);
}

/// The time of one call in nanoseconds, from each of the batches.
fn time_calls(is_owner: impl Fn() -> bool) -> Vec<f64> {
    (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                assert!(black_box(is_owner()));
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect()
}
