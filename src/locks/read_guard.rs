//! [`ReadGuard`]: a read lock that is held, released when the guard goes.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::lock_guard::LockGuard;

/// A read lock that is held, perhaps beside others. Dropping it releases the lock, also when a panic unwinds.
///
/// It is a [`LockGuard`] with all that this can tell: [`is_owner`](LockGuard::is_owner) says whether the lock is held, alone
/// or not, and [`lost`](LockGuard::lost) that it was taken away. Its [`fencing_token`](LockGuard::fencing_token) is larger than
/// that of every writer before it and smaller than that of every writer after it; among readers it says nothing.
///
/// There is no way to make a write lock of it: two readers that both waited for the other to go would wait for ever. Unlock,
/// ask for the write lock, and look again at what was read, which may have changed in between.
///
/// `Send` and `Sync`; it may be dropped on any thread.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct ReadGuard {
    guard: LockGuard,
}

impl ReadGuard {
    pub(crate) fn new(guard: LockGuard) -> ReadGuard {
        ReadGuard { guard }
    }

    /// Releases the lock and waits until the server has deleted the znode, where dropping the guard leaves that to the
    /// background.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub fn unlock(self) -> Result<()> {
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
