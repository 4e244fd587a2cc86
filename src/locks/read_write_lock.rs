//! [`ReadWriteLock`]: a lock that many readers or one writer can hold.
//!
//! Origin: the shared locks of ZooKeeper's recipe page; HBase's `InterProcessReadWriteLock` and Curator's class of that name.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Acl;

use crate::error::Result;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::listening_lock::ListeningLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::lock_listener::LockListener;
use crate::locks::read_guard::ReadGuard;
use crate::locks::read_lock::ReadLock;
use crate::locks::write_guard::WriteGuard;
use crate::locks::write_lock::WriteLock;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// A lock that is held by any number of readers at once, or by one writer alone, in whichever processes.
///
/// All stand in one queue, first come, first served: a reader waits for the writers ahead of it, a writer for everybody
/// ahead of it. So a stream of readers keeps no writer waiting for ever, nor the other way round; when a writer goes, the
/// readers behind it acquire together, up to the next writer.
///
/// Each call is a request of its own, so one `ReadWriteLock` may be shared by any number of threads. Not reentrant: a thread
/// that asks for the write lock while it holds a read lock waits for itself, and so does one that reads twice when a
/// writer has come in between. A write lock can be [downgraded](WriteGuard::downgrade); a read lock cannot be made a write
/// lock, as two readers that both tried would wait for each other for ever.
///
/// An exclusive [`WriteLock`] or [`BlockingWriteLock`](crate::BlockingWriteLock) on the same directory counts as a writer.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{ReadWriteLock, Session};
///
/// # fn look_up() {}
/// # fn rebuild() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let lock = ReadWriteLock::new(&session, "/locks/index", None)?;
/// {
///     let reading = lock.read()?; // perhaps beside other readers
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
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    scheme: NamingScheme,
    readers: BlockingLock,
    writers: BlockingLock,
}

