//! The crate's ZooKeeper connection: one session, on one server of the list at a time.
//!
//! # From a call to its reply
//! [`Connection`] is the handle. A call builds a request ([`codec`]), locks the
//! [shared state](shared), and submits the request to the [state machine](machine), which appends
//! its bytes to a buffer. The caller itself writes them to the socket ([`transport`], encrypted by
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
pub(crate) mod machine;
mod outage;
mod probe;
mod random;
mod resolver;
mod servers;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select};
use mio::{Poll, Waker};
use uuid::Uuid;

use self::chroot::Chroot;
use self::codec::{DEFAULT_MAX_FRAME, MAX_REQUEST, Reply, Request};
pub(crate) use self::credential::Credential;
use self::driver::{Driver, WAKER};
use self::machine::{Config, Machine, SessionLoss};
use self::random::SplitMix64;
use self::resolver::{NameService, Resolver};
use self::servers::Servers;
use self::shared::{Contact, Continuation, Io, Shared};
#[cfg(feature = "tls")]
pub use self::tls::TlsConfig;
use crate::client::connect_string::ConnectString;
use crate::client::{
    Acl, ClientEvent, CreateMode, Created, DEFAULT_TICK, Done, Enqueued, EventSink, Granted, Op, OpOutcome,
    PipelinedClient, Stat, Transacted, ZooKeeperClient,
};
use crate::error::{LockError, Result, ZkError, ZkResult};
use crate::lock_order;
use crate::recipe::names::Names;
use crate::time::{Clock, SystemClock};
use crate::wait::Wait;

/// A lap over the servers waits for names this part of the session timeout, if it has other
/// addresses.
const NAMES_WAIT_DIVISOR: u32 = 16;
const MAX_NAMES_WAIT: Duration = Duration::from_millis(250);

/// The name of the operation in errors.
pub(crate) const CONNECT: &str = "connect to";

/// How long [`Connection::close`] waits beyond the time in which the session ends by itself.
const CLOSE_MARGIN: Duration = Duration::from_secs(1);

/// How to connect.
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
    /// No server's tick is taken for a shorter one.
    pub(crate) max_tick: Duration,
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
            max_tick: DEFAULT_TICK,
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
    /// How long closing may take.
    max_close: Duration,
}

impl Connection {
    /// Opens a session. Blocks until it is open, or until the end of the wait.
    ///
    /// # Errors
    /// - `Connect` with the outcome for each server.
    /// - `CredentialsRefused`, `Cancelled`.
    /// - `InvalidArgument` for files of the TLS configuration that are not usable.
    /// - `Thread` if the I/O thread, or what it needs, cannot be made.
    pub(crate) fn connect(
        servers: &ConnectString,
        options: &ConnectionOptions,
        wait: &Wait,
    ) -> Result<Arc<Connection>> {
        #[cfg(test)]
        crate::testing::begin();
        let begun = Instant::now();
        let (first_contact, contact) = bounded(1);
        let connection = Connection::start(servers, options, first_contact)?;
        let tried = match await_contact(&contact, wait) {
            Some(Ok(())) => return Ok(Arc::new(connection)),
            Some(Err(SessionLoss::CredentialsRefused)) => {
                return Err(LockError::CredentialsRefused { servers: servers.to_string() });
            }
            Some(Err(SessionLoss::Expired)) => format!("{servers} (the session has expired)"),
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
        let io = Io::new(machine, list, registry, Granted::new(session_timeout));
        let (end, ended) = bounded(0);
        let shared = Arc::new(Shared::new(io, Arc::clone(&waker), ended));
        let chroot = Chroot::new(servers.chroot());
        let driver = Driver {
            shared: Arc::clone(&shared),
            poll,
            resolver: Resolver::new(Arc::clone(&options.names), waker),
            chroot: chroot.clone(),
            #[cfg(feature = "tls")]
            tls,
            max_tick: options.max_tick,
            first_contact: Some(first_contact),
            ended: end,
            watch: Default::default(),
            random: SplitMix64::new(names_seed ^ machine_seed),
        };
        let thread = thread::Builder::new().name("zk-lock-io".to_owned());
        thread.spawn(move || driver.run()).map_err(LockError::thread)?;
        Ok(Connection { shared, chroot, max_close: session_timeout })
    }

    /// Submits requests, whose paths have the chroot already. They leave in one write, and their
    /// continuations run in the same order, on the I/O thread. Once the session has ended, they fail
    /// here with `SessionExpired`; so do they with `BadArguments` if one is too long for a server.
    fn submit<const N: usize>(&self, requests: [(Request<'_>, Continuation); N]) {
        if requests.iter().any(|(request, _)| is_too_long(request)) {
            return requests.into_iter().for_each(|(_, refused)| refused(Err(ZkError::BadArguments)));
        }
        self.shared.submit(requests);
    }

    /// Submits a request, and passes on what is read from its reply.
    fn send<T: 'static>(
        &self,
        request: Request<'_>,
        done: Done<T>,
        read: impl FnOnce(ZkResult<Reply>) -> ZkResult<T> + Send + 'static,
    ) {
        self.submit([(request, Box::new(move |outcome| done.finish(read(outcome))))]);
    }

    /// Prefixes a path with the chroot, for a request.
    fn path<'a>(&self, path: &'a str) -> std::borrow::Cow<'a, str> {
        self.chroot.add(path)
    }

