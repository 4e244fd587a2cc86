//! [`ListeningLock`]: what all locks have in common that join the queue and return, whatever they ask for.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{LockError, Operation, Result};
use crate::lock_order::{self, rank::LOCK};
use crate::locks::lock_listener::{ListenerSlot, LockListener};
use crate::locks::locking;
use crate::protocol_support::{ProtocolSupport, check_data};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Observer, QueuePosition, Request};
use crate::session::{OnNewSession, Session};

/// A lock with a listener, which has one request in the queue at a time. Dropped, it is closed.
pub(crate) struct ListeningLock {
    inner: Arc<LockInner>,
}

/// A lock's place in the queue, shared with a session that is_replaced itself.
struct LockInner {
    support: ProtocolSupport,
    dir: ZNodePath,
    access: Access,
    data: Mutex<Arc<[u8]>>,
    listener: Arc<ListenerSlot>,
    /// The request in the queue; an ended one stays here until the next call.
    current: lock_order::Mutex<LOCK, Option<Arc<Request>>>,
}

impl LockInner {
    /// The request in the queue, or a new one, started; `None` when the lock was closed meanwhile.
    fn current_or_new(&self) -> Option<Arc<Request>> {
        self.renew(|current| current.is_none_or(Request::has_ended))?;
        self.current.lock().clone()
    }

    /// Makes a new request, and starts it, where the current one is such that this is wanted; `None` when the lock is
    /// closed.
    fn renew(&self, is_wanted: impl FnOnce(Option<&Request>) -> bool) -> Option<()> {
        let (request, _ended) = {
            let mut current = self.current.lock();
            if self.support.is_closed() {
                return None;
            }
            if !is_wanted(current.as_deref()) {
                return Some(());
            }
            let spec = locking::spec(&self.dir, &self.support, Arc::clone(&self.data.lock()), self.access);
            let observer = Arc::<ListenerSlot>::clone(&self.listener);
            let request = Request::new(self.support.session(), spec, observer);
            // That one is dropped outside the lock: it may be the last handle of a client.
            let ended = current.replace(Arc::clone(&request));
            (request, ended)
        };
        // Outside the lock: on a worker, the request begins on this thread.
        self.start(&request);
        Some(())
    }

    /// Starts a request. If its session was lost before, and replaced before this could be seen, it is made again here: nobody
    /// else will.
    fn start(&self, request: &Arc<Request>) {
        request.start();
        if !Arc::ptr_eq(request.core(), &self.support.session().core()) {
            self.new_session();
        }
    }
}

impl OnNewSession for LockInner {
    fn new_session(&self) {
        self.renew(|current| current.is_some_and(Request::waited_for_a_lost_session));
    }
}

impl ListeningLock {
    pub(crate) fn new(
        support: ProtocolSupport,
        dir: ZNodePath,
        access: Access,
        data: Arc<[u8]>,
        listener: Option<Arc<dyn LockListener>>,
    ) -> ListeningLock {
        let is_replaced = support.session().replacement().is_some();
        let inner = Arc::new(LockInner {
            support,
            dir,
            access,
            data: Mutex::new(data),
            listener: Arc::new(ListenerSlot::new(listener, is_replaced)),
            current: lock_order::Mutex::new(None),
        });
        if let Some(replacement) = inner.support.session().replacement() {
            let rejoining: Arc<dyn OnNewSession> = Arc::<LockInner>::clone(&inner);
            replacement.register(Arc::downgrade(&rejoining));
        }
        ListeningLock { inner }
    }

    /// Joins the queue, unless this lock stands there already, and returns whether it is the owner now.
    pub(crate) fn lock(&self) -> Result<bool> {
        if self.is_closed() {
            return Ok(false);
        }
        let is_replaced = self.session().replacement().is_some_and(|replacement| !replacement.is_closed());
        if !is_replaced {
            self.session().core().check_open(Operation::LOCK, &self.inner.dir)?;
        }
        let Some(request) = self.inner.current_or_new() else { return Ok(false) };
        let placed = request.wait_until_placed();
        match placed {
            // It joins again by itself.
            Err(error) if is_replaced && error.is_session_lost() => Ok(false),
            placed => Ok(placed? == Some(QueuePosition::Owner) && request.is_owner()),
        }
    }

    /// Releases the lock, or leaves the queue. Without a request it does nothing. Fails when the
    /// lock was taken away; a place in the queue may be lost in silence, as it is given up here.
    pub(crate) fn unlock(&self) -> Result<()> {
        let Some(request) = self.inner.current.lock().take() else { return Ok(()) };
        let owned = request.is_owner();
        let released = locking::release(&request);
        if request.was_taken_away() {
            return Err(request.end_error(Operation::UNLOCK));
        }
        match released {
            Err(LockError::RequestDeleted { .. }) if !owned => Ok(()),
            released => released,
        }
    }

