//! [`Link`]: what disturbs one client's connections, and what the ensemble knows of the client's session.

use std::collections::VecDeque;
use std::time::Duration;

use super::random::Random;
use super::seen::saw;
use super::world::{ClientState, State};
use crate::time::Moment;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Link {
    /// Whether the network holds back what both sides send, without either side knowing.
    pub(super) partitioned: bool,
    /// The moment before which no partition ends while faults occur.
    pub(super) cut_off_until: Moment,
    /// The stall of the link between the client's server and the leader, if it stalls.
    pub(super) stall: Option<Stall>,
    /// The moment until which the network is slow.
    pub(super) slow_until: Moment,
    pub(super) heard: Heard,
}

/// A stall of the link from the leader to the client's server. The leader's pings are late, so the server reports
/// nothing.
#[derive(Debug)]
pub(super) struct Stall {
    since: Moment,
    pub(super) until: Moment,
}

/// What the ensemble knows of a session's activity. The leader ends the session. It learns of the session when the
/// session starts or reconnects, and from the reports of the server that the client is connected to.
#[derive(Debug)]
pub(super) struct Heard {
    /// The time of the leader's latest news of the session, provided no report is lost.
    pub(super) last: Moment,
    /// The session timeout that the leader counts from then on.
    counts: Duration,
    /// When a report arrives from a server that the session has left, and the session timeout in that report. The
    /// report counts unless news arrives after it.
    late: Option<(Moment, Duration)>,
    /// How long after the earliest possible moment the leader ends the session.
    pub(super) grace: Duration,
    /// When the session connected. The leader learned this immediately.
    connected: Moment,
    /// The activity since then, as far back as a report may be lost.
    active: VecDeque<Moment>,
    /// Whether the last mark of its activity was lost in a race with a report. The next mark is not lost.
    last_mark_lost: bool,
    /// The servers' tick time.
    pub(super) tick: Duration,
    /// Whether the client's server is an observer, which reports to a follower.
    pub(super) observer: bool,
    pub(super) drift: Drift,
}

/// How fast the servers' clocks run, compared with one client's clock. The servers' clocks determine when the
/// client's sessions end and when servers report. The difference is the one for which docs/guarantees.md
/// promises a margin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drift {
    None,
    Faster,
    Slower,
}

/// The largest difference between two clocks, as a divisor of the time that has passed.
const DRIFT_DIVISOR: u32 = 32;

impl Drift {
    pub(super) fn draw(random: &mut Random) -> Drift {
        random.of(&[Drift::None, Drift::None, Drift::Faster, Drift::Slower])
    }

    /// Returns how much time passes for the client while this much passes on the servers' clocks.
    pub(super) fn by_the_servers(self, time: Duration) -> Duration {
        match self {
            Drift::None => time,
            Drift::Faster => time - time / DRIFT_DIVISOR,
            Drift::Slower => time + time / DRIFT_DIVISOR,
        }
    }
}

impl Heard {
    pub(super) fn new(now: Moment, counts: Duration, tick: Duration, observer: bool, drift: Drift) -> Heard {
        Heard {
            last: now,
            counts,
            late: None,
            grace: Duration::ZERO,
            connected: now,
            active: VecDeque::new(),
            last_mark_lost: false,
            tick,
            observer,
            drift,
        }
    }

    /// Returns the maximum age of the last report to the leader. Servers report every half tick, and an
    /// observer's report takes two hops.
    fn max_report_age(&self) -> Duration {
        self.drift.by_the_servers(if self.observer { self.tick } else { self.tick / 2 })
    }

    fn record_connection(&mut self, now: Moment, granted: Duration) {
        self.record_news(now, granted);
        self.connected = now;
        self.active.clear();
    }

    fn record_news(&mut self, now: Moment, granted: Duration) {
        (self.last, self.counts) = (now, granted);
        self.late.take_if(|(at, _)| *at <= now);
    }

    /// Returns the time of the news from which the leader counts, and the session timeout that it counts, provided that
    /// no news follows beyond what is already on its way.
    fn end(&self) -> (Moment, Duration) {
        match self.late {
            Some((at, granted))
                if self.last < at && at <= self.last.after(self.drift.by_the_servers(self.counts)) =>
            {
                (at, granted)
            }
            _ => (self.last, self.counts),
        }
    }

    /// Records a request, which marks the session as active unless the mark is lost in a race.
    ///
    /// Behind an observer, that race may be at the observer or at the follower to which it reports. At the
    /// follower, one mark stands for all requests of one report. Here, the mark is lost only if a single
    /// request made it, and never together with the mark of the request before or after. An observer master
    /// may lose both marks of a pair; docs/guarantees.md names this as a limit.
    pub(super) fn record_activity(&mut self, now: Moment, races: bool) {
        self.last_mark_lost = races && !self.last_mark_lost;
        if self.last_mark_lost {
            saw("activity-mark-lost");
        } else {
            self.active.push_back(now);
        }
    }

