//! [`Link`]: the state of one client's connection, the messages in transit, and what the ensemble knows of
//! the client's session.

use std::collections::VecDeque;
use std::time::Duration;

use super::baton::Wait;
use super::random::Random;
use super::seen::saw;
use super::world::{ClientState, State};
use crate::client::{ClientEvent, Granted};
use crate::time::Moment;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether the client library believes that it is connected.
    pub(super) connected: bool,
    pub(super) connection: u64,
    /// Whether the network swallows what both sides send, without either side knowing.
    pub(super) partitioned: bool,
    /// Whether the server has crashed, so the client has to find another.
    pub(super) server_died: bool,
    /// Whether the server is a deposed leader that does not know it. It takes up sessions and answers reads,
    /// and the ensemble learns nothing of that.
    pub(super) deposed: bool,
    /// The moment before which no partition ends while faults occur.
    pub(super) cut_off_until: Moment,
    /// The stall of the link between the client's server and the leader, if it stalls.
    pub(super) stall: Option<Stall>,
    /// When a keep-alive request was last answered.
    pub(super) kept_alive: Moment,
    /// The moment until which the client library finds no server while faults occur.
    pub(super) searches_until: Moment,
    /// The moment until which replies are slow.
    pub(super) slow_until: Moment,
    /// Whether the client library knows that the session has ended, or the session was closed.
    pub(super) over: bool,
    /// Whether the client library pings, which keeps the session alive while there is contact.
    pub(super) pings: bool,
    /// The pings of a client library that reports their answers.
    pub(super) reported_pings: Option<Pings>,
    pub(super) heard: Heard,
}

/// A stall of the link from the leader to the client's server.
///
/// The leader's pings are late, so the server reports nothing. Commits are late, too: writes take effect but
/// are not answered, and neither is anything that the client sends after a write. Earlier requests are
/// answered. On a real server, those answers may show the state from before the stall; here, the server never
/// lags behind.
#[derive(Debug)]
pub(super) struct Stall {
    since: Moment,
    pub(super) until: Moment,
    /// Whether the client library pinged throughout.
    was_always_active: bool,
    /// The first message that is held up.
    waiting_from: Option<u64>,
}

impl Stall {
    fn holds_back(&self, arrival: &Arrival) -> bool {
        arrival.fate == Fate::OnItsWay && self.waiting_from.is_some_and(|first| first <= arrival.stamp)
    }
}

/// The pings of one connection. Only one ping is in flight at a time.
#[derive(Debug)]
pub(super) struct Pings {
    next: Moment,
    under_way: Option<Moment>,
}

impl Pings {
    pub(super) fn on_a_new_connection(now: Moment, session_timeout: Duration) -> Pings {
        Pings { next: now.after(session_timeout / PING_DIVISOR), under_way: None }
    }
}

/// The number of pings that a client library sends in a session timeout.
const PING_DIVISOR: u32 = 6;

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
    fn lose_a_report(&mut self, made_before: Duration, now: Moment, was_always_active: bool) {
        let report = now.before(made_before);
        self.active.retain(|active| *active <= report);
        let reported = self.active.back().copied();
        let always = was_always_active.then_some(report);
        let before = self.last;
        self.last = [reported, always].into_iter().flatten().fold(self.connected, Moment::max);
        if self.last < before {
            saw("report-lost");
        }
    }
}

/// The transit state of a message from the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) stamp: u64,
    pub(super) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    OnItsWay,
    Arrived,
    Lost,
}

impl Link {
    /// Returns whether a message from the ensemble can be delivered.
    fn delivers(&self, arrival: &Arrival) -> bool {
        !self.partitioned && !self.deposed && !self.holds_back(arrival)
    }

    fn holds_back(&self, arrival: &Arrival) -> bool {
        self.stall.as_ref().is_some_and(|stall| stall.holds_back(arrival))
    }

    /// Returns whether a fault keeps the client cut off.
    pub(super) fn stays_cut_off(&self, now: Moment) -> bool {
        self.partitioned && now < self.cut_off_until
    }
}

impl State {
    pub(super) fn send_off(&mut self, fate: Fate) -> Arrival {
        self.last_stamp += 1;
        Arrival { stamp: self.last_stamp, fate }
    }

    /// Sends a ping from the client library.
    pub(super) fn send_ping(&mut self, client: usize, now: Moment) {
        let client = &mut self.clients[client];
        if let Some(pings) = &mut client.link.reported_pings {
            *pings = Pings::on_a_new_connection(now, client.session_timeout);
            pings.under_way = Some(now);
        }
    }

