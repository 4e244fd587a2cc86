//! [`Attempts`]: the attempts at one call. Another attempt is made only if at most one of all the attempts can take
//! effect.

use std::sync::Arc;

use super::call::{Change, Seen, Verdict};
use crate::error::{ErrorReason, LockError, Operation, Result, ZkError};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// Consecutive attempts at one call.
pub(super) struct Attempts<C> {
    pub(super) operation: Operation,
    pub(super) path: ZNodePath,
    call: C,
    /// The state before the last unanswered attempt. Unanswered attempts may take effect at any time.
    unanswered_since: Option<Seen>,
}

impl<C: Change> Attempts<C> {
    pub(super) fn new(operation: Operation, path: ZNodePath, call: C) -> Attempts<C> {
        Attempts { operation, path, call, unanswered_since: None }
    }

    /// Makes one more attempt, unless an earlier attempt took effect, or might take effect in addition to the new one.
    pub(super) fn make(&mut self, core: &Arc<Core>) -> Result<C::Output> {
        let mut before = match self.unanswered_since {
            None => self.read(core)?,
            Some(before) => match self.probe_outcome(core, before)? {
                Verdict::TookEffect(output) => return Ok(output),
                Verdict::Superseded(now) => {
                    self.unanswered_since = None;
                    now
                }
                Verdict::Repeatable(now) => now,
                Verdict::Unknown => return Err(self.outcome_unknown(ZkError::ConnectionLoss)),
            },
        };
        loop {
            let refusal = match core.ask(self.call.ask(&self.path, before)) {
                Ok(output) => return Ok(output),
                Err(unreadable @ ZkError::MarshallingError) => return Err(self.outcome_unknown(unreadable)),
                Err(refusal) => refusal,
            };
            let error = core.failure(self.operation, &self.path, refusal);
            if error.is_connection_loss() {
                self.unanswered_since = Some(before);
            }
            if leaves_open(&error) {
                return Err(error);
            }
            let now = match self.unanswered_since {
                None => None,
                // An earlier attempt may be the reason why this one was refused.
                Some(earlier) => match self.probe_outcome(core, earlier)? {
                    Verdict::TookEffect(output) => return Ok(output),
                    Verdict::Superseded(now) => Some(now),
                    Verdict::Repeatable(_) | Verdict::Unknown => {
                        return Err(self.outcome_unknown(ZkError::ConnectionLoss));
                    }
                },
            };
            self.unanswered_since = None;
            if refusal != ZkError::BadVersion || !self.call.takes_any_version() {
                return Err(error);
            }
            // Another client has written since the read. The loop makes progress, because each turn means that another
            // client has written once more.
            before = match now {
                Some(now) => now,
                None => self.read(core)?,
            };
        }
    }

    fn read(&self, core: &Arc<Core>) -> Result<Seen> {
        Seen::find(core, &self.path).map_err(|error| core.failure(self.operation, &self.path, error))
    }

    /// Determines the outcome of the attempts that were made since the state was `before`.
    fn probe_outcome(&self, core: &Arc<Core>, before: Seen) -> Result<Verdict<C::Output>> {
        // The write brings the server up to date. It proves nothing about the attempts, because a server that this
        // session has left may still pass a request on when it resumes.
        let written = core.begin_to_write_nothing().wait(core);
        let found = written.and_then(|()| self.call.find(core, &self.path));
        let found = found.map_err(|error| match core.failure(self.operation, &self.path, error) {
            open if leaves_open(&open) => open,
            _ => self.outcome_unknown(error),
        })?;
        let verdict = self.call.judge(&self.path, found, before);
        if matches!(verdict, Verdict::TookEffect(_)) {
            logging::debug!("{} {}: took effect, though its reply was lost", self.operation.name, self.path);
        }
        Ok(verdict)
    }

    fn outcome_unknown(&self, source: ZkError) -> LockError {
        LockError::outcome_unknown(self.operation, &self.path, source)
    }
}

/// Returns whether the outcome is open because the server has not answered.
fn leaves_open(error: &LockError) -> bool {
    matches!(error.reason(), ErrorReason::ConnectionLoss | ErrorReason::SessionLost | ErrorReason::Closed)
}
