//! [`WriteGuard`]: a write lock that is held, released when the guard goes or made a read lock.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::error::{LockError, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::read_guard::ReadGuard;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;

/// A write lock that is held. Dropping it releases the lock, also when a panic unwinds.
///
/// It is a [`LockGuard`] with all that this can tell, and can be [downgraded](WriteGuard::downgrade).
///
/// `Send` and `Sync`; it may be dropped on any thread.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct WriteGuard {
    /// Before the support and its session, for the order in which they are dropped.
    guard: LockGuard,
    support: Arc<ProtocolSupport>,
    scheme: NamingScheme,
}

impl WriteGuard {
    pub(crate) fn new(guard: LockGuard, support: Arc<ProtocolSupport>, scheme: NamingScheme) -> WriteGuard {
        WriteGuard { guard, support, scheme }
    }

    /// Makes a read lock of the write lock: other readers may come in, and no writer gets in between.
    ///
    /// At no moment is the lock free, so what was written can be read on. The readers behind this one acquire, up to the
    /// next writer. Blocks until the server has the reader's znode, and looks that the writer's is still there; that one is
    /// then deleted in the background. The read lock keeps the writer's [`fencing_token`](LockGuard::fencing_token); a
    /// [revocation](LockGuard::revocation) that was asked of the writer ends with it.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{LockError, ReadWriteLock, Session};
    /// # fn rebuild_index() {}
    /// # fn serve_from_index() {}
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// let lock = ReadWriteLock::new(&session, "/locks/index", None)?;
    /// let writing = lock.write()?;
    /// rebuild_index();
    /// let reading = writing.downgrade()?;
    /// serve_from_index();
    /// # drop(reading);
    /// # Ok::<(), LockError>(())
    /// ```
    ///
    /// # Errors
    /// With the guard, so that the write lock is held on where it was not lost; converted to a [`LockError`], as by `?`, the
    /// error drops the guard.
    /// - [`ConnectionLoss`](LockError::ConnectionLoss): as often as the retries allow. A reader's znode that may have been
    ///   created is deleted in the background.
    /// - [`NotOwner`](LockError::NotOwner): the lock was taken away before; [`lost`](LockGuard::lost) says why.
    /// - [`SessionLost`](LockError::SessionLost) or [`Closed`](LockError::Closed), when that happens meanwhile.
    /// - [`AccessDenied`](LockError::AccessDenied), or another refusal of the server.
    pub fn downgrade(self) -> std::result::Result<ReadGuard, DowngradeError> {
        let WriteGuard { guard, support, scheme } = self;
        match guard.downgrade(Access::Read(scheme), &support) {
            Ok(guard) => Ok(ReadGuard::new(guard)),
            Err((guard, error)) => {
                let guard = Box::new(WriteGuard { guard, support, scheme });
                Err(DowngradeError { guard, error })
            }
        }
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

/// Why a [downgrade](WriteGuard::downgrade) failed, with the guard of the write lock.
///
/// ```no_run
/// # use std::time::Duration;
/// # use zookeeper_recipes_lock::{LockError, ReadWriteLock, Session};
/// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let writing = ReadWriteLock::new(&session, "/locks/index", None)?.write()?;
/// match writing.downgrade() {
///     Ok(reading) => println!("reading on with {}", reading.id()),
///     Err(failed) => {
///         println!("writing on: {failed}");
///         let writing = failed.into_guard();
///         assert!(writing.is_owner());
///     }
/// }
/// # Ok::<(), LockError>(())
/// ```
#[derive(Debug)]
pub struct DowngradeError {
    guard: Box<WriteGuard>,
    error: LockError,
}

impl DowngradeError {
    /// Returns what went wrong.
    #[must_use]
    pub fn error(&self) -> &LockError {
        &self.error
    }

    /// Takes the guard out: the write lock is held on, unless it was lost.
    pub fn into_guard(self) -> WriteGuard {
        *self.guard
    }
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

/// Drops the guard.
impl From<DowngradeError> for LockError {
    fn from(failed: DowngradeError) -> LockError {
        failed.error
    }
}
