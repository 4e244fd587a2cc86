//! [`Session`]: one ZooKeeper session, shared by many locks.
//!
//! The engine makes all decisions. The session drives the engine and owns the threads: one timer thread, and others for
//! work that may block.

mod alarm;
mod builder;
mod chroot;
mod connecting;
mod driver;
pub mod events;
mod happened;
mod mailbox;
mod ownership;
mod pool;
mod process;
mod replacement;
#[cfg(feature = "seam")]
mod seam;
mod seat;
mod threads;
mod timer;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::client::ZooKeeperClient;
use crate::engine::{Event, SessionEnd};
use crate::error::{ErrorReason, LockError, Operation, Result};
use crate::lock_order::{Mutex, rank::SESSION, unwind_safe};
use crate::logging;
use crate::process::{PerProcess, Process};
use crate::recipe::path::ZNodePath;
use crate::time::{Latch, Moment, Runtime};

pub use self::builder::SessionBuilder;
pub(crate) use self::driver::{Core, Tracker};
use self::events::{EventHook, Events, RequestStatus};
use self::happened::Happened;
pub(crate) use self::mailbox::Mailbox;
pub(crate) use self::process::check_process;
pub(crate) use self::replacement::{Factory, OnNewSession, Replacement};
pub(crate) use self::seat::{Observer, Seat};
#[cfg(any(test, feature = "test-util"))]
pub(crate) use self::threads::Threads;

/// The bounds of a session timeout. The server limits the timeout further, by default to between 4 s and 40 s.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long [`Session::close`] waits for the server's confirmation: in total, and while the server is silent.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(5);
const MAX_CLOSE_SILENCE: Duration = Duration::from_secs(1);

/// How long [`Session::close`] waits until the owners of a lost session have been notified.
const MAX_END_WAIT: Duration = Duration::from_millis(100);

/// The pause between attempts while a session is being opened.
const CONNECT_RETRY: Duration = Duration::from_millis(100);

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SessionState {
    /// The server was heard from less than 31/32 of a session timeout ago.
    ///
    /// While a lock is held, answered reads and pings do not count: only an answered write on the current connection
    /// does, timed from when the write was sent. The same rule applies to the first contact of every session.
    Connected,
    /// There is no contact, or the server has been silent for too long.
    ///
    /// The session may still be alive. Locks stay owned until their lease ends.
    Suspended,
    /// The session has ended for good, with all its locks and requests.
    ///
    /// Connect a new session. A session that [replaces itself](SessionBuilder::replace_lost_sessions) does so on its
    /// own, and becomes `Connected` again.
    Lost,
}

/// A ZooKeeper session that any number of locks share.
///
/// Connect one session per process, and create all locks on it. If its server falls silent or goes away, the session
/// moves to another server in the connect string. Locks survive the move if their lease lasts long enough.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Session};
///
/// let session = Session::connect("zk1:2181,zk2:2181,zk3:2181/app", Duration::from_secs(30))?;
/// let lock = BlockingWriteLock::new(&session, "/locks/report")?;
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Handles
/// Cloning is cheap: a clone is another handle to the same session. The session is closed by [`close`](Session::close),
/// or when the last handle is dropped. Every lock and every guard holds a handle. Dropping the last handle waits for
/// the logger as [`close`](Session::close) does, for at most 100 ms.
///
/// # When the session is lost
/// A [lost](SessionState::Lost) session stays lost. The application decides whether to connect a new one and contend
/// again. Locks belong to their session, so create them again on the new one.
///
/// A session that [replaces itself](SessionBuilder::replace_lost_sessions) connects the next one on its own, and the
/// same locks continue on it.
///
/// # How many locks
/// A session can have some 8,000 requests at a time, because of a limit of the servers. See
/// [`SessionBuilder::jute_max_buffer`].
#[doc(alias = "CuratorFramework")]
#[doc(alias = "ZooKeeper")]
#[must_use = "the session ends at once when no handle is kept"]
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

