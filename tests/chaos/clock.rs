//! The clock that all processes of a run share. It also measures the locks' leases.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since the machine was started.
pub fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = ClockId::Monotonic;
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Converts a duration on this clock to seconds.
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
