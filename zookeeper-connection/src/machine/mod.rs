//! [`Machine`]: one session and its connections, as a pure state machine.
//!
//! Bytes, time and requests go in. Bytes, [actions](Action) and the next [deadline] come out. No
//! I/O, no clock, no thread, and no randomness but a seed: so every behavior under faults can be
//! replayed in a test.
//!
//! # States
//! | phase | transport | waits for | leaves it by |
//! |---|---|---|---|
//! | `Pausing` | none | the time of the next attempt | `Opening` |
//! | `Opening` | being opened | [`opened`](Machine::opened) | `Greeting`, or an attempt has failed |
//! | `Greeting` | open | the answer to the connect request | `Authenticating`, the session is lost, or an attempt has failed |
//! | `Authenticating` | open | the answers to the tokens of SASL, then to the credentials | `Serving`, the session is lost, or an attempt has failed |
//! | `Serving` | open | frames, requests, the next ping | the connection is lost |
//! | `Ended` | none | nothing | |
//!
//! After a failed attempt, or a lost connection, comes the next attempt (`Opening`), at once or
//! after a pause. Rules for the whole:
//! - A request is sent once. If its connection ends before the reply, it fails with
//!   `ConnectionLoss`. A request made without a connection waits for the next one, for at most a
//!   tenth of the session timeout.
//! - Replies come in the order of the requests, pings among them. A reply that is not the one
//!   expected next ends the connection, unless it denies a write: a server may do that at once.
//! - A connection on which nothing is answered for two fifths of the session timeout is left. A
//!   part of a frame counts as an answer only if it is long, 16 KiB.
//! - A server before version 3.5 does not know `create2`, and closes the connection. Then the
//!   session uses `create` from the next connection on.
//! - A session whose credentials are refused is lost, and closed on the next connection.
//! - With SASL, nothing but its tokens is sent before the exchange is complete. A server that ends the exchange
//!   without a proof is left: the session never goes on without its identity. A session that is being closed ends with an
//!   exchange that is not completed, because another attempt would renew it.
//! - A server may refuse this client: by SASL, or because it demands an authentication. Or the client refuses the
//!   server, because it is ClickHouse Keeper. The session is lost when all servers were asked in turn and each
//!   attempt has ended so: at least three, if it was served before.
//! - Each connect request renews the session, and its znodes block others. So a session is lost, too, when servers have
//!   taken it up or refused it for a session timeout, all were asked, and none has answered a request. A lost session is not
//!   presented again.
//! - A write at which the server has closed three connections in a row is not sent any more, if no server
//!   has answered one as long: it may exceed the server's limit, or be unknown to the server.
//! - The first request of a session is a ping, because only its answer shows that the server admits the client; so is the
//!   first one after a connection on which nothing was answered.
//! - [`Event::Disconnected`] comes before the failures that follow from it, and before the next
//!   attempt. [`Event::Connected`] comes before the replies of its connection.
//! - No server serves the session that is behind what the session has seen, in replies or events.
//!   Where events have no numbers, a write goes before the requests on the next connection: a server
//!   answers those behind it when it has taken up everything before.
//! - A server's grant counts from the moment at which it takes the session up. It is reported
//!   before anything that may fail on that connection.
//!
//! [deadline]: Machine::deadline

mod attempts;
mod authentication;
#[cfg(any(test, zk_laws))]
pub mod laws;
mod pacing;
mod service;
#[cfg(test)]
mod tests;
mod traffic;
mod watches;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

pub use self::authentication::SaslStep;
use self::authentication::Stage;
use self::pacing::Pacing;
use self::service::Service;
use self::traffic::{Submitted, Traffic, Unsent};
use self::watches::Watches;
use super::chroot::Chroot;
use super::codec::{Frames, Password};
use super::credential::Credential;
use crate::error::{ZkError, ZkResult};
use crate::time::Moment;
use crate::{Call, Granted, Reply};

