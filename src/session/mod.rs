//! [`Session`]: one ZooKeeper session, shared by many locks.
//!
//! It drives the engine, which decides, and has the threads: one for the clock, and others while something
//! may block.

mod alarm;
mod builder;
mod chroot;
mod driver;
pub mod events;
mod happened;
mod mailbox;
mod own_client;
mod ownership;
mod pool;
mod process;
mod replacement;
mod seat;
mod threads;
mod timer;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::client::port::ZooKeeperClient;
use crate::engine::Event;
use crate::error::{ErrorReason, LockError, LossReason, Operation, Result};
use crate::lock_order::{Mutex, rank::SESSION, unwind_safe};
use crate::process::Process;
use crate::time::{Latch, Moment, Runtime};

pub use self::builder::SessionBuilder;
pub(crate) use self::driver::{Core, Tracker};
use self::events::{EventHook, Events, RequestStatus};
use self::happened::Happened;
pub(crate) use self::mailbox::Mailbox;
#[cfg(feature = "test-util")]
pub use self::own_client::own_connection;
pub(crate) use self::process::check_process;
pub(crate) use self::replacement::{Factory, OnNewSession, Replacement};
pub(crate) use self::seat::{Observer, Seat};
pub(crate) use self::threads::Threads;

/// The bounds of a session timeout. The server limits it further, by default to 4 s to 40 s.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest wait of [`Session::close`] for the server's confirmation, in total and in silence.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(5);
const MAX_CLOSE_SILENCE: Duration = Duration::from_secs(1);

/// The delay before a first request is tried again when contact is lost while connecting.
const CONNECT_RETRY: Duration = Duration::from_millis(100);

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// In contact, and the server has given a sign less than 31/32 of the session timeout ago. While
    /// a lock is held, that sign must be the answer to a write on the present connection, counted
    /// from its sending; and so it must on a session whose client does not
    /// [report its pings](crate::client::port::ZooKeeperClient::reports_pings), and for the first sign of any session.
    Connected,
    /// Out of contact, or no such sign for too long. The session may live; locks held are still owned
    /// until their lease ends.
    Suspended,
    /// The session has ended and cannot come back, nor can any lock or request made on it. Connect
    /// a new one; one that [replaces itself](SessionBuilder::replace_lost_sessions) does so, and is
    /// `Connected` again.
    Lost,
}

/// A connection to ZooKeeper, for many locks; [`SessionBuilder::jute_max_buffer`] says for how many.
///
/// Cloning is cheap and gives another handle to the same session. The session is closed by
/// [`close`](Session::close), or when the last handle is dropped; every lock and guard holds one.
///
/// A session that is [lost](SessionState::Lost) stays lost: whether to connect a new one, and to
/// contend again, is the application's decision. Locks belong to their session, so they are made again on
/// the new one. On a session that [replaces itself](SessionBuilder::replace_lost_sessions), the same locks
/// go on with the next one.
///
/// A session moves to another server of the list when its own is silent or goes. It takes its locks
/// along, as long as their lease lasts.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Session};
///
/// let session = Session::connect("zk1:2181,zk2:2181,zk3:2181/app", Duration::from_secs(30))?;
/// let lock = BlockingWriteLock::new(&session, "/locks/report")?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "the session ends at once when no handle is kept"]
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

unwind_safe!(Session, SessionBuilder);

/// A session that is not kept open.
pub(crate) struct WeakSession {
    handle: Weak<Handle>,
}

impl WeakSession {
    /// Returns the session; `None` without a handle of it.
    pub(crate) fn upgrade(&self) -> Option<Session> {
        self.handle.upgrade().map(|handle| Session { handle })
    }
}

/// Ends the session with the last handle.
pub(super) struct Handle {
    /// Changes only when a lost session is replaced.
    core: Mutex<SESSION, Arc<Core>>,
    replacement: Option<Replacement>,
    process: Process,
    runtime: Arc<dyn Runtime>,
    /// Of a forked child, which may take no mutex of the parent's: its holder may not exist there.
    in_child: OnceLock<Arc<Core>>,
}

impl Session {
    /// Connects to an ensemble and returns when the session is established.
    ///
    /// `connect_string` is a list of `host:port`, separated by commas, with an optional chroot:
    /// `zk1:2181,zk2:2181/app`. A missing port is 2181. The chroot is given once: one behind each
    /// server is refused, and so is another separator than a comma. Each name is looked up again in every
    /// round over the servers, so new addresses behind it are used. The list itself stays as it is: a server
    /// that is added to the ensemble by a reconfiguration is not used unless a name stands for it.
    /// `session_timeout` is how long the server
    /// keeps the session, with its locks, without hearing from this process; see
    /// [`SessionBuilder::session_timeout`].
    ///
    /// # Errors
    /// As [`SessionBuilder::connect`].
    pub fn connect(connect_string: &str, session_timeout: Duration) -> Result<Session> {
        Session::builder(connect_string).session_timeout(session_timeout).connect()
    }

