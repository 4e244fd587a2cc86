//! The size of a run, and the times from which all others derive.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// The client processes, and the contending threads in each.
pub const CLIENTS: usize = 4;
pub const THREADS: usize = 3;

/// The servers of the ensemble.
pub const SERVERS: usize = 3;

/// The directories of the locks, and the last one of a semaphore. Each is named by its index here.
pub const LOCKS: [&str; 4] = ["/chaos/a", "/chaos/b", "/chaos/c", "/chaos/s"];
pub const SEMAPHORE: usize = 3;
pub const PERMITS: usize = 2;

/// Returns whether a client authenticates by Kerberos: one whose threads share a session, and one whose
/// threads do not.
pub fn has_tickets(client: usize) -> bool {
    client >= CLIENTS / 2
}

/// The calls that acquire, each of which must succeed in a run. Futures have the suffix.
pub const CALLS: [&str; 10] = [
    "lock",
    "lock-async",
    "read",
    "read-async",
    "write",
    "write-async",
    "cohort",
    "listen",
    "acquire",
    "acquire-async",
];
pub const OF_FUTURES: &str = "-async";

/// The znode whose data the owners of a lock read and replace.
pub fn state_of(lock: usize) -> String {
    format!("/state{}", LOCKS[lock].replace('/', "-"))
}

/// That of the servers.
pub const TICK: Duration = Duration::from_millis(500);

/// The limit of the servers, which the clients exceed. Six ticks: short, so that sessions do expire.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// What the clients ask for, and the limit of a server that was restarted under a larger one.
pub const RAISED_TIMEOUT: Duration = Duration::from_secs(5);

/// That of a server which was restarted under a shorter one. The clients count on no longer one.
pub const LOWERED_TICK: Duration = Duration::from_millis(250);

/// After this much chaos all faults end, and every thread must acquire every lock.
pub const CHAOS: Duration = Duration::from_secs(50);

/// The limit for that, including elections and the expiry of sessions.
pub const SETTLING: Duration = Duration::from_secs(60);

/// How long after its deadline a call may return while its process runs, on a machine of ordinary
/// speed.
pub const LATENESS: Duration = Duration::from_millis(1_500);

/// How long after a loss the guard or the listener may be notified, on a machine of ordinary speed.
pub const REPORTING: Duration = Duration::from_secs(5);

/// A requested run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long faults are injected.
    pub chaos: Duration,
    pub seed: u64,
    /// The directory of the history. Without one, the history is removed after a successful run.
    pub keep: Option<PathBuf>,
    /// A file that sums up this and other runs.
    pub totals: Option<PathBuf>,
    /// Whether clients may get their own network namespaces.
    pub namespaces: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let seed = uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000;
        Self { chaos: Duration::from_secs(18), seed, keep: None, totals: None, namespaces: true }
    }
}

impl Plan {
    /// The pause between two faults, in milliseconds. In a short run every kind must get its turn.
    /// A long one leaves the clients more time to contend.
    pub fn pause(&self) -> Range<u64> {
        if self.chaos < CHAOS { 400..1_700 } else { 2_000..8_000 }
    }
}
