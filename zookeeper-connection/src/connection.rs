//! [`Connection`]: one session, connected to one server at a time.
//!
//! # From a call to its reply
//! 1. [`Connection`] is the handle. It splits a call that takes two requests ([`exchange`](exchange())), and locks what
//!    it shares with the I/O thread ([`io`]).
//! 2. It submits the requests to the [state machine](machine), which appends their bytes ([`codec`]) to a buffer.
//! 3. The calling thread itself writes as many of the bytes as the socket takes (`io/transport.rs`, encrypted by
//!    `tls`). Then it continues, or waits for the reply.
//! 4. The I/O thread (`io/thread.rs`) sleeps until the socket is ready, and passes what it reads to the machine.
//! 5. The I/O thread carries out the machine's actions: it runs the continuation of each reply and reports events. A
//!    watch event takes the same path to the event sink.
//!
//! # From a lost connection to the next
//! The machine decides when to try the next server (`machine/session/attempts.rs`), which one, and which beside it
//! (`machine/search.rs` and `machine/servers.rs`). Calls that are submitted in the meantime wait in
//! `machine/session/traffic.rs`. In each round over the servers, their names are resolved again, on threads that may
//! block (`io/resolver.rs`). What is learnt of them stays in a [`memory`], which later connections share. After the first
//! connection to each address, a probe finds out the server's tick, unless the application has stated it, and the report
//! delay is shortened accordingly (`machine/ticks.rs`).
//!
//! # Fork
//! A forked child has a copy of the socket, but no I/O thread. In the child, every call fails with `SessionExpired`,
//! and closing or dropping the handle does nothing: the session still belongs to the parent. The child knows neither its
//! id nor its server.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, at, bounded, never, select};
use mio::{Poll, Waker};

use crate::chroot::Chroot;
use crate::codec::DEFAULT_MAX_FRAME;
use crate::connect_error::ConnectError;
use crate::connect_string::ConnectString;
use crate::credential::Credential;
use crate::exchange::{Exchange, exchange};
use crate::io::resolver::{self, NameService, Resolver};
use crate::io::thread::{self as io_thread, IoThread, WAKER};
use crate::io::{Base, PollHandle, Shared};
use crate::machine::{Config, ContactState, Machine, SessionLoss, session};
use crate::max_buffer::{DEFAULT_JUTE_MAX_BUFFER, MaxBuffer};
use crate::memory::ServerMemory;
use crate::path::is_absolute;
#[cfg(feature = "kerberos")]
use crate::sasl::KerberosConfig;
#[cfg(feature = "sasl")]
use crate::sasl::SaslDigest;
use crate::sasl::{Authenticator, Mechanism};
use crate::support::{keeping_unpark_token, lock_order, logging, new_guid};
use crate::time::{Clock, SystemClock};
#[cfg(feature = "tls")]
use crate::tls::{TlsClient, TlsConfig};
use crate::{Call, ClientEvent, Done, EventSink, Granted, Reply, Verbs, ZkError, ZkResult};

type Result<T> = std::result::Result<T, ConnectError>;

/// How much longer [`Connection::close`] waits than the session can live without contact.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// The longest session timeout that a client can request: the protocol counts milliseconds in an `i32`.
const MAX_SESSION_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// Describes a grant in a log line. It must not panic, block or call the connection, whose mutex is held.
pub type TickNote = Arc<dyn Fn(Granted) -> String + Send + Sync>;

