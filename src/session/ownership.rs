//! [`Ownership`]: until when a request holds its lock.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// In the number: a reader has seen that the lock is held no longer.
const HAS_ENDED: u64 = 1 << 63;

/// The moment until which a request holds its lock, for any thread to read without a mutex.
///
/// The driver changes it, under its mutex: it is shortened before anything is sent that lets others
/// in. A reader that finds it ended makes that final: a thread that has read the clock before may take
/// up a proof of life just then.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// Nanoseconds of the [`Moment`]; zero for a request that holds none.
    until: AtomicU64,
}

enum Reading {
    Not,
    For(Duration),
    UntilItsEnd,
}

impl Ownership {
    pub(crate) fn covers(&self, now: Moment) -> bool {
        matches!(self.read(now), Reading::For(_))
    }

    /// Returns whether the lock was held until its lease ended, and not released before.
    pub(crate) fn lease_has_ended(&self, now: Moment) -> bool {
        matches!(self.read(now), Reading::UntilItsEnd)
    }

    /// Returns the time for which the lock is proven to be held.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match self.read(now) {
            Reading::For(remaining) => remaining,
            Reading::Not | Reading::UntilItsEnd => Duration::ZERO,
        }
    }

    fn read(&self, now: Moment) -> Reading {
        let mut until = self.until.load(Ordering::Acquire);
        loop {
            if until == 0 {
                return Reading::Not;
            }
            if until & HAS_ENDED != 0 {
                return Reading::UntilItsEnd;
            }
            let remaining = Moment::from_nanos(until).since(now);
            if !remaining.is_zero() {
                return Reading::For(remaining);
            }
            match self.until.compare_exchange(until, HAS_ENDED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Reading::UntilItsEnd,
                Err(changed) => until = changed,
            }
        }
    }

    /// `None` for a request that holds its lock no longer. If a reader has seen before that the lease
    /// has ended, that stays, and the result is `false` for a later end.
    #[must_use]
    pub(super) fn set(&self, until: Option<Moment>) -> bool {
        let until = until.map_or(0, Moment::as_nanos);
        let change = |before| match before & HAS_ENDED {
            0 => Some(until),
            _ => (until == 0).then_some(before),
        };
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
        assert!(ownership.covers(at(99)) && !ownership.lease_has_ended(at(99)));
        assert!(ownership.set(Some(at(200))), "nobody has seen an end");
        assert_eq!(ownership.remaining(at(150)), Duration::from_millis(50));
        assert!(!ownership.covers(at(200)) && ownership.lease_has_ended(at(200)));
        assert!(!ownership.set(Some(at(300))));
        assert!(!ownership.covers(at(201)) && ownership.lease_has_ended(at(201)));
        assert!(ownership.set(None));
        assert!(!ownership.covers(at(0)) && ownership.lease_has_ended(at(201)));
    }
}
