//! [`MultiGuard`]: several locks that are held together. Dropping the guard releases them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{LockError, LossReason, Result};
use crate::locks::guard_signals::GuardSignals;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// Several locks that are held together, by a [`MultiLock`](crate::locks::MultiLock). Dropping the guard
/// releases them, the last one acquired first, also during a panic.
///
/// See [`LockGuard`] for what holds for each of them. `Send` and `Sync`; any thread may drop it.
#[must_use = "the locks are released at once when the guard is not kept"]
pub struct MultiGuard {
    /// In the order in which they were acquired.
    guards: Vec<LockGuard>,
    signals: Arc<GuardSignals>,
}

impl MultiGuard {
    pub(crate) fn empty(signals: Arc<GuardSignals>) -> MultiGuard {
        MultiGuard { guards: Vec::new(), signals }
    }

    pub(crate) fn add(&mut self, guard: LockGuard) {
        self.guards.push(guard);
    }

    /// Removes a lost lock and returns why it was lost.
    pub(crate) fn take_loss(&mut self) -> Option<LockError> {
        let lost = self.guards.iter().position(|guard| !guard.is_owner())?;
        Some(self.guards.remove(lost).into_loss())
    }

    /// Returns whether all locks are still held, proven up to now. Does no I/O and does not block.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.guards.iter().all(LockGuard::is_owner)
    }

    /// Returns for how long all locks are held if all contact is lost now, as
    /// [`LockGuard::lease_remaining`] of the one whose lease ends first.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::lease_remaining).min().unwrap_or_default()
    }

    /// Returns the guard of each lock, in the order of their directories' names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns a channel on which the reason arrives for each lock that is lost; for use in
    /// [`select!`](crossbeam_channel::select). Nothing arrives when they are released. The guards
    /// share it.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Returns why a lock was lost; `None` while all are held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guards.iter().find_map(LockGuard::loss)
    }

    /// Returns a channel on which a message arrives for each lock that somebody asks for, as on
    /// [`LockGuard::revocation`]. The guards share it.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Releases the locks, the last one acquired first, and waits until the server has deleted
    /// their znodes. During an outage it returns [`Released::Pending`].
    ///
    /// # Errors
    /// As [`LockGuard::unlock`], for any of them; a loss takes precedence. All are released
    /// nevertheless.
    pub fn unlock(mut self) -> Result<Released> {
        let guards = std::mem::take(&mut self.guards);
        let outcomes = guards.into_iter().rev().map(LockGuard::unlock);
        let (released, errors): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
        // A loss takes precedence over a refused deletion.
        if let Some(error) = errors.into_iter().filter_map(Result::err).max_by_key(LockError::is_loss) {
            return Err(error);
        }
        let is_pending = released.iter().flatten().any(|released| *released == Released::Pending);
        Ok(if is_pending { Released::Pending } else { Released::Deleted })
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.guards.pop().is_some() {}
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard").field("guards", &self.guards).finish_non_exhaustive()
    }
}
