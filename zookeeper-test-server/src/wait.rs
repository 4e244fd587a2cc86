//! Waits for conditions.

use std::thread;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(5);

/// Blocks until `cond` holds or the time limit has passed. Returns whether `cond` holds.
pub(super) fn holds_within(limit: Duration, mut cond: impl FnMut() -> bool) -> bool {
    some_within(limit, || cond().then_some(())).is_some()
}

/// Blocks until `get` returns a value or the time limit has passed.
pub(super) fn some_within<T>(limit: Duration, mut get: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        // Read the clock before the value: a value that appears during a long last check then counts.
        let last_look = start.elapsed() >= limit;
        let found = get();
        if found.is_some() || last_look {
            return found;
        }
        thread::sleep(POLL);
    }
}
