//! [`IoThread`]: the I/O thread of a connection. It provides the machine with sockets, a clock and resolved names.
//!
//! The thread runs a loop. It sleeps until a socket is ready, a deadline has passed or another thread wakes it: a
//! caller, or a thread that has resolved a name or made a SASL token. Then it lets the machine react, and carries out
//! the machine's actions in order. The event sink and the continuations of replies run on this thread while the mutex
//! is not held. They must not block. The thread survives their panics.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;
use mio::{Events, Poll, Token};

use crate::chroot::Chroot;
use crate::machine::{Action, Event, SessionLoss};
use crate::probe::{Probe, Progress};
use crate::resolver::Resolver;
use crate::sasl::{Answer, Authenticator, Prepared, TicketSchedule};
use crate::servers::{Destination, NextServer};
use crate::shared::{Actions, ContactState, NO_TOKEN, Shared};
use crate::support::{Outage, Repetition, logging, panics};
use crate::tick::{ProbeState, Ticks};
use crate::time::{Clock, MAX_SLEEP, Moment, SystemClock};
#[cfg(feature = "tls")]
use crate::tls::TlsClient;
use crate::transport::{Security, Transport};
use crate::{ClientEvent, EventSink, Granted};

pub(super) const WAKER: Token = Token(0);
const LINK: Token = Token(1);
const PROBE: Token = Token(2);

/// At level `info`, at most one new connection is logged in each interval of this length.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Once a server has answered a probe, each further probe after a connect is delayed by up to this fraction of the
/// session timeout, but by no more than `MAX_PROBE_DELAY`.
const PROBE_DELAY_DIVISOR: u32 = 8;
const MAX_PROBE_DELAY: Duration = Duration::from_secs(2);

/// The pause after the first unanswered probe in a row is the session timeout. Each further one doubles the pause, at
/// most this many times.
const MAX_PROBE_DOUBLINGS: u32 = 7;

/// The number of unanswered probes in a row after which a warning is logged.
const PROBES_BEFORE_WARNING: u32 = 2;

/// A round trip longer than this fraction of the session timeout is too long.
const MAX_ROUND_TRIP_DIVISOR: u32 = 6;
/// A warning is logged after this many slow pings in a row, because a pause of the process may delay a single one.
const SLOW_PINGS_BEFORE_WARNING: u32 = 3;

const BUFFER: usize = 64 * 1024;

/// A queue of actions shrinks to this capacity once it is empty.
const MAX_KEPT_ACTIONS: usize = 64;