    /// The request within a transaction.
    fn request_of<'a>(&self, operation: &'a Op) -> Request<'a> {
        let version = |version: &Option<i32>| version.unwrap_or(-1);
        match operation {
            Op::Create { path, data, acl, mode } => {
                Request::Create { path: self.path(path), data: data.into(), acl: acl.into(), mode: *mode }
            }
            Op::Delete { path, version: at } => {
                Request::Delete { path: self.path(path), version: version(at) }
            }
            Op::SetData { path, data, version: at } => {
                Request::SetData { path: self.path(path), data: data.into(), version: version(at) }
            }
            Op::Check { path, version: at } => Request::Check { path: self.path(path), version: version(at) },
        }
    }

    /// Makes a call and waits for the outcome.
    fn wait_for<T: Send + 'static>(&self, call: impl FnOnce(Done<T>)) -> ZkResult<T> {
        check_thread()?;
        let (sender, outcome) = bounded(1);
        call(Done::new(move |result| drop(sender.send(result))));
        // The I/O thread has failed if there is none.
        outcome.recv().unwrap_or(Err(ZkError::SessionExpired))
    }
}

impl PipelinedClient for Connection {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode, done: Done<Created>) {
        let request = Request::Create { path: self.path(path), data: data.into(), acl: acl.into(), mode };
        let chroot = self.chroot.clone();
        self.send(request, done, move |outcome| created_in(&chroot, outcome));
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl], done: Done<Enqueued>) {
        let create = Request::Create {
            path: [&*self.path(dir), "/", prefix].concat().into(),
            data: data.into(),
            acl: acl.into(),
            mode: CreateMode::EphemeralSequential,
        };
        let list = Request::GetChildren { path: self.path(dir), watch: false };
        let chroot = self.chroot.clone();
        // The replies come in this order, on one thread, and the first continuation is gone when the
        // second runs.
        let created = Arc::new(OnceLock::new());
        let creation = Arc::clone(&created);
        let on_created = move |outcome| drop(creation.set(created_in(&chroot, outcome)));
        let on_listed = move |outcome| {
            let created = Arc::into_inner(created).and_then(OnceLock::into_inner);
            let created = created.unwrap_or(Err(ZkError::ConnectionLoss));
            done.finish(created.map(|(path, stat)| Enqueued { path, stat, children: names_in(outcome) }));
        };
        self.submit([(create, Box::new(on_created)), (list, Box::new(on_listed))]);
    }

    fn delete(&self, path: &str, version: Option<i32>, done: Done<()>) {
        let request = Request::Delete { path: self.path(path), version: version.unwrap_or(-1) };
        self.send(request, done, |outcome| outcome.map(drop));
    }

    fn exists(&self, path: &str, watch: bool, done: Done<Option<Stat>>) {
        self.send(Request::Exists { path: self.path(path), watch }, done, |outcome| match outcome {
            Ok(Reply::Stat(stat)) => Ok(Some(stat)),
            Ok(_) => Err(ZkError::MarshallingError),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        });
    }

    fn get_children(&self, path: &str, watch: bool, done: Done<Names>) {
        self.send(Request::GetChildren { path: self.path(path), watch }, done, names_in);
    }

    fn get_data(&self, path: &str, watch: bool, done: Done<(Vec<u8>, Stat)>) {
        self.send(Request::GetData { path: self.path(path), watch }, done, |outcome| match outcome? {
            Reply::Data { data, stat } => Ok((data, stat)),
            _ => Err(ZkError::MarshallingError),
        });
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>, done: Done<Stat>) {
        let version = version.unwrap_or(-1);
        let request = Request::SetData { path: self.path(path), data: data.into(), version };
        self.send(request, done, |outcome| match outcome? {
            Reply::Stat(stat) => Ok(stat),
            _ => Err(ZkError::MarshallingError),
        });
    }
}

impl ZooKeeperClient for Connection {
    fn create(&self, path: &str, data: &[u8], acl: &[Acl], mode: CreateMode) -> ZkResult<String> {
        let created = self.wait_for(|done| PipelinedClient::create(self, path, data, acl, mode, done));
        created.map(|(path, _)| path)
    }

    fn delete(&self, path: &str, version: Option<i32>) -> ZkResult<()> {
        self.wait_for(|done| PipelinedClient::delete(self, path, version, done))
    }

    fn exists(&self, path: &str, watch: bool) -> ZkResult<Option<Stat>> {
        self.wait_for(|done| PipelinedClient::exists(self, path, watch, done))
    }

    fn get_children(&self, path: &str, watch: bool) -> ZkResult<Names> {
        self.wait_for(|done| PipelinedClient::get_children(self, path, watch, done))
    }

