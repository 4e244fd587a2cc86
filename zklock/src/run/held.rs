//! [`Contended`]: the lock, read lock or semaphore that a command needs. [`Held`]: its guard.

use zookeeper_recipes_lock::locks::{Permit, ReadGuard, ReadWriteLock, Released, Semaphore};
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockGuard, LockOptions, Session, Wait};

use crate::args::RunArgs;

/// The lock, read lock or semaphore that a command runs under.
pub(super) enum Contended {
    Lock(BlockingWriteLock),
    Shared(ReadWriteLock),
    Semaphore(Semaphore),
}

impl Contended {
    pub(super) fn new(session: &Session, args: &RunArgs) -> Result<Contended, LockError> {
        let mut options = LockOptions::new().naming(args.naming.scheme());
        if let Some(data) = &args.data {
            options = options.data(data.as_bytes());
        }
        let dir = &args.dir;
        Ok(match args.permits {
            Some(permits) => {
                Contended::Semaphore(Semaphore::with_options(session, dir, permits.get(), options)?)
            }
            None if args.shared => Contended::Shared(ReadWriteLock::with_options(session, dir, options)?),
            None => Contended::Lock(BlockingWriteLock::with_options(session, dir, options)?),
        })
    }

    /// Acquires the lock. Without a `wait`, acquires it only if that is possible at once. Returns `None` if the lock
    /// was not acquired in time.
    pub(super) fn acquire(&self, wait: Option<Wait>) -> Result<Option<Held>, LockError> {
        Ok(match (self, wait) {
            (Contended::Lock(lock), None) => lock.try_lock()?.map(Held::Lock),
            (Contended::Lock(lock), Some(wait)) => lock.try_lock_for(wait)?.map(Held::Lock),
            (Contended::Shared(lock), None) => lock.try_read()?.map(Held::Shared),
            (Contended::Shared(lock), Some(wait)) => lock.try_read_for(wait)?.map(Held::Shared),
            (Contended::Semaphore(semaphore), None) => semaphore.try_acquire()?.map(Held::Permit),
            (Contended::Semaphore(semaphore), Some(wait)) => {
                semaphore.try_acquire_for(wait)?.map(Held::Permit)
            }
        })
    }
}

/// The guard under which a command runs.
pub(super) enum Held {
    Lock(LockGuard),
    Shared(ReadGuard),
    Permit(Permit),
}

impl Held {
    pub(super) fn release(self) -> Result<Released, LockError> {
        match self {
            Held::Lock(guard) => guard.unlock(),
            Held::Shared(guard) => guard.unlock(),
            Held::Permit(permit) => permit.release(),
        }
    }

    /// The guard of the request, whatever it requests.
    pub(super) fn guard(&self) -> &LockGuard {
        match self {
            Held::Lock(guard) => guard,
            Held::Shared(guard) => guard,
            Held::Permit(permit) => permit,
        }
    }

    /// The fencing token, which only a lock that excludes all others has. Readers and permits are held by several
    /// clients at once, so their tokens have no meaningful order.
    pub(super) fn fencing_token(&self) -> Result<Option<i64>, LockError> {
        match self {
            Held::Lock(guard) => guard.fencing_token().map(Some),
            Held::Shared(_) | Held::Permit(_) => Ok(None),
        }
    }
}
