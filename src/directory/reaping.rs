//! Deleting the requests of others, by force.
//!
//! Origin: `reapExpiredLocks` of HBase's `InterProcessLock`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::lock_info::LockInfo;
use crate::client::ZkError;
use crate::error::{LockError, Operation, Result};
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::session::Core;

/// Whether a request is certainly one, and old enough. One whose age is not to be known is only when any age is.
pub(super) fn is_expired(request: &LockInfo, older_than: Duration, now: SystemTime) -> bool {
    let age = |created| now.duration_since(created).unwrap_or_default();
    let is_old = request.created().map_or(older_than.is_zero(), |created| age(created) >= older_than);
    is_old && request.kind() != LockKind::Other
}

/// Deletes requests, on a worker, and returns those that were deleted here.
///
/// From the back of the queue to its head: so none of them acquires the lock because of the deletion of another.
pub(super) fn delete_all(core: &Arc<Core>, mut queue: Vec<LockInfo>) -> Result<Vec<LockInfo>> {
    let mut deleted = Vec::new();
    while let Some(request) = queue.pop() {
        match core.write(|client| client.delete(request.path(), request.version())) {
            Ok(()) => {
                logging::warn!("reaped {request}");
                deleted.push(request);
            }
            // It has gone by itself, has shown a sign of life, or is a directory that only looks like a request.
            Err(ZkError::NoNode | ZkError::BadVersion | ZkError::NotEmpty) => {}
            Err(error) => return Err(LockError::client(Operation::REAP, request.path(), error)),
        }
    }
    deleted.reverse();
    Ok(deleted)
}
