//! The crate's ZooKeeper connection: one session, on one server of the list at a time.
//!
//! # From a call to its reply
//! [`Connection`] is the handle. It takes apart a call that is two on the wire ([`exchange`](exchange())), locks the
//! [shared state](shared), and submits the call to the [state machine](machine), which appends
//! its bytes ([`codec`]) to a buffer. The caller itself writes them to the socket ([`transport`], encrypted by
//! `tls`), as far as the socket takes them, and goes on, or waits. The I/O thread ([`driver`]) sleeps
//! until the socket is ready, gives the machine what it reads, and carries out
//! the machine's actions: it runs the continuation of each reply and reports events.
//!
//! # From a lost connection to the next
//! The machine decides when to try the next server, [`servers`] which one it is. Names are resolved
//! again in each lap over the servers, on threads that may block ([`resolver`]). On the first
//! connection to each address a [`probe`] finds out the server's tick, which shortens the lease's
//! report delay.
//!
//! # Fork
//! A process that is forked has a copy of the socket, but no I/O thread. There every call fails with
//! `SessionExpired`, and closing or dropping the handle does nothing: the session stays the
//! parent's.

mod chroot;
pub(crate) mod codec;
mod credential;
mod driver;
mod exchange;
pub(crate) mod machine;
mod probe;
mod resolver;
mod servers;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select};
use mio::{Poll, Waker};
use uuid::Uuid;

pub(crate) use self::chroot::Chroot;
use self::codec::{DEFAULT_MAX_FRAME, MAX_REQUEST, OpCode};
pub(crate) use self::credential::Credential;
use self::driver::{IoThread, WAKER};
#[cfg(test)]
pub(crate) use self::exchange::Continuation;
pub(crate) use self::exchange::{Exchange, exchange};
use self::machine::{Config, Machine, SessionLoss};
use self::resolver::{NameService, Resolver};
use self::servers::Servers;
use self::shared::{ContactState, Io, PollHandle, Shared};
#[cfg(feature = "tls")]
pub use self::tls::TlsConfig;
use crate::client::connect_string::ConnectString;
use crate::client::{
    Call, ClientEvent, DEFAULT_JUTE_MAX_BUFFER, Done, EventSink, Granted, Reply, ZooKeeperClient,
};
use crate::error::{LockError, Result, ZkError, ZkResult};
use crate::lock_order;
use crate::recipe::path::ZNodePath;
use crate::time::{Clock, SystemClock};
use crate::wait::Wait;

/// A lap over the servers waits for names this part of the session timeout, if it has other
/// addresses.
const NAMES_WAIT_DIVISOR: u32 = 16;
const MAX_NAMES_WAIT: Duration = Duration::from_millis(250);

/// The name of the operation in errors.
pub(crate) const CONNECT: &str = "connect to";

/// The wait of [`Connection::close`] beyond the time in which the session ends by itself.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// The options of a connection.
#[derive(Clone)]
pub(crate) struct ConnectionOptions {
    /// The session timeout to ask for. The server limits it.
    pub(crate) session_timeout: Duration,
    /// Presented on every connection before anything else.
    pub(crate) credentials: Vec<Credential>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<TlsConfig>,
    /// The longest frame accepted from a server.
    pub(crate) max_frame: usize,
    /// The servers' longest tick, if the application has stated it.
    pub(crate) max_tick: Option<Duration>,
    /// See [`ZooKeeperClient::jute_max_buffer`].
    pub(crate) jute_max_buffer: usize,
    /// The log mentions how long the first server has been waited for. Who replaces a lost session knows
    /// the whole outage, and mentions that.
    pub(crate) mentions_first_outage: bool,
    names: NameService,
}

