//! [`Search`]: the attempts to reach a server.
//!
//! If an address does not answer at once, the next one is tried beside it. The first transport to open is used, and the
//! others are closed, because only one server at a time may be asked to serve the session. If the client uses SASL, an
//! attempt begins with the first token for the server, which may need a ticket. A key distribution center that does not
//! answer must not hold up the servers whose tickets are known.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::servers::{Destination, NextServer, Servers};
use super::{Action, LinkId, Machine, SessionLoss, Token};
use crate::memory::Trouble;
use crate::time::Moment;

/// If an address does not answer within this fraction of the session timeout, the next one is tried beside it. The
/// maximum is taken from RFC 8305.
const OVERLAP_DIVISOR: u32 = 40;
const MAX_OVERLAP: Duration = Duration::from_millis(250);

/// The outcome of an attempt that was given up before its first SASL token was made.
const NO_TOKEN: &str = "no ticket for the server in time; the KDC may not answer";

pub(super) struct Search {
    pub(super) servers: Servers,
    uses_sasl: bool,
    attempts: Vec<Attempt>,
    /// The addresses for which a first token is being made. Once the token is ready, a transport is opened.
    waiting: Vec<Destination>,
    /// The servers for which a token is being made, each with the number of the search that has asked for it.
    pub(super) asked: HashMap<usize, u64>,
    /// Increases whenever all attempts are given up.
    number: u64,
    /// The addresses of servers to which a connection has failed because a certificate was refused.
    refusing: Vec<SocketAddr>,
    /// When to try another address beside the present attempts.
    opens_another: Option<Moment>,
    /// `Some` while the search waits for a name to be resolved. The moment, if there is one, ends this wait.
    waits_for_name: Option<Option<Moment>>,
}

/// A transport that is being opened.
pub(super) struct Attempt {
    link: LinkId,
    pub(super) target: Destination,
    pub(super) first_token: Option<Token>,
}

impl Search {
    pub(super) fn new(servers: Servers, uses_sasl: bool) -> Search {
        Search {
            servers,
            uses_sasl,
            attempts: Vec::new(),
            waiting: Vec::new(),
            asked: HashMap::new(),
            number: 0,
            refusing: Vec::new(),
            opens_another: None,
            waits_for_name: None,
        }
    }

    /// Returns when [`try_next`](Machine::try_next) must be called.
    pub(super) fn deadline(&self) -> Option<Moment> {
        [self.waits_for_name.flatten(), self.opens_another].into_iter().flatten().min()
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Returns whether any address is being tried.
    fn is_under_way(&self) -> bool {
        !self.attempts.is_empty() || !self.waiting.is_empty()
    }

    pub(super) fn is_opening(&self, link: LinkId) -> bool {
        self.attempts.iter().any(|attempt| attempt.link == link)
    }

    /// Removes and returns the attempt on this transport, which has opened or failed.
    pub(super) fn take_opened(&mut self, link: LinkId) -> Option<Attempt> {
        let position = self.attempts.iter().position(|attempt| attempt.link == link)?;
        Some(self.attempts.remove(position))
    }

    /// Tries no address until the session asks for it.
    pub(super) fn pause(&mut self) {
        self.opens_another = None;
    }

    fn next_server(&mut self, now: Moment) -> NextServer {
        if !self.is_under_way() {
            return self.servers.next(now);
        }
        // A new round would try the same addresses a second time.
        self.servers.next_beside().map_or(NextServer::Nothing, NextServer::Try)
    }

    fn try_another_after(&mut self, now: Moment, pause: Duration) {
        self.opens_another = self.servers.has_more().then(|| now.after(pause));
    }

    fn take_waiting(&mut self, server: usize) -> Option<Destination> {
        let position = self.waiting.iter().position(|target| target.server == server)?;
        Some(self.waiting.swap_remove(position))
    }

    fn is_waiting(&self, server: usize) -> bool {
        self.waiting.iter().any(|target| target.server == server)
    }

    /// Notes whether the certificate of this address was refused. Returns whether this is now true of each address.
    fn note_certificate(&mut self, target: Destination, is_refused: bool) -> bool {
        self.refusing.retain(|address| *address != target.address);
        if !is_refused {
            return false;
        }
        self.refusing.push(target.address);
        let mut addresses = self.servers.addresses();
        !self.servers.misses_addresses() && addresses.all(|address| self.refusing.contains(address))
    }
}

/// Returns how long an address that does not answer is tried alone, and how long a round waits for the name service if
/// it knows any address. The name service of a healthy site answers within a few milliseconds. One that hangs must not
/// cost an owner its lease.
pub(super) fn overlap(session_timeout: Duration) -> Duration {
    (session_timeout / OVERLAP_DIVISOR).min(MAX_OVERLAP)
}

impl<C> Machine<C> {
    /// Tries the next address, beside those that are being tried already. Does nothing if a transport is in use.
    pub(super) fn try_next(&mut self, now: Moment) {
        self.search.waits_for_name = None;
        self.search.opens_another = None;
        if self.link.is_some() {
            return;
        }
        let is_first = !self.search.is_under_way();
        let next = self.search.next_server(now);
        let lookups = std::iter::from_fn(|| self.search.servers.next_lookup());
        self.actions.extend(lookups.map(Action::Resolve));
        match next {
            NextServer::Try(target) => self.try_address(now, target),
            NextServer::Wait(until) => self.search.waits_for_name = Some(until),
            NextServer::Nothing if is_first => self.fail(now),
            NextServer::Nothing => {}
        }
    }

