//! [`Attempts`]: the attempts at one call. Each one is made only after the previous ones are known
//! to have had no effect.

use std::sync::Arc;

use parking_lot::Mutex;

use super::call::{Change, Verdict};
use super::landmark::Landmark;
use crate::error::{LockError, Operation, Result, ZkError, ZkResult};
use crate::logging;
use crate::recipe::path::ZNodePath;
use crate::session::Core;

/// Consecutive attempts at one call.
pub(super) struct Attempts<C> {
    pub(super) operation: Operation,
    pub(super) path: ZNodePath,
    call: C,
    /// The state before the attempt whose reply was lost.
    unanswered_since: Mutex<Option<Landmark>>,
}

impl<C: Change> Attempts<C> {
    pub(super) fn new(operation: Operation, path: ZNodePath, call: C) -> Attempts<C> {
        Attempts { operation, path, call, unanswered_since: Mutex::default() }
    }

    /// Makes one more attempt, on a worker, unless an earlier one took effect.
    pub(super) fn make(&self, core: &Arc<Core>) -> Result<C::Output> {
        let unanswered_since = self.unanswered_since.lock().clone();
        let now = match unanswered_since {
            None => Landmark::find(core, &self.subject()).map_err(|error| self.error(error))?,
            Some(before) => match self.probe_outcome(core, &before) {
                Ok((Verdict::TookEffect(output), _)) => return Ok(output),
                Ok((Verdict::NoEffect, now)) => now,
                Ok((Verdict::Unknown, _)) => return Err(self.outcome_unknown(ZkError::ConnectionLoss)),
                Err(error) => return Err(self.probe_failed(error)),
            },
        };
        let answer = core.ask(self.call.ask(&self.path));
        answer.map_err(|error| {
            let error = self.error(error);
            if error.is_connection_loss() {
                *self.unanswered_since.lock() = Some(now);
            }
            error
        })
    }

    fn subject(&self) -> ZNodePath {
        self.call.subject(&self.path)
    }

    /// Determines the outcome of the attempts since then, and the current state.
    fn probe_outcome(&self, core: &Arc<Core>, before: &Landmark) -> ZkResult<(Verdict<C::Output>, Landmark)> {
        // An answered write comes after everything that this session sent before it. Attempts
        // without an effect until then will never have one.
        core.write_nothing()?;
        let found = self.call.find(core, &self.path)?;
        let now = Landmark::find(core, &self.subject())?;
        let verdict = self.call.judge(&self.path, found, before, &now);
        if matches!(verdict, Verdict::TookEffect(_)) {
            logging::debug!("{} {}: took effect, though its reply was lost", self.operation.name, self.path);
        }
        Ok((verdict, now))
    }

    fn error(&self, error: ZkError) -> LockError {
        LockError::client(self.operation, &self.path, error)
    }

    fn probe_failed(&self, error: ZkError) -> LockError {
        match self.error(error) {
            error @ (LockError::ConnectionLoss { .. } | LockError::SessionLost { .. }) => error,
            _ => self.outcome_unknown(error),
        }
    }

    fn outcome_unknown(&self, source: ZkError) -> LockError {
        LockError::OutcomeUnknown { operation: self.operation.name, path: self.path.to_string(), source }
    }
}
