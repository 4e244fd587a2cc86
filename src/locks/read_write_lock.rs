//! [`ReadWriteLock`]: a lock for many readers or one writer.
//!
//! Origin: the shared locks of ZooKeeper's recipe page, HBase's `InterProcessReadWriteLock`, and Curator's class of the
//! same name.

use std::fmt;
use std::sync::Arc;

use crate::error::{LockError, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::read_guard::ReadGuard;
use crate::locks::write_guard::WriteGuard;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::session::Session;
use crate::wait::Wait;

/// A lock that either any number of readers or one writer can hold.
///
/// [`read`](ReadWriteLock::read) and [`write`](ReadWriteLock::write) block until the lock is acquired, and return a
/// guard. Readers and writers of all processes wait in one queue.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::ReadWriteLock;
///
/// # fn look_up() {}
/// # fn rebuild() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let lock = ReadWriteLock::new(&session, "/locks/index")?;
/// {
///     let reading = lock.read()?; // possibly beside other readers
///     look_up();
/// }
/// if let Some(writing) = lock.try_write_for(Duration::from_secs(5))? {
///     rebuild(); // alone
///     let reading = writing.downgrade()?; // others may read again
///     look_up();
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Order
/// The lock is granted first come, first served. A reader waits for the writers ahead of it, and a writer waits for
/// everybody ahead of it. So readers do not starve writers, and writers do not starve readers. When a writer releases
/// the lock, the readers behind it acquire it together, up to the next writer.
///
/// # Sharing between threads
/// Any number of threads may share one `ReadWriteLock`, because each call makes its own request. The lock is not
/// reentrant. A thread waits for itself if it requests either lock while it holds the write lock, if it requests the
/// write lock while it holds a read lock, or if it requests a second read lock after a writer has joined the queue.
///
/// # Changing the access
/// A write lock can be [downgraded](WriteGuard::downgrade) to a read lock. A read lock cannot be upgraded, because two
/// readers that both tried would wait for each other forever.
///
/// # With other locks
/// A [`WriteLock`](crate::WriteLock) or [`BlockingWriteLock`](crate::BlockingWriteLock) on the same directory counts as
/// a writer. Other libraries may not recognize these requests: see [`NamingScheme`](crate::recipe::NamingScheme).
///
/// There is no [`LockListener`](crate::LockListener) for readers. To wait without blocking a thread, await
/// [`read_async`](ReadWriteLock::read_async) in a task, and then [`lost_async`](crate::LockGuard::lost_async) on its
/// guard.
#[doc(alias = "RwLock")]
#[doc(alias = "InterProcessReadWriteLock")]
pub struct ReadWriteLock {
    readers: BlockingLock,
    writers: BlockingLock,
}

impl ReadWriteLock {
    /// Creates a lock on the directory `dir`, with the default [`LockOptions`].
    ///
    /// Sends nothing to the servers. The first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<ReadWriteLock> {
        ReadWriteLock::with_options(session, dir, LockOptions::new())
    }

    /// Creates a lock like [`new`](ReadWriteLock::new), with other options.
    ///
    /// With a [naming scheme](LockOptions::naming), other libraries can share the directory.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// use zookeeper_recipes_lock::LockOptions;
    /// use zookeeper_recipes_lock::locks::ReadWriteLock;
    /// use zookeeper_recipes_lock::recipe::NamingScheme;
    ///
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// // The same lock as Curator's `new InterProcessReadWriteLock(client, "/locks/index")`.
    /// let options = LockOptions::new().naming(NamingScheme::Curator);
    /// let lock = ReadWriteLock::with_options(&session, "/locks/index", options)?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, the
    /// [`max_hold`](LockOptions::max_hold) is zero, or the naming scheme is
    /// [`NamingScheme::CuratorLatch`](crate::recipe::NamingScheme::CuratorLatch), which has no readers.
    pub fn with_options(session: &Session, dir: &str, options: LockOptions) -> Result<ReadWriteLock> {
        let dir = session.lock_path(dir)?;
        let scheme = options.naming_scheme();
        if !scheme.has_readers() {
            let rule = format!(
                "{scheme:?} has no readers; for Curator's InterProcessReadWriteLock, use NamingScheme::Curator"
            );
            return Err(LockError::invalid_argument("naming scheme", rule));
        }
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        let readers = BlockingLock::new(Arc::clone(&support), dir.clone(), Access::Read(scheme));
        let writers = BlockingLock::new(support, dir, Access::Write(scheme));
        Ok(ReadWriteLock { readers, writers })
    }

    /// Blocks until the read lock is acquired.
    ///
    /// It is acquired as soon as no writer is ahead of the request in the queue.
    ///
    /// # Errors
    /// The same as [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock).
    pub fn read(&self) -> Result<ReadGuard> {
        self.readers.lock().map(ReadGuard::new)
    }

    /// Waits in a task until the read lock is acquired.
    ///
    /// The future may be dropped at any time, and holds its lock even if nobody polls it. See
    /// [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// # Errors
    /// The same as [`read`](ReadWriteLock::read).
    pub fn read_async(&self) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        let readers = self.readers.clone();
        async move { readers.wait_async().await.map(ReadGuard::new) }
    }

    /// Acquires the read lock if it is free; returns `None` otherwise.
    ///
    /// It is not free if a writer holds the lock or waits for it.
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// # Errors
    /// The same as [`read`](ReadWriteLock::read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock()?.map(ReadGuard::new))
    }

    /// Blocks until the read lock is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit holds even if the network swallows every packet.
    ///
    /// # Errors
    /// The same as [`read`](ReadWriteLock::read), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_read_for(&self, wait: impl Into<Wait>) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock_for(&wait.into())?.map(ReadGuard::new))
    }

    /// Blocks until the write lock is acquired.
    ///
    /// It is acquired as soon as nobody is ahead of the request in the queue.
    ///
    /// # Errors
    /// The same as [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock).
    pub fn write(&self) -> Result<WriteGuard> {
        self.writers.lock().map(|guard| self.writing(guard))
    }

    /// Waits in a task until the write lock is acquired.
    ///
    /// The future may be dropped at any time, and holds its lock even if nobody polls it. See
    /// [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// # Errors
    /// The same as [`write`](ReadWriteLock::write).
    pub fn write_async(&self) -> impl Future<Output = Result<WriteGuard>> + Send + use<> {
        let (writers, support) = (self.writers.clone(), Arc::clone(self.writers.support()));
        async move { writers.wait_async().await.map(|guard| WriteGuard::new(guard, support)) }
    }

    /// Acquires the write lock if it is free; returns `None` otherwise.
    ///
    /// It is not free if anybody holds the lock or waits for it.
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// # Errors
    /// The same as [`write`](ReadWriteLock::write).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock()?.map(|guard| self.writing(guard)))
    }

    /// Blocks until the write lock is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit holds even if the network swallows every packet.
    ///
    /// # Errors
    /// The same as [`write`](ReadWriteLock::write), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_write_for(&self, wait: impl Into<Wait>) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock_for(&wait.into())?.map(|guard| self.writing(guard)))
    }

    fn writing(&self, guard: LockGuard) -> WriteGuard {
        WriteGuard::new(guard, Arc::clone(self.writers.support()))
    }

    /// Closes the lock.
    ///
    /// Threads that wait for it, and all later calls, fail with [`Closed`](crate::ErrorReason::Closed). Existing guards
    /// stay valid, and the session stays open. Idempotent.
    pub fn close(&self) {
        self.writers.support().close();
    }

    /// Returns the lock's directory.
    ///
    /// A [`LockDirectory`](crate::queue::LockDirectory) on this path shows who holds the lock.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.writers.path().as_str()
    }

    /// Returns the session on which the lock makes its requests.
    pub fn session(&self) -> &Session {
        self.writers.session()
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock").field("dir", &self.dir()).finish_non_exhaustive()
    }
}
