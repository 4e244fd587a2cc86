//! [`CohortOptions`]: how long a process keeps a [`CohortLock`](crate::locks::CohortLock) to itself.

use std::time::Duration;

/// Dozens of round trips: bridges the pauses of a busy loop, and is over long before anybody
/// notices. An idle process holds nothing.
const KEEP_FOR: Duration = Duration::from_millis(100);

/// As in the literature on cohort locks: a round trip is divided among dozens of holders, and more
/// would gain little.
const MAX_HANDOVERS: u32 = 64;

/// The delay that others get used to anyway: as much as an idle lock is kept.
const HAND_OVER_FOR: Duration = Duration::from_millis(100);

/// The limits within which a process keeps a [`CohortLock`](crate::locks::CohortLock) to itself.
///
/// | setting | default |
/// |---|---|
/// | [`keep_for`](CohortOptions::keep_for) | 100 ms |
/// | [`max_handovers`](CohortOptions::max_handovers) | 64 |
/// | [`hand_over_for`](CohortOptions::hand_over_for) | 100 ms |
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::locks::CohortOptions;
///
/// // Fair to other processes: at most ten threads of this one go first.
/// let options = CohortOptions::new().keep_for(Duration::from_secs(1)).max_handovers(10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CohortOptions {
    pub(crate) keep_for: Duration,
    pub(crate) max_handovers: u32,
    pub(crate) hand_over_for: Duration,
}

impl CohortOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> CohortOptions {
        CohortOptions { keep_for: KEEP_FOR, max_handovers: MAX_HANDOVERS, hand_over_for: HAND_OVER_FOR }
    }

    /// Sets how long an idle lock is kept after its last release while nobody waits for it. With
    /// zero it is released at once.
    ///
    /// It is released earlier when a request of another process arrives. **A process that dies
    /// while it keeps a lock holds others up for a session timeout**, even though none of its
    /// threads used the lock; so does one that cannot reach the servers. Choose a longer time only
    /// if that is acceptable. A time beyond the session timeout is no error: the lock is kept for
    /// that long, but never longer than the session lives.
    #[must_use]
    pub fn keep_for(self, keep_for: Duration) -> CohortOptions {
        CohortOptions { keep_for, ..self }
    }

    /// Sets how often the lock is handed over from thread to thread while a request of another
    /// process is known to wait. With zero it is released to the other process at the next
    /// release.
    #[must_use]
    pub fn max_handovers(self, max_handovers: u32) -> CohortOptions {
        CohortOptions { max_handovers, ..self }
    }

    /// Sets how long the lock is handed over from thread to thread while a request of another
    /// process is known to wait. With zero it is released to the other process at the next
    /// release.
    ///
    /// Nothing takes the lock from a thread that holds it longer: that is
    /// [`LockOptions::max_hold`](crate::LockOptions::max_hold).
    #[must_use]
    pub fn hand_over_for(self, hand_over_for: Duration) -> CohortOptions {
        CohortOptions { hand_over_for, ..self }
    }
}

impl Default for CohortOptions {
    fn default() -> CohortOptions {
        CohortOptions::new()
    }
}
