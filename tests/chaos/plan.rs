//! The size of a run, and the times from which all others follow.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Client processes, and the threads that contend in each.
pub const CLIENTS: usize = 4;
pub const THREADS: usize = 3;

/// The servers of the ensemble.
pub const SERVERS: usize = 3;

/// The directories that are contended for; what a lock is called is its index here.
pub const LOCKS: [&str; 3] = ["/chaos/a", "/chaos/b", "/chaos/c"];

/// Six ticks of the servers: short, so that sessions do end.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// After so much chaos everything is healed, and every thread must acquire every lock.
pub const CHAOS: Duration = Duration::from_secs(50);

/// How long that may take, in which elections and the ends of sessions are included.
pub const SETTLING: Duration = Duration::from_secs(60);

/// How long a call may return beyond its deadline while its process is run, on a machine of ordinary speed.
pub const LATENESS: Duration = Duration::from_millis(1_500);

/// How long after a loss the guard or the listener may be told, on a machine of ordinary speed.
pub const TELLING: Duration = Duration::from_secs(5);

/// A run, as asked for.
#[derive(Debug)]
pub struct Plan {
    /// How long things fail.
    pub chaos: Duration,
    pub seed: u64,
    /// Where the history goes; without, it goes when the run has passed.
    pub keep: Option<PathBuf>,
    /// Whether clients may get network namespaces of their own.
    pub namespaces: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let seed = uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000;
        Self { chaos: Duration::from_secs(18), seed, keep: None, namespaces: true }
    }
}

impl Plan {
    /// Between two faults, in milliseconds. In a short run every kind must find its turn; a long one leaves the clients
    /// more time to contend.
    pub fn pause(&self) -> Range<u64> {
        if self.chaos < CHAOS { 400..1_900 } else { 1_200..4_000 }
    }
}
