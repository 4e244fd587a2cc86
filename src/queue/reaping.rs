//! Deletes the requests of other processes.
//!
//! Origin: `reapExpiredLocks` of HBase's `InterProcessLock`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::lock_info::LockInfo;
use crate::client::{Acl, Call, CreateMode, Op, OpOutcome, Stat, Transacted};
use crate::error::{LockError, Operation, Result, ZkError};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// Returns whether a request is old enough. A request of unknown age is old enough only if `older_than` is zero.
pub(super) fn is_old(request: &LockInfo, older_than: Duration, now: SystemTime) -> bool {
    let age = |created| now.duration_since(created).unwrap_or_default();
    request.created.map_or(older_than.is_zero(), |created| age(created) >= older_than)
}

/// Returns the current time by the servers' clock, which also dates the creation of requests.
///
/// Only the reply to a write contains that time. So one transaction creates a znode in the directory, writes
/// to it and deletes it again. Returns `None` if the directory does not exist.
pub(super) fn server_time(core: &Arc<Core>, dir: &ZNodePath) -> Result<Option<SystemTime>> {
    // The name does not end in a number, so nobody takes the znode for a request.
    let path = dir.child(&format!("clock-{}-now", core.new_guid())).to_string();
    let operations = [
        Op::Create {
            path: path.clone(),
            data: Vec::new(),
            acl: Acl::open_unsafe().to_vec(),
            mode: CreateMode::Persistent,
        },
        Op::SetData { path: path.clone(), data: Vec::new(), version: None },
        Op::Delete { path, version: None },
    ];
    match core.call(Operation::CREATE_IN, dir, Call::multi(operations))? {
        Transacted::Committed(outcomes) => {
            let written = outcomes.iter().find_map(|outcome| match outcome {
                OpOutcome::DataSet(stat) => Some(Stat::modified(stat)),
                _ => None,
            });
            written
                .map(Some)
                .ok_or_else(|| LockError::client(Operation::CREATE_IN, dir, ZkError::MarshallingError))
        }
        Transacted::Failed { error: ZkError::NoNode, .. } => Ok(None),
        Transacted::Failed { error, .. } => Err(LockError::client(Operation::CREATE_IN, dir, error)),
    }
}

/// Deletes requests, and returns those that it deleted.
///
/// Starts at the end of the queue, so that no deletion lets another of these requests acquire the lock.
pub(super) fn delete_all(core: &Arc<Core>, mut queue: Vec<LockInfo>) -> Result<Vec<LockInfo>> {
    let mut deleted = Vec::new();
    while let Some(request) = queue.pop() {
        if delete(core, &request)? {
            logging::warn!("reaped {request}");
            deleted.push(request);
        }
    }
    deleted.reverse();
    Ok(deleted)
}

/// Deletes a request unless another znode now has its name. That happens if the directory was created anew, because its
/// sequence numbers and versions then start again. Returns whether the request was deleted.
///
/// Servers delete by version, not by czxid. So the znode may still be replaced between the two calls.
fn delete(core: &Arc<Core>, request: &LockInfo) -> Result<bool> {
    let path = ZNodePath::from_server(request.path.as_str());
    if let Some(czxid) = request.czxid {
        let present = core.call(Operation::REAP, &path, Call::exists(&path, false))?;
        if present.is_none_or(|present| present.czxid != czxid) {
            return Ok(false);
        }
    }
    match (core.ask(Call::delete(&path, request.version)), request.czxid) {
        (Ok(()), _) => Ok(true),
        (Err(ZkError::NoNode), Some(czxid)) => {
            match core.check_gone(Operation::REAP, &path, czxid) {
                // The connection was lost meanwhile, so nobody has seen whether the znode is still shown. The next call
                // lists the queue again.
                Err(error) if error.is_connection_loss() => Ok(false),
                checked => checked.map(|()| false),
            }
        }
        // The znode was deleted, replaced or written during the call, or is a directory with the name of a request.
        (Err(ZkError::NoNode | ZkError::BadVersion | ZkError::NotEmpty), _) => Ok(false),
        (Err(error), _) => Err(core.failure(Operation::REAP, &path, error)),
    }
}
