//! The time by which a command must end, so that it has ended when another client may own the lock.

use std::time::{Duration, Instant};

/// The times of a command's end, before the end of the lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndTimes {
    /// The time for the command to end, between the signals.
    grace: Duration,
    session_timeout: Duration,
}

/// The consequence of the remaining lease for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs on. To be asked again after this time, or when contact is lost.
    RunsOn(Duration),
    MustEnd,
}

impl EndTimes {
    /// With the session timeout that the server grants.
    pub(super) fn new(grace: Duration, session_timeout: Duration) -> EndTimes {
        EndTimes { grace: grace.min(session_timeout / 4), session_timeout }
    }

    /// Returns whether the command must end. `has_contact` says that no connection is known to be lost.
    ///
    /// In contact a lease always lasts for 5/16 of the session timeout, but for round trips and the
    /// first moments of a lock. So less than 1/8 means silence that was not noticed yet.
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

    /// Returns how long after SIGTERM the command is killed while the lock is about to be lost.
    pub(super) fn until_kill(&self, remaining: Duration) -> Duration {
        remaining.saturating_sub(self.last_moment()).min(self.grace)
    }

    /// The time in which killed processes end, also on a busy machine.
    fn last_moment(&self) -> Duration {
        self.session_timeout / 32
    }
}

/// Whether a lease lasts for as long as one does in contact.
///
/// It lasts for less in the first moments of a lock, and of a connection: an earlier lease runs out while a
/// new one is being proven, which takes the report delay of the servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    session_timeout: Duration,
    /// `None` for a time that never comes.
    settles_at: Option<Instant>,
    is_settled: bool,
}

impl Settling {
    /// Begins to settle. The report delay is less than three quarters of each session timeout that is of use.
    pub(super) fn new(session_timeout: Duration, now: Instant) -> Settling {
        Settling { session_timeout, settles_at: now.checked_add(session_timeout * 3 / 4), is_settled: false }
    }

    /// The connection has changed.
    pub(super) fn begin_again(&mut self, now: Instant) {
        *self = Settling::new(self.session_timeout, now);
    }

    /// Returns whether it has settled, now that the lease lasts for this time.
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
        assert!(help_of("run").contains("it has a quarter of the session timeout at most"));
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
        // The lease of before, which runs out.
        assert!(!settling.is_settled(8 * SECOND, now + 11 * SECOND));
        assert!(!settling.is_settled(3 * SECOND, now + 12 * SECOND));
        assert!(settling.is_settled(4 * SECOND, now + 12 * SECOND));
        assert!(settling.is_settled(SECOND, now + 13 * SECOND));
        settling.begin_again(now + 13 * SECOND);
        assert!(!settling.is_settled(8 * SECOND, now + 14 * SECOND));
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
