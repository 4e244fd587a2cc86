//! When a command must end, so that nothing of it runs when another client may own the lock.

use std::time::{Duration, Instant};

use super::leash::{Moment, Term};

/// When a command must end, relative to the end of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndTimes {
    /// How long the command may take to end, from SIGTERM to SIGKILL.
    grace: Duration,
    session_timeout: Duration,
}

/// What the remaining lease means for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The command may run on. Ask again after this time, or when contact is lost.
    RunsOn(Duration),
    MustEnd,
}

impl EndTimes {
    /// `session_timeout` is the one that the server has granted.
    pub(super) fn new(grace: Duration, session_timeout: Duration) -> EndTimes {
        EndTimes { grace: grace.min(session_timeout / 4), session_timeout }
    }

    /// Returns whether the command must end. `has_contact` means that the connection is not known to be lost.
    ///
    /// In contact, a settled lease always has at least 5/16 of the session timeout left, minus round trips. Less than
    /// 1/8 therefore means that the server has gone silent, and nobody has noticed yet.
    pub(super) fn verdict(&self, remaining: Duration, has_contact: bool, is_settled: bool) -> Verdict {
        let limit = match (has_contact, is_settled) {
            (false, _) => self.grace,
            (true, true) => self.grace.min(self.session_timeout / 8),
            (true, false) => Duration::ZERO,
        };
        let limit = limit.max(self.last_moment());
        match remaining.checked_sub(limit).filter(|left| !left.is_zero()) {
            Some(left) => Verdict::RunsOn(left),
            None => Verdict::MustEnd,
        }
    }

    /// Returns how long after SIGTERM to kill the command, when the lock is about to be lost.
    pub(super) fn until_kill(&self, remaining: Duration) -> Duration {
        remaining.saturating_sub(self.last_moment()).min(self.grace)
    }

    /// Returns how long the command may run if this process does nothing any more. The guardian then asks it to end a
    /// moment later than this process would have. `read_at` must be a moment before the lease was read, and
    /// `until_ending` is what the verdict says.
    pub(super) fn term(&self, read_at: Moment, remaining: Duration, until_ending: Duration) -> Term {
        // A lease that is long enough needs not have settled: the next term comes in time.
        let usual = remaining.saturating_sub(self.grace.min(self.session_timeout / 8));
        let is_long = remaining >= self.session_timeout / 4;
        let ask_in = if is_long { until_ending.min(usual) } else { until_ending };
        Term {
            ask_at: Some(read_at.saturating_add(ask_in + self.session_timeout / 64)),
            kill_at: read_at.saturating_add(remaining.saturating_sub(self.last_moment())),
        }
    }

    /// Returns how long the command may take to end, from SIGTERM to SIGKILL.
    pub(super) fn grace(&self) -> Duration {
        self.grace
    }

    /// How long killed processes take to end, even on a busy machine.
    fn last_moment(&self) -> Duration {
        self.session_timeout / 32
    }
}

/// When to kill a command that was asked to end. This moment only ever comes closer: another reason to end the command
/// never gives it more time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KillTime(Option<Instant>);

impl KillTime {
    /// Returns whether the command is to be killed at some time.
    pub(super) fn is_set(self) -> bool {
        self.0.is_some()
    }

    /// Makes sure that the command is killed within this time. Returns how long it has left, or `None` if that is
    /// longer than the clock can represent.
    pub(super) fn kill_within(&mut self, time: Duration, now: Instant) -> Option<Duration> {
        self.0 = self.0.into_iter().chain(now.checked_add(time)).min();
        self.left(now)
    }

    /// Returns how long the command has left, or `None` if no time is set.
    pub(super) fn left(self, now: Instant) -> Option<Duration> {
        self.0.map(|kill_at| kill_at.saturating_duration_since(now))
    }
}

/// Whether the lease has its usual length.
///
/// The lease is shorter just after the lock was acquired or the connection changed: an earlier lease runs out while a
/// new one is being proven, which takes as long as the report delay of the servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    session_timeout: Duration,
    /// The earliest time at which the lease can settle, or `None` if that time never comes.
    settles_at: Option<Instant>,
    is_settled: bool,
}

impl Settling {
    /// Begins to settle. The report delay is less than three quarters of any useful session timeout.
    pub(super) fn new(session_timeout: Duration, now: Instant) -> Settling {
        Settling { session_timeout, settles_at: now.checked_add(session_timeout * 3 / 4), is_settled: false }
    }

