//! [`Ownership`]: until when a request holds its lock. [`Ownerships`]: those of a session.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::ParticipantId;
use crate::engine::lease::Lease;
use crate::time::Moment;

/// Until when a request holds its lock, for any thread to read without a mutex.
///
/// Only [`Ownerships::apply`] changes it, under the mutex of the session's status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ownership {
    /// Nanoseconds of the [`Moment`]; zero for a request that holds none.
    until: Arc<AtomicU64>,
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

    fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }
}

/// The ownerships of a session's requests.
#[derive(Debug, Default)]
pub(super) struct Ownerships {
    all: BTreeMap<ParticipantId, Ownership>,
}

impl Ownerships {
    /// Notes that a request holds its lock, or is about to.
    pub(super) fn add(&mut self, owner: ParticipantId, ownership: &Ownership) {
        self.all.insert(owner, ownership.clone());
    }

    /// Applies what has changed in the lease.
    pub(super) fn apply(&mut self, lease: &mut Lease) {
        while let Some((owner, until)) = lease.next_change() {
            let nanos = until.map_or(0, Moment::as_nanos);
            if let Some(ownership) = self.all.get(&owner) {
                ownership.until.store(nanos, Ordering::Release);
            }
            if until.is_none() {
                self.all.remove(&owner);
            }
        }
    }
}