    /// Makes the server answer a ping, in the same way as a read.
    pub(super) fn answer_ping(&mut self, client: usize, races: bool, now: Moment) {
        let link = &mut self.clients[client].link;
        let sent = link.reported_pings.as_mut().and_then(|pings| pings.under_way.take());
        let Some(sent) = sent else { return };
        // Messages of a deposed leader are delivered at once or never.
        let fate = if link.deposed { Fate::Arrived } else { Fate::OnItsWay };
        if !link.deposed {
            self.draw_grace(client);
            self.clients[client].record_activity(now, races);
        }
        let arrival = self.send_off(fate);
        self.clients[client].events.push_back((arrival, ClientEvent::PingAnswered { sent }));
    }

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
        self.clients[client].link.heard.lose_a_report(made_before, now, false);
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

    /// Makes the ensemble receive nothing from the client from now on. The client's server may also crash
    /// before its next report.
    pub(super) fn silence(&mut self, client: usize, server_dies: bool, now: Moment) {
        let made_before = self.draw_report_age(client);
        let client = &mut self.clients[client];
        let is_always_active = client.is_in_contact(now);
        let heard = &mut client.link.heard;
        if is_always_active {
            heard.record_news(now, client.session_timeout);
        }
        if server_dies && client.link.connected && !client.link.partitioned && !client.link.deposed {
            heard.lose_a_report(made_before, now, is_always_active);
            client.link.server_died = true;
            saw("server-crashes");
        }
    }

    /// Stalls the link between the leader and the client's server until this moment.
    pub(super) fn begin_stall(&mut self, client: usize, until: Moment, now: Moment) {
        self.silence(client, false, now);
        let client = &mut self.clients[client];
        let was_always_active = client.is_in_contact(now);
        client.link.stall = Some(Stall { since: now, until, was_always_active, waiting_from: None });
    }

    /// Ends the stall: the server reports, and sends what was held up.
    pub(super) fn end_stall(&mut self, client: usize) {
        let client = &mut self.clients[client];
        if client.link.stall.take().is_some() {
            client.link.heard.report(client.session_timeout);
        }
    }

    /// Ends the stall: what was held up arrives at the client, but the server crashes before it reports
    /// anything.
    pub(super) fn die_after_stall(&mut self, client: usize) {
        self.draw_grace(client);
        let made_before = self.draw_report_age(client);
        let client = &mut self.clients[client];
        let Some(stall) = client.link.stall.take() else { return };
        client.link.heard.lose_a_report(made_before, stall.since, stall.was_always_active);
        client.link.server_died = true;
        let events = client.events.iter_mut().map(|(arrival, _)| arrival);
        for arrival in events.chain(client.replies.values_mut()) {
            if arrival.fate == Fate::OnItsWay {
                arrival.fate = Fate::Arrived;
            }
        }
    }

    /// Holds up the reply of a write that has taken effect, if the link stalls.
    pub(super) fn perhaps_hold_back(&mut self, client: usize, reply: Arrival) {
        if let Some(stall) = &mut self.clients[client].link.stall {
            stall.waiting_from.get_or_insert(reply.stamp);
            saw("commit-held-up-by-a-stall");
        }
    }

