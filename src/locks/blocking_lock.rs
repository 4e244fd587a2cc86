//! [`BlockingLock`]: what all locks have in common that block until they are acquired, whatever they ask for.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use crate::error::{LockError, Operation, Result};
use crate::locks::guard_signals::{GuardSignals, WaitObserver};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking;
use crate::protocol_support::{ProtocolSupport, check_data};
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, Event, QueuePosition, Request};
use crate::session::Session;
use crate::wait::{Wait, Waited};

/// A lock for scoped code. Each call is a request of its own.
#[derive(Debug)]
pub(crate) struct BlockingLock {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    access: Access,
    data: Mutex<Arc<[u8]>>,
}

impl BlockingLock {
    pub(crate) fn new(support: Arc<ProtocolSupport>, dir: ZNodePath, access: Access) -> BlockingLock {
        BlockingLock { support, dir, access, data: Mutex::new(locking::default_data()) }
    }

    pub(crate) fn lock(&self) -> Result<LockGuard> {
        match self.try_lock_with(&Wait::forever())? {
            Some(guard) => Ok(guard),
            // Proof: without a deadline there is none to come.
            None => Err(LockError::Closed { operation: Operation::LOCK.name, path: self.dir.to_string() }),
        }
    }

    pub(crate) fn try_lock(&self) -> Result<Option<LockGuard>> {
        self.try_once(&GuardSignals::of(1))
    }

    /// Takes the lock if it is free. What befalls it later is told on channels that several locks may share.
    pub(crate) fn try_once(&self, signals: &Arc<GuardSignals>) -> Result<Option<LockGuard>> {
        let attempt = self.start(signals)?;
        match attempt.claim.wait_until_placed()? {
            Some(QueuePosition::Owner) => attempt.into_guard().map(Some),
            _ => {
                // Waited for, so that the next attempt, for reading perhaps, is not refused because of this one. A deletion
                // that fails goes on in the background.
                let _ = locking::release(&attempt.claim);
                Ok(None)
            }
        }
    }

    pub(crate) fn try_lock_with(&self, wait: &Wait) -> Result<Option<LockGuard>> {
        over_losses(self.session(), &self.dir, wait, || self.wait(wait, &GuardSignals::of(1)))
    }

    /// Waits for the lock, but not over the loss of the session, nor over that of another lock that is told on the same
    /// channels. What befalls it later is told there too.
    pub(crate) fn wait(&self, wait: &Wait, signals: &Arc<GuardSignals>) -> Result<Option<LockGuard>> {
        if wait.is_cancelled() {
            return Err(cancelled(&self.dir));
        }
        let attempt = self.start(signals)?;
        match wait.wait_for_or(&attempt.events, &signals.broken()) {
            Waited::Received(Event::Acquired) => attempt.into_guard().map(Some),
            // It is this lock itself that was lost, as soon as it was acquired.
            Waited::Disconnected if attempt.events.try_recv() == Ok(Event::Acquired) => {
                attempt.into_guard().map(Some)
            }
            Waited::Received(_) | Waited::Disconnected => Err(attempt.claim.end_error(Operation::LOCK)),
            // A grant that comes at this very moment is released again by the drop of the attempt.
            Waited::TimedOut => Ok(None),
            Waited::Cancelled => Err(cancelled(&self.dir)),
        }
    }

    fn start(&self, signals: &Arc<GuardSignals>) -> Result<Attempt> {
        self.support.check_open(Operation::LOCK.name, &self.dir)?;
        self.session().core().check_open(Operation::LOCK, &self.dir)?;
        let (observer, events) = WaitObserver::new(signals);
        let spec = locking::spec(&self.dir, &self.support, self.data(), self.access);
        let request = Request::new(self.session(), spec, observer);
        request.start();
        let (session, signals) = (self.session().clone(), Arc::clone(signals));
        Ok(Attempt { session, claim: Claim::on(request), events, signals })
    }

    pub(crate) fn path(&self) -> &ZNodePath {
        &self.dir
    }

    pub(crate) fn dir(&self) -> &str {
        self.dir.as_str()
    }

    pub(crate) fn session(&self) -> &Session {
        self.support.session()
    }

    pub(crate) fn support(&self) -> &ProtocolSupport {
        &self.support
    }

    pub(crate) fn data(&self) -> Arc<[u8]> {
        Arc::clone(&self.data.lock())
    }

    pub(crate) fn set_data(&self, data: &[u8]) -> Result<()> {
        check_data(data)?;
        *self.data.lock() = data.into();
        Ok(())
    }
}

/// Makes an attempt at a lock, and on a session that heals itself, another one after each loss of it.
pub(crate) fn over_losses<T>(
    session: &Session,
    dir: &ZNodePath,
    wait: &Wait,
    attempt: impl Fn() -> Result<Option<T>>,
) -> Result<Option<T>> {
    let Some(replacement) = session.replacement() else { return attempt() };
    loop {
        let replaced = replacement.next();
        let core = session.core();
        match attempt() {
            // Of several locks, one was lost with its lease while another was waited for. The session lives, and brings no
            // replacement.
            Err(error) if error.is_session_lost() && core.end_reason().is_none() => {}
            Err(error) if error.is_session_lost() => match wait.wait_for(&replaced) {
                Waited::TimedOut => return Ok(None),
                Waited::Cancelled => return Err(cancelled(dir)),
                _ if replacement.is_closed() => return Err(error),
                _ => {}
            },
            outcome => return outcome,
        }
    }
}

fn cancelled(dir: &ZNodePath) -> LockError {
    LockError::Cancelled { operation: Operation::LOCK.name, path: dir.to_string() }
}

/// One waiting call. Dropped without a guard made of it, it withdraws its request.
struct Attempt {
    /// Before the session, for the order in which they are dropped.
    claim: Claim,
    session: Session,
    events: Receiver<Event>,
    signals: Arc<GuardSignals>,
}

impl Attempt {
    fn into_guard(self) -> Result<LockGuard> {
        match self.claim.znode() {
            Some(znode) => Ok(LockGuard::new(self.session, self.claim, znode, self.signals)),
            None => Err(self.claim.end_error(Operation::LOCK)),
        }
    }
}
