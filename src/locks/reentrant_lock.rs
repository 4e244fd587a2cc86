//! [`ReentrantLock`]: an exclusive lock that its holder may acquire again.
//!
//! Origin: Curator's `InterProcessMutex`, which counts the holds of each thread.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, MutexGuard, Weak};
use std::thread::{self, ThreadId};

use crate::error::{LockError, Operation, Result};
use crate::lock_order::{Mutex, rank::HOLDS};
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;
use crate::wait::Wait;

/// An exclusive lock that its holding thread may acquire again.
///
/// It wraps a [`BlockingWriteLock`]. Acquiring the lock again takes no time and sends nothing. The lock is released
/// when the thread drops its last guard. Other threads and other processes wait as usual.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, LockError, Session};
/// use zookeeper_recipes_lock::locks::ReentrantLock;
///
/// fn rebuild(lock: &ReentrantLock) -> Result<(), LockError> {
///     let _guard = lock.lock()?;
///     clear(lock) // a BlockingWriteLock would wait for itself
/// }
///
/// fn clear(lock: &ReentrantLock) -> Result<(), LockError> {
///     let guard = lock.lock()?;
///     assert!(guard.is_owner());
///     Ok(())
/// }
///
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let lock = ReentrantLock::new(BlockingWriteLock::new(&session, "/locks/index")?);
/// rebuild(&lock)?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// Only calls through the same `ReentrantLock` are reentrant, not those through another lock on the same directory.
///
/// # When not to use it
/// - The inner function can know that the lock is held: let it take a `&LockGuard`. That costs nothing, and the
///   compiler checks it.
/// - The work under the lock continues on other threads: a helper thread is not the holder, so guards cannot be sent
///   to it. If the helper requests the lock while the holder waits for the helper, both wait forever.
/// - The inner call needs consistent data: the outer call may be halfway through a change.
pub struct ReentrantLock {
    lock: BlockingWriteLock,
    /// The guard of each thread. Several threads can have a guard at the same time only after a loss.
    holds: Mutex<HOLDS, HashMap<ThreadId, Weak<LockGuard>>>,
}

impl ReentrantLock {
    /// Creates a reentrant lock from a lock.
    #[must_use]
    pub fn new(lock: BlockingWriteLock) -> ReentrantLock {
        ReentrantLock { lock, holds: Mutex::default() }
    }

    /// Blocks until the lock is acquired; returns immediately if this thread holds it.
    ///
    /// # Errors
    /// - The same as [`BlockingWriteLock::lock`].
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): this thread still has guards, but the lock was lost. Drop all of
    ///   them first.
    pub fn lock(&self) -> Result<ReentrantGuard<'_>> {
        match self.enter_again()? {
            Some(guard) => Ok(guard),
            None => Ok(self.enter(self.lock.lock()?)),
        }
    }

    /// Acquires the lock if it is free or this thread holds it; returns `None` otherwise.
    ///
    /// Blocks only until the server has answered or, during an outage, until the retries are used up or the session is
    /// lost.
    ///
    /// # Errors
    /// The same as [`lock`](ReentrantLock::lock).
    pub fn try_lock(&self) -> Result<Option<ReentrantGuard<'_>>> {
        self.enter_by(BlockingWriteLock::try_lock)
    }

    /// Blocks until the lock is acquired or the wait times out; returns `None` on a timeout.
    ///
    /// # Errors
    /// The same as [`lock`](ReentrantLock::lock), and [`Cancelled`](crate::ErrorReason::Cancelled).
    pub fn try_lock_for(&self, wait: impl Into<Wait>) -> Result<Option<ReentrantGuard<'_>>> {
        self.enter_by(|lock| lock.try_lock_for(wait))
    }

    fn enter_by(
        &self,
        acquire: impl FnOnce(&BlockingWriteLock) -> Result<Option<LockGuard>>,
    ) -> Result<Option<ReentrantGuard<'_>>> {
        match self.enter_again()? {
            Some(guard) => Ok(Some(guard)),
            None => Ok(acquire(&self.lock)?.map(|guard| self.enter(guard))),
        }
    }

    /// Returns another guard if this thread already has one.
    fn enter_again(&self) -> Result<Option<ReentrantGuard<'_>>> {
        self.lock.check_process(Operation::LOCK)?;
        let hold = self.holds.lock().get(&thread::current().id()).and_then(Weak::upgrade);
        match hold {
            Some(hold) if hold.is_owner() => Ok(Some(ReentrantGuard::new(hold))),
            Some(hold) => Err(not_owner(Operation::LOCK, &hold)),
            None => Ok(None),
        }
    }

    fn enter(&self, guard: LockGuard) -> ReentrantGuard<'_> {
        let hold = Arc::new(guard);
        let mut holds = self.holds.lock();
        holds.retain(|_, hold| hold.strong_count() > 0);
        holds.insert(thread::current().id(), Arc::downgrade(&hold));
        ReentrantGuard::new(hold)
    }

    /// Returns how many guards this thread has. In a forked child, which must take no mutex, returns zero.
    pub(crate) fn hold_count(&self) -> usize {
        if self.lock.check_process(Operation::LOCK).is_err() {
            return 0;
        }
        self.holds.lock().get(&thread::current().id()).map_or(0, Weak::strong_count)
    }
}

