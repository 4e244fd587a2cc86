//! [`WriteLock`]: the exclusive lock, asynchronous, with a listener. Also a leader election.
//!
//! Origin: the Java class of this name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Acl;

use crate::error::Result;
use crate::locks::listening_lock::ListeningLock;
use crate::locks::lock_listener::LockListener;
use crate::locks::locking;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::session::Session;

/// An exclusive lock, or a leader election: of all who call [`lock`](WriteLock::lock) on one directory, in any process,
/// one at a time is the owner, in the order in which they came.
///
/// One that [`ReadWriteLock::write_lock`](crate::ReadWriteLock::write_lock) has made stands in a queue with readers.
///
/// `lock` joins the queue and returns; the lock may be acquired then or later. A [`LockListener`] is told, and
/// [`is_owner`](WriteLock::is_owner) can be asked at any time. To block until the lock is there, use
/// [`BlockingWriteLock`](crate::BlockingWriteLock).
///
/// One `WriteLock` has one request in the queue at a time. It is `Send` and `Sync`; dropping it closes it.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{LockListener, LossReason, Session, WriteLock};
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
///     fn lock_lost(&self, reason: LossReason) {
///         println!("no longer leading: {reason}");
///     }
/// }
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let election = WriteLock::with_listener(&session, "/election", None, Announce)?;
/// election.lock()?;
/// if election.is_owner() {
///     // Do what only the leader may do.
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct WriteLock {
    lock: ListeningLock,
}

impl WriteLock {
    /// Makes a lock on a directory, which is created with its parents when the lock is first asked for. Sends nothing.
    ///
    /// `acl` is for every znode created; `None` lets anybody do anything.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](crate::LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str, acl: Option<Vec<Acl>>) -> Result<WriteLock> {
        WriteLock::build(session, dir, acl, None)
    }

    /// Makes a lock with a listener.
    ///
    /// # Errors
    /// As [`new`](WriteLock::new).
    pub fn with_listener(
        session: &Session,
        dir: &str,
        acl: Option<Vec<Acl>>,
        listener: impl LockListener + 'static,
    ) -> Result<WriteLock> {
        WriteLock::build(session, dir, acl, Some(Arc::new(listener)))
    }

    fn build(
        session: &Session,
        dir: &str,
        acl: Option<Vec<Acl>>,
        listener: Option<Arc<dyn LockListener>>,
    ) -> Result<WriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = ProtocolSupport::with_acl(session, acl);
        let data = locking::default_data();
        Ok(WriteLock::around(ListeningLock::new(support, dir, Access::Exclusive, data, listener)))
    }

    pub(crate) fn around(lock: ListeningLock) -> WriteLock {
        WriteLock { lock }
    }

    /// Joins the queue, unless this lock stands there already, and returns whether it is the owner now.
    ///
    /// Blocks until the server has said where the request stands (during an outage: through all retries), not until its
    /// turn comes: the listener tells that. A second call while the request waits or owns is the same request: no second znode and no second callback. After a
    /// loss it is a new one. On a [closed](WriteLock::close) lock it is `Ok(false)`.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the request could not be made, as often as the retries
    ///   allow. It is withdrawn; its znode, should it exist, is deleted in the background.
    /// - [`SessionLost`](crate::LockError::SessionLost), [`Closed`](crate::LockError::Closed) for a closed session.
    /// - [`RequestDeleted`](crate::LockError::RequestDeleted): another client deleted the znode meanwhile.
    /// - [`AccessDenied`](crate::LockError::AccessDenied), or another refusal of the server.
    pub fn lock(&self) -> Result<bool> {
        self.lock.lock()
    }

    /// Releases the lock, or leaves the queue. Without a request it does nothing.
    ///
    /// From the moment of the call this process is no longer the owner, whatever the outcome. Blocks until the server
    /// has deleted the znode.
    ///
    /// A request that never owned the lock leaves the queue without an error, also when its znode
    /// is gone already or it was [dropped](LockListener::request_dropped) from the queue.
    ///
    /// # Errors
    /// - [`SessionLost`](crate::LockError::SessionLost),
    ///   [`RequestDeleted`](crate::LockError::RequestDeleted) or
    ///   [`Closed`](crate::LockError::Closed): the lock was owned, and taken away before this call,
    ///   so what was done under it may have overlapped with the next owner. Reported once, by the
    ///   first `unlock` after it, unless [`lock`](WriteLock::lock) has joined the queue again in between.
    /// - [`DeletePending`](crate::LockError::DeletePending): contact was lost; the deletion goes on in the background.
    /// - [`AccessDenied`](crate::LockError::AccessDenied) or another refusal of the server:
    ///   released, but the znode blocks others. The deletion is tried again in the background until
    ///   it works or the session ends.
    pub fn unlock(&self) -> Result<()> {
        self.lock.unlock()
    }

    /// Returns whether this lock is held, and provably so until now.
    ///
    /// Does no I/O and waits for nothing: ask it before every action that only the owner may take. It turns `false` when
    /// the lease ends, even before anybody has noticed that contact was lost, and then stays `false` until the lock is
    /// acquired anew.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.lock.is_owner()
    }

    /// Returns the full path of the znode of the request in the queue, if there is one.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        self.lock.id()
    }

    /// Returns a number that grows with every later owner, as [`LockGuard::fencing_token`](crate::LockGuard::fencing_token)
    /// does, for the request in the queue: it tells nothing of whether that owns the lock.
    ///
    /// # Errors
    /// [`NotOwner`](crate::LockError::NotOwner) without a request, or when its znode is gone;
    /// [`SessionLost`](crate::LockError::SessionLost); [`ConnectionLoss`](crate::LockError::ConnectionLoss).
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

    /// Sets the data of the znodes of later requests, which tells others who waits; `host/pid` by default.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn set_data(&self, data: &[u8]) -> Result<()> {
        self.lock.set_data(data)
    }

    /// Closes the lock: releases it or leaves the queue, and never joins again. Idempotent; the session stays open.
    ///
    /// Does not wait for the server: the znode is deleted in the background. Afterwards [`lock`](WriteLock::lock) is
    /// `Ok(false)`, [`unlock`](WriteLock::unlock) is `Ok`, [`is_owner`](WriteLock::is_owner) is `false` and
    /// [`id`](WriteLock::id) is `None`.
    pub fn close(&self) {
        self.lock.close();
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

    /// Returns the ACL that created znodes get.
    #[must_use]
    pub fn acl(&self) -> Vec<Acl> {
        self.protocol_support().acl()
    }

    /// Sets the ACL that znodes of later requests get.
    pub fn set_acl(&self, acl: Vec<Acl>) {
        self.protocol_support().set_acl(acl);
    }

    /// Returns the unit of the delay between two attempts.
    #[must_use]
    pub fn retry_delay(&self) -> Duration {
        self.protocol_support().retry_delay()
    }

    /// Sets the unit of the delay between two attempts, for later requests.
    pub fn set_retry_delay(&self, delay: Duration) {
        self.protocol_support().set_retry_delay(delay);
    }

    /// Returns whether the lock was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.protocol_support().is_closed()
    }
}

impl fmt::Debug for WriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.describe("WriteLock", f)
    }
}
