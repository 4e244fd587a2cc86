//! [`ListeningLock`]: what [`WriteLock`](crate::WriteLock) and [`ReadLock`](crate::ReadLock) share.

use std::fmt;
use std::sync::{Arc, Weak};

use crate::error::{LockError, Operation, Result};
use crate::lock_order::{self, rank::LOCK};
use crate::locks::lock_listener::{ListenerSlot, LockListener};
use crate::locks::locking::{self, Released};
use crate::process::Process;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{LastingRequest, Observer, Place, Request};
use crate::session::Session;

/// A lock that joins the queue without blocking, and notifies a [`LockListener`].
///
/// It has one request in the queue at a time. `Send` and `Sync`; dropping it closes it.
pub struct ListeningLock {
    inner: Arc<LockInner>,
    /// This is the lock itself, and not the one that a listener gets for a call.
    closes_on_drop: bool,
}

/// The part of a lock that its listener may use in a call.
pub(crate) struct LockInner {
    support: ProtocolSupport,
    dir: ZNodePath,
    access: Access,
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
            let spec = locking::spec(&self.dir, &self.support, self.access);
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

impl ListeningLock {
    pub(crate) fn new(
        support: ProtocolSupport,
        dir: ZNodePath,
        access: Access,
        listener: Option<Arc<dyn LockListener>>,
    ) -> ListeningLock {
        let inner = Arc::new_cyclic(|inner| LockInner {
            process: support.session().core().process(),
            listener: Arc::new(ListenerSlot::new(Weak::clone(inner), listener, support.session())),
            support,
            dir,
            access,
            current: lock_order::Mutex::new(None),
        });
        ListeningLock { inner, closes_on_drop: true }
    }

    /// The lock for a call of its listener; `None` if it was dropped.
    pub(crate) fn of_call(inner: &Weak<LockInner>) -> Option<ListeningLock> {
        Some(ListeningLock { inner: inner.upgrade()?, closes_on_drop: false })
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
    /// - [`ConnectionLoss`](LockError::ConnectionLoss): the request could not be created within the
    ///   retries. It is withdrawn; a znode that may exist is deleted in the background.
    /// - [`SessionLost`](LockError::SessionLost); [`Closed`](LockError::Closed) for a closed lock
    ///   or session.
    /// - [`RequestDeleted`](LockError::RequestDeleted): another client deleted the znode meanwhile.
    /// - [`AccessDenied`](LockError::AccessDenied), or another refusal of the server.
    pub fn lock(&self) -> Result<bool> {
        self.session().check_process(Operation::LOCK, &self.inner.dir)?;
        let closed = || LockError::closed(Operation::LOCK, &self.inner.dir);
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
    /// - [`SessionLost`](LockError::SessionLost), [`RequestDeleted`](LockError::RequestDeleted),
    ///   [`HeldTooLong`](LockError::HeldTooLong) or [`Closed`](LockError::Closed): the lock was lost before, so the work under it may have
    ///   overlapped with the next owner's. The first `unlock` after a loss reports it, unless
    ///   [`lock`](ListeningLock::lock) joined the queue again in between.
    /// - [`AccessDenied`](LockError::AccessDenied) or another refusal of the server: the lock is
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
            Err(LockError::RequestDeleted { .. }) if !owned => Ok(Released::Deleted),
            released => released,
        }
    }

    /// Returns whether this lock is held, proven up to now. A read lock may be held beside others.
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
    /// [`NotOwner`](LockError::NotOwner) without a request, or if its znode does not exist any
    /// more; [`SessionLost`](LockError::SessionLost);
    /// [`ConnectionLoss`](LockError::ConnectionLoss).
    pub fn fencing_token(&self) -> Result<i64> {
        self.session().check_process(Operation::FENCE, &self.inner.dir)?;
        match self.inner.request().filter(|request| !request.has_ended()) {
            Some(request) => request.fencing_token(),
            None => {
                Err(LockError::NotOwner { operation: Operation::FENCE.name, path: self.dir().to_owned() })
            }
        }
    }

