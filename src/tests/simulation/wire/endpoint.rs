//! [`Endpoint`]: a client's end of the network, with the machine and its transports, driven as the I/O thread would
//! drive them.

use std::collections::VecDeque;
use std::time::Duration;

use super::ledger::{Ledger, Meaning};
use super::server::Peer;
use super::session::Ticketed;
use super::stream::Transport;
use crate::client::{ClientEvent, EventSink, Granted, Reply};
use crate::error::ZkResult;
use crate::tests::simulation::random::Random;
use crate::tests::simulation::seen::saw;
use crate::time::Moment;
use zookeeper_connection::machine::{Action, Event, Machine, SessionLoss};

/// The time between two bytes of a frame that trickles in. It is short compared to any session timeout.
const TRICKLE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    Disconnected,
    Connected,
    Lost,
    /// The connection was closed by this process.
    Closed,
}

/// See the [module](self).
pub(in crate::tests::simulation) struct Endpoint {
    pub(super) machine: Machine<Ticketed>,
    pub(super) actions: VecDeque<(u64, Action<Ticketed>)>,
    pub(super) transport: Option<Transport>,
    /// The number of transports that the machine has asked for or given up.
    link_number: u64,
    /// The transports that the client has left. What it sent on them may still arrive.
    pub(super) late: Vec<Transport>,
    /// The servers in the order in which they are tried.
    pub(super) servers: Vec<usize>,
    /// Whether the client knows only one address, behind which a load balancer chooses one of the servers.
    pub(super) is_balanced: bool,
    /// Whether some names have no address.
    misses_addresses: bool,
    /// The position of the next server, unless a new round is to begin.
    next: usize,
    /// Whether a server has served the session since the last attempt. If so, the round ends, unless that
    /// server refuses the client.
    was_served: bool,
    /// The servers that have refused the client since a server last answered a request, in order.
    refusals: Vec<usize>,
    /// Whether a server has answered a request of the session.
    is_admitted: bool,
    /// When a request was last answered.
    answered_at: Moment,
    /// The server to try next, out of turn.
    pub(super) next_server: Option<usize>,
    pub(super) contact: Contact,
    pub(super) has_ended: bool,
    /// The grant that the client reported last.
    pub(super) granted: Granted,
    /// The tick that the probe of the connection will find.
    pub(super) probe: Option<Duration>,
    pub(super) ledger: Ledger,
    /// When the last step was taken here, or when no step was last possible.
    pub(super) last_step: Moment,
}

/// What must be done without holding any lock.
pub(super) enum Work {
    Nothing,
    Report(EventSink, ClientEvent),
    Reply(Ticketed, ZkResult<Reply>),
}

impl Endpoint {
    pub(super) fn new(
        machine: Machine<Ticketed>,
        servers: Vec<usize>,
        is_balanced: bool,
        granted: Granted,
        now: Moment,
    ) -> Endpoint {
        let mut endpoint = Endpoint {
            machine,
            actions: VecDeque::new(),
            transport: None,
            link_number: 0,
            late: Vec::new(),
            next: 0,
            was_served: false,
            refusals: Vec::new(),
            is_admitted: false,
            answered_at: now,
            next_server: None,
            contact: Contact::Disconnected,
            has_ended: false,
            granted,
            probe: None,
            ledger: Ledger::default(),
            last_step: now,
            servers,
            is_balanced,
            misses_addresses: false,
        };
        endpoint.machine.set_addresses(endpoint.addresses(), true);
        endpoint.settle();
        endpoint
    }

    pub(super) fn set_servers(&mut self, servers: Vec<usize>) {
        self.change_servers(servers, true);
    }

    /// Changes the list of servers, as the answers of the name service do. Unless `are_all`, some names have no
    /// address.
    pub(super) fn change_servers(&mut self, servers: Vec<usize>, are_all: bool) {
        (self.servers, self.next) = (servers, 0);
        // A loss that is about to be reported was caused by the servers known before.
        if self.reported_loss().is_none() {
            self.misses_addresses = !are_all;
            self.refusals.clear();
        }
        if !self.is_balanced {
            self.machine.set_addresses(self.servers.len(), are_all);
        }
    }

    fn addresses(&self) -> usize {
        if self.is_balanced { 1 } else { self.servers.len() }
    }

