//! [`ReadLock`]: the reader's side of a read-write lock, asynchronous, with a listener.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::locks::listening_lock::ListeningLock;
use crate::locks::lock_listener::LockListener;
use crate::protocol_support::ProtocolSupport;
use crate::session::Session;

/// A read lock that joins the queue and returns, as a [`WriteLock`](crate::WriteLock) does; made by
/// [`ReadWriteLock::read_lock`](crate::ReadWriteLock::read_lock).
///
/// Any number of readers own the lock at once, but none beside a writer. A [`LockListener`] is told when this one acquires,
/// releases or loses it, and [`is_owner`](ReadLock::is_owner) can be asked at any time.
///
/// One `ReadLock` has one request in the queue at a time. It is `Send` and `Sync`; dropping it closes it.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockListener, ReadWriteLock, Session};
///
/// struct Serve;
///
/// impl LockListener for Serve {
///     fn lock_acquired(&self) {
///         println!("serving");
///     }
///     fn lock_released(&self) {
///         println!("no longer serving");
///     }
/// }
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let lock = ReadWriteLock::new(&session, "/locks/index", None)?;
/// let reading = lock.read_lock(Serve);
/// reading.lock()?; // joins the queue and returns
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct ReadLock {
    lock: ListeningLock,
}

impl ReadLock {
    pub(crate) fn around(lock: ListeningLock) -> ReadLock {
        ReadLock { lock }
    }

    /// Joins the queue, unless this lock stands there already, and returns whether it may read now.
    ///
    /// Blocks until the server has said where the request stands (during an outage: through all retries), not until its
    /// turn comes: the listener tells that. A second call while the request waits or owns is the same request. After a loss
    /// it is a new one. On a [closed](ReadLock::close) lock it is `Ok(false)`.
    ///
    /// # Errors
    /// As [`WriteLock::lock`](crate::WriteLock::lock).
    pub fn lock(&self) -> Result<bool> {
        self.lock.lock()
    }

    /// Releases the lock, or leaves the queue. Without a request it does nothing.
    ///
    /// From the moment of the call this process reads no longer, whatever the outcome. Blocks until the server has deleted
    /// the znode.
    ///
    /// # Errors
    /// As [`WriteLock::unlock`](crate::WriteLock::unlock).
    pub fn unlock(&self) -> Result<()> {
        self.lock.unlock()
    }

    /// Returns whether this lock is held, perhaps beside other readers, and provably so until now. Does no I/O and waits for
    /// nothing.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.lock.is_owner()
    }

    /// Returns the full path of the znode of the request in the queue, if there is one.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        self.lock.id()
    }

    /// Returns a number that is larger than that of every writer before, as
    /// [`LockGuard::fencing_token`](crate::LockGuard::fencing_token) does, for the request in the queue.
    ///
    /// # Errors
    /// As [`WriteLock::fencing_token`](crate::WriteLock::fencing_token).
    pub fn fencing_token(&self) -> Result<i64> {
        self.lock.fencing_token()
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.lock.dir()
    }

    /// Returns the listener.
    #[must_use]
    pub fn lock_listener(&self) -> Option<Arc<dyn LockListener>> {
        self.lock.listener()
    }

    /// Sets another listener, which hears what happens from now on.
    pub fn set_lock_listener(&self, listener: impl LockListener + 'static) {
        self.lock.set_listener(Arc::new(listener));
    }

    /// Sets the data of the znodes of later requests, which tells others who waits.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn set_data(&self, data: &[u8]) -> Result<()> {
        self.lock.set_data(data)
    }

    /// Closes the lock: releases it or leaves the queue, and never joins again. Idempotent; the session stays open.
    ///
    /// Does not wait for the server: the znode is deleted in the background.
    pub fn close(&self) {
        self.lock.close();
    }

    /// Returns whether the lock was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.lock.is_closed()
    }

    /// Returns what the lock stands on: the session, the ACL, the retries.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        self.lock.support()
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.lock.session()
    }
}

impl fmt::Debug for ReadLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.describe("ReadLock", f)
    }
}
