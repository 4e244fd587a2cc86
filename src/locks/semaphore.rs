//! [`Semaphore`]: a limited number of permits, shared by all processes.
//!
//! Origin: Curator's `InterProcessSemaphoreV2`, whose protocol this is: a lock on `<dir>/locks` lets
//! one process at a time join `<dir>/leases`, where it waits until fewer requests are ahead than
//! there are permits. The lock keeps the order and lets one process watch the directory. It is not
//! needed for safety ([`permit`](crate::recipe::permit) has the proof), so its loss during the wait
//! does no harm.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::{BlockingLock, begins_again, retry_lasting};
use crate::locks::guard_signals::GuardSignals;
use crate::locks::permit::Permit;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::naming_scheme::NamingScheme;
use crate::recipe::path::ZNodePath;
use crate::session::Session;
use crate::wait::Wait;

/// The directory of the lock whose owner may join the other one.
const TURNS: &str = "locks";

/// The directory whose children are the permits that are held.
const LEASES: &str = "leases";

/// A limited number of permits for all processes that use the same directory: at most so many of them
/// do something at once.
///
/// Permits are granted first come, first served. One of those who wait watches the permits that are
/// held, and each other one its predecessor, so a release wakes one of them. A permit is as safe as a
/// lock: [`is_owner`](crate::LockGuard::is_owner) becomes false before the server can give the permit to another.
///
/// Each call makes a new request. So any number of threads may share one `Semaphore`, and one thread
/// may hold several permits. A thread that waits for a permit while it holds the last one waits for
/// itself.
///
/// # The number of permits
/// Each client decides by its own number, which ZooKeeper does not store. If the numbers differ, the
/// largest one bounds the holders, and a waiter with a smaller number holds up those behind it. All
/// clients should use the same: to change it, stop those that use the former, or accept both for a
/// while.
///
/// # With Curator
/// Curator's `InterProcessSemaphoreV2` can share the directory: the requests are below
/// `<dir>/locks` and `<dir>/leases`, with its names, whatever
/// [`NamingScheme`](crate::recipe::NamingScheme) the options have. This does not read Curator's
/// `SharedCountReader`. Curator's older `InterProcessSemaphore` uses another protocol.
///
/// An [event hook](crate::events::EventHook) sees both requests, the former as an exclusive lock
/// and the latter as a [permit](crate::recipe::LockKind::Permit).
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::Session;
/// use zookeeper_recipes_lock::locks::Semaphore;
///
/// # fn convert_video() {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let converters = Semaphore::new(&session, "/app/converters", 4)?;
/// let permit = converters.acquire()?;
/// if permit.is_owner() {
///     convert_video();
/// }
/// drop(permit); // released
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
pub struct Semaphore {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    permits: NonZeroU32,
    /// Its owner may join the leases.
    turns: BlockingLock,
    leases: BlockingLock,
}

impl Semaphore {
    /// Makes a semaphore on a directory with the default [`LockOptions`]. Sends nothing: the first
    /// request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument)
    /// for zero permits.
    pub fn new(session: &Session, dir: &str, permits: u32) -> Result<Semaphore> {
        Semaphore::with_options(session, dir, permits, LockOptions::new())
    }

    /// As [`new`](Semaphore::new), with other options.
    ///
    /// # Errors
    /// As [`new`](Semaphore::new), and [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for more than
    /// about 1 MiB of data and for a [`max_hold`](LockOptions::max_hold) of zero, too.
    pub fn with_options(
        session: &Session,
        dir: &str,
        permits: u32,
        options: LockOptions,
    ) -> Result<Semaphore> {
        let dir = ZNodePath::parse(dir)?;
        let Some(permits) = NonZeroU32::new(permits) else {
            let rule = "a semaphore without permits would never be acquired";
            return Err(LockError::invalid_argument("permits", rule));
        };
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        // Longer than the directory.
        let path = |name| ZNodePath::parse(dir.child(name).as_str());
        let access = Access::Exclusive(NamingScheme::Curator);
        // The wait for a permit is no hold.
        let turns = BlockingLock::new(Arc::clone(&support), path(TURNS)?, access).without_limit();
        // After a loss it is another one's turn, so the request for a permit is not made again on its own.
        let leases = BlockingLock::not_lasting(Arc::clone(&support), path(LEASES)?, Access::Permit(permits));
        Ok(Semaphore { support, dir, permits, turns, leases })
    }