    /// Returns whether a server serves the session, as far as the simulation knows.
    pub(super) fn is_served(&self) -> bool {
        let answers = |peer: &Peer| !peer.is_mute && !peer.is_stuck;
        let is_sound = |transport: &Transport| {
            transport.is_open && !transport.loses_packets() && answers(&transport.peer)
        };
        self.contact == Contact::Connected && self.transport.as_ref().is_some_and(is_sound)
    }

    /// Returns the report delay that the client assumes.
    pub(in crate::tests::simulation) fn report_delay(&self) -> Duration {
        self.granted.report_delay
    }

    /// Returns whether no server will serve the session any more.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended || matches!(self.contact, Contact::Lost | Contact::Closed)
    }

    /// Writes what the machine has to write and executes its actions. Transports that the machine gives up
    /// are left at once.
    pub(super) fn settle(&mut self) {
        self.flush();
        while let Some(action) = self.machine.next_action() {
            if matches!(action, Action::Open | Action::Drop | Action::Ended) {
                self.leave_transport();
            }
            self.was_served |= matches!(action, Action::Event(Event::Connected { .. }));
            self.actions.push_back((self.link_number, action));
        }
        self.flush();
    }

    /// See [`Machine::remove_watches`].
    pub(super) fn remove_watches(&mut self, path: &str) {
        self.machine.remove_watches(path);
        let was_watched = self.ledger.watched.remove(path);
        // If the machine has no request for the server, either the watch was removed before it was set again, or its
        // event has come and may be on its way to the session.
        if was_watched && self.machine.outgoing().is_empty() {
            let known = self.transport.as_mut().and_then(|transport| transport.peer.at_greeting.as_mut());
            if let Some(known) = known {
                known.watched.remove(path);
            }
        }
        self.settle();
    }

    fn flush(&mut self) {
        if let Some(transport) = self.transport.as_mut().filter(|transport| transport.is_open) {
            transport.up.push(self.machine.outgoing());
            self.machine.outgoing().clear();
        }
    }

    fn leave_transport(&mut self) {
        self.link_number += 1;
        if let Some(mut transport) = self.transport.take() {
            transport.left_at = Some(self.last_step);
            if !transport.is_swallowed && !transport.swallows_up && !transport.up.is_empty() {
                self.late.push(transport);
            }
        }
    }

    /// Returns the number of changes that the machine has reported and its owner has not taken yet.
    fn reported_changes(&self) -> usize {
        let is_change =
            |action: &Action<Ticketed>| matches!(action, Action::Event(Event::NodeChanged { .. }));
        self.actions.iter().filter(|(_, action)| is_change(action)).count()
    }

    pub(super) fn link_number(&self) -> u64 {
        self.link_number
    }

    fn reported_pongs(&self) -> usize {
        let is_pong = |(_, action): &&(u64, Action<Ticketed>)| {
            matches!(action, Action::Event(Event::PingAnswered { .. }))
        };
        self.actions.iter().filter(is_pong).count()
    }

    /// Returns why the machine has lost the session, if it has.
    pub(super) fn reported_loss(&self) -> Option<SessionLoss> {
        self.actions.iter().find_map(|(_, action)| match action {
            Action::Event(Event::SessionLost(loss)) => Some(*loss),
            _ => None,
        })
    }

    /// Returns whether the client may give up its session: all servers have refused it since a server last answered a
    /// request (at least three times in all if any server has answered one), or no server has answered for a session
    /// timeout.
    pub(super) fn may_give_up(&self, loss: SessionLoss, now: Moment) -> bool {
        // Behind one address there may be several servers.
        let are_enough = self.refusals.len() >= if self.is_admitted { 3 } else { 1 };
        let all_refuse = self.is_balanced || self.servers.iter().all(|server| self.refusals.contains(server));
        let all_refuse = are_enough && all_refuse && !self.misses_addresses;
        let lasts = now.since(self.answered_at) >= self.ledger.granted;
        match loss {
            SessionLoss::AuthenticationRequired | SessionLoss::SaslRefused => all_refuse || lasts,
            SessionLoss::Unserved => lasts,
            _ => false,
        }
    }

    // ---- steps

    /// Starts to open a transport to the next server.
    pub(super) fn begin_to_open(&mut self, number: u64, peer: i64, random: &mut Random) {
        if number != self.link_number {
            return;
        }
        let is_refused = self.machine.refusal().is_some();
        if std::mem::take(&mut self.was_served) && !is_refused {
            self.next = 0;
        }
        let position = self.next % self.servers.len();
        if position == 0 {
            // Each round has a different order.
            for last in (1..self.servers.len()).rev() {
                self.servers.swap(last, random.index(last + 1));
            }
        }
        let chosen = self.next_server.take().filter(|_| !is_refused);
        let server = match chosen {
            _ if self.is_balanced => {
                saw("load-balancer-chooses-a-server");
                self.servers[random.index(self.servers.len())]
            }
            Some(server) => server,
            None => {
                self.next = position + 1;
                self.servers[position]
            }
        };
        self.transport = Some(Transport::new(server, Peer::new(peer)));
    }

    pub(super) fn opened(&mut self, now: Moment) {
        if let Some(transport) = &mut self.transport {
            transport.is_open = true;
            self.machine.opened(now);
            self.settle();
        }
    }

    pub(super) fn lose_transport(&mut self, now: Moment) {
        self.leave_transport();
        self.machine.failed(now);
        self.settle();
    }

    /// Reads a segment or the end of the stream. Returns what the client has done wrong, if anything.
    pub(super) fn read(
        &mut self,
        now: Moment,
        random: &mut Random,
        splits: bool,
        longest: usize,
    ) -> Option<&'static str> {
        let transport = self.transport.as_mut()?;
        if transport.down.is_empty() {
            self.lose_transport(now);
            return None;
        }
        let segment = match &mut transport.trickles_at {
            Some(at) => {
                *at = now.after(TRICKLE);
                transport.down.take_byte()
            }
            None => transport.down.take(random, splits, longest),
        };
        transport.received += segment.len() as u64;
        let (mut must_leave, mut events, mut declined) = (false, 0, None);
        // What follows garbage in the same segment is lost with the connection.
        while !must_leave {
            let Some(meaning) = transport.peer.next_meaning(transport.received) else { break };
            if matches!(meaning, Meaning::Refusal) {
                self.refusals.push(transport.server);
            }
            if matches!(meaning, Meaning::Declined) {
                let before = (self.ledger.clone(), self.is_admitted, self.answered_at, events);
                declined.get_or_insert(before);
            }
            if matches!(meaning, Meaning::Reply { .. }) {
                (self.is_admitted, self.answered_at) = (true, now);
            }
            let begins = matches!(meaning, Meaning::Served { .. });
            events += usize::from(matches!(meaning, Meaning::Event { .. }));
            must_leave |= self.ledger.take_up(meaning);
            if begins {
                transport.peer.at_greeting = Some(self.ledger.clone());
            }
        }
        let (number, reported, pongs) = (self.link_number, self.reported_changes(), self.reported_pongs());
        self.machine.received(now, &segment);
        if self.machine.refusal().is_none() {
            self.refusals.clear();
        }
        self.settle();
        if self.reported_pongs() > pongs {
            (self.is_admitted, self.answered_at) = (true, now);
        }
        let stays = self.transport.is_some() && number == self.link_number;
        // A client that leaves because a request was declined does not read on.
        if let Some(before) = declined.filter(|_| !stays && !must_leave) {
            (self.ledger, self.is_admitted, self.answered_at, events) = before;
        }
        if must_leave && stays {
            return Some("continues to use a connection after garbage");
        }
        let is_reported = self.contact == Contact::Closed || self.reported_changes() == reported + events;
        (!is_reported).then_some("does not report an event of a watch")
    }

    /// Returns the server of an attempt that has run out of time on a narrow link.
    pub(super) fn timer(&mut self, now: Moment) -> Option<usize> {
        let is_attempt =
            |transport: &&Transport| self.contact == Contact::Disconnected && transport.is_narrow();
        let attempt = self.transport.as_ref().filter(is_attempt).map(|transport| transport.server);
        let number = self.link_number;
        self.machine.timer(now);
        self.settle();
        attempt.filter(|_| number != self.link_number)
    }

    pub(super) fn timer_is_due(&self, now: Moment) -> bool {
        self.machine.deadline().is_some_and(|deadline| deadline <= now)
    }
}
