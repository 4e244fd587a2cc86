//! [`CohortGuard`]: a held [`CohortLock`](crate::locks::CohortLock).

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::client::OpOutcome;
use crate::error::{LossReason, Result};
use crate::locks::cohort::{Cohort, Grant};
use crate::locks::guard_signals::ChannelsOfChild;
use crate::locks::locking::Released;
use crate::locks::transaction::{self, Transaction};

/// A [`CohortLock`](crate::locks::CohortLock) that is held until the guard is dropped.
///
/// Having a guard does not prove that the lock is still held: the session may be lost at any time. So check
/// [`is_owner`](CohortGuard::is_owner) before each action that only the owner may take, or watch
/// [`lost`](CohortGuard::lost) while you work.
///
/// A panic that unwinds also drops the guard. `CohortGuard` is `Send` and `Sync`: any thread may use or drop it.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct CohortGuard {
    /// Declared before the cohort, which holds the session, so that the request is withdrawn before the
    /// session may close.
    grant: Grant,
    cohort: Arc<Cohort>,
    /// Created on first use, like `revocation`.
    lost: OnceLock<Receiver<LossReason>>,
    revocation: OnceLock<Receiver<()>>,
    of_child: ChannelsOfChild,
    is_released: bool,
}

impl CohortGuard {
    pub(crate) fn new(cohort: &Arc<Cohort>, grant: Grant) -> CohortGuard {
        let (lost, revocation) = (OnceLock::new(), OnceLock::new());
        if grant.tenure > 1 {
            grant.request.report_hand_over();
        }
        let (cohort, of_child) = (Arc::clone(cohort), ChannelsOfChild::new());
        CohortGuard { grant, cohort, lost, revocation, of_child, is_released: false }
    }

    /// Returns whether the lock is provably held at this moment.
    ///
    /// Does no I/O and does not block. Always `false` in a forked child of the holder.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.grant.request.tenure() == self.grant.tenure && self.grant.request.is_owner()
    }

    /// Returns how long the lock would stay held if all contact were lost now.
    ///
    /// See [`LockGuard::lease_remaining`](crate::LockGuard::lease_remaining).
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        if self.is_owner() { self.grant.request.lease_remaining() } else { Duration::ZERO }
    }

    /// Returns the full path of the process's znode.
    ///
    /// Other threads of this process may have held the lock with the same znode before.
    #[must_use]
    pub fn id(&self) -> &str {
        self.grant.request.path().as_str()
    }

    /// Returns a channel that receives the reason when the lock is lost.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). Nothing arrives when the lock is released. The reason
    /// arrives once; [`loss`](CohortGuard::loss) returns it at any later time. In a forked child of the holder, a
    /// reason arrives immediately.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        if !self.cohort.is_of_this_process() {
            return self.of_child.lost();
        }
        self.lost.get_or_init(|| {
            let (sender, lost) = bounded(1);
            if !self.cohort.shared.report_loss_to(&self.grant, &sender) {
                let _ = self.loss().map(|reason| sender.try_send(reason));
            }
            lost
        })
    }

    /// Returns why the lock was lost, or `None` while it is held.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.grant.request.loss()
    }

    /// Returns a channel that receives a message when a release is requested.
    ///
    /// See [`LockGuard::revocation`](crate::LockGuard::revocation). Once another client has requested the
    /// release, the lock is not handed over to another thread of this process: the next release frees the
    /// lock for other processes.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        if !self.cohort.is_of_this_process() {
            return self.of_child.revocation();
        }
        self.revocation.get_or_init(|| {
            let (sender, revocation) = bounded(1);
            self.cohort.shared.report_revocation_to(&self.grant, &sender);
            if self.grant.request.is_revocation_requested() {
                // Sending fails if the message has just arrived, because the channel has room for one.
                let _ = sender.try_send(());
            }
            revocation
        })
    }

    /// Returns the fencing token of the process's znode.
    ///
    /// See [`LockGuard::fencing_token`](crate::LockGuard::fencing_token). The token is larger for every later owner in
    /// another process, and each time this process joins the queue again. Threads that hand the lock over in memory
    /// share one token: it orders processes, not the threads of one process.
    ///
    /// # Errors
    /// The same as [`LockGuard::fencing_token`](crate::LockGuard::fencing_token).
    pub fn fencing_token(&self) -> Result<i64> {
        self.grant.request.fencing_token()
    }

    /// Changes znodes in one transaction under the lock.
    ///
    /// The transaction takes effect only while this process holds the lock. See
    /// [`LockGuard::commit`](crate::LockGuard::commit).
    ///
    /// # Errors
    /// The same as [`LockGuard::commit`](crate::LockGuard::commit).
    pub fn commit(&self, changes: impl FnOnce(Transaction) -> Transaction) -> Result<Vec<OpOutcome>> {
        let changes = changes(Transaction::default());
        let request = &self.grant.request;
        transaction::commit(request, request.path(), self.is_owner(), changes)
    }

    /// Releases the lock.
    ///
    /// Returns [`Released::Kept`] immediately if another thread of this process gets the lock, or if the lock
    /// is kept for the next thread. Otherwise, the call waits until the server has deleted the znode, like
    /// [`LockGuard::unlock`](crate::LockGuard::unlock). Dropping the guard does the same in the background.
    ///
    /// # Errors
    /// The same as [`LockGuard::unlock`](crate::LockGuard::unlock).
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
        if !self.is_released {
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
