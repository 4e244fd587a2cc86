//! [`WriteLock`]: the exclusive lock with a listener. Also a leader election.
//!
//! Origin: the Java class of this name.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::Result;
use crate::lock_options::LockOptions;
use crate::locks::listening_lock::ListeningLock;
use crate::locks::lock_listener::LockListener;
use crate::locks::locking::exclusive;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::session::Session;

/// An exclusive lock, or a leader election: of all who [`lock`](ListeningLock::lock) one directory,
/// in any process, one at a time is the owner, first come, first served.
///
/// `lock` joins the queue and returns. A [`LockListener`] is notified when the lock is acquired or
/// lost, and [`is_owner`](ListeningLock::is_owner) can be asked at any time. To block until the
/// lock is acquired, use a [`BlockingWriteLock`](crate::BlockingWriteLock).
///
/// It derefs to [`ListeningLock`], which has the methods. `Send` and `Sync`; dropping it closes it.
/// [`ReadWriteLock::write_lock`](crate::ReadWriteLock::write_lock) makes one for a queue with
/// readers.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{ListeningLock, LockListener, LossReason, Session, WriteLock};
///
/// struct Announce;
///
/// impl LockListener for Announce {
///     fn lock_acquired(&self) {
///         println!("leading");
///     }
///     fn lock_released(&self) {
///         println!("stepped down");
///     }
///     fn lock_lost(&self, election: &ListeningLock, reason: LossReason) {
///         println!("no longer leading: {reason}");
///         if let Err(error) = election.lock() {
///             println!("not standing again: {error}");
///         }
///     }
/// }
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let election = WriteLock::with_listener(&session, "/election", Announce)?;
/// election.lock()?;
/// if election.is_owner() {
///     // Do what only the leader may do.
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "the lock is closed at once when it is not kept"]
#[derive(Debug)]
pub struct WriteLock {
    lock: ListeningLock,
}

impl WriteLock {
    /// Makes a lock on a directory with the default [`LockOptions`] and without a listener. Sends
    /// nothing: the first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidPath`](crate::LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str) -> Result<WriteLock> {
        WriteLock::build(session, dir, LockOptions::new(), None)
    }

    /// As [`new`](WriteLock::new), with a listener.
    ///
    /// # Errors
    /// As [`new`](WriteLock::new).
    pub fn with_listener(
        session: &Session,
        dir: &str,
        listener: impl LockListener + 'static,
    ) -> Result<WriteLock> {
        WriteLock::with_options(session, dir, LockOptions::new(), listener)
    }

    /// As [`new`](WriteLock::new), with other options and a listener.
    ///
    /// # Errors
    /// As [`new`](WriteLock::new), and [`InvalidArgument`](crate::LockError::InvalidArgument) for
    /// more than about 1 MiB of data or a [`max_hold`](LockOptions::max_hold) of zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        options: LockOptions,
        listener: impl LockListener + 'static,
    ) -> Result<WriteLock> {
        WriteLock::build(session, dir, options, Some(Arc::new(listener)))
    }

    fn build(
        session: &Session,
        dir: &str,
        options: LockOptions,
        listener: Option<Arc<dyn LockListener>>,
    ) -> Result<WriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = ProtocolSupport::with_options(session, options)?;
        let access = exclusive(&support);
        Ok(WriteLock::around(ListeningLock::new(support, dir, access, listener)))
    }

    pub(crate) fn around(lock: ListeningLock) -> WriteLock {
        WriteLock { lock }
    }
}

impl Deref for WriteLock {
    type Target = ListeningLock;

    fn deref(&self) -> &ListeningLock {
        &self.lock
    }
}
