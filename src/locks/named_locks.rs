//! [`NamedLocks`]: exclusive locks by the names of what they guard.
//!
//! Origin: a `DistributedLock` with `lock(clientId, resource)`, published as an example of ZooKeeper's lock recipe.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{LockError, Result};
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::default_data;
use crate::protocol_support::{ProtocolSupport, check_data};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::recipe::resource::escaped;
use crate::session::Session;
use crate::wait::Wait;

/// Exclusive locks by the names of what they guard, whatever characters those contain.
///
/// The lock of a resource is the directory `<root>/<name>`, one znode whatever the name: `reports/daily` becomes
/// `reports%2Fdaily`, as in a URL. Escaped are `/`, `%` and what ZooKeeper forbids (control and private-use characters,
/// those beyond U+FFFF, the names `.` and `..`); names that differ in anything make different locks.
///
/// `Send` and `Sync`. Not reentrant, as a [`BlockingWriteLock`] is not.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{NamedLocks, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let locks = NamedLocks::new(&session, "/app/locks")?.with_client_id(b"worker-7")?;
/// let guard = locks.lock("reports/daily")?;
/// if let Some(other) = locks.try_lock("customers/4711")? {
///     other.unlock()?;
/// }
/// drop(guard);
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct NamedLocks {
    support: Arc<ProtocolSupport>,
    root: ZNodePath,
    client_id: Arc<[u8]>,
}

impl NamedLocks {
    /// Makes the locks below a znode, which is created with its parents when a lock is first asked for. Sends nothing.
    ///
    /// Created znodes are open to everybody unless an ACL is [set](ProtocolSupport::set_acl) on the
    /// [`protocol_support`](NamedLocks::protocol_support).
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](LockError::InvalidPath).
    pub fn new(session: &Session, root: &str) -> Result<NamedLocks> {
        let root = ZNodePath::parse(root)?;
        Ok(NamedLocks { support: Arc::new(ProtocolSupport::new(session)), root, client_id: default_data() })
    }

    /// Sets the data of the requests' znodes, which tells others who holds a lock and who waits; `host/pid` by default.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn with_client_id(self, client_id: &[u8]) -> Result<NamedLocks> {
        check_data(client_id)?;
        Ok(NamedLocks { client_id: client_id.into(), ..self })
    }

    /// Blocks until the lock of the resource is acquired.
    ///
    /// # Errors
    /// As [`BlockingWriteLock::lock`]; [`InvalidArgument`](LockError::InvalidArgument) for a resource without a name, and
    /// [`InvalidPath`](LockError::InvalidPath) for one whose path would be longer than 4096 bytes.
    pub fn lock(&self, resource: &str) -> Result<LockGuard> {
        self.get(resource)?.lock()
    }

    /// Acquires the lock of the resource if nobody holds it or waits for it, and returns `None` otherwise. Blocks for the
    /// server's answers only.
    ///
    /// # Errors
    /// As [`lock`](NamedLocks::lock).
    pub fn try_lock(&self, resource: &str) -> Result<Option<LockGuard>> {
        self.get(resource)?.try_lock()
    }

    /// Blocks until the lock of the resource is acquired, or for `timeout`, and then returns `None`.
    ///
    /// # Errors
    /// As [`lock`](NamedLocks::lock).
    pub fn try_lock_for(&self, resource: &str, timeout: Duration) -> Result<Option<LockGuard>> {
        self.try_lock_with(resource, &Wait::timeout(timeout))
    }

    /// Blocks until the lock of the resource is acquired, or until `deadline`, and then returns `None`.
    ///
    /// # Errors
    /// As [`lock`](NamedLocks::lock).
    pub fn try_lock_until(&self, resource: &str, deadline: Instant) -> Result<Option<LockGuard>> {
        self.try_lock_with(resource, &Wait::until(deadline))
    }

    /// Blocks until the lock of the resource is acquired, or until the wait ends, and then returns `None`; another
    /// thread may cut the waiting short.
    ///
    /// # Errors
    /// As [`lock`](NamedLocks::lock), and [`Cancelled`](LockError::Cancelled).
    pub fn try_lock_with(&self, resource: &str, wait: &Wait) -> Result<Option<LockGuard>> {
        self.get(resource)?.try_lock_with(wait)
    }

    /// Returns the lock of the resource, to be kept. It shares the ACL and the retries with the others. Sends nothing.
    ///
    /// # Errors
    /// [`InvalidArgument`](LockError::InvalidArgument) and [`InvalidPath`](LockError::InvalidPath), as
    /// [`lock`](NamedLocks::lock).
    pub fn write_lock(&self, resource: &str) -> Result<BlockingWriteLock> {
        self.get(resource).map(BlockingWriteLock::of)
    }

    /// Returns the directory of the resource's lock, for a lock of any other kind on it.
    ///
    /// # Errors
    /// As [`write_lock`](NamedLocks::write_lock).
    pub fn dir(&self, resource: &str) -> Result<String> {
        self.path(resource).map(|path| path.to_string())
    }

    fn path(&self, resource: &str) -> Result<ZNodePath> {
        if resource.is_empty() {
            let rule = "the name of a resource must not be empty".to_owned();
            return Err(LockError::InvalidArgument { argument: "resource", rule });
        }
        // What the name alone would break is escaped; the whole may still be too long.
        ZNodePath::parse(self.root.child(&escaped(resource)).as_str())
    }

    fn get(&self, resource: &str) -> Result<BlockingLock> {
        let lock = BlockingLock::new(Arc::clone(&self.support), self.path(resource)?, Access::Exclusive);
        lock.set_data(&self.client_id)?;
        Ok(lock)
    }

    /// Returns the znode below which the locks are.
    #[must_use]
    pub fn root(&self) -> &str {
        self.root.as_str()
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.support.session()
    }

    /// Returns what the locks stand on: the session, the ACL, the retries.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        &self.support
    }
}

impl fmt::Debug for NamedLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedLocks").field("root", &self.root).finish_non_exhaustive()
    }
}
