//! [`SimulatedClient`]: a [`ZooKeeperClient`] whose faults a test chooses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::state::{Client, Contact, Shared, State};
use crate::client::port::Verbs;
use crate::client::{Call, Done, EventSink, Reply, SessionRuntime, ZooKeeperClient};
use crate::error::{ZkError, ZkResult};
use crate::time::Runtime;

/// A client of a [`SimulatedZooKeeper`](super::SimulatedZooKeeper), with its own session and faults.
///
/// By default it behaves like the crate's own connection. Calls take effect in the order in which they are
/// submitted. Replies arrive in the same order, and each event arrives at its place among them. A
/// ping is answered every sixth of the session timeout. `set_ordered`, `set_reports_pings`, `set_returns_stats`,
/// `set_owns_session` and `set_min_idle_for_ping` turn it into another kind of client.
///
/// # Threads
/// By default, submitted calls are executed one after the other on a thread of the session. The closures of
/// [`before_next`](SimulatedClient::before_next) and [`after_next`](SimulatedClient::after_next) run there,
/// too. A swallowed call holds up the calls behind it. Replies and events are delivered on that thread, or on
/// the thread that caused them, while no lock of the simulation is held.
///
/// A method that can cause events returns only after all earlier events have been delivered, with two exceptions. It
/// does not wait if it is called from a callback, and it does not wait for events behind a reply that is swallowed or
/// waits for a closure.
///
/// Pings follow the session's clock. A client that is used without a session starts its own threads when a call is
/// first [submitted](ZooKeeperClient::submit) to it, and its pings follow real time.
///
/// # Closing and dropping
/// Without contact, [`close`](ZooKeeperClient::close) ends the session for this client only. On the server,
/// the session and its ephemeral znodes remain until a test calls [`expire`](SimulatedClient::expire).
///
/// Dropping the client without closing it simulates a crash. Here, too, the session remains on the server
/// until a test calls [`expire_session`](super::SimulatedZooKeeper::expire_session).
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
        let client = Client {
            contact: Contact::Connected,
            session_timeout,
            is_ordered: true,
            reports_pings: true,
            returns_stats: true,
            owns_session: true,
            ..Client::default()
        };
        state.clients.insert(session, client);
        Arc::new(SimulatedClient { shared: Arc::clone(shared), session })
    }

    /// Returns the id of this client's session.
    #[must_use]
    pub fn session_id(&self) -> i64 {
        self.session
    }

    /// Makes a call on this thread and returns its reply.
    ///
    /// This is for tests that build another client on top of this one. The call overtakes calls that are
    /// [submitted](ZooKeeperClient::submit) but not executed yet. It blocks while its packets are swallowed. It returns
    /// after all earlier events have been delivered.
    ///
    /// # Errors
    /// The errors that the call documents, and those in the contract of [`ZooKeeperClient`].
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
    fn run_on(&self, runtime: &SessionRuntime) {
        self.link().run_on(runtime);
    }

    fn submit(&self, call: Call, done: Done) {
        self.link().submit(call, done);
    }

    fn is_ordered(&self) -> bool {
        self.client(&mut self.shared.lock()).is_ordered
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

    fn session_id(&self) -> Option<i64> {
        Some(self.session)
    }

    fn report_delay(&self) -> Duration {
        self.client(&mut self.shared.lock()).report_delay
    }

    fn reports_pings(&self) -> bool {
        self.client(&mut self.shared.lock()).reports_pings
    }

    fn min_idle_for_ping(&self) -> Duration {
        self.client(&mut self.shared.lock()).min_idle_for_ping
    }

    fn owns_session(&self) -> bool {
        self.client(&mut self.shared.lock()).owns_session
    }

    fn session_timeout(&self) -> Duration {
        self.client(&mut self.shared.lock()).session_timeout
    }

    fn close(&self) {
        self.link().drain();
        let (contact, owns_session) = {
            let mut state = self.shared.lock();
            let client = self.client(&mut state);
            (client.contact, client.owns_session)
        };
        if !contact.has_ended() && owns_session {
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
