//! [`ReadGuard`]: a read lock that is held. Dropping the guard releases it.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// A read lock that is held, possibly beside other readers. Dropping the guard releases the lock,
/// also during a panic.
///
/// It derefs to [`LockGuard`]. Its [`fencing_token`](LockGuard::fencing_token) is larger than that
/// of every writer before it and smaller than that of every writer after it. Among readers the
/// order has no meaning.
///
/// A read lock cannot become a write lock: two readers that both tried would wait for each other
/// for ever. Unlock, request the write lock, and read again what may have changed in between.
///
/// `Send` and `Sync`; any thread may drop it.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct ReadGuard {
    guard: LockGuard,
}

impl ReadGuard {
    pub(crate) fn new(guard: LockGuard) -> ReadGuard {
        ReadGuard { guard }
    }

    /// Releases the lock and waits until the server has deleted the znode, as
    /// [`LockGuard::unlock`] does.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<Released> {
        self.guard.unlock()
    }
}

impl Deref for ReadGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadGuard").field(&self.guard).finish()
    }
}
