//! [`Notices`]: which connections, outages and round trips the log mentions.

use std::time::Duration;

use log::Level;

use super::Status;
use crate::support::{Outage, Repetition};
use crate::time::Moment;

/// At level `info`, at most one new connection is logged in each interval of this length.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A round trip longer than this fraction of the session timeout is too long.
const MAX_ROUND_TRIP_DIVISOR: u32 = 6;
/// A warning is logged after this many slow pings in a row, because a pause of the process may delay a single one.
const SLOW_PINGS_BEFORE_WARNING: u32 = 3;

#[derive(Default)]
pub(super) struct Notices {
    outage: Outage,
    contact: Repetition,
    /// How many pings in a row were answered too late. After the warning, the count no longer changes.
    slow_pings: u32,
}

impl Notices {
    /// `since` is the beginning of the time until the first contact, if the log is to mention that time.
    pub(super) fn new(since: Option<Moment>) -> Notices {
        let mut notices = Notices::default();
        if let Some(since) = since {
            notices.outage.begin(since);
        }
        notices
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.outage.deadline()
    }

    /// Returns the line about an outage that has lasted for long. `outcomes` describes the attempts.
    pub(super) fn long_outage(&mut self, now: Moment, outcomes: impl FnOnce() -> String) -> Option<String> {
        let outage = self.outage.mention(now)?;
        Some(format!("no ZooKeeper server was reached for {outage:.0?}; tried {}", outcomes()))
    }

    pub(super) fn lost_contact(&mut self, now: Moment) {
        self.outage.begin(now);
    }

    /// Returns the line about a new connection.
    pub(super) fn contact(&mut self, now: Moment, status: &Status) -> (Level, String) {
        let after = match self.outage.end(now) {
            Some(outage) => format!(" after {outage:.1?} without contact"),
            None => String::new(),
        };
        let is_repeated = self.contact.is_repeated(now, MIN_LOG_INTERVAL);
        let level = if is_repeated { Level::Debug } else { Level::Info };
        let Status { session_id, server, granted, .. } = status;
        let line = format!(
            "ZooKeeper session {session_id:#x} connected to {server}{after}, session timeout {:?}",
            granted.session_timeout
        );
        (level, line)
    }

    /// Counts an answered ping. Returns a line once: when it shows that the server is too far away for the session
    /// timeout.
    pub(super) fn far_server(&mut self, round_trip: Duration, session_timeout: Duration) -> Option<String> {
        if self.slow_pings == SLOW_PINGS_BEFORE_WARNING {
            return None;
        }
        let is_slow = round_trip > session_timeout / MAX_ROUND_TRIP_DIVISOR;
        self.slow_pings = if is_slow { self.slow_pings + 1 } else { 0 };
        (self.slow_pings == SLOW_PINGS_BEFORE_WARNING).then(|| {
            format!(
                "the round trip of {round_trip:.1?} to the ZooKeeper server is too long for a session timeout of \
                 {session_timeout:?}: what depends on the session, such as a lock, may be lost without a fault"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_too_far_away_after_three_slow_pings_in_a_row() {
        let (mut notices, session_timeout) = (Notices::default(), Duration::from_secs(6));
        let mut shows = |millis| notices.far_server(Duration::from_millis(millis), session_timeout).is_some();
        assert_eq!([1001, 1001, 1000, 1001, 1001].map(&mut shows), [false; 5]);
        assert!(shows(1001));
        assert!(!shows(1001), "the warning is not repeated");
    }
}
