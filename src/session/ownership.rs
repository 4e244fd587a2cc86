//! [`Ownership`]: until when a request holds its lock.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// In the number: a reader has seen that the lock is held no longer.
const HAS_ENDED: u64 = 1 << 63;

/// Until when a request holds its lock, for any thread to read without a mutex.
///
/// The driver changes it, under its mutex: it is shortened before anything is sent that lets others
/// in. A reader that finds it ended makes that final: a thread that has read the clock before may take
/// up a proof of life just then.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// Nanoseconds of the [`Moment`]; zero for a request that holds none.
    until: AtomicU64,
}

impl Ownership {
    pub(crate) fn covers(&self, now: Moment) -> bool {
        !self.remaining(now).is_zero()
    }

    /// Whether the lock was held until its lease ended, and is not released yet.
    pub(crate) fn has_outlasted(&self, now: Moment) -> bool {
        self.until.load(Ordering::Acquire) != 0 && !self.covers(now)
    }

    /// For how long the lock is proven to be held.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        let mut until = self.until.load(Ordering::Acquire);
        loop {
            if until == 0 || until & HAS_ENDED != 0 {
                return Duration::ZERO;
            }
            let remaining = Moment::from_nanos(until).since(now);
            if !remaining.is_zero() {
                return remaining;
            }
            match self.until.compare_exchange(until, HAS_ENDED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Duration::ZERO,
                Err(changed) => until = changed,
            }
        }
    }

    /// `None` for a request that holds its lock no longer. Returns `false` if a reader has
    /// seen before that the lease has ended: that stays.
    #[must_use]
    pub(super) fn set(&self, until: Option<Moment>) -> bool {
        let until = until.map_or(0, Moment::as_nanos);
        let change = |before| (until == 0 || before & HAS_ENDED == 0).then_some(until);
        self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn end_that_was_seen_is_final() {
        let ownership = Ownership::default();
        assert!(ownership.set(Some(at(100))));
        assert!(ownership.covers(at(99)) && !ownership.has_outlasted(at(99)));
        assert!(ownership.set(Some(at(200))), "nobody has seen an end");
        assert_eq!(ownership.remaining(at(150)), Duration::from_millis(50));
        assert!(!ownership.covers(at(200)) && ownership.has_outlasted(at(200)));
        assert!(!ownership.set(Some(at(300))));
        assert!(!ownership.covers(at(201)) && ownership.has_outlasted(at(201)));
        assert!(ownership.set(None));
        assert!(!ownership.covers(at(0)) && !ownership.has_outlasted(at(201)));
    }
}