    /// Decides which of the messages in transit to the client have arrived: all messages up to some point.
    pub(super) fn cut_stream(&mut self, client: usize) {
        let on_their_way = {
            let client = &self.clients[client];
            let events = client.events.iter().map(|(arrival, _)| arrival);
            let mut stamps: Vec<u64> = events
                .chain(client.replies.values())
                .filter(|arrival| arrival.fate == Fate::OnItsWay)
                .map(|arrival| arrival.stamp)
                .collect();
            stamps.sort_unstable();
            stamps
        };
        let arrived = self.random.index(on_their_way.len() + 1);
        let last = arrived.checked_sub(1).map(|index| on_their_way[index]);
        let client = &mut self.clients[client];
        let events = client.events.iter_mut().map(|(arrival, _)| arrival);
        for arrival in events.chain(client.replies.values_mut()) {
            if arrival.fate == Fate::OnItsWay && last.is_some_and(|last| arrival.stamp <= last) {
                arrival.fate = Fate::Arrived;
            }
        }
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

    /// Records that the client has learned of a grant.
    pub(super) fn learn(&mut self, event: &ClientEvent) {
        if let ClientEvent::Connected(Granted { session_timeout, .. })
        | ClientEvent::TakenUp { session_timeout } = event
        {
            self.known_timeout = self.known_timeout.min(*session_timeout);
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

    /// Returns the grant of the client's server.
    pub(super) fn granted(&self) -> Granted {
        Granted::new(self.session_timeout).with_tick(self.link.heard.tick)
    }

    /// Loses the messages that were held up, because the ensemble has ended the session during the stall.
    pub(super) fn lose_what_waits(&mut self) {
        let Some(stall) = self.link.stall.take() else { return };
        self.events.retain(|(arrival, _)| !stall.holds_back(arrival));
        for reply in self.replies.values_mut().filter(|reply| stall.holds_back(reply)) {
            reply.fate = Fate::Lost;
        }
    }

    /// Drops the messages that have not arrived.
    pub(super) fn lose_the_rest(&mut self) {
        self.events.retain(|(arrival, _)| arrival.fate == Fate::Arrived);
        for reply in self.replies.values_mut() {
            if reply.fate == Fate::OnItsWay {
                reply.fate = Fate::Lost;
                saw("reply-lost");
            }
        }
    }

    /// Returns whether the client library's pings reach the ensemble continuously.
    fn is_in_contact(&self, now: Moment) -> bool {
        let link = &self.link;
        let is_served = link.connected && !link.partitioned && !link.deposed && !link.over;
        link.pings && is_served && link.stall.is_none() && self.paused_until <= now
    }

    /// Restarts the pings, because the client library has a new connection or has lost the old one.
    pub(super) fn begin_pings(&mut self, now: Moment) {
        let timeout = self.session_timeout;
        if let Some(pings) = &mut self.link.reported_pings {
            *pings = Pings::on_a_new_connection(now, timeout);
        }
    }

    /// Returns whether the client has yet to report that a server has taken up the session.
    pub(super) fn is_taken_up(&self) -> bool {
        self.events.iter().any(|(_, event)| matches!(event, ClientEvent::TakenUp { .. }))
    }

    /// Returns when the client library sends its next ping.
    pub(super) fn next_ping(&self) -> Option<Moment> {
        let pings = self.link.reported_pings.as_ref()?;
        let may_ping = self.link.connected && !self.link.over && self.sink.is_some();
        (may_ping && pings.under_way.is_none()).then(|| pings.next.max(self.paused_until))
    }

    /// Returns whether a ping is on its way and reaches the server.
    pub(super) fn has_ping_to_answer(&self) -> bool {
        let is_under_way = self.link.reported_pings.as_ref().is_some_and(|pings| pings.under_way.is_some());
        is_under_way && self.link.connected && !self.link.partitioned && !self.link.over
    }

    /// Returns when the server ends the session if it receives nothing more. `None` while it keeps receiving.
    pub(super) fn ends_on_the_server_at(&self, now: Moment) -> Option<Moment> {
        let (last, counts) = self.link.heard.end();
        // A server may grant less than before. If the process is paused just before it learns of that, it
        // keeps its lease too long; docs/faults.md names this gap.
        let counts = self.link.heard.drift.by_the_servers(counts.max(self.known_timeout));
        (!self.is_in_contact(now)).then(|| last.after(counts).after(self.link.heard.grace))
    }

    /// Returns whether a thread with this wait may continue.
    pub(super) fn may_continue(&self, wait: &Wait, now: Moment) -> bool {
        let through = !self.link.partitioned;
        match wait {
            Wait::Turn | Wait::Until(_) | Wait::Signals(..) => true,
            Wait::Time(moment) => *moment <= now,
            Wait::Send => through || !self.link.connected || self.link.over,
            Wait::Reply(number) => {
                let arrives = through && self.link.slow_until <= now;
                self.replies.get(number).is_none_or(|reply| match reply.fate {
                    Fate::OnItsWay => arrives && !self.link.holds_back(reply),
                    Fate::Arrived | Fate::Lost => true,
                })
            }
            Wait::Loss(connection) => {
                !self.link.connected || self.link.over || self.link.connection != *connection
            }
            Wait::LossReported => !self.events.iter().any(|(_, event)| *event == ClientEvent::Disconnected),
        }
    }

    /// Returns whether the next event can be delivered.
    pub(super) fn has_event(&self) -> bool {
        self.sink.is_some()
            && self
                .events
                .front()
                .is_some_and(|(arrival, _)| self.link.delivers(arrival) || arrival.fate == Fate::Arrived)
    }

    /// Delivers what a partition has held back.
    pub(super) fn let_arrive(&mut self) {
        for reply in self.replies.values_mut() {
            if reply.fate == Fate::OnItsWay {
                reply.fate = Fate::Arrived;
            }
        }
    }
}
