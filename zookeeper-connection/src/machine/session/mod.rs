//! One session and its connections, as a state machine without I/O.
//!
//! The primary type in this module is [`Session`], a part of the [machine](super). Bytes, time and requests go in. Bytes, [actions](Action) and the
//! next [deadline] come out. There is no I/O, no clock, no thread, and no randomness except a seed, so the machine's
//! behavior under any fault can be replayed in a test.
//!
//! # States
//! | phase | transport | waits for | ends with |
//! |---|---|---|---|
//! | `Pausing` | none | the time of the next attempt | `Opening` |
//! | `Opening` | being opened | [`opened`](Session::opened) | `Greeting`, or a failed attempt |
//! | `Greeting` | open | the answer to the connect request | `Authenticating` or `Serving`, the loss of the session, or a failed attempt |
//! | `Authenticating` | open | answers to SASL tokens, then to credentials | `Serving`, the loss of the session, or a failed attempt |
//! | `Serving` | open | frames, requests, the next ping | the loss of the session or of the connection |
//! | `Ended` | none | nothing | |
//!
//! After a failed attempt or a lost connection, the next attempt (`Opening`) follows at once or after a pause. The loss
//! of the session leads to `Ended`, and so does a close in any phase.
//!
//! # Rules
//! - A request is sent at most once. If its connection ends before the reply, the request fails with `ConnectionLoss`. A
//!   request that is made without a connection waits for the next connection, for at most a tenth of the session
//!   timeout.
//! - Replies come in the order of the requests, including pings. An unexpected reply ends the connection, unless it
//!   denies a write: a server may send a denial ahead of earlier replies.
//! - If nothing is answered on a connection for two fifths of the session timeout, the machine abandons the connection.
//!   A part of a frame counts as an answer only if it is at least 16 KiB long.
//! - A server before version 3.5 closes the connection when it receives a `create2`, which it does not know. From the
//!   next connection on, the session uses `create` instead, except within a transaction.
//! - If a server refuses a credential, the session is reported as lost at once. The machine closes the session on the
//!   next connection.
//! - With SASL, only tokens are sent before the exchange is complete. If a server ends the exchange without
//!   authenticating itself, the machine abandons the connection: it never uses a session that lacks the client's
//!   identity. If the exchange fails while the session is being closed, the machine ends, because another attempt would
//!   renew the session.
//! - A server may refuse the client, either in the SASL exchange or because the server requires authentication. The
//!   client itself refuses ClickHouse Keeper. The session is lost once all servers have been tried in turn and every
//!   attempt has ended in a refusal. A session that was served before is lost only after at least three refusals.
//! - Each connect request renews the session, whose znodes block other clients. So the session is also lost if, for a
//!   whole session timeout, servers only resume or refuse the session and none answers a request, provided that all
//!   servers have been tried. This does not apply before the first answer or refusal: the session has no znodes then.
//!   The client never presents a lost session again, except to close it after a refused credential.
//! - A server that does not know the session has ended it, so the session is lost at once, if the server is at a
//!   current address. At a former address of a server, there may be another ensemble by now. What is said there only
//!   ends the attempt. The session is then lost when a server at a current address does not know it either, or when no
//!   server has been heard from for a session timeout: by then, the servers have probably ended it.
//! - If servers close three connections in a row while a write of the same kind and length is unanswered, the machine
//!   stops sending writes of that kind that are at least as long: they may be too long for the servers, or unknown to
//!   them. Intervening attempts in which no server serves the session do not count. This does not apply if a server has
//!   ever answered such a write. It never applies to deletions, nor to a `setData` or a `create` (as opposed to a
//!   `create2`) of at most 4 KiB.
//! - A new session is pinged at once, because only an answer shows that the server admits the client. A session whose
//!   last connection ended without any answer, or in a refusal, is also pinged at once.
//! - [`Event::Disconnected`] comes before the failures that follow from it, and before the next attempt.
//!   [`Event::Connected`] comes before the replies of its connection.
//! - A server that lags behind what the session has seen, in replies or events, must not serve the session. If an
//!   event without a transaction number has arrived since the last reply, the machine sends a write on the next
//!   connection, ahead of all calls. The server answers the calls only after it has applied everything before that
//!   write.
//! - A server's grant counts from the moment at which the server resumes the session. The grant is reported before
//!   anything that may fail on that connection.
//!
//! [deadline]: Session::deadline

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