/// The options of a connection.
///
/// Create them with [`new`](ConnectionOptions::new), then set the fields that should differ from their defaults.
#[derive(Clone)]
#[non_exhaustive]
pub struct ConnectionOptions {
    /// The session timeout to request, at most 2^31 - 1 milliseconds (a longer one is shortened). The server may grant
    /// a shorter or longer one, within its own bounds.
    pub session_timeout: Duration,
    /// The credentials to present on every connection before any call.
    pub credentials: Vec<Credential>,
    /// The user to authenticate as, before the credentials are presented. Uses the SASL mechanism DIGEST-MD5.
    #[cfg(feature = "sasl")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sasl")))]
    pub sasl_digest: Option<SaslDigest>,
    /// How to authenticate with Kerberos, before the credentials are presented. Cannot be combined with `sasl_digest`.
    #[cfg(feature = "kerberos")]
    #[cfg_attr(docsrs, doc(cfg(feature = "kerberos")))]
    pub kerberos: Option<KerberosConfig>,
    /// The encryption. `None` by default: connections are not encrypted.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub tls: Option<TlsConfig>,
    /// The length of the longest frame to accept from a server, in bytes. 64 MiB by default.
    pub max_frame: usize,
    /// The servers' `jute.maxbuffer`, in bytes. If they differ, the smallest. 1 MiB by default, as in ZooKeeper.
    ///
    /// It [bounds](MaxBuffer) each call. If the value is larger than the servers', **a call may stop all servers**.
    pub jute_max_buffer: usize,
    /// The tick of the servers, if it is known. If the servers' ticks differ, this is the longest of them.
    ///
    /// The client reckons with this tick alone: `max_tick` does not count, and no server is asked for its tick. A value
    /// below the true tick makes [`Granted::report_delay`](crate::Granted::report_delay) too short.
    pub tick: Option<Duration>,
    /// An upper bound of the servers' ticks, if it is known, for an application that does not know the tick.
    ///
    /// The client never assumes a shorter tick, and assumes this tick for a server that does not reveal its own. If
    /// this is `None`, the client assumes no tick below [`DEFAULT_TICK`](crate::DEFAULT_TICK), and half of the session
    /// timeout for a server that does not reveal its own tick.
    pub max_tick: Option<Duration>,
    /// What a grant means for the application. This ends the log line that says which tick counts.
    #[doc(hidden)]
    pub tick_note: Option<TickNote>,
    /// What is known of the servers. Empty by default. Clones of the options share it.
    pub memory: ServerMemory,
    /// Whether to log how long the client has been waiting for its first server. `true` by default.
    pub mentions_first_outage: bool,
    /// The path of a znode that does not exist, and a path below it.
    ///
    /// Both are relative to the servers' root, not to the chroot. If a server does not number its events, the client
    /// writes to the first path after a reconnect. If an ACL denies that write, the client writes to the second path
    /// on the next connection. Neither write changes anything.
    pub barrier_paths: [&'static str; 2],
    /// The target of the log lines. `zookeeper_connection` by default.
    pub log_target: &'static str,
    pub(crate) names: NameService,
}

impl ConnectionOptions {
    /// Creates options without credentials, without SASL and without TLS.
    #[must_use]
    pub fn new(session_timeout: Duration) -> ConnectionOptions {
        ConnectionOptions {
            session_timeout,
            credentials: Vec::new(),
            #[cfg(feature = "sasl")]
            sasl_digest: None,
            #[cfg(feature = "kerberos")]
            kerberos: None,
            #[cfg(feature = "tls")]
            tls: None,
            max_frame: DEFAULT_MAX_FRAME,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            tick: None,
            max_tick: None,
            tick_note: None,
            memory: ServerMemory::new(),
            mentions_first_outage: true,
            barrier_paths: ["/zookeeper-connection-barrier", "/zookeeper-connection-barrier/none"],
            log_target: env!("CARGO_CRATE_NAME"),
            names: resolver::system(),
        }
    }
}

impl ConnectionOptions {
    /// Returns the bound on calls, for a session that has the identities of these credentials.
    pub(crate) fn max_buffer(&self) -> MaxBuffer {
        self.credentials.iter().fold(MaxBuffer::new(self.jute_max_buffer), MaxBuffer::with_credential)
    }

    /// Returns the session timeout to request.
    pub(crate) fn requested_timeout(&self) -> Duration {
        self.session_timeout.min(MAX_SESSION_TIMEOUT)
    }

