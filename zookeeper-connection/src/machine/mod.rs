//! All that a client decides, as a state machine without I/O.
//!
//! The primary type in this module is [`Machine`]. It has these parts:
//! - [`session`]: the session, its calls and its watches, on one transport at a time.
//! - `servers`: the servers, and the order in which they are tried.
//! - `search`: the attempts to reach a server, several of them side by side.
//! - `ticks` and `probe`: which tick the servers have, and how the client finds out.
//! - `tickets`: when Kerberos tickets are fetched in advance.
//! - `notices`: which outages, connections and round trips the log mentions.
//!
//! # Inputs and outputs
//! Calls, bytes, answers of the name service and other outcomes, and time go in, by the methods `handle_*`. Each is told
//! the present moment. What the owner must do comes out, by the methods `poll_*`: [actions](Action), in order, the
//! transports to close, the bytes to send, and the moment of the next [`handle_time`](Machine::handle_time).
//!
//! After each input, the owner sends what [`poll_transmit`](Machine::poll_transmit) has for each transport. That is nothing
//! for a transport that the machine has given up, so the closing ([`poll_close`](Machine::poll_close)) may wait a moment.
//! Actions may wait, too, as long as they are carried out in order.
//!
//! There is no I/O, no clock and no thread here, and no randomness except a seed. So the behavior of a client under any
//! fault can be replayed.

mod notices;
mod probe;
mod search;
mod servers;
pub mod session;
#[cfg(test)]
mod tests;
mod tickets;
mod ticks;

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use log::Level;

use self::notices::Notices;
use self::probe::{Probe, Progress};
use self::search::Search;
pub use self::servers::Lookup;
use self::servers::{ANSWERS_NO_CALL, Destination, Servers};
pub use self::session::{SaslStep, SessionLoss};
use self::session::{Session, UNKNOWN_AT_FORMER_ADDRESS};
use self::tickets::TicketSchedule;
use self::ticks::{TickSearch, Ticks};
use crate::memory::{ServerMemory, Trouble};
use crate::time::Moment;
use crate::{Call, ClientEvent, ConnectionOptions, Granted, Reply, ZkResult};

/// The likely reasons why a server has closed a connection.
const CLOSED: &str = "the server closed the connection; it may not be serving, or may have too many connections from \
     this machine (maxClientCnxns)";
/// The likely reasons if no server has served the session yet and the connection is not encrypted.
const CLOSED_AT_FIRST: &str = "the server closed the connection; it may not be serving, may expect TLS, or may have \
     too many connections from this machine (maxClientCnxns)";

/// The configuration of a client.
pub(crate) struct Config {
    pub(crate) session: session::Config,
    /// The servers, in the form `host:port`.
    pub(crate) servers: Vec<String>,
    pub(crate) memory: ServerMemory,
    /// Whether connections are encrypted.
    pub(crate) encrypts: bool,
    /// Whether tickets are fetched in advance.
    pub(crate) needs_tickets: bool,
    pub(crate) ticks: Ticks,
    /// Whether the log mentions the time until the first contact.
    pub(crate) mentions_first_outage: bool,
    /// The seed of the order of the servers, and of pauses.
    pub(crate) seed: u64,
}

impl Config {
    pub(crate) fn new(options: &ConnectionOptions, session: session::Config, servers: &[String]) -> Config {
        Config {
            servers: servers.to_owned(),
            memory: options.memory.clone(),
            #[cfg(feature = "tls")]
            encrypts: options.tls.is_some(),
            #[cfg(not(feature = "tls"))]
            encrypts: false,
            needs_tickets: false,
            ticks: Ticks::new(options),
            mentions_first_outage: options.mentions_first_outage,
            seed: session.seed.rotate_left(32),
            session,
        }
    }
}

