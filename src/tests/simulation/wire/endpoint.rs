//! [`Endpoint`]: the network between a client's connection and the servers, in the place of the I/O thread.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::ledger::{Ledger, Meaning};
use super::server::Peer;
use super::stream::Transport;
use crate::client::{ClientEvent, Granted, Reply};
use crate::error::ZkResult;
use crate::tests::simulation::random::Random;
use crate::tests::simulation::seen::saw;
use crate::time::Moment;
use zookeeper_connection::exchange::Continuation;
use zookeeper_connection::loopback::Loopback;
use zookeeper_connection::machine::{
    Action, ContactState, Failure, LinkId, Machine, SaslStep, SessionLoss, Token,
};

/// The time between two bytes of a frame that trickles in. It is short compared to any session timeout.
const TRICKLE: Duration = Duration::from_millis(100);

/// See the [module](self).
pub(in crate::tests::simulation) struct Endpoint {
    loopback: Loopback,
    /// The transport in use.
    pub(super) transport: Option<Transport>,
    /// The transports that are being opened, and that of the probe.
    pub(super) attempts: Vec<Transport>,
    /// The transports that the client has left. What it sent on them may still arrive.
    pub(super) late: Vec<Transport>,
    /// The names that are being resolved, and the servers for which a token is being made, by their positions.
    pub(super) lookups: Vec<usize>,
    pub(super) tokens: Vec<usize>,
    /// The servers to which the names lead.
    servers: Vec<usize>,
    /// Whether each name has an address.
    have_addresses: bool,
    /// Whether the client knows only one address, behind which a load balancer chooses one of the servers.
    pub(super) is_balanced: bool,
    /// The servers that have refused the client since a server last answered a request, in order.
    refusals: Vec<usize>,
    /// Whether a server has answered a request of the session.
    is_admitted: bool,
    /// When a request was last answered.
    answered_at: Moment,
    /// The server behind the next address that is tried.
    pub(super) next_server: Option<usize>,
    pub(super) has_ended: bool,
    /// Whether the loss of the session was checked.
    is_loss_checked: bool,
    pub(super) ledger: Ledger,
    /// When the last step was taken here, or when no step was last possible.
    pub(super) last_step: Moment,
}

/// What must be done without holding any lock.
pub(super) enum Work {
    Nothing,
    Report(Loopback, ClientEvent),
    Reply(Continuation, ZkResult<Reply>),
}

/// Returns the connect string of a client that knows this many servers.
pub(super) fn connect_string(servers: usize) -> String {
    (0..servers).map(|server| format!("zk{server}")).collect::<Vec<_>>().join(",")
}

/// The address that stands for any server.
const BALANCER: usize = 99;

fn address_of(server: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(server).expect("few servers")], 2181))
}

fn server_at(address: SocketAddr) -> usize {
    match address.ip() {
        IpAddr::V4(address) => usize::from(address.octets()[3]),
        IpAddr::V6(_) => unreachable!("no server has such an address"),
    }
}

impl Endpoint {
    pub(super) fn new(loopback: Loopback, servers: Vec<usize>, is_balanced: bool, now: Moment) -> Endpoint {
        Endpoint {
            loopback,
            transport: None,
            attempts: Vec::new(),
            late: Vec::new(),
            lookups: Vec::new(),
            tokens: Vec::new(),
            servers,
            have_addresses: true,
            is_balanced,
            refusals: Vec::new(),
            is_admitted: false,
            answered_at: now,
            next_server: None,
            has_ended: false,
            is_loss_checked: false,
            ledger: Ledger::default(),
            last_step: now,
        }
    }

    fn machine<T>(&self, work: impl FnOnce(&mut Machine<Continuation>) -> T) -> T {
        self.loopback.with(work)
    }

    /// Changes the servers to which the names lead. Unless `have_addresses`, some names have no address any more.
    pub(super) fn set_servers(&mut self, servers: Vec<usize>, have_addresses: bool) {
        (self.servers, self.have_addresses) = (servers, have_addresses);
    }

    /// Returns the servers that the client knows.
    pub(super) fn known_servers(&self) -> Vec<usize> {
        match self.is_balanced {
            true => self.servers.clone(),
            false => self.machine(|machine| machine.addresses().copied().map(server_at).collect()),
        }
    }

    pub(super) fn contact(&self) -> ContactState {
        self.machine(|machine| machine.status().contact)
    }

    /// Returns the grant that the client reported last.
    pub(super) fn granted(&self) -> Granted {
        self.machine(|machine| machine.status().granted)
    }

    /// Returns whether a server serves the session, as far as the simulation knows.
    pub(super) fn is_served(&self) -> bool {
        let answers = |peer: &Peer| !peer.is_mute && !peer.is_stuck;
        let is_sound = |transport: &Transport| !transport.loses_packets() && answers(&transport.peer);
        self.contact() == ContactState::Connected && self.transport.as_ref().is_some_and(is_sound)
    }

