//! [`Ownership`]: the moment until which a request holds its lock.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// Flag bit: some thread has already seen the hold as ended, so the lock must never appear held again.
const HAS_ENDED: u64 = 1 << 63;

/// The moment until which a request holds its lock. Any thread can read it without a mutex.
///
/// The driver changes the moment under its own mutex. It shortens a hold before it sends anything that lets others in.
/// A reader that sees that the hold has ended makes the end final. Otherwise, a driver that had read the clock earlier
/// could still extend the hold.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// The nanoseconds of the [`Moment`], perhaps with the flag. Zero for a request that holds no lock.
    until: AtomicU64,
}

enum Reading {
    Not,
    For(Duration),
    Ended(Moment),
}

impl Ownership {
    pub(crate) fn covers(&self, now: Moment) -> bool {
        matches!(self.read(now), Reading::For(_))
    }

    /// Returns when the hold ended, or `None` if it still lasts or if the lock was released first.
    pub(crate) fn ended_at(&self, now: Moment) -> Option<Moment> {
        match self.read(now) {
            Reading::Ended(at) => Some(at),
            Reading::Not | Reading::For(_) => None,
        }
    }

    /// Returns how much longer the lock is provably held.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match self.read(now) {
            Reading::For(remaining) => remaining,
            Reading::Not | Reading::Ended(_) => Duration::ZERO,
        }
    }

    fn read(&self, now: Moment) -> Reading {
        let mut until = self.until.load(Ordering::Acquire);
        loop {
            if until == 0 {
                return Reading::Not;
            }
            let end = Moment::from_nanos(until & !HAS_ENDED);
            if until & HAS_ENDED != 0 {
                return Reading::Ended(end);
            }
            let remaining = end.since(now);
            if !remaining.is_zero() {
                return Reading::For(remaining);
            }
            let ended = until | HAS_ENDED;
            match self.until.compare_exchange(until, ended, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Reading::Ended(end),
                Err(changed) => until = changed,
            }
        }
    }

    /// Sets the moment, or ends the hold if `until` is `None`. If a reader has already seen the end of the hold,
    /// nothing changes. In that case, returns when the hold ended, provided that `until` is a moment.
    #[must_use]
    pub(super) fn set(&self, until: Option<Moment>) -> Option<Moment> {
        let nanos = until.map_or(0, Moment::as_nanos);
        let change = |before| (before & HAS_ENDED == 0).then_some(nanos);
        let seen = self.until.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).err();
        seen.filter(|_| until.is_some()).map(|seen| Moment::from_nanos(seen & !HAS_ENDED))
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
        assert_eq!(ownership.set(Some(at(100))), None);
        assert_eq!((ownership.covers(at(99)), ownership.ended_at(at(99))), (true, None));
        assert_eq!(ownership.set(Some(at(200))), None, "nobody has seen an end");
        assert_eq!(ownership.remaining(at(150)), Duration::from_millis(50));
        let ended = (false, Some(at(200)));
        assert_eq!((ownership.covers(at(200)), ownership.ended_at(at(200))), ended);
        assert_eq!(ownership.set(Some(at(300))), Some(at(200)));
        assert_eq!((ownership.covers(at(201)), ownership.ended_at(at(201))), ended);
        assert_eq!(ownership.set(None), None);
        assert_eq!((ownership.covers(at(0)), ownership.ended_at(at(0))), ended);
    }
}
