//! [`TicketSchedule`]: when tickets are fetched in advance, and when the log mentions a missing ticket.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::Repetition;
use crate::time::Moment;

/// After each connect, tickets are fetched with a random delay of up to this fraction of the session timeout.
const DELAY_DIVISOR: u32 = 8;
/// The time between one fetch and the next.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// For each server, a missing ticket is logged at most once in this time.
const MIN_WARNING_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// See the [module](self). During an outage, nothing is fetched in advance: the attempts to connect fetch tickets, and
/// report missing ones.
#[derive(Default)]
pub(super) struct TicketSchedule {
    /// The time of the next fetch. `None` without a connection.
    due: Option<Moment>,
    /// The servers for which there was no ticket.
    missing: HashMap<usize, Repetition>,
}

impl TicketSchedule {
    /// Notes a connect. `random` is between zero and one, and spreads out the fetches of sessions that connect at the
    /// same time.
    pub(super) fn connected(&mut self, now: Moment, session_timeout: Duration, random: f64) {
        self.due = Some(now.after((session_timeout / DELAY_DIVISOR).mul_f64(random)));
    }

    pub(super) fn disconnected(&mut self) {
        self.due = None;
    }

    /// Returns when [`take_due`](TicketSchedule::take_due) must be called.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.due
    }

    /// Returns whether tickets must be fetched now. If so, the next fetch is due an interval later.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            self.due = Some(now.after(INTERVAL));
        }
        is_due
    }

    /// Returns whether to log that there is no ticket for the server at this position.
    pub(super) fn warns_of(&mut self, server: usize, now: Moment) -> bool {
        self.due.is_some() && !self.missing.entry(server).or_default().is_repeated(now, MIN_WARNING_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(8);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1_000_000_000).after(Duration::from_secs(seconds))
    }

    /// Returns the seconds in this range at which tickets are fetched.
    fn fetches(schedule: &mut TicketSchedule, seconds: std::ops::Range<u64>) -> Vec<u64> {
        let is_fetched = |second: &u64| {
            let deadline = schedule.deadline();
            let is_fetched = schedule.take_due(at(*second));
            assert_eq!(is_fetched, deadline.is_some_and(|deadline| deadline <= at(*second)));
            is_fetched
        };
        seconds.filter(is_fetched).collect()
    }

    #[test]
    fn tickets_are_fetched_soon_after_a_contact_and_then_every_five_minutes() {
        let mut schedule = TicketSchedule::default();
        assert_eq!(fetches(&mut schedule, 0..1000), [0; 0]);
        schedule.connected(at(1000), TIMEOUT, 0.0);
        assert_eq!(fetches(&mut schedule, 1000..1601), [1000, 1300, 1600]);
        schedule.disconnected();
        assert_eq!(fetches(&mut schedule, 1601..3000), [0; 0], "the attempts to connect fetch tickets");
        schedule.connected(at(3000), TIMEOUT, 0.999);
        assert_eq!(fetches(&mut schedule, 3000..3400), [3001, 3301]);
    }

    #[test]
    fn missing_ticket_is_logged_once_an_hour_for_each_server_and_only_during_a_contact() {
        let mut schedule = TicketSchedule::default();
        assert!(!schedule.warns_of(0, at(0)));
        schedule.connected(at(0), TIMEOUT, 0.5);
        let mut warned = Vec::new();
        for second in (0..=7200).step_by(300) {
            schedule.take_due(at(second));
            warned.extend(
                [0, 1]
                    .into_iter()
                    .filter(|server| schedule.warns_of(*server, at(second + 1)))
                    .map(|_| second),
            );
        }
        assert_eq!(warned, [0, 0, 3600, 3600, 7200, 7200]);
        schedule.disconnected();
        assert!(!schedule.warns_of(2, at(20_000)));
        schedule.connected(at(20_000), TIMEOUT, 0.5);
        assert!(schedule.warns_of(2, at(20_000)), "the call without a connection did not count");
    }
}
