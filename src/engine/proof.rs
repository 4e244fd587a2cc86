//! Proving in time that the session lives, and giving it up when that cannot be proven.

use std::time::Duration;

use super::calls::{AfterWrite, Pending, keep_alive};
use super::contender::Next;
use super::life::{Contact, Life};
use super::{Engine, ParticipantId};
use crate::client::{Call, KEEP_ALIVE_PATH};
use crate::error::{LossReason, Operation, ZkResult};
use crate::time::{Moment, Priority};

/// The delay before a failed proof is repeated in contact.
const PROOF_RETRY: Duration = Duration::from_millis(100);

/// The interval between checks for a proof of the session's life, for a request whose turn has
/// come.
const LEASE_LOOK: Duration = Duration::from_millis(100);

/// The requests that help to prove that the session lives.
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

impl Engine {
    /// It is this request's turn, but the session is not proven alive for long enough. A proof
    /// needs a request and its confirmation.
    pub(super) fn await_proof(&mut self, id: ParticipantId) -> Next {
        match &mut self.proof {
            Proof::UnderWay { later, .. } => later.push(id),
            Proof::Idle | Proof::Failed { .. } => self.begin_proof(vec![id]),
        }
        Next::Pending
    }

    fn begin_proof(&mut self, waiting: Vec<ParticipantId>) {
        self.proof = Proof::UnderWay { waiting, later: Vec::new() };
        // One write is enough: no pair is needed, or a pair or the reconnect waits to be confirmed, and then
        // admits owners.
        if !self.lease.needs_pairs() || self.lease.needs_proof(self.now) {
            self.write_nothing(AfterWrite::Proof);
        } else if self.lease.has_owners() {
            self.write_nothing(AfterWrite::ProofTouched);
        } else {
            self.submit(Call::exists(KEEP_ALIVE_PATH, false), Priority::Session, Pending::Touched);
        }
    }

    pub(super) fn touched(&mut self, result: ZkResult<()>) {
        match result {
            Ok(()) if self.is_one_write_enough() => self.end_proof(result),
            Ok(()) => self.write_nothing(AfterWrite::Proof),
            Err(_) => self.end_proof(result),
        }
    }

    /// Returns whether the first write of a keep-alive has proven what an earlier write, of a request, has
    /// reported.
    fn is_one_write_enough(&self) -> bool {
        let is_awaited = match &self.proof {
            Proof::UnderWay { waiting, later } => !waiting.is_empty() || !later.is_empty(),
            Proof::Idle | Proof::Failed { .. } => false,
        };
        let quiet = self.settings.min_idle_for_ping;
        self.lease.has_owners() && !is_awaited && !self.lease.is_second_write_due(quiet, self.now)
    }

    pub(super) fn end_proof(&mut self, result: ZkResult<()>) {
        let next =
            if result.is_ok() { Proof::Idle } else { Proof::Failed { until: self.now.after(PROOF_RETRY) } };
        let Proof::UnderWay { mut waiting, later } = std::mem::replace(&mut self.proof, next) else { return };
        match result {
            Ok(()) if !later.is_empty() => self.begin_proof(later),
            _ => waiting.extend(later),
        }
        for id in waiting {
            self.go_on_with(id, |engine| engine.proof_ended(id, result));
        }
        if result.is_ok() && self.routine.due_by.is_some() {
            self.look_routinely();
        }
    }

    fn proof_ended(&mut self, id: ParticipantId, result: ZkResult<()>) -> Next {
        let Some(contender) = self.contenders.get(&id) else { return Next::Park };
        let dir = contender.spec.dir.clone();
        match result {
            Err(error) => self.look_failed(id, Operation::WATCH, &dir, error),
            Ok(()) if self.lease.admits_owners(self.now) => Next::Again,
            Ok(()) => {
                self.alarms.set(id, self.now.after(LEASE_LOOK));
                Next::Park
            }
        }
    }

    /// Begins a write beside the look of a request, if its session has waited for so long that the
    /// lock could not be taken without a proof. Both take one round trip together.
    pub(super) fn prove_beside(&mut self) {
        if self.settings.is_ordered && self.lease.needs_proof(self.now) {
            // It leaves before the look, and counts, as each of many requests may make one.
            self.submit(keep_alive(KEEP_ALIVE_PATH), Priority::Owner, Pending::Nothing);
        }
    }

