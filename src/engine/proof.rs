//! [`Proof`]: the calls that prove in time that the session lives.
//!
//! Here, a *request* is one for a lock; what goes over the wire is a *call*.

use std::time::Duration;

use super::border::ParticipantId;
use super::calls::{Pending, was_answered};
use super::commons::Commons;
use crate::client::{Call, KEEP_ALIVE_PATH, Reply};
use crate::error::ZkResult;
use crate::time::{Moment, Priority};

/// The delay before a failed proof is repeated in contact.
const PROOF_RETRY: Duration = Duration::from_millis(100);

/// The calls that prove that the session lives, and the requests that wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    #[default]
    Idle,
    UnderWay {
        /// The requests whose turn has come, and that have waited since before it began.
        waiting: Vec<ParticipantId>,
        /// Those that have come since.
        later: Vec<ParticipantId>,
    },
    /// It has failed, and is not repeated before this moment.
    Failed { until: Moment },
}

/// The calls of a proof: one of the first two, and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProofCall {
    FirstRead,
    FirstWrite,
    LastWrite,
}

impl Proof {
    /// Returns whether one may begin.
    pub(super) fn may_begin(&self, now: Moment) -> bool {
        match self {
            Proof::Idle => true,
            Proof::UnderWay { .. } => false,
            Proof::Failed { until } => *until <= now,
        }
    }

    /// Returns whether a request waits for its end.
    fn is_awaited(&self) -> bool {
        match self {
            Proof::UnderWay { waiting, later } => !waiting.is_empty() || !later.is_empty(),
            Proof::Idle | Proof::Failed { .. } => false,
        }
    }
}

impl Commons {
    /// It is this request's turn, but the session is not proven alive for long enough. A proof
    /// needs a call and its confirmation.
    pub(super) fn await_proof(&mut self, id: ParticipantId) {
        match &mut self.proof {
            Proof::UnderWay { later, .. } => later.push(id),
            Proof::Idle | Proof::Failed { .. } => self.begin_proof(vec![id]),
        }
    }

    pub(super) fn begin_proof(&mut self, waiting: Vec<ParticipantId>) {
        self.proof = Proof::UnderWay { waiting, later: Vec::new() };
        // One write is enough: no pair is needed, or a pair or the reconnect waits to be confirmed, and then
        // admits owners.
        if !self.lease.needs_pairs() || self.lease.needs_proof(self.now) {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::LastWrite));
        } else if self.lease.has_owners() {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::FirstWrite));
        } else {
            let exists = Call::exists(KEEP_ALIVE_PATH, false);
            self.submit(exists, Priority::Session, Pending::Proof(ProofCall::FirstRead));
        }
    }

    /// Handles the outcome of a call of the proof. When that ends the proof, returns those who waited, and the
    /// result for them.
    pub(super) fn on_proof_reply(
        &mut self,
        asked: ProofCall,
        outcome: &ZkResult<Reply>,
    ) -> Option<(Vec<ParticipantId>, ZkResult<()>)> {
        let result = match asked {
            // Any answer shows a server; the ACL of the znode is no concern of this.
            ProofCall::FirstRead if was_answered(outcome) => Ok(()),
            _ => outcome.as_ref().map(drop).map_err(|error| *error),
        };
        if asked != ProofCall::LastWrite && result.is_ok() && !self.is_one_write_enough() {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::LastWrite));
            return None;
        }
        Some((self.end_proof(result)?, result))
    }

    /// Returns whether the first write of a keep-alive has proven what an earlier write, made for a
    /// request, has reported.
    fn is_one_write_enough(&self) -> bool {
        let quiet = self.settings.min_idle_for_ping;
        self.lease.has_owners()
            && !self.proof.is_awaited()
            && !self.lease.is_second_write_due(quiet, self.now)
    }

    fn end_proof(&mut self, result: ZkResult<()>) -> Option<Vec<ParticipantId>> {
        let next =
            if result.is_ok() { Proof::Idle } else { Proof::Failed { until: self.now.after(PROOF_RETRY) } };
        let Proof::UnderWay { mut waiting, later } = std::mem::replace(&mut self.proof, next) else {
            return None;
        };
        match result {
            Ok(()) if !later.is_empty() => self.begin_proof(later),
            _ => waiting.extend(later),
        }
        Some(waiting)
    }

    /// Begins a write beside the look of a request, if its session has waited for so long that the
    /// lock could not be taken without a proof. Both take one round trip together.
    pub(super) fn prove_beside(&mut self) {
        if self.settings.is_ordered && self.lease.needs_proof(self.now) {
            // It leaves before the look, and counts, as each of many requests may make one.
            self.write_nothing(Priority::Owner, Pending::Nobody);
        }
    }

    /// Sends two reads, which make a pair for the lease.
    pub(super) fn touch(&mut self) {
        for _ in 0..2 {
            self.submit(Call::exists(KEEP_ALIVE_PATH, false), Priority::Session, Pending::Nobody);
        }
    }
}
