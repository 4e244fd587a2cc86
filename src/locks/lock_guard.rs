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

/// A lock that is held until the guard is dropped.
///
/// Having a guard does not prove that the lock is still held: the session may be lost at any time. So check
/// [`is_owner`](LockGuard::is_owner) before each action that only the owner may take, or watch
/// [`lost`](LockGuard::lost) while you work. If an action changes a resource outside this process, send the
/// [`fencing_token`](LockGuard::fencing_token) along.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::crossbeam_channel::{Receiver, select};
/// use zookeeper_recipes_lock::{BlockingWriteLock, LockError, Session};
///
/// # fn handle(_job: String) {}
/// fn work(session: &Session, jobs: &Receiver<String>) -> Result<(), LockError> {
///     let guard = BlockingWriteLock::new(session, "/locks/jobs")?.lock()?;
///     while guard.is_owner() {
///         select! {
///             recv(jobs) -> job => match job {
///                 Ok(job) => handle(job),
///                 Err(_) => break, // no more jobs
///             },
///             recv(guard.lost()) -> _ => break,
///             recv(guard.revocation()) -> _ => break, // another client requests the release
///         }
///     }
///     guard.unlock().map(drop)
/// }
/// ```
///
/// A panic that unwinds also drops the guard. `LockGuard` is `Send` and `Sync`: any thread may use or drop it.
#[must_use = "the lock is released at once when the guard is not kept"]
pub struct LockGuard {
    /// Declared before the session because fields are dropped in this order. The request must be withdrawn before the
    /// session may close.
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

    /// Reduces the access that the lock grants. On an error nothing changes.
    pub(crate) fn downgrade(
        self,
        access: Access,
        support: &ProtocolSupport,
    ) -> std::result::Result<LockGuard, (LockGuard, LockError)> {
        let signals = GuardSignals::of(1, self.session.process());
        let observer = WaitObserver::new(&signals, self.claim.core().runtime());
        match locking::downgrade(&self.claim, &self.znode, access, support, observer) {
            Ok((request, znode)) => {
                let guard = LockGuard::new(self.session, Claim::on(request), znode, signals);
                held_here::note_downgrade(&self.claim, &guard);
                // Dropping `self` withdraws the old request.
                Ok(guard)
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Returns whether the lock is provably held at this moment.
    ///
    /// Does no I/O and does not block. Once `false`, it stays `false`. It is always `false` in a forked child of the
    /// holder. If another client deletes the lock's znode, the result becomes `false` only a moment later.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.claim.is_owner()
    }

    /// Returns how long the lock would stay held if all contact were lost now.
    ///
    /// Returns zero if the lock is not held. Does no I/O and does not block.
    ///
    /// The lease is extended each time the session proves that it is alive: by default several times per session
    /// timeout, but never beyond [`max_hold`](crate::LockOptions::max_hold). If you need time to wind down, start while
    /// some lease remains. Once the lock is [`lost`](LockGuard::lost), it is too late. The lock is lost early if
    /// another client deletes the znode.
    #[must_use]
    pub fn lease_remaining(&self) -> Duration {
        self.claim.lease_remaining()
    }

    /// Returns the full path of the lock's znode.
    #[must_use]
    pub fn id(&self) -> &str {
        self.znode.as_str()
    }

    /// Returns a channel that receives the reason when the lock is lost.
    ///
    /// Use it in a [`select!`](crossbeam_channel::select). Nothing arrives when the lock is released, but a clone of
    /// the channel is disconnected then: only `Ok` means a loss. The reason arrives once; [`loss`](LockGuard::loss)
    /// returns it at any later time. In a forked child of the holder, a reason arrives immediately.
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.signals.lost()
    }

    /// Waits in a task until the lock is lost, and returns the reason.
    ///
    /// Works in any async runtime: a callback thread of the session wakes the task. The future leaves the
    /// message in the channel of [`lost`](LockGuard::lost). Any number of futures may wait, and each may be
    /// dropped at any time. A future that nobody polls holds nothing. In a forked child the future completes immediately.
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
        let (process, loss) = (self.session.process(), self.loss());
        // A forked child leaves the latch alone: a thread of the parent may have been creating it at the moment of the
        // fork.
        if loss.is_some() || !process.is_current() {
            return loss.unwrap_or(LossReason::SessionLost);
        }
        let reason = until(process, [self.signals.first_loss()], || self.loss()).await;
        reason.unwrap_or(LossReason::SessionLost)
    }