impl ConnectionOptions {
    /// Options for a connection without credentials and without TLS.
    pub(crate) fn new(session_timeout: Duration) -> ConnectionOptions {
        ConnectionOptions {
            session_timeout,
            credentials: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            max_frame: DEFAULT_MAX_FRAME,
            max_tick: None,
            jute_max_buffer: DEFAULT_JUTE_MAX_BUFFER,
            mentions_first_outage: true,
            names: resolver::system(),
        }
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

/// One session. See the [module](self).
///
/// Dropping it closes the session in the background, as [`close`](ZooKeeperClient::close) does in
/// the foreground.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    chroot: Chroot,
    jute_max_buffer: usize,
    /// The longest time for closing.
    max_close: Duration,
}

impl Connection {
    /// Opens a session. Blocks until it is open, or until the end of the wait.
    ///
    /// # Errors
    /// - `Connect` with the outcome for each server.
    /// - `CredentialsRefused`, `NotZooKeeper`, `Cancelled`.
    /// - `InvalidArgument` for files of the TLS configuration that are not usable.
    /// - `Thread` if the I/O thread, or what it needs, cannot be made.
    pub(crate) fn connect(
        servers: &ConnectString,
        options: &ConnectionOptions,
        wait: &Wait,
    ) -> Result<Arc<Connection>> {
        #[cfg(test)]
        crate::tests::begin();
        let begun = Instant::now();
        let (first_contact, contact) = bounded(1);
        let connection = Connection::start(servers, options, first_contact)?;
        let tried = match await_contact(&contact, wait) {
            Some(Ok(())) => return Ok(Arc::new(connection)),
            Some(Err(SessionLoss::Expired)) => format!("{servers} ({})", SessionLoss::Expired.reason()),
            Some(Err(loss @ SessionLoss::ClickHouseKeeper)) => {
                return Err(LockError::NotZooKeeper { servers: servers.to_string(), reason: loss.reason() });
            }
            Some(Err(loss @ (SessionLoss::CredentialsRefused | SessionLoss::AuthenticationRequired))) => {
                return Err(LockError::CredentialsRefused {
                    servers: servers.to_string(),
                    reason: loss.reason(),
                });
            }
            None if wait.is_cancelled() => {
                return Err(LockError::Cancelled { operation: CONNECT, path: servers.to_string() });
            }
            None => connection.shared.lock().servers.outcomes(),
        };
        Err(LockError::Connect { tried, timeout: wait.time_allowed(begun) })
    }

    fn start(
        servers: &ConnectString,
        options: &ConnectionOptions,
        first_contact: Sender<FirstContact>,
    ) -> Result<Connection> {
        let session_timeout = options.session_timeout;
        let (names_seed, machine_seed) = Uuid::new_v4().as_u64_pair();
        let config = Config {
            session_timeout,
            credentials: options.credentials.clone(),
            max_frame: options.max_frame,
            seed: machine_seed,
        };
        #[cfg(feature = "tls")]
        let tls = options.tls.as_ref().map(tls::TlsConfig::load).transpose()?;
        let poll = Poll::new().map_err(LockError::thread)?;
        let registry = poll.registry().try_clone().map_err(LockError::thread)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(LockError::thread)?);
        let names_wait = (session_timeout / NAMES_WAIT_DIVISOR).min(MAX_NAMES_WAIT);
        let machine = Machine::new(config, SystemClock.now());
        let list = Servers::new(servers.servers(), names_wait, names_seed);
        let handle = PollHandle { registry, waker: Arc::clone(&waker) };
        let io = Io::new(machine, list, handle, Granted::new(session_timeout));
        let (end, ended) = bounded(0);
        let shared = Arc::new(Shared::new(io, ended));
        let chroot = Chroot::new(servers.chroot().map_or("", ZNodePath::as_str));
        let io_thread = IoThread {
            shared: Arc::clone(&shared),
            poll,
            resolver: Resolver::new(Arc::clone(&options.names), waker),
            chroot: chroot.clone(),
            #[cfg(feature = "tls")]
            tls,
            max_tick: options.max_tick,
            first_contact: Some(first_contact),
            mentions_first_outage: options.mentions_first_outage,
            ended: end,
            notes: Default::default(),
            random: fastrand::Rng::with_seed(names_seed ^ machine_seed),
        };
        let thread = thread::Builder::new().name("zk-lock-io".to_owned());
        thread.spawn(move || io_thread.run()).map_err(LockError::thread)?;
        Ok(Connection {
            shared,
            chroot,
            jute_max_buffer: options.jute_max_buffer,
            max_close: session_timeout,
        })
    }

    /// Submits a call, whose continuation runs on the I/O thread. The two requests of a `CreateAndList` leave
    /// in one write. Once the session has ended, the call fails here with `SessionExpired`, and with
    /// `BadArguments` if it is too long for a server.
    fn send(&self, call: Call, chroot: &Chroot, done: Done) {
        if is_too_long(&call, chroot) {
            return done.finish(Err(ZkError::BadArguments));
        }
        match exchange(call, done) {
            Exchange::One(one) => self.shared.submit([one], chroot),
            Exchange::Two(two) => self.shared.submit(two, chroot),
        }
    }
}

