//! [`Contended`]: the lock, read lock or semaphore that a command needs. [`Held`]: its guard.

use std::time::Duration;

use crossbeam_channel::{Receiver, never};
use zookeeper_recipes_lock::locks::{Permit, ReadGuard, ReadWriteLock, Released, Semaphore};
use zookeeper_recipes_lock::{
    BlockingWriteLock, LockError, LockGuard, LockOptions, LossReason, Session, Wait,
};

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

    /// Ends a wait in [`acquire`](Contended::acquire).
    pub(super) fn close(&self) {
        match self {
            Contended::Lock(lock) => lock.close(),
            Contended::Shared(lock) => lock.close(),
            Contended::Semaphore(semaphore) => semaphore.close(),
        }
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

    pub(super) fn as_guard(&self) -> Guard<'_> {
        match self {
            Held::Lock(guard) => Guard::Lock(guard),
            Held::Shared(guard) => Guard::Lock(guard),
            Held::Permit(permit) => Guard::Permit(permit),
        }
    }
}

/// A guard as a [`Supervision`](super::supervision::Supervision) sees it.
#[derive(Clone, Copy)]
pub(super) enum Guard<'a> {
    Lock(&'a LockGuard),
    Permit(&'a Permit),
}

impl Guard<'_> {
    pub(super) fn is_owner(&self) -> bool {
        match self {
            Guard::Lock(guard) => guard.is_owner(),
            Guard::Permit(permit) => permit.is_owner(),
        }
    }

    pub(super) fn lease_remaining(&self) -> Duration {
        match self {
            Guard::Lock(guard) => guard.lease_remaining(),
            Guard::Permit(permit) => permit.lease_remaining(),
        }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Guard::Lock(guard) => guard.id(),
            Guard::Permit(permit) => permit.id(),
        }
    }

    pub(super) fn lost(&self) -> Receiver<LossReason> {
        match self {
            Guard::Lock(guard) => guard.lost().clone(),
            Guard::Permit(permit) => permit.lost().clone(),
        }
    }

    pub(super) fn loss(&self) -> Option<LossReason> {
        match self {
            Guard::Lock(guard) => guard.loss(),
            Guard::Permit(permit) => permit.loss(),
        }
    }

    /// Receives a message when another client asks for the release of the lock. Nobody can ask for the release of a
    /// permit.
    pub(super) fn revocation(&self) -> Receiver<()> {
        match self {
            Guard::Lock(guard) => guard.revocation().clone(),
            Guard::Permit(_) => never(),
        }
    }

    /// The fencing token. A permit has none: several clients hold permits at once, so no token orders them.
    pub(super) fn fencing_token(&self) -> Result<Option<i64>, LockError> {
        match self {
            Guard::Lock(guard) => guard.fencing_token().map(Some),
            Guard::Permit(_) => Ok(None),
        }
    }
}