    /// Returns the SASL mechanism, if the client must authenticate.
    fn mechanism(&self) -> Result<Option<Mechanism>> {
        #[cfg(feature = "kerberos")]
        if let Some(kerberos) = &self.kerberos {
            if self.sasl_digest.is_some() {
                let rule =
                    "both DIGEST-MD5 and Kerberos are set, but a server uses only one mechanism".to_owned();
                return Err(ConnectError::InvalidSasl { rule });
            }
            return Ok(Some(Mechanism::kerberos(kerberos.clone())));
        }
        #[cfg(feature = "sasl")]
        return Ok(self.sasl_digest.clone().map(Mechanism::digest));
        #[cfg(not(feature = "sasl"))]
        Ok(None)
    }
}

impl fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionOptions")
            .field("session_timeout", &self.session_timeout)
            .field("credentials", &self.credentials)
            .finish_non_exhaustive()
    }
}

/// A connection to ZooKeeper, with one session.
///
/// Dropping it closes the session in the background; [`close`](Connection::close) waits until the session is closed.
///
/// # Threads
/// All methods may be called from any thread. Continuations and the event sink run on the connection's own thread, with
/// two exceptions. If the session has ended, if the call is too long, or if the client refuses a path, the
/// continuation runs on the calling thread. If a sink is set after the session was lost, it runs on the calling thread,
/// too. Continuations and sinks must not block: a method of [`Verbs`] called in one of them would wait forever. In a
/// forked child, every call fails with [`SessionExpired`](ZkError::SessionExpired), and the session still belongs to
/// the parent.
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
    chroot: Chroot,
    jute_max_buffer: usize,
    pub(crate) max_buffer: MaxBuffer,
    /// The requested session timeout. [`Connection::close`] may wait this long even if a server has granted less.
    max_close: Duration,
}

