//! The life of a session: proving it in time, giving it up when it cannot be proven, and its end.

use std::sync::Arc;
use std::time::Duration;

use super::calls::was_answered_by_leader;
use super::{Core, Status};
use crate::client::{Ask, Call, KEEP_ALIVE_PATH, Stat};
use crate::error::{LossReason, ZkResult};
use crate::logging;
use crate::session::events::Event;
use crate::session::registry::Notification;
use crate::time::{Moment, Priority};

/// The path used instead if the other one exists and its ACL denies the write: a denial proves
/// nothing.
const OTHER_KEEP_ALIVE_PATH: &str = "/zk-lock-keep-alive/none";

/// The delay before a failed proof is repeated in contact.
const PROOF_RETRY: Duration = Duration::from_millis(100);

/// A write that changes nothing.
fn keep_alive(path: &'static str) -> Ask<Stat> {
    Call::set_data(path, [], Some(i32::MAX))
}

impl Core {
    /// Makes the requests, on the calling worker, that help to prove that the session lives.
    pub(crate) fn prove_life(self: &Arc<Self>) -> ZkResult<()> {
        let mut proof = Proof { core: self, was_answered: false };
        let connection = self.connection();
        let result = self.touch_and_write();
        let recheck = {
            let mut status = self.status.lock();
            // An answer from before a disconnect proves nothing about the time after it.
            let is_of_this_contact = status.lease.connection() == connection;
            result.is_ok() && is_of_this_contact && status.proven()
        };
        if recheck {
            self.notify_all_participants(Notification::Reconnected);
        }
        proof.was_answered = result.is_ok();
        if proof.was_answered {
            self.look_if_due();
        }
        result
    }

    /// A write that changes nothing, and where the lease asks for pairs of requests, one before it:
    /// unless the write alone proves enough, and something waits for that.
    fn touch_and_write(self: &Arc<Self>) -> ZkResult<()> {
        let (needs_pairs, has_owners) = {
            let lease = &self.status.lock().lease;
            (lease.needs_pairs(), lease.has_owners())
        };
        if needs_pairs && !self.needs_proof() {
            match has_owners {
                true => self.write_nothing()?,
                false => drop(self.ask(Call::exists(KEEP_ALIVE_PATH, false))?),
            }
        }
        self.write_nothing()
    }

    /// Makes a write that the leader refuses.
    fn write_nothing(self: &Arc<Self>) -> ZkResult<()> {
        let write = |path| self.ask(keep_alive(path)).map(drop);
        let result = match write(KEEP_ALIVE_PATH) {
            Err(error) if error.is_answer() && !error.is_leaders_answer() => write(OTHER_KEEP_ALIVE_PATH),
            result => result,
        };
        if was_answered_by_leader(&result) { Ok(()) } else { result }
    }

    /// Begins a write beside the look of a request, if its session has waited for so long that the
    /// lock could not be taken without a proof. Both take one round trip together.
    pub(crate) fn prove_beside(self: &Arc<Self>) {
        if self.is_ordered() && self.needs_proof() {
            // The lease takes up the answer. Without one, the request asks for a proof by itself.
            self.send(Priority::Session, keep_alive(KEEP_ALIVE_PATH), drop);
        }
    }

    /// Does what is due (a keep-alive, notifying owners that their lease has ended, giving the
    /// session up) and schedules the next tick.
    pub(crate) fn tick(self: &Arc<Self>) {
        let due = self.update(|status, now| self.take_what_is_due(status, now));
        match due {
            Due::Nothing => {}
            Due::End => self.end(LossReason::LeaseExpired),
            Due::Work { proof, lease_ended } => {
                if proof {
                    self.submit_as(Priority::Session, |core| {
                        // A failed proof is repeated by the clock.
                        let _ = core.prove_life();
                    });
                }
                if lease_ended {
                    self.check_leases();
                }
            }
        }
    }