/// The configuration of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// The session timeout to ask for. Once a server has opened the session, each is asked for the
    /// shortest that was granted.
    pub session_timeout: Duration,
    /// Presented on every connection before anything else.
    pub credentials: Vec<Credential>,
    /// An exchange by SASL comes before the credentials, on every connection. Its first token is that of
    /// [`Machine::set_first_token`].
    pub sasl: bool,
    /// The longest frame of a server.
    pub max_frame: usize,
    /// The path of a znode that does not exist, and one below it, for the write after a reconnect that changes
    /// nothing.
    pub barrier_paths: [&'static str; 2],
    /// Decides the lengths of the pauses between attempts.
    pub seed: u64,
}

/// An action for the owner of a [`Machine`].
pub enum Action<C> {
    /// Open a transport to the next server. None is open; others may be being opened.
    Open,
    /// Drop the transport, or the attempt to open one.
    Drop,
    /// Hand the response to this token of a server to [`Machine::respond`].
    Challenge(Vec<u8>),
    /// Report what has happened.
    Event(Event),
    /// Hand the outcome of a call to its maker.
    Reply(C, ZkResult<Reply>),
    /// Nothing comes after this.
    Ended,
}

impl<C: fmt::Debug> fmt::Debug for Action<C> {
    /// Without a server's token, with which passwords could be tried.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Open => f.write_str("Open"),
            Action::Drop => f.write_str("Drop"),
            Action::Challenge(_) => f.write_str("Challenge"),
            Action::Event(event) => write!(f, "Event({event:?})"),
            Action::Reply(continuation, result) => write!(f, "Reply({continuation:?}, {result:?})"),
            Action::Ended => f.write_str("Ended"),
        }
    }
}

/// What has happened to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server has taken up the session again and grants this. It does not serve yet: the client
    /// authenticates.
    TakenUp {
        /// See [`Granted::session_timeout`].
        session_timeout: Duration,
    },
    /// A server serves the session, and grants this. The session timeout is the shortest that was
    /// granted since the creation.
    Connected {
        /// What it grants.
        granted: Granted,
        /// The number of the session.
        session_id: i64,
    },
    /// The connection is lost; the session may live.
    Disconnected,
    /// The session cannot come back.
    SessionLost(SessionLoss),
    /// A watch on this path fired.
    NodeChanged {
        /// The path, as the servers have it.
        path: String,
        /// The znode was deleted.
        is_deleted: bool,
    },
    /// The server has answered a ping sent at that moment or later.
    PingAnswered {
        /// That moment.
        sent: Moment,
    },
}

/// Why a session cannot come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLoss {
    /// A server does not know it any more.
    Expired,
    /// A server refuses a credential.
    CredentialsRefused,
    /// The servers refuse the authentication by SASL.
    SaslRefused,
    /// The servers demand an authentication that this client has not presented.
    AuthenticationRequired,
    /// The servers are those of ClickHouse Keeper, which end sessions too early.
    ClickHouseKeeper,
    /// The servers take the session up, and none serves it.
    Unserved,
}

impl SessionLoss {
    /// Returns the reason, for the log and for errors.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            SessionLoss::Expired => "the session has expired",
            SessionLoss::CredentialsRefused => {
                "a server refuses a credential, check its scheme and its content"
            }
            SessionLoss::SaslRefused => {
                "the servers refuse the authentication by SASL; check the user and the password or the ticket, and whether \
                 they use this mechanism: their logs say why"
            }
            SessionLoss::AuthenticationRequired => {
                "the server requires SASL authentication, or another one of its enforce.auth.schemes; present a \
                 credential that it accepts"
            }
            SessionLoss::ClickHouseKeeper => {
                "the server is ClickHouse Keeper, which ends the sessions of a server that is stopped before their \
                 clients notice; use ZooKeeper"
            }
            SessionLoss::Unserved => {
                "the servers have taken the session up for a session timeout, and none has served it"
            }
        }
    }
}