    /// Begins to settle again, because the connection has changed.
    pub(super) fn begin_again(&mut self, now: Instant) {
        *self = Settling::new(self.session_timeout, now);
    }

    /// Returns whether the lease has settled, given the time that it still lasts.
    pub(super) fn is_settled(&mut self, remaining: Duration, now: Instant) -> bool {
        let may_settle = self.settles_at.is_some_and(|settles_at| settles_at <= now);
        self.is_settled |= may_settle && remaining >= self.session_timeout / 4;
        self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::help_of;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn grace_is_at_most_a_quarter_of_the_session_timeout() {
        assert!(help_of("run").contains("it has at most a quarter of the session timeout"));
        let times = EndTimes::new(60 * SECOND, 16 * SECOND);
        assert_eq!(times.verdict(5 * SECOND, false, true), Verdict::RunsOn(SECOND));
        assert_eq!(times.verdict(4 * SECOND, false, true), Verdict::MustEnd);
        assert_eq!(times.verdict(4 * SECOND, true, true), Verdict::RunsOn(2 * SECOND));
        assert_eq!(times.verdict(2 * SECOND, true, true), Verdict::MustEnd);
    }

    #[test]
    fn lock_that_was_just_taken_needs_no_long_lease_in_contact() {
        let times = EndTimes::new(5 * SECOND, 16 * SECOND);
        assert_eq!(times.verdict(SECOND, true, false), Verdict::RunsOn(SECOND / 2));
        assert_eq!(times.verdict(SECOND, false, false), Verdict::MustEnd);
        assert_eq!(times.verdict(Duration::ZERO, true, false), Verdict::MustEnd);
        let now = Instant::now();
        let mut settling = Settling::new(16 * SECOND, now);
        // This is an earlier lease, which runs out.
        assert!(!settling.is_settled(8 * SECOND, now + 11 * SECOND));
        assert!(!settling.is_settled(3 * SECOND, now + 12 * SECOND));
        assert!(settling.is_settled(4 * SECOND, now + 12 * SECOND));
        assert!(settling.is_settled(SECOND, now + 13 * SECOND));
        settling.begin_again(now + 13 * SECOND);
        assert!(!settling.is_settled(8 * SECOND, now + 14 * SECOND));
    }

    #[test]
    fn another_reason_to_end_gives_no_more_time() {
        let (mut kill_time, now) = (KillTime::default(), Instant::now());
        assert!(!kill_time.is_set() && kill_time.left(now).is_none());
        assert_eq!(kill_time.kill_within(Duration::MAX, now), None);
        assert_eq!(kill_time.kill_within(5 * SECOND, now), Some(5 * SECOND));
        assert_eq!(kill_time.kill_within(2 * SECOND, now), Some(2 * SECOND));
        assert_eq!(kill_time.kill_within(5 * SECOND, now + SECOND), Some(SECOND));
        assert_eq!(kill_time.left(now + 3 * SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn guardian_kills_before_the_lease_ends_and_asks_a_moment_later_than_the_holder() {
        for grace in [0, 1, 5, 100] {
            let (times, read_at) = (EndTimes::new(grace * SECOND, 16 * SECOND), 100 * SECOND);
            for (millis, is_settled) in (0..16_000).flat_map(|millis| [(millis, false), (millis, true)]) {
                let remaining = Duration::from_millis(millis);
                let Verdict::RunsOn(left) = times.verdict(remaining, true, is_settled) else { continue };
                let term = times.term(read_at, remaining, left);
                assert_eq!(term.kill_at + SECOND / 2, read_at + remaining);
                let ask_in = term.ask_at.unwrap() - read_at;
                assert!(ask_in <= left + SECOND / 4 && ask_in >= SECOND / 4, "{remaining:?}");
                assert!(!is_settled || ask_in >= left, "{remaining:?}");
            }
        }
    }

    #[test]
    fn command_is_killed_before_the_lease_ends() {
        for grace in [0, 1, 5, 100] {
            let times = EndTimes::new(grace * SECOND, 16 * SECOND);
            for millis in 0..8000 {
                let remaining = Duration::from_millis(millis);
                let until_kill = times.until_kill(remaining);
                assert!(until_kill < remaining || until_kill.is_zero());
                assert!(until_kill <= grace * SECOND);
                let verdict = times.verdict(remaining, true, false);
                assert_eq!(verdict == Verdict::MustEnd, remaining <= SECOND / 2, "{remaining:?}");
            }
        }
    }
}