pub(crate) use self::attempts::UNKNOWN_AT_FORMER_ADDRESS;
pub use self::authentication::SaslStep;
use self::authentication::Stage;
use self::pacing::Pacing;
use self::service::Service;
use self::traffic::{Submitted, Traffic, Unsent};
use self::watches::Watches;
use crate::chroot::Chroot;
use crate::codec::{Frames, Password};
use crate::credential::Credential;
use crate::error::{ZkError, ZkResult};
use crate::time::Moment;
use crate::{Call, ConnectionOptions, Granted, Reply};

/// The configuration of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// The session timeout to request.
    ///
    /// Once a server has opened the session, the machine requests the shortest timeout that was granted so far.
    pub session_timeout: Duration,
    /// The credentials to present on every connection before any call.
    pub credentials: Vec<Credential>,
    /// Whether a SASL exchange comes before the credentials on every connection.
    ///
    /// [`Session::set_first_token`] sets the first token.
    pub sasl: bool,
    /// The prefix of the paths that the application does not see.
    pub chroot: Chroot,
    /// The length of the longest frame to accept from a server, in bytes.
    pub max_frame: usize,
    /// The servers' `jute.maxbuffer`, which a request that sets watches again must not exceed.
    pub jute_max_buffer: usize,
    /// The path of a znode that does not exist, and a path below it.
    ///
    /// After a reconnect, the machine may send a write to one of these paths. The write changes nothing.
    pub barrier_paths: [&'static str; 2],
    /// The seed of the pauses between attempts.
    pub seed: u64,
}

impl Config {
    pub(crate) fn new(options: &ConnectionOptions, sasl: bool, chroot: Chroot, seed: u64) -> Config {
        Config {
            session_timeout: options.requested_timeout(),
            credentials: options.credentials.clone(),
            sasl,
            chroot,
            max_frame: options.max_frame,
            jute_max_buffer: options.jute_max_buffer,
            barrier_paths: options.barrier_paths,
            seed,
        }
    }
}

/// An action for the owner of a [`Session`].
pub enum Action<C> {
    /// Open a transport to the next server. The machine has no transport, and none is being opened.
    ///
    /// If the opening takes long, the owner may open another transport in parallel: see [`Session::opening_another`].
    Open,
    /// Drop the transport, or the attempt to open one.
    Drop,
    /// Compute the response to this token of a server, and pass it to [`Session::respond`].
    Challenge(Vec<u8>),
    /// Report this event.
    Event(Event),
    /// Pass the outcome of a call to the caller.
    Reply(C, ZkResult<Reply>),
    /// The machine has ended. No action follows.
    Ended,
}

impl<C: fmt::Debug> fmt::Debug for Action<C> {
    /// Writes no tokens, because they would help an attacker guess passwords.
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

/// An event on the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server has resumed the session, but does not serve it yet: the client must authenticate first.
    TakenUp {
        /// See [`Granted::session_timeout`].
        session_timeout: Duration,
    },
    /// A server serves the session.
    Connected {
        /// The grant, with the shortest session timeout since the creation of the session.
        granted: Granted,
        /// The id of the session.
        session_id: i64,
    },
    /// The connection is lost, but the session may still be alive.
    Disconnected,
    /// The session cannot come back.
    SessionLost(SessionLoss),
    /// A watch on this path has fired.
    NodeChanged {
        /// The path as the application sees it, without the chroot.
        path: String,
        /// Whether the znode was deleted.
        is_deleted: bool,
    },
    /// The server has answered a ping.
    PingAnswered {
        /// The ping was sent at this moment or later.
        sent: Moment,
    },
}

