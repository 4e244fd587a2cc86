//! [`CohortLock`]: an exclusive lock for threads that share one place in the distributed queue.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::cohort::{Cohort, Grant};
use crate::locks::cohort_guard::CohortGuard;
use crate::locks::cohort_options::CohortOptions;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// An exclusive lock that the threads of a process hand over in memory.
///
/// Use it when many threads of a process contend for a lock, or when one thread acquires it again and again.
/// All threads that use the lock share one place in the distributed queue. For a lock that is acquired only
/// now and then, use a [`BlockingWriteLock`](crate::BlockingWriteLock), which is free for others as soon as
/// it is released.
///
/// ```no_run
/// use std::{thread, time::Duration};
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::CohortLock;
///
/// # fn next_job() -> Option<u32> { None }
/// # fn book(_job: u32) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let lock = CohortLock::new(&session, "/locks/ledger")?;
/// thread::scope(|scope| {
///     for _ in 0..8 {
///         scope.spawn(|| -> Result<(), zookeeper_recipes_lock::LockError> {
///             while let Some(job) = next_job() {
///                 let guard = lock.lock()?;
///                 if guard.is_owner() {
///                     book(job);
///                 }
///             } // handed over, or kept for the next thread
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # How it works
/// When a thread releases the lock and another thread of the process waits, the lock is handed over in memory, without
/// a call to the servers. When no thread waits, the process keeps the lock for a moment, so that its next thread
/// acquires it immediately. When this process learns that another process requests the lock, it gives up an idle lock
/// immediately. A lock that a thread holds is then given up at a release: at the first release that finds no other
/// thread of the process waiting, and at the latest at the first release after a limited number of hand-overs or a
/// limited time. [`CohortOptions`] set the limits, which never interrupt a thread that holds the lock.
///
/// The lock excludes every other exclusive lock, reader and writer of this crate on the directory, in any process. For
/// other libraries, see [`NamingScheme`](crate::recipe::NamingScheme). Processes are served in the order in which they
/// joined the queue, and so are the threads within a process.
///
/// **A process that dies while it keeps an idle lock blocks others until its session times out.** With other locks, a
/// process that neither uses the lock nor waits for it blocks nobody when it dies. [`CohortOptions::keep_for`] limits
/// how long an idle lock is kept.
///
/// # Sharing between threads
/// Share one `CohortLock` by cloning it, or look it up with [`NamedLocks::cohort`](crate::locks::NamedLocks::cohort).
/// Locks that are created separately have separate places in the queue, even on one session, and wait for each other
/// like processes. The lock is not reentrant: a thread that locks again while it holds the lock waits for itself.
///
/// # Failures
/// - The connection is lost and restored in time: the holder remains the owner, and threads keep waiting.
/// - The lease or the [`max_hold`](crate::LockOptions::max_hold) ends, or another client deletes the holder's znode:
///   the holder finds the reason in [`loss`](CohortGuard::loss). If its call has not returned yet, the call fails with
///   the reason. Waiting threads join the queue again, at its end.
/// - Another client deletes the znode of a process that waits: all waiting threads get
///   [`NodeDeleted`](crate::ErrorReason::NodeDeleted).
/// - The session is lost: the holder finds the reason in [`loss`](CohortGuard::loss), and all waiting threads get
///   [`SessionLost`](crate::ErrorReason::SessionLost). On a session that
///   [replaces itself](crate::SessionBuilder::replace_lost_sessions), they join the queue again instead.
/// - An idle lock is lost, or its directory is deleted: the next thread acquires it anew, and creates the directory if
///   necessary.
///
/// Once all handles of the lock and all its guards are dropped, the request is deleted in the background.
#[derive(Clone)]
pub struct CohortLock {
    handle: Arc<LastHandle>,
}

/// Closes the lock when the last handle is dropped.
struct LastHandle {
    cohort: Arc<Cohort>,
}

