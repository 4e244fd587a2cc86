//! [`LockGuard`]: a lock that is held. Dropping the guard releases it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::client::OpOutcome;
use crate::error::{LockError, LossReason, Operation, Result};
use crate::locks::guard_signals::{GuardSignals, WaitObserver};
use crate::locks::held_here;
use crate::locks::locking::{self, Released};
use crate::locks::transaction::{self, Transaction};
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Claim, Request};
use crate::session::Session;
use crate::time::{Latch, until};

/// A lock that is held. Dropping the guard releases the lock, also during a panic.
///
/// A guard alone does not prove that the lock is held: the session may be lost at any time. Ask
/// [`is_owner`](LockGuard::is_owner) before each action that only the owner may take, or wait for
/// [`lost`](LockGuard::lost) at the same time. For an action on a resource outside this process,
/// pass the [`fencing_token`](LockGuard::fencing_token) along.
///
/// `Send` and `Sync`; any thread may drop it.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct LockGuard {
    /// Declared before the session, as fields are dropped in this order: the request is withdrawn,
    /// then the session may close.
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

    /// Holds the lock with less access. On an error nothing changes.
    pub(crate) fn downgrade(
        self,
        access: Access,
        support: &ProtocolSupport,
    ) -> std::result::Result<LockGuard, (LockGuard, LockError)> {
        let signals = GuardSignals::of(1);
        let observer = WaitObserver::new(&signals, self.claim.core().runtime());
        match locking::downgrade(&self.claim, access, support, observer) {
            Ok((request, znode)) => {
                let guard = LockGuard::new(self.session, Claim::on(request), znode, signals);
                held_here::note_downgrade(&self.claim, &guard);
                // Dropping `self` withdraws the former request.
                Ok(guard)
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Returns whether the lock is still held, proven up to now. Does no I/O and does not block.
    ///
    /// Always `false` in a forked child of the holder.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.claim.is_owner()
    }

    /// Returns for how long the lock is still held if all contact is lost now; zero if it is not
    /// held. Does no I/O and does not block.
    ///
    /// Each proof of the session's life extends it, several in each session timeout. A holder that
    /// needs time to stop its work begins early enough, and not only when the lock is
    /// [`lost`](LockGuard::lost). Another client that deletes the znode ends it early.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.claim.lease_remaining()
    }

    /// Returns the full path of the lock's znode.
    #[must_use]
    pub fn id(&self) -> &str {
        self.znode.as_str()
    }

    /// Returns a channel on which the reason arrives when the lock is lost; for use in
    /// [`select!`](crossbeam_channel::select). Nothing arrives when the lock is released.
    /// [`loss`](LockGuard::loss) keeps the reason.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Waits until the lock is lost, and returns the reason, in a task of an async runtime.
    ///
    /// It completes when a reason arrives on [`lost`](LockGuard::lost), and leaves that channel as it is. Any
    /// number of futures may wait, and one that is dropped takes nothing from the others. A callback thread
    /// of the session wakes the task. In a forked child it completes at once.
    ///
    /// ```no_run
    /// # use zookeeper_recipes_lock::LockGuard;
    /// # async fn work(guard: &LockGuard) {}
    /// # async fn serve(guard: LockGuard) {
    /// tokio::select! {
    ///     reason = guard.lost_async() => eprintln!("no longer the owner: {reason}"),
    ///     () = work(&guard) => {}
    /// }
    /// # }
    /// ```
    pub async fn lost_async(&self) -> LossReason {
        // First: a forked child takes no mutex.
        if let Some(reason) = self.loss() {
            return reason;
        }
        let reason = until(self.session.process(), [self.signals.first_loss()], || self.loss()).await;
        reason.unwrap_or(LossReason::SessionExpired)
    }

    /// Returns why the lock was lost; `None` while it is held, and perhaps for a moment after
    /// [`is_owner`](LockGuard::is_owner) has become false.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.claim.loss()
    }

    /// Returns a channel on which one message arrives when somebody asks for the lock, through a
    /// [`Revoker`](crate::queue::Revoker), or by writing `unlock`, or Curator's `__REVOKE__`, to the znode. The holder decides whether
    /// and when to release it. For use in [`select!`](crossbeam_channel::select).
    ///
    /// It arrives about 100 ms after the acquisition or later, and never if the ACL denies this
    /// client READ. The other side may take the lock
    /// [by force](crate::queue::Revoker::force_revocation_after) after some time.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Returns a number that grows with every later owner of this lock, and of any other lock in
    /// the ensemble: the transaction id that created the znode.
    ///
    /// A resource that stores the largest number it has seen and refuses smaller ones is safe from
    /// an owner that was paused and has not noticed its loss. The numbers go back if the ensemble loses
    /// its data or is restored from a backup: `docs/operations.md` in the repository says what to do then.
    ///
    /// # Errors
    /// None on a session that this crate has opened, as its servers report the number when they
    /// create the znode. With another client, the simulated one among them, the first call asks the
    /// server and blocks until it answers: make it as soon as the lock is acquired. It may fail with
    /// [`NotOwner`](crate::ErrorReason::NotOwner) if the znode does not exist any more,
    /// [`AccessDenied`](crate::ErrorReason::AccessDenied) without READ on newer servers,
    /// [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed),
    /// [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss).
    pub fn fencing_token(&self) -> Result<i64> {
        self.claim.fencing_token()
    }

    /// Changes znodes in one transaction, which takes effect only while the lock is held. Returns
    /// what each operation has done, in order.
    ///
    /// The transaction also checks that the lock's znode exists. So an owner that has been replaced
    /// changes nothing, even if it has not noticed its loss: no fencing token is needed for what is
    /// kept in ZooKeeper itself.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), zookeeper_recipes_lock::LockError> {
    /// # let session = zookeeper_recipes_lock::Session::connect("localhost:2181", std::time::Duration::from_secs(10))?;
    /// let lock = zookeeper_recipes_lock::BlockingWriteLock::new(&session, "/locks/report")?;
    /// let guard = lock.lock()?;
    /// guard.commit(|changes| changes.set_data("/report/latest", "2026-07").delete("/report/draft"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first group says that nothing was changed:
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): the lock is not held any more.
    /// - [`Server`](crate::ErrorReason::Server), [`AccessDenied`](crate::ErrorReason::AccessDenied) and others with
    ///   the path of the operation that failed: the transaction failed because of it. The check of
    ///   the lock's own znode needs READ there.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the transaction is empty, is too long for
    ///   a server, or names the lock's own znode. [`InvalidArgument`](crate::ErrorReason::InvalidArgument).
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): the client of the session has no transactions, as
    ///   the crate `zookeeper`.
    ///
    /// After the others the changes may have been made: [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss),
    /// [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown), [`SessionLost`](crate::ErrorReason::SessionLost),
    /// [`Closed`](crate::ErrorReason::Closed). After a [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss) they may even be
    /// made later, until the next commit under this lock or its release is answered: from then on they are
    /// made or never will be. For that, the next commit first raises the version of the lock's own znode,
    /// by a write of the same data, which needs WRITE there. Read the changes, or give versions, before you
    /// commit them again.
    pub fn commit(&self, changes: impl FnOnce(Transaction) -> Transaction) -> Result<Vec<OpOutcome>> {
        let changes = changes(Transaction::default());
        transaction::commit(&self.claim, &self.znode, self.is_owner(), changes)
    }

    /// Releases the lock and waits until the server has deleted the znode. Dropping the guard does
    /// that in the background.
    ///
    /// Returns [`Released::Pending`] at once while the session is suspended, or when it becomes so.
    /// A silent connection counts as lost after two fifths of the session timeout.
    ///
    /// # Errors
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`RequestDeleted`](crate::ErrorReason::RequestDeleted),
    ///   [`HeldTooLong`](crate::ErrorReason::HeldTooLong) or [`Closed`](crate::ErrorReason::Closed): the lock was lost before, so the work under it may have
    ///   overlapped with the next owner's.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied) or another refusal of the server: the lock is
    ///   released, but its znode blocks others. The deletion is repeated in the background until it
    ///   succeeds or the session ends.
    pub fn unlock(self) -> Result<Released> {
        self.release()
    }

    /// As [`unlock`](LockGuard::unlock), for a guard that others may have, too.
    pub(crate) fn release(&self) -> Result<Released> {
        let released = locking::release(&self.claim);
        if self.claim.was_taken_away() { Err(self.claim.end_error(Operation::UNLOCK)) } else { released }
    }

    /// The latch that is set once the lock is lost, or somebody asks for it.
    pub(crate) fn reported(&self) -> &Latch {
        self.signals.reported()
    }

    pub(crate) fn request(&self) -> Arc<Request> {
        Arc::clone(&self.claim)
    }

    /// Releases a lost lock without blocking, and returns why it was lost.
    pub(crate) fn into_loss(self) -> LockError {
        self.claim.withdraw();
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