    /// Continues the search after an answer of the name service.
    pub(super) fn continue_search(&mut self, now: Moment) {
        if self.search.waits_for_name.is_some() {
            self.try_next(now);
        } else if self.search.is_under_way() && self.search.opens_another.is_none() {
            self.search.try_another_after(now, overlap(self.status.granted.session_timeout));
        }
    }

    fn try_address(&mut self, now: Moment, target: Destination) {
        if self.search.is_under_way() {
            self.session.opening_another(now);
        }
        self.search.try_another_after(now, overlap(self.status.granted.session_timeout));
        if self.search.uses_sasl {
            self.search.waiting.push(target);
            self.ask_for_token(now, target.server);
        } else {
            self.open(target, None);
        }
    }

    fn open(&mut self, target: Destination, first_token: Option<Token>) -> LinkId {
        let link = self.next_link();
        self.search.attempts.push(Attempt { link, target, first_token });
        self.ask_to_open(link, target);
        link
    }

    pub(super) fn ask_to_open(&mut self, link: LinkId, target: Destination) {
        let host = self.search.servers.host(target.server).to_owned();
        self.actions.push_back(Action::Open { link, address: target.address, host });
    }

    /// Asks for the first token for a server. Each of the server's addresses needs its own token. If an earlier search
    /// still waits for its token, the KDC is silent, and this one would wait in vain.
    fn ask_for_token(&mut self, now: Moment, server: usize) {
        match self.search.asked.get(&server) {
            None => {
                self.search.asked.insert(server, self.search.number);
                let host = self.search.servers.host(server).to_owned();
                self.actions.push_back(Action::MakeToken { server, host });
            }
            Some(number) if *number == self.search.number => {}
            Some(_) => {
                while let Some(target) = self.search.take_waiting(server) {
                    self.attempt_failed(now, target, NO_TOKEN.to_owned());
                }
            }
        }
    }

    /// See [`handle_token`](Machine::handle_token).
    pub(super) fn take_token(
        &mut self,
        now: Moment,
        server: usize,
        token: Result<Token, String>,
    ) -> Option<LinkId> {
        self.search.asked.remove(&server);
        let target = self.search.take_waiting(server)?;
        let link = match token {
            Ok(token) => Some(self.open(target, Some(token))),
            Err(why) => {
                self.attempt_failed(now, target, why);
                None
            }
        };
        if self.search.is_waiting(server) {
            self.ask_for_token(now, server);
        }
        link
    }

    /// Records that an address could not be reached. Reports a failure to the session if no other address is being
    /// tried.
    pub(super) fn attempt_failed(&mut self, now: Moment, target: Destination, why: String) {
        self.search.servers.record_failure(target, why);
        self.search.servers.record_trouble(target, Trouble::Refusing);
        match self.search.is_under_way() {
            true => self.search.try_another_after(now, Duration::ZERO),
            false => self.fail(now),
        }
    }

    /// Gives all attempts up, for a reason and with a verdict on their addresses, or because another transport has
    /// opened.
    pub(super) fn close_attempts(&mut self, failure: Option<(&str, Option<Trouble>)>) {
        self.search.number += 1;
        self.search.waits_for_name = None;
        self.search.opens_another = None;
        let waiting = std::mem::take(&mut self.search.waiting).into_iter();
        let mut given_up: Vec<_> = waiting.map(|target| (target, NO_TOKEN)).collect();
        for attempt in self.search.attempts.drain(..) {
            self.closes.push_back(attempt.link);
            given_up.push((attempt.target, failure.map_or("", |(why, _)| why)));
        }
        for (target, why) in given_up {
            let Some((_, trouble)) = failure else {
                self.search.servers.put_back(target);
                continue;
            };
            self.search.servers.record_failure(target, why.to_owned());
            if let Some(trouble) = trouble {
                self.search.servers.record_trouble(target, trouble);
            }
        }
    }

    /// Notes whether a connection has failed because a certificate was refused. Once this is true of each server, no
    /// attempt can succeed. A session that a server has accepted before is not given up, because the files may be renewed
    /// while it lives.
    pub(super) fn note_certificate(&mut self, target: Destination, is_refused: bool) {
        if self.search.note_certificate(target, is_refused) {
            self.session.give_up_opening(SessionLoss::CertificateRefused);
        }
    }

    /// Reports the number of addresses to the session, which pauses after that many failed attempts. The report also
    /// makes the session count refusals from zero again.
    pub(super) fn count_addresses(&mut self) {
        let servers = &self.search.servers;
        self.session.set_addresses(servers.address_count(), !servers.misses_addresses());
    }
}
