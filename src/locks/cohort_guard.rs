//! [`CohortGuard`]: a [`CohortLock`](crate::locks::CohortLock) that is held.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::client::OpOutcome;
use crate::error::{LossReason, Result};
use crate::locks::cohort::{Cohort, Grant};
use crate::locks::locking::Released;
use crate::locks::transaction::{self, Transaction};

/// A [`CohortLock`](crate::locks::CohortLock) that is held. Dropping the guard releases the lock, also
/// during a panic.
///
/// A guard alone does not prove that the lock is held: the session may be lost at any time. Ask
/// [`is_owner`](CohortGuard::is_owner) before each action that only the owner may take, or wait for
/// [`lost`](CohortGuard::lost) at the same time.
///
/// `Send` and `Sync`; any thread may drop it.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct CohortGuard {
    /// Whose request is withdrawn before the session may close, which the cohort has.
    grant: Grant,
    cohort: Arc<Cohort>,
    /// Made when they are asked for.
    lost: OnceLock<Receiver<LossReason>>,
    revocation: OnceLock<Receiver<()>>,
    is_released: bool,
}

impl CohortGuard {
    pub(crate) fn new(cohort: &Arc<Cohort>, grant: Grant) -> CohortGuard {
        let (lost, revocation) = (OnceLock::new(), OnceLock::new());
        if grant.tenure > 1 {
            grant.request.report_hand_over();
        }
        CohortGuard { grant, cohort: Arc::clone(cohort), lost, revocation, is_released: false }
    }

    /// Returns whether the lock is still held, proven up to now. Does no I/O and does not block.
    ///
    /// Always `false` in a forked child of the holder.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.grant.request.tenure() == self.grant.tenure && self.grant.request.is_owner()
    }

    /// Returns for how long the lock is held if all contact is lost now, as
    /// [`LockGuard::lease_remaining`](crate::LockGuard::lease_remaining).
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        if self.is_owner() { self.grant.request.lease_remaining() } else { Duration::ZERO }
    }

    /// Returns the full path of the process's znode, which other guards of the lock may have had.
    #[must_use]
    pub fn id(&self) -> &str {
        self.grant.request.path().as_str()
    }

    /// Returns a channel on which the reason arrives when the lock is lost; for use in
    /// [`select!`](crossbeam_channel::select). Nothing arrives when the lock is released.
    /// [`loss`](CohortGuard::loss) keeps the reason.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.lost.get_or_init(|| {
            let (sender, lost) = bounded(1);
            if !self.cohort.shared.report_loss_to(&self.grant, &sender) {
                let _ = self.loss().map(|reason| sender.try_send(reason));
            }
            lost
        })
    }

    /// Returns why the lock was lost; `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.grant.request.loss()
    }

    /// Returns a channel on which one message arrives when another client asks for the lock, as
    /// [`LockGuard::revocation`](crate::LockGuard::revocation) does. No other thread of this
    /// process gets the lock then before it is released to the other client.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.revocation.get_or_init(|| {
            let (sender, revocation) = bounded(1);
            self.cohort.shared.report_revocation_to(&self.grant, &sender);
            if self.grant.request.is_revocation_requested() {
                // It may have arrived by now, and then there is no room for another.
                let _ = sender.try_send(());
            }
            revocation
        })
    }

    /// Returns the fencing token of the process's znode, as
    /// [`LockGuard::fencing_token`](crate::LockGuard::fencing_token) does.
    ///
    /// It grows with every later owner in another process, and each time this process joins the
    /// queue again. The threads that hand the lock over in memory have the same one: the token
    /// orders processes, not the threads of one.
    ///
    /// # Errors
    /// As [`LockGuard::fencing_token`](crate::LockGuard::fencing_token).
    pub fn fencing_token(&self) -> Result<i64> {
        self.grant.request.fencing_token()
    }

    /// Changes znodes in one transaction, which takes effect only while this process holds the lock,
    /// as [`LockGuard::commit`](crate::LockGuard::commit) does.
    ///
    /// # Errors
    /// As [`LockGuard::commit`](crate::LockGuard::commit).
    pub fn commit(&self, changes: impl FnOnce(Transaction) -> Transaction) -> Result<Vec<OpOutcome>> {
        let changes = changes(Transaction::default());
        let request = &self.grant.request;
        transaction::commit(request, request.path(), self.is_owner(), changes)
    }

    /// Releases the lock. Returns [`Released::Kept`] at once if another thread of this process gets
    /// it, or if it is kept for the next one. Otherwise it waits until the server has deleted the
    /// znode, as [`LockGuard::unlock`](crate::LockGuard::unlock) does. Dropping the guard does that
    /// in the background.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock(mut self) -> Result<Released> {
        self.is_released = true;
        self.cohort.unlock(&self.grant)
    }

    #[cfg(test)]
    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }
}

impl Drop for CohortGuard {
    fn drop(&mut self) {
        if !self.is_released && self.cohort.is_of_this_process() {
            self.cohort.release(&self.grant);
        }
    }
}

impl fmt::Debug for CohortGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CohortGuard")
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .finish_non_exhaustive()
    }
}