unwind_safe!(Session, SessionBuilder);

/// A handle that does not keep the session open.
pub(crate) struct WeakSession {
    handle: Weak<Handle>,
}

impl WeakSession {
    /// Returns the session, or `None` if no handle is left.
    pub(crate) fn upgrade(&self) -> Option<Session> {
        self.handle.upgrade().map(|handle| Session { handle })
    }
}

/// The shared part of all handles. Dropping it ends the session.
pub(super) struct Handle {
    /// Changes only when a lost session is replaced.
    core: Mutex<SESSION, Arc<Core>>,
    replacement: Option<Replacement>,
    process: Process,
    runtime: Arc<dyn Runtime>,
    /// The core that a forked child uses. The child must not lock the parent's mutexes, because the thread that holds
    /// one may not exist in the child.
    in_child: PerProcess<Arc<Core>>,
}

impl Session {
    /// Connects to an ensemble, and returns when the session is established.
    ///
    /// `session_timeout` is how long the servers keep the session, with its locks, without hearing from this process.
    /// See [`SessionBuilder::session_timeout`].
    ///
    /// `connect_string` is a list of `host:port`, separated by commas, with an optional chroot at the end:
    /// `zk1:2181,zk2:2181/app`.
    /// - The default port is 2181.
    /// - The chroot is given once, after the last server. A chroot after each server is refused, and so is any
    ///   separator other than a comma.
    /// - Each name is resolved again in every round through the servers, so changed addresses are found.
    /// - The list itself never changes. A server that a reconfiguration adds to the ensemble is used only if one of the
    ///   names resolves to it.
    ///
    /// # Errors
    /// The same as [`SessionBuilder::connect`].
    pub fn connect(connect_string: &str, session_timeout: Duration) -> Result<Session> {
        Session::builder(connect_string).session_timeout(session_timeout).connect()
    }

    /// Returns a builder for a session with other settings.
    pub fn builder(connect_string: impl Into<String>) -> SessionBuilder {
        SessionBuilder::new(connect_string.into())
    }

    #[cfg(any(test, feature = "test-util"))]
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

    #[cfg(any(test, feature = "seam", feature = "test-util"))]
    pub(crate) fn open_replaced(factory: Factory) -> Result<Session> {
        let core = replacement::make(&factory, &crate::wait::CancelToken::new())?;
        Session::replaced_by(core, factory)
    }

    /// Creates a session on this core. After each loss, it gets the next core from the factory.
    fn replaced_by(core: Arc<Core>, factory: Factory) -> Result<Session> {
        let replacement = Replacement::new();
        let closed = replacement.closed();
        let handle = Arc::new(Handle::new(Arc::clone(&core), Some(replacement)));
        replacement::start(&handle, core, factory, closed)?;
        Ok(Session { handle })
    }

    /// Returns the state of the session.
    ///
    /// Does no I/O and does not block.
    #[must_use]
    pub fn state(&self) -> SessionState {
        self.core().snapshot().state
    }

