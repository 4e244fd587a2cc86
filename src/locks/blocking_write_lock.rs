//! [`BlockingWriteLock`]: the exclusive lock for scoped code: it blocks until the lock is there and returns a guard.
//!
//! Origin: the class of this name and the `DistributedLockOperationExecutor` that were published beside the Java recipe;
//! they wait on a latch until the listener is called, as this waits on a channel.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::client::Acl;

use crate::error::Result;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::lock_guard::LockGuard;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// An exclusive lock that blocks until it is acquired.
///
/// Each call is a request of its own, so one `BlockingWriteLock` may be shared by any number of threads, which exclude
/// one another as they exclude those of other processes. Not reentrant: a thread that locks again while it holds the lock
/// waits for itself; a [`ReentrantLock`](crate::ReentrantLock) is one that does not.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let lock = BlockingWriteLock::new(&session, "/locks/report", None)?;
/// {
///     let guard = lock.lock()?;
///     println!("holding {}", guard.id());
/// } // released here
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct BlockingWriteLock {
    lock: BlockingLock,
}

impl BlockingWriteLock {
    /// Makes a lock on a directory, which is created with its parents when the lock is first asked for. Sends nothing.
    ///
    /// `acl` is for every znode created; `None` lets anybody do anything.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](crate::LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str, acl: Option<Vec<Acl>>) -> Result<BlockingWriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = Arc::new(ProtocolSupport::with_acl(session, acl));
        Ok(BlockingWriteLock::of(BlockingLock::new(support, dir, Access::Exclusive)))
    }

    pub(crate) fn of(lock: BlockingLock) -> BlockingWriteLock {
        BlockingWriteLock { lock }
    }

    /// Blocks until the lock is acquired.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the request could not be made, as often as the retries
    ///   allow. Once it stands in the queue, a loss of contact is waited through.
    /// - [`SessionLost`](crate::LockError::SessionLost): the session ended while waiting.
    /// - [`RequestDeleted`](crate::LockError::RequestDeleted): another client deleted the znode of the request.
    /// - [`AccessDenied`](crate::LockError::AccessDenied), or another refusal of the server.
    /// - [`Closed`](crate::LockError::Closed): the session was closed, or what the lock [stands
    ///   on](BlockingWriteLock::protocol_support).
    ///
    /// After an error nothing stands in the queue any more.
    pub fn lock(&self) -> Result<LockGuard> {
        self.lock.lock()
    }

    /// Acquires the lock if nobody holds it or waits for it, and returns `None` otherwise, with its request out of the queue
    /// again. Blocks for the server's answers only.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.lock.try_lock()
    }

    /// Blocks until the lock is acquired, or for `timeout`, and then returns `None`.
    ///
    /// The time holds even when the network swallows every packet, so one that is too short for the server's answers acquires
    /// nothing: [`try_lock`](BlockingWriteLock::try_lock) waits for these, and for nothing else. The znode of a request that timed out is deleted in
    /// the background, as soon as the server can be reached.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        self.try_lock_with(&Wait::timeout(timeout))
    }

    /// Blocks until the lock is acquired, or until `deadline`, and then returns `None`.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_lock_with(&Wait::until(deadline))
    }

    /// Blocks until the lock is acquired, or until the wait ends, and then returns `None`; another thread may cut
    /// the waiting short.
    ///
    /// ```no_run
    /// use std::{thread, time::Duration};
    /// use zookeeper_recipes_lock::{BlockingWriteLock, CancelToken, LockError, Wait, Session};
    ///
    /// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// let lock = BlockingWriteLock::new(&session, "/locks/report", None)?;
    /// let shutdown = CancelToken::new();
    /// thread::scope(|scope| {
    ///     let wait = Wait::forever().cancelled_by(&shutdown);
    ///     let waiter = scope.spawn(move || lock.try_lock_with(&wait).map(drop));
    ///     shutdown.cancel();
    ///     assert!(matches!(waiter.join().unwrap(), Ok(()) | Err(LockError::Cancelled { .. })));
    /// });
    /// # Ok::<(), LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock), and [`Cancelled`](crate::LockError::Cancelled).
    pub fn try_lock_with(&self, wait: &Wait) -> Result<Option<LockGuard>> {
        self.lock.try_lock_with(wait)
    }

    /// Runs an operation under the lock and releases the lock after it, panic or not.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// # fn rebuild_index() -> u32 { 1 }
    /// let lock = BlockingWriteLock::new(&session, "/locks/index", None)?;
    /// let entries = lock.with_lock(|_guard| rebuild_index())?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock) before the operation; and after it, in place of its result, when the lock was
    /// taken away while it ran. To look at the result all the same, take the guard with `lock`.
    pub fn with_lock<T>(&self, operation: impl FnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.lock()?;
        let result = operation(&guard);
        match guard.unlock() {
            Ok(()) => Ok(result),
            Err(error) if error.is_connection_loss() || error.is_access_denied() => {
                logging::warn!("{error}");
                Ok(result)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.lock.dir()
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.lock.session()
    }

    /// Returns what the lock stands on: the session, the ACL, the retries.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        self.lock.support()
    }

    /// Sets the data of the znodes of later requests, which tells others who waits; `host/pid` by default.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn set_data(&self, data: &[u8]) -> Result<()> {
        self.lock.set_data(data)
    }
}

impl fmt::Debug for BlockingWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingWriteLock").field("dir", &self.dir()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::client::{Acl, Permissions, ZkError};

    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::testing::begin;

    fn new_lock(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, BlockingWriteLock) {
        begin();
        let client = server.connect(Duration::from_secs(30));
        let session = Session::from_client(client.clone()).unwrap();
        (client, BlockingWriteLock::new(&session, "/lock", None).unwrap())
    }

    #[test]
    fn with_lock_returns_the_result_and_releases_the_lock() {
        let server = SimulatedZooKeeper::new();
        let (_client, lock) = new_lock(&server);
        let result = lock.with_lock(|guard| (guard.is_owner(), server.children("/lock").len()));
        assert_eq!(result.unwrap(), (true, 1));
        assert!(server.children("/lock").is_empty());
    }

    #[test]
    fn with_lock_returns_the_result_when_the_deletion_is_pending() {
        let server = SimulatedZooKeeper::new();
        let (client, lock) = new_lock(&server);
        let result = lock.with_lock(|_guard| {
            client.fail_next(SimOperation::Delete, Effect::Before, ZkError::ConnectionLoss);
            1
        });
        assert_eq!(result.unwrap(), 1);
    }

    #[test]
    fn with_lock_returns_the_result_when_the_deletion_is_refused() {
        let server = SimulatedZooKeeper::new();
        let (_client, lock) = new_lock(&server);
        let acl = [Acl::new(Permissions::READ, "world", "anyone")];
        let result = lock.with_lock(|_guard| server.set_acl("/lock", &acl));
        assert!(result.is_ok(), "{result:?}");
    }

    #[test]
    fn with_lock_fails_when_the_lock_was_taken_away() {
        let server = SimulatedZooKeeper::new();
        let (_client, lock) = new_lock(&server);
        let result = lock.with_lock(|guard| server.delete(guard.id()));
        assert!(matches!(result, Err(crate::LockError::RequestDeleted { .. })), "{result:?}");
    }
}