/// Returns the inner lock, which is not reentrant.
impl AsRef<BlockingWriteLock> for ReentrantLock {
    fn as_ref(&self) -> &BlockingWriteLock {
        &self.lock
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantLock")
            .field("lock", &self.lock)
            .field("hold_count", &self.hold_count())
            .finish()
    }
}

/// One hold of a [`ReentrantLock`] by a thread.
///
/// Dropping the thread's last guard releases the lock, even during a panic. `ReentrantGuard` dereferences to
/// [`LockGuard`]. Other threads may use it by reference, but it cannot be sent to them:
///
/// ```compile_fail
/// # use zookeeper_recipes_lock::locks::ReentrantLock;
/// fn help(lock: &ReentrantLock) {
///     let guard = lock.lock().unwrap();
///     std::thread::scope(|scope| {
///         scope.spawn(move || drop(guard)); // does not compile
///     });
/// }
/// ```
#[must_use = "the hold ends at once when the guard is not kept"]
pub struct ReentrantGuard<'a> {
    hold: Arc<LockGuard>,
    /// Borrows the lock, and makes the guard `Sync` but not `Send`, like the guard of a mutex.
    thread: PhantomData<MutexGuard<'a, ()>>,
}

impl ReentrantGuard<'_> {
    fn new<'a>(hold: Arc<LockGuard>) -> ReentrantGuard<'a> {
        ReentrantGuard { hold, thread: PhantomData }
    }

    /// Ends this hold; returns `None` if the thread has other guards.
    ///
    /// The last guard releases the lock and waits until the server has deleted the znode, like [`LockGuard::unlock`].
    ///
    /// # Errors
    /// - For the last guard, the same as [`LockGuard::unlock`].
    /// - For any other guard, [`NotOwner`](crate::ErrorReason::NotOwner) if the lock was lost. The work under
    ///   the lock may have overlapped with the next owner's work.
    pub fn unlock(self) -> Result<Option<Released>> {
        let held = if self.is_owner() { Ok(None) } else { Err(not_owner(Operation::UNLOCK, &self)) };
        match Arc::into_inner(self.hold) {
            Some(last) => last.unlock().map(Some),
            None => held,
        }
    }
}

impl Deref for ReentrantGuard<'_> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.hold
    }
}

impl fmt::Debug for ReentrantGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard").field("hold", &self.hold).finish()
    }
}