/// A transport that the machine has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// An action for the owner of a [`Machine`].
#[derive(Debug)]
pub enum Action<C> {
    /// Resolve this name, and pass the answer to [`Machine::handle_resolved`].
    Resolve(Lookup),
    /// Make the first SASL token for a server, and pass it to [`Machine::handle_token`].
    MakeToken {
        /// The position of the server in the list.
        server: usize,
        /// The host of the server.
        host: String,
    },
    /// Fetch a ticket for a server, so that it is at hand later. If that fails, call [`Machine::handle_no_ticket`].
    FetchTicket {
        /// The position of the server in the list.
        server: usize,
        /// The host of the server.
        host: String,
    },
    /// Open a transport, and report to [`Machine::handle_opened`] or [`Machine::handle_failed`].
    Open {
        /// The transport.
        link: LinkId,
        /// The address of the server.
        address: SocketAddr,
        /// The host of the server, for certificates.
        host: String,
    },
    /// Compute the response to a token of a server, and pass it to [`Machine::handle_response`].
    Challenge {
        /// The transport.
        link: LinkId,
        /// The token.
        token: Token,
    },
    /// Call [`Machine::note_told`], and report this event to the application.
    Tell(ClientEvent),
    /// Pass the outcome of a call to the caller.
    Reply(C, ZkResult<Reply>),
    /// The first contact, or why there will be none. Occurs once at most.
    FirstContact(Result<(), SessionLoss>),
    /// Write a line to the log.
    Log(Level, String),
    /// The session has ended. No action follows.
    Ended,
}

/// A token of a SASL exchange.
pub struct Token(pub Vec<u8>);

impl fmt::Debug for Token {
    /// Writes no bytes, because they would help an attacker guess passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Why a transport could not be opened, or has ended.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The reason, for the log.
    pub why: String,
    /// Whether one side refuses the certificate of the other.
    pub refuses_certificate: bool,
}

/// The contact as the application knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContactState {
    /// No server serves the session.
    Disconnected,
    /// A server serves the session.
    Connected,
    /// The session cannot come back.
    Lost,
    /// This process has closed the session.
    Closed,
}

/// What the application may ask at any time.
#[derive(Clone, Debug)]
pub struct Status {
    /// The contact. It changes when the application is told.
    pub contact: ContactState,
    /// The grant of the current or last connection.
    pub granted: Granted,
    /// The id of the session. Zero until a server has opened the session.
    pub session_id: i64,
    /// The server of the current or last connection.
    pub server: String,
}

/// The transport in use.
struct Link {
    id: LinkId,
    target: Destination,
    /// Whether the server serves the session on this transport.
    is_serving: bool,
    /// Whether the server has answered a call on this transport.
    has_answered: bool,
}

/// What an end of a transport says about the server if the session does not name a reason itself.
#[derive(Clone, Copy)]
struct Verdict(&'static str, Trouble);

const NO_ANSWER: Verdict = Verdict("no answer", Trouble::Silent);
const REFUSED: Verdict =
    Verdict("it refused the connection, or is not a ZooKeeper server", Trouble::Refusing);
const GIVEN_UP: Verdict = Verdict("the connection was given up", Trouble::Refusing);

/// The state machine of a client.
///
/// See the [module](self). `C` is the continuation that the caller gets back with the outcome of a call.
pub struct Machine<C> {
    session: Session<C>,
    search: Search,
    link: Option<Link>,
    ticks: TickSearch,
    /// `None` if tickets are not fetched in advance.
    tickets: Option<TicketSchedule>,
    notices: Notices,
    status: Status,
    encrypts: bool,
    /// Whether neither the first contact nor its failure has been reported.
    awaits_first_contact: bool,
    /// Why the session is lost.
    loss: Option<SessionLoss>,
    last_link: usize,
    random: fastrand::Rng,
    actions: VecDeque<Action<C>>,
    closes: VecDeque<LinkId>,
}

impl<C> fmt::Debug for Machine<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("session", &self.session).finish_non_exhaustive()
    }
}