    /// Returns the report delay that the client assumes.
    pub(in crate::tests::simulation) fn report_delay(&self) -> Duration {
        self.granted().report_delay
    }

    /// Returns whether no server will serve the session any more.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended || matches!(self.contact(), ContactState::Lost | ContactState::Closed)
    }

    pub(super) fn has_actions(&self) -> bool {
        self.machine(|machine| machine.has_actions())
    }

    pub(super) fn next_action(&mut self) -> Option<Action<Continuation>> {
        self.machine(Machine::poll_action)
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.machine(|machine| machine.poll_deadline())
    }

    /// Gives an input to the machine. Then closes the transports that the machine gives up, and sends what it has to
    /// send.
    fn handle<T>(&mut self, now: Moment, input: impl FnOnce(&mut Machine<Continuation>) -> T) -> T {
        let result = self.machine(input);
        self.settle(now);
        result
    }

    pub(super) fn settle(&mut self, now: Moment) {
        while let Some(link) = self.machine(Machine::poll_close) {
            self.attempts.retain(|attempt| attempt.link != link);
            if self.transport.as_ref().is_some_and(|transport| transport.link == link) {
                self.leave_transport(now);
            }
        }
        let loopback = &self.loopback;
        for transport in self.transport.iter_mut().chain(&mut self.attempts).filter(|it| it.is_open) {
            loopback.with(|machine| {
                if let Some(bytes) = machine.poll_transmit(transport.link) {
                    transport.up.push(bytes);
                    bytes.clear();
                }
            });
        }
    }

    fn leave_transport(&mut self, now: Moment) {
        if let Some(mut transport) = self.transport.take() {
            transport.left_at = Some(now);
            if !transport.is_swallowed && !transport.swallows_up && !transport.up.is_empty() {
                self.late.push(transport);
            }
        }
    }

    /// Notes that the client removes its watches on a path, before it does.
    pub(super) fn remove_watches(&mut self, now: Moment, path: &str, remove: impl FnOnce()) {
        remove();
        let was_watched = self.ledger.watched.remove(path);
        let sends_nothing = self.transport.as_ref().is_none_or(|transport| {
            self.machine(|machine| machine.poll_transmit(transport.link).is_none_or(|bytes| bytes.is_empty()))
        });
        // If the machine has no request for the server, either the watch was removed before it was set again, or its
        // event has come and may be on its way to the session.
        if was_watched && sends_nothing {
            let known = self.transport.as_mut().and_then(|transport| transport.peer.at_greeting.as_mut());
            if let Some(known) = known {
                known.watched.remove(path);
            }
        }
        self.settle(now);
    }

    /// Returns the number of events of this kind that the machine has reported and its owner has not taken yet.
    fn reported(&self, is_meant: impl Fn(&ClientEvent) -> bool) -> usize {
        self.machine(|machine| {
            let is_meant =
                |action: &&Action<Continuation>| matches!(action, Action::Tell(event) if is_meant(event));
            machine.actions().filter(is_meant).count()
        })
    }

    fn reported_changes(&self) -> usize {
        self.reported(|event| matches!(event, ClientEvent::NodeChanged { .. }))
    }

    fn reported_pongs(&self) -> usize {
        self.reported(|event| matches!(event, ClientEvent::PingAnswered { .. }))
    }

    pub(super) fn link_number(&self) -> Option<LinkId> {
        self.transport.as_ref().map(|transport| transport.link)
    }

    /// Returns why the machine has lost the session, once.
    pub(super) fn take_loss(&mut self) -> Option<SessionLoss> {
        let loss = self.machine(|machine| machine.loss())?;
        (!std::mem::replace(&mut self.is_loss_checked, true)).then_some(loss)
    }

    /// Returns whether the client may give up its session: all servers have refused it since a server last answered a
    /// request (at least three times in all if any server has answered one), or no server has answered for a session
    /// timeout.
    pub(super) fn may_give_up(&self, loss: SessionLoss, now: Moment) -> bool {
        // Behind one address there may be several servers.
        let are_enough = self.refusals.len() >= if self.is_admitted { 3 } else { 1 };
        let known = self.known_servers();
        let all_refuse = self.is_balanced || known.iter().all(|server| self.refusals.contains(server));
        let all_refuse = are_enough && all_refuse && !self.machine(|machine| machine.misses_addresses());
        let lasts = now.since(self.answered_at) >= self.ledger.granted;
        match loss {
            SessionLoss::AuthenticationRequired | SessionLoss::SaslRefused => all_refuse || lasts,
            SessionLoss::Unserved => lasts,
            _ => false,
        }
    }

    // ---- steps

    /// Passes the answer of the name service to the machine.
    pub(super) fn resolve(&mut self, now: Moment, name: usize) {
        self.lookups.retain(|lookup| *lookup != name);
        let server = match self.servers.get(name) {
            _ if self.is_balanced => Some(BALANCER),
            None if self.have_addresses => self.servers.get(name % self.servers.len()).copied(),
            server => server.copied(),
        };
        let answer = server.map(|server| vec![address_of(server)]).ok_or_else(|| "no address".to_owned());
        let before = self.known_servers();
        let is_lost = self.machine(|machine| machine.loss().is_some());
        self.handle(now, |machine| machine.handle_resolved(now, name, answer));
        // A loss was caused by the servers known before.
        if self.known_servers() != before && !is_lost {
            self.refusals.clear();
        }
    }

    /// Begins to open a transport, unless the machine has given it up.
    pub(super) fn begin_to_open(
        &mut self,
        link: LinkId,
        address: SocketAddr,
        peer: i64,
        random: &mut Random,
    ) -> Option<usize> {
        if !self.machine(|machine| machine.is_wanted(link)) {
            return None;
        }
        let server = match self.next_server.take() {
            Some(server) => server,
            None if server_at(address) == BALANCER => {
                saw("load-balancer-chooses-a-server");
                random.of(&self.servers)
            }
            None => server_at(address),
        };
        if !self.attempts.is_empty() {
            saw("servers-tried-side-by-side");
        }
        self.attempts.push(Transport::new(link, server, Peer::new(peer)));
        Some(server)
    }

    /// Ends an attempt to open a transport.
    pub(super) fn end_attempt(&mut self, now: Moment, link: LinkId, has_opened: bool) {
        if !has_opened {
            self.attempts.retain(|attempt| attempt.link != link);
            let failure = Failure { why: "refused".to_owned(), refuses_certificate: false };
            return self.handle(now, |machine| machine.handle_failed(now, link, failure));
        }
        self.machine(|machine| machine.handle_opened(now, link));
        let Some(position) = self.attempts.iter().position(|attempt| attempt.link == link) else { return };
        self.attempts[position].is_open = true;
        if self.machine(|machine| machine.link_in_use()) == Some(link) {
            self.transport = Some(self.attempts.swap_remove(position));
        }
        self.settle(now);
    }

    /// Loses the transport in use: the client's system reports an error.
    pub(super) fn lose_transport(&mut self, now: Moment) {
        if let Some(link) = self.link_number() {
            self.leave_transport(now);
            self.handle(now, |machine| machine.handle_closed(now, link));
        }
    }

    /// Reads what has arrived on the transport of the probe, or its end.
    pub(super) fn read_probe(&mut self, now: Moment, random: &mut Random, splits: bool) {
        let Some(probe) = self.attempts.iter_mut().find(|attempt| attempt.is_open) else { return };
        let link = probe.link;
        match probe.down.is_empty() {
            true => self.handle(now, |machine| machine.handle_closed(now, link)),
            false => {
                let segment = probe.down.take(random, splits, usize::MAX);
                self.handle(now, |machine| machine.handle_bytes(now, link, &segment));
            }
        }
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
        let link = transport.link;
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
        let (reported, pongs) = (self.reported_changes(), self.reported_pongs());
        self.machine(|machine| machine.handle_bytes(now, link, &segment));
        if self.machine(|machine| machine.refusal().is_none()) {
            self.refusals.clear();
        }
        self.settle(now);
        if self.reported_pongs() > pongs {
            (self.is_admitted, self.answered_at) = (true, now);
        }
        let stays = self.link_number() == Some(link);
        // A client that leaves because a request was declined does not read on.
        if let Some(before) = declined.filter(|_| !stays && !must_leave) {
            (self.ledger, self.is_admitted, self.answered_at, events) = before;
        }
        if must_leave && stays {
            return Some("continues to use a connection after garbage");
        }
        let is_reported =
            self.contact() == ContactState::Closed || self.reported_changes() == reported + events;
        (!is_reported).then_some("does not report an event of a watch")
    }

    /// Returns the server of an attempt that has run out of time on a narrow link.
    pub(super) fn timer(&mut self, now: Moment) -> Option<usize> {
        let is_disconnected = self.contact() == ContactState::Disconnected;
        let is_attempt = |transport: &&Transport| is_disconnected && transport.is_narrow();
        let attempt = self.transport.as_ref().filter(is_attempt).map(|transport| transport.server);
        let link = self.link_number();
        self.handle(now, |machine| machine.handle_time(now));
        attempt.filter(|_| link != self.link_number())
    }

    pub(super) fn timer_is_due(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn take_token(&mut self, now: Moment, server: usize, token: Result<&[u8], String>) {
        self.tokens.retain(|asked| *asked != server);
        let token = token.map(|token| Token(token.to_vec()));
        self.handle(now, |machine| machine.handle_token(now, server, token));
    }

    pub(super) fn respond(&mut self, now: Moment, link: LinkId, step: SaslStep) {
        self.handle(now, |machine| machine.handle_response(now, link, step));
    }

    pub(super) fn loopback(&self) -> Loopback {
        self.loopback.clone()
    }
}