    fn take_what_is_due(self: &Arc<Self>, status: &mut Status, now: Moment) -> Due {
        if status.has_ended() {
            return Due::Nothing;
        }
        if now >= status.lease.given_up_at() {
            return Due::End;
        }
        let proof = status.in_contact() && !status.proof_under_way && self.is_proof_due(status, now);
        status.proof_under_way |= proof;
        status.next_tick.clear_past(now);
        self.schedule_next_tick(status, now);
        Due::Work { proof, lease_ended: status.lease.has_owners() && status.lease.end() <= now }
    }

    fn is_proof_due(&self, status: &mut Status, now: Moment) -> bool {
        status.has_regained_contact() || status.lease.is_keep_alive_due(self.min_idle_for_ping, now)
    }

    pub(super) fn schedule_next_tick(self: &Arc<Self>, status: &mut Status, now: Moment) {
        let lease = &status.lease;
        let times = [
            lease.end(),
            lease.contact_holds_until(),
            lease.given_up_at(),
            lease.keep_alive_due(self.min_idle_for_ping),
        ];
        if let Some(next) = times.into_iter().filter(|time| *time > now).min() {
            self.schedule_tick(status, next);
        }
    }

    /// Schedules a tick, unless there is an earlier one.
    pub(super) fn schedule_tick(self: &Arc<Self>, status: &mut Status, next: Moment) {
        if status.next_tick.set(next) {
            self.at(next, move |core| {
                let rings = core.status.lock().next_tick.rings(next);
                if rings {
                    core.tick();
                }
            });
        }
    }

    /// Ends the session for good: owners are notified, waiters get an error, threads end.
    pub(crate) fn end(self: &Arc<Self>, reason: LossReason) {
        let is_first = self.update(|status, _now| status.end(reason));
        if !is_first {
            return;
        }
        self.runtime.abandon();
        // On a worker: this may be a thread of the client's, with its locks held, and a
        // notification may drop what is the application's.
        self.submit_as(Priority::Session, move |core| core.complete_end(reason));
    }

    fn complete_end(self: &Arc<Self>, reason: LossReason) {
        match reason {
            LossReason::SessionClosed => logging::info!("ZooKeeper session closed"),
            _ => {
                self.report_event(|| Event::SessionLost(reason));
                logging::warn!("ZooKeeper session lost: {reason}");
            }
        }
        self.notify_all_participants(Notification::SessionEnded(reason));
        if !self.outlives_us() {
            return self.finish();
        }
        // The last deletion finishes the session, or the time by which the server has ended it.
        self.at(self.now().after(self.session_timeout()), Core::finish);
        self.status.lock().linger();
        if self.registry.is_empty() {
            self.finish();
        }
    }

    /// Whether the session may live on at the server without us, with the znodes that we leave.
    pub(crate) fn outlives_us(&self) -> bool {
        self.end_reason() != Some(LossReason::SessionExpired) && !self.client.owns_session()
    }

    pub(super) fn finish(self: &Arc<Self>) {
        let Some(finish_signal) = self.status.lock().finish() else { return };
        self.submit(move |core| {
            core.client.close();
            drop(finish_signal);
        });
        self.runtime.shut_down();
    }
}

/// What is due.
enum Due {
    Nothing,
    /// The session has been silent for too long.
    End,
    Work {
        proof: bool,
        lease_ended: bool,
    },
}

/// A proof under way. When it goes, by a panic too, the next may begin: when it is due, or soon
/// after one that failed.
struct Proof<'a> {
    core: &'a Arc<Core>,
    was_answered: bool,
}

impl Drop for Proof<'_> {
    fn drop(&mut self) {
        let mut status = self.core.status.lock();
        status.proof_under_way = false;
        if self.was_answered {
            drop(status);
            self.core.tick();
        } else {
            let retry = self.core.now().after(PROOF_RETRY);
            self.core.schedule_tick(&mut status, retry);
        }
    }
}