    /// Returns a channel that receives every later change of the [`state`](Session::state).
    ///
    /// The changes arrive in order. [`close`](Session::close) disconnects the channel without a message, so `Lost`
    /// always means that the session was taken away.
    ///
    /// The channel is unbounded, and each unread change takes a few bytes. A dropped receiver uses memory until the
    /// next change, or the next loss of a session that is replaced. So subscribe once, not for each lock.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<SessionState> {
        let (subscriber, changes) = unbounded();
        if let Some(replacement) = self.replacement() {
            replacement.subscribe(subscriber.clone());
        }
        self.core().subscribe(subscriber);
        changes
    }

    /// Returns the effective session timeout.
    ///
    /// The server grants a timeout on every connection. The shortest timeout granted since the session was opened is
    /// the effective one. A longer, later grant does not count, because a new leader of the ensemble uses the timeout
    /// that was granted when the session was created.
    #[must_use]
    pub fn session_timeout(&self) -> Duration {
        self.core().snapshot().session_timeout
    }

    /// Returns the session id.
    ///
    /// ZooKeeper's logs and four-letter commands print it in hexadecimal. Returns `None` if the session runs on another
    /// client library that does not report it.
    ///
    /// A session that [replaces](crate::SessionBuilder::replace_lost_sessions) a lost one has a different id.
    #[must_use]
    pub fn id(&self) -> Option<i64> {
        self.core().client().identity().session_id
    }

    /// Returns the server of the current connection, or of the last one.
    ///
    /// The result contains the address to which the server's name was resolved. Returns `None` if the session runs on
    /// another client library that does not report it.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        self.core().client().identity().server
    }

    /// Returns the lock requests of this session that have not ended, oldest first.
    ///
    /// Use it for a metrics endpoint or a debug page. Does no I/O and does not block.
    ///
    /// - During an outage, the result includes requests that wait for the connection. Their znodes may not exist yet.
    /// - On a session that [replaces itself](SessionBuilder::replace_lost_sessions), the result shows the requests on
    ///   the current session. Between the loss of one session and the start of the next, the result is empty. On the
    ///   next session, a waiting call makes a new request, whose age starts at zero.
    /// - All threads that wait for a [`CohortLock`](crate::locks::CohortLock) share one request.
    /// - A [`Semaphore`](crate::locks::Semaphore) makes two requests for a permit, one after the other.
    #[must_use]
    pub fn requests(&self) -> Vec<RequestStatus> {
        self.core().requests()
    }

    /// Installs a hook that receives the events of the session and its locks.
    ///
    /// A session has at most one hook, which also serves the sessions that replace it. If the session already has a
    /// hook, that hook stays, and the call returns `false`. In a forked child, the call installs nothing, and returns
    /// `false`, too. If the session is in contact, [`Connected`](crate::events::SessionEvent::Connected) is reported at
    /// once.
    #[must_use = "the session may already have a hook, which stays"]
    pub fn set_event_hook(&self, hook: impl EventHook + 'static) -> bool {
        self.handle.set_events(Arc::new(hook))
    }

    /// Closes the session for all its handles.
    ///
    /// All locks are released, waiting calls return an error, and listeners and guards report
    /// [`Closed`](crate::LossReason::Closed). Idempotent.
    ///
    /// Blocks until the server has confirmed the end of the session, for at most five seconds. Without contact, the
    /// call does not wait at all; while the server is silent, it waits for at most a second. The rest happens in the
    /// background.
    ///
    /// Then waits until the logger has written the lines about the session, for at most 100 ms. They may give the reason
    /// for which the process is about to exit.
    ///
    /// Does not wait for work under a lock, and the next owner may begin at once. So first let all of it end: join the
    /// threads that hold guards, and [wait](crate::Candidate::wait) for each stopped candidate.
    ///
    /// Call this, or unlock all guards, before the process exits. Dropping guards and handles does not wait for the
    /// server, and a znode that is left behind blocks others until the session times out.
    pub fn close(&self) {
        let core = self.handle.close();
        let is_lost = core.snapshot().end_reason.is_some_and(|end| end != SessionEnd::Closed);
        let begun = core.now();
        core.end(SessionEnd::Closed);
        let mut waits = core.snapshot().in_contact && !is_lost;
        while waits {
            let is_finished = core.wait(&[core.finished()], Some(core.now().after(MAX_CLOSE_SILENCE)));
            let now = core.now();
            let is_silent = now.since(core.snapshot().last_contact) >= MAX_CLOSE_SILENCE;
            waits = !is_finished && !is_silent && now.since(begun) < MAX_CLOSE_WAIT;
        }
        if is_lost {
            // Each lost lock is logged when its owner is notified.
            core.wait(&[core.ended()], Some(core.now().after(MAX_END_WAIT)));
        }
        // In a forked child, a thread of the parent may hold the log's mutex.
        if self.process().is_current() {
            logging::await_written();
        }
    }

    pub(crate) fn core(&self) -> Arc<Core> {
        self.handle.core()
    }

    /// Returns the state of the replacement, which notifies followers of each new session, or `None` if a lost session
    /// is not replaced.
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

    /// Notifies a follower of each session that replaces a lost one, and of the close, until the follower is dropped.
    /// If the session is already closed, notifies the follower immediately. Does nothing if lost sessions are not
    /// replaced. The caller must not hold a mutex.
    pub(crate) fn follow(&self, follower: Weak<dyn OnNewSession>) {
        if let Some(replacement) = self.replacement() {
            replacement.follow(follower);
        }
    }

    /// Checks a path that a caller has given for a lock on this session.
    pub(crate) fn lock_path(&self, dir: &str) -> Result<ZNodePath> {
        ZNodePath::of_lock(self.core().client().identity().chroot.as_deref(), dir)
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
        if let Some(replacement) = &replacement {
            core.replace_until(replacement.closed());
        }
        Handle { core: Mutex::new(core), replacement, process, runtime, in_child: PerProcess::new() }
    }

    fn core(&self) -> Arc<Core> {
        match self.process.is_current() {
            true => Arc::clone(&self.core.lock()),
            false => Arc::clone(self.in_child.get_or_make(|| process::core_of_child(&self.runtime))),
        }
    }

    fn replacement(&self) -> Option<&Replacement> {
        self.replacement.as_ref().filter(|_| self.process.is_current())
    }

    /// Ends the replacement, if there is one, and returns the last core.
    ///
    /// The replacement is closed before the core is read. [`replace`](Handle::replace) holds the mutex of the core
    /// while it checks for the close and installs the next core. So a core that arrives at the same time is either
    /// returned here or refused by `replace`, and is ended in both cases.
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
        // Under the mutex, so that the next core gets the hook, too.
        let current = self.core.lock();
        let core = Arc::clone(&current);
        // A refused hook is dropped outside the mutex.
        let events = Arc::new(Events::new(hook, core.runtime()));
        let is_first = core.keep_events(Arc::clone(&events));
        drop(current);
        if is_first {
            core.report_present_contact();
        }
        is_first
    }

    /// Replaces a lost core with a new one. Returns `false` if the session was closed in the meantime.
    fn replace(&self, core: Arc<Core>) -> bool {
        let contact = Some(core.contact());
        let mut current = self.core.lock();
        // Under the mutex: see `close`.
        let Some(replacement) = self.replacement.as_ref().filter(|replacement| !replacement.is_closed())
        else {
            return false;
        };
        core.replace_until(replacement.closed());
        if let Some(events) = current.events() {
            // Posted here, before any event of the new session.
            events.post(Happened { event: Event::SessionReplaced, seat: None, contact });
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
        // In a forked child, the session belongs to the parent, and a mutex may stay held forever.
        match self.process.is_current() {
            true => {
                self.close().end(SessionEnd::Closed);
                logging::await_written();
            }
            // Dropping the replacement would drop senders whose channels threads of the parent may have locked.
            false => std::mem::forget(self.replacement.take()),
        }
    }
}

/// The wait of a new session for its first contact.
pub(crate) struct FirstContact {
    tried: String,
    /// The time limit that the error mentions.
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
            core.end(SessionEnd::Closed);
            Err(error)
        }
    }
}

fn await_first_contact(core: &Arc<Core>, contact: FirstContact) -> Result<()> {
    let mut why = "no answer".to_owned();
    // With contact, the session makes the first attempt by itself.
    let mut tries = !core.snapshot().in_contact;
    loop {
        // Taken before the state is read, so that no change is missed.
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
        // An answer that arrives before the client reports contact proves nothing, so try again after a pause.
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
