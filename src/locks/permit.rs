//! [`Permit`]: a held permit of a semaphore. Dropping the `Permit` releases the permit.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// A permit of a [`Semaphore`](crate::locks::Semaphore), held until it is dropped.
///
/// `Permit` dereferences to the [`LockGuard`] of its znode. Having a `Permit` does not prove that the permit
/// is still held, because the session may be lost at any time. So check [`is_owner`](LockGuard::is_owner)
/// before each action that needs the permit, or watch [`lost`](LockGuard::lost) while you work.
///
/// Do not send the [`fencing_token`](LockGuard::fencing_token) of a permit to a resource. Several holders are
/// valid at the same time, and a resource that refuses all but the largest token would refuse some of them.
///
/// A [`commit`](LockGuard::commit) takes effect only while this permit is held, but it does not exclude the
/// other holders: several of them may commit at the same time.
#[must_use = "the permit is released at once when it is not kept"]
pub struct Permit {
    guard: LockGuard,
}

impl Permit {
    pub(super) fn new(guard: LockGuard) -> Permit {
        Permit { guard }
    }

    /// Releases the permit and waits until the server has deleted the znode.
    ///
    /// Dropping the permit does the same in the background. Without contact, the call returns [`Released::Pending`]
    /// instead of waiting.
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn release(self) -> Result<Released> {
        self.guard.unlock()
    }
}

impl Deref for Permit {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.guard).finish()
    }
}