#[derive(Debug)]
enum Phase {
    Pausing { until: Moment },
    Opening { give_up_at: Moment },
    Greeting { give_up_at: Moment },
    Authenticating { granted: Granted, stage: Stage, tokens: u32, give_up_at: Moment },
    Serving(Serving),
    Ended,
}

/// A connection on which a server serves the session.
#[derive(Debug)]
struct Serving {
    since: Moment,
    has_answered: bool,
    /// The time of the last answer, or of the last [`MIN_PROGRESS`] bytes without one.
    last_progress: Moment,
    /// The bytes that have come since.
    unread: usize,
    next_ping: Moment,
}

/// A server makes progress with a long answer as long as this many bytes come in the time in which
/// it would be left for its silence. A link too slow for that cannot carry a listing in time for
/// its reader; and an answer that trickles for ever must not hold a session.
const MIN_PROGRESS: usize = 16 << 10;

/// The identity of the session to a server.
#[derive(Debug, Default)]
struct Identity {
    /// Zero until a server has opened the session.
    id: i64,
    password: Password,
    /// The last transaction that a reply has named. Watches are set again from there on: of an event's
    /// transaction further events may be missing.
    replied_zxid: i64,
    /// The last transaction that a reply or an event has named. No server that is behind it may serve
    /// the session: its application has seen the effects.
    seen_zxid: i64,
    /// An event without a number has come after the last reply. Servers before version 3.9 number none.
    has_seen_more: bool,
}

impl Identity {
    fn replied(&mut self, zxid: i64) {
        self.replied_zxid = self.replied_zxid.max(zxid);
        self.seen_zxid = self.seen_zxid.max(zxid);
        // Some refusals overtake others, and have no number.
        self.has_seen_more &= zxid <= 0;
    }

    fn notified(&mut self, zxid: i64) {
        self.seen_zxid = self.seen_zxid.max(zxid);
        self.has_seen_more |= zxid <= 0;
    }
}

/// See the [module](self). `C` is what a call's maker gets back with its outcome.
pub struct Machine<C> {
    config: Config,
    pacing: Pacing,
    phase: Phase,
    identity: Identity,
    /// Set by [`close`](Machine::close): the time by which the server has ended the session.
    closing_until: Option<Moment>,
    /// The time of the last sign of a server, on any connection.
    last_heard: Moment,
    service: Service,
    /// The first token of the exchange by SASL on the transport that is open next.
    first_token: Option<Vec<u8>>,
    /// The reason for which the last connection was left.
    failure: Option<String>,
    frames: Frames,
    outgoing: Vec<u8>,
    traffic: Traffic<C>,
    watches: Watches,
    actions: VecDeque<Action<C>>,
}

impl<C> fmt::Debug for Machine<C> {
    /// Without the bytes under way, which contain credentials and the session's password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl<C> Machine<C> {
    /// Starts with an attempt to open a transport.
    pub fn new(config: Config, now: Moment) -> Machine<C> {
        let pacing = Pacing::new(config.session_timeout, config.seed);
        let mut machine = Machine {
            phase: Phase::Ended,
            identity: Identity::default(),
            closing_until: None,
            last_heard: now,
            service: Service::new(),
            first_token: None,
            failure: None,
            frames: Frames::new(config.max_frame),
            outgoing: Vec::new(),
            traffic: Traffic::default(),
            watches: Watches::default(),
            actions: VecDeque::new(),
            pacing,
            config,
        };
        machine.open(now);
        machine
    }

    // ---- inputs

