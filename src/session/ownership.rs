//! [`Ownership`]: until when a request holds its lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Moment;

/// Until when a request holds its lock, for any thread to read without a mutex.
///
/// Only the driver changes it, under its mutex: it is shortened before anything is sent that lets
/// others in.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// Nanoseconds of the [`Moment`]; zero for a request that holds none.
    until: AtomicU64,
}

impl Ownership {
    pub(crate) fn covers(&self, now: Moment) -> bool {
        now < self.until()
    }

    /// Whether the lock was held until its lease ended, and is not released yet.
    pub(crate) fn has_outlasted(&self, now: Moment) -> bool {
        let until = self.until();
        until != Moment::from_nanos(0) && until <= now
    }

    /// For how long the lock is proven to be held.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        self.until().since(now)
    }

    /// `None` for a request that holds its lock no longer.
    pub(super) fn set(&self, until: Option<Moment>) {
        self.until.store(until.map_or(0, Moment::as_nanos), Ordering::Release);
    }

    fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }
}
