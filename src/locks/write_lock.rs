//! [`WriteLock`]: the exclusive lock with a listener. Also a leader election.
//!
//! Origin: the Java class of this name.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::lock_order::{self, rank::LOCK};
use crate::locks::lock_listener::{ListenerSlot, LockListener};
use crate::locks::locking::{self, Released};
use crate::process::Process;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::path::ZNodePath;
use crate::request::{LastingRequest, Observer, Place, Request};
use crate::session::Session;

/// An exclusive lock, or a leader election: of all who [`lock`](WriteLock::lock) one directory, in
/// any process, one at a time is the owner, first come, first served.
///
/// `lock` joins the queue and returns. A [`LockListener`] is notified when the lock is acquired or
/// lost, and [`is_owner`](WriteLock::is_owner) can be asked at any time. To block until the lock is
/// acquired, use a [`BlockingWriteLock`](crate::BlockingWriteLock).
///
/// It has one request in the queue at a time. On the directory of a
/// [`ReadWriteLock`](crate::locks::ReadWriteLock) it counts as a writer. `Send` and `Sync`; dropping it
/// closes it.
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
///     fn lock_lost(&self, election: &WriteLock, reason: LossReason) {
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
pub struct WriteLock {
    inner: Arc<LockInner>,
    /// This is the lock itself, and not the one that a listener gets for a call.
    closes_on_drop: bool,
}

/// The part of a lock that its listener may use in a call.
pub(crate) struct LockInner {
    support: ProtocolSupport,
    dir: ZNodePath,
    listener: Arc<ListenerSlot>,
    process: Process,
    current: lock_order::Mutex<LOCK, Option<Current>>,
}

/// The request of a lock. One that is over stays until the next call.
enum Current {
    Joined(Arc<LastingRequest>),
    /// It was released, and its znode may still exist.
    Left(Arc<Request>),
}

impl Current {
    fn request(&self) -> Option<Arc<Request>> {
        match self {
            Current::Joined(joined) => joined.request(),
            Current::Left(request) => Some(Arc::clone(request)),
        }
    }

    /// Takes the request out, which is not made again then.
    fn take(self) -> Option<Arc<Request>> {
        match self {
            Current::Joined(joined) => joined.take(),
            Current::Left(request) => Some(request),
        }
    }
}

impl LockInner {
    /// The request of the present session.
    fn request(&self) -> Option<Arc<Request>> {
        self.current.lock().as_ref().and_then(Current::request)
    }

    /// Joins the queue unless this lock is in it. Returns the request; `None` if the lock is closed.
    fn join(&self) -> Option<Arc<LastingRequest>> {
        let (joined, former) = {
            let mut current = self.current.lock();
            if self.support.is_closed() {
                return None;
            }
            if let Some(Current::Joined(joined)) = &*current {
                if !joined.is_over() {
                    return Some(Arc::clone(joined));
                }
            }
            let observer = Arc::<ListenerSlot>::clone(&self.listener);
            let access = locking::exclusive(&self.support);
            let spec = locking::spec(&self.dir, &self.support, access);
            let joined = LastingRequest::new(self.support.session(), spec, true, observer);
            let former = current.replace(Current::Joined(Arc::clone(&joined)));
            (joined, former)
        };
        // Outside the mutex: it may be the last handle of a client, and on a worker the request begins on this
        // thread.
        drop(former.map(Current::take));
        joined.start();
        Some(joined)
    }
}