    /// Closes the lock: releases it or leaves the queue, without waiting for the server. Later
    /// calls of [`lock`](ListeningLock::lock) fail with [`Closed`](LockError::Closed). Idempotent;
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

impl fmt::Debug for ListeningLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListeningLock")
            .field("dir", &self.inner.dir)
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// For the simulation.
#[cfg(test)]
impl ListeningLock {
    pub(crate) fn request(&self) -> Option<Arc<Request>> {
        self.inner.request()
    }

    pub(crate) fn observer(&self) -> &Arc<ListenerSlot> {
        &self.inner.listener
    }
}

impl Drop for ListeningLock {
    fn drop(&mut self) {
        if self.closes_on_drop {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use crate::client::{Acl, Permissions};
    use crate::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::recipe::naming_scheme::NamingScheme;
    use crate::tests::{deadline, eventually, in_background, next, open_on_manual_runtime};
    use crate::{LockEvent, LossReason};

    const LONG: Duration = Duration::from_secs(30);

    /// A client, and a lock on its session.
    struct Fixture {
        server: SimulatedZooKeeper,
        client: Arc<SimulatedClient>,
        lock: ListeningLock,
    }

    impl Fixture {
        fn new(access: Access) -> Fixture {
            let server = SimulatedZooKeeper::new();
            server.create("/locks/it", b"");
            let client = server.connect(LONG);
            let session = Session::from_client(client.clone()).unwrap();
            let dir = ZNodePath::parse("/locks/it").unwrap();
            let support = ProtocolSupport::new(&session);
            let lock = ListeningLock::new(support, dir, access, None);
            Fixture { server, client, lock }
        }

        fn owning(access: Access) -> Fixture {
            let fixture = Fixture::new(access);
            assert!(fixture.lock.lock().unwrap());
            fixture
        }

        fn waiting(access: Access) -> Fixture {
            let fixture = Fixture::new(access);
            fixture.server.create_sequential("/locks/it", "x-other-lock-", None);
            assert!(!fixture.lock.lock().unwrap());
            fixture
        }

        fn delete_znode(&self) {
            self.server.delete(&self.lock.id().unwrap());
        }

        fn await_end(&self) {
            eventually("the end of the request is noticed", || self.lock.id().is_none());
        }
    }

    const EXCLUSIVE: Access = Access::Exclusive(NamingScheme::Recipe);
    const ACCESSES: [Access; 2] = [EXCLUSIVE, Access::Read(NamingScheme::Recipe)];

    #[test]
    fn unlock_reports_a_noticed_loss_once() {
        for access in ACCESSES {
            let fixture = Fixture::owning(access);
            fixture.delete_znode();
            fixture.await_end();
            let error = fixture.lock.unlock().unwrap_err();
            assert!(matches!(error, LockError::RequestDeleted { .. }), "{error}");
            fixture.lock.unlock().unwrap();

            let fixture = Fixture::owning(access);
            fixture.client.expire();
            fixture.await_end();
            assert!(fixture.lock.unlock().unwrap_err().is_session_lost());
            fixture.lock.unlock().unwrap();

            let fixture = Fixture::owning(access);
            fixture.lock.session().close();
            assert!(fixture.lock.unlock().unwrap_err().is_closed());
        }
    }

    #[test]
    fn unlock_is_pending_until_the_znode_is_deleted() {
        for access in ACCESSES {
            let fixture = Fixture::owning(access);
            fixture.client.disconnect();
            for _ in 0..3 {
                assert_eq!(fixture.lock.unlock().unwrap(), Released::Pending);
                assert!(!fixture.lock.is_owner() && fixture.lock.id().is_none());
            }
            fixture.client.reconnect();
            eventually("the znode is deleted", || fixture.lock.unlock().unwrap() == Released::Deleted);
            assert!(fixture.server.children("/locks/it").is_empty());

            let fixture = Fixture::owning(access);
            let acl = [Acl::new(Permissions::READ | Permissions::CREATE, "world", "anyone")];
            fixture.server.set_acl("/locks/it", &acl);
            assert!(fixture.lock.unlock().unwrap_err().is_access_denied());
            assert_eq!(fixture.lock.unlock().unwrap(), Released::Pending);
            // It can be locked again meanwhile.
            fixture.lock.lock().unwrap();
        }
    }

    #[test]
    fn unlock_reports_an_unnoticed_deletion() {
        for access in ACCESSES {
            let fixture = Fixture::owning(access);
            let server = fixture.server.clone();
            let znode = fixture.lock.id().unwrap();
            fixture.client.before_next(SimOperation::Delete, move || server.delete(&znode));
            let error = fixture.lock.unlock().unwrap_err();
            assert!(matches!(error, LockError::RequestDeleted { .. }), "{error}");
        }
    }

    #[test]
    fn unlock_without_ownership_succeeds() {
        for access in ACCESSES {
            Fixture::new(access).lock.unlock().unwrap();
            Fixture::waiting(access).lock.unlock().unwrap();

            let deleted = Fixture::waiting(access);
            let (server, znode) = (deleted.server.clone(), deleted.lock.id().unwrap());
            deleted.client.before_next(SimOperation::Delete, move || server.delete(&znode));
            deleted.lock.unlock().unwrap();

            let dropped = Fixture::waiting(access);
            dropped.client.expire();
            dropped.await_end();
            dropped.lock.unlock().unwrap();

            let closed = Fixture::owning(access);
            closed.lock.close();
            closed.lock.unlock().unwrap();
        }
    }

    #[test]
    fn lock_that_is_unlocked_meanwhile_is_not_owned() {
        let server = SimulatedZooKeeper::new();
        let (client, _runtime, session) = open_on_manual_runtime(&server, LONG);
        let dir = ZNodePath::parse("/locks/it").unwrap();
        let lock = ListeningLock::new(ProtocolSupport::new(&session), dir, EXCLUSIVE, None);
        let lock = Arc::new(lock);
        let at_step = Arc::clone(&lock);
        // The request begins within the call that makes it.
        client.before_next(SimOperation::Create, move || {
            at_step.unlock().unwrap();
        });
        assert!(!lock.lock().unwrap());
        assert!(lock.lock().unwrap(), "it may lock again");
    }

    #[test]
    fn request_that_waits_for_a_session_is_dropped_when_none_follows() {
        let server = SimulatedZooKeeper::new();
        server.create_sequential("/locks/it", "x-ahead-lock-", None);
        let (made, clients) = unbounded();
        let (go, may_go) = unbounded();
        let of_factory = server.clone();
        go.send(()).unwrap();
        let session = Session::from_client_factory(move || {
            may_go.recv().map_err(LockError::other)?;
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        });
        let session = session.unwrap();
        let dir = ZNodePath::parse("/locks/it").unwrap();
        let (events, received) = unbounded::<LockEvent>();
        let support = ProtocolSupport::new(&session);
        let lock = ListeningLock::new(support, dir, EXCLUSIVE, Some(Arc::new(events)));
        assert!(!lock.lock().unwrap());
        next(&clients).expire();
        eventually("the loss is noticed", || {
            lock.request().is_some_and(|request| request.was_dropped_with_its_session())
        });
        let closed = in_background(move || session.close());
        assert_eq!(next(&received), LockEvent::Dropped(LossReason::SessionClosed));
        drop(go);
        next(&closed);
        drop(lock);
        assert_eq!(received.try_iter().count(), 0, "once");
    }

    #[test]
    fn lock_requested_between_two_sessions_is_acquired_on_the_next() {
        let server = SimulatedZooKeeper::new();
        let (made, clients) = unbounded();
        let (go, may_go) = unbounded();
        let of_factory = server.clone();
        go.send(()).unwrap();
        let session = Session::from_client_factory(move || {
            let _ = may_go.recv_timeout(deadline());
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        });
        let session = session.unwrap();
        let dir = ZNodePath::parse("/locks/it").unwrap();
        let support = ProtocolSupport::new(&session);
        let lock = ListeningLock::new(support, dir, EXCLUSIVE, None);
        next(&clients).expire();
        eventually("the loss is noticed", || session.core().snapshot().end_reason.is_some());
        assert!(!lock.lock().unwrap());
        go.send(()).unwrap();
        eventually("it joins the queue", || lock.is_owner());
        session.close();
        assert!(lock.lock().unwrap_err().is_closed());
    }
}
