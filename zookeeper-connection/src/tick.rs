//! [`Ticks`]: which tick of the servers a client reckons with, and why.
//!
//! The report delay depends on the tick, and the protocol has no request for it. If the application states the tick,
//! that tick counts. Otherwise, a [probe](crate::probe) asks a server for its minimum session timeout, which is two
//! ticks unless it is configured otherwise. If the minimum is more than two ticks, the client reckons with too long a
//! tick, which costs part of the outage that a session survives. If the minimum is less, half of it would be too short
//! a tick, and a session would seem to live for too long. Therefore
//! [`max_tick`](crate::ConnectionOptions::max_tick), or [`DEFAULT_TICK`] if nothing is stated, is a lower bound.

use std::time::Duration;

use log::Level;

use crate::connection::TickNote;
use crate::event::report_delay_of;
use crate::{ConnectionOptions, DEFAULT_TICK, Granted};

/// If a tick that is not stated exceeds this fraction of the session timeout, the line about it says that a shorter one
/// can be stated.
const LONG_TICK_DIVISOR: u32 = 5;

pub(super) struct Ticks {
    /// See [`ConnectionOptions::tick`].
    stated: Option<Duration>,
    /// See [`ConnectionOptions::max_tick`].
    max: Option<Duration>,
    /// The longest minimum session timeout of all servers that have answered a probe.
    minimum: Option<Duration>,
    note: Option<TickNote>,
    /// The last line about the tick.
    mentioned: Option<String>,
}

/// The state of the probe of the server to which the client is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeState {
    /// No probe has been answered yet, or given up.
    Pending,
    Answered,
    Unanswered,
}

impl Ticks {
    pub(super) fn new(options: &ConnectionOptions) -> Ticks {
        Ticks {
            stated: options.tick,
            max: options.max_tick,
            minimum: None,
            note: options.tick_note.clone(),
            mentioned: None,
        }
    }

    /// Returns whether no server needs to be probed.
    pub(super) fn is_stated(&self) -> bool {
        self.stated.is_some()
    }

    /// Returns the tick that counts while a server does not answer its probe. Without a bound, it is the longest
    /// possible one, and this returns `None`.
    pub(super) fn unanswered(&self) -> Option<Duration> {
        self.reckoned(ProbeState::Unanswered).map(|(tick, _)| tick)
    }

    /// Notes the answer to a probe: a server's minimum session timeout.
    pub(super) fn note_minimum(&mut self, minimum: Duration) {
        self.minimum = self.minimum.max(Some(minimum));
    }

    /// Adjusts a server's grant to the tick that counts.
    ///
    /// A stated tick counts even if it is more than half of the session timeout. By default, no server grants such a
    /// timeout, but one with a lowered minimum does.
    pub(super) fn granted(&self, fresh: Granted, probe: ProbeState) -> Granted {
        match (self.stated, self.reckoned(probe)) {
            (Some(stated), _) => fresh.with_report_delay(report_delay_of(stated)),
            (None, Some((tick, _))) => fresh.with_tick(tick),
            (None, None) => fresh,
        }
    }

    /// Returns the longest tick that the servers may have, and why it counts. Returns `None` if nothing is known.
    fn reckoned(&self, probe: ProbeState) -> Option<(Duration, &'static str)> {
        const MAX: &str = "the longest that is stated (max_tick)";
        let least = match self.max {
            Some(max) => (max, MAX),
            None => (
                DEFAULT_TICK,
                "the usual one, because none is stated (tick) and a server suggests a shorter one",
            ),
        };
        let measured = self.minimum.map(|minimum| match minimum / 2 {
            half if half < least.0 => least,
            half => (half, "half of the shortest session timeout that a server grants"),
        });
        match probe {
            ProbeState::Pending => None,
            ProbeState::Answered => measured,
            ProbeState::Unanswered => self.max.and_then(|_| measured.or(Some(least))),
        }
    }

    /// Returns the line about the tick that counts on a connection, unless it was the last one. There is no line while
    /// a probe is pending.
    pub(super) fn mention(&mut self, granted: Granted, probe: ProbeState) -> Option<(Level, String)> {
        let (level, mut line) = match self.stated {
            Some(tick) => of_stated(tick, granted.session_timeout),
            None if probe == ProbeState::Pending => return None,
            None => (Level::Info, self.of_reckoned(granted.session_timeout, probe)),
        };
        if let Some(note) = &self.note {
            line = format!("{line}; {}", note(granted));
        }
        let is_repeated = self.mentioned.as_ref() == Some(&line);
        self.mentioned = Some(line.clone());
        (!is_repeated).then_some((level, line))
    }

    fn of_reckoned(&self, session_timeout: Duration, probe: ProbeState) -> String {
        let longest = session_timeout / 2;
        let reckoned = self.reckoned(probe).filter(|(tick, _)| *tick <= longest);
        let (tick, why) = reckoned.unwrap_or((longest, "the longest that this session timeout allows"));
        let unanswered = match probe {
            ProbeState::Unanswered => ", as the server does not answer on a second connection",
            _ => "",
        };
        let remedy = match tick > session_timeout / LONG_TICK_DIVISOR {
            true => "; if it is shorter, state it (tick)",
            false => "",
        };
        format!("the tick of the ZooKeeper servers counts as {tick:?}: {why}{unanswered}{remedy}")
    }
}

