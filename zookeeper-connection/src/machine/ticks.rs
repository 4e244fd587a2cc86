//! [`Ticks`]: which tick of the servers a client reckons with, and why. [`TickSearch`]: when servers are probed for it.
//!
//! The report delay depends on the tick, and the protocol has no request for it. If the application states the tick,
//! that tick counts. Otherwise, a [probe](super::probe) asks a server for its minimum session timeout, which is two
//! ticks unless it is configured otherwise. If the minimum is more than two ticks, the client reckons with too long a
//! tick, which costs part of the outage that a session survives. If the minimum is less, half of it would be too short
//! a tick, and a session would seem to live for too long. Therefore
//! [`max_tick`](crate::ConnectionOptions::max_tick), or [`DEFAULT_TICK`] if nothing is stated, is a lower bound.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use log::Level;

use super::LinkId;
use super::probe::{Probe, Progress};
use crate::connection::TickNote;
use crate::event::report_delay_of;
use crate::time::Moment;
use crate::{ConnectionOptions, DEFAULT_TICK, Granted};

/// Once a server has answered a probe, each further probe after a connect is delayed by up to this fraction of the
/// session timeout, but by no more than `MAX_PROBE_DELAY`.
const PROBE_DELAY_DIVISOR: u32 = 8;
const MAX_PROBE_DELAY: Duration = Duration::from_secs(2);

/// The pause after the first unanswered probe in a row is the session timeout. Each further one doubles the pause, at
/// most this many times.
const MAX_PROBE_DOUBLINGS: u32 = 7;

/// The number of unanswered probes in a row after which a warning is logged.
const PROBES_BEFORE_WARNING: u32 = 2;

/// If a tick that is not stated exceeds this fraction of the session timeout, the line about it says that a shorter one
/// can be stated.
const LONG_TICK_DIVISOR: u32 = 5;

/// What is known of the ticks, and the probes of the servers to which the client connects.
pub(super) struct TickSearch {
    ticks: Ticks,
    /// Whether a probe closes its session instead of letting it expire. Servers that may require authentication would
    /// refuse to close the session, and log an error.
    closes: bool,
    /// The present probe, and when it ends.
    probe: Option<(Probe, Moment)>,
    /// When the next probe begins.
    due: Option<Moment>,
    /// The grant on the current connection, not yet adjusted to the tick.
    fresh: Option<Granted>,
    state: ProbeState,
    /// The number of probes in a row that the current server has not answered.
    unanswered: u32,
    /// Whether the warning about unanswered probes has been logged.
    has_warned: bool,
    /// The servers whose tick is known, each with its grant at the time of the probe, not adjusted to the tick. If the
    /// grant is different later, the server's configuration may have changed, so the answer does not count.
    probed: HashMap<SocketAddr, Granted>,
}

impl TickSearch {
    pub(super) fn new(ticks: Ticks, closes: bool) -> TickSearch {
        TickSearch {
            ticks,
            closes,
            probe: None,
            due: None,
            fresh: None,
            state: ProbeState::Pending,
            unanswered: 0,
            has_warned: false,
            probed: HashMap::new(),
        }
    }

    /// Handles a new connection. Returns its grant, adjusted to the tick. `delay`, between zero and one, is random.
    ///
    /// Unless the tick of this server is known, a probe begins at once, or with a delay if a server has answered one
    /// before: if a server fails, all its clients move to the other servers at the same time, and each probe costs those
    /// servers two transactions.
    pub(super) fn connected(
        &mut self,
        now: Moment,
        address: SocketAddr,
        fresh: Granted,
        delay: f64,
    ) -> Granted {
        let is_known = self.probed.get(&address) == Some(&fresh);
        self.state = if is_known { ProbeState::Answered } else { ProbeState::Pending };
        (self.fresh, self.unanswered) = (Some(fresh), 0);
        if !is_known && self.ticks.stated.is_none() {
            let longest = (fresh.session_timeout / PROBE_DELAY_DIVISOR).min(MAX_PROBE_DELAY);
            let delay = if self.probed.is_empty() { Duration::ZERO } else { longest.mul_f64(delay) };
            self.due = Some(now.after(delay));
        }
        self.ticks.granted(fresh, self.state)
    }

