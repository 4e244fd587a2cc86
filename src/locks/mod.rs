//! The locks: thin shells around requests, their guards, and what builds on them.
//!
//! `locking` and `blocking_lock` hold what they share.

mod blocking_lock;
mod blocking_write_lock;
mod candidate;
mod candidate_group;
pub(crate) mod cohort;
mod cohort_guard;
mod cohort_lock;
mod cohort_options;
mod guard_signals;
mod held_here;
mod leadership;
mod lock_guard;
mod lock_listener;
pub(crate) mod locking;
mod multi_guard;
mod multi_lock;
mod named_locks;
mod permit;
mod read_guard;
mod read_write_lock;
mod reentrant_lock;
mod revoker;
mod run_once;
mod semaphore;
mod transaction;
mod write_guard;
mod write_lock;

pub use blocking_write_lock::BlockingWriteLock;
pub use candidate::Candidate;
pub use candidate_group::CandidateGroup;
pub use cohort_guard::CohortGuard;
pub use cohort_lock::CohortLock;
pub use cohort_options::CohortOptions;
pub use leadership::Leadership;
pub use lock_guard::LockGuard;
pub use lock_listener::{LockEvent, LockListener};
pub use locking::Released;
pub use multi_guard::MultiGuard;
pub use multi_lock::MultiLock;
pub use named_locks::NamedLocks;
pub use permit::Permit;
pub use read_guard::ReadGuard;
pub use read_write_lock::ReadWriteLock;
pub use reentrant_lock::{ReentrantGuard, ReentrantLock};
pub use revoker::{Revocation, Revoker};
pub use run_once::{Repeat, RunOnce, RunOutcome};
pub use semaphore::Semaphore;
pub use transaction::Transaction;
pub use write_guard::{DowngradeError, WriteGuard};
pub use write_lock::WriteLock;
