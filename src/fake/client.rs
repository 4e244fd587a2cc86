//! [`SimulatedClient`]: a client whose faults a test chooses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::state::{Client, Contact, Shared, State};
use crate::client::{Call, Done, EventSink, Granted, Identity, Reply, Verbs, ZooKeeperClient};
use crate::error::{Result, ZkError, ZkResult};
use crate::session::{FirstContact, Session, Threads, check_timeout};
use crate::time::Runtime;

/// A client of a [`SimulatedZooKeeper`](super::SimulatedZooKeeper), with its own session and faults.
///
/// It behaves like the crate's own connection. Calls take effect in the order in which they are made. Replies arrive in
/// the same order, and each event arrives at its place among them. A ping is answered every sixth of the session
/// timeout.
///
/// # Threads
/// The calls of the session are executed one after the other on one of its threads. The closures of
/// [`before_next`](SimulatedClient::before_next) and [`after_next`](SimulatedClient::after_next) run there,
/// too. A swallowed call holds up the calls behind it. Replies and events are delivered on that thread, or on
/// the thread that caused them, while no lock of the simulation is held.
///
/// A method that can cause events returns only after all earlier events have been delivered, with two exceptions. It
/// does not wait if it is called from a callback, and it does not wait for events behind a reply that is swallowed or
/// waits for a closure.
///
/// Pings follow the session's clock.
///
/// # Closing and dropping
/// Without contact, [`Session::close`] ends the session for this client only. On the server, the session and its
/// ephemeral znodes remain until a test calls [`expire`](SimulatedClient::expire).
///
/// Dropping a client on which no session was opened simulates a crash. Here, too, the ZooKeeper session remains on the
/// server until a test calls [`expire_session`](super::SimulatedZooKeeper::expire_session).
pub struct SimulatedClient {
    pub(super) shared: Arc<Shared>,
    pub(super) session: i64,
}

impl SimulatedClient {
    /// Opens a session.
    pub(super) fn connect(shared: &Arc<Shared>, session_timeout: Duration) -> Arc<SimulatedClient> {
        let mut state = shared.lock();
        state.last_session += 1;
        let session = state.last_session;
        state.sessions.insert(session);
        // There is no report delay, because the only server is the leader.
        let client = Client { contact: Contact::Connected, session_timeout, ..Client::default() };
        state.clients.insert(session, client);
        Arc::new(SimulatedClient { shared: Arc::clone(shared), session })
    }

    /// Returns the id of this client's session.
    #[must_use]
    pub fn session_id(&self) -> i64 {
        self.session
    }

    /// Opens a session on this client, in real time. For a session on a virtual clock, see
    /// [`VirtualClock::open`](super::VirtualClock::open).
    ///
    /// The client must be connected, and a client has only one session. The age of the ZooKeeper session is unknown, so
    /// no lock is owned for at least one report delay after this call. By default, the report delay is zero.
    ///
    /// # Errors
    /// - [`InvalidArgument`](crate::ErrorReason::InvalidArgument): the session timeout is out of bounds.
    /// - [`NoServer`](crate::ErrorReason::NoServer): the server did not answer a write within the session timeout, or
    ///   the ZooKeeper session has ended.
    /// - [`Thread`](crate::ErrorReason::Thread): no thread could be started.
    pub fn open_session(self: &Arc<Self>) -> Result<Session> {
        self.open_session_on(Threads::start)
    }

