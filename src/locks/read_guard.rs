//! [`ReadGuard`]: a read lock that is held. Dropping the guard releases it.

use std::fmt;
use std::ops::Deref;

use crate::error::Result;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// A read lock that is held until the guard is dropped.
///
/// Other readers may hold the lock at the same time. `ReadGuard` dereferences to [`LockGuard`], which documents what a
/// guard proves and what it does not. To write, release the read lock, request the write lock, and then read
/// again whatever may have changed in between.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::ReadWriteLock;
///
/// # fn look_up() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let reading = ReadWriteLock::new(&session, "/locks/index")?.read()?;
/// if reading.is_owner() {
///     look_up();
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// The [`fencing_token`](LockGuard::fencing_token) of a reader is larger than that of every earlier writer and smaller
/// than that of every later writer. But a reader that was [downgraded](crate::locks::WriteGuard::downgrade) has the
/// token of its writer. Among readers the order of the tokens has no meaning. So do not send the token of a reader to a
/// resource that refuses all but the largest token: the token of one reader would shut out another.
///
/// A [`commit`](LockGuard::commit) takes effect only while this lock is held, but it does not exclude the other
/// readers: several of them may commit at the same time.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct ReadGuard {
    guard: LockGuard,
}

impl ReadGuard {
    pub(crate) fn new(guard: LockGuard) -> ReadGuard {
        ReadGuard { guard }
    }

    /// Releases the lock and waits until the server has deleted the znode.
    ///
    /// See [`LockGuard::unlock`].
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`].
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