    /// Sends a call, whose paths are in the chroot, on the next connection if there is none at present. Of a
    /// `CreateAndList` it sends the creation.
    ///
    /// # Errors
    /// Returns the continuation if the session has ended, or is being closed.
    pub fn submit(&mut self, now: Moment, call: Call, chroot: &Chroot, continuation: C) -> Result<(), C> {
        if self.closing_until.is_some() || matches!(self.phase, Phase::Ended) {
            return Err(continuation);
        }
        if self.traffic.is_unknown(&call) {
            self.actions.push_back(Action::Reply(continuation, Err(ZkError::Unimplemented)));
            return Ok(());
        }
        if let Some(error) = self.traffic.ends_connection(&call, chroot) {
            self.actions.push_back(Action::Reply(continuation, Err(error)));
            return Ok(());
        }
        let submitted = Submitted { call, chroot: chroot.clone(), continuation };
        match self.phase {
            Phase::Serving(_) => self.traffic.send(submitted, &mut self.outgoing),
            _ => self.traffic.keep(submitted, now),
        }
        Ok(())
    }

    /// Removes the watches on a path, which begins at the root of the servers, if there are any.
    pub fn remove_watches(&mut self, path: &str) {
        if self.closing_until.is_some() || !self.watches.remove(path) {
            return;
        }
        // Those of a lost connection are gone.
        if matches!(self.phase, Phase::Serving(_)) {
            self.traffic.send_removal(path, &mut self.outgoing);
        }
    }

    /// The addresses to which [`Action::Open`] leads, one after the other, have changed: now there are so many.
    /// `are_all` if each server of the list has one.
    pub fn set_addresses(&mut self, count: usize, are_all: bool) {
        self.pacing.set_addresses(count);
        // Its transport is still to be opened.
        let is_to_known = self.actions.iter().any(|action| matches!(action, Action::Open));
        self.service.addresses_changed(are_all, is_to_known);
    }