impl Connection {
    /// Opens a session on the servers of a connect string.
    ///
    /// The connect string has the form `host:port,host:port/chroot`. Blocks for at most the session timeout.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn open(connect_string: &str, session_timeout: Duration) -> Result<Arc<Connection>> {
        let servers = ConnectString::parse(connect_string)?;
        let deadline = Instant::now().checked_add(session_timeout);
        Connection::connect(&servers, &ConnectionOptions::new(session_timeout), deadline)
    }

    /// Opens a session with these options.
    ///
    /// Blocks until the session is open, the servers have refused it, or the deadline has passed, if there is one.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        servers: &ConnectString,
        options: &ConnectionOptions,
        deadline: Option<Instant>,
    ) -> Result<Arc<Connection>> {
        Connection::connect_unless(servers, options, deadline, &never())
    }

    /// Like [`connect`](Connection::connect), but can be cancelled.
    ///
    /// Disconnecting the channel ends the wait.
    ///
    /// # Errors
    /// See [`ConnectError`].
    #[doc(hidden)]
    pub fn connect_unless(
        servers: &ConnectString,
        options: &ConnectionOptions,
        deadline: Option<Instant>,
        cancelled: &Receiver<Infallible>,
    ) -> Result<Arc<Connection>> {
        Connection::connect_by(options.mechanism()?, servers, options, deadline, cancelled)
    }

    /// Opens a session, and authenticates with this SASL mechanism if there is one.
    pub(crate) fn connect_by(
        mechanism: Option<Mechanism>,
        servers: &ConnectString,
        options: &ConnectionOptions,
        deadline: Option<Instant>,
        cancelled: &Receiver<Infallible>,
    ) -> Result<Arc<Connection>> {
        let (first_contact, contact) = bounded(1);
        let connection = Connection::start(mechanism, servers, options, first_contact)?;
        let named = || servers.to_string();
        let mut outcome = await_either(&contact, deadline, cancelled);
        if outcome.is_none() && !is_disconnected(cancelled) {
            let refusal = connection.shared.lock().machine.refusal();
            outcome = outcome_at_the_deadline(refusal, &contact);
        }
        let tried = match outcome {
            Some(Ok(())) => return Ok(Arc::new(connection)),
            Some(Err(loss @ (SessionLoss::Expired | SessionLoss::Unserved))) => {
                format!("{servers} ({})", loss.reason())
            }
            Some(Err(SessionLoss::CertificateRefused)) => {
                let tried = connection.shared.lock().machine.outcomes();
                return Err(ConnectError::CertificateRefused { tried });
            }
            Some(Err(loss @ SessionLoss::ClickHouseKeeper)) => {
                return Err(ConnectError::NotZooKeeper { servers: named(), reason: loss.reason() });
            }
            Some(Err(
                loss @ (SessionLoss::CredentialsRefused
                | SessionLoss::SaslRefused
                | SessionLoss::AuthenticationRequired),
            )) => {
                return Err(ConnectError::CredentialsRefused { servers: named(), reason: loss.reason() });
            }
            None if is_disconnected(cancelled) => return Err(ConnectError::Cancelled { servers: named() }),
            None => connection.shared.lock().machine.outcomes(),
        };
        Err(ConnectError::Unreachable { tried })
    }

    fn start(
        mechanism: Option<Mechanism>,
        servers: &ConnectString,
        options: &ConnectionOptions,
        first_contact: Sender<FirstContact>,
    ) -> Result<Connection> {
        let chroot = Chroot::new(servers.chroot().unwrap_or_default());
        #[cfg(feature = "tls")]
        let tls = options.tls.as_ref().map(|tls| tls.load(options.log_target)).transpose()?;
        let mut max_buffer = options.max_buffer();
        if mechanism.is_some() {
            max_buffer = max_buffer.with_unknown_identity();
        }
        #[cfg(feature = "tls")]
        if let Some(length) = tls.as_ref().and_then(TlsClient::names_length) {
            max_buffer = max_buffer.with_certificate(length);
        }
        let poll = Poll::new().map_err(ConnectError::thread)?;
        let registry = poll.registry().try_clone().map_err(ConnectError::thread)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(ConnectError::thread)?);
        let handle = PollHandle { registry, waker: Arc::clone(&waker) };
        let authenticator = mechanism.map(|mechanism| Authenticator::new(mechanism, &waker));
        let seed = new_guid().as_u64_pair().0;
        let session = session::Config::new(options, authenticator.is_some(), chroot.clone(), seed);
        let mut config = Config::new(options, session, servers.servers());
        config.needs_tickets = authenticator.as_ref().is_some_and(Authenticator::needs_tickets);
        let machine = Machine::new(config, SystemClock.now());
        let (end, ended) = bounded(0);
        let shared = Arc::new(Shared::new(machine, Some(handle), Arc::new(SystemClock), ended));
        let io_thread = IoThread {
            shared: Arc::clone(&shared),
            poll,
            resolver: Resolver::new(Arc::clone(&options.names), waker),
            authenticator,
            exchanges: HashMap::new(),
            #[cfg(feature = "tls")]
            tls,
            log_target: options.log_target,
            first_contact: Some(first_contact),
            ended: end,
        };
        let thread = thread::Builder::new().name("zk-io".to_owned());
        thread.spawn(move || io_thread.run()).map_err(ConnectError::thread)?;
        Ok(Connection::on(shared, chroot, options, max_buffer))
    }

    pub(crate) fn on(
        shared: Arc<Shared>,
        chroot: Chroot,
        options: &ConnectionOptions,
        max_buffer: MaxBuffer,
    ) -> Connection {
        let max_buffer = max_buffer.with_chroot(chroot.prefix().map_or(0, str::len));
        let jute_max_buffer = options.jute_max_buffer;
        let max_close = options.requested_timeout();
        Connection { shared, chroot, jute_max_buffer, max_buffer, max_close }
    }

    /// Submits a call. Its continuation runs on the I/O thread. The two requests of a `CreateAndList` are sent in one
    /// write. If the session has ended, the continuation runs on this thread, with `SessionExpired`. If a path may lead
    /// out of the chroot, or the call may be too long for a server, it runs on this thread, with `BadArguments` or
    /// `CallTooLong`.
    fn send(&self, call: Call, base: Base, done: Done) {
        if !call.has_sound_paths() {
            return done.finish(Err(ZkError::BadArguments));
        }
        if let Err(error) = self.max_buffer.check(&call) {
            return done.finish(Err(error));
        }
        match exchange(call, done) {
            Exchange::One(one) => self.shared.submit([one], base),
            Exchange::Two(two) => self.shared.submit(two, base),
        }
    }
}

