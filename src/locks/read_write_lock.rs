//! [`ReadWriteLock`]: a lock that many readers or one writer can hold.
//!
//! Origin: the shared locks of ZooKeeper's recipe page; HBase's `InterProcessReadWriteLock` and
//! Curator's class of that name.

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
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// A lock that any number of readers hold at once, or one writer alone, in any processes.
///
/// All wait in one queue, first come, first served: a reader waits for the writers ahead of it, a
/// writer for everybody ahead of it. So a stream of readers does not starve a writer, nor the other
/// way round. When a writer releases, the readers behind it acquire together, up to the next
/// writer.
///
/// Each call makes a new request, so any number of threads may share one `ReadWriteLock`. It is not
/// reentrant: a thread that requests the write lock while it holds a read lock waits for itself,
/// and so does one that reads twice when a writer has joined in between. A write lock can be
/// [downgraded](WriteGuard::downgrade). A read lock cannot be upgraded, as two readers that both
/// tried would wait for each other for ever.
///
/// A [`WriteLock`](crate::WriteLock) or [`BlockingWriteLock`](crate::BlockingWriteLock) on the same
/// directory counts as a writer. Other libraries may not count it: see
/// [`NamingScheme`](crate::recipe::NamingScheme).
///
/// No [`LockListener`](crate::LockListener) hears of a reader. To wait without a thread, await
/// [`read_async`](ReadWriteLock::read_async) in a task, and
/// [`lost_async`](crate::LockGuard::lost_async) of its guard.
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
pub struct ReadWriteLock {
    readers: BlockingLock,
    writers: BlockingLock,
}

impl ReadWriteLock {
    /// Makes a lock on a directory with the default [`LockOptions`]. Sends nothing: the first
    /// request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn new(session: &Session, dir: &str) -> Result<ReadWriteLock> {
        ReadWriteLock::with_options(session, dir, LockOptions::new())
    }

    /// As [`new`](ReadWriteLock::new), with other options. Their
    /// [naming scheme](LockOptions::naming) lets other libraries share the directory.
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
    /// As [`new`](ReadWriteLock::new), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument)
    /// for more than about 1 MiB of data, for a [`max_hold`](LockOptions::max_hold) of zero, and for
    /// [`NamingScheme::CuratorLatch`](crate::recipe::NamingScheme::CuratorLatch), which has no readers.
    pub fn with_options(session: &Session, dir: &str, options: LockOptions) -> Result<ReadWriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let scheme = options.naming_scheme();
        if !scheme.has_readers() {
            let rule = format!("{scheme:?} names no readers; InterProcessReadWriteLock has those of Curator");
            return Err(LockError::invalid_argument("naming scheme", rule));
        }
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        let readers = BlockingLock::new(Arc::clone(&support), dir.clone(), Access::Read(scheme));
        let writers = BlockingLock::new(support, dir, Access::Write(scheme));
        Ok(ReadWriteLock { readers, writers })
    }

    /// Blocks until the read lock is acquired: until no writer that came before holds the lock or
    /// waits for it.
    ///
    /// # Errors
    /// As [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock).
    pub fn read(&self) -> Result<ReadGuard> {
        self.readers.lock().map(ReadGuard::new)
    }

    /// Waits until the read lock is acquired, in a task, as
    /// [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn read_async(&self) -> impl Future<Output = Result<ReadGuard>> + Send + use<> {
        let readers = self.readers.clone();
        async move { readers.wait_async().await.map(ReadGuard::new) }
    }

    /// Acquires the read lock if no writer holds it or waits for it, and returns `None` otherwise.
    /// Blocks only for the server's answers: during an outage, through all retries.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock()?.map(ReadGuard::new))
    }

    /// Blocks until the read lock is acquired, or until the wait times out: then it returns `None`.
    ///
    /// The time holds even if the network swallows every packet.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_read_for(&self, wait: impl Into<Wait>) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock_for(&wait.into())?.map(ReadGuard::new))
    }

    /// Blocks until the write lock is acquired: until nobody who came before holds the lock or
    /// waits for it.
    ///
    /// # Errors
    /// As [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock).
    pub fn write(&self) -> Result<WriteGuard> {
        self.writers.lock().map(|guard| self.writing(guard))
    }

    /// Waits until the write lock is acquired, in a task, as
    /// [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// # Errors
    /// As [`write`](ReadWriteLock::write).
    pub fn write_async(&self) -> impl Future<Output = Result<WriteGuard>> + Send + use<> {
        let (writers, support) = (self.writers.clone(), Arc::clone(self.writers.support()));
        async move { writers.wait_async().await.map(|guard| WriteGuard::new(guard, support)) }
    }

    /// Acquires the write lock if nobody holds the lock or waits for it, and returns `None`
    /// otherwise. Blocks only for the server's answers: during an outage, through all retries.
    ///
    /// # Errors
    /// As [`write`](ReadWriteLock::write).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock()?.map(|guard| self.writing(guard)))
    }

    /// Blocks until the write lock is acquired, or until the wait times out: then it returns
    /// `None`.
    ///
    /// The time holds even if the network swallows every packet.
    ///
    /// # Errors
    /// As [`write`](ReadWriteLock::write), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_write_for(&self, wait: impl Into<Wait>) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock_for(&wait.into())?.map(|guard| self.writing(guard)))
    }

    fn writing(&self, guard: LockGuard) -> WriteGuard {
        WriteGuard::new(guard, Arc::clone(self.writers.support()))
    }

    /// Closes the lock: threads that wait for it fail with [`Closed`](crate::ErrorReason::Closed),
    /// and so does every later call. Guards and the session stay. Idempotent.
    pub fn close(&self) {
        self.writers.support().close();
    }

    /// Returns the lock's directory. [`LockDirectory`](crate::queue::LockDirectory) shows who holds the lock there.
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
