//! [`NamedLocks`]: exclusive locks by the names of the resources that they guard.
//!
//! Origin: a `DistributedLock` with `lock(clientId, resource)`, published as an example of
//! ZooKeeper's lock recipe.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::cohort_lock::{CohortLock, WeakCohortLock};
use crate::locks::cohort_options::CohortOptions;
use crate::locks::locking::exclusive;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::recipe::resource::escaped;
use crate::session::Session;

/// Exclusive locks by the names of the resources that they guard, with any characters.
///
/// The lock of a resource is the directory `<root>/<name>`, always one znode: `reports/daily`
/// becomes `reports%2Fdaily`, as in a URL. Escaped are `/`, `%` and what ZooKeeper forbids (control
/// and private-use characters, those beyond U+FFFF, the names `.` and `..`), and the last digit of a
/// name that ends in ten digits, which would look like a request for a lock on `<root>` itself.
/// Different names make different locks.
///
/// `Send` and `Sync`.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::NamedLocks;
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let locks = NamedLocks::new(&session, "/app/locks")?;
/// let guard = locks.get("reports/daily")?.lock()?;
/// if let Some(other) = locks.get("customers/4711")?.try_lock()? {
///     other.unlock()?;
/// }
/// drop(guard);
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct NamedLocks {
    session: Session,
    root: ZNodePath,
    options: LockOptions,
    cohorts: Mutex<Cohorts>,
}

/// The cohort locks that are in use, by their directories.
#[derive(Default)]
struct Cohorts {
    locks: HashMap<ZNodePath, WeakCohortLock>,
    /// The number of locks from which on those that are not in use any more are removed.
    limit: usize,
}

impl NamedLocks {
    /// Makes the locks below a znode with the default [`LockOptions`]. Sends nothing: the first
    /// request creates the znode and the lock's directory if they are missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    pub fn new(session: &Session, root: &str) -> Result<NamedLocks> {
        NamedLocks::with_options(session, root, LockOptions::new())
    }

    /// As [`new`](NamedLocks::new), with other options for all locks.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument)
    /// for more than about 1 MiB of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(session: &Session, root: &str, options: LockOptions) -> Result<NamedLocks> {
        let root = ZNodePath::parse(root)?;
        options.check()?;
        Ok(NamedLocks { session: session.clone(), root, options, cohorts: Mutex::default() })
    }

    /// Returns the lock of a resource. Sends nothing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for an empty name, and
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) if the path would be longer than 4096 bytes.
    pub fn get(&self, resource: &str) -> Result<BlockingWriteLock> {
        let dir = self.path(resource)?;
        let support = ProtocolSupport::with_checked_options(&self.session, self.options.clone());
        let access = exclusive(&support);
        Ok(BlockingWriteLock::of(BlockingLock::new(Arc::new(support), dir, access)))
    }

    /// Returns the lock of a resource for the threads of this process, which share one place in its
    /// queue. As long as a handle lives, every call returns another one to the same lock; the options
    /// are those of the first call. Sends nothing.
    ///
    /// Keep the handle: with the last one, the lock closes, and is kept no longer.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// # use zookeeper_recipes_lock::locks::{CohortOptions, NamedLocks};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// let locks = NamedLocks::new(&session, "/app/locks")?;
    /// let options = CohortOptions::new().keep_for(Duration::from_secs(1));
    /// let lock = locks.cohort("reports/daily", options)?;
    /// let guard = lock.lock()?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](NamedLocks::get).
    pub fn cohort(&self, resource: &str, options: CohortOptions) -> Result<CohortLock> {
        let dir = self.path(resource)?;
        self.session.check_process(Operation::LOCK, &dir)?;
        let mut cohorts = self.cohorts.lock();
        if let Some(lock) = cohorts.locks.get(&dir).and_then(WeakCohortLock::upgrade) {
            return Ok(lock);
        }
        if cohorts.locks.len() >= cohorts.limit {
            cohorts.locks.retain(|_, lock| lock.is_in_use());
            cohorts.limit = 2 * cohorts.locks.len().max(8);
        }
        let support = ProtocolSupport::with_checked_options(&self.session, self.options.clone());
        let lock = CohortLock::of(support, dir.clone(), options);
        cohorts.locks.insert(dir, lock.downgrade());
        Ok(lock)
    }

    /// Returns the directory of a resource's lock, for a lock of another kind on it.
    ///
    /// # Errors
    /// As [`get`](NamedLocks::get).
    pub fn dir(&self, resource: &str) -> Result<String> {
        self.path(resource).map(|path| path.to_string())
    }

    #[cfg(test)]
    pub(crate) fn cohorts_remembered(&self) -> usize {
        self.cohorts.lock().locks.len()
    }

    fn path(&self, resource: &str) -> Result<ZNodePath> {
        if resource.is_empty() {
            let rule = "the name of a resource must not be empty";
            return Err(LockError::invalid_argument("resource", rule));
        }
        // The name is escaped, but the whole path may still be too long.
        ZNodePath::parse(self.root.child(&escaped(resource)).as_str())
    }
}

impl fmt::Debug for NamedLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLocks").field("root", &self.root).finish_non_exhaustive()
    }
}