impl Connection {
    /// Makes a call outside the chroot, and waits for the reply.
    ///
    /// The paths of the call are relative to the servers' root. A watch that the call sets outside the chroot is never
    /// reported.
    ///
    /// # Errors
    /// The errors of the call, and `ConnectionLoss` if the deadline passes.
    pub fn call_at_root(&self, call: Call, deadline: Option<Instant>) -> ZkResult<Reply> {
        self.call_at_root_unless(call, deadline, &never())
    }

    /// Like [`call_at_root`](Connection::call_at_root), but can be cancelled.
    ///
    /// Disconnecting the channel ends the wait.
    ///
    /// # Errors
    /// The errors of `call_at_root`, and `ConnectionLoss` when the channel is disconnected.
    #[doc(hidden)]
    pub fn call_at_root_unless(
        &self,
        call: Call,
        deadline: Option<Instant>,
        cancelled: &Receiver<Infallible>,
    ) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        // The receiver may be gone.
        let done = Done::new(move |result| drop(sender.send(result)));
        self.send(call, Base::Root, done);
        await_either(&outcome, deadline, cancelled).unwrap_or(Err(ZkError::ConnectionLoss))
    }

    /// Makes a call without waiting for its reply.
    ///
    /// `done` receives the outcome on the connection's thread, or [in some cases](Connection#threads) on this thread.
    /// While no server is connected, the call waits for the next connection, for at most a tenth of the session timeout.
    pub fn submit(&self, call: Call, done: Done) {
        self.send(call, Base::Chroot, done);
    }

    /// Removes the watches that this client has set on `path`, if there are any.
    ///
    /// Does not wait for the server, so an event may still follow. The watches of later calls are not removed. A server
    /// before version 3.5 keeps its watches.
    ///
    /// The fate of a watch is undefined if the call that sets it is unanswered: the watch may stay, or it may be removed
    /// and then be set again on the next connection. So await the replies of such calls first.
    pub fn remove_watches(&self, path: &str) {
        // Another path could lead out of the chroot, and no call can have set a watch on it.
        if is_absolute(path) {
            self.shared.remove_watches(path);
        }
    }

    /// Sets the event sink, and returns whether a server is connected.
    ///
    /// A connection has only one sink, so `sink` replaces the former one. `sink` receives every event that comes after
    /// the returned state. If the session is already lost, this call passes [`SessionLost`](ClientEvent::SessionLost)
    /// to the sink.
    pub fn subscribe(&self, sink: EventSink) -> bool {
        if !self.shared.is_in_its_process() {
            sink(ClientEvent::SessionLost);
            return false;
        }
        let (contact, former) = {
            let io = &mut *self.shared.lock();
            let contact = io.machine.status().contact;
            let new = (contact != ContactState::Closed).then(|| Arc::clone(&sink));
            (contact, std::mem::replace(&mut io.sink, new))
        };
        drop(former);
        if contact == ContactState::Lost {
            sink(ClientEvent::SessionLost);
        }
        contact == ContactState::Connected
    }

    /// Returns the id of the session.
    ///
    /// The logs of ZooKeeper servers show the id in hexadecimal. In a forked child, the id is 0.
    #[must_use]
    pub fn session_id(&self) -> i64 {
        self.shared.lock_here().map_or(0, |io| io.machine.status().session_id)
    }

    /// Returns the server of the current connection, or of the last one. In a forked child, the name is empty.
    #[must_use]
    pub fn server(&self) -> String {
        self.shared.lock_here().map_or_else(String::new, |io| io.machine.status().server.clone())
    }

    /// Lists the servers of the connect string, each with how the last attempt at it has gone, or with its state.
    ///
    /// A server is `not tried` unless there was an attempt since a server last answered a call. In a forked child, the
    /// text is empty.
    #[must_use]
    pub fn outcomes(&self) -> String {
        self.shared.lock_here().map_or_else(String::new, |io| io.machine.outcomes())
    }

    /// Returns the chroot of the connection, or `None` if there is none.
    #[must_use]
    pub fn chroot(&self) -> Option<&str> {
        self.chroot.prefix()
    }

    /// Returns the servers' `jute.maxbuffer`, as given in the [options](ConnectionOptions::jute_max_buffer).
    #[must_use]
    pub fn jute_max_buffer(&self) -> usize {
        self.jute_max_buffer
    }

    /// Returns the grant on the current connection, or on the last one.
    ///
    /// Its session timeout is the shortest one that was granted to the session up to that connection. In a forked child,
    /// it is the one that was asked for.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.shared.lock_here().map_or_else(|| Granted::new(self.max_close), |io| io.machine.status().granted)
    }

    /// Closes the session, and waits until the server has confirmed this.
    ///
    /// Waits at most about as long as the session can live without contact. Does not wait if a continuation or an event
    /// sink calls it, because they run on the thread that closes the session. No event is reported afterwards. Closing
    /// the session again only waits.
    ///
    /// Then waits until the logger has written the lines about the session, for at most 100 ms.
    pub fn close(&self) {
        self.end();
        logging::await_written();
    }

    /// Begins to close the session. No event is reported afterwards.
    #[doc(hidden)]
    pub fn begin_to_close(&self) {
        self.shared.close();
    }

    /// Like [`close`](Connection::close), but does not wait for the logger.
    #[doc(hidden)]
    pub fn end(&self) {
        lock_order::assert_none_held();
        self.shared.close();
        // The I/O thread cannot wait for its own end.
        if !io_thread::is_io_thread() && self.shared.is_in_its_process() {
            let longest = self.granted().session_timeout.max(self.max_close) + CLOSE_MARGIN;
            let _ = keeping_unpark_token(|| self.shared.ended.recv_timeout(longest));
        }
    }
}

