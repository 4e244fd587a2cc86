//! [`IoThread`]: the I/O thread of a connection. It provides the machine with sockets, a clock, resolved names and SASL
//! tokens.
//!
//! The thread runs a loop. It sleeps until a socket is ready, a deadline has passed or another thread wakes it: a
//! caller, or a thread that has resolved a name or made a SASL token. Then it lets the machine react, and carries out
//! the machine's actions in order. The event sink and the continuations of replies run on this thread while the mutex
//! is not held. They must not block. The thread survives their panics.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use log::Level;
use mio::{Events, Poll, Token};

use super::Shared;
use super::resolver::Resolver;
use super::transport::{Security, Transport};
use crate::ClientEvent;
use crate::exchange::Continuation;
use crate::machine::{self, Action, ContactState, LinkId, SessionLoss};
use crate::sasl::{Answer, Authenticator, Exchange, Prepared};
use crate::support::{logging, panics};
use crate::time::MAX_SLEEP;
#[cfg(feature = "tls")]
use crate::tls::TlsClient;

/// The transports have the tokens from 1 on.
pub(crate) const WAKER: Token = Token(0);

const BUFFER: usize = 64 * 1024;

/// A queue of actions shrinks to this capacity once it is empty.
const MAX_KEPT_ACTIONS: usize = 64;