impl Connection {
    /// Makes a call whose paths begin at the root of the servers, not at the chroot, and waits for the
    /// reply; returns `ConnectionLoss` if the wait ends before.
    pub(crate) fn call_at_root(&self, call: Call, wait: &Wait) -> ZkResult<Reply> {
        let (sender, outcome) = bounded(1);
        // The receiver may be gone.
        let done = Done::new(move |result| drop(sender.send(result)));
        self.send(call, &Chroot::default(), done);
        let deadline = wait.deadline().map_or_else(never, at);
        let reply = select! {
            recv(outcome) -> reply => reply.ok(),
            recv(wait.cancellation()) -> _ => None,
            recv(deadline) -> _ => None,
        };
        reply.unwrap_or(Err(ZkError::ConnectionLoss))
    }
}

impl ZooKeeperClient for Connection {
    fn submit(&self, call: Call, done: Done) {
        self.send(call, &self.chroot, done);
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn remove_watches(&self, path: &str) {
        self.shared.remove_watches(&self.chroot.full(path));
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let (contact, former) = {
            let status = &mut self.shared.lock().status;
            let is_closed = status.contact == ContactState::Closed;
            let new = (!is_closed).then(|| Arc::clone(&sink));
            (status.contact, std::mem::replace(&mut status.sink, new))
        };
        drop(former);
        if contact == ContactState::Lost {
            sink(ClientEvent::SessionLost);
        }
        contact == ContactState::Connected
    }

    fn session_id(&self) -> Option<i64> {
        Some(self.shared.lock().status.session_id)
    }

    fn server(&self) -> Option<String> {
        Some(self.shared.lock().status.server.clone())
    }

    fn chroot(&self) -> Option<String> {
        self.chroot.prefix().map(str::to_owned)
    }

    fn session_timeout(&self) -> Duration {
        self.shared.lock().status.granted.session_timeout
    }

    fn report_delay(&self) -> Duration {
        self.shared.lock().status.granted.report_delay
    }

    fn reports_pings(&self) -> bool {
        true
    }

    fn jute_max_buffer(&self) -> usize {
        self.jute_max_buffer
    }

    fn close(&self) {
        lock_order::assert_none_held();
        self.shared.close();
        // The I/O thread cannot wait for its own end.
        if !driver::is_io_thread() && self.shared.is_in_its_process() {
            let longest = self.session_timeout().max(self.max_close) + CLOSE_MARGIN;
            let _ = self.shared.ended.recv_timeout(longest);
        }
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
            .field("session_id", &format_args!("{:#x}", self.session_id().unwrap_or_default()))
            .field("server", &self.server().unwrap_or_default())
            .finish_non_exhaustive()
    }
}

/// The first contact, or why there will be none.
type FirstContact = std::result::Result<(), SessionLoss>;

/// Returns `None` if the wait ends before, or the I/O thread does.
fn await_contact(contact: &Receiver<FirstContact>, wait: &Wait) -> Option<FirstContact> {
    let deadline = wait.deadline().map_or_else(never, at);
    select! {
        recv(contact) -> outcome => outcome.ok(),
        recv(wait.cancellation()) -> _ => contact.try_recv().ok(),
        recv(deadline) -> _ => contact.try_recv().ok(),
    }
}

/// Returns whether servers refuse the call for its length.
fn is_too_long(call: &Call, chroot: &Chroot) -> bool {
    let estimate = match call {
        Call::Multi(_) => MAX_REQUEST,
        Call::Create { acl, .. } | Call::CreateAndList { acl, .. } => {
            let acl = acl.iter().map(|acl| acl.scheme.len() + acl.id.len() + 12);
            call.bytes() + acl.sum::<usize>()
        }
        call => call.bytes(),
    };
    if estimate + chroot.prefix().map_or(0, str::len) < MAX_REQUEST / 2 {
        return false;
    }
    let mut frame = Vec::new();
    call.encode(OpCode::of_call(call), chroot, 1, &mut frame);
    frame.len() > 4 + MAX_REQUEST
}
