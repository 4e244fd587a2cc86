//! [`CohortOptions`]: how long a process may keep a [`CohortLock`](crate::locks::CohortLock) to itself.

use std::time::Duration;

/// Dozens of round trips: long enough to bridge the pauses of a busy loop, and too short for anybody to notice that an
/// idle process keeps the lock.
const KEEP_FOR: Duration = Duration::from_millis(100);

/// The usual value in the literature on cohort locks. Dozens of holders share the cost of one round trip, and more
/// would gain little.
const MAX_HANDOVERS: u32 = 64;

/// The same time as [`KEEP_FOR`].
const HAND_OVER_FOR: Duration = Duration::from_millis(100);

/// The limits on how long a process keeps a [`CohortLock`](crate::locks::CohortLock).
///
/// Pass them to [`CohortLock::with_options`](crate::locks::CohortLock::with_options).
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
/// // Fairer to other processes: at most ten threads of this process go first.
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

    /// Sets how long an idle lock is kept after its last release.
    ///
    /// With zero, the lock is released immediately. A kept lock is released early when another process requests it.
    ///
    /// **A process that dies, or cannot reach the servers, while it keeps an idle lock blocks others until its session
    /// times out.** Choose a longer time only if that is acceptable. The time may exceed the session timeout, but the
    /// lock is never kept longer than the session lives.
    #[must_use]
    pub fn keep_for(self, keep_for: Duration) -> CohortOptions {
        CohortOptions { keep_for, ..self }
    }

    /// Sets how often threads may hand the lock over while another process waits.
    ///
    /// A hand-over counts only if this process already knows that another process waits. With zero, the next
    /// release frees the lock for the other process.
    #[must_use]
    pub fn max_handovers(self, max_handovers: u32) -> CohortOptions {
        CohortOptions { max_handovers, ..self }
    }

    /// Sets how long threads may hand the lock over while another process waits.
    ///
    /// The time starts when this process learns that another process waits. With zero, the next release frees
    /// the lock for the other process.
    ///
    /// A thread that holds the lock for longer does not lose it. To limit how long the lock may be held, use
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
