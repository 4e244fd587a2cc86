//! [`CohortLock`]: an exclusive lock whose place in the queue the threads of a process share.

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

/// An exclusive lock for many threads of one process, at the speed of memory.
///
/// All threads that share it, through clones or by reference, have one place in the distributed
/// queue. When a thread releases the lock and another thread of the process waits, the lock is
/// handed over in memory, without a call to the servers. When nobody waits, the process keeps the
/// lock for a moment, and its next thread acquires it at once. As soon as another process asks for
/// the lock, the process gives it up: at once if it is idle, and otherwise after a bounded number
/// of threads. [`CohortOptions`] set the bounds.
///
/// It excludes all holders of the directory's lock, in any process, whatever library or kind of
/// lock they use. It is served first come, first served: the processes by the servers, and the
/// threads of one process by the lock.
///
/// # When to use it
/// - When many threads of a process contend for a lock, or one thread acquires it again and again.
///   For locks that are acquired now and then, use a
///   [`BlockingWriteLock`](crate::BlockingWriteLock): it is released the moment it is free.
/// - **A process that dies while it keeps an idle lock holds others up for a session timeout.** A
///   process that dies while it holds a lock does so with every kind of lock, but here the process
///   need not use it. [`CohortOptions::keep_for`] limits that.
///
/// Share one `CohortLock` by cloning it, or find it by
/// [`NamedLocks::cohort`](crate::locks::NamedLocks::cohort). Two that are made separately have a place
/// each, even on one session, and wait for each other as processes do. A `CohortLock` is not
/// reentrant: a thread that locks again while it holds the lock waits for itself.
///
/// # What happens on failures
/// | event | holder | threads that wait |
/// |---|---|---|
/// | connection cut, back in time | remains the owner | wait on |
/// | the lease or [`max_hold`](crate::LockOptions::max_hold) ends, or another client deletes the znode | [`loss`](CohortGuard::loss) has the reason | join the queue again, at its end |
/// | another client deletes the znode of the process in the queue | | [`RequestDeleted`](crate::ErrorReason::RequestDeleted), all of them |
/// | the session is lost | [`loss`](CohortGuard::loss) has the reason | [`SessionLost`](crate::ErrorReason::SessionLost), all of them; on a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions) they join the queue again |
/// | the directory is deleted while the lock is kept | | the next thread creates it again |
///
/// An idle lock that is lost is acquired anew by the next thread. The last handle, of the lock and
/// of its guards, leaves nothing behind.
///
/// `Send` and `Sync`.
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
///             } // handed over, or kept for the next
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[derive(Clone)]
pub struct CohortLock {
    handle: Arc<LastHandle>,
}

/// Ends the keeping of the lock when it is dropped.
struct LastHandle {
    cohort: Arc<Cohort>,
}

impl CohortLock {
    /// Makes a lock on a directory with the default [`LockOptions`] and [`CohortOptions`]. Sends
    /// nothing: the first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn new(session: &Session, dir: &str) -> Result<CohortLock> {
        CohortLock::with_options(session, dir, LockOptions::new(), CohortOptions::new())
    }

    /// As [`new`](CohortLock::new), with other options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument)
    /// for more than about 1 MiB of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        options: LockOptions,
        cohort_options: CohortOptions,
    ) -> Result<CohortLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = ProtocolSupport::with_options(session, options)?;
        Ok(CohortLock::of(support, dir, cohort_options))
    }

    pub(crate) fn of(support: ProtocolSupport, dir: ZNodePath, options: CohortOptions) -> CohortLock {
        CohortLock { handle: Arc::new(LastHandle { cohort: Cohort::new(support, dir, options) }) }
    }

    /// Blocks until the lock is acquired.
    ///
    /// # Errors
    /// As [`BlockingWriteLock::lock`](crate::BlockingWriteLock::lock). An error of the process's
    /// request is returned to all threads that wait.
    pub fn lock(&self) -> Result<CohortGuard> {
        let acquired = self.try_lock_for(Wait::forever())?;
        // Proof: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, self.cohort().dir()))
    }

    /// Acquires the lock if it is free, and returns `None` if somebody holds it or waits for it, in
    /// this process or another. Blocks only for the server's answers, and not at all if the process
    /// has the lock.
    ///
    /// # Errors
    /// As [`lock`](CohortLock::lock).
    pub fn try_lock(&self) -> Result<Option<CohortGuard>> {
        Ok(self.guard(self.cohort().try_lock()?))
    }

    /// Blocks until the lock is acquired, or until the wait times out: then it returns `None`.
    ///
    /// The time holds even if the network swallows every packet. The process stays in the queue as
    /// long as one of its threads waits.
    ///
    /// # Errors
    /// As [`lock`](CohortLock::lock), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<CohortGuard>> {
        Ok(self.guard(self.cohort().lock(&wait.into())?))
    }

    /// Closes the lock, for all clones: a kept lock is released, threads that wait for it fail with
    /// [`Closed`](crate::ErrorReason::Closed), and so does every later call. Guards and the session stay.
    /// Idempotent.
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

    pub(crate) fn cohort(&self) -> &Arc<Cohort> {
        &self.handle.cohort
    }

    fn guard(&self, grant: Option<Grant>) -> Option<CohortGuard> {
        grant.map(|grant| CohortGuard::new(self.cohort(), grant))
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        if self.cohort.is_of_this_process() {
            self.cohort.close();
        }
    }
}

impl fmt::Debug for CohortLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = self.cohort().tally();
        f.debug_struct("CohortLock").field("dir", &self.dir()).field("tally", &tally).finish_non_exhaustive()
    }
}

/// Finds a lock as long as it is in use.
pub(crate) struct WeakCohortLock {
    handle: Weak<LastHandle>,
}

impl WeakCohortLock {
    pub(crate) fn upgrade(&self) -> Option<CohortLock> {
        self.handle.upgrade().map(|handle| CohortLock { handle })
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.handle.strong_count() > 0
    }
}
