//! [`BlockingWriteLock`]: the exclusive lock for scoped code: it blocks until the lock is there and returns a guard.
//!
//! Origin: the class of this name and the `DistributedLockOperationExecutor` that were published beside the Java recipe;
//! they wait on a latch until the listener is called, as this waits on a channel.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use zookeeper::Acl;

use crate::error::{LockError, LossReason, Operation, Result};
use crate::exclusive;
use crate::grant::Grant;
use crate::lock_guard::LockGuard;
use crate::protocol_support::{ProtocolSupport, check_data};
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, Event, Request, Standing};
use crate::session::Session;

/// An exclusive lock that blocks until it is acquired.
///
/// Each call is a request of its own, so one `BlockingWriteLock` may be shared by any number of threads, which exclude
/// one another as they exclude those of other processes. Not reentrant: a thread that locks again while it holds the lock
/// waits for itself.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Session};
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
/// let lock = BlockingWriteLock::new(&session, "/locks/report", None)?;
/// {
///     let guard = lock.lock()?;
///     println!("holding {}", guard.id());
/// } // released here
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct BlockingWriteLock {
    support: ProtocolSupport,
    dir: ZNodePath,
    data: Mutex<Arc<[u8]>>,
}

impl BlockingWriteLock {
    /// Makes a lock on a directory, which is created with its parents when the lock is first asked for. Sends nothing.
    ///
    /// `acl` is for every znode created; `None` lets anybody do anything.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidPath`](crate::LockError::InvalidPath).
    pub fn new(session: &Session, dir: &str, acl: Option<Vec<Acl>>) -> Result<BlockingWriteLock> {
        let dir = ZNodePath::parse(dir)?;
        let support = ProtocolSupport::new(session);
        if let Some(acl) = acl {
            support.set_acl(acl);
        }
        Ok(BlockingWriteLock { support, dir, data: Mutex::new(exclusive::default_data()) })
    }

    /// Blocks until the lock is acquired.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::LockError::ConnectionLoss): the request could not be made, as often as the retries
    ///   allow. Once it stands in the queue, a loss of contact is waited through.
    /// - [`SessionLost`](crate::LockError::SessionLost): the session ended while waiting.
    /// - [`RequestDeleted`](crate::LockError::RequestDeleted): another client deleted the znode of the request.
    /// - [`AccessDenied`](crate::LockError::AccessDenied), or another refusal of the server.
    /// - [`Closed`](crate::LockError::Closed): the session was closed.
    ///
    /// After an error nothing stands in the queue any more.
    pub fn lock(&self) -> Result<LockGuard> {
        match self.acquire(None)? {
            Some(guard) => Ok(guard),
            // Proof: without a deadline there is none to come.
            None => Err(LockError::Closed { operation: Operation::LOCK.name, path: self.dir.to_string() }),
        }
    }

    /// Acquires the lock if nobody holds it or waits for it, and returns `None` otherwise. Blocks for the server's answers
    /// only.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock(&self) -> Result<Option<LockGuard>> {
        let attempt = self.start()?;
        match attempt.claim.wait_until_placed()? {
            Some(Standing::Owner) => attempt.into_guard().map(Some),
            _ => Ok(None),
        }
    }

    /// Blocks until the lock is acquired, or for `timeout`, and then returns `None`.
    ///
    /// The time holds even when the network swallows every packet. The znode of a request that timed out is deleted in
    /// the background, as soon as the server can be reached.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<LockGuard>> {
        match Instant::now().checked_add(timeout) {
            Some(deadline) => self.try_lock_until(deadline),
            // Longer than the clock can tell.
            None => self.lock().map(Some),
        }
    }

    /// Blocks until the lock is acquired, or until `deadline`, and then returns `None`.
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock).
    pub fn try_lock_until(&self, deadline: Instant) -> Result<Option<LockGuard>> {
        self.acquire(Some(deadline))
    }

    /// Waits for the lock, and on a session that heals itself, over the loss of it.
    fn acquire(&self, deadline: Option<Instant>) -> Result<Option<LockGuard>> {
        let Some(healing) = self.session().healing() else { return self.wait(deadline) };
        loop {
            let mark = healing.mark();
            match self.wait(deadline) {
                Err(error) if error.is_session_lost() => {
                    if !healing.await_healing(mark, deadline) {
                        return if healing.is_closed() { Err(error) } else { Ok(None) };
                    }
                }
                outcome => return outcome,
            }
        }
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Option<LockGuard>> {
        let attempt = self.start()?;
        let event = match deadline {
            None => attempt.events.recv().ok(),
            Some(deadline) => match attempt.events.recv_deadline(deadline) {
                Ok(event) => Some(event),
                // A grant that comes at this very moment is released again by the drop of the attempt.
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => None,
            },
        };
        match event {
            Some(Event::Acquired) => attempt.into_guard().map(Some),
            _ => Err(attempt.claim.end_error(Operation::LOCK)),
        }
    }

    /// Runs an operation under the lock and releases the lock after it, panic or not.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(10))?;
    /// # fn rebuild_index() -> u32 { 1 }
    /// let lock = BlockingWriteLock::new(&session, "/locks/index", None)?;
    /// let entries = lock.with_lock(|_guard| rebuild_index())?;
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`lock`](BlockingWriteLock::lock) before the operation; and after it, in place of its result, when the lock was
    /// taken away while it ran. To look at the result all the same, take the guard with `lock`.
    pub fn with_lock<T>(&self, operation: impl FnOnce(&LockGuard) -> T) -> Result<T> {
        let guard = self.lock()?;
        let result = operation(&guard);
        match guard.unlock() {
            Ok(()) => Ok(result),
            Err(error) if error.is_connection_loss() || error.is_access_denied() => {
                log::warn!("{error}");
                Ok(result)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the lock's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.dir.as_str()
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &Session {
        self.support.session()
    }

    /// Returns what the lock stands on: the session, the ACL, the retries.
    #[must_use]
    pub fn protocol_support(&self) -> &ProtocolSupport {
        &self.support
    }

    /// Sets the data of the znodes of later requests, which tells others who waits; `host/pid` by default.
    ///
    /// # Errors
    /// The only way to fail is [`InvalidArgument`](crate::LockError::InvalidArgument) for data of about 1 MiB and more.
    pub fn set_data(&self, data: &[u8]) -> Result<()> {
        check_data(data)?;
        *self.data.lock() = data.into();
        Ok(())
    }

    fn start(&self) -> Result<Attempt> {
        self.session().core().check_open(Operation::LOCK, &self.dir)?;
        let (grant, events, lost) = Grant::new();
        let terms = exclusive::terms(&self.dir, &self.support, Arc::clone(&self.data.lock()));
        let request = Request::new(self.session(), terms, grant);
        request.start();
        Ok(Attempt { session: self.session().clone(), claim: Claim::on(request), events, lost })
    }
}

impl fmt::Debug for BlockingWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingWriteLock").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// One waiting call. Dropped without a guard made of it, it withdraws its request.
struct Attempt {
    /// Before the session, for the order in which they are dropped.
    claim: Claim,
    session: Session,
    events: Receiver<Event>,
    lost: Receiver<LossReason>,
}

impl Attempt {
    fn into_guard(self) -> Result<LockGuard> {
        match self.claim.znode() {
            Some(znode) => Ok(LockGuard::new(self.session, self.claim, znode, self.lost)),
            None => Err(self.claim.end_error(Operation::LOCK)),
        }
    }
}
