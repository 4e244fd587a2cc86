//! [`MultiGuard`]: several locks held together. Dropping the guard releases them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{LockError, LossReason, Result};
use crate::locks::guard_signals::GuardSignals;
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;

/// The locks of a [`MultiLock`](crate::locks::MultiLock), held until the guard is dropped.
///
/// The documentation of [`LockGuard`] applies to each lock. The locks are released in reverse order of acquisition. A
/// panic that unwinds also drops the guard. `MultiGuard` is `Send` and `Sync`: any thread may use or drop it.
///
/// A [`commit`](LockGuard::commit) under one of the [`guards`](MultiGuard::guards) takes effect only while *that* lock
/// is held. Another one may be lost by then. The same is true of its [`fencing_token`](LockGuard::fencing_token).
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

    /// Removes a lock that was lost, and returns why.
    pub(crate) fn take_loss(&mut self) -> Option<LockError> {
        let lost = self.guards.iter().position(|guard| !guard.is_owner())?;
        Some(self.guards.remove(lost).into_loss())
    }

    /// Returns whether all locks are provably held at this moment.
    ///
    /// Does no I/O and does not block.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.guards.iter().all(LockGuard::is_owner)
    }

    /// Returns how long all locks would stay held if all contact were lost now.
    ///
    /// This is the shortest [`LockGuard::lease_remaining`].
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.guards.iter().map(LockGuard::lease_remaining).min().unwrap_or_default()
    }

    /// Returns the guards of the locks, in the order of acquisition.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns a channel that receives the reason for each lock that is lost.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). Nothing arrives when the locks are released. The individual
    /// guards share this channel. In a forked child of the holder, a reason arrives immediately.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Returns why a lock was lost, or `None` while all are held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guards.iter().find_map(LockGuard::loss)
    }

    /// Returns a channel that receives a message for each requested release.
    ///
    /// See [`LockGuard::revocation`]. The individual guards share this channel.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Releases all locks, and waits until the server has deleted their znodes.
    ///
    /// The locks are released in reverse order of acquisition. During an outage the call returns [`Released::Pending`].
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`], for any of the locks. If there are several errors, the call returns
    /// a loss rather than another error. Even after an error, all locks are released.
    pub fn unlock(mut self) -> Result<Released> {
        let guards = std::mem::take(&mut self.guards);
        let outcomes = guards.into_iter().rev().map(LockGuard::unlock);
        let (released, errors): (Vec<_>, Vec<_>) = outcomes.partition(Result::is_ok);
        // The caller must learn of a loss before it learns of a refused deletion.
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
