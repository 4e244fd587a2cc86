//! Locks beyond the plain exclusive lock: for readers and writers, for the threads of one process, for
//! several locks at once, for permits, and for jobs that run once.
//!
//! The primary type in this module is [`ReadWriteLock`]. The exclusive lock itself is
//! [`BlockingWriteLock`](crate::BlockingWriteLock); for elections, see [`Candidate`](crate::Candidate). The
//! [crate's documentation](crate#which-lock) has a table of all locks.

// For maintainers: each lock is a thin shell around a request. `locking` and `blocking_lock` hold what the
// locks share.

mod blocking_lock;
pub(crate) mod blocking_write_lock;
pub(crate) mod candidate;
pub(crate) mod cohort;
mod cohort_guard;
mod cohort_lock;
mod cohort_options;
mod guard_signals;
mod held_here;
pub(crate) mod leadership;
pub(crate) mod lock_guard;
pub(crate) mod lock_listener;
pub(crate) mod locking;
mod multi_guard;
mod multi_lock;
mod named_locks;
mod permit;
mod read_guard;
mod read_write_lock;
mod reentrant_lock;
mod run_once;
mod semaphore;
pub(crate) mod transaction;
mod write_guard;
pub(crate) mod write_lock;

pub use cohort_guard::CohortGuard;
pub use cohort_lock::CohortLock;
pub use cohort_options::CohortOptions;
pub use lock_listener::LockEvent;
pub use locking::Released;
pub use multi_guard::MultiGuard;
pub use multi_lock::MultiLock;
pub use named_locks::NamedLocks;
pub use permit::Permit;
pub use read_guard::ReadGuard;
pub use read_write_lock::ReadWriteLock;
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use run_once::{Repeat, RunOnce, RunOutcome};
pub use semaphore::Semaphore;
pub use write_guard::{DowngradeError, WriteGuard};

use crate::lock_order::unwind_safe;

unwind_safe!(
    blocking_write_lock::BlockingWriteLock,
    candidate::Candidate,
    CohortGuard,
    CohortLock,
    leadership::Leadership,
    lock_guard::LockGuard,
    MultiGuard,
    MultiLock,
    NamedLocks,
    Permit,
    ReadGuard,
    ReadWriteLock,
    ReentrantGuard<'_>,
    ReentrantLock,
    RunOnce,
    Semaphore,
    WriteGuard,
    write_lock::WriteLock,
);
