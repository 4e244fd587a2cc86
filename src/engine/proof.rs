//! [`Proof`]: the calls of a keep-alive, which prove that the session lives.
//!
//! Here, a *request* is a request for a lock. What goes over the wire is a *call*.

use std::time::Duration;

use super::border::ParticipantId;
use super::calls::{Pending, was_answered};
use super::commons::Commons;
use crate::client::{Call, KEEP_ALIVE_PATH, Reply};
use crate::error::ZkResult;
use crate::time::{Moment, Priority};

/// The delay before a failed proof is repeated, while there is contact.
const PROOF_RETRY: Duration = Duration::from_millis(100);

/// The state of a proof that the session lives, and the requests that wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    #[default]
    Idle,
    UnderWay {
        /// The requests whose turn had come when the proof began.
        waiting: Vec<ParticipantId>,
        /// The requests whose turn has come since.
        later: Vec<ParticipantId>,
    },
    /// The proof has failed. The clock does not repeat it before this moment, but a request may.
    Failed { until: Moment },
}

/// A call of a proof. If one write is enough, a proof is `LastWrite` alone. Otherwise it begins with
/// `FirstRead` or `FirstWrite`, and `LastWrite` follows if it is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ProofCall {
    FirstRead,
    FirstWrite,
    LastWrite,
}

impl Proof {
    /// Returns whether a proof may begin.
    pub(super) fn may_begin(&self, now: Moment) -> bool {
        match self {
            Proof::Idle => true,
            Proof::UnderWay { .. } => false,
            Proof::Failed { until } => *until <= now,
        }
    }

    /// Returns whether a request waits for the end of the proof.
    fn is_awaited(&self) -> bool {
        match self {
            Proof::UnderWay { waiting, later } => !waiting.is_empty() || !later.is_empty(),
            Proof::Idle | Proof::Failed { .. } => false,
        }
    }
}

impl Commons {
    /// Makes a request whose turn has come wait for a proof, because the session is not yet proven to live for long
    /// enough. Begins a proof unless one is under way.
    pub(super) fn await_proof(&mut self, id: ParticipantId) {
        match &mut self.proof {
            Proof::UnderWay { later, .. } => later.push(id),
            Proof::Idle | Proof::Failed { .. } => self.begin_proof(vec![id]),
        }
    }

    pub(super) fn begin_proof(&mut self, waiting: Vec<ParticipantId>) {
        self.proof = Proof::UnderWay { waiting, later: Vec::new() };
        // One write is enough in two cases: if no pair is needed, or if the lease will admit owners after one more
        // write.
        if !self.lease.needs_pairs() || self.lease.needs_proof(self.now) {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::LastWrite));
        } else if self.lease.has_owners() {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::FirstWrite));
        } else {
            let exists = Call::exists(KEEP_ALIVE_PATH, false);
            self.submit(exists, Priority::Session, Pending::Proof(ProofCall::FirstRead));
        }
    }

    /// Handles the outcome of a call of the proof. If the proof has ended, returns the requests that were
    /// waiting for it, and its result.
    pub(super) fn on_proof_reply(
        &mut self,
        asked: ProofCall,
        outcome: &ZkResult<Reply>,
    ) -> Option<(Vec<ParticipantId>, ZkResult<()>)> {
        let result = match asked {
            // Any answer counts, even a refusal by the znode's ACL.
            ProofCall::FirstRead if was_answered(outcome) => Ok(()),
            _ => outcome.as_ref().map(drop).map_err(|error| *error),
        };
        if asked != ProofCall::LastWrite && result.is_ok() && !self.is_one_write_enough() {
            self.write_nothing(Priority::Session, Pending::Proof(ProofCall::LastWrite));
            return None;
        }
        Some((self.end_proof(result)?, result))
    }

    /// Returns whether a keep-alive needs no second write. It needs none if an earlier write, made for a request,
    /// had already confirmed a newer pair: the first write then proves that pair.
    fn is_one_write_enough(&self) -> bool {
        self.lease.has_owners() && !self.proof.is_awaited() && !self.lease.is_second_write_due(self.now)
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

    /// Makes a write beside a request's read if the request needs a proof to take the lock. Together, the write and the
    /// read take one round trip.
    pub(super) fn prove_beside(&mut self) {
        if self.lease.needs_proof(self.now) {
            // The write is sent before the read. Unlike a proof, it takes up room in the window, because many
            // requests may each make such a write.
            self.write_nothing(Priority::Owner, Pending::Nobody);
        }
    }

    /// Makes two reads, which form a pair for the lease.
    pub(super) fn touch(&mut self) {
        for _ in 0..2 {
            self.submit(Call::exists(KEEP_ALIVE_PATH, false), Priority::Session, Pending::Nobody);
        }
    }
}