    /// Returns a builder, for a connection with other settings.
    pub fn builder(connect_string: impl Into<String>) -> SessionBuilder {
        SessionBuilder::new(connect_string.into())
    }

    /// Uses any other client.
    ///
    /// The age of its session is unknown, so the first lock on it is owned one
    /// [`report_delay`](crate::client::port::ZooKeeperClient::report_delay) after this call or later.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorReason::InvalidArgument) for a session timeout out of bounds,
    /// [`NoServer`](crate::ErrorReason::NoServer) if the client has no contact within that time,
    /// [`Thread`](crate::ErrorReason::Thread).
    pub fn from_client(client: Arc<dyn ZooKeeperClient>) -> Result<Session> {
        let session_timeout = client.session_timeout();
        check_timeout(session_timeout)?;
        let threads = Threads::start()?;
        let contact = FirstContact::by(threads.now(), session_timeout, "the given client");
        Session::open(Ok(client), threads, None, contact)
    }

    pub(crate) fn open(
        client: Result<Arc<dyn ZooKeeperClient>>,
        runtime: Arc<dyn Runtime>,
        opened_after: Option<Moment>,
        contact: FirstContact,
    ) -> Result<Session> {
        Ok(Session::on(open_core(client, runtime, opened_after, contact)?))
    }

    fn on(core: Arc<Core>) -> Session {
        Session { handle: Arc::new(Handle::new(core, None)) }
    }

    /// Uses any other client, and asks the factory for another one whenever the session is lost, as
    /// with [`SessionBuilder::replace_lost_sessions`].
    ///
    /// The factory is called on a thread of the session. It may block, at best not longer than a
    /// session timeout. A callback thread drops it, and each lost client. If it fails, or panics, it is
    /// called again, soon at first and later every three seconds. A client of which no session is made is closed. Each call must open a session:
    /// the lease of its client begins with the call, so an older session could own locks that the
    /// server has given to others.
    ///
    /// # Errors
    /// The first error of the factory, or those of [`from_client`](Session::from_client).
    pub fn from_client_factory(
        factory: impl Fn() -> Result<Arc<dyn ZooKeeperClient>> + Send + Sync + 'static,
    ) -> Result<Session> {
        let runtime = || Ok(Threads::start()? as Arc<dyn Runtime>);
        Session::open_replaced(Factory::new(runtime, factory))
    }

    pub(crate) fn open_replaced(factory: Factory) -> Result<Session> {
        let core = replacement::make(&factory)?;
        Session::replaced_by(core, factory)
    }

    /// Uses a core, and the factory whenever its session is lost.
    fn replaced_by(core: Arc<Core>, factory: Factory) -> Result<Session> {
        let replacement = Replacement::new();
        let closed = replacement.closed();
        let handle = Arc::new(Handle::new(Arc::clone(&core), Some(replacement)));
        replacement::start(&handle, core, factory, closed)?;
        Ok(Session { handle })
    }