    pub(crate) fn is_owner(&self) -> bool {
        self.inner.current.lock().as_ref().is_some_and(|request| request.is_owner())
    }

    /// The full path of the znode of the request in the queue, if there is one.
    pub(crate) fn id(&self) -> Option<String> {
        let current = self.inner.current.lock();
        let request = current.as_ref().filter(|request| !request.has_ended())?;
        request.znode().map(|znode| znode.to_string())
    }

    pub(crate) fn fencing_token(&self) -> Result<i64> {
        let current = self.inner.current.lock().clone();
        match current.filter(|request| !request.has_ended()) {
            Some(request) => request.fencing_token(),
            None => {
                Err(LockError::NotOwner { operation: Operation::FENCE.name, path: self.dir().to_owned() })
            }
        }
    }

    /// Closes the lock: releases it or leaves the queue, without waiting for the server, and never joins again.
    pub(crate) fn close(&self) {
        self.inner.support.close();
        let current = self.inner.current.lock().take();
        if let Some(request) = current {
            request.withdraw(None);
        }
        self.inner.listener.deliver();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner.support.is_closed()
    }

    pub(crate) fn dir(&self) -> &str {
        self.inner.dir.as_str()
    }

    pub(crate) fn session(&self) -> &Session {
        self.inner.support.session()
    }

    pub(crate) fn support(&self) -> &ProtocolSupport {
        &self.inner.support
    }

    pub(crate) fn listener(&self) -> Option<Arc<dyn LockListener>> {
        self.inner.listener.get()
    }

    pub(crate) fn set_listener(&self, listener: Arc<dyn LockListener>) {
        self.inner.listener.set(Some(listener));
    }

    pub(crate) fn set_data(&self, data: &[u8]) -> Result<()> {
        check_data(data)?;
        *self.inner.data.lock() = data.into();
        Ok(())
    }

    /// What a public lock around this one shows of it, under its own name.
    pub(crate) fn describe(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("dir", &self.inner.dir)
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

/// For the simulation, which waits in a way of its own.
#[cfg(test)]
impl ListeningLock {
    pub(crate) fn current(&self) -> &lock_order::Mutex<LOCK, Option<Arc<Request>>> {
        &self.inner.current
    }

    pub(crate) fn current_or_new(&self) -> Option<Arc<Request>> {
        self.inner.current_or_new()
    }

    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::<ListenerSlot>::clone(&self.inner.listener)
    }
}

impl Drop for ListeningLock {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use crate::fake::{SimOperation, SimulatedClient, SimulatedZooKeeper};
    use crate::recipe::naming_scheme::NamingScheme;
    use crate::testing::{deadline, eventually, next};

    const LONG: Duration = Duration::from_secs(30);

    /// A session, and a lock on it that asks for this access.
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
            let lock = ListeningLock::new(support, dir, access, locking::default_data(), None);
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

    const ACCESSES: [Access; 2] = [Access::Exclusive, Access::Read(NamingScheme::Recipe)];

    #[test]
    fn unlock_reports_a_loss_that_was_noticed_once() {
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
    fn unlock_reports_a_deletion_that_was_not_noticed() {
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
    fn unlock_of_what_was_never_owned_is_fine() {
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
    fn a_request_that_starts_when_its_session_has_been_healed_already_is_made_again() {
        let server = SimulatedZooKeeper::new();
        let (made, clients) = unbounded();
        let of_factory = server.clone();
        let session = Session::from_client_factory(move || {
            let client = of_factory.connect(LONG);
            let _ = made.send(Arc::clone(&client));
            Ok(client)
        });
        let session = session.unwrap();
        let dir = ZNodePath::parse("/locks/it").unwrap();
        let support = ProtocolSupport::new(&session);
        let lock = ListeningLock::new(support, dir, Access::Exclusive, locking::default_data(), None);
        let inner = &lock.inner;
        let spec = locking::spec(&inner.dir, &inner.support, locking::default_data(), inner.access);
        let request = Request::new(&session, spec, lock.observer());
        *inner.current.lock() = Some(Arc::clone(&request));
        let replaced = session.replacement().unwrap().next();
        next(&clients).expire();
        assert!(replaced.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
        inner.new_session();
        inner.start(&request);
        eventually("it joins again", || lock.is_owner());
    }

    #[test]
    fn a_lock_that_is_asked_for_between_two_sessions_is_acquired_on_the_next() {
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
        let lock = ListeningLock::new(support, dir, Access::Exclusive, locking::default_data(), None);
        next(&clients).expire();
        eventually("the loss is noticed", || session.core().end_reason().is_some());
        assert!(!lock.lock().unwrap());
        go.send(()).unwrap();
        eventually("it joins the queue", || lock.is_owner());
        session.close();
        assert!(lock.lock().unwrap_err().is_closed());
    }
}
