//! [`Permit`]: a permit of a semaphore that is held. Dropping it releases it.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{LossReason, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// A permit of a [`Semaphore`](crate::locks::Semaphore) that is held. Dropping it releases it, also during a
/// panic.
///
/// A `Permit` alone does not prove that it is held: the session may be lost at any time. Ask
/// [`is_owner`](Permit::is_owner) before each action that needs the permit, or wait for
/// [`lost`](Permit::lost) at the same time.
///
/// It has no fencing token. Several holders are valid at once, so a resource that refuses smaller
/// numbers than the largest one it has seen would refuse valid holders.
///
/// `Send` and `Sync`; any thread may drop it.
#[must_use = "the permit is released at once when it is not kept"]
pub struct Permit {
    guard: LockGuard,
}

impl Permit {
    pub(super) fn new(guard: LockGuard) -> Permit {
        Permit { guard }
    }

    /// Returns whether the permit is still held, proven up to now. Does no I/O and does not block.
    ///
    /// Always `false` in a forked child of the holder.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.guard.is_owner()
    }

    /// Returns for how long the permit is held if all contact is lost now, as
    /// [`LockGuard::lease_remaining`].
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.guard.lease_remaining()
    }

    /// Returns the full path of the permit's znode.
    #[must_use]
    pub fn id(&self) -> &str {
        self.guard.id()
    }

    /// Returns a channel on which the reason arrives when the permit is lost; for use in
    /// [`select!`](crossbeam_channel::select). Nothing arrives when it is released.
    /// [`loss`](Permit::loss) keeps the reason.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.guard.lost()
    }

    /// Waits until the permit is lost, and returns the reason, as [`LockGuard::lost_async`].
    pub async fn lost_async(&self) -> LossReason {
        self.guard.lost_async().await
    }

    /// Returns why the permit was lost; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guard.loss()
    }

    /// Returns a channel on which one message arrives when somebody asks for the permit, as
    /// [`LockGuard::revocation`] does.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.guard.revocation()
    }

    /// Returns whether somebody has asked for the permit, as reported on [`revocation`](Permit::revocation).
    #[must_use]
    pub fn is_revocation_requested(&self) -> bool {
        self.guard.is_revocation_requested()
    }

    /// Releases the permit and waits until the server has deleted the znode. Dropping the permit does
    /// that in the background.
    ///
    /// Returns [`Released::Pending`] at once while the session is suspended, or when it becomes so.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn release(self) -> Result<Released> {
        self.guard.unlock()
    }

    #[cfg(test)]
    pub(crate) fn guard(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .finish_non_exhaustive()
    }
}
