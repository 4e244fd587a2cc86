//! [`WriteLock`]: the exclusive lock with a listener.
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

/// An exclusive lock that notifies a listener instead of blocking.
///
/// [`lock`](WriteLock::lock) joins the queue and returns. The [`LockListener`] is notified when the lock is acquired or
/// lost, and [`is_owner`](WriteLock::is_owner) tells at any time whether the lock is held. Only one lock at a
/// time owns a directory, across all processes, and ownership is granted first come, first served. So the
/// lock can also serve as a leader election. To block until the lock is acquired, use a
/// [`BlockingWriteLock`](crate::BlockingWriteLock).
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
///
/// A `WriteLock` has one request in the queue at a time. On the directory of a
/// [`ReadWriteLock`](crate::locks::ReadWriteLock) it counts as a writer. `WriteLock` is `Send` and `Sync`. Dropping it
/// closes the lock.
#[must_use = "the lock is closed at once when it is not kept"]
pub struct WriteLock {
    inner: Arc<LockInner>,
    /// `true` for the lock itself; `false` for the handle that is passed to a listener.
    closes_on_drop: bool,
}

/// The part of a lock that is shared with the handles passed to its listener.
pub(crate) struct LockInner {
    support: ProtocolSupport,
    dir: ZNodePath,
    listener: Arc<ListenerSlot>,
    process: Process,
    current: lock_order::Mutex<LOCK, Option<Current>>,
}

/// The request of a lock. A request that has ended is kept until the next call.
enum Current {
    Joined(Arc<LastingRequest>),
    /// The request was released, but its znode may still exist.
    Left(Arc<Request>),
}

impl Current {
    fn request(&self) -> Option<Arc<Request>> {
        match self {
            Current::Joined(joined) => joined.request(),
            Current::Left(request) => Some(Arc::clone(request)),
        }
    }

    /// Takes the request out, so that it is not made again on a later session.
    fn take(&self) -> Option<Arc<Request>> {
        match self {
            Current::Joined(joined) => joined.take(),
            Current::Left(request) => Some(Arc::clone(request)),
        }
    }
}

impl LockInner {
    /// Returns the request on the current session.
    fn request(&self) -> Option<Arc<Request>> {
        self.current.lock().as_ref().and_then(Current::request)
    }

    /// Joins the queue unless this lock is already in it. Returns the request, or `None` if the lock is closed.
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
        // Outside the mutex: `former` may hold the last handle to a client, and `start` calls the client.
        drop(former.map(|former| former.take()));
        joined.start();
        Some(joined)
    }

    /// Begins to leave the queue. The request is kept, so that a concurrent call does not report its znode as deleted.
    fn leave(&self) -> Option<Arc<Request>> {
        // Declared before the mutex is locked, so it is dropped afterwards.
        let former;
        let mut current = self.current.lock();
        former = current.take();
        let request = former.as_ref().and_then(Current::take)?;
        *current = Some(Current::Left(Arc::clone(&request)));
        Some(request)
    }

    /// Keeps a request that has left the queue for the next call, or forgets it.
    fn keep(&self, request: &Arc<Request>, keeps: bool) {
        let mut current = self.current.lock();
        match &*current {
            None if keeps && !self.support.is_closed() => *current = Some(Current::Left(Arc::clone(request))),
            Some(Current::Left(left)) if !keeps && Arc::ptr_eq(left, request) => *current = None,
            _ => {}
        }
    }
}

impl WriteLock {
    /// Creates a lock on the directory `dir`, with default options and no listener.
    ///
    /// Sends nothing to the servers. The first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid.
    pub fn new(session: &Session, dir: &str) -> Result<WriteLock> {
        WriteLock::build(session, dir, LockOptions::new(), None)
    }

