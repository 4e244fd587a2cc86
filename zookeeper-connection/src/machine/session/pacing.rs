//! [`Pacing`]: the times of a connection, all derived from the session timeout.

use std::time::Duration;

use crate::time::Moment;

/// Pings are sent at intervals of this fraction of the session timeout, whatever other traffic there is. Two answered
/// pings in a row are half of the proof that the session is alive; a write completes it. Pings are so frequent that
/// silence means trouble.
const PING_DIVISOR: u32 = 6;

/// The client abandons a server that is silent for two fifths of the session timeout. By then, a ping has been
/// unanswered for at least half of that time, and more than half of the session timeout remains to find another server.
const SILENCE: (u32, u32) = (2, 5);

/// A request waits for a connection for at most this fraction of the session timeout. This is long enough to move to
/// another server, and short enough for the caller to notice an outage.
const WAIT_DIVISOR: u32 = 10;

/// The time allowed for opening a transport, as a fraction of the session timeout. It is short, because an attempt to
/// reach a server whose packets are lost delays the attempts that follow.
const OPENING_DIVISOR: u32 = 8;
const MAX_OPENING: Duration = Duration::from_secs(1);

/// The time allowed for a server's answer to a connect request, as a fraction of the session timeout. The server may
/// have to ask the leader first.
const GREETING_DIVISOR: u32 = 6;
/// Before the first session timeout is granted, the requested one may be hours.
const MAX_GREETING: Duration = Duration::from_secs(20);

/// Before the first session timeout is granted, the requested one may be far shorter than any that the servers grant.
/// An attempt that is given up just before its answer leaves a session behind.
const MIN_BASE: Duration = Duration::from_secs(1);

/// The times for opening and for the answer grow when servers are slow, up to this fraction of the session timeout.
const MAX_ATTEMPT_DIVISOR: u32 = 2;

/// The longest pause after the first round of attempts has failed. It doubles with each round. The pause itself is
/// random, but at least half as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause as a fraction of the session timeout.
const MAX_PAUSE_DIVISOR: u32 = 20;

/// The times of one connection, and the number of failed attempts to find a server.
#[derive(Debug)]
pub(super) struct Pacing {
    /// The session timeout to request. Once a server has granted one, the shortest granted so far.
    session_timeout: Duration,
    /// Whether a server has granted a session timeout.
    is_granted: bool,
    addresses: u32,
    /// The number of failed attempts since a server last served the session for a while.
    failures: u32,
    /// The number of attempts since then that ran out of time, or had not ended when another one began.
    timeouts: u32,
    random: fastrand::Rng,
}