    /// Returns when [`take_due`](TickSearch::take_due) or [`is_late`](TickSearch::is_late) next returns `true`.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.probe.as_ref().map(|(_, ends)| *ends).or(self.due)
    }

    /// Returns whether a probe must begin.
    pub(super) fn take_due(&mut self, now: Moment) -> bool {
        self.due.take_if(|due| *due <= now).is_some()
    }

    pub(super) fn begin(&mut self, probe: Probe, now: Moment, session_timeout: Duration) {
        self.probe = Some((probe, now.after(probe_time(self.unanswered, session_timeout))));
        self.unanswered += 1;
    }

    /// Returns whether the present probe has taken too long.
    pub(super) fn is_late(&self, now: Moment) -> bool {
        self.probe.as_ref().is_some_and(|(_, ends)| *ends <= now)
    }

    pub(super) fn is_probe(&self, link: LinkId) -> bool {
        self.probe.as_ref().is_some_and(|(probe, _)| probe.link == link)
    }

    fn probe_on(&mut self, link: LinkId) -> Option<&mut Probe> {
        self.probe.as_mut().map(|(probe, _)| probe).filter(|probe| probe.link == link)
    }

    /// Handles a transport that is open now. Returns whether it is that of the probe.
    pub(super) fn opened(&mut self, link: LinkId) -> bool {
        self.probe_on(link).map(Probe::opened).is_some()
    }

    pub(super) fn outgoing(&mut self, link: LinkId) -> Option<&mut Vec<u8>> {
        self.probe_on(link)?.outgoing()
    }

    pub(super) fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let closes = self.closes;
        self.probe_on(link).map_or(Progress::Pending, |probe| probe.received(bytes, closes))
    }

    pub(super) fn closes_session(&self) -> bool {
        self.closes
    }

    /// Notes the answer to a probe: the minimum session timeout of the server, which is at this address.
    pub(super) fn answered(&mut self, minimum: Duration, address: Option<SocketAddr>) {
        self.ticks.note_minimum(minimum);
        (self.state, self.unanswered) = (ProbeState::Answered, 0);
        self.probed.extend(address.zip(self.fresh));
    }

    /// Ends the present probe. Returns its transport.
    pub(super) fn drop_probe(&mut self) -> Option<LinkId> {
        self.due = None;
        self.probe.take().map(|(probe, _)| probe.link)
    }

    /// Begins no other probe on this connection.
    pub(super) fn stop(&mut self) {
        self.due = None;
    }

    /// Schedules another probe if the last one was not answered, with a longer pause each time up to a limit. Returns
    /// whether it was not.
    pub(super) fn probe_again(&mut self, now: Moment, session_timeout: Duration) -> bool {
        if self.unanswered == 0 {
            return false;
        }
        self.state = ProbeState::Unanswered;
        self.due = Some(now.after(pause_after(self.unanswered, session_timeout)));
        true
    }

    /// Returns the current grant, adjusted to the tick.
    pub(super) fn granted(&self) -> Option<Granted> {
        self.fresh.map(|fresh| self.ticks.granted(fresh, self.state))
    }

    /// See [`Ticks::mention`].
    pub(super) fn mention(&mut self, granted: Granted) -> Option<(Level, String)> {
        self.ticks.mention(granted, self.state)
    }

    /// Returns a line once: when the server has left several probes unanswered.
    pub(super) fn warning(&mut self, server: &str) -> Option<String> {
        if self.unanswered != PROBES_BEFORE_WARNING || std::mem::replace(&mut self.has_warned, true) {
            return None;
        }
        let counted = match self.ticks.unanswered() {
            Some(tick) => format!("a tick of {tick:?} counts"),
            None => "the longest possible one counts, so the session counts as lost after a shorter outage"
                .to_owned(),
        };
        Some(format!(
            "ZooKeeper server {server} does not answer on a second connection, so its tick is not known: {counted}; \
             check its limit of connections (maxClientCnxns) and whether it is slow, or state the tick (tick)"
        ))
    }
}

/// Returns the pause after this many unanswered probes in a row.
fn pause_after(unanswered: u32, session_timeout: Duration) -> Duration {
    session_timeout * 2_u32.pow(unanswered.saturating_sub(1).min(MAX_PROBE_DOUBLINGS))
}

/// Returns how long the next probe may take after this many unanswered ones in a row. The session that it opens is a
/// transaction, so slow servers need time.
fn probe_time(unanswered: u32, session_timeout: Duration) -> Duration {
    session_timeout / 4 * 2_u32.pow(unanswered.min(2))
}

pub(crate) struct Ticks {
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
enum ProbeState {
    /// No probe has been answered yet, or given up.
    Pending,
    Answered,
    Unanswered,
}

impl Ticks {
    pub(crate) fn new(options: &ConnectionOptions) -> Ticks {
        Ticks {
            stated: options.tick,
            max: options.max_tick,
            minimum: None,
            note: options.tick_note.clone(),
            mentioned: None,
        }
    }

    /// Returns the tick that counts while a server does not answer its probe. Without a bound, it is the longest
    /// possible one, and this returns `None`.
    fn unanswered(&self) -> Option<Duration> {
        self.reckoned(ProbeState::Unanswered).map(|(tick, _)| tick)
    }

    /// Notes the answer to a probe: a server's minimum session timeout.
    fn note_minimum(&mut self, minimum: Duration) {
        self.minimum = self.minimum.max(Some(minimum));
    }

    /// Adjusts a server's grant to the tick that counts.
    ///
    /// A stated tick counts even if it is more than half of the session timeout. By default, no server grants such a
    /// timeout, but one with a lowered minimum does.
    fn granted(&self, fresh: Granted, probe: ProbeState) -> Granted {
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
    fn mention(&mut self, granted: Granted, probe: ProbeState) -> Option<(Level, String)> {
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
    fn pause_after_unanswered_probes_doubles_seven_times() {
        let pauses = [1, 2, 3, 7, 8, 9, u32::MAX].map(|unanswered| pause_after(unanswered, T));
        assert_eq!(pauses, [1, 2, 4, 64, 128, 128, 128].map(|factor| T * factor));
    }

    #[test]
    fn probes_may_take_a_quarter_then_a_half_and_then_the_whole_of_the_session_timeout() {
        let times = [0, 1, 2, 3, u32::MAX].map(|unanswered| probe_time(unanswered, T));
        assert_eq!(times, [T / 4, T / 2, T, T, T]);
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