/// Why a session cannot come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionLoss {
    /// A server no longer knows the session.
    Expired,
    /// A server refuses a credential.
    CredentialsRefused,
    /// The servers refuse the SASL authentication, or have not authenticated themselves.
    SaslRefused,
    /// The servers require authentication that this client has not provided.
    AuthenticationRequired,
    /// At each server, one side refuses the certificate of the other, or the server wants one.
    CertificateRefused,
    /// The servers are ClickHouse Keeper, which ends sessions too early.
    ClickHouseKeeper,
    /// The servers resume the session, but none serves it.
    Unserved,
}

impl SessionLoss {
    /// Returns the reason, for the log and for errors.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            SessionLoss::Expired => "the session has expired",
            SessionLoss::CredentialsRefused => {
                "a server refuses a credential; check the credential's scheme and content"
            }
            SessionLoss::SaslRefused => {
                "the servers refuse the SASL authentication; check the user and the password or the ticket, and whether the \
                 servers support this mechanism; the servers' logs say why"
            }
            SessionLoss::AuthenticationRequired => {
                "the server requires SASL authentication, or another of its enforce.auth.schemes; present a credential that \
                 it accepts"
            }
            SessionLoss::CertificateRefused => "a certificate was refused at each server",
            SessionLoss::ClickHouseKeeper => {
                "the servers are ClickHouse Keeper: when one of them stops, its sessions end before their clients \
                 notice; use ZooKeeper"
            }
            SessionLoss::Unserved => {
                "for a whole session timeout, servers have resumed the session, but none has served it"
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
    /// The time of the last answer, or of the last [`MIN_PROGRESS`] bytes that came without one.
    last_progress: Moment,
    /// The number of bytes received since `last_progress`.
    unread: usize,
    next_ping: Moment,
}

/// A server that is sending a long answer makes progress if this many bytes arrive before it would count as silent. A
/// slower link could not deliver a listing in time anyway, and an answer that trickles in forever must not block a
/// session.
const MIN_PROGRESS: usize = 16 << 10;

/// What identifies the session to a server.
#[derive(Debug, Default)]
struct Identity {
    /// Zero until a server has opened the session.
    id: i64,
    password: Password,
    /// The last transaction that a reply has named, apart from the replies to pings and `SetWatches`. When watches are
    /// set again, servers report the changes after that transaction. The transaction of an event must not be used for
    /// this, because further events of the same transaction may be missing.
    replied_zxid: i64,
    /// The last transaction that an event or one of these replies has named. A server that has not applied this
    /// transaction must not serve the session, because the application has seen the transaction's effects.
    seen_zxid: i64,
    /// Whether an event without a transaction number has arrived since the last reply. Servers before version 3.9 do
    /// not number events.
    has_seen_more: bool,
}

impl Identity {
    fn replied(&mut self, zxid: i64) {
        self.replied_zxid = self.replied_zxid.max(zxid);
        self.seen_zxid = self.seen_zxid.max(zxid);
        // Some refusals overtake other replies. Such refusals have no transaction number, so they do not count.
        self.has_seen_more &= zxid <= 0;
    }