    /// Creates a lock like [`new`](WriteLock::new), with a listener.
    ///
    /// # Errors
    /// The same as [`new`](WriteLock::new).
    pub fn with_listener(
        session: &Session,
        dir: &str,
        listener: impl LockListener + 'static,
    ) -> Result<WriteLock> {
        WriteLock::with_options(session, dir, LockOptions::new(), listener)
    }

    /// Creates a lock like [`new`](WriteLock::new), with other options and a listener.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the
    /// [`max_hold`](LockOptions::max_hold) is zero.
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
        let dir = session.lock_path(dir)?;
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

    /// Returns a handle to pass to the listener, or `None` if the lock was dropped.
    pub(crate) fn of_call(inner: &Weak<LockInner>) -> Option<WriteLock> {
        Some(WriteLock { inner: inner.upgrade()?, closes_on_drop: false })
    }

    /// Joins the queue, and returns whether the lock is already owned.
    ///
    /// Blocks until the request's place in the queue is known or, during an outage, until the retries are used up or
    /// the session is lost. The call does not wait for the request's turn: the listener reports the acquisition. If a
    /// session that [replaces itself](crate::SessionBuilder::replace_lost_sessions) is lost, the call returns `false`,
    /// and the request joins the queue on the next session.
    ///
    /// If this lock is already in the queue or owned, the call makes no second request and causes no second callback.
    /// After a loss, it makes a new request.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the request could not be created before the retries
    ///   were used up, and was withdrawn. If its znode exists nevertheless, it is deleted in the background.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost): the session has ended.
    /// - [`NodeDeleted`](crate::ErrorReason::NodeDeleted): another client deleted the znode during the call.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the
    ///   request.
    /// - [`Closed`](crate::ErrorReason::Closed): the lock or the session was closed.
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
        // If the lock is lost, but nobody has noticed yet, the request ends now.
        if let Some(lost) = self.inner.request().filter(|request| request.loss().is_some()) {
            lost.withdraw();
        }
        let joined = self.inner.join().ok_or_else(closed)?;
        // The place is `None` if the lock was closed, because that withdraws the request.
        match joined.wait_until_placed(&[])? {
            None if self.is_closed() => Err(closed()),
            Some(Place::Owner) => Ok(joined.request().is_some_and(|request| request.is_owner())),
            _ => Ok(false),
        }
    }

    /// Releases the lock, or leaves the queue.
    ///
    /// As soon as the call starts, this process no longer owns the lock, whatever the outcome. Without a request, the
    /// call does nothing. A request that never owned the lock leaves the queue without an error, even if its znode was
    /// already deleted.
    ///
    /// Blocks until the server has deleted the znode. During an outage the call returns [`Released::Pending`] instead,
    /// and so does every later call until the znode is deleted. If the session ends before that, the server deletes the
    /// znode at a time that this process does not learn, and later calls go on returning [`Released::Pending`]. Of
    /// several calls at the same time, at least one waits for the deletion, and the others may return
    /// [`Released::Pending`].
    ///
    /// # Errors
    /// - [`LeaseExpired`](crate::ErrorReason::LeaseExpired), [`NodeDeleted`](crate::ErrorReason::NodeDeleted),
    ///   [`HeldTooLong`](crate::ErrorReason::HeldTooLong), [`SessionLost`](crate::ErrorReason::SessionLost) or
    ///   [`Closed`](crate::ErrorReason::Closed): the lock was
    ///   already lost. The work under the lock may have overlapped with the next owner's work. The first
    ///   `unlock` after a loss reports it, unless [`lock`](WriteLock::lock) joined the queue again in
    ///   between.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the
    ///   deletion: the lock is released, but its znode still blocks others. The deletion is retried in the background
    ///   until it succeeds or the session ends.
    pub fn unlock(&self) -> Result<Released> {
        self.session().check_process(Operation::UNLOCK, &self.inner.dir)?;
        let Some(request) = self.inner.leave() else { return Ok(Released::Deleted) };
        let owned = request.is_owner();
        let released = locking::release(&request);
        let is_lost = request.was_taken_away();
        self.inner.keep(&request, !is_lost && request.may_leave_its_znode());
        if is_lost {
            return Err(request.end_error(Operation::UNLOCK));
        }
        match released {
            Err(error) if !owned && error.reason() == ErrorReason::NodeDeleted => Ok(Released::Deleted),
            released => released,
        }
    }

    /// Returns whether this lock is provably held at this moment.
    ///
    /// Check this before each action that only the owner may take. Does no I/O and does not block.
    ///
    /// The result becomes `false` at the end of the lease, even if the loss of contact has not been noticed yet, and
    /// stays `false` until the lock is acquired again. It is always `false` in a forked child of the holder.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        // The process is checked before the mutex is taken: in a forked child, the thread that holds the mutex may not
        // exist.
        self.inner.process.is_current() && self.inner.request().is_some_and(|request| request.holds_lease())
    }

    /// Returns the full path of the request's znode, or `None` if no request is in the queue.
    #[must_use]
    pub fn id(&self) -> Option<String> {
        if !self.inner.process.is_current() {
            return None;
        }
        let request = self.inner.request().filter(|request| !request.has_ended())?;
        request.znode().map(|znode| znode.to_string())
    }

    /// Returns the fencing token of the request in the queue.
    ///
    /// See [`LockGuard::fencing_token`](crate::LockGuard::fencing_token). Having a token does not mean that
    /// the request owns the lock.
    ///
    /// # Errors
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): there is no request, or its znode is not known yet or no longer
    ///   exists.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), [`SessionLost`](crate::ErrorReason::SessionLost),
    ///   [`Closed`](crate::ErrorReason::Closed), [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss),
    ///   [`Refused`](crate::ErrorReason::Refused).
    pub fn fencing_token(&self) -> Result<i64> {
        self.session().check_process(Operation::FENCE, &self.inner.dir)?;
        match self.inner.request().filter(|request| !request.has_ended()) {
            Some(request) => request.fencing_token(),
            None => {
                let error = LockError::of(ErrorReason::NotOwner, Operation::FENCE, self.dir());
                Err(self.session().core().classify(error))
            }
        }
    }

    /// Closes the lock.
    ///
    /// Releases the lock or leaves the queue, without waiting for the server. Later calls of [`lock`](WriteLock::lock)
    /// fail with [`Closed`](crate::ErrorReason::Closed). The session stays open. Idempotent.
    pub fn close(&self) {
        // In a forked child the request belongs to the parent, and a mutex may stay held forever.
        if !self.inner.process.is_current() {
            return;
        }
        self.inner.support.close();
        let current = self.inner.current.lock().take();
        if let Some(request) = current.and_then(|current| current.take()) {
            request.withdraw();
            // Another thread may be about to report the end of the request. Its event is delivered below.
            request.await_report();
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

    /// Returns the listener, if there is one. In a forked child, there is none.
    #[must_use]
    pub fn lock_listener(&self) -> Option<Arc<dyn LockListener>> {
        if self.inner.process.is_current() { self.inner.listener.get() } else { None }
    }

    /// Replaces the listener.
    ///
    /// The new listener receives all events that the old one has not received yet. So its first event may be a release.
    /// In a forked child, the call drops the new listener.
    pub fn set_lock_listener(&self, listener: impl LockListener + 'static) {
        // In a forked child the lock belongs to the parent, and a mutex may stay held forever.
        if self.inner.process.is_current() {
            self.inner.listener.set(Arc::new(listener));
        }
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

/// Access to the parts, for tests.
#[cfg(test)]
impl WriteLock {
    pub(crate) fn request(&self) -> Option<Arc<Request>> {
        self.inner.request()
    }

    /// Returns whether the lock has joined the queue and has not released its request since.
    pub(crate) fn has_joined(&self) -> bool {
        matches!(&*self.inner.current.lock(), Some(Current::Joined(_)))
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
