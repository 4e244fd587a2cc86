//! [`BlockingWriteLock`]: the exclusive lock that blocks until it is acquired, and returns a guard.
//!
//! Origin: `BlockingWriteLock`, which waits on a latch until the listener of the Java recipe is called, and
//! `DistributedOperationExecutor`, both in Scott Leberknight's `zookeeper-samples`.

use std::fmt;
use std::sync::Arc;

use crate::error::{Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::{exclusive, finish};
use crate::protocol_support::ProtocolSupport;
use crate::session::{Core, Session};
use crate::wait::Wait;

/// An exclusive lock that blocks the calling thread until it is acquired.
///
/// [`lock`](BlockingWriteLock::lock) returns a [`LockGuard`], and dropping the guard releases the lock.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Session};
///
/// # fn write_report() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let lock = BlockingWriteLock::new(&session, "/locks/report")?;
/// if let Some(guard) = lock.try_lock_for(Duration::from_secs(5))? {
///     if guard.is_owner() {
///         write_report();
///     }
/// } // released
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Sharing between threads
/// Any number of threads may share one `BlockingWriteLock`. Each call makes its own request, so the threads exclude
/// one another just as they exclude other processes. A clone is another handle to the same lock: closing one
/// handle closes all of them.
///
/// # Not reentrant
/// A thread that locks again while it holds the lock waits for itself. After one second, this is logged at `warn`,
/// unless a future has acquired the lock or waits for it, or the two calls use different sessions. Use a
/// [`ReentrantLock`](crate::locks::ReentrantLock) where that can happen.
#[doc(alias = "InterProcessMutex")]
#[doc(alias = "Mutex")]
#[doc(alias = "flock")]
#[derive(Clone)]
pub struct BlockingWriteLock {
    lock: BlockingLock,
}

impl BlockingWriteLock {
    /// Creates a lock on the directory `dir`, with the default [`LockOptions`].
    ///
    /// Sends nothing to the servers. The first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<BlockingWriteLock> {
        BlockingWriteLock::with_options(session, dir, LockOptions::new())
    }

    /// Creates a lock like [`new`](BlockingWriteLock::new), with other options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(session: &Session, dir: &str, options: LockOptions) -> Result<BlockingWriteLock> {
        let dir = session.lock_path(dir)?;
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        let access = exclusive(&support);
        Ok(BlockingWriteLock::of(BlockingLock::new(support, dir, access)))
    }

    pub(crate) fn of(lock: BlockingLock) -> BlockingWriteLock {
        BlockingWriteLock { lock }
    }

    /// Blocks until the lock is acquired.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the request could not be created
    ///   before the retries were used up. Once it is in the queue, the call waits through losses of contact.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost): the session was lost, before or during the wait. On a
    ///   session that [replaces itself](crate::SessionBuilder::replace_lost_sessions), the call waits on instead.
    /// - [`NodeDeleted`](crate::ErrorReason::NodeDeleted): another client deleted the request's
    ///   znode.
    /// - [`HeldTooLong`](crate::ErrorReason::HeldTooLong): the whole [`max_hold`](crate::LockOptions::max_hold) passed
    ///   after the acquisition, before the call returned. The call never returns a lock that is already lost.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the
    ///   request.
    /// - [`Closed`](crate::ErrorReason::Closed): the lock or the session was closed.
    ///
    /// After an error, the call has left the queue. If a znode of its request still exists, it is deleted in the
    /// background, or with the session.
    pub fn lock(&self) -> Result<LockGuard> {
        self.lock.lock()
    }

    /// Waits until the lock is acquired, in a task of any async runtime.
    ///
    /// No thread is blocked. The future joins the queue when it is first polled, and a callback thread of the session
    /// wakes the task.
    ///
    /// ```no_run
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, LockError};
    /// # async fn write_report() {}
    /// # async fn report(lock: &BlockingWriteLock) -> Result<(), LockError> {
    /// let guard = lock.lock_async().await?;
    /// tokio::select! {
    ///     reason = guard.lost_async() => eprintln!("no longer the owner: {reason}"),
    ///     () = write_report() => {}
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The future returns an owner or an error, however late it is polled. If the lock was acquired and lost meanwhile,
    /// the future fails with the reason or, after a loss of a session that [replaces
    /// itself](crate::SessionBuilder::replace_lost_sessions), joins the queue again and waits on.
    ///
    /// Dropping the [guard](LockGuard) does not block. Run its blocking methods, such as
    /// [`unlock`](LockGuard::unlock), on a thread that may block.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue without blocking, and releases the lock if it has just been acquired. So
    /// the future may be used in a `select!` or a timeout. Waiting again makes a new request, at the end of the queue.
    ///
    /// # What a future holds that nobody polls
    /// A future that was polled once keeps its place in the queue. When its turn comes, it holds the lock as a guard does.
    /// So poll the future or drop it. If a task keeps one such future while it awaits another one for the same lock, it
    /// waits for itself. [`max_hold`](crate::LockOptions::max_hold) limits how long such a future keeps others waiting.
    ///
    /// # Errors
    /// The same as [`lock`](BlockingWriteLock::lock).
    pub fn lock_async(&self) -> impl Future<Output = Result<LockGuard>> + Send + use<> {
        let lock = self.lock.clone();
        async move { lock.wait_async().await }
    }

    /// Acquires the lock if it is free; returns `None` if somebody holds it or waits for it.
    ///
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// # Errors
    /// The same as [`lock`](BlockingWriteLock::lock). If the session is lost during the call, or its replacement is not
    /// connected yet, the call fails even if the session replaces itself.
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.lock.try_lock()
    }

    /// Blocks until the lock is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit holds even if the network swallows every packet. So `None` may also mean that no server was
    /// reached: check [`Session::state`](crate::Session::state). The znode of a request that timed out is deleted in
    /// the background. A time of zero hardly ever suffices: use [`try_lock`](BlockingWriteLock::try_lock) instead.
    ///
    /// ```no_run
    /// use std::{thread, time::Duration};
    /// use zookeeper_recipes_lock::{BlockingWriteLock, CancelToken, ErrorReason, LockError, Session, Wait};
    ///
    /// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// let lock = BlockingWriteLock::new(&session, "/locks/report")?;
    /// let shutdown = CancelToken::new();
    /// thread::scope(|scope| {
    ///     let wait = Wait::forever().cancelled_by(&shutdown);
    ///     let waiter = scope.spawn(|| lock.try_lock_for(wait).map(drop));
    ///     shutdown.cancel();
    ///     // There is no error if the lock was acquired first.
    ///     if let Err(error) = waiter.join().unwrap() {
    ///         assert_eq!(error.reason(), ErrorReason::Cancelled);
    ///     }
    /// });
    /// # Ok::<(), LockError>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`lock`](BlockingWriteLock::lock), [`Refused`](crate::ErrorReason::Refused) if servers refused the
    /// request until the deadline, and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<LockGuard>> {
        self.lock.try_lock_for(&wait.into())
    }

    /// Acquires the lock, runs an operation, and releases the lock.
    ///
    /// The lock is released even if the operation panics.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn rebuild_index() -> u32 { 1 }
    /// let lock = BlockingWriteLock::new(&session, "/locks/index")?;
    /// let entries = lock.with_lock(|_guard| rebuild_index())?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// - Before the operation, the same as [`lock`](BlockingWriteLock::lock).
    /// - After the operation, an error means that the lock was lost while the operation ran. The operation's result is
    ///   dropped. To keep the result, use `lock` instead.
    ///
    /// If [`operation`](crate::LockError::operation) is `unlock`, the operation has run. **So do not repeat the call
    /// after every error** unless the operation may run twice.
    pub fn with_lock<T>(&self, operation: impl FnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.lock()?;
        let result = operation(&guard);
        finish(result, guard.unlock())
    }

    /// Closes the lock.
    ///
    /// Threads that wait for it, and all later calls, fail with [`Closed`](crate::ErrorReason::Closed). Existing guards
    /// stay valid, and the session stays open. Idempotent.
    pub fn close(&self) {
        self.lock.support().close();
    }

    /// The core of the current session.
    pub(crate) fn core(&self) -> Arc<Core> {
        self.lock.session().core()
    }

    /// Fails in a forked child, where the session has ended.
    pub(crate) fn check_process(&self, operation: Operation) -> Result<()> {
        self.lock.session().check_process(operation, self.lock.path())
    }

    /// Returns the lock's directory.
    ///
    /// A [`LockDirectory`](crate::queue::LockDirectory) on this path shows who holds the lock.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.lock.path().as_str()
    }

    /// Returns the session on which the lock makes its requests.
    pub fn session(&self) -> &Session {
        self.lock.session()
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
    use crate::error::ErrorReason;

    use std::time::Duration;

    use crate::client::{Acl, Permissions};
    use crate::error::ZkError;
    use crate::fake::{Effect, SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::tests::begin;

    fn new_lock(server: &SimulatedZooKeeper) -> (Arc<SimulatedClient>, BlockingWriteLock) {
        begin();
        let client = server.connect(Duration::from_secs(30));
        let session = client.open_session().unwrap();
        (client, BlockingWriteLock::new(&session, "/lock").unwrap())
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
        assert!(matches!(result, Err(ref error) if error.reason() == ErrorReason::NodeDeleted), "{result:?}");
    }
}
