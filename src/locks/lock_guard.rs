//! [`LockGuard`]: a lock that is held, released when the guard goes.

use std::fmt;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use crate::error::{LockError, LossReason, Operation, Result};
use crate::locks::guard_signals::{GuardSignals, WaitObserver};
use crate::locks::locking;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, Request};
use crate::session::Session;

/// A lock that is held. Dropping it releases the lock, also when a panic unwinds.
///
/// Holding a guard is no proof of holding the lock: the session may be lost at any time. Before an action that only the
/// owner may take, ask [`is_owner`](LockGuard::is_owner), or wait for [`lost`](LockGuard::lost) beside it; and where the
/// action reaches a resource outside this process, send the [`fencing_token`](LockGuard::fencing_token) along.
///
/// `Send` and `Sync`; it may be dropped on any thread.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct LockGuard {
    /// Before the session, as fields are dropped in this order: the request is withdrawn, then the session may close.
    claim: Claim,
    session: Session,
    znode: ZNodePath,
    signals: Arc<GuardSignals>,
}

impl LockGuard {
    pub(crate) fn new(
        session: Session,
        claim: Claim,
        znode: ZNodePath,
        signals: Arc<GuardSignals>,
    ) -> LockGuard {
        LockGuard { claim, session, znode, signals }
    }

    /// Goes on holding the lock with less access; on error, as before.
    pub(crate) fn downgrade(
        self,
        access: Access,
        support: &ProtocolSupport,
    ) -> std::result::Result<LockGuard, (LockGuard, LockError)> {
        let signals = GuardSignals::of(1);
        let (observer, _) = WaitObserver::new(&signals);
        match locking::downgrade(&self.claim, access, support, observer) {
            // What was held before is withdrawn as it is dropped here.
            Ok((request, znode)) => Ok(LockGuard::new(self.session, Claim::on(request), znode, signals)),
            Err(error) => Err((self, error)),
        }
    }

    /// Returns whether the lock is still held, and provably so until now. Does no I/O and waits for nothing.
    ///
    /// Always `false` in a process that the holder has forked.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.claim.is_owner()
    }

    /// Returns the full path of the lock's znode.
    #[must_use]
    pub fn id(&self) -> &str {
        self.znode.as_str()
    }

    /// Returns a channel on which the reason arrives when the lock is taken away; usable in
    /// [`select!`](crossbeam_channel::select). Nothing arrives when the lock is released.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Returns a channel on which one message arrives when somebody asks for the lock, through a
    /// [`Revoker`](crate::Revoker) or by writing `unlock` to the znode: it is for the holder to decide whether and when to
    /// let go. Usable in [`select!`](crossbeam_channel::select).
    ///
    /// It arrives at the earliest 100 ms after the lock was acquired, and not where the ACL denies this client READ.
    /// Whoever asks may take the lock away [by force](crate::Revoker::force_revocation_after) if the answer takes too long.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Returns a number that grows with every later owner of this lock, and of every other lock in the ensemble: the
    /// transaction id that created the znode.
    ///
    /// A resource that remembers the largest number it has seen, and refuses smaller ones, is safe from an owner that was
    /// paused and has not noticed that its lock was lost. The first call asks the server, later ones do not.
    ///
    /// # Errors
    /// [`NotOwner`](crate::LockError::NotOwner) when the znode is gone, [`SessionLost`](crate::LockError::SessionLost),
    /// [`ConnectionLoss`](crate::LockError::ConnectionLoss).
    pub fn fencing_token(&self) -> Result<i64> {
        self.claim.fencing_token()
    }

    /// Releases the lock and waits until the server has deleted the znode, where dropping the guard leaves that to the
    /// background.
    ///
    /// # Errors
    /// - [`SessionLost`](crate::LockError::SessionLost), [`RequestDeleted`](crate::LockError::RequestDeleted) or
    ///   [`Closed`](crate::LockError::Closed): the lock was taken away before, so what was done under it may have overlapped
    ///   with the next owner.
    /// - [`DeletePending`](crate::LockError::DeletePending): released, but the znode is deleted only when there is contact again.
    /// - [`AccessDenied`](crate::LockError::AccessDenied) or another refusal of the server:
    ///   released, but the znode blocks others. The deletion is tried again in the background until
    ///   it works or the session ends.
    pub fn unlock(self) -> Result<()> {
        let released = locking::release(&self.claim);
        if self.claim.was_taken_away() { Err(self.claim.end_error(Operation::UNLOCK)) } else { released }
    }

    pub(crate) fn request(&self) -> Arc<Request> {
        Arc::clone(&self.claim)
    }

    /// Lets go of a lock that is not held any more, and says why it is not. Waits for nothing.
    pub(crate) fn into_loss(self) -> LockError {
        self.claim.withdraw(None);
        self.claim.end_error(Operation::LOCK)
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .finish_non_exhaustive()
    }
}
