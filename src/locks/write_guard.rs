//! [`WriteGuard`]: a write lock that is held. It can be downgraded to a read lock.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{LockError, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;
use crate::locks::read_guard::ReadGuard;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;

/// A write lock that is held until the guard is dropped.
///
/// `WriteGuard` dereferences to [`LockGuard`], which documents what a guard proves and what it does not. It can be
/// [downgraded](WriteGuard::downgrade) to a read lock.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct WriteGuard {
    /// Declared before the support, which holds the session, because fields are dropped in this order.
    guard: LockGuard,
    support: Arc<ProtocolSupport>,
}

impl WriteGuard {
    pub(crate) fn new(guard: LockGuard, support: Arc<ProtocolSupport>) -> WriteGuard {
        WriteGuard { guard, support }
    }

    /// Downgrades the write lock to a read lock.
    ///
    /// The lock is never free in between, so no other writer can change what this one wrote. The readers next in the
    /// queue acquire the lock, up to the next writer.
    ///
    /// Blocks until the server has created the reader's znode and confirmed that the writer's znode still exists. The
    /// writer's znode is then deleted in the background. The read lock keeps the writer's
    /// [`fencing_token`](LockGuard::fencing_token), but drops a pending [revocation](LockGuard::revocation).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{LockError, Session};
    /// # use zookeeper_recipes_lock::locks::ReadWriteLock;
    /// # fn rebuild_index() {}
    /// # fn serve_from_index() {}
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// let lock = ReadWriteLock::new(&session, "/locks/index")?;
    /// let writing = lock.write()?;
    /// rebuild_index();
    /// let reading = writing.downgrade()?;
    /// serve_from_index();
    /// # drop(reading);
    /// # Ok::<(), LockError>(())
    /// ```
    ///
    /// # Errors
    /// The error contains the guard, which still holds the write lock unless the lock was lost. Converting the error to
    /// a [`LockError`], for example with `?`, drops the guard.
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): every attempt lost its connection. If the reader's
    ///   znode exists nevertheless, it is deleted in the background.
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): the lock was already lost; see
    ///   [`loss`](LockGuard::loss).
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed): the session ended
    ///   during the call. `Closed` is also returned after [`ReadWriteLock::close`](crate::locks::ReadWriteLock::close).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the call.
    ///   After a [commit](LockGuard::commit) whose reply was lost, a downgrade needs WRITE on the writer's znode.
    pub fn downgrade(self) -> std::result::Result<ReadGuard, DowngradeError> {
        let WriteGuard { guard, support } = self;
        let access = Access::Read(support.options().naming_scheme());
        match guard.downgrade(access, &support) {
            Ok(guard) => Ok(ReadGuard::new(guard)),
            Err((guard, error)) => {
                let guard = Box::new(WriteGuard { guard, support });
                Err(DowngradeError { guard, error })
            }
        }
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

impl Deref for WriteGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteGuard").field(&self.guard).finish()
    }
}

/// The error of a failed [downgrade](WriteGuard::downgrade).
///
/// It contains the guard, so you can continue to write:
///
/// ```no_run
/// # use std::time::Duration;
/// # use zookeeper_recipes_lock::{LockError, Session};
/// # use zookeeper_recipes_lock::locks::ReadWriteLock;
/// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let writing = ReadWriteLock::new(&session, "/locks/index")?.write()?;
/// match writing.downgrade() {
///     Ok(reading) => println!("reading with {}", reading.id()),
///     Err(failed) => {
///         println!("still writing: {failed}");
///         let writing = failed.guard;
///         assert!(writing.is_owner());
///     }
/// }
/// # Ok::<(), LockError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct DowngradeError {
    /// The guard, which still holds the write lock unless the lock was lost.
    pub guard: Box<WriteGuard>,
    /// The reason why the downgrade failed.
    pub error: LockError,
}

impl fmt::Display for DowngradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error for DowngradeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Keeps only the error, and drops the guard.
impl From<DowngradeError> for LockError {
    fn from(failed: DowngradeError) -> LockError {
        failed.error
    }
}
