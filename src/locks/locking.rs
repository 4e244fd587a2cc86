//! What several locks share: building a request, downgrading it and releasing it.

use std::sync::Arc;

use crate::error::{ErrorReason, LockError, Operation, Result, ZkError, ZkResult};
use crate::locks::transaction;
use crate::logging;
use crate::protocol_support::ProtocolSupport;
use crate::recipe::access::Access;
use crate::recipe::path::ZNodePath;
use crate::request::{Downgrade, LastingRequest, Observer, Request, RequestSpec};
use crate::time::Slot;

/// How far the release of a lock has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// The znode is deleted, so the next request in the queue can acquire the lock.
    ///
    /// Also returned if the lock has no request, or if the request has already ended and its znode is gone.
    Deleted,
    /// The lock is released in this process, but no server has confirmed that the znode is deleted.
    ///
    /// A znode that exists is deleted in the background once a server can be reached, and at the latest when the
    /// session ends. Nothing is left to do.
    Pending,
    /// The process keeps the lock for its other threads.
    ///
    /// Another thread already holds it, or can acquire it immediately. Only a
    /// [`CohortGuard`](crate::locks::CohortGuard) returns this.
    Kept,
}

/// Returns the spec of a request with the settings of a lock.
pub(crate) fn spec(dir: &ZNodePath, support: &ProtocolSupport, access: Access) -> RequestSpec {
    let options = support.options();
    RequestSpec {
        dir: dir.clone(),
        data: Arc::clone(options.shared_data()),
        acl: Arc::clone(options.shared_acl()),
        retry: options.retry_policy(),
        access,
        directory_mode: options.directory_mode(),
        max_hold: options.hold_limit(),
    }
}

/// Returns exclusive access, with the naming scheme of the options.
pub(crate) fn exclusive(support: &ProtocolSupport) -> Access {
    Access::Exclusive(support.options().naming_scheme())
}

/// Replaces an owner's request with one that has less access, at the same place in the queue. Returns the new request
/// and its znode. The caller then withdraws the old request.
///
/// On an error, the owner keeps its request, unless the lock was lost. A znode that was already created is deleted in
/// the background.
pub(crate) fn downgrade(
    owner: &Arc<Request>,
    znode: &ZNodePath,
    access: Access,
    support: &ProtocolSupport,
    observer: Arc<dyn Observer>,
) -> Result<(Arc<Request>, ZNodePath)> {
    let (downgrade, fencing_token) = support.retry(Operation::DOWNGRADE, znode, || {
        let downgrade = Downgrade::begin(owner, znode, access)?;
        // A transaction of the owner whose reply was lost must not take effect after a transaction of the new request,
        // because the new request's transactions check only the new znode.
        transaction::rule_out_lost(owner, znode, Operation::DOWNGRADE)?;
        let fencing_token = downgrade.prepare()?;
        Ok((downgrade, fencing_token))
    })?;
    let request = downgrade.complete(fencing_token, observer)?;
    Ok((request, downgrade.znode().clone()))
}

/// Ends a request, and waits until the deletion of its znode has had a first outcome or contact is lost.
pub(crate) fn release(request: &Arc<Request>) -> Result<Released> {
    request.check_process(Operation::UNLOCK)?;
    Release::begin(request).wait()
}

/// Leaves the queue, and waits for the deletion of the znode, because the znode would block the caller's next attempt.
/// A failed deletion is retried in the background.
pub(crate) fn leave(request: &LastingRequest) {
    if let Some(request) = request.take() {
        let _ = release(&request);
    }
}

/// The release of a request whose znode is being deleted.
pub(crate) struct Release<'a> {
    request: &'a Arc<Request>,
    outcome: Slot<ZkResult<()>>,
}

impl Release<'_> {
    /// Ends a request. The caller has checked the process.
    pub(crate) fn begin(request: &Arc<Request>) -> Release<'_> {
        let (first, outcome) = Slot::new();
        request.release(first);
        Release { request, outcome }
    }

    /// Waits until the znode is deleted, the server refuses to delete it, contact is lost, or the session ends.
    pub(crate) fn wait(self) -> Result<Released> {
        let Release { request, outcome } = self;
        request.core().wait(&[outcome.latch(), request.core().ended()], None);
        // The latch is read before the value is taken, so that a value that arrives in between is not missed.
        let is_decided = outcome.latch().is_set();
        let error = match outcome.take() {
            Some(Err(error)) => error,
            Some(Ok(())) => return Ok(Released::Deleted),
            // No deletion has begun, because the request had already ended. Its znode was known, and is gone by now.
            None if is_decided && request.znode().is_some() && !request.may_leave_its_znode() => {
                return Ok(Released::Deleted);
            }
            // The znode is deleted later, by the server if the session has ended.
            None => return Ok(Released::Pending),
        };
        let path = request.znode().map(|znode| znode.to_string()).unwrap_or_default();
        match error {
            ZkError::NoNode => {
                let error = LockError::of(ErrorReason::NodeDeleted, Operation::UNLOCK, path);
                Err(request.core().classify(error))
            }
            ZkError::SessionExpired => Ok(Released::Pending),
            error => match LockError::client(Operation::UNLOCK, &path, error) {
                error if error.is_connection_loss() => Ok(Released::Pending),
                error => Err(error),
            },
        }
    }
}

/// Returns the result of an operation that ran under a lock, or an error if the lock was lost while it ran. A refused
/// deletion is only logged, because the lock was held until then.
pub(crate) fn finish<T, R>(result: T, unlocked: Result<R>) -> Result<T> {
    match unlocked {
        Err(error) if error.is_loss() => Err(error),
        Err(error) => {
            logging::warn!("{error}");
            Ok(result)
        }
        Ok(_) => Ok(result),
    }
}
