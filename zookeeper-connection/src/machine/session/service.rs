//! [`Service`]: whether servers serve the session, and when the session is given up because none does.

use super::SessionLoss;
use super::pacing::Pacing;
use crate::time::Moment;

/// Within a session timeout, refusals end a session that was once served only if at least this many come in a row,
/// because there may be several servers behind one address.
const MIN_REFUSALS: u32 = 3;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Service {
    /// Whether a server has ever answered a request of the session. If none has, the session has no znodes.
    is_admitted: bool,
    /// Whether some servers have no known address.
    misses_addresses: bool,
    /// Whether the current attempt is to one of the current addresses, as far as is known.
    is_to_known_address: bool,
    unserved: Option<Unserved>,
}

/// A period in which servers resume or refuse the session, and none answers a request.
#[derive(Debug)]
struct Unserved {
    /// The reason of the latest refusal; `Unserved` if there was none.
    loss: SessionLoss,
    /// When the first attempt of the period ended.
    since: Moment,
    /// The end of the latest attempt that was refused, or that renewed the session without an answer to a request.
    last: Moment,
    /// The number of attempts in the period, no matter how they ended.
    attempts: u32,
    /// Whether the present attempt was refused.
    is_refused: bool,
    /// How many attempts in a row were refused before the present one.
    refused_in_a_row: u32,
}

impl Service {
    pub(super) fn new() -> Service {
        Service { is_admitted: false, misses_addresses: false, is_to_known_address: true, unserved: None }
    }

    /// Returns whether the last connection has shown that a server serves the session.
    pub(super) fn is_shown(&self) -> bool {
        self.is_admitted && self.unserved.is_none()
    }

    /// Returns why the session would be lost, if a server has refused it and none has answered a request since.
    pub(super) fn refusal(&self) -> Option<SessionLoss> {
        self.unserved.as_ref().map(|unserved| unserved.loss).filter(|loss| *loss != SessionLoss::Unserved)
    }

    /// Notes that the addresses have changed. `are_all` says whether each server has an address, and `is_to_known`
    /// whether the current attempt is to one of the new addresses.
    pub(super) fn addresses_changed(&mut self, are_all: bool, is_to_known: bool) {
        (self.misses_addresses, self.is_to_known_address) = (!are_all, is_to_known);
        self.count_refusals_anew();
    }

    pub(super) fn count_refusals_anew(&mut self) {
        if let Some(unserved) = &mut self.unserved {
            unserved.refused_in_a_row = 0;
        }
    }

    /// Notes that the server has answered a request.
    pub(super) fn answered(&mut self) {
        (self.is_admitted, self.unserved) = (true, None);
    }

    /// Notes that the server refuses this client. [`ended`](Service::ended) follows.
    pub(super) fn refused(&mut self, now: Moment, loss: SessionLoss) {
        let unserved = self.unserved.get_or_insert(Unserved::new(now));
        (unserved.loss, unserved.is_refused) = (loss, true);
    }

    /// Notes the end of an attempt or a connection. `is_renewed` says whether the server renewed the session, but
    /// answered no request. If the session is now lost because no server serves it, returns why.
    pub(super) fn ended(&mut self, now: Moment, is_renewed: bool, pacing: &Pacing) -> Option<SessionLoss> {
        let is_known = std::mem::replace(&mut self.is_to_known_address, true);
        if is_renewed && self.is_admitted {
            self.unserved.get_or_insert(Unserved::new(now));
        }
        let unserved = self.unserved.as_mut()?;
        unserved.attempts = unserved.attempts.saturating_add(1);
        let is_refused = std::mem::take(&mut unserved.is_refused);
        unserved.refused_in_a_row = match is_refused {
            true => unserved.refused_in_a_row.saturating_add(u32::from(is_known)),
            false => 0,
        };
        if !is_refused && !is_renewed {
            return None;
        }
        // After an outage, the session may have ended, or may live on under the next leader. So the period starts anew.
        if now.since(unserved.last) >= pacing.session_timeout() {
            (unserved.since, unserved.attempts) = (now, 1);
        }
        unserved.last = now;
        // This many attempts include a full round over the servers, even if the first one was in the middle of a round.
        let all_servers = pacing.addresses().saturating_mul(2) - 1;
        let enough = if self.is_admitted { all_servers.max(MIN_REFUSALS) } else { all_servers };
        let all_refuse = unserved.refused_in_a_row >= enough && !self.misses_addresses;
        let lasts = now.since(unserved.since) >= pacing.session_timeout() && unserved.attempts >= all_servers;
        let loss = if is_refused { unserved.loss } else { SessionLoss::Unserved };
        (all_refuse || lasts).then_some(loss)
    }
}

