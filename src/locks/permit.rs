//! [`Permit`]: a permit of a semaphore that is held. Dropping it releases it.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// A permit of a [`Semaphore`](crate::locks::Semaphore) that is held. Dropping it releases it, also during a
/// panic.
///
/// It dereferences to the [`LockGuard`] of its znode. A `Permit` alone does not prove that it is held, because the session
/// may be lost at any time. Ask [`is_owner`](LockGuard::is_owner) before each action that needs the permit,
/// or wait for [`lost`](LockGuard::lost) at the same time.
///
/// Do not pass its [`fencing_token`](LockGuard::fencing_token) to a resource: several holders are valid at once, and a
/// resource that refuses smaller numbers than the largest one it has seen would refuse some of them.
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