    /// Opens a session whose runtime this function starts.
    pub(crate) fn open_session_on<R: Runtime + 'static>(
        self: &Arc<Self>,
        start: impl FnOnce() -> Result<Arc<R>>,
    ) -> Result<Session> {
        let session_timeout = self.granted().session_timeout;
        check_timeout(session_timeout)?;
        let runtime: Arc<dyn Runtime> = start()?;
        let contact = FirstContact::by(runtime.now(), session_timeout, "the simulated server");
        self.run_on(&runtime);
        Session::open(Ok(Arc::clone(self) as _), runtime, None, contact)
    }

    /// Adopts the clock and the threads of a session, which drive the calls and the pings from now on.
    pub(crate) fn run_on(&self, runtime: &Arc<dyn Runtime>) {
        self.link().run_on(runtime);
    }

    /// Makes a call on this thread and returns its reply.
    ///
    /// The call overtakes calls of the session that are not executed yet. It blocks while its packets are swallowed. It
    /// returns after all earlier events have been delivered.
    ///
    /// # Errors
    /// The errors that the call documents, and [`ConnectionLoss`](ZkError::ConnectionLoss) and
    /// [`SessionExpired`](ZkError::SessionExpired).
    pub fn call(&self, call: &Call) -> ZkResult<Reply> {
        self.link().call(call)
    }

    pub(super) fn link(&self) -> Link {
        Link { shared: Arc::clone(&self.shared), session: self.session }
    }

    /// Makes the client's server lag behind: until this client's next write, its reads show the tree as it is now,
    /// whatever other clients change.
    #[cfg(test)]
    pub(crate) fn lag_until_next_write(&self) {
        let mut state = self.shared.lock();
        let applied = state.tree.clone();
        self.client(&mut state).lagging = Some(applied);
    }

    /// Makes the answers to creates contain only the paths of the new znodes.
    #[cfg(test)]
    pub(crate) fn hide_stats(&self) {
        self.client(&mut self.shared.lock()).hides_stats = true;
    }

    pub(super) fn client<'a>(&self, state: &'a mut State) -> &'a mut Client {
        state.client(self.session)
    }

    fn end_contact(&self) {
        let mut state = self.shared.lock();
        state.hang_up(self.session);
        let client = self.client(&mut state);
        if !client.contact.has_ended() {
            client.contact = Contact::Closed;
        }
        let (sink, threads) = (client.sink.take(), client.wire.take_threads());
        self.shared.deliver(state);
        drop(sink);
        self.link().fail_queued(ZkError::SessionExpired);
        threads.iter().for_each(|threads| threads.shut_down());
    }
}

impl ZooKeeperClient for SimulatedClient {
    fn submit(&self, call: Call, done: Done) {
        self.link().submit(call, done);
    }

    fn remove_watches(&self, path: &str) {
        self.link().remove_watches(path);
    }

    fn subscribe(&self, sink: EventSink) -> bool {
        let mut state = self.shared.lock();
        let client = self.client(&mut state);
        let connected = matches!(client.contact, Contact::Connected | Contact::Silent);
        let former = client.sink.replace(sink);
        drop(state);
        // Dropped outside the lock, because dropping what the sink holds may call the client.
        drop(former);
        connected
    }

    fn identity(&self) -> Identity {
        Identity { session_id: Some(self.session), ..Identity::default() }
    }

    fn granted(&self) -> Granted {
        self.client(&mut self.shared.lock()).granted()
    }

    fn close(&self) {
        self.link().drain();
        let contact = self.client(&mut self.shared.lock()).contact;
        if !contact.has_ended() {
            // Whether the request reaches the server makes no difference to this client.
            let _ = self.link().close();
        }
        self.end_contact();
    }
}

/// Makes calls that bypass the queue of submitted calls.
impl Verbs for SimulatedClient {
    fn make(&self, call: Call) -> ZkResult<Reply> {
        self.call(&call)
    }
}

impl Drop for SimulatedClient {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.hang_up(self.session);
        let client = state.clients.remove(&self.session);
        self.shared.notify(&mut state);
        drop(state);
        // Dropped outside the lock: the sink, the stop points and the callbacks of pending replies belong to
        // the test and may call the simulation when they are dropped.
        if let Some(mut client) = client {
            client.wire.take_threads().iter().for_each(|threads| threads.shut_down());
        }
    }
}

impl fmt::Debug for SimulatedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedClient").field("session", &self.session).finish_non_exhaustive()
    }
}