thread_local! {
    static IS_IO_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the calling thread is the I/O thread of any connection, which must not block.
pub(crate) fn is_io_thread() -> bool {
    IS_IO_THREAD.get()
}

/// See the [module](self).
pub(crate) struct IoThread {
    pub(crate) shared: Arc<Shared>,
    pub(crate) poll: Poll,
    pub(crate) resolver: Resolver,
    pub(crate) authenticator: Option<Authenticator>,
    /// The SASL exchanges on the transports.
    pub(crate) exchanges: HashMap<LinkId, Box<dyn Exchange>>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsClient>,
    pub(crate) log_target: &'static str,
    /// Receives `Ok` when a server has answered the first ping, or the reason why none will. An accepted session is
    /// not enough: a server that requires authentication accepts the session and then refuses its requests. Dropped
    /// without a message if the thread fails first.
    pub(crate) first_contact: Option<Sender<Result<(), SessionLoss>>>,
    /// Disconnects its receivers when the thread ends.
    pub(crate) ended: Sender<Infallible>,
}

impl IoThread {
    /// Runs until the session has ended.
    pub(crate) fn run(mut self) {
        IS_IO_THREAD.set(true);
        logging::never_wait_on_this_thread();
        if let Err(message) = panics::contain(|| self.run_to_the_end()) {
            self.log(Level::Error, &format!("the thread of a ZooKeeper connection panicked: {message}"));
        }
        self.first_contact = None;
        // The end has not been reported yet if the thread ends because of an error.
        let contact = self.shared.lock().machine.status().contact;
        if !matches!(contact, ContactState::Lost | ContactState::Closed) {
            self.tell(ClientEvent::SessionLost);
        }
        // If another crate enables the lines of rustls and mio, they go to the logger directly, and it may panic.
        let _ = panics::contain(|| self.shared.lock().close_all());
        let rest = self.shared.lock().take_rest();
        drop(rest);
        drop(self.ended);
    }

    fn run_to_the_end(&mut self) {
        let mut events = Events::with_capacity(16);
        let mut buffer = vec![0; BUFFER];
        let mut actions = VecDeque::new();
        while self.carry_out_all(&mut actions) {
            if let Err(error) = self.sleep(&mut events) {
                let line = format!("a ZooKeeper connection has ended: its sockets cannot be polled: {error}");
                return self.log(Level::Error, &line);
            }
            self.turn(&events, &mut buffer);
        }
    }

    fn sleep(&mut self, events: &mut Events) -> io::Result<()> {
        let until = self.shared.lock().fall_asleep();
        let time = until.map_or(Duration::ZERO, |until| until.since(self.shared.now()));
        match self.poll.poll(events, Some(time.min(MAX_SLEEP))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                events.clear();
                Ok(())
            }
            result => result,
        }
    }

    /// Lets the machine react to what has happened during the sleep.
    fn turn(&mut self, events: &Events, buffer: &mut [u8]) {
        while let Some(answer) = self.authenticator.as_ref().and_then(Authenticator::next_answer) {
            self.take_answer(answer);
        }
        let mut io = self.shared.lock();
        let now = self.shared.now();
        while let Some((server, answer)) = self.resolver.next_answer() {
            io.machine.handle_resolved(now, server, answer);
        }
        io.turn(now, events, buffer);
    }

    fn take_answer(&mut self, answer: Answer) {
        let (server, prepared) = match answer {
            Answer::Prepared(server, prepared) => (server, prepared),
            Answer::NoTicket(server, why) => {
                return self.shared.lock().machine.handle_no_ticket(self.shared.now(), server, &why);
            }
        };
        let (exchange, token) = match prepared {
            Ok(Prepared { exchange, first_token }) => (Some(exchange), Ok(machine::Token(first_token))),
            Err(why) => (None, Err(why)),
        };
        let mut io = self.shared.lock();
        let link = io.machine.handle_token(self.shared.now(), server, token);
        let is_wanted = |link: &LinkId| io.machine.is_wanted(*link);
        let ended: Vec<LinkId> = self.exchanges.keys().copied().filter(|link| !is_wanted(link)).collect();
        // An exchange may belong to the system's library, which is not called while the mutex is held.
        drop(io);
        self.exchanges.retain(|link, _| !ended.contains(link));
        self.exchanges.extend(link.zip(exchange));
    }

    /// Carries out all actions. Returns `false` at the end of the session.
    fn carry_out_all(&mut self, actions: &mut VecDeque<Action<Continuation>>) -> bool {
        loop {
            self.shared.lock().machine.swap_actions(actions);
            if actions.is_empty() {
                return true;
            }
            while let Some(action) = actions.pop_front() {
                if matches!(action, Action::Ended) {
                    return false;
                }
                self.carry_out(action);
            }
            actions.shrink_to(MAX_KEPT_ACTIONS);
        }
    }

    fn carry_out(&mut self, action: Action<Continuation>) {
        match action {
            Action::Resolve(lookup) => self.resolver.resolve(lookup),
            Action::MakeToken { server, host } => {
                if let Some(authenticator) = &self.authenticator {
                    authenticator.prepare(server, host);
                }
            }
            Action::FetchTicket { server, host } => {
                if let Some(authenticator) = &self.authenticator {
                    authenticator.fetch_ahead(server, host);
                }
            }
            Action::Open { link, address, host } => self.open(link, address, &host),
            Action::Challenge { link, token } => self.respond(link, &token.0),
            Action::Tell(event) => self.tell(event),
            Action::Reply(continuation, result) => {
                self.contain("a continuation", || continuation.answered(result));
            }
            Action::FirstContact(outcome) => {
                if let Some(first_contact) = self.first_contact.take() {
                    let _ = first_contact.send(outcome);
                }
            }
            Action::Log(level, line) => self.log(level, &line),
            Action::Ended => {}
        }
    }

    /// Begins to open a transport, unless the machine has given it up. This happens without the mutex, because
    /// `security` may start a thread.
    fn open(&mut self, link: LinkId, address: SocketAddr, host: &str) {
        if !self.shared.lock().machine.is_wanted(link) {
            return;
        }
        let security = self.security(host);
        let opened = security
            .and_then(|security| Transport::connect(address, security, self.poll.registry(), Token(link.0)));
        self.shared.lock().add(self.shared.now(), link, opened);
    }

    #[cfg(feature = "tls")]
    fn security(&mut self, host: &str) -> io::Result<Security> {
        let Some(tls) = &mut self.tls else { return Ok(None) };
        tls.target(host).map(Some).map_err(|error| io::Error::other(error.to_string()))
    }

    #[cfg(not(feature = "tls"))]
    fn security(&mut self, _host: &str) -> io::Result<Security> {
        Ok(Security)
    }

    /// Responds to a server's token. The response is computed without the mutex.
    fn respond(&mut self, link: LinkId, token: &[u8]) {
        if let Some(exchange) = self.exchanges.get_mut(&link) {
            let step = exchange.step(token);
            let mut io = self.shared.lock();
            io.machine.handle_response(self.shared.now(), link, step);
            io.settle();
        }
    }

    fn tell(&self, event: ClientEvent) {
        if let Some(sink) = self.shared.sink_for(&event) {
            self.contain("the receiver of the events", move || sink(event));
        }
    }

    fn contain(&self, what: &str, code: impl FnOnce()) {
        if let Err(message) = panics::contain(code) {
            self.log(Level::Error, &format!("{what} of a ZooKeeper connection panicked: {message}"));
        }
    }

    fn log(&self, level: Level, line: &str) {
        logging::log!(self.log_target, level, "{line}");
    }
}