    /// The transport to another address is being opened beside those that [`Action::Open`] has led to so
    /// far. They count as failed attempts, although one of them may still be the first to open.
    pub fn opening_another(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Opening { .. }) {
            self.pacing.another_attempt();
            self.service.count_refusals_anew();
            self.phase = Phase::Opening { give_up_at: now.after(self.pacing.opening_time()) };
        }
    }

    /// Returns the end of the session, if a server has refused it and none has served it since.
    pub fn refusal(&self) -> Option<SessionLoss> {
        self.service.refusal()
    }

    /// The transport that [`Action::Open`] asked for is open.
    pub fn opened(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Opening { .. }) {
            self.greet(now);
        }
    }

    /// The transport could not be opened, or has ended.
    pub fn failed(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Serving(_)) {
            self.traffic.connection_closed();
        }
        self.transport_gone(now);
    }

    /// Takes the next bytes of the transport.
    pub fn received(&mut self, now: Moment, bytes: &[u8]) {
        if !self.has_transport() {
            return;
        }
        if let Phase::Serving(serving) = &mut self.phase {
            serving.received(now, bytes.len());
        }
        self.frames.push(bytes);
        self.read_frames(now);
    }

    /// To be called when the [deadline](Machine::deadline) has passed.
    pub fn timer(&mut self, now: Moment) {
        if self.closing_until.is_some_and(|until| until <= now) {
            return self.end();
        }
        self.fail_stale(now);
        match self.phase {
            Phase::Pausing { until } if until <= now => self.open(now),
            Phase::Opening { give_up_at }
            | Phase::Greeting { give_up_at }
            | Phase::Authenticating { give_up_at, .. }
                if give_up_at <= now =>
            {
                self.pacing.time_was_short();
                self.drop_transport(now);
            }
            Phase::Serving(ref serving) if serving.silent_at(&self.pacing) <= now => self.drop_transport(now),
            Phase::Serving(_) => self.ping(now),
            _ => {}
        }
    }

    /// Closes the session at the server, if one is reached before it has ended the session by
    /// itself. No event comes any more.
    pub fn close(&mut self, now: Moment) {
        if self.closing_until.is_some() || matches!(self.phase, Phase::Ended) {
            return;
        }
        self.actions.retain(|action| !matches!(action, Action::Event(_)));
        self.begin_close(now);
        match self.phase {
            Phase::Serving(_) => self.traffic.send_close(&mut self.outgoing),
            _ if self.identity.id == 0 && !matches!(self.phase, Phase::Greeting { .. }) => self.end(),
            _ => {}
        }
    }

    // ---- outputs

    /// Takes the next action.
    pub fn next_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    /// Returns whether there is an action to take.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// The bytes for the transport. Its owner removes those that it has written.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Returns when [`timer`](Machine::timer) is to be called.
    pub fn deadline(&self) -> Option<Moment> {
        let of_phase = match &self.phase {
            Phase::Pausing { until } => Some(*until),
            Phase::Opening { give_up_at }
            | Phase::Greeting { give_up_at }
            | Phase::Authenticating { give_up_at, .. } => Some(*give_up_at),
            Phase::Serving(serving) => Some(serving.next_ping.min(serving.silent_at(&self.pacing))),
            Phase::Ended => return None,
        };
        let of_unsent = self.traffic.oldest_unsent().map(|kept_at| kept_at.after(self.pacing.max_wait()));
        [of_phase, of_unsent, self.closing_until].into_iter().flatten().min()
    }

    // ---- the end

    fn has_transport(&self) -> bool {
        !matches!(self.phase, Phase::Pausing { .. } | Phase::Ended)
    }

    fn post(&mut self, event: Event) {
        if self.closing_until.is_none() {
            self.actions.push_back(Action::Event(event));
        }
    }

    fn begin_close(&mut self, now: Moment) {
        self.closing_until = Some(self.last_heard.after(self.pacing.session_timeout).max(now));
        self.fail_unsent(ZkError::SessionExpired);
    }

    /// The session is lost, but the server keeps it, and with it its locks. The connection takes no
    /// more requests. So the session is closed on the next one, without the credentials.
    fn credentials_refused(&mut self, now: Moment) {
        self.config.credentials.clear();
        if self.closing_until.is_none() {
            self.post(Event::SessionLost(SessionLoss::CredentialsRefused));
            self.begin_close(now);
        }
    }

    /// The server and this client do not fit together. Another server may be configured otherwise.
    fn refused(&mut self, now: Moment, loss: SessionLoss) {
        if self.closing_until.is_some() {
            // It refuses to close the session, too, and each attempt would renew it.
            return self.end();
        }
        self.failure = Some(loss.reason().to_owned());
        self.service.refused(now, loss);
    }

    fn lose_session(&mut self, loss: SessionLoss) {
        self.post(Event::SessionLost(loss));
        self.end();
    }

    fn end(&mut self) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let had_transport = self.has_transport();
        self.phase = Phase::Ended;
        self.outgoing.clear();
        for continuation in self.traffic.take_sent() {
            self.actions.push_back(Action::Reply(continuation, Err(ZkError::ConnectionLoss)));
        }
        self.fail_unsent(ZkError::SessionExpired);
        if had_transport {
            self.actions.push_back(Action::Drop);
        }
        self.actions.push_back(Action::Ended);
    }

    /// Requests wait for a connection for a limited time.
    fn fail_stale(&mut self, now: Moment) {
        let wait = self.pacing.max_wait();
        while let Some(Unsent { submitted, .. }) = self.traffic.take_stale(wait, now) {
            self.actions.push_back(Action::Reply(submitted.continuation, Err(ZkError::ConnectionLoss)));
        }
    }

    fn fail_unsent(&mut self, error: ZkError) {
        for Unsent { submitted, .. } in self.traffic.unsent.drain(..) {
            self.actions.push_back(Action::Reply(submitted.continuation, Err(error)));
        }
    }
}

impl Serving {
    fn received(&mut self, now: Moment, bytes: usize) {
        self.unread += bytes;
        if self.unread >= MIN_PROGRESS {
            self.has_answered = true;
            self.progressed(now);
        }
    }

    /// The server has answered what was owed longest, or goes on with a long answer.
    fn progressed(&mut self, now: Moment) {
        (self.last_progress, self.unread) = (now, 0);
    }

    fn silent_at(&self, pacing: &Pacing) -> Moment {
        self.last_progress.after(pacing.max_silence())
    }
}
