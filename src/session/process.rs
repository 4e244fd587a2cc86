//! Sessions in a forked child, where they count as ended.

use std::fmt;
use std::sync::Arc;

use crate::client::{Call, Done, EventSink, Granted, Identity, ZooKeeperClient};
use crate::error::{LockError, LossReason, Operation, Result, ZkError};
use crate::process::Process;
use crate::session::Core;
use crate::time::Runtime;

/// Fails in a forked child of `process`, where every session of the parent counts as ended. Takes no mutex.
///
/// # Errors
/// `SessionLost`.
pub(crate) fn check_process(process: Process, operation: Operation, path: impl fmt::Display) -> Result<()> {
    match process.is_current() {
        true => Ok(()),
        false => Err(LockError::ended(operation, path, LossReason::SessionLost)),
    }
}

/// Creates the core of a session in a forked child. The core has ended, and no thread of the parent holds its mutexes.
pub(super) fn core_of_child(runtime: &Arc<dyn Runtime>) -> Arc<Core> {
    let client: Arc<dyn ZooKeeperClient> = Arc::new(NoClient);
    Core::ended_on(client, Arc::clone(runtime))
}

/// The client of a session that has ended.
struct NoClient;

impl ZooKeeperClient for NoClient {
    fn submit(&self, _call: Call, done: Done) {
        done.finish(Err(ZkError::SessionExpired));
    }

    fn subscribe(&self, _sink: EventSink) -> bool {
        false
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn granted(&self) -> Granted {
        Granted::new(super::MIN_TIMEOUT)
    }

    fn close(&self) {}
}