impl Pacing {
    pub(super) fn new(session_timeout: Duration, seed: u64) -> Pacing {
        Pacing {
            session_timeout,
            is_granted: false,
            addresses: 1,
            failures: 0,
            timeouts: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Notes the session timeout that a server has granted.
    pub(super) fn granted(&mut self, session_timeout: Duration) {
        self.session_timeout = session_timeout;
        self.is_granted = true;
    }

    pub(super) fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    pub(super) fn set_addresses(&mut self, count: usize) {
        self.addresses = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    }

    pub(super) fn addresses(&self) -> u32 {
        self.addresses
    }

    pub(super) fn ping_interval(&self) -> Duration {
        self.session_timeout / PING_DIVISOR
    }

    /// Returns how long a server may be silent.
    pub(super) fn max_silence(&self) -> Duration {
        let (part, whole) = SILENCE;
        self.session_timeout * part / whole
    }

    /// Returns how long a request waits for a connection.
    pub(super) fn max_wait(&self) -> Duration {
        self.session_timeout / WAIT_DIVISOR
    }

    pub(super) fn opening_time(&self) -> Duration {
        self.with_more_time((self.base() / OPENING_DIVISOR).min(MAX_OPENING))
    }

    pub(super) fn greeting_time(&self) -> Duration {
        self.with_more_time((self.base() / GREETING_DIVISOR).min(MAX_GREETING))
    }

    /// The time from which the times of an attempt are derived.
    fn base(&self) -> Duration {
        if self.is_granted { self.session_timeout } else { self.session_timeout.max(MIN_BASE) }
    }

    /// Doubles the time whenever as many attempts have run out of time as there are servers, because then all servers
    /// may be slow. A server that refuses connections is not slow, so refusals do not count. Such a server may be
    /// starting up, and may then accept a connection and never answer on it. The client should not wait long for that
    /// answer.
    fn with_more_time(&self, time: Duration) -> Duration {
        let factor = 1 << (self.timeouts / self.addresses).min(4);
        (time * factor).min(self.base() / MAX_ATTEMPT_DIVISOR)
    }

    /// Notes that an attempt has run out of time. The caller also counts the attempt as failed, with
    /// [`attempt_failed`](Self::attempt_failed) or [`another_attempt`](Self::another_attempt).
    pub(super) fn time_was_short(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1);
    }

    /// Notes that another attempt begins before the last one has failed.
    pub(super) fn another_attempt(&mut self) {
        self.time_was_short();
        self.failures = self.failures.saturating_add(1);
    }

    /// Notes that an attempt has failed. Returns the time of the next attempt: now, or after a pause if all servers
    /// were tried.
    pub(super) fn attempt_failed(&mut self, now: Moment) -> Moment {
        self.failures = self.failures.saturating_add(1);
        if self.failures % self.addresses != 0 {
            return now;
        }
        let longest = (self.session_timeout / MAX_PAUSE_DIVISOR).clamp(FIRST_PAUSE, MAX_PAUSE);
        let doubled = FIRST_PAUSE * (1 << (self.failures / self.addresses - 1).min(10));
        let half = doubled.min(longest) / 2;
        now.after(half + half.mul_f64(self.random.f64()))
    }

    /// Notes the end of a connection on which a server served for this long. Returns the time of the next attempt. If
    /// the server served for a while, the servers are healthy, and the next attempt follows at once.
    pub(super) fn connection_lost(&mut self, served: Duration, now: Moment) -> Moment {
        if served >= self.ping_interval() {
            (self.failures, self.timeouts) = (0, 0);
            return now;
        }
        self.attempt_failed(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000)
    }

    #[test]
    fn each_address_is_tried_before_the_first_pause() {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        pacing.set_addresses(3);
        assert_eq!(pacing.attempt_failed(now()), now());
        assert_eq!(pacing.attempt_failed(now()), now());
        let pause = pacing.attempt_failed(now()).since(now());
        assert!((FIRST_PAUSE / 2..=FIRST_PAUSE).contains(&pause), "{pause:?}");
        assert_eq!(pacing.attempt_failed(now()), now());
    }

    #[test]
    fn pauses_grow_up_to_a_twentieth_of_the_session_timeout() {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        let pauses: Vec<_> = (0..20).map(|_| pacing.attempt_failed(now()).since(now())).collect();
        assert!(pauses[0] < pauses[5]);
        assert!(pauses.iter().all(|pause| *pause <= TIMEOUT / 20), "{pauses:?}");
        assert!(pauses[19] >= TIMEOUT / 40, "{pauses:?}");
    }

    #[test]
    fn only_a_connection_that_served_for_a_while_resets_the_pauses() {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        (0..10).for_each(|_| _ = pacing.attempt_failed(now()));
        assert!(pacing.connection_lost(Duration::from_millis(1), now()) > now().after(TIMEOUT / 50));
        assert_eq!(pacing.connection_lost(TIMEOUT / 6, now()), now());
        assert!(pacing.attempt_failed(now()) <= now().after(FIRST_PAUSE));
    }

    #[test]
    fn slow_servers_get_more_time_after_each_lap_up_to_half_of_the_session_timeout() {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        pacing.set_addresses(2);
        let first = (pacing.opening_time(), pacing.greeting_time());
        pacing.time_was_short();
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), first);
        pacing.another_attempt();
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (first.0 * 2, first.1 * 2));
        (0..100).for_each(|_| pacing.time_was_short());
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (TIMEOUT / 2, TIMEOUT / 2));
    }

    #[test]
    fn mute_server_is_not_awaited_for_hours_whatever_session_timeout_is_requested() {
        let pacing = Pacing::new(Duration::from_secs(24 * 3600), 7);
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (MAX_OPENING, MAX_GREETING));
    }

    #[test]
    fn servers_have_time_to_answer_however_short_a_session_timeout_is_requested() {
        let mut pacing = Pacing::new(Duration::ZERO, 7);
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (MIN_BASE / 8, MIN_BASE / 6));
        (0..100).for_each(|_| pacing.time_was_short());
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (MIN_BASE / 2, MIN_BASE / 2));
        pacing.granted(MIN_BASE / 2);
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), (MIN_BASE / 4, MIN_BASE / 4));
    }

    #[test]
    fn servers_that_refuse_get_no_more_time() {
        let mut pacing = Pacing::new(TIMEOUT, 7);
        let first = (pacing.opening_time(), pacing.greeting_time());
        (0..100).for_each(|_| _ = pacing.attempt_failed(now()));
        assert_eq!((pacing.opening_time(), pacing.greeting_time()), first);
    }
}