impl ReadWriteLock {
    /// Makes a lock on a directory, which is created with its parents when the lock is first asked for. Sends nothing.
    ///
    /// `acl` is for every znode created; `None` lets anybody do anything. Requests are named by
    /// [`NamingScheme::Recipe`].
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](crate::LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str, acl: Option<Vec<Acl>>) -> Result<ReadWriteLock> {
        ReadWriteLock::with_naming_scheme(session, dir, acl, NamingScheme::Recipe)
    }

    /// Makes a lock whose requests are named by another scheme, to share its directory with another library.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// use zookeeper_recipes_lock::{NamingScheme, ReadWriteLock};
    ///
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// // The same lock as Curator's `new InterProcessReadWriteLock(client, "/locks/index")`.
    /// let lock = ReadWriteLock::with_naming_scheme(&session, "/locks/index", None, NamingScheme::Curator)?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](ReadWriteLock::new).
    pub fn with_naming_scheme(
        session: &Session,
        dir: &str,
        acl: Option<Vec<Acl>>,
        scheme: NamingScheme,
    ) -> Result<ReadWriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = Arc::new(ProtocolSupport::with_acl(session, acl));
        let lock = |access| BlockingLock::new(Arc::clone(&support), dir.clone(), access);
        let (readers, writers) = (lock(Access::Read(scheme)), lock(Access::Write(scheme)));
        Ok(ReadWriteLock { support, dir, scheme, readers, writers })
    }

    // ---- reading

    /// Blocks until the read lock is acquired: until no writer that came before holds the lock or waits for it.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the request could not be made, as often as the retries
    ///   allow. Once it stands in the queue, a loss of contact is waited through.
    /// - [`SessionLost`](crate::LockError::SessionLost): the session ended while waiting.
    /// - [`RequestDeleted`](crate::LockError::RequestDeleted): another client deleted the znode of the request.
    /// - [`AccessDenied`](crate::LockError::AccessDenied), or another refusal of the server.
    /// - [`Closed`](crate::LockError::Closed): the session was closed, or what the lock [stands
    ///   on](ReadWriteLock::protocol_support).
    ///
    /// After an error nothing stands in the queue any more.
    pub fn read(&self) -> Result<ReadGuard> {
        self.readers.lock().map(ReadGuard::new)
    }

    /// Acquires the read lock if no writer holds the lock or waits for it, and returns `None` otherwise. Blocks for the
    /// server's answers only.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_read(&self) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock()?.map(ReadGuard::new))
    }

    /// Blocks until the read lock is acquired, or for `timeout`, and then returns `None`.
    ///
    /// The time holds even when the network swallows every packet. The znode of a request that timed out is deleted in
    /// the background, as soon as the server can be reached.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_read_for(&self, timeout: Duration) -> Result<Option<ReadGuard>> {
        self.try_read_with(&Wait::timeout(timeout))
    }

    /// Blocks until the read lock is acquired, or until `deadline`, and then returns `None`.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_read_until(&self, deadline: Instant) -> Result<Option<ReadGuard>> {
        self.try_read_with(&Wait::until(deadline))
    }

    /// Blocks until the read lock is acquired, or until the wait ends, and then returns `None`; another thread may
    /// cut the waiting short.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn try_read_with(&self, wait: &Wait) -> Result<Option<ReadGuard>> {
        Ok(self.readers.try_lock_with(wait)?.map(ReadGuard::new))
    }

    /// Makes a read lock that joins the queue and returns, and tells a listener when the lock comes and goes.
    ///
    /// It has the settings of this lock as they are now, and its own from then on.
    #[must_use]
    pub fn read_lock(&self, listener: impl LockListener + 'static) -> ReadLock {
        ReadLock::around(self.listening(Access::Read(self.scheme), &self.readers, Arc::new(listener)))
    }

    // ---- writing

    /// Blocks until the write lock is acquired: until nobody who came before holds the lock or waits for it.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn write(&self) -> Result<WriteGuard> {
        self.writers.lock().map(|guard| self.writing(guard))
    }

    /// Acquires the write lock if nobody holds the lock or waits for it, and returns `None` otherwise. Blocks for the
    /// server's answers only.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_write(&self) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock()?.map(|guard| self.writing(guard)))
    }

    /// Blocks until the write lock is acquired, or for `timeout`, and then returns `None`.
    ///
    /// The time holds even when the network swallows every packet. The znode of a request that timed out is deleted in
    /// the background, as soon as the server can be reached.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_write_for(&self, timeout: Duration) -> Result<Option<WriteGuard>> {
        self.try_write_with(&Wait::timeout(timeout))
    }

    /// Blocks until the write lock is acquired, or until `deadline`, and then returns `None`.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read).
    pub fn try_write_until(&self, deadline: Instant) -> Result<Option<WriteGuard>> {
        self.try_write_with(&Wait::until(deadline))
    }

    /// Blocks until the write lock is acquired, or until the wait ends, and then returns `None`; another thread may
    /// cut the waiting short.
    ///
    /// # Errors
    /// As [`read`](ReadWriteLock::read), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn try_write_with(&self, wait: &Wait) -> Result<Option<WriteGuard>> {
        Ok(self.writers.try_lock_with(wait)?.map(|guard| self.writing(guard)))
    }

    /// Makes a write lock that joins the queue and returns, and tells a listener when the lock comes and goes.
    ///
    /// It has the settings of this lock as they are now, and its own from then on.
    #[must_use]
    pub fn write_lock(&self, listener: impl LockListener + 'static) -> WriteLock {
        WriteLock::around(self.listening(Access::Write(self.scheme), &self.writers, Arc::new(listener)))
    }

    // ---- both

    fn writing(&self, guard: LockGuard) -> WriteGuard {
        WriteGuard::new(guard, Arc::clone(&self.support), self.scheme)
    }

    fn listening(
        &self,
        access: Access,
        blocking: &BlockingLock,
        listener: Arc<dyn LockListener>,
    ) -> ListeningLock {
        ListeningLock::new(self.support.sibling(), self.dir.clone(), access, blocking.data(), Some(listener))
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.dir.as_str()
    }

    /// Returns how requests are named.
    #[must_use]
    pub fn naming_scheme(&self) -> NamingScheme {
        self.scheme
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.support.session()
    }

    /// Returns what the lock stands on: the session, the ACL, the retries.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        &self.support
    }

    /// Sets the data of the znodes of later requests, which tells others who waits; `host/pid` by default.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn set_data(&self, data: &[u8]) -> Result<()> {
        self.readers.set_data(data)?;
        self.writers.set_data(data)
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock")
            .field("dir", &self.dir())
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}