    fn notified(&mut self, zxid: i64) {
        self.seen_zxid = self.seen_zxid.max(zxid);
        self.has_seen_more |= zxid <= 0;
    }
}

/// The state machine of one session.
///
/// See the [module](self). `C` is the continuation that the caller gets back with the outcome of a call.
pub struct Session<C> {
    config: Config,
    pacing: Pacing,
    phase: Phase,
    identity: Identity,
    /// When the machine gives up closing the session; `Some` while the session is being closed. By that time, no server
    /// has been heard from for a session timeout, so the servers have probably ended the session on their own. A
    /// handshake that was under way when the close began has also ended by then.
    closing_until: Option<Moment>,
    /// When a server last opened or resumed the session, or sent a frame while it served the session. At first, the
    /// time at which the machine was created.
    last_heard: Moment,
    /// Whether the server of the current attempt is at a current address.
    is_current: bool,
    /// When the session counts as expired, because a server at a former address does not know it, and no server has
    /// resumed it since.
    expires_at: Option<Moment>,
    service: Service,
    /// The first token of the SASL exchange on the next open transport.
    first_token: Option<Vec<u8>>,
    /// The reason why the last connection was abandoned.
    failure: Option<String>,
    frames: Frames,
    outgoing: Vec<u8>,
    traffic: Traffic<C>,
    watches: Watches,
    actions: VecDeque<Action<C>>,
}

impl<C> fmt::Debug for Session<C> {
    /// Writes no buffered bytes, because they contain credentials and the session's password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl<C> Session<C> {
    /// Creates a machine. Its first action is to open a transport.
    pub fn new(config: Config, now: Moment) -> Session<C> {
        let pacing = Pacing::new(config.session_timeout, config.seed);
        let mut session = Session {
            phase: Phase::Ended,
            identity: Identity::default(),
            closing_until: None,
            last_heard: now,
            is_current: true,
            expires_at: None,
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
        session.open(now);
        session
    }

    // ---- inputs

    /// Sends a call, or keeps it for the next connection. A call that would end the connection fails at once.
    ///
    /// The paths of the call are relative to the chroot. For a `CreateAndList`, only the create is sent.
    ///
    /// # Errors
    /// Returns the continuation if the session has ended, or is being closed.
    pub fn submit(&mut self, now: Moment, call: Call, continuation: C) -> Result<(), C> {
        let chroot = self.config.chroot.clone();
        self.submit_below(chroot, now, call, continuation)
    }

    /// Like [`submit`](Session::submit), but the paths of the call are relative to the servers' root.
    ///
    /// # Errors
    /// The same as for `submit`.
    pub fn submit_at_root(&mut self, now: Moment, call: Call, continuation: C) -> Result<(), C> {
        self.submit_below(Chroot::default(), now, call, continuation)
    }

    fn submit_below(&mut self, chroot: Chroot, now: Moment, call: Call, continuation: C) -> Result<(), C> {
        if self.closing_until.is_some() || matches!(self.phase, Phase::Ended) {
            return Err(continuation);
        }
        if self.traffic.is_unknown(&call) {
            self.actions.push_back(Action::Reply(continuation, Err(ZkError::Unimplemented)));
            return Ok(());
        }
        if let Some(error) = self.traffic.ends_connection(now, &call, &chroot) {
            self.actions.push_back(Action::Reply(continuation, Err(error)));
            return Ok(());
        }
        let submitted = Submitted { call, chroot, continuation };
        match self.phase {
            Phase::Serving(_) => self.traffic.send(submitted, &mut self.outgoing),
            _ => self.traffic.keep(submitted, now),
        }
        Ok(())
    }

    /// Removes the watches on a path, if there are any. Does nothing while the session is being closed.
    pub fn remove_watches(&mut self, path: &str) {
        let path = self.config.chroot.full(path);
        if self.closing_until.is_some() || !self.watches.remove(&path) {
            return;
        }
        // Without a connection, the server has no watches of this session.
        if matches!(self.phase, Phase::Serving(_)) {
            self.traffic.send_removal(&path, &mut self.outgoing);
        }
    }

    /// Notes that the set of addresses that [`Action::Open`] tries in turn has changed.
    ///
    /// `count` is the new number of addresses. `are_all` says whether every server in the list has an address.
    pub fn set_addresses(&mut self, count: usize, are_all: bool) {
        self.pacing.set_addresses(count);
        // The present attempt will use the new addresses if its `Open` action has not been taken yet. So will the
        // attempt after a pause.
        let is_to_known = matches!(self.phase, Phase::Pausing { .. })
            || self.actions.iter().any(|action| matches!(action, Action::Open));
        self.service.addresses_changed(are_all, is_to_known);
    }

    /// Notes that a transport to another address is being opened in parallel.
    ///
    /// The earlier attempts count as failed, although one of them may still be the first to open.
    pub fn opening_another(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Opening { .. }) {
            self.pacing.another_attempt();
            self.service.count_refusals_anew();
            self.phase = Phase::Opening { give_up_at: now.after(self.pacing.opening_time()) };
        }
    }