    /// Returns the state of the session. Does no I/O and does not block.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.core().snapshot().state
    }

    /// Returns a channel on which every later change of the [`state`](Session::state) arrives, in
    /// order. It is unbounded: each unread change takes a few bytes. A receiver that was dropped takes
    /// memory until the next change: subscribe once, and not for each lock.
    ///
    /// [`close`](Session::close) disconnects it, without a message. So `Lost` means that the session was
    /// taken away.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<SessionState> {
        let (subscriber, changes) = unbounded();
        if let Some(replacement) = self.replacement() {
            replacement.subscribe(subscriber.clone());
        }
        self.core().subscribe(subscriber);
        changes
    }

    /// Returns the session timeout that counts: the shortest that a server has granted since the
    /// session was opened. Each server grants its own on every connection. A longer one than before
    /// does not count, because a new leader of the ensemble goes by the one of the session's creation.
    #[must_use]
    pub fn session_timeout(&self) -> Duration {
        self.core().snapshot().session_timeout
    }

    /// Returns the number of the session, which ZooKeeper's logs and four-letter commands write in
    /// hexadecimal. `None` on a client that does not report it, as the crate `zookeeper`.
    ///
    /// A session that [replaces](crate::SessionBuilder::replace_lost_sessions) a lost one has
    /// another number.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        self.core().client().session_id()
    }

    /// Returns the server of the present connection, or of the last one, with the address that its
    /// name was resolved to. `None` on a client that does not report it, as the crate `zookeeper`.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        self.core().client().server()
    }

    /// Returns the requests for locks on this session that have not ended, the oldest first, for a metrics endpoint
    /// or a debug page. Does no I/O and does not block.
    ///
    /// In an outage it shows those that wait for the connection, too, whose znodes may not exist yet. On a session that
    /// [replaces itself](SessionBuilder::replace_lost_sessions), it shows the requests on the present one: those that
    /// wait make new ones there, so they begin with an age of zero. There are none from the loss of a session until the
    /// next one.
    ///
    /// The threads that wait for a [`CohortLock`](crate::locks::CohortLock) share the request of their process. A
    /// [`Semaphore`](crate::locks::Semaphore) makes two requests for a permit, one after the other.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestStatus> {
        self.core().requests()
    }

    /// Has a hook receive what happens on the session and with its locks. The session, and those
    /// that replace it, have one hook: returns `false` if there was one before, which stays.
    ///
    /// If the session is connected, the hook gets that as the first event.
    #[must_use = "there may be a hook already, which stays"]
    pub fn set_event_hook(&self, hook: impl EventHook + 'static) -> bool {
        self.handle.set_events(Arc::new(hook))
    }

    /// Closes the session: its locks are released, waiting calls return an error, listeners and
    /// guards report [`SessionClosed`](LossReason::SessionClosed). Closes every handle. Idempotent.
    ///
    /// Returns when the server has confirmed; without contact at once, after a second of silence,
    /// and after five seconds in any case. The rest happens in the background. Before a process exits,
    /// it should call this, or unlock its guards: dropping guards and handles does not wait for the
    /// server, and a znode that is left blocks others until the session timeout.
    pub fn close(&self) {
        let core = self.handle.close();
        let is_lost = core.snapshot().end_reason.is_some_and(LossReason::is_session_loss);
        let begun = core.now();
        core.end(LossReason::SessionClosed);
        let mut waits = core.snapshot().in_contact && !is_lost;
        while waits {
            let is_finished = core.wait(&[core.finished()], Some(core.now().after(MAX_CLOSE_SILENCE)));
            let now = core.now();
            let is_silent = now.since(core.snapshot().last_contact) >= MAX_CLOSE_SILENCE;
            waits = !is_finished && !is_silent && now.since(begun) < MAX_CLOSE_WAIT;
        }
    }

    pub(crate) fn core(&self) -> Arc<Core> {
        self.handle.core()
    }

    /// Returns whether requests that wait are to join again after a loss, and if so, how they hear of the
    /// new session.
    pub(crate) fn replacement(&self) -> Option<&Replacement> {
        self.handle.replacement()
    }

    /// The process that opened the session. Takes no mutex.
    pub(crate) fn process(&self) -> Process {
        self.handle.process
    }

    pub(crate) fn downgrade(&self) -> WeakSession {
        WeakSession { handle: Arc::downgrade(&self.handle) }
    }

    /// Notifies a follower of each session that replaces a lost one, and of the close, until it is dropped. If the
    /// session was closed already, this does so at once. The caller holds no mutex.
    pub(crate) fn follow(&self, follower: Weak<dyn OnNewSession>) {
        if let Some(replacement) = self.replacement() {
            replacement.follow(follower);
        }
    }

    /// Fails in a forked child, where the session has ended. Takes no mutex.
    ///
    /// # Errors
    /// `SessionLost`.
    pub(crate) fn check_process(&self, operation: Operation, path: impl fmt::Display) -> Result<()> {
        check_process(self.handle.process, operation, path)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("core", &self.core()).finish()
    }
}

impl Handle {
    fn new(core: Arc<Core>, replacement: Option<Replacement>) -> Handle {
        let (process, runtime) = (core.process(), Arc::clone(core.runtime()));
        Handle { core: Mutex::new(core), replacement, process, runtime, in_child: OnceLock::new() }
    }

    fn core(&self) -> Arc<Core> {
        match self.process.is_current() {
            true => Arc::clone(&self.core.lock()),
            false => Arc::clone(self.in_child.get_or_init(|| process::core_of_child(&self.runtime))),
        }
    }

    fn replacement(&self) -> Option<&Replacement> {
        self.replacement.as_ref().filter(|_| self.process.is_current())
    }

