//! [`MultiGuard`]: several locks that are held together, released when the guard goes.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::error::{LockError, LossReason, Result};
use crate::locks::guard_signals::GuardSignals;
use crate::locks::lock_guard::LockGuard;

/// Several locks that are held together, by a [`MultiLock`](crate::MultiLock). Dropping it releases them, the last one that
/// was acquired first, also when a panic unwinds.
///
/// What a [`LockGuard`] says of one lock holds for each of these. `Send` and `Sync`; it may be dropped on any thread.
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

    /// Takes out a lock that is not held any more and returns why.
    pub(crate) fn take_loss(&mut self) -> Option<LockError> {
        let lost = self.guards.iter().position(|guard| !guard.is_owner())?;
        Some(self.guards.remove(lost).into_loss())
    }

    /// Returns whether all locks are still held, and provably so until now. Does no I/O and waits for nothing.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.guards.iter().all(LockGuard::is_owner)
    }

    /// Returns the guard of each lock, in the order in which they were acquired: that of their directories' names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns a channel on which the reason arrives when one of the locks is taken away, and again when another is; usable
    /// in [`select!`](crossbeam_channel::select). Nothing arrives when they are released. The guards share it.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Returns a channel on which a message arrives when somebody asks for one of the locks, and again for another, as
    /// [`LockGuard::revocation`] says. The guards share it.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Returns the [`fencing_token`](LockGuard::fencing_token) of each lock, in the order of [`guards`](MultiGuard::guards).
    ///
    /// A resource that is guarded by one of the locks wants that lock's token.
    ///
    /// # Errors
    /// As [`LockGuard::fencing_token`], for the first lock that has none.
    pub fn fencing_tokens(&self) -> Result<Vec<i64>> {
        self.guards.iter().map(LockGuard::fencing_token).collect()
    }

    /// Releases the locks, the last one that was acquired first, and waits until the server has deleted their znodes.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`], for any of them; all are released all the same. That one was taken away outweighs that the
    /// deletion of another is [pending](LockError::DeletePending).
    pub fn unlock(mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.guards);
        let errors = guards.into_iter().rev().filter_map(|guard| guard.unlock().err());
        errors.max_by_key(|error| !error.is_recoverable()).map_or(Ok(()), Err)
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
