//! What becomes due as time passes: keep-alives, the ends of leases, the limits of holds, routine looks and
//! alarms.

use std::time::Duration;

use super::Engine;
use super::commons::Commons;
use super::life::{Contact, Life};
use super::proof::Proof;
use crate::time::Moment;

/// The schedule of routine looks: every request and every tracker looks again now and then, without an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Routine {
    next: Moment,
}

impl Routine {
    pub(super) fn new(commons: &mut Commons) -> Routine {
        Routine { next: Routine::draw(commons) }
    }

    /// Draws the time of the next look, after at least half of the longest pause and at most all of it. The
    /// time is random because sessions that began together should not look together.
    fn draw(commons: &mut Commons) -> Moment {
        let pause = commons.settings.routine_pause.mul_f64(0.5 + commons.draw() / 2.0);
        commons.now.after(pause)
    }
}

impl Engine {
    /// Begins the handling of an input at this moment. Call this before all other methods, and
    /// [`Engine::settle`] last.
    pub(crate) fn begin(&mut self, now: Moment) {
        self.commons.now = now;
    }

    /// Ends the handling of an input: does whatever is due, until nothing is due any more.
    pub(crate) fn settle(&mut self) {
        loop {
            self.tick();
            if let Some((call, pending, error)) = self.commons.calls.take_refused() {
                self.pass_on(call, pending, Err(error));
            } else if let Some(id) = self.commons.alarms.take_due(self.commons.now) {
                self.wake(id);
            } else if !self.commons.calls.has_refused() {
                return;
            }
        }
    }

    /// Handles the arrival of the moment that [`Engine::poll_deadline`] returned: gives up a session that has been
    /// silent for too long. [`Engine::settle`] does whatever else is due.
    pub(crate) fn handle_deadline(&mut self) {
        self.commons.give_up_if_silent();
    }

    /// Returns the next moment at which something is due.
    pub(crate) fn poll_deadline(&self) -> Option<Moment> {
        let of_life = match self.commons.life {
            Life::Open => self.next_of_session(),
            Life::Ending(..) => None,
            Life::Finished(..) => return None,
        };
        self.commons.alarms.next().into_iter().chain(of_life).min()
    }

    fn next_of_session(&self) -> Option<Moment> {
        let commons = &self.commons;
        let lease = &commons.lease;
        let retry = if let Proof::Failed { until } = commons.proof { Some(until) } else { None };
        let of_lease = [
            lease.end(),
            lease.contact_holds_until(),
            lease.keep_alive_due(),
            lease.touch_due(),
            self.routine.next,
        ];
        let later = of_lease.into_iter().chain(retry).chain(lease.next_limit());
        let later = later.filter(|time| *time > commons.now);
        // This moment counts even if it has passed, because most inputs do not give the session up.
        let has_had_contact = !matches!(commons.contact, Contact::NotYet { .. });
        let given_up_at = has_had_contact.then(|| lease.given_up_at());
        later.chain(given_up_at).chain(self.lease_checks.first().copied()).min()
    }

    fn tick(&mut self) {
        if self.commons.life.has_ended() {
            return;
        }
        self.keep_alive();
        self.check_owners_if_due();
        self.keep_routine();
    }

    fn keep_alive(&mut self) {
        let commons = &mut self.commons;
        let now = commons.now;
        let may_begin = commons.proof.may_begin(now);
        if !commons.in_contact() {
            return;
        }
        if commons.lease.begin_touch(now) {
            commons.touch();
        }
        let is_regained = commons.contact == Contact::Regained;
        if may_begin && (is_regained || commons.lease.keep_alive_due() <= now) {
            commons.begin_proof(Vec::new());
        }
    }

    fn check_owners_if_due(&mut self) {
        let now = self.commons.now;
        let is_check_due = self.lease_checks.first().is_some_and(|due| *due <= now);
        if is_check_due {
            self.lease_checks = self.lease_checks.split_off(&now.after(Duration::from_nanos(1)));
        }
        let is_limit_reached = self.commons.lease.next_limit().is_some_and(|limit| limit <= now);
        if is_check_due || is_limit_reached || self.commons.lease.has_ended(now) {
            self.check_owners();
        }
    }

    fn keep_routine(&mut self) {
        if self.commons.now < self.routine.next {
            return;
        }
        self.routine.next = Routine::draw(&mut self.commons);
        self.look_routinely();
    }
}
