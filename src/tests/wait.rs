//! Waits for conditions. Tests take the time limits of their waits from here, so that slow machines can scale them.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen, on a machine of ordinary speed.
pub const DEADLINE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(5);

/// Returns [`DEADLINE`] scaled for this machine.
pub fn deadline() -> Duration {
    scaled(DEADLINE)
}

/// Returns `time` multiplied by the environment variable `ZK_TEST_TIME_FACTOR` (default: 1), which is for
/// slow machines.
pub fn scaled(time: Duration) -> Duration {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    let factor = FACTOR.get_or_init(|| match std::env::var("ZK_TEST_TIME_FACTOR") {
        Ok(text) => match text.parse() {
            Ok(factor) if factor > 0.0 && f64::is_finite(factor) => factor,
            _ => panic!("ZK_TEST_TIME_FACTOR must be a positive number, not {text:?}"),
        },
        Err(_) => 1.0,
    });
    time.mul_f64(*factor)
}

/// Blocks until `cond` holds.
///
/// # Panics
/// With `what`, if `cond` does not hold within the deadline.
#[track_caller]
pub fn eventually(what: &str, cond: impl FnMut() -> bool) {
    eventually_within(deadline(), what, cond);
}

/// Like [`eventually`], with another time limit, which is not scaled.
#[track_caller]
pub fn eventually_within(limit: Duration, what: &str, cond: impl FnMut() -> bool) {
    assert!(holds_within(limit, cond), "not within {limit:?}: {what}");
}

/// Blocks until `get` returns a value.
///
/// # Panics
/// With `what`, if `get` does not return a value within the deadline.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let mut found = None;
    eventually(what, || {
        found = get();
        found.is_some()
    });
    found.expect("`eventually` has seen a value")
}

/// Blocks until `cond` holds or the time limit, which is not scaled, has passed. Returns whether `cond`
/// holds.
pub fn holds_within(limit: Duration, mut cond: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        // Read the time before the condition: then a condition that becomes true during a long last check still counts.
        let last_look = start.elapsed() >= limit;
        if cond() {
            return true;
        }
        if last_look {
            return false;
        }
        thread::sleep(POLL);
    }
}