impl WriteLock {
    /// Makes a lock on a directory with the default [`LockOptions`] and without a listener. Sends
    /// nothing: the first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
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
    /// As [`new`](WriteLock::new), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for
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
        let inner = Arc::new_cyclic(|inner| LockInner {
            process: support.session().core().process(),
            listener: Arc::new(ListenerSlot::new(Weak::clone(inner), listener, support.session())),
            support,
            dir,
            current: lock_order::Mutex::new(None),
        });
        Ok(WriteLock { inner, closes_on_drop: true })
    }

    /// The lock for a call of its listener; `None` if it was dropped.
    pub(crate) fn of_call(inner: &Weak<LockInner>) -> Option<WriteLock> {
        Some(WriteLock { inner: inner.upgrade()?, closes_on_drop: false })
    }

    /// Joins the queue, unless this lock is in it already, and returns whether the lock is owned
    /// now.
    ///
    /// Blocks until the server has answered where the request stands, through all retries during an
    /// outage. It does not wait for the request's turn: the listener reports that. A second call
    /// while the request waits or owns makes no second request and no second callback. After a loss
    /// it makes a new one.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the request could not be created within the
    ///   retries. It is withdrawn; a znode that may exist is deleted in the background.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost); [`Closed`](crate::ErrorReason::Closed) for a closed lock
    ///   or session.
    /// - [`RequestDeleted`](crate::ErrorReason::RequestDeleted): another client deleted the znode meanwhile.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another refusal of the server.
    pub fn lock(&self) -> Result<bool> {
        self.session().check_process(Operation::LOCK, &self.inner.dir)?;
        let closed = || LockError::of(ErrorReason::Closed, Operation::LOCK, &self.inner.dir);
        if self.is_closed() {
            return Err(closed());
        }
        let is_replaced = self.session().replacement().is_some_and(|replacement| !replacement.is_closed());
        if !is_replaced {
            self.session().core().check_open(Operation::LOCK, &self.inner.dir)?;
        }
        let joined = self.inner.join().ok_or_else(closed)?;
        // A close withdraws the request.
        match joined.wait_until_placed(&[])? {
            None if self.is_closed() => Err(closed()),
            Some(Place::Owner) => Ok(joined.request().is_some_and(|request| request.is_owner())),
            _ => Ok(false),
        }
    }

    /// Releases the lock, or leaves the queue. Does nothing without a request.
    ///
    /// From the call on this process is not the owner, whatever the outcome. Blocks until the
    /// server has deleted the znode; during an outage it returns [`Released::Pending`], and so does
    /// every later call until the znode is deleted. A request that never owned the lock leaves the queue without an error, even if its znode was deleted
    /// before.
    ///
    /// # Errors
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`RequestDeleted`](crate::ErrorReason::RequestDeleted),
    ///   [`HeldTooLong`](crate::ErrorReason::HeldTooLong) or [`Closed`](crate::ErrorReason::Closed): the lock was lost before, so the work under it may have
    ///   overlapped with the next owner's. The first `unlock` after a loss reports it, unless
    ///   [`lock`](WriteLock::lock) joined the queue again in between.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied) or another refusal of the server: the lock is
    ///   released, but its znode blocks others. The deletion is repeated in the background until it
    ///   succeeds or the session ends.
    pub fn unlock(&self) -> Result<Released> {
        self.session().check_process(Operation::UNLOCK, &self.inner.dir)?;
        let current = self.inner.current.lock().take();
        let Some(request) = current.and_then(Current::take) else { return Ok(Released::Deleted) };
        let owned = request.is_owner();
        let released = locking::release(&request);
        if request.was_taken_away() {
            return Err(request.end_error(Operation::UNLOCK));
        }
        if request.may_leave_its_znode() {
            // The next call is not to report it as deleted.
            let mut current = self.inner.current.lock();
            if current.is_none() {
                *current = Some(Current::Left(Arc::clone(&request)));
            }
        }
        match released {
            Err(error) if !owned && error.reason() == ErrorReason::RequestDeleted => Ok(Released::Deleted),
            released => released,
        }
    }

    /// Returns whether this lock is held, proven up to now.
    ///
    /// Does no I/O and does not block. Ask it before each action that only the owner may take.
    /// Always `false` in a forked child of the holder. It becomes `false` at the end of the lease, even
    /// before the loss of contact was noticed, and stays `false` until the lock is acquired again.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        // The process before the mutex, whose holder may not exist in a forked child.
        self.inner.process.is_current() && self.inner.request().is_some_and(|request| request.holds_lease())
    }

    /// Returns the full path of the request's znode; `None` without a request in the queue.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        if !self.inner.process.is_current() {
            return None;
        }
        let request = self.inner.request().filter(|request| !request.has_ended())?;
        request.znode().map(|znode| znode.to_string())
    }

    /// Returns the fencing token of the request in the queue, as
    /// [`LockGuard::fencing_token`](crate::LockGuard::fencing_token). It does not show whether the
    /// request owns the lock.
    ///
    /// # Errors
    /// [`NotOwner`](crate::ErrorReason::NotOwner) without a request, or if its znode does not exist any
    /// more; [`SessionLost`](crate::ErrorReason::SessionLost);
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss).
    pub fn fencing_token(&self) -> Result<i64> {
        self.session().check_process(Operation::FENCE, &self.inner.dir)?;
        match self.inner.request().filter(|request| !request.has_ended()) {
            Some(request) => request.fencing_token(),
            None => Err(LockError::of(ErrorReason::NotOwner, Operation::FENCE, self.dir())),
        }
    }

    /// Closes the lock: releases it or leaves the queue, without waiting for the server. Later
    /// calls of [`lock`](WriteLock::lock) fail with [`Closed`](crate::ErrorReason::Closed). Idempotent;
    /// the session stays open.
    pub fn close(&self) {
        // In a forked child the request is the parent's, and a mutex may stay held for ever.
        if !self.inner.process.is_current() {
            return;
        }
        self.inner.support.close();
        let current = self.inner.current.lock().take();
        if let Some(request) = current.and_then(Current::take) {
            request.withdraw();
        }
        self.inner.listener.deliver();
    }

    /// Returns whether the lock was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.support.is_closed()
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.inner.dir.as_str()
    }

    /// Returns the session on which the lock makes its requests.
    pub fn session(&self) -> &Session {
        self.inner.support.session()
    }

    /// Returns the listener.
    #[must_use]
    pub fn lock_listener(&self) -> Option<Arc<dyn LockListener>> {
        self.inner.listener.get()
    }

    /// Replaces the listener. The new one receives all events that the former one has not yet
    /// received: perhaps a release without the acquisition before it.
    pub fn set_lock_listener(&self, listener: impl LockListener + 'static) {
        self.inner.listener.set(Arc::new(listener));
    }
}

impl fmt::Debug for WriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLock")
            .field("dir", &self.inner.dir)
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// For the simulation.
#[cfg(test)]
impl WriteLock {
    pub(crate) fn request(&self) -> Option<Arc<Request>> {
        self.inner.request()
    }

    pub(crate) fn observer(&self) -> &Arc<ListenerSlot> {
        &self.inner.listener
    }
}

impl Drop for WriteLock {
    fn drop(&mut self) {
        if self.closes_on_drop {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests;
