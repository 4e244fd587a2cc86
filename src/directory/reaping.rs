//! Deletes the requests of other processes.
//!
//! Origin: `reapExpiredLocks` of HBase's `InterProcessLock`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::lock_info::LockInfo;
use crate::client::Call;
use crate::error::{Operation, Result, ZkError, ZkResult};
use crate::logging;
use crate::recipe::kind::LockKind;
use crate::session::Core;

/// Returns whether a request is of a known kind and old enough. One of unknown age is old enough only if
/// any age is.
pub(super) fn is_expired(request: &LockInfo, older_than: Duration, now: SystemTime) -> bool {
    let age = |created| now.duration_since(created).unwrap_or_default();
    let is_old = request.created.map_or(older_than.is_zero(), |created| age(created) >= older_than);
    is_old && request.kind != LockKind::Other
}

/// Deletes requests, and returns those that it deleted.
///
/// It goes from the back of the queue to its head, so that none of them acquires the lock because
/// another one is deleted.
pub(super) fn delete_all(core: &Arc<Core>, mut queue: Vec<LockInfo>) -> Result<Vec<LockInfo>> {
    let mut deleted = Vec::new();
    while let Some(request) = queue.pop() {
        match delete(core, &request) {
            Ok(()) => {
                logging::warn!("reaped {request}");
                deleted.push(request);
            }
            // It was deleted, replaced or written meanwhile, or it is a directory named like a request.
            Err(ZkError::NoNode | ZkError::BadVersion | ZkError::NotEmpty) => {}
            Err(error) => return Err(core.failure(Operation::REAP, &request.path, error)),
        }
    }
    deleted.reverse();
    Ok(deleted)
}

/// Deletes a request, unless another znode has its name by now: a directory that is created anew gives
/// each number again, and versions start again as well.
///
/// Servers delete by version, not by czxid. So this does not exclude that the znode is replaced
/// between the two calls.
fn delete(core: &Arc<Core>, request: &LockInfo) -> ZkResult<()> {
    let path = request.path.as_str();
    if request.czxid.is_some() {
        let present = core.ask(Call::exists(path, false))?;
        if present.map(|stat| stat.czxid) != request.czxid {
            return Err(ZkError::NoNode);
        }
    }
    core.ask(Call::delete(path, request.version))
}
