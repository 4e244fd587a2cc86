//! [`NamedLocks`]: exclusive locks, each looked up by the name of the resource that it guards.
//!
//! Origin: a `DistributedLock` with `lock(clientId, resource)`, published as an example of ZooKeeper's lock recipe.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::lock_order::{Mutex, rank::NAMED};
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::cohort_lock::{CohortLock, WeakCohortLock};
use crate::locks::cohort_options::CohortOptions;
use crate::locks::locking::exclusive;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::recipe::resource::escaped;
use crate::session::Session;

/// A family of exclusive locks, one for each resource name.
///
/// [`get`](NamedLocks::get) returns the lock of a resource, whose name may contain any characters.
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
///
/// # Directories
/// The directory of a lock is `<root>/<name>`, where the name is always a single znode: `reports/daily` becomes
/// `reports%2Fdaily`, as in a URL. Different names give different locks. These characters are escaped:
/// - `/` and `%`;
/// - what ZooKeeper forbids: control and private-use characters, characters from U+FFF0 on, and the names `.` and `..`;
/// - the last digit of a name that ends in a sequence number (ten digits, or a minus and nine), because a znode with
///   that name would look like a request for a lock on `<root>` itself.
pub struct NamedLocks {
    session: Session,
    root: ZNodePath,
    options: LockOptions,
    cohorts: Mutex<NAMED, Cohorts>,
}

/// The cohort locks in use, by directory.
#[derive(Default)]
struct Cohorts {
    locks: HashMap<ZNodePath, WeakCohortLock>,
    /// Once there are this many locks, those that are no longer in use are removed.
    limit: usize,
}

impl NamedLocks {
    /// Creates a family of locks below the znode `root`, with the default [`LockOptions`].
    ///
    /// Sends nothing to the servers. The first request creates the znode and the lock's directory if they are missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, root: &str) -> Result<NamedLocks> {
        NamedLocks::with_options(session, root, LockOptions::new())
    }

    /// Creates a family of locks like [`new`](NamedLocks::new), with other options for all locks.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(session: &Session, root: &str, options: LockOptions) -> Result<NamedLocks> {
        let root = session.lock_path(root)?;
        options.check()?;
        Ok(NamedLocks { session: session.clone(), root, options, cohorts: Mutex::default() })
    }

    /// Returns the lock of a resource.
    ///
    /// Sends nothing to the servers.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the name is empty, or the path would be longer than
    /// 4096 bytes.
    pub fn get(&self, resource: &str) -> Result<BlockingWriteLock> {
        let dir = self.path(resource)?;
        let support = ProtocolSupport::with_checked_options(&self.session, self.options.clone());
        let access = exclusive(&support);
        Ok(BlockingWriteLock::of(BlockingLock::new(Arc::new(support), dir, access)))
    }

    /// Returns the [cohort lock](CohortLock) of a resource.
    ///
    /// While a handle to the lock exists, every call returns another handle to the same lock, and ignores
    /// `options`. So keep a handle: the lock is closed when the last one is dropped. After a
    /// [`close`](CohortLock::close), the next call returns another lock. Sends nothing to the servers.
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
    /// The same as [`get`](NamedLocks::get) and, in a forked child,
    /// [`SessionLost`](crate::ErrorReason::SessionLost).
    pub fn cohort(&self, resource: &str, options: CohortOptions) -> Result<CohortLock> {
        let dir = self.path(resource)?;
        self.session.check_process(Operation::LOCK, &dir)?;
        // Declared before the mutex is locked, so it is dropped afterwards.
        let former;
        let mut cohorts = self.cohorts.lock();
        former = cohorts.locks.get(&dir).and_then(WeakCohortLock::upgrade);
        if let Some(lock) = former.as_ref().filter(|lock| !lock.is_closed()) {
            return Ok(lock.clone());
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

    /// Returns the directory of a resource's lock.
    ///
    /// Use this to create a lock of another kind on the same directory.
    ///
    /// # Errors
    /// The same as [`get`](NamedLocks::get).
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
        // The name is escaped, but the whole path may be too long.
        ZNodePath::parse(self.root.child(&escaped(resource)).as_str())
    }
}

impl fmt::Debug for NamedLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLocks").field("root", &self.root).finish_non_exhaustive()
    }
}