impl<C> Machine<C> {
    /// Creates a machine, which begins to connect.
    pub(crate) fn new(config: Config, now: Moment) -> Machine<C> {
        let session_timeout = config.session.session_timeout;
        let probe_closes = !config.session.sasl && config.session.credentials.is_empty();
        let head_start = search::overlap(session_timeout);
        let servers = Servers::new(&config.servers, config.memory, head_start, config.seed);
        let mut machine = Machine {
            search: Search::new(servers, config.session.sasl),
            session: Session::new(config.session, now),
            link: None,
            ticks: TickSearch::new(config.ticks, probe_closes),
            tickets: config.needs_tickets.then(TicketSchedule::default),
            notices: Notices::new(config.mentions_first_outage.then_some(now)),
            status: Status {
                contact: ContactState::Disconnected,
                granted: Granted::new(session_timeout),
                session_id: 0,
                server: String::new(),
            },
            encrypts: config.encrypts,
            awaits_first_contact: true,
            loss: None,
            last_link: 0,
            random: fastrand::Rng::with_seed(!config.seed),
            actions: VecDeque::new(),
            closes: VecDeque::new(),
        };
        machine.count_addresses();
        machine.settle(now, GIVEN_UP);
        machine
    }

    // ---- inputs of the application

    /// Submits a call.
    ///
    /// For a `CreateAndList`, only the create is sent.
    ///
    /// # Errors
    /// Returns the continuation if the session has ended, or is being closed.
    pub fn handle_call(&mut self, now: Moment, call: Call, continuation: C) -> Result<(), C> {
        let result = self.session.submit(now, call, continuation);
        self.settle(now, GIVEN_UP);
        result
    }

    /// Like [`handle_call`](Machine::handle_call), but the paths of the call are relative to the servers' root, not to
    /// the chroot.
    ///
    /// # Errors
    /// The same as for `handle_call`.
    pub fn handle_call_at_root(&mut self, now: Moment, call: Call, continuation: C) -> Result<(), C> {
        let result = self.session.submit_at_root(now, call, continuation);
        self.settle(now, GIVEN_UP);
        result
    }

    /// Removes the watches on a path, if there are any.
    pub fn handle_removal(&mut self, path: &str) {
        self.session.remove_watches(path);
    }

    /// Begins to close the session. No event follows.
    pub fn handle_close(&mut self, now: Moment) {
        self.status.contact = ContactState::Closed;
        self.actions.retain(|action| !matches!(action, Action::Tell(_)));
        self.ticks.stop();
        self.session.close(now);
        self.settle(now, GIVEN_UP);
    }

    // ---- inputs of the network

    /// Handles the answer of the name service for the server at this position.
    pub fn handle_resolved(&mut self, now: Moment, server: usize, answer: Result<Vec<SocketAddr>, String>) {
        if self.search.servers.handle_resolved(server, answer) {
            self.count_addresses();
        }
        self.note_current();
        self.continue_search(now);
        self.settle(now, GIVEN_UP);
    }

    /// Handles the first token for the server at this position, or the reason why there is none.
    ///
    /// Returns the transport on which the exchange will take place. Returns `None` if the token is not needed any more.
    pub fn handle_token(
        &mut self,
        now: Moment,
        server: usize,
        token: Result<Token, String>,
    ) -> Option<LinkId> {
        let link = self.take_token(now, server, token);
        self.settle(now, GIVEN_UP);
        link
    }

    /// Handles the failure to fetch a ticket for the server at this position.
    pub fn handle_no_ticket(&mut self, now: Moment, server: usize, why: &str) {
        if self.tickets.as_mut().is_some_and(|tickets| tickets.warns_of(server, now)) {
            let host = self.search.servers.host(server);
            let line = format!(
                "no ticket for ZooKeeper server {host}, so it cannot be used if the connection is lost: {why}"
            );
            self.log(Level::Warn, line);
        }
    }

    /// Handles a transport that is open now.
    pub fn handle_opened(&mut self, now: Moment, link: LinkId) {
        if self.ticks.opened(link) {
            return;
        }
        let Some(opened) = self.search.take_opened(link) else { return };
        let target = opened.target;
        self.link = Some(Link { id: link, target, is_serving: false, has_answered: false });
        self.note_current();
        self.close_attempts(None);
        if let Some(token) = opened.first_token {
            self.session.set_first_token(token.0);
        }
        self.session.opened(now);
        self.settle(now, GIVEN_UP);
    }

