//! [`LeaseEpoch`]: one stretch of a lease. [`Ownership`]: what a lock is held under.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// One unbroken stretch of proof: it is extended again and again, and once it has ended it stays
/// ended.
///
/// An owner keeps the epoch under which it acquired. An epoch is closed for extension by a
/// disconnect, so that an owner's lease runs on but grows only after a look at its znode has moved
/// it to the current epoch.
#[derive(Debug)]
pub(crate) struct LeaseEpoch {
    /// Nanoseconds of the [`Moment`] at which it ends, or one of the two below, which cover no
    /// moment either.
    end: AtomicU64,
}

/// Nothing has been proven under the epoch yet.
const UNPROVEN: u64 = 0;
/// The epoch was ended ahead of its time.
const FINISHED: u64 = 1;

impl LeaseEpoch {
    pub(super) fn until(end: Moment) -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(end.as_nanos()) })
    }

    pub(super) fn unproven() -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(UNPROVEN) })
    }

    pub(crate) fn covers(&self, now: Moment) -> bool {
        now.as_nanos() < self.end.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> Moment {
        Moment::from_nanos(self.end.load(Ordering::Acquire))
    }

    /// Extends the epoch, unless it has ended by `now`. Returns whether the proof was taken up.
    pub(super) fn extend(&self, now: Moment, end: Moment) -> bool {
        self.end
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
                (current == UNPROVEN || now.as_nanos() < current).then_some(current.max(end.as_nanos()))
            })
            .is_ok()
    }

    /// Ends the epoch at that moment, if it does not end earlier.
    pub(super) fn cap(&self, end: Moment) {
        self.end.fetch_min(end.as_nanos(), Ordering::AcqRel);
    }

    pub(super) fn finish(&self) {
        self.end.store(FINISHED, Ordering::Release);
    }
}

/// The epoch under which a lock is held. While one of these exists, its session keeps its lease
/// proven.
#[derive(Clone, Debug)]
pub(crate) struct Ownership {
    epoch: Arc<LeaseEpoch>,
    _owner: Owner,
}

impl Ownership {
    pub(super) fn new(epoch: Arc<LeaseEpoch>, owners: &Owners) -> Ownership {
        Ownership { epoch, _owner: Owner::new(owners) }
    }

    pub(crate) fn covers(&self, now: Moment) -> bool {
        self.epoch.covers(now)
    }

    /// For how long the lock is proven to be held.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.epoch.end().since(now)
    }

    /// Holds the lock under another epoch from now on.
    pub(crate) fn move_to(&mut self, epoch: &Arc<LeaseEpoch>) {
        self.epoch = Arc::clone(epoch);
    }
}

/// How many locks of a session are held. Grows from zero only under the mutex of the session's
/// status.
#[derive(Debug, Default)]
pub(super) struct Owners {
    count: Arc<AtomicUsize>,
}

impl Owners {
    pub(super) fn any(&self) -> bool {
        // What follows from the first owner happens under the mutex under which it was counted. One
        // that has gone may be seen for a while longer.
        self.count.load(Ordering::Relaxed) > 0
    }
}

/// Counts as one held lock until it is dropped.
#[derive(Debug)]
struct Owner {
    count: Arc<AtomicUsize>,
}

impl Owner {
    fn new(owners: &Owners) -> Owner {
        Owner::of(&owners.count)
    }

    fn of(count: &Arc<AtomicUsize>) -> Owner {
        count.fetch_add(1, Ordering::Relaxed);
        Owner { count: Arc::clone(count) }
    }
}

impl Clone for Owner {
    fn clone(&self) -> Owner {
        Owner::of(&self.count)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