    /// Returns why the lock was lost, or `None` while it is held.
    ///
    /// The result may still be `None` for a moment after [`is_owner`](LockGuard::is_owner) has become
    /// `false`.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.claim.loss()
    }

    /// Returns a channel that receives a message when a release is requested.
    ///
    /// Another client requests a release through a [`Revoker`](crate::queue::Revoker), or by writing `unlock` or
    /// Curator's `__REVOKE__` to the znode. The holder decides whether and when to release the lock, but the
    /// other client may eventually take the lock [by force](crate::queue::Revoker::force_revocation_after).
    /// Use the channel in a [`select!`](crossbeam_channel::select).
    ///
    /// At most one message arrives for each lock. During the first 100 ms or so after the acquisition, the message may
    /// be held back until that time has passed. No message arrives if the ACL denies this client READ.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.signals.revocation()
    }

    /// Returns a number that is larger for every later exclusive owner of the lock.
    ///
    /// For readers and permits, the number has a different meaning: see [`ReadGuard`](crate::locks::ReadGuard) and
    /// [`Permit`](crate::locks::Permit).
    ///
    /// The number is the id of the transaction that created the znode, so it grows across all locks of the ensemble.
    /// After a [downgrade](crate::locks::WriteGuard::downgrade), it is still the number of the writer's znode. Send it
    /// along with each write to the resource that the lock protects. The resource must store the largest number that it
    /// has seen, and refuse smaller ones. Then an owner that was paused and has not noticed its loss changes nothing
    /// once a later owner has written. An owner that begins by reading the resource must first write its number there.
    ///
    /// The numbers go backwards if the ensemble loses data or is restored from a backup. The [operations
    /// guide](crate::guide::operations) says what to do then.
    ///
    /// # Errors
    /// The servers report the number when they create the znode. The call fails only if that reply was lost and the
    /// number could not be read afterwards and cannot be read now.
    ///
    /// On a session of another client library that does not report the number, the first call asks the server and
    /// blocks until it answers. Make that call as soon as the lock is acquired. It may fail with:
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): the znode no longer exists.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied): newer servers require READ.
    /// - [`SessionLost`](crate::ErrorReason::SessionLost), [`Closed`](crate::ErrorReason::Closed),
    ///   [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`Refused`](crate::ErrorReason::Refused).
    #[doc(alias = "fencing")]
    pub fn fencing_token(&self) -> Result<i64> {
        self.claim.fencing_token()
    }

    /// Changes znodes in one transaction that takes effect only while the lock is held.
    ///
    /// Returns the outcome of each operation, in order. The transaction also checks that the lock's znode exists. So an
    /// owner that has been replaced changes nothing, even if it has not noticed its loss. Data in ZooKeeper itself
    /// therefore needs no fencing token.
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
    /// After these errors nothing was changed:
    /// - [`NotOwner`](crate::ErrorReason::NotOwner): the lock is no longer held. If a reply shows this before the event
    ///   arrives, [`loss`](LockGuard::loss) reports it at once.
    /// - [`Server`](crate::ErrorReason::Server), [`AccessDenied`](crate::ErrorReason::AccessDenied) and others, with
    ///   the path of the operation that failed. The check of the lock's own znode needs READ on it.
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the transaction is empty, has an invalid
    ///   path or a misplaced [`if_version`](Transaction::if_version), or names the lock's own znode.
    /// - [`CallTooLong`](crate::ErrorReason::CallTooLong): the servers could not handle the transaction.
    ///   [`SessionBuilder::jute_max_buffer`](crate::SessionBuilder::jute_max_buffer) says how its length is computed.
    /// - [`Unsupported`](crate::ErrorReason::Unsupported): the session's client, such as that of the crate
    ///   `zookeeper`, does not support transactions.
    ///
    /// After these errors the changes may have been made: [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss),
    /// [`OutcomeUnknown`](crate::ErrorReason::OutcomeUnknown), [`SessionLost`](crate::ErrorReason::SessionLost),
    /// [`Closed`](crate::ErrorReason::Closed). Before you commit the changes again, read the znodes, or make the
    /// changes [conditional on versions](Transaction::if_version).
    ///
    /// After [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), [`SessionLost`](crate::ErrorReason::SessionLost)
    /// and [`Closed`](crate::ErrorReason::Closed), the changes may even be made later, until the lock's own znode is
    /// deleted. After [`ConnectionLoss`](crate::ErrorReason::ConnectionLoss), the next commit under this lock rules
    /// that out before it makes its own changes: it first raises the version of the lock's own znode by writing the
    /// same data again, which needs WRITE on that znode. A [downgrade](crate::locks::WriteGuard::downgrade) does the
    /// same.
    pub fn commit(&self, changes: impl FnOnce(Transaction) -> Transaction) -> Result<Vec<OpOutcome>> {
        let changes = changes(Transaction::default());
        transaction::commit(&self.claim, &self.znode, self.is_owner(), changes)
    }

    /// Ensures that no commit whose reply was lost can still take effect.
    pub(crate) fn rule_out_lost_commits(&self) -> Result<()> {
        transaction::rule_out_lost(&self.claim, &self.znode, Operation::COMMIT).map(drop)
    }

    /// Ensures that the next commit raises the version of the znode above all that it has had until now.
    pub(crate) fn outdate_version(&self) -> Result<()> {
        transaction::outdate(&self.claim, &self.znode)
    }

    /// Releases the lock and waits until the server has deleted the znode.
    ///
    /// Dropping the guard does the same in the background.
    ///
    /// Without contact, the call returns [`Released::Pending`] instead of waiting. A connection counts as lost once the
    /// server has been silent for two fifths of the session timeout.
    ///
    /// # Errors
    /// - [`LeaseExpired`](crate::ErrorReason::LeaseExpired), [`NodeDeleted`](crate::ErrorReason::NodeDeleted),
    ///   [`HeldTooLong`](crate::ErrorReason::HeldTooLong), [`SessionLost`](crate::ErrorReason::SessionLost) or
    ///   [`Closed`](crate::ErrorReason::Closed): the lock was
    ///   already lost. The work under the lock may have overlapped with the next owner's work.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied), or another reason for which the server refused the
    ///   deletion: the lock is released, but its znode still blocks others. The deletion is retried in the background
    ///   until it succeeds or the session ends.
    pub fn unlock(self) -> Result<Released> {
        self.release()
    }

    /// Like [`unlock`](LockGuard::unlock), for a guard that cannot be moved out of its owner.
    pub(crate) fn release(&self) -> Result<Released> {
        let released = locking::release(&self.claim);
        if self.claim.was_taken_away() { Err(self.claim.end_error(Operation::UNLOCK)) } else { released }
    }

    /// The latch that is set once the lock is lost or another client asks for its release.
    pub(crate) fn reported(&self) -> &Latch {
        self.signals.reported()
    }

    pub(crate) fn request(&self) -> Arc<Request> {
        Arc::clone(&self.claim)
    }

    /// Releases a lost lock without blocking, and returns why it was lost.
    pub(crate) fn into_loss(self) -> LockError {
        let error = self.claim.loss_error(Operation::LOCK);
        self.claim.withdraw();
        error
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