fn of_stated(tick: Duration, session_timeout: Duration) -> (Level, String) {
    let line = format!("the tick of the ZooKeeper servers is {tick:?}, as stated");
    if session_timeout >= tick.saturating_mul(2) {
        return (Level::Info, line);
    }
    let rest = format!(
        "but the session timeout of {session_timeout:?} that a server grants is less than two such ticks: check the \
         setting tick, and the server's minSessionTimeout"
    );
    (Level::Warn, format!("{line}, {rest}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::ProbeState::{Answered, Pending, Unanswered};
    use super::*;

    const T: Duration = Duration::from_secs(30);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn ticks(stated: Option<u64>, max: Option<u64>, minimum: Option<u64>) -> Ticks {
        let mut options = ConnectionOptions::new(T);
        (options.tick, options.max_tick) = (stated.map(seconds), max.map(seconds));
        let mut ticks = Ticks::new(&options);
        minimum.into_iter().for_each(|minimum| ticks.note_minimum(seconds(minimum)));
        ticks
    }

    fn line(ticks: &mut Ticks, timeout: Duration, probe: ProbeState) -> String {
        let (level, line) = ticks.mention(ticks.granted(Granted::new(timeout), probe), probe).unwrap();
        assert_eq!(level, Level::Info, "{line}");
        line
    }

    #[test]
    fn stated_tick_counts_whatever_a_server_suggests() {
        for probe in [Pending, Answered, Unanswered] {
            for minimum in [None, Some(1), Some(30)] {
                let ticks = ticks(Some(3), Some(5), minimum);
                let granted = ticks.granted(Granted::new(T), probe);
                assert_eq!(granted.report_delay, seconds(33) / 10, "{probe:?} {minimum:?}");
                assert!(ticks.is_stated());
            }
        }
    }

    /// A server with a lowered minimum may grant less than two ticks. A shorter report delay would be unsound there.
    #[test]
    fn stated_tick_counts_in_full_even_if_it_is_most_of_the_session_timeout() {
        let mut ticks = ticks(Some(4), None, None);
        let granted = ticks.granted(Granted::new(seconds(6)), Pending);
        assert_eq!(granted.report_delay, seconds(44) / 10);
        let (level, line) = ticks.mention(granted, Pending).unwrap();
        assert_eq!(level, Level::Warn);
        assert!(line.contains("is 4s, as stated, but the session timeout of 6s"), "{line}");
        let granted = ticks.granted(Granted::new(seconds(8)), Pending);
        assert_eq!(ticks.mention(granted, Pending).unwrap().0, Level::Info, "two ticks suffice");
    }

    #[test]
    fn line_says_why_a_tick_counts() {
        let why = |max: Option<u64>, minimum: Option<u64>, probe| {
            line(&mut ticks(None, max, minimum), T, probe).split_once("counts as ").unwrap().1.to_owned()
        };
        let half = "half of the shortest session timeout that a server grants";
        assert_eq!(why(None, Some(4), Answered), format!("2s: {half}"));
        assert_eq!(why(Some(2), Some(10), Answered), format!("5s: {half}"));
        assert_eq!(why(None, Some(30), Answered), format!("15s: {half}; if it is shorter, state it (tick)"));
        assert!(why(None, Some(1), Answered).starts_with("2s: the usual one, because none is stated"));
        assert_eq!(why(Some(3), Some(4), Answered), "3s: the longest that is stated (max_tick)");
        let unanswered = "as the server does not answer on a second connection";
        let bound = why(Some(3), None, Unanswered);
        assert_eq!(bound, format!("3s: the longest that is stated (max_tick), {unanswered}"));
        let longest = "15s: the longest that this session timeout allows";
        let remedy = "; if it is shorter, state it (tick)";
        assert_eq!(why(None, None, Unanswered), format!("{longest}, {unanswered}{remedy}"));
        assert_eq!(why(Some(20), Some(4), Answered), format!("{longest}{remedy}"));
        assert_eq!(
            line(&mut ticks(Some(2), None, None), T, Pending),
            "the tick of the ZooKeeper servers is 2s, as stated"
        );
    }

    #[test]
    fn line_comes_once_and_again_when_it_changes() {
        let mut ticks = ticks(None, None, Some(4));
        let granted = |ticks: &Ticks, probe| ticks.granted(Granted::new(T), probe);
        let mention = |ticks: &mut Ticks, probe| ticks.mention(granted(ticks, probe), probe).is_some();
        assert!(!mention(&mut ticks, Pending), "a probe is pending");
        assert!(mention(&mut ticks, Answered));
        // A reconnect.
        assert!(!mention(&mut ticks, Pending) && !mention(&mut ticks, Answered));
        ticks.note_minimum(seconds(10));
        assert!(mention(&mut ticks, Answered));
        ticks.note_minimum(seconds(4));
        assert!(!mention(&mut ticks, Answered), "the longest counts");
    }

    #[test]
    fn note_of_the_application_ends_the_line() {
        let mut options = ConnectionOptions::new(T);
        options.tick = Some(seconds(2));
        options.tick_note = Some(Arc::new(|granted| format!("it is late by {:?}", granted.report_delay)));
        let mut ticks = Ticks::new(&options);
        assert!(line(&mut ticks, T, Pending).ends_with(", as stated; it is late by 2.2s"));
    }
}