    /// Handles bytes from a server.
    pub fn handle_bytes(&mut self, now: Moment, link: LinkId, bytes: &[u8]) {
        if self.is_in_use(link) {
            self.session.received(now, bytes);
            return self.settle(now, REFUSED);
        }
        let progress = self.ticks.received(link, bytes);
        self.on_probe(now, progress);
    }

    /// Handles the end of a stream that the server has closed.
    pub fn handle_closed(&mut self, now: Moment, link: LinkId) {
        let may_expect_tls = self.status.session_id == 0 && !self.encrypts;
        let why = if may_expect_tls { CLOSED_AT_FIRST } else { CLOSED };
        self.end_link(now, link, why.to_owned());
        self.settle(now, NO_ANSWER);
    }

    /// Handles a transport that could not be opened, or has failed.
    pub fn handle_failed(&mut self, now: Moment, link: LinkId, failure: Failure) {
        let Failure { why, refuses_certificate } = failure;
        if let Some(target) = self.end_link(now, link, why) {
            self.note_certificate(target, refuses_certificate);
        }
        self.settle(now, NO_ANSWER);
    }

    /// Handles the response to a token of a server.
    pub fn handle_response(&mut self, now: Moment, link: LinkId, step: SaslStep) {
        if self.is_in_use(link) {
            self.session.respond(now, step);
            self.settle(now, GIVEN_UP);
        }
    }

    /// Does what is due. Call this at the moment of [`poll_deadline`](Machine::poll_deadline).
    pub fn handle_time(&mut self, now: Moment) {
        if self.session.deadline().is_none() {
            return;
        }
        // Before the next attempt, which would hide how the last one went.
        if let Some(line) = self.notices.long_outage(now, || self.search.servers.outcomes()) {
            self.log(Level::Warn, line);
        }
        if self.session.deadline().is_some_and(|deadline| deadline <= now) {
            self.session.timer(now);
            self.settle(now, NO_ANSWER);
        }
        if self.session.deadline().is_none() {
            // The session has ended.
            return;
        }
        if self.search.is_due(now) {
            self.try_next(now);
            self.settle(now, GIVEN_UP);
        }
        self.keep_probing(now);
        if self.tickets.as_mut().is_some_and(|tickets| tickets.take_due(now)) {
            let hosts = self.search.servers.hosts().enumerate();
            let fetch = |(server, host): (usize, &str)| Action::FetchTicket { server, host: host.to_owned() };
            self.actions.extend(hosts.map(fetch));
        }
    }

    /// Notes that the application is being told of this event. Returns `false` if it must not be: it has closed the
    /// session.
    pub fn note_told(&mut self, event: &ClientEvent) -> bool {
        if self.status.contact == ContactState::Closed {
            return false;
        }
        match event {
            ClientEvent::Connected(_) => self.status.contact = ContactState::Connected,
            ClientEvent::Disconnected => self.status.contact = ContactState::Disconnected,
            ClientEvent::SessionLost => self.status.contact = ContactState::Lost,
            _ => {}
        }
        true
    }

    /// Ends at once. Returns what must be dropped, because it owns the continuations of the calls.
    pub(crate) fn abandon(&mut self) -> impl Sized + use<C> {
        self.give_up_link("the connection has ended", None);
        (self.session.abandon(), std::mem::take(&mut self.actions))
    }

    // ---- outputs

    /// Takes the next action, if there is one.
    pub fn poll_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    /// Returns whether there is an action to take.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns whether there is a transport to close.
    pub(crate) fn has_closes(&self) -> bool {
        !self.closes.is_empty()
    }

    /// Takes all actions, and leaves this empty queue, whose memory is reused.
    pub(crate) fn swap_actions(&mut self, empty: &mut VecDeque<Action<C>>) {
        std::mem::swap(&mut self.actions, empty);
    }

    /// Takes the next transport to close, if there is one. It may still be on its way to be opened.
    pub fn poll_close(&mut self) -> Option<LinkId> {
        self.closes.pop_front()
    }