impl Unserved {
    fn new(now: Moment) -> Unserved {
        Unserved {
            loss: SessionLoss::Unserved,
            since: now,
            last: now,
            attempts: 0,
            is_refused: false,
            refused_in_a_row: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1_000_000_000).after(Duration::from_secs(seconds))
    }

    fn pacing(addresses: usize) -> Pacing {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        pacing.set_addresses(addresses);
        pacing
    }

    /// Returns how many refusals in a row end the session.
    fn refusals(service: &mut Service, addresses: usize) -> usize {
        let mut refuse = |_: &usize| {
            service.refused(at(0), SessionLoss::SaslRefused);
            service.ended(at(0), true, &pacing(addresses)).is_some()
        };
        (1..100).find(|count| refuse(count)).unwrap()
    }

    #[test]
    fn refusals_of_a_whole_lap_end_the_session_and_at_least_three_of_them_one_that_was_served() {
        for (addresses, at_first, later) in [(1, 1, 3), (2, 3, 3), (3, 5, 5), (5, 9, 9)] {
            assert_eq!(refusals(&mut Service::new(), addresses), at_first);
            let mut served = Service::new();
            served.answered();
            assert_eq!(refusals(&mut served, addresses), later);
        }
    }

    #[test]
    fn refusals_count_anew_after_an_answer_or_another_end_or_a_change_of_the_addresses() {
        let interruptions: [fn(&mut Service); 3] = [
            Service::answered,
            |service| assert_eq!(service.ended(at(0), true, &pacing(3)), None),
            |service| service.addresses_changed(true, true),
        ];
        for interrupt in interruptions {
            let mut service = Service::new();
            for _ in 0..4 {
                service.refused(at(0), SessionLoss::SaslRefused);
                assert_eq!(service.ended(at(0), true, &pacing(3)), None);
            }
            interrupt(&mut service);
            assert_eq!(refusals(&mut service, 3), 5);
        }
    }

    #[test]
    fn refusal_of_a_server_that_may_have_left_the_list_does_not_count() {
        let mut service = Service::new();
        service.addresses_changed(true, false);
        assert_eq!(refusals(&mut service, 1), 2);
    }

    #[test]
    fn session_that_is_renewed_without_an_answer_ends_after_a_session_timeout_if_it_was_served_before() {
        for was_served in [false, true] {
            let mut service = Service::new();
            if was_served {
                service.answered();
            }
            assert_eq!(service.is_shown(), was_served);
            let ends: Vec<_> = (0..=10).filter_map(|now| service.ended(at(now), true, &pacing(3))).collect();
            assert_eq!(ends, [SessionLoss::Unserved].repeat(usize::from(was_served)));
            assert!(!service.is_shown());
        }
    }

    #[test]
    fn outage_as_long_as_the_session_timeout_begins_the_count_anew() {
        let mut service = Service::new();
        service.answered();
        let mut ends = |now| service.ended(at(now), true, &pacing(1));
        assert_eq!([ends(0), ends(9), ends(20), ends(29)], [None; 4]);
        assert_eq!(ends(30), Some(SessionLoss::Unserved));
    }

    #[test]
    fn refusals_for_a_session_timeout_end_the_session_once_they_are_as_many_as_have_a_lap_in_them() {
        for (seconds, are_all, ends) in
            [(&[0, 0, 9, 12][..], true, false), (&[0; 9], false, false), (&[0, 0, 0, 9, 10], false, true)]
        {
            let mut service = Service::new();
            service.addresses_changed(are_all, true);
            let refused = seconds.iter().map(|now| {
                service.refused(at(*now), SessionLoss::SaslRefused);
                service.ended(at(*now), false, &pacing(3)).is_some()
            });
            let expected = (1..=seconds.len()).map(|count| ends && count == seconds.len());
            assert!(refused.eq(expected), "{seconds:?}");
        }
    }
}
