//! [`Semaphore`]: a limited number of permits, shared by all processes.
//!
//! Origin: Curator's `InterProcessSemaphoreV2`, which uses the same protocol. A lock on `<dir>/locks` lets one waiter
//! at a time create its request in `<dir>/leases`. That request waits until fewer requests are ahead of it than there
//! are permits. The lock keeps the waiters in order, and ensures that only one of them watches `<dir>/leases`. Safety
//! does not depend on the lock ([`permit`](crate::recipe::permit) has the proof), so losing it during the wait does no
//! harm. The session itself makes the second request and ends the first ([`in_turn`](crate::request::in_turn())), so
//! nobody waits for a thread or a task of the application to do so.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_options::LockOptions;
use crate::locks::blocking_lock::BlockingLock;
use crate::locks::permit::Permit;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::recipe::permit::{LEASES, TURNS};
use crate::session::Session;
use crate::wait::Wait;

/// A semaphore that grants a limited number of permits across processes.
///
/// [`acquire`](Semaphore::acquire) blocks until a permit is free, and returns a [`Permit`]. All processes that use the
/// same directory share the permits. Permits are granted first come, first served. A permit is as safe as a lock:
/// [`is_owner`](crate::LockGuard::is_owner) becomes `false` before the server can give the permit to another client.
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
///
/// # Sharing between threads
/// Any number of threads may share one `Semaphore`, because each call makes its own request. A thread may hold several
/// permits. If a thread holds all permits and waits for one more, it waits for itself.
///
/// # The number of permits
/// Pass the same number of permits in every client: ZooKeeper does not store it. If the numbers differ, the largest one
/// limits how many permits are held, and a waiter with a smaller number holds up those behind it. To change the number,
/// first stop the clients that use the old one, or accept that both are in use for a while.
///
/// # Cost
/// Only the first waiter watches the held permits. Every other waiter watches the two requests ahead of it, so there is
/// no herd effect. A client makes two requests for each permit: one for its turn, then one for the permit. An [event
/// hook](crate::events::EventHook) sees the first as an exclusive lock and the second as a
/// [permit](crate::recipe::LockKind::Permit).
///
/// # With Curator
/// Curator's `InterProcessSemaphoreV2` can share the directory. The requests are below `<dir>/locks` and `<dir>/leases`
/// and have Curator's names, whatever the [`NamingScheme`](crate::recipe::NamingScheme) of the options. Curator's
/// `SharedCountReader` is not supported. Curator's older `InterProcessSemaphore` uses another protocol.
#[doc(alias = "InterProcessSemaphoreV2")]
pub struct Semaphore {
    support: Arc<ProtocolSupport>,
    dir: ZNodePath,
    permits: NonZeroU32,
    leases: BlockingLock,
    /// Like `leases`, but one waiter at a time requests a permit.
    in_turn: BlockingLock,
}

impl Semaphore {
    /// Creates a semaphore on the directory `dir`, with the default [`LockOptions`].
    ///
    /// Sends nothing to the servers. The first request creates the directory if it is missing.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, or the number of permits is zero.
    pub fn new(session: &Session, dir: &str, permits: u32) -> Result<Semaphore> {
        Semaphore::with_options(session, dir, permits, LockOptions::new())
    }

    /// Creates a semaphore like [`new`](Semaphore::new), with other options.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the path is invalid, the number of permits is zero,
    /// or the options' [`max_hold`](LockOptions::max_hold) is zero.
    pub fn with_options(
        session: &Session,
        dir: &str,
        permits: u32,
        options: LockOptions,
    ) -> Result<Semaphore> {
        let dir = session.lock_path(dir)?;
        let Some(permits) = NonZeroU32::new(permits) else {
            let rule = "a semaphore without permits would never be acquired";
            return Err(LockError::invalid_argument("permits", rule));
        };
        let support = Arc::new(ProtocolSupport::with_options(session, options)?);
        // Parsed again to check the length: the path is longer than the directory's.
        let path = |name| ZNodePath::parse(dir.child(name).as_str());
        let leases = BlockingLock::new(Arc::clone(&support), path(LEASES)?, Access::Permit(permits));
        let in_turn = leases.clone().in_turn(path(TURNS)?);
        Ok(Semaphore { support, dir, permits, leases, in_turn })
    }

    /// Blocks until a permit is acquired.
    ///
    /// # Errors
    /// - [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss): the request could not be created before the
    ///   retries were used up. Once it is in the queue, the call waits through losses of contact.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost): the session was lost, before or during the wait. On a
    ///   session that [replaces itself](crate::SessionBuilder::replace_lost_sessions), the call starts over instead.
    /// - [`NodeDeleted`](crate::ErrorReason::NodeDeleted): another client deleted the request's znode.
    /// - [`HeldTooLong`](crate::ErrorReason::HeldTooLong): the whole [`max_hold`](LockOptions::max_hold) passed after the
    ///   acquisition, before the call returned. The call never returns a permit that is already lost.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the
    ///   request.
    /// - [`Closed`](crate::ErrorReason::Closed): the semaphore or the session was closed.
    ///
    /// After an error, the call has left the queue. If a znode of its requests still exists, it is deleted in the
    /// background, or with the session.
    pub fn acquire(&self) -> Result<Permit> {
        let acquired = self.try_acquire_for(Wait::forever())?;
        // Cannot be `None`: a wait without a deadline does not time out.
        acquired.ok_or_else(|| LockError::of(ErrorReason::Closed, Operation::LOCK, &self.dir))
    }

    /// Waits in a task until a permit is acquired.
    ///
    /// See [`BlockingWriteLock::lock_async`](crate::BlockingWriteLock::lock_async).
    ///
    /// # Cancel safety
    /// Dropping the future leaves both queues without blocking, and releases the permit if it has just been acquired.
    ///
    /// # What a future holds that nobody polls
    /// A future that was polled once keeps its place, and holds its permit as soon as one is free. It never keeps others
    /// from a permit that is free. If its session is lost, it joins the queue again when it is polled.
    ///
    /// # Errors
    /// The same as [`acquire`](Semaphore::acquire).
    pub fn acquire_async(&self) -> impl Future<Output = Result<Permit>> + Send + use<> {
        let in_turn = self.in_turn.clone();
        async move { in_turn.wait_async().await.map(Permit::new) }
    }

    /// Acquires a permit if one is free; returns `None` if all are held or requested.
    ///
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// Waiters request their permits one after the other. The call never overtakes a waiter that has made its request,
    /// but it may overtake those behind it: when several permits become free at once, the call may take one before the
    /// next waiter requests it.
    ///
    /// # Errors
    /// The same as [`acquire`](Semaphore::acquire). After the loss of its session, the call fails even if the session
    /// replaces itself.
    pub fn try_acquire(&self) -> Result<Option<Permit>> {
        // Requests the permit without a turn. A call that had to take the turn first would fail while a waiter has it,
        // even if a permit is free.
        Ok(self.leases.try_lock()?.map(Permit::new))
    }

    /// Blocks until a permit is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// The time limit holds even if the network swallows every packet. The znodes of a request that timed
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
    /// The same as [`acquire`](Semaphore::acquire), [`Refused`](crate::ErrorReason::Refused) if servers refused a
    /// request until the deadline, and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_acquire_for(&self, wait: impl Into<Wait>) -> Result<Option<Permit>> {
        Ok(self.in_turn.try_lock_for(&wait.into())?.map(Permit::new))
    }

    /// Closes the semaphore.
    ///
    /// Threads that wait for a permit, and all later calls, fail with [`Closed`](crate::ErrorReason::Closed). Held
    /// permits stay held, and the session stays open. Idempotent.
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
