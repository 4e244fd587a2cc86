//! [`Attempts`]: the attempts at one call. Each one is made only after the previous ones are known
//! to have had no effect.

use std::sync::Arc;

use super::call::{Change, Verdict};
use super::landmark::{Interval, Landmark};
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
    unanswered_since: Option<Landmark>,
}

impl<C: Change> Attempts<C> {
    pub(super) fn new(operation: Operation, path: ZNodePath, call: C) -> Attempts<C> {
        Attempts { operation, path, call, unanswered_since: None }
    }

    /// Makes one more attempt, unless an earlier one took effect.
    pub(super) fn make(&mut self, core: &Arc<Core>) -> Result<C::Output> {
        let now = match &self.unanswered_since {
            None => {
                let found = Landmark::find(core, &self.subject());
                found.map_err(|error| core.failure(self.operation, &self.path, error))?
            }
            Some(before) => match self.probe_outcome(core, before) {
                Ok((Verdict::TookEffect(output), _)) => return Ok(output),
                Ok((Verdict::NoEffect, now)) => now,
                Ok((Verdict::Unknown, _)) => return Err(self.outcome_unknown(ZkError::ConnectionLoss)),
                Err(error) => return Err(self.probe_failed(core, error)),
            },
        };
        let answer = core.ask(self.call.ask(&self.path));
        if let Err(unreadable @ ZkError::MarshallingError) = answer {
            return Err(self.outcome_unknown(unreadable));
        }
        let answer = answer.map_err(|error| core.failure(self.operation, &self.path, error));
        if answer.as_ref().is_err_and(LockError::is_connection_loss) {
            self.unanswered_since = Some(now);
        }
        answer
    }

    fn subject(&self) -> ZNodePath {
        self.call.subject(&self.path)
    }

    /// Determines the outcome of the attempts since then, and the current state.
    fn probe_outcome(&self, core: &Arc<Core>, before: &Landmark) -> ZkResult<(Verdict<C::Output>, Landmark)> {
        // An answered write comes after everything that this session sent before it. Attempts
        // without an effect until then will never have one.
        core.begin_to_write_nothing().wait(core)?;
        let found = self.call.find(core, &self.path)?;
        let now = Landmark::find(core, &self.subject())?;
        let verdict = self.call.judge(&self.path, found, Interval { before, now: &now });
        if matches!(verdict, Verdict::TookEffect(_)) {
            logging::debug!("{} {}: took effect, though its reply was lost", self.operation.name, self.path);
        }
        Ok((verdict, now))
    }

    fn probe_failed(&self, core: &Core, error: ZkError) -> LockError {
        match core.failure(self.operation, &self.path, error) {
            error @ (LockError::ConnectionLoss { .. }
            | LockError::SessionLost { .. }
            | LockError::Closed { .. }) => error,
            _ => self.outcome_unknown(error),
        }
    }

    fn outcome_unknown(&self, source: ZkError) -> LockError {
        LockError::OutcomeUnknown { operation: self.operation.name, path: self.path.to_string(), source }
    }
}