    fn get_data(&self, path: &str, watch: bool) -> ZkResult<(Vec<u8>, Stat)> {
        self.wait_for(|done| PipelinedClient::get_data(self, path, watch, done))
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> ZkResult<Stat> {
        self.wait_for(|done| PipelinedClient::set_data(self, path, data, version, done))
    }

    fn create_and_list(&self, dir: &str, prefix: &str, data: &[u8], acl: &[Acl]) -> ZkResult<Enqueued> {
        self.wait_for(|done| PipelinedClient::create_and_list(self, dir, prefix, data, acl, done))
    }

    fn transact(&self, operations: &[Op]) -> ZkResult<Transacted> {
        let requests = operations.iter().map(|operation| self.request_of(operation)).collect();
        let reply = self.wait_for(|done| self.send(Request::Multi(requests), done, |outcome| outcome))?;
        transacted_in(&self.chroot, operations, reply)
    }

    fn remove_watches(&self, path: &str, is_unwanted: &dyn Fn() -> bool) {
        self.shared.remove_watches(&self.path(path), is_unwanted);
    }

    fn pipelined(&self) -> Option<&dyn PipelinedClient> {
        Some(self)
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let (contact, former) = {
            let status = &mut self.shared.lock().status;
            let is_closed = status.contact == Contact::Closed;
            let new = (!is_closed).then(|| Arc::clone(&sink));
            (status.contact, std::mem::replace(&mut status.sink, new))
        };
        drop(former);
        if contact == Contact::Lost {
            sink(ClientEvent::SessionLost);
        }
        contact == Contact::Connected
    }

    fn session_id(&self) -> Option<i64> {
        Some(self.shared.lock().status.session_id)
    }

    fn server(&self) -> Option<String> {
        Some(self.shared.lock().status.server.clone())
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

    fn close(&self) {
        lock_order::assert_none_held();
        self.shared.close();
        // The I/O thread cannot wait for its own end.
        if !driver::is_io_thread() && self.shared.is_in_its_process() {
            let longest = self.session_timeout().max(self.max_close) + CLOSE_MARGIN;
            let _ = self.shared.ended().recv_timeout(longest);
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

/// Refuses a blocking call on an I/O thread, which would wait for itself.
fn check_thread() -> ZkResult<()> {
    lock_order::assert_none_held();
    if driver::is_io_thread() { Err(ZkError::BadArguments) } else { Ok(()) }
}

/// The path of a new znode without the chroot, and its metadata.
fn created_in(chroot: &Chroot, outcome: ZkResult<Reply>) -> ZkResult<Created> {
    let (path, stat) = match outcome? {
        Reply::Created { path, stat } => (path, Some(stat)),
        Reply::Path(path) => (path, None),
        _ => return Err(ZkError::MarshallingError),
    };
    Ok((chroot.remove(path).ok_or(ZkError::MarshallingError)?, stat))
}

fn transacted_in(chroot: &Chroot, operations: &[Op], reply: Reply) -> ZkResult<Transacted> {
    match reply.multi_failure() {
        // No operation has failed, but the transaction.
        Some((_, error)) if error == ZkError::SessionExpired || error.is_reply_lost() => return Err(error),
        Some((position, error)) => return Ok(Transacted::Failed { position, error }),
        None => {}
    }
    let Reply::Multi(results) = reply else { return Err(ZkError::MarshallingError) };
    if results.len() != operations.len() {
        return Err(ZkError::MarshallingError);
    }
    let outcome = |(operation, result): (&Op, ZkResult<Reply>)| match (operation, result?) {
        (Op::Create { .. }, reply) => created_in(chroot, Ok(reply)).map(|(path, _)| OpOutcome::Created(path)),
        (Op::Delete { .. }, Reply::Empty) => Ok(OpOutcome::Deleted),
        (Op::SetData { .. }, Reply::Stat(stat)) => Ok(OpOutcome::DataSet(stat)),
        (Op::Check { .. }, Reply::Empty) => Ok(OpOutcome::Checked),
        _ => Err(ZkError::MarshallingError),
    };
    operations.iter().zip(results).map(outcome).collect::<ZkResult<_>>().map(Transacted::Committed)
}

fn names_in(outcome: ZkResult<Reply>) -> ZkResult<Names> {
    match outcome? {
        Reply::Children(names) => Ok(names),
        _ => Err(ZkError::MarshallingError),
    }
}

/// Whether servers refuse the request for its length.
fn is_too_long(request: &Request<'_>) -> bool {
    let estimate = match request {
        Request::Create { path, data, acl, .. } => {
            let acl = acl.iter().map(|acl| acl.scheme.len() + acl.id.len() + 12);
            path.len() + data.len() + acl.sum::<usize>()
        }
        Request::SetData { path, data, .. } => path.len() + data.len(),
        request => match request.path() {
            Some(path) => path.len(),
            None => MAX_REQUEST,
        },
    };
    if estimate < MAX_REQUEST / 2 {
        return false;
    }
    let mut frame = Vec::new();
    request.encode(1, &mut frame);
    frame.len() > 4 + MAX_REQUEST
}
