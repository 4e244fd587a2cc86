//! The size of a run, and the times that all other times are derived from.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// The number of client processes, and of contending threads in each.
pub const CLIENTS: usize = 4;
pub const THREADS: usize = 3;

/// The number of servers in the ensemble.
pub const SERVERS: usize = 3;

/// The server without a port for TLS. It uses a server's default connections; the others need Netty's.
pub const WITHOUT_TLS: usize = 0;

/// The directories of the locks; the last one is a semaphore. Elsewhere, a lock is identified by its index
/// here.
pub const LOCKS: [&str; 4] = ["/chaos/a", "/chaos/b", "/chaos/c", "/chaos/s"];
pub const SEMAPHORE: usize = 3;
pub const PERMITS: usize = 2;

/// Returns whether a client authenticates by Kerberos. Of the two that do, one shares a session among its
/// threads.
pub fn has_tickets(client: usize) -> bool {
    client >= CLIENTS / 2
}

/// Returns whether a client connects by TLS: one of those with tickets does, and one of those without.
pub fn uses_tls(client: usize) -> bool {
    (1..=CLIENTS / 2).contains(&client)
}

/// The calls that acquire, each of which must succeed at least once in a run. The names of futures end in
/// [`OF_FUTURES`].
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

/// Returns the znode whose data the owners of a lock read and replace.
pub fn state_of(lock: usize) -> String {
    format!("/state{}", LOCKS[lock].replace('/', "-"))
}

/// The servers' tick.
pub const TICK: Duration = Duration::from_millis(500);

/// The longest session timeout that the servers grant; the clients ask for more. Six ticks are short, so
/// sessions do expire.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// The session timeout that the clients ask for, and the limit of a server that is restarted with a larger one.
pub const RAISED_TIMEOUT: Duration = Duration::from_secs(5);

/// The tick of a server that is restarted with a shorter one. The clients rely on no tick being longer than [`TICK`].
pub const LOWERED_TICK: Duration = Duration::from_millis(250);

/// After this much chaos, all faults end and every thread must acquire every lock.
pub const CHAOS: Duration = Duration::from_secs(50);

/// How long the threads may take to acquire every lock, including elections and the expiry of sessions.
pub const SETTLING: Duration = Duration::from_secs(60);

/// How long after its deadline a call may return while its process is running, on a machine of ordinary speed.
pub const LATENESS: Duration = Duration::from_millis(1_500);

/// How long after a loss the guard or the listener may be notified, on a machine of ordinary speed.
pub const REPORTING: Duration = Duration::from_secs(5);

/// The run that was requested.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long faults are injected.
    pub chaos: Duration,
    pub seed: u64,
    /// The directory for the history. Without one, the history is removed after a successful run.
    pub keep: Option<PathBuf>,
    /// A file that sums up several runs, including this one.
    pub totals: Option<PathBuf>,
    /// Whether clients may get network namespaces of their own.
    pub namespaces: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let seed = uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000;
        Self { chaos: Duration::from_secs(18), seed, keep: None, totals: None, namespaces: true }
    }
}

impl Plan {
    /// Returns the pause between two faults, in milliseconds. In a short run every kind of fault must get its
    /// turn; a long run leaves the clients more time to contend.
    pub fn pause(&self) -> Range<u64> {
        if self.chaos < CHAOS { 400..1_700 } else { 2_000..8_000 }
    }
}