    /// Ends the replacement, if there is any, and returns the core that is the last one.
    ///
    /// The replacement is closed first, and the core is read under the mutex under which
    /// [`replace`](Handle::replace) checks for that. So a core that is installed meanwhile is
    /// either the one returned, or refused by `replace`, and ended in both cases.
    fn close(&self) -> Arc<Core> {
        if let Some(replacement) = self.replacement() {
            replacement.close();
        }
        self.core()
    }

    fn set_events(&self, hook: Arc<dyn EventHook>) -> bool {
        if !self.process.is_current() {
            return false;
        }
        // Under the mutex, so that the next core gets them.
        let current = self.core.lock();
        let core = Arc::clone(&current);
        // One that is refused is dropped outside the mutex.
        let events = Arc::new(Events::new(hook, core.runtime()));
        let is_first = core.keep_events(Arc::clone(&events));
        drop(current);
        if is_first {
            core.report_present_contact();
        }
        is_first
    }

    /// Replaces a lost core by a new one; `false` if the session was closed meanwhile.
    fn replace(&self, core: Arc<Core>) -> bool {
        let mut current = self.core.lock();
        // Under the mutex: see `close`.
        if self.replacement.as_ref().is_none_or(Replacement::is_closed) {
            return false;
        }
        if let Some(events) = current.events() {
            // Before all that happens on the new session.
            events.post(Arc::downgrade(&core), Happened { event: Event::SessionReplaced, seat: None });
            core.keep_events(Arc::clone(events));
        }
        let lost = std::mem::replace(&mut *current, core);
        drop(current);
        drop(lost);
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child the session is the parent's, and a mutex may stay held for ever.
        if self.process.is_current() {
            self.close().end(LossReason::SessionClosed);
        }
    }
}

/// The wait of a new session for its first contact.
pub(crate) struct FirstContact {
    tried: String,
    /// The time allowed.
    timeout: Duration,
    deadline: Option<Moment>,
    cancelled: Latch,
}

impl FirstContact {
    pub(crate) fn by(begun: Moment, timeout: Duration, tried: impl Into<String>) -> FirstContact {
        let deadline = Some(begun.after(timeout));
        FirstContact { tried: tried.into(), timeout, deadline, cancelled: Latch::never() }
    }

    fn is_over(&self, now: Moment) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now) || self.cancelled.is_set()
    }

    fn failed(self, why: &str) -> LockError {
        if self.cancelled.is_set() {
            return LockError::of(ErrorReason::Cancelled, Operation::CONNECT, self.tried);
        }
        LockError::no_server(format!("{} ({why})", self.tried), self.timeout)
    }
}

/// Starts a core and waits for the first answer to a write.
fn open_core(
    client: Result<Arc<dyn ZooKeeperClient>>,
    runtime: Arc<dyn Runtime>,
    opened_after: Option<Moment>,
    contact: FirstContact,
) -> Result<Arc<Core>> {
    let client = client.inspect_err(|_| runtime.shut_down())?;
    let core = Core::start(client, runtime, opened_after);
    match await_first_contact(&core, contact) {
        Ok(()) => Ok(core),
        Err(error) => {
            core.end(LossReason::SessionClosed);
            Err(error)
        }
    }
}

fn await_first_contact(core: &Arc<Core>, contact: FirstContact) -> Result<()> {
    let mut why = "no answer".to_owned();
    // In contact the session tries by itself.
    let mut tries = !core.snapshot().in_contact;
    loop {
        // Before the state is read, so that no change is missed.
        let changed = core.next_change();
        if core.snapshot().state != SessionState::Suspended || contact.is_over(core.now()) {
            break;
        }
        if tries {
            let attempt = core.begin_to_write_nothing();
            core.wait(&[&changed, attempt.latch(), &contact.cancelled], contact.deadline);
            if let Some(Err(error)) = attempt.get() {
                why = error.to_string();
            }
        }
        // An answer from before the client's report of contact does not count.
        let pause = core.now().after(CONNECT_RETRY);
        let pause = contact.deadline.map_or(pause, |deadline| pause.min(deadline));
        core.wait(&[&changed, &contact.cancelled], Some(pause));
        tries = true;
    }
    if core.snapshot().state == SessionState::Connected { Ok(()) } else { Err(contact.failed(&why)) }
}

pub(crate) fn check_timeout(timeout: Duration) -> Result<()> {
    if (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout) {
        return Ok(());
    }
    let rule = format!("{timeout:?} is not between {MIN_TIMEOUT:?} and {MAX_TIMEOUT:?}");
    Err(LockError::invalid_argument("session timeout", rule))
}
