//! [`Process`]: detects a forked child, where a session has ended.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::{Call, Done, EventSink, ZooKeeperClient};
use crate::error::{LockError, LossReason, Operation, Result, ZkError};
use crate::session::Core;
use crate::time::Runtime;

/// The process that opened a session. One that it forks has a copy of everything but the threads:
/// a mutex may be held there by a thread that does not exist.
///
/// The process id alone distinguishes them, as asking for more costs a system call at each
/// `is_owner()`. So a child of process 1 that is process 1 of another PID namespace is not
/// detected (`clone` with `CLONE_NEWPID`, without `exec`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(super) fn current() -> Process {
        Process(std::process::id())
    }

    /// Fails in a forked child, where every session of the parent has ended. Takes no mutex.
    ///
    /// # Errors
    /// `SessionLost`.
    pub(crate) fn check(self, operation: Operation, path: impl fmt::Display) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => Err(LockError::ended(operation, path, LossReason::SessionExpired)),
        }
    }

    /// Returns whether this is that process, and not a forked child. Takes no mutex.
    pub(crate) fn is_current(self) -> bool {
        std::process::id() == self.0
    }
}

/// Makes what a forked child has of a session: one that has ended, with mutexes that no thread of the
/// parent's holds.
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

    fn session_timeout(&self) -> Duration {
        super::MIN_TIMEOUT
    }

    fn close(&self) {}
}