    /// Returns the bytes for an open transport. The owner removes those that it has sent.
    pub fn poll_transmit(&mut self, link: LinkId) -> Option<&mut Vec<u8>> {
        match self.is_in_use(link) {
            true => Some(self.session.outgoing()),
            false => self.ticks.outgoing(link),
        }
    }

    /// Returns when [`handle_time`](Machine::handle_time) must be called. `None` once the session has ended.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Moment> {
        let of_session = self.session.deadline()?;
        let of_tickets = self.tickets.as_ref().and_then(TicketSchedule::deadline);
        let others = [self.search.deadline(), self.ticks.deadline(), of_tickets, self.notices.deadline()];
        others.into_iter().flatten().chain([of_session]).min()
    }

    /// Returns the transport on which calls are sent.
    #[must_use]
    pub fn link_in_use(&self) -> Option<LinkId> {
        self.link.as_ref().map(|link| link.id)
    }

    /// Returns whether a transport is in use, or is to be opened.
    #[must_use]
    pub fn is_wanted(&self, link: LinkId) -> bool {
        self.is_in_use(link) || self.search.is_opening(link) || self.ticks.is_probe(link)
    }

    /// Returns what the application may ask at any time.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the actions that have not been taken yet, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action<C>> {
        self.actions.iter()
    }

    /// Returns the addresses that are known now.
    pub fn addresses(&self) -> impl Iterator<Item = &SocketAddr> {
        self.search.servers.addresses()
    }

    /// Returns whether some server has no known address.
    #[must_use]
    pub fn misses_addresses(&self) -> bool {
        self.search.servers.misses_addresses()
    }

    /// Returns why the session is lost, if it is.
    #[must_use]
    pub fn loss(&self) -> Option<SessionLoss> {
        self.loss
    }

    /// Lists the servers, each with how the last attempt at it has gone, or with its state.
    #[must_use]
    pub fn outcomes(&self) -> String {
        self.search.servers.outcomes()
    }

    /// See [`Session::refusal`].
    #[must_use]
    pub fn refusal(&self) -> Option<SessionLoss> {
        self.session.refusal()
    }

    // ---- what the session asks for

    /// Carries out what the session asks for. `verdict` says why the session gives a transport up if it gives no reason
    /// itself.
    fn settle(&mut self, now: Moment, verdict: Verdict) {
        let Verdict(why, trouble) = verdict;
        while let Some(action) = self.session.next_action() {
            match action {
                // A certificate was refused, and the session has ended since it asked for another attempt.
                session::Action::Open if self.session.deadline().is_none() => {}
                session::Action::Open => {
                    self.give_up_link(why, None);
                    self.try_next(now);
                }
                session::Action::Drop if self.session.ends_now() => {
                    let loss = self.loss.map(SessionLoss::reason);
                    self.give_up_link(loss.or(self.silence()).unwrap_or(why), None);
                }
                session::Action::Drop => self.leave(why, trouble),
                session::Action::Challenge(token) => {
                    if let Some(link) = self.link_in_use() {
                        self.actions.push_back(Action::Challenge { link, token: Token(token) });
                    }
                }
                session::Action::Event(event) => self.on_event(now, event),
                session::Action::Reply(continuation, result) => {
                    self.note_answer(&result);
                    self.actions.push_back(Action::Reply(continuation, result));
                }
                session::Action::Ended => {
                    self.give_up_link(why, None);
                    self.actions.push_back(Action::Ended);
                }
            }
        }
    }

    /// Leaves a server, and notes what that says about it.
    fn leave(&mut self, why: &str, trouble: Trouble) {
        self.note_end(true);
        let failure = self.session.take_failure();
        let why = failure.as_deref().or(self.silence()).unwrap_or(why);
        let target = self.link.as_ref().map(|link| link.target);
        self.give_up_link(why, Some(trouble));
        if let Some(stranger) = target.filter(|_| why == UNKNOWN_AT_FORMER_ADDRESS) {
            self.search.servers.record_stranger(stranger);
        }
    }

    fn on_event(&mut self, now: Moment, event: session::Event) {
        match event {
            session::Event::Connected { granted, session_id } => self.on_connect(now, granted, session_id),
            session::Event::Disconnected => self.on_disconnect(now),
            session::Event::SessionLost(loss) => self.on_loss(loss),
            session::Event::NodeChanged { path, is_deleted } => {
                self.tell(ClientEvent::NodeChanged { path, is_deleted });
            }
            session::Event::TakenUp { session_timeout } => {
                self.tell(ClientEvent::TakenUp { session_timeout })
            }
            session::Event::PingAnswered { sent } => {
                let timeout = self.status.granted.session_timeout;
                if let Some(line) = self.notices.far_server(now.since(sent), timeout) {
                    self.log(Level::Warn, line);
                }
                self.tell(ClientEvent::PingAnswered { sent });
                if std::mem::take(&mut self.awaits_first_contact) {
                    self.actions.push_back(Action::FirstContact(Ok(())));
                }
            }
        }
    }

    fn on_connect(&mut self, now: Moment, fresh: Granted, session_id: i64) {
        let Some(link) = &mut self.link else { return };
        link.is_serving = true;
        let target = link.target;
        self.search.servers.record_success(target);
        let delay = self.random.f64();
        let granted = self.ticks.connected(now, target.address, fresh, delay);
        let server = self.search.servers.describe(target);
        (self.status.granted, self.status.session_id, self.status.server) = (granted, session_id, server);
        self.tell(ClientEvent::Connected(granted));
        let (level, line) = self.notices.contact(now, &self.status);
        self.log(level, line);
        self.log_tick();
        if let Some(tickets) = &mut self.tickets {
            tickets.connected(now, fresh.session_timeout, self.random.f64());
        }
    }

    fn on_disconnect(&mut self, now: Moment) {
        self.notices.lost_contact(now);
        self.tell(ClientEvent::Disconnected);
        let outcomes = self.search.servers.outcomes();
        self.log(Level::Debug, format!("ZooKeeper connection lost: {outcomes}"));
    }

    fn on_loss(&mut self, loss: SessionLoss) {
        self.loss = Some(loss);
        let is_first = std::mem::take(&mut self.awaits_first_contact);
        // If there was contact, nobody receives the reason as an error. Whoever learns of the loss may end the process,
        // so the reason is logged before that.
        if !is_first {
            let (session_id, why) = (self.status.session_id, loss.reason());
            self.log(Level::Warn, format!("ZooKeeper session {session_id:#x} lost: {why}"));
        }
        self.tell(ClientEvent::SessionLost);
        if is_first {
            self.actions.push_back(Action::FirstContact(Err(loss)));
        }
    }

    fn tell(&mut self, event: ClientEvent) {
        self.actions.push_back(Action::Tell(event));
    }

    fn log(&mut self, level: Level, line: String) {
        self.actions.push_back(Action::Log(level, line));
    }

    // ---- the transport in use

    fn is_in_use(&self, link: LinkId) -> bool {
        self.link_in_use() == Some(link)
    }

    fn next_link(&mut self) -> LinkId {
        self.last_link += 1;
        LinkId(self.last_link)
    }

    /// Reports to the session that the transport has ended, or that none could be opened.
    fn fail(&mut self, now: Moment) {
        self.search.pause();
        self.session.failed(now);
    }

    /// Handles the end of a transport. Returns its address, unless it was that of a probe or was given up before.
    fn end_link(&mut self, now: Moment, link: LinkId, why: String) -> Option<Destination> {
        if self.ticks.is_probe(link) {
            self.on_probe(now, Progress::Over);
            return None;
        }
        if let Some(target) = self.link.as_ref().filter(|it| it.id == link).map(|link| link.target) {
            self.note_end(false);
            self.drop_link(&why, Some(Trouble::Refusing));
            self.fail(now);
            return Some(target);
        }
        let target = self.search.take_opened(link)?.target;
        self.closes.push_back(link);
        self.attempt_failed(now, target, why);
        Some(target)
    }

    /// Gives all transports up. Records why, and the trouble with the addresses at which no
    /// server serves the session.
    fn give_up_link(&mut self, why: &str, trouble: Option<Trouble>) {
        self.close_attempts(Some((why, trouble)));
        self.drop_link(why, trouble);
    }

    fn drop_link(&mut self, why: &str, trouble: Option<Trouble>) {
        let Some(link) = self.link.take() else { return };
        self.drop_probe();
        if let Some(tickets) = &mut self.tickets {
            tickets.disconnected();
        }
        self.search.servers.record_failure(link.target, why.to_owned());
        if let Some(trouble) = trouble.filter(|_| !link.is_serving) {
            self.search.servers.record_trouble(link.target, trouble);
        }
        self.closes.push_back(link.id);
    }

    /// Notes the end of a connection on which a server served the session.
    fn note_end(&mut self, was_silent: bool) {
        if let Some(link) = self.link.as_ref().filter(|link| link.is_serving) {
            let was_refused = self.session.refusal().is_some();
            self.search.servers.record_end(link.target, was_silent, was_refused);
        }
    }

    /// Returns the outcome for a server that has accepted the session and answered no call.
    fn silence(&self) -> Option<&'static str> {
        let link = self.link.as_ref().filter(|link| link.is_serving && !link.has_answered);
        link.map(|_| ANSWERS_NO_CALL)
    }

    /// Notes the outcome of a call, which may be a server's answer.
    fn note_answer(&mut self, result: &ZkResult<Reply>) {
        let Some(link) = self.link.as_mut().filter(|link| link.is_serving && !link.has_answered) else {
            return;
        };
        if result.as_ref().map_or_else(|error| error.is_answer(), |_| true) {
            link.has_answered = true;
            self.search.servers.record_answer(link.target);
        }
    }

    /// Tells the session whether it may believe the server on the transport that the session has ended.
    fn note_current(&mut self) {
        if let Some(link) = &self.link {
            self.session.set_current(self.search.servers.is_current(link.target));
        }
    }

    // ---- the tick

    /// Begins a probe that is due, and ends one that takes too long.
    fn keep_probing(&mut self, now: Moment) {
        if self.ticks.is_late(now) {
            self.on_probe(now, Progress::Over);
        }
        let Some(target) = self.link.as_ref().map(|link| link.target) else { return };
        if self.ticks.take_due(now) {
            let link = self.next_link();
            self.ticks.begin(Probe::new(link), now, self.status.granted.session_timeout);
            self.ask_to_open(link, target);
        }
    }

    fn on_probe(&mut self, now: Moment, progress: Progress) {
        let is_serving = self.link.as_ref().filter(|link| link.is_serving).map(|link| link.target);
        match progress {
            Progress::Pending => {}
            Progress::Answered(minimum) => {
                self.ticks.answered(minimum, is_serving.map(|target| target.address));
                self.reckon();
                if !self.ticks.closes_session() {
                    self.drop_probe();
                }
            }
            Progress::Over => {
                self.drop_probe();
                let session_timeout = self.status.granted.session_timeout;
                let goes_on = self.status.contact != ContactState::Closed;
                if goes_on && self.ticks.probe_again(now, session_timeout) {
                    self.reckon();
                    let line = self.ticks.warning(&self.status.server);
                    line.into_iter().for_each(|line| self.log(Level::Warn, line));
                }
            }
        }
    }

    /// Reports the report delay that follows from what is known of the server's tick, if it has changed.
    fn reckon(&mut self) {
        if !self.link.as_ref().is_some_and(|link| link.is_serving) {
            return;
        }
        let Some(granted) = self.ticks.granted() else { return };
        if std::mem::replace(&mut self.status.granted, granted) != granted {
            self.tell(ClientEvent::ReportDelay(granted.report_delay));
        }
        self.log_tick();
    }

    fn log_tick(&mut self) {
        if let Some((level, line)) = self.ticks.mention(self.status.granted) {
            self.log(level, line);
        }
    }

    fn drop_probe(&mut self) {
        self.closes.extend(self.ticks.drop_probe());
    }
}