impl Verbs for Connection {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        self.submit(call, Done::new(move |result| drop(sender.send(result))));
        keeping_unpark_token(|| outcome.recv()).unwrap_or(Err(ZkError::ConnectionLoss))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("session_id", &format_args!("{:#x}", self.session_id()))
            .field("server", &self.server())
            .finish_non_exhaustive()
    }
}

/// The first contact, or why there will be none.
type FirstContact = std::result::Result<(), SessionLoss>;

/// Returns what explains best why there is no contact. A server's refusal is a better explanation than the failure to
/// reach the other servers. If the I/O thread has ended before it was asked for a `refusal`, its machine was gone, and
/// `contact` has the outcome.
fn outcome_at_the_deadline(
    refusal: Option<SessionLoss>,
    contact: &Receiver<FirstContact>,
) -> Option<FirstContact> {
    contact.try_recv().ok().or(refusal.map(Err))
}

/// Waits for a value. Returns `None` at the deadline, on cancellation, or if the sender is gone.
fn await_either<T>(
    awaited: &Receiver<T>,
    deadline: Option<Instant>,
    cancelled: &Receiver<Infallible>,
) -> Option<T> {
    let deadline = deadline.map_or_else(never, at);
    keeping_unpark_token(|| {
        select! {
            recv(awaited) -> value => value.ok(),
            recv(cancelled) -> _ => awaited.try_recv().ok(),
            recv(deadline) -> _ => awaited.try_recv().ok(),
        }
    })
}

fn is_disconnected(channel: &Receiver<Infallible>) -> bool {
    channel.try_recv() == Err(TryRecvError::Disconnected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_the_outcome_at_the_deadline_whether_or_not_the_thread_has_ended() {
        let (outcome, contact) = bounded(1);
        let refused = SessionLoss::SaslRefused;
        assert_eq!(outcome_at_the_deadline(None, &contact), None);
        assert_eq!(outcome_at_the_deadline(Some(refused), &contact), Some(Err(refused)));
        outcome.send(Err(refused)).unwrap();
        assert_eq!(outcome_at_the_deadline(None, &contact), Some(Err(refused)));
    }
}