    /// Reports all activity so far to the leader. The report may still be lost.
    fn report(&mut self, granted: Duration) {
        let Some(newest) = self.active.back().copied().filter(|newest| *newest >= self.last) else { return };
        self.record_news(newest, granted);
        while self.active.get(1).is_some_and(|next| next.after(self.max_report_age()) <= newest) {
            self.active.pop_front();
        }
    }

    /// Loses what the client's server had not yet reported when it crashed. The server made its last report this long
    /// before `now`.
    fn lose_a_report(&mut self, made_before: Duration, now: Moment) {
        let report = now.before(made_before);
        self.active.retain(|active| *active <= report);
        let before = self.last;
        self.last = self.active.back().copied().map_or(self.connected, |active| active.max(self.connected));
        if self.last < before {
            saw("report-lost");
        }
    }
}

impl Link {
    /// Returns whether a fault keeps the client cut off.
    pub(super) fn stays_cut_off(&self, now: Moment) -> bool {
        self.partitioned && now < self.cut_off_until
    }
}

impl State {
    /// Records that the client has reconnected, which the leader learns at once. The server that granted
    /// `former` may still report the session afterwards.
    pub(super) fn report_connection(&mut self, client: usize, former: Duration, now: Moment) {
        self.draw_grace(client);
        let report_age = self.clients[client].link.heard.max_report_age().as_nanos() as u64;
        let late = now.after(Duration::from_nanos(self.random.below(report_age)));
        let is_late = self.random.one_in(2);
        let client = &mut self.clients[client];
        let heard = &mut client.link.heard;
        heard.record_connection(now, client.session_timeout);
        if is_late && former < client.session_timeout {
            heard.late = Some((late, former));
            saw("former-server-reports-late");
        }
    }

    /// Changes the leader. The new leader restarts the time of every session, with the timeout from the
    /// session's creation.
    pub(super) fn change_leader(&mut self, now: Moment) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if client.has_a_raised_timeout() {
                saw("leader-forgets-a-raised-timeout");
            }
            client.link.heard.record_connection(now, client.created_timeout);
            client.link.heard.late = None;
            self.draw_grace(number);
        }
    }

    /// Crashes the client's server and loses its latest reports.
    pub(super) fn lose_report(&mut self, client: usize, now: Moment) {
        let made_before = self.draw_report_age(client);
        self.clients[client].link.heard.lose_a_report(made_before, now);
    }

    /// Returns how long ago a server made its last report.
    fn draw_report_age(&mut self, client: usize) -> Duration {
        let longest = self.clients[client].link.heard.max_report_age().as_nanos() as u64;
        // The maximum, which is the worst case, is drawn often.
        let age = if self.random.one_in(2) { longest - 1 } else { self.random.below(longest) };
        Duration::from_nanos(age)
    }

    pub(super) fn draw_grace(&mut self, client: usize) {
        let slack = self.clients[client].link.heard.counts.as_nanos() as u64 / 2;
        let grace = if self.random.one_in(2) { 0 } else { self.random.below(slack) };
        self.clients[client].link.heard.grace = Duration::from_nanos(grace);
    }

    /// Stalls the link between the leader and the client's server until this moment.
    pub(super) fn begin_stall(&mut self, client: usize, until: Moment, now: Moment) {
        self.clients[client].link.stall = Some(Stall { since: now, until });
    }

    /// Ends the stall: the server reports.
    pub(super) fn end_stall(&mut self, client: usize) {
        let client = &mut self.clients[client];
        if client.link.stall.take().is_some() {
            client.link.heard.report(client.session_timeout);
        }
    }

    /// Ends the stall: the server crashes before it reports anything.
    pub(super) fn die_after_stall(&mut self, client: usize) {
        self.draw_grace(client);
        let made_before = self.draw_report_age(client);
        let link = &mut self.clients[client].link;
        let Some(stall) = link.stall.take() else { return };
        link.heard.lose_a_report(made_before, stall.since);
    }
}

impl ClientState {
    /// Records that a server has received a request.
    pub(super) fn record_activity(&mut self, now: Moment, races: bool) {
        self.link.heard.record_activity(now, races);
        if self.link.stall.is_none() {
            self.link.heard.report(self.session_timeout);
        }
    }

    /// The session timeout on which the client counts: a longer one that is granted later does not count.
    pub(super) fn counted_timeout(&self) -> Duration {
        self.session_timeout.min(self.known_timeout)
    }

    /// Returns whether the session timeout is longer than when the session was created. A new leader forgets the longer
    /// timeout.
    pub(super) fn has_a_raised_timeout(&self) -> bool {
        self.session_timeout > self.created_timeout
    }

    /// Returns when the server ends the session if it receives nothing more.
    pub(super) fn ends_on_the_server_at(&self) -> Moment {
        let (last, counts) = self.link.heard.end();
        // A server may grant less than before. If the process is paused just before it learns of that, it
        // keeps its lease too long; docs/faults.md names this gap.
        let counts = self.link.heard.drift.by_the_servers(counts.max(self.known_timeout));
        last.after(counts).after(self.link.heard.grace)
    }
}