    /// Does what the clock asks for: a keep-alive, ending what has lost its lease, routine looks.
    pub(super) fn tick(&mut self) {
        match self.life {
            Life::Open => {
                let may_begin = match self.proof {
                    Proof::Idle => true,
                    Proof::UnderWay { .. } => false,
                    Proof::Failed { until } => until <= self.now,
                };
                if self.in_contact() && self.lease.begin_touch(self.settings.min_idle_for_ping, self.now) {
                    self.touch();
                }
                if may_begin && self.in_contact() && self.is_proof_due() {
                    self.begin_proof(Vec::new());
                }
                self.check_owners_if_due();
            }
            Life::Lingering(..) if self.lingers_until().is_some_and(|until| until <= self.now) => {
                self.finish()
            }
            Life::Ending(..) | Life::Lingering(..) | Life::Finished(..) => {}
        }
        self.keep_routine();
    }

    /// Sends two reads, which make a pair for the lease.
    fn touch(&mut self) {
        for _ in 0..2 {
            self.submit(Call::exists(KEEP_ALIVE_PATH, false), Priority::Session, Pending::Nothing);
        }
    }

    fn is_proof_due(&mut self) -> bool {
        self.contact == Contact::Regained
            || self.lease.is_keep_alive_due(self.settings.min_idle_for_ping, self.now)
    }

    /// Gives the session up if it has been silent for too long. Called when the time has come for which
    /// [`Engine::deadline`] has asked, and when a znode is gone; not with every input, as after a pause of
    /// the process answers may have come that nobody has taken up yet. The rest that the clock asks for is
    /// in [`Engine::settle`].
    pub(crate) fn give_up_if_silent(&mut self) {
        match self.life {
            Life::Open if matches!(self.contact, Contact::NotYet { .. }) => {}
            Life::Open if self.lease.given_up_at() <= self.now => self.end(LossReason::LeaseExpired),
            _ => {}
        }
    }

    fn check_owners_if_due(&mut self) {
        let is_check_due = self.lease_checks.first().is_some_and(|due| *due <= self.now);
        if is_check_due {
            self.lease_checks = self.lease_checks.split_off(&self.now.after(Duration::from_nanos(1)));
        }
        let has_epoch_ended = self.lease.has_ended(self.now);
        if is_check_due || has_epoch_ended {
            self.check_owners();
        }
    }

    /// Has the owners end whose lease has ended.
    pub(super) fn check_owners(&mut self) {
        for owner in self.lease.ended_owners(self.now) {
            self.lose_lease(owner);
        }
    }

    /// Returns when the clock asks for something.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        let of_life = match self.life {
            Life::Open => self.next_of_session(),
            // Nobody owns anything any more: the leases ask for nothing.
            Life::Lingering(..) => self.lingers_until(),
            Life::Ending(..) => None,
            Life::Finished(..) => return None,
        };
        self.alarms.next().into_iter().chain(of_life).min()
    }

    fn next_of_session(&self) -> Option<Moment> {
        let retry = if let Proof::Failed { until } = self.proof { Some(until) } else { None };
        let of_lease = [
            self.lease.end(),
            self.lease.contact_holds_until(),
            self.lease.keep_alive_due(self.settings.min_idle_for_ping),
            self.lease.touch_due(self.settings.min_idle_for_ping),
            self.routine.next,
        ];
        let later =
            of_lease.into_iter().chain(retry).chain(self.routine.due_by).filter(|time| *time > self.now);
        // Also when it has come: only the clock gives the session up.
        let given_up_at = (!matches!(self.contact, Contact::NotYet { .. })).then(|| self.lease.given_up_at());
        later.chain(given_up_at).chain(self.lease_checks.first().copied()).min()
    }

    // ---- routine looks

    fn keep_routine(&mut self) {
        if self.life.has_ended() {
            return;
        }
        if self.routine.due_by.is_some_and(|due| due <= self.now) {
            self.look_routinely();
        }
        if self.now < self.routine.next {
            return;
        }
        self.routine.next = self.next_routine();
        match self.settings.min_idle_for_ping.is_zero() {
            true => self.look_routinely(),
            // Together with the next keep-alive. None may come for long where other requests keep
            // the session alive.
            false => self.routine.due_by = Some(self.now.after(self.lease.session_timeout())),
        }
    }

    /// The pause is drawn between half of the longest one and the whole, so that sessions which
    /// began together do not look together.
    pub(super) fn next_routine(&mut self) -> Moment {
        let chance = self.chance();
        self.now.after(self.settings.routine_pause.mul_f64(0.5 + chance / 2.0))
    }

    /// Has everybody look. Without contact it does nothing: the reconnect wakes them.
    pub(crate) fn look_routinely(&mut self) {
        self.routine.due_by = None;
        if !self.in_contact() {
            return;
        }
        let requests: Vec<_> = self.contenders.keys().copied().collect();
        for id in requests {
            self.look_at_routine(id);
        }
        self.look_at_all_tracked();
    }
}