    /// Blocks until a permit is acquired.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the request could not be created within the
    ///   retries. Once it is in the queue, the call waits through losses of contact.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost): the session ended during the wait.
    /// - [`RequestDeleted`](crate::ErrorReason::RequestDeleted): another client deleted the request's znode.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another refusal of the server.
    /// - [`Closed`](crate::ErrorReason::Closed): the semaphore or the session was closed.
    ///
    /// After an error no request is left in the queue.
    pub fn acquire(&self) -> Result<Permit> {
        let acquired = self.acquire_within(&Wait::forever())?;
        // Proof: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, &self.dir))
    }

    /// Waits until a permit is acquired, in a task, as
    /// [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// A future that is kept and not polled holds up all who want a permit, from its turn on, and
    /// [`max_hold`](crate::LockOptions::max_hold) does not end that: it counts from the permit. Poll it, or drop it.
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire).
    pub fn acquire_async(&self) -> impl Future<Output = Result<Permit>> + Send + use<> {
        let session = self.support.session().clone();
        let (turns, leases) = (self.turns.clone(), self.leases.clone());
        async move {
            loop {
                match acquire_in_turn(&turns, &leases).await {
                    Err(error) if begins_again(&session, &error) => {}
                    outcome => return outcome,
                }
            }
        }
    }

    /// Acquires a permit if one is free, and returns `None` if all are held. Blocks only for the
    /// server's answers: during an outage, through all retries.
    ///
    /// It never overtakes the first of those who wait. It may overtake the others in the moment
    /// between two of them, when several permits become free at once.
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire).
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        // Not in turn: another process that is acquiring a permit would be in the way of one that
        // is free.
        Ok(self.leases.try_lock()?.map(Permit::new))
    }

    /// Blocks until a permit is acquired, or until the wait times out: then it returns `None`.
    ///
    /// The time holds even if the network swallows every packet. The znodes of a request that timed
    /// out are deleted in the background.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::Session;
    /// # use zookeeper_recipes_lock::locks::Semaphore;
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn convert_video() {}
    /// let converters = Semaphore::new(&session, "/app/converters", 4)?;
    /// match converters.try_acquire_for(Duration::from_secs(5))? {
    ///     Some(_permit) => convert_video(),
    ///     None => println!("too busy"),
    /// }
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Semaphore::acquire), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_acquire_for(&self, wait: impl Into<Wait>) -> Result<Option<Permit>> {
        self.acquire_within(&wait.into())
    }

    fn acquire_within(&self, wait: &Wait) -> Result<Option<Permit>> {
        retry_lasting(self.support.session(), || {
            let Some(turn) = self.turns.wait(wait, &GuardSignals::of(1))? else { return Ok(None) };
            let acquired = self.leases.wait(wait, &GuardSignals::of(1));
            // After the lease is acquired, or its deletion has begun.
            drop(turn);
            Ok(acquired?.map(Permit::new))
        })
    }

    /// Closes the semaphore: threads that wait for a permit fail with [`Closed`](crate::ErrorReason::Closed),
    /// and so does every later call. Permits that are held and the session stay. Idempotent.
    pub fn close(&self) {
        self.support.close();
    }

    /// Returns the semaphore's directory.
    #[must_use]
    pub fn dir(&self) -> &str {
        self.dir.as_str()
    }

    /// Returns the session on which the semaphore makes its requests.
    pub fn session(&self) -> &Session {
        self.support.session()
    }
}

async fn acquire_in_turn(turns: &BlockingLock, leases: &BlockingLock) -> Result<Permit> {
    let turn = turns.wait_async().await?;
    let acquired = leases.wait_async().await;
    // After the lease is acquired, or its deletion has begun. So it is, too, if the future is dropped.
    drop(turn);
    acquired.map(Permit::new)
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("dir", &self.dir())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