thread_local! {
    static IS_IO_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the I/O thread of any connection, which must not block.
pub(super) fn is_io_thread() -> bool {
    IS_IO_THREAD.get()
}

/// See the [module](self).
pub(super) struct IoThread {
    pub(super) shared: Arc<Shared>,
    pub(super) poll: Poll,
    pub(super) resolver: Resolver,
    pub(super) authenticator: Option<Authenticator>,
    /// Whether the client presents credentials, or authenticates with SASL.
    pub(super) authenticates: bool,
    pub(super) chroot: Chroot,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<TlsClient>,
    pub(super) ticks: Ticks,
    pub(super) mentions_first_outage: bool,
    pub(super) log_target: &'static str,
    /// Receives `Ok` when a server has answered the first ping, or the reason why none will. An accepted session is
    /// not enough: a server that requires authentication accepts the session and then refuses its requests. Dropped
    /// without a message if the thread fails first.
    pub(super) first_contact: Option<Sender<Result<(), SessionLoss>>>,
    /// Disconnects its receivers when the thread ends.
    pub(super) ended: Sender<Infallible>,
    pub(super) notes: ServerNotes,
    pub(super) random: fastrand::Rng,
}

/// What the I/O thread remembers about the servers.
#[derive(Default)]
pub(super) struct ServerNotes {
    outage: Outage,
    probe: Option<Probe>,
    /// The server to probe next, and when.
    to_probe: Option<(Moment, Destination)>,
    /// The grant on the current connection, not yet adjusted to the tick.
    fresh: Option<Granted>,
    /// Whether the warning about unanswered probes has been logged.
    has_warned: bool,
    /// How many pings in a row were answered too late. After the warning, the count no longer changes.
    slow_pings: u32,
    /// The number of probes in a row that the current server has not answered.
    unanswered: u32,
    /// The servers whose tick is known, each with its grant at the time of the probe, not adjusted to the tick.
    probed: HashMap<SocketAddr, Granted>,
    contact: Repetition,
    tickets: TicketSchedule,
}

impl ServerNotes {
    /// Counts a ping. Returns `true` once: when it shows that the server is too far away for the session timeout.
    fn shows_far_server(&mut self, round_trip: Duration, session_timeout: Duration) -> bool {
        if self.slow_pings == SLOW_PINGS_BEFORE_WARNING {
            return false;
        }
        let is_slow = round_trip > session_timeout / MAX_ROUND_TRIP_DIVISOR;
        self.slow_pings = if is_slow { self.slow_pings + 1 } else { 0 };
        self.slow_pings == SLOW_PINGS_BEFORE_WARNING
    }

    /// Returns whether the server with this grant has answered a probe. If the server's grant was different at that time,
    /// the server's configuration may have changed, so the answer does not count.
    fn knows(&self, target: Destination, fresh: Granted) -> bool {
        self.probed.get(&target.address) == Some(&fresh)
    }
}

/// Returns the pause after this many unanswered probes in a row.
pub(super) fn pause_after(unanswered: u32, session_timeout: Duration) -> Duration {
    session_timeout * 2_u32.pow(unanswered.saturating_sub(1).min(MAX_PROBE_DOUBLINGS))
}

/// Returns how long the next probe may take after this many unanswered ones in a row. The session that it opens is a
/// transaction, so slow servers need time.
pub(super) fn probe_time(unanswered: u32, session_timeout: Duration) -> Duration {
    session_timeout / 4 * 2_u32.pow(unanswered.min(2))
}

impl IoThread {
    /// Runs until the session has ended.
    pub(super) fn run(mut self) {
        IS_IO_THREAD.set(true);
        logging::never_wait_on_this_thread();
        if let Err(message) = panics::contain(|| self.run_to_the_end()) {
            logging::log!(
                self.log_target,
                Level::Error,
                "the thread of a ZooKeeper connection panicked: {message}"
            );
        }
        // If another crate enables the lines of rustls and mio, they go to the logger directly, and it may panic.
        let _ = panics::contain(|| self.drop_probe());
        self.first_contact = None;
        // The end has not been reported yet if the thread ends because of an error.
        let is_reported =
            matches!(self.shared.lock().status.contact, ContactState::Lost | ContactState::Closed);
        if !is_reported {
            self.report(ContactState::Lost, ClientEvent::SessionLost);
        }
        let _ = panics::contain(|| self.shared.lock().drop_link("the connection has ended", None));
        let rest = self.shared.lock().take_rest();
        drop(rest);
        drop(self.ended);
    }

    fn run_to_the_end(&mut self) {
        if self.mentions_first_outage {
            self.notes.outage.begin(SystemClock.now());
        }
        let mut events = Events::with_capacity(16);
        let mut buffer = vec![0; BUFFER];
        let mut actions = Actions::new();
        while self.run_actions(&mut actions) {
            if let Err(error) = self.sleep(&mut events) {
                logging::log!(
                    self.log_target,
                    Level::Error,
                    "a ZooKeeper connection has ended: its sockets cannot be polled: {error}"
                );
                return;
            }
            let is_ready = |token| events.iter().any(|event| event.token() == token);
            self.wake_up(is_ready(LINK), &mut buffer);
            self.advance_probe(is_ready(PROBE));
            self.fetch_tickets();
            self.mention_outage();
        }
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let to_probe = self.notes.to_probe.map(|(at, _)| at);
        let of_probe = self.notes.probe.as_ref().map(Probe::deadline).or(to_probe);
        let others = [of_probe, self.notes.outage.deadline(), self.notes.tickets.deadline()];
        let others = others.into_iter().flatten().min();
        let until = self.shared.lock().fall_asleep(others);
        let time = until.map_or(Duration::ZERO, |until| until.since(SystemClock.now()));
        match self.poll.poll(events, Some(time.min(MAX_SLEEP))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    fn wake_up(&mut self, link_is_ready: bool, buffer: &mut [u8]) {
        {
            let mut io = self.shared.lock();
            while let Some((server, answer)) = self.resolver.next_answer() {
                io.handle_resolved(server, answer);
            }
            io.wake_up(link_is_ready, buffer);
        }
        while let Some(answer) = self.authenticator.as_mut().and_then(Authenticator::next_answer) {
            match answer {
                Answer::Prepared(server, answer) => self.on_prepared(server, answer),
                Answer::NoTicket(server, why) => self.warn_of_missing_ticket(server, &why),
            }
        }
    }

    // ---- actions

    /// Carries out all actions. Returns `false` at the end of the session.
    fn run_actions(&mut self, actions: &mut Actions) -> bool {
        loop {
            self.shared.lock().take_actions(actions);
            if actions.is_empty() {
                return true;
            }
            while let Some((number, action)) = actions.pop_front() {
                match action {
                    Action::Open => self.open(number),
                    // Already done when the action was collected.
                    Action::Drop => {}
                    Action::Challenge(token) => self.respond(number, &token),
                    Action::Event(event) => self.on_event(event, number),
                    Action::Reply(continuation, result) => {
                        self.contain("a continuation", || continuation.answered(result));
                    }
                    Action::Ended => return false,
                }
            }
            actions.shrink_to(MAX_KEPT_ACTIONS);
        }
    }

    fn contain(&self, what: &str, code: impl FnOnce()) {
        if let Err(message) = panics::contain(code) {
            logging::log!(
                self.log_target,
                Level::Error,
                "{what} of a ZooKeeper connection panicked: {message}"
            );
        }
    }

    /// Opens a transport to the next server, in parallel with the transports that are being opened. Does nothing if the
    /// machine has given up this attempt, or if a transport is open.
    fn open(&mut self, number: u64) {
        let mut lookups = Vec::new();
        let target = {
            let mut io = self.shared.lock();
            if io.link_number != number || io.target().is_some() {
                return;
            }
            let is_first = !io.is_opening();
            let next = io.next_server();
            while let Some(lookup) = io.servers.next_lookup() {
                lookups.push(lookup);
            }
            match next {
                NextServer::Try(target) => Some(target),
                NextServer::Wait(until) => {
                    io.waits_for_name = Some(until);
                    None
                }
                NextServer::Nothing => {
                    if is_first {
                        io.fail();
                    }
                    None
                }
            }
        };
        for lookup in lookups {
            self.resolver.resolve(lookup);
        }
        match target {
            Some(target) if self.authenticator.is_some() => {
                self.shared.lock().add_preparing(target);
                self.prepare(target.server, number);
            }
            Some(target) => self.open_to(target, None, number),
            None => {}
        }
    }

    /// Requests the first token for a server, for the attempt with this number. Each of the server's addresses needs
    /// its own token.
    fn prepare(&mut self, server: usize, number: u64) {
        let Some(authenticator) = &mut self.authenticator else { return };
        let host = self.shared.lock().servers.host(server).to_owned();
        if !authenticator.prepare(server, host, number) {
            self.on_prepared(server, Err(NO_TOKEN.to_owned()));
        }
    }

    /// Handles the first token for a server, or the reason why there is none.
    fn on_prepared(&mut self, server: usize, answer: Result<Prepared, String>) {
        let (target, number) = {
            let mut io = self.shared.lock();
            (io.take_preparing(server), io.link_number)
        };
        match (target, answer) {
            (Some(target), Ok(prepared)) => self.open_to(target, Some(prepared), number),
            (Some(target), Err(why)) => self.shared.lock().opening_failed(target, why),
            // The attempt was given up.
            (None, _) => {}
        }
        let (is_next, number) = {
            let io = self.shared.lock();
            (io.is_preparing(server), io.link_number)
        };
        if is_next {
            // Another address of the same server needs its own token.
            self.prepare(server, number);
        }
    }

    /// Fetches tickets for all servers if a fetch is due, so the next reconnect does not depend on a KDC. The tokens
    /// that come with the tickets are not used.
    fn fetch_tickets(&mut self) {
        let Some(authenticator) = &self.authenticator else { return };
        if !self.notes.tickets.take_due(SystemClock.now()) {
            return;
        }
        let hosts: Vec<String> = self.shared.lock().servers.hosts().map(str::to_owned).collect();
        for (server, host) in hosts.into_iter().enumerate() {
            authenticator.fetch_ahead(server, host);
        }
    }

    fn warn_of_missing_ticket(&mut self, server: usize, why: &str) {
        if !self.notes.tickets.warns_of(server, SystemClock.now()) {
            return;
        }
        let host = self.shared.lock().servers.host(server).to_owned();
        logging::log!(
            self.log_target,
            Level::Warn,
            "no ticket for ZooKeeper server {host}, so it cannot be used if the connection is lost: {why}"
        );
    }

    /// Responds to a server's token. The response is computed without the mutex.
    fn respond(&mut self, number: u64, token: &[u8]) {
        let sasl = self.shared.lock().take_exchange(number);
        if let Some(mut sasl) = sasl {
            let step = sasl.exchange.step(token);
            self.shared.lock().respond(number, sasl, step);
        }
    }

    fn open_to(&mut self, target: Destination, sasl: Option<Prepared>, number: u64) {
        // Connect without the mutex, because `security` takes it and may start a thread.
        let opened = self.connect(target, LINK);
        self.shared.lock().handle_opening(opened, target, sasl, number);
    }

    /// Begins to connect to an address.
    fn connect(&mut self, target: Destination, token: Token) -> Result<Transport, String> {
        let security = self.security(target)?;
        let registry = self.poll.registry();
        Transport::connect(target.address, security, registry, token).map_err(|error| error.to_string())
    }

    #[cfg(feature = "tls")]
    fn security(&mut self, target: Destination) -> Result<Security, String> {
        let Some(tls) = &mut self.tls else { return Ok(None) };
        let host = self.shared.lock().servers.host(target.server).to_owned();
        tls.target(&host).map(Some).map_err(|error| error.to_string())
    }

    #[cfg(not(feature = "tls"))]
    fn security(&mut self, _target: Destination) -> Result<Security, String> {
        Ok(Security)
    }

    // ---- events

    fn on_event(&mut self, event: Event, number: u64) {
        match event {
            Event::Connected { granted, session_id } => self.on_connect(granted, session_id, number),
            Event::Disconnected => {
                self.drop_probe();
                self.notes.tickets.disconnected();
                self.notes.outage.begin(SystemClock.now());
                self.report(ContactState::Disconnected, ClientEvent::Disconnected);
                let outcomes = self.shared.lock().servers.outcomes();
                logging::log!(self.log_target, Level::Debug, "ZooKeeper connection lost: {outcomes}");
            }
            Event::SessionLost(loss) => self.on_loss(loss),
            Event::NodeChanged { path, is_deleted } => {
                if let Some(path) = self.chroot.take_from(path) {
                    self.send(ClientEvent::NodeChanged { path, is_deleted });
                }
            }
            Event::TakenUp { session_timeout } => self.send(ClientEvent::TakenUp { session_timeout }),
            Event::PingAnswered { sent } => {
                self.note_round_trip(SystemClock.now().since(sent));
                self.send(ClientEvent::PingAnswered { sent });
                if let Some(first_contact) = self.first_contact.take() {
                    let _ = first_contact.send(Ok(()));
                }
            }
        }
    }

    fn on_connect(&mut self, fresh: Granted, session_id: i64, number: u64) {
        let mut probe = ProbeState::Pending;
        let (target, granted, server) = {
            let mut io = self.shared.lock();
            // If the number differs, the transport has been lost in the meantime.
            let target = io.target().filter(|_| io.link_number == number);
            if target.is_some_and(|target| self.notes.knows(target, fresh)) {
                probe = ProbeState::Answered;
            }
            let granted = self.ticks.granted(fresh, probe);
            io.status.granted = granted;
            io.status.session_id = session_id;
            (target, granted, io.status.server.clone())
        };
        self.report(ContactState::Connected, ClientEvent::Connected(granted));
        self.log_contact(granted.session_timeout, session_id, &server);
        self.log_tick(granted, probe);
        self.drop_probe();
        self.notes.fresh = Some(fresh);
        self.notes.unanswered = 0;
        if let Some(target) = target.filter(|_| probe == ProbeState::Pending && !self.ticks.is_stated()) {
            let delay = self.probe_delay(fresh.session_timeout);
            self.notes.to_probe = Some((SystemClock.now().after(delay), target));
        }
        if self.authenticator.as_ref().is_some_and(Authenticator::needs_tickets) {
            let random = self.random.f64();
            self.notes.tickets.connected(SystemClock.now(), fresh.session_timeout, random);
        }
    }

    /// Returns the delay of the next probe. It is zero until a server has answered a probe. Later, the delay is
    /// random: if a server fails, all its clients move to the other servers at the same time, and each probe costs
    /// those servers two transactions.
    fn probe_delay(&mut self, session_timeout: Duration) -> Duration {
        if self.notes.probed.is_empty() {
            return Duration::ZERO;
        }
        let longest = (session_timeout / PROBE_DELAY_DIVISOR).min(MAX_PROBE_DELAY);
        longest.mul_f64(self.random.f64())
    }

    fn log_contact(&mut self, session_timeout: Duration, session_id: i64, server: &str) {
        let now = SystemClock.now();
        let after = match self.notes.outage.end(now) {
            Some(outage) => format!(" after {outage:.1?} without contact"),
            None => String::new(),
        };
        let is_repeated = self.notes.contact.is_repeated(now, MIN_LOG_INTERVAL);
        let level = if is_repeated { Level::Debug } else { Level::Info };
        logging::log!(
            self.log_target,
            level,
            "ZooKeeper session {session_id:#x} connected to {server}{after}, session timeout {session_timeout:?}"
        );
    }

    /// Logs a warning, once, if the server is too far away for the session timeout.
    fn note_round_trip(&mut self, time: Duration) {
        let session_timeout = self.shared.lock().status.granted.session_timeout;
        if self.notes.shows_far_server(time, session_timeout) {
            logging::log!(
                self.log_target,
                Level::Warn,
                "the round trip of {time:.1?} to the ZooKeeper server is too long for a session timeout of \
                 {session_timeout:?}: what depends on the session, such as a lock, may be lost without a fault"
            );
        }
    }

    fn on_loss(&mut self, loss: SessionLoss) {
        let (session_id, why) = (self.shared.lock().status.session_id, loss.reason());
        let first_contact = self.first_contact.take();
        // If there was contact, nobody receives the reason as an error. Whoever learns of the loss may end the process,
        // so the reason is logged before that.
        if first_contact.is_none() {
            logging::log!(self.log_target, Level::Warn, "ZooKeeper session {session_id:#x} lost: {why}");
        }
        self.report(ContactState::Lost, ClientEvent::SessionLost);
        if let Some(first_contact) = first_contact {
            let _ = first_contact.send(Err(loss));
        }
    }

    /// Changes the state that the application sees, and reports the event.
    fn report(&self, contact: ContactState, event: ClientEvent) {
        let sink = {
            let mut io = self.shared.lock();
            if io.status.contact == ContactState::Closed {
                return;
            }
            io.status.contact = contact;
            io.status.sink.clone()
        };
        self.send_to(sink, event);
    }

    fn send(&self, event: ClientEvent) {
        let sink = self.shared.lock().status.sink.clone();
        self.send_to(sink, event);
    }

    fn send_to(&self, sink: Option<EventSink>, event: ClientEvent) {
        if let Some(sink) = sink {
            self.contain("the receiver of the events", move || sink(event));
        }
    }

    // ---- the probe, and outages

    fn advance_probe(&mut self, is_ready: bool) {
        let now = SystemClock.now();
        if let Some((_, target)) = self.notes.to_probe.take_if(|(at, _)| *at <= now) {
            self.begin_probe(target, now);
        }
        let Some(probe) = &mut self.notes.probe else { return };
        let mut progress = if is_ready { probe.advance() } else { Progress::Pending };
        if let Progress::Answered(shortest_timeout) = progress {
            progress = probe.advance();
            self.ticks.note_minimum(shortest_timeout);
            self.note_probed();
            self.reckon(ProbeState::Answered);
            self.notes.unanswered = 0;
        }
        let is_late = self.notes.probe.as_ref().is_some_and(|probe| probe.deadline() <= now);
        if progress == Progress::Over || is_late {
            self.drop_probe();
            self.probe_again(now);
        }
    }

    /// Notes that the server has refused a second connection, or has not answered on it.
    fn note_unanswered(&mut self) {
        self.reckon(ProbeState::Unanswered);
        if self.notes.unanswered == PROBES_BEFORE_WARNING
            && !std::mem::replace(&mut self.notes.has_warned, true)
        {
            let server = self.shared.lock().status.server.clone();
            let counted = match self.ticks.unanswered() {
                Some(tick) => format!("a tick of {tick:?} counts"),
                None => {
                    "the longest possible one counts, so the session counts as lost after a shorter outage"
                        .to_owned()
                }
            };
            logging::log!(
                self.log_target,
                Level::Warn,
                "ZooKeeper server {server} does not answer on a second connection, so its tick is not known: {counted}; \
                 check its limit of connections (maxClientCnxns) and whether it is slow, or state the tick (tick)"
            );
        }
    }

    /// After an unanswered probe, schedules another one, with a longer pause each time up to a limit.
    fn probe_again(&mut self, now: Moment) {
        let unanswered = self.notes.unanswered;
        if unanswered == 0 {
            return;
        }
        self.note_unanswered();
        let io = self.shared.lock();
        let pause = pause_after(unanswered, io.status.granted.session_timeout);
        self.notes.to_probe = io.target().map(|target| (now.after(pause), target));
    }

    fn begin_probe(&mut self, target: Destination, now: Moment) {
        let session_timeout = self.shared.lock().status.granted.session_timeout;
        let deadline = now.after(probe_time(self.notes.unanswered, session_timeout));
        self.notes.unanswered += 1;
        match self.connect(target, PROBE) {
            Ok(transport) => {
                self.notes.probe = Some(Probe::new(transport, deadline, !self.authenticates));
            }
            Err(_) => self.probe_again(now),
        }
    }

    /// Notes that the server of the current connection has answered the probe.
    fn note_probed(&mut self) {
        let Some(fresh) = self.notes.fresh else { return };
        let io = self.shared.lock();
        if let Some(target) = io.target().filter(|_| io.status.contact == ContactState::Connected) {
            self.notes.probed.insert(target.address, fresh);
        }
    }

    /// Reports the report delay that follows from the probe of the current server, if it has changed.
    fn reckon(&mut self, probe: ProbeState) {
        let Some(fresh) = self.notes.fresh else { return };
        let (sink, granted, has_changed) = {
            let mut io = self.shared.lock();
            let status = &mut io.status;
            if status.contact != ContactState::Connected {
                return;
            }
            let before = std::mem::replace(&mut status.granted, self.ticks.granted(fresh, probe));
            (status.sink.clone(), status.granted, status.granted != before)
        };
        if has_changed {
            self.send_to(sink, ClientEvent::ReportDelay(granted.report_delay));
        }
        self.log_tick(granted, probe);
    }

    fn log_tick(&mut self, granted: Granted, probe: ProbeState) {
        if let Some((level, line)) = self.ticks.mention(granted, probe) {
            logging::log!(self.log_target, level, "{line}");
        }
    }

    fn drop_probe(&mut self) {
        self.notes.to_probe = None;
        if let Some(probe) = self.notes.probe.take() {
            probe.close(self.poll.registry());
        }
    }

    fn mention_outage(&mut self) {
        if let Some(outage) = self.notes.outage.mention(SystemClock.now()) {
            let outcomes = self.shared.lock().servers.outcomes();
            logging::log!(
                self.log_target,
                Level::Warn,
                "no ZooKeeper server was reached for {outage:.0?}; tried {outcomes}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_too_far_away_after_three_slow_pings_in_a_row() {
        let (mut notes, session_timeout) = (ServerNotes::default(), Duration::from_secs(6));
        let mut shows = |millis| notes.shows_far_server(Duration::from_millis(millis), session_timeout);
        assert_eq!([1001, 1001, 1000, 1001, 1001].map(&mut shows), [false; 5]);
        assert!(shows(1001));
        assert!(!shows(1001), "the warning is not repeated");
    }
}