    /// Notes whether the transport leads to a current address of a server.
    ///
    /// If it does not, the server may belong to another ensemble, which does not know the session. Call this before
    /// [`opened`](Session::opened), and when the answer changes. Unless it is called, each address counts as current.
    pub fn set_current(&mut self, is_current: bool) {
        self.is_current = is_current;
    }

    /// Returns why the session would be lost if the servers went on refusing it.
    ///
    /// Returns `None` unless a server has refused the session and none has answered a request since.
    pub fn refusal(&self) -> Option<SessionLoss> {
        self.service.refusal()
    }

    /// Handles the opening of the transport that [`Action::Open`] requested.
    pub fn opened(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Opening { .. }) {
            self.greet(now);
        }
    }

    /// Handles the end of the transport, or the failure to open it.
    pub fn failed(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Serving(_)) {
            self.traffic.connection_closed(now, self.pacing.session_timeout());
        }
        self.transport_gone(now);
    }

    /// Gives the session up because none of the servers can be used. Does nothing if a server has accepted the session
    /// before.
    pub fn give_up_opening(&mut self, loss: SessionLoss) {
        if self.identity.id == 0 && !matches!(self.phase, Phase::Ended) {
            self.lose_session(loss);
        }
    }

    /// Handles the next bytes from the transport.
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

    /// Does what is due. Call this when the [deadline](Session::deadline) has passed.
    pub fn timer(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        if self.closing_until.is_some_and(|until| until <= now) {
            return self.end();
        }
        if self.expires_at.is_some_and(|at| at <= now) {
            return self.lose_session(SessionLoss::Expired);
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

    /// Closes the session, if a server can be reached before the session expires. No event follows.
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

    /// Takes the next action, if there is one.
    pub fn next_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    /// Returns whether there is an action to take.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Returns whether [`Action::Ended`] is the next action.
    ///
    /// An [`Action::Drop`] right before it follows from the end of the session, and says nothing about the server.
    #[must_use]
    pub fn ends_now(&self) -> bool {
        matches!(self.actions.front(), Some(Action::Ended))
    }

    /// Returns the bytes for the transport. The caller removes the bytes that it has written.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Returns when [`timer`](Session::timer) must be called. `None` once the machine has ended.
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
        [of_phase, of_unsent, self.closing_until, self.expires_at].into_iter().flatten().min()
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
        let least = match self.phase {
            // The server may be opening or resuming the session at this moment.
            Phase::Greeting { give_up_at } => give_up_at,
            _ => now,
        };
        self.closing_until = Some(self.last_heard.after(self.pacing.session_timeout()).max(least));
        self.fail_unsent(ZkError::SessionExpired);
    }

    /// Handles refused credentials. The session is lost to the client, but the server keeps the session and its locks,
    /// and handles no more requests on this connection. So the session is closed on the next connection, without
    /// presenting the credentials.
    fn credentials_refused(&mut self, now: Moment) {
        self.config.credentials.clear();
        if self.closing_until.is_none() {
            self.post(Event::SessionLost(SessionLoss::CredentialsRefused));
            self.begin_close(now);
        }
    }

    /// Notes that the server refuses this client, or the client refuses the server. Another server may be configured
    /// differently.
    fn refused(&mut self, now: Moment, loss: SessionLoss) {
        if self.closing_until.is_some() {
            // The server also refuses to close the session, and each further attempt would renew the session.
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

    /// Ends at once. Returns what must be dropped, because it owns the continuations of the calls.
    pub(super) fn abandon(&mut self) -> impl Sized + use<C> {
        self.phase = Phase::Ended;
        self.outgoing.clear();
        (std::mem::take(&mut self.traffic), std::mem::take(&mut self.actions))
    }

    /// Fails the calls that have waited too long for a connection.
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

    /// Notes that the server has answered the oldest request, or makes progress with a long answer.
    fn progressed(&mut self, now: Moment) {
        (self.last_progress, self.unread) = (now, 0);
    }

    fn silent_at(&self, pacing: &Pacing) -> Moment {
        self.last_progress.after(pacing.max_silence())
    }
}