impl CohortLock {
    /// Creates a lock on the directory `dir`, with default options.
    ///
    /// Sends nothing to the servers. The first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<CohortLock> {
        CohortLock::with_options(session, dir, LockOptions::new(), CohortOptions::new())
    }

    /// Creates a lock like [`new`](CohortLock::new), with other options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        options: LockOptions,
        cohort_options: CohortOptions,
    ) -> Result<CohortLock> {
        let dir = session.lock_path(dir)?;
        let support = ProtocolSupport::with_options(session, options)?;
        Ok(CohortLock::of(support, dir, cohort_options))
    }

    pub(crate) fn of(support: ProtocolSupport, dir: ZNodePath, options: CohortOptions) -> CohortLock {
        CohortLock { handle: Arc::new(LastHandle { cohort: Cohort::new(support, dir, options) }) }
    }

    /// Blocks until the lock is acquired.
    ///
    /// # Errors
    /// The same as [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock). If the request of the process fails,
    /// all waiting threads get the error.
    pub fn lock(&self) -> Result<CohortGuard> {
        let acquired = self.try_lock_for(Wait::forever())?;
        // Cannot be `None`: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, self.cohort().dir()))
    }

    /// Acquires the lock if it is free; returns `None` if somebody holds it or waits for it.
    ///
    /// It does not matter whether that holder or waiter is in this process or in another. An idle lock that this
    /// process keeps counts as free until the process learns that another one waits.
    ///
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost. Does not block if a thread of this process holds the lock or waits for it, or if the process keeps the
    /// lock and more than half of its [`max_hold`](LockOptions::max_hold), if any, is left.
    ///
    /// # Errors
    /// The same as [`lock`](CohortLock::lock). If the session is lost during the call, or its replacement is not
    /// connected yet, the call fails even if the session replaces itself.
    pub fn try_lock(&self) -> Result<Option<CohortGuard>> {
        Ok(self.guard(self.cohort().try_lock()?))
    }

    /// Blocks until the lock is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit holds even if the network swallows every packet. The process stays in the queue for as long as
    /// any of its threads is waiting.
    ///
    /// # Errors
    /// The same as [`lock`](CohortLock::lock), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<CohortGuard>> {
        Ok(self.guard(self.cohort().lock(&wait.into())?))
    }

    /// Closes the lock and all its clones.
    ///
    /// An idle lock that is kept is released. Threads that wait for the lock, and all later calls, fail with
    /// [`Closed`](crate::ErrorReason::Closed). Existing guards stay valid, and the session stays open. Idempotent.
    pub fn close(&self) {
        self.cohort().close();
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.cohort().dir().as_str()
    }

    /// Returns the session on which the lock makes its requests.
    pub fn session(&self) -> &Session {
        self.cohort().session()
    }

    pub(crate) fn downgrade(&self) -> WeakCohortLock {
        WeakCohortLock { handle: Arc::downgrade(&self.handle) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.cohort().is_closed()
    }

    pub(crate) fn cohort(&self) -> &Arc<Cohort> {
        &self.handle.cohort
    }

    fn guard(&self, grant: Option<Grant>) -> Option<CohortGuard> {
        grant.map(|grant| CohortGuard::new(self.cohort(), grant))
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.cohort.close();
    }
}

impl fmt::Debug for CohortLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = self.cohort().tally();
        f.debug_struct("CohortLock").field("dir", &self.dir()).field("tally", &tally).finish_non_exhaustive()
    }
}

/// A handle that does not keep the lock open.
pub(crate) struct WeakCohortLock {
    handle: Weak<LastHandle>,
}

impl WeakCohortLock {
    /// Returns a handle to the lock, unless the last one was dropped.
    pub(crate) fn upgrade(&self) -> Option<CohortLock> {
        self.handle.upgrade().map(|handle| CohortLock { handle })
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.handle.strong_count() > 0
    }
}