fn not_owner(operation: Operation, hold: &LockGuard) -> LockError {
    hold.request().not_owner(operation)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fake::SimulatedZooKeeper;
    use crate::tests::{deadline, in_background, next};
    use crate::{ErrorReason, LossReason};

    const DIR: &str = "/locks/it";
    const LONG: Duration = Duration::from_secs(30);

    fn lock_at(server: &SimulatedZooKeeper) -> ReentrantLock {
        let session = server.connect(LONG).open_session().unwrap();
        ReentrantLock::new(BlockingWriteLock::new(&session, DIR).unwrap())
    }

    #[test]
    fn reentering_sends_nothing() {
        let server = SimulatedZooKeeper::new();
        let lock = lock_at(&server);
        assert_eq!(lock.hold_count(), 0);
        let first = lock.lock().unwrap();
        server.clear_log();
        let others = [
            lock.try_lock().unwrap().unwrap(),
            lock.lock().unwrap(),
            lock.try_lock_for(Duration::ZERO).unwrap().unwrap(),
            lock.try_lock_for(Instant::now()).unwrap().unwrap(),
            lock.try_lock_for(Wait::forever()).unwrap().unwrap(),
        ];
        assert_eq!(lock.hold_count(), 6);
        assert!(others.iter().all(|guard| guard.is_owner() && guard.id() == first.id()));
        assert_eq!(server.log().len(), 0);
    }

    #[test]
    fn last_dropped_guard_releases_in_any_order() {
        let server = SimulatedZooKeeper::new();
        let lock = lock_at(&server);
        for unlocked in [false, true] {
            let (first, second) = (lock.lock().unwrap(), lock.lock().unwrap());
            first.unlock().unwrap();
            assert_eq!((lock.hold_count(), server.children(DIR).len()), (1, 1));
            assert!(second.is_owner());
            if unlocked {
                second.unlock().unwrap();
                assert!(server.children(DIR).is_empty());
            } else {
                drop(second);
            }
            assert_eq!(lock.hold_count(), 0);
        }
    }

    #[test]
    fn another_thread_waits_for_the_last_guard() {
        let server = SimulatedZooKeeper::new();
        let lock = Arc::new(lock_at(&server));
        let guards = [lock.lock().unwrap(), lock.lock().unwrap()];
        let (sender, refusals) = crossbeam_channel::bounded(1);
        let of_thread = Arc::clone(&lock);
        let other = in_background(move || {
            let refused = of_thread.try_lock().unwrap().is_none();
            sender.send(()).unwrap();
            let guard = of_thread.lock().unwrap();
            (refused, guard.is_owner(), of_thread.hold_count())
        });
        next(&refusals);
        for guard in guards {
            assert!(guard.is_owner() && other.is_empty());
            drop(guard);
        }
        assert_eq!(next(&other), (true, true, 1));
        assert!(lock.try_lock_for(deadline()).unwrap().is_some());
    }

    #[test]
    fn lost_lock_cannot_be_reentered() {
        let server = SimulatedZooKeeper::new();
        let lock = lock_at(&server);
        let (first, second) = (lock.lock().unwrap(), lock.lock().unwrap());
        server.delete(first.id());
        assert_eq!(next(first.lost()), LossReason::NodeDeleted);
        assert!(matches!(lock.lock(), Err(ref error) if error.reason() == ErrorReason::NotOwner));
        assert!(matches!(lock.try_lock(), Err(ref error) if error.reason() == ErrorReason::NotOwner));
        assert!(matches!(second.unlock(), Err(ref error) if error.reason() == ErrorReason::NotOwner));
        assert!(matches!(first.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
        assert!(lock.lock().unwrap().is_owner());
    }

    #[test]
    fn unwinding_releases_the_lock() {
        let server = SimulatedZooKeeper::new();
        let lock = Arc::new(lock_at(&server));
        let of_thread = Arc::clone(&lock);
        let panicking = in_background::<()>(move || {
            let _outer = of_thread.lock().unwrap();
            let _inner = of_thread.lock().unwrap();
            panic!("on purpose")
        });
        assert!(panicking.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
        assert!(lock.try_lock_for(deadline()).unwrap().is_some());
    }

    #[test]
    fn holds_of_ended_threads_are_dropped() {
        let server = SimulatedZooKeeper::new();
        let lock = Arc::new(lock_at(&server));
        for _ in 0..20 {
            let of_thread = Arc::clone(&lock);
            next(&in_background(move || drop(of_thread.lock().unwrap())));
        }
        assert_eq!(lock.holds.lock().len(), 1);
    }
}
