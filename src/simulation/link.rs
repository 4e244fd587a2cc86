//! [`Link`]: where one client's connection stands, what is on its way, and what the ensemble has heard of its session.

use std::collections::VecDeque;
use std::time::Duration;

use super::baton::Wait;
use super::world::{ClientState, State};
use crate::client::{ClientEvent, Granted};
use crate::session::Moment;

/// One client's connection.
#[derive(Debug)]
pub(super) struct Link {
    /// What the client library knows: whether it has a connection, and how many it has had.
    pub(super) connected: bool,
    pub(super) connection: u64,
    /// The network swallows what either side sends, and neither knows.
    pub(super) partitioned: bool,
    /// The server is a leader that was deposed and does not know: it takes up sessions and answers reads, and the
    /// ensemble hears nothing of that.
    pub(super) deposed: bool,
    /// Until when the client library looks for a server, as long as there is trouble.
    pub(super) searches_until: Moment,
    /// Until when replies take their time.
    pub(super) slow_until: Moment,
    /// The client library knows that the session has ended, or was closed itself.
    pub(super) over: bool,
    /// Whether the client library pings, so that the session lives while there is contact.
    pub(super) pings: bool,
    pub(super) heard: Heard,
}

/// What the ensemble knows of a session's life: its leader ends it, and hears of it when it begins or connects again, and
/// from the reports of the server that it is connected to.
#[derive(Debug)]
pub(super) struct Heard {
    /// When the leader has heard of it last, if no report is lost.
    pub(super) last: Moment,
    /// How much later than it may the leader ends it.
    pub(super) grace: Duration,
    /// When it connected, which the leader heard at once.
    connected: Moment,
    /// When it was active since, as far back as a report may be lost.
    active: VecDeque<Moment>,
    /// The last mark of its activity was lost, in a race with a report; the next one is not.
    lost_a_mark: bool,
    /// The length of a tick of the servers.
    pub(super) tick: Duration,
    /// The client's server is an observer, which reports to a follower.
    observer: bool,
}

impl Heard {
    pub(super) fn new(now: Moment, tick: Duration, observer: bool) -> Heard {
        let (grace, active) = (Duration::ZERO, VecDeque::new());
        Heard { last: now, grace, connected: now, active, lost_a_mark: false, tick, observer }
    }

    /// How old the last report to the leader may be: one goes out every half tick, and an observer's goes two ways.
    fn longest_report(&self) -> Duration {
        if self.observer { self.tick } else { self.tick / 2 }
    }

    fn note_connection(&mut self, now: Moment) {
        self.last = now;
        self.connected = now;
        self.active.clear();
    }

    /// A request marks the session as active, unless the mark is lost in a race.
    pub(super) fn note_activity(&mut self, now: Moment, races: bool) {
        self.lost_a_mark = races && !self.lost_a_mark;
        if self.lost_a_mark {
            return;
        }
        self.last = now;
        self.active.push_back(now);
        while self.active.get(1).is_some_and(|next| next.after(self.longest_report()) <= now) {
            self.active.pop_front();
        }
    }

    /// The client's server dies; its last report was made so long ago.
    fn lose_a_report(&mut self, made_before: Duration, now: Moment, was_always_active: bool) {
        let report = now.before(made_before);
        let reported = self.active.iter().copied().filter(|active| *active <= report).max();
        let always = was_always_active.then_some(report);
        self.last = [reported, always].into_iter().flatten().fold(self.connected, Moment::max);
    }
}

/// Where something is that the server sent.
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
    /// Whether what the ensemble sends comes through.
    fn delivers(&self) -> bool {
        !self.partitioned && !self.deposed
    }
}

impl State {
    pub(super) fn send_off(&mut self, fate: Fate) -> Arrival {
        self.last_stamp += 1;
        Arrival { stamp: self.last_stamp, fate }
    }

    /// The client has a connection again, of which the leader hears.
    pub(super) fn hear_of_connection(&mut self, client: usize, now: Moment) {
        self.draw_grace(client);
        self.clients[client].link.heard.note_connection(now);
    }

    pub(super) fn draw_grace(&mut self, client: usize) {
        let slack = self.clients[client].session_timeout.as_nanos() as u64 / 2;
        let grace = if self.random.one_in(2) { 0 } else { self.random.below(slack) };
        self.clients[client].link.heard.grace = Duration::from_nanos(grace);
    }

    /// The ensemble hears nothing of the client from now on. Perhaps its server dies, with the last report unmade.
    pub(super) fn silence(&mut self, client: usize, server_dies: bool, now: Moment) {
        let longest = self.clients[client].link.heard.longest_report().as_nanos() as u64;
        // Often as long ago as can be, which is the worst.
        let made_before = if self.random.one_in(2) { longest - 1 } else { self.random.below(longest) };
        let made_before = Duration::from_nanos(made_before);
        let client = &mut self.clients[client];
        let is_always_active = client.is_heard_of(now);
        let heard = &mut client.link.heard;
        if is_always_active {
            heard.last = now;
        }
        if server_dies && client.link.connected && !client.link.partitioned && !client.link.deposed {
            heard.lose_a_report(made_before, now, is_always_active);
        }
    }

    /// Decides what of that which is on its way to the client has arrived: all up to some point, and nothing after it.
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
    /// What its server grants.
    pub(super) fn granted(&self) -> Granted {
        Granted::new(self.session_timeout).with_tick(self.link.heard.tick)
    }

    /// Loses what has not arrived.
    pub(super) fn lose_the_rest(&mut self) {
        self.events.retain(|(arrival, _)| arrival.fate == Fate::Arrived);
        for reply in self.replies.values_mut() {
            if reply.fate == Fate::OnItsWay {
                reply.fate = Fate::Lost;
            }
        }
    }

    /// Whether the client library's pings reach the ensemble all the time.
    fn is_heard_of(&self, now: Moment) -> bool {
        let link = &self.link;
        let is_served = link.connected && !link.partitioned && !link.deposed && !link.over;
        link.pings && is_served && self.paused_until <= now
    }

    /// When the server ends the session if it hears nothing more; `None` while it goes on hearing of it.
    pub(super) fn ends_on_the_server_at(&self, now: Moment) -> Option<Moment> {
        let heard = &self.link.heard;
        (!self.is_heard_of(now)).then(|| heard.last.after(self.session_timeout).after(heard.grace))
    }

    /// Whether a thread that waits so may go on.
    pub(super) fn lets_go_on(&self, wait: &Wait, now: Moment) -> bool {
        let through = !self.link.partitioned;
        match wait {
            Wait::Turn | Wait::Until(_) => true,
            Wait::Time(moment) => *moment <= now,
            Wait::Send => through || !self.link.connected || self.link.over,
            Wait::Reply(number) => {
                let arrives = through && self.link.slow_until <= now;
                arrives || self.replies.get(number).is_none_or(|reply| reply.fate != Fate::OnItsWay)
            }
            Wait::Loss(connection) => {
                !self.link.connected || self.link.over || self.link.connection != *connection
            }
            Wait::Told => !self.events.iter().any(|(_, event)| *event == ClientEvent::Disconnected),
        }
    }

    /// Whether the next event can be told.
    pub(super) fn has_event(&self) -> bool {
        self.sink.is_some()
            && self
                .events
                .front()
                .is_some_and(|(arrival, _)| self.link.delivers() || arrival.fate == Fate::Arrived)
    }

    /// What a partition held back arrives when it heals.
    pub(super) fn let_arrive(&mut self) {
        for reply in self.replies.values_mut() {
            if reply.fate == Fate::OnItsWay {
                reply.fate = Fate::Arrived;
            }
        }
    }
}
