//! Methods that inject faults into a [`SimulatedClient`].

use std::time::Duration;

use super::access::Identity;
use super::client::SimulatedClient;
use super::faults::{Effect, Fault, FaultKind, Plan, SimOperation};
use super::state::{Client, Contact, State};
use crate::client::{ClientEvent, Granted};
use crate::error::ZkError;

/// Contact and session.
impl SimulatedClient {
    /// Cuts the connection. The session lives on.
    ///
    /// The sink gets `Disconnected`, calls fail with `ConnectionLoss` and have no effect, replies in transit are lost,
    /// and the server drops this client's watches. This also ends any [swallowing](SimulatedClient::swallow)
    /// of packets, and the blocked calls fail. If the client knows that it is not connected, this does nothing.
    pub fn disconnect(&self) {
        let mut state = self.shared.lock();
        state.cut(self.session);
        self.shared.deliver(state);
    }

    /// Reconnects after [`disconnect`](SimulatedClient::disconnect), without the watches.
    ///
    /// The sink gets `Connected`, or `SessionLost` if the session has expired in the meantime, even
    /// [silently](SimulatedClient::expire_silently). If the client is connected, or knows that its session has ended,
    /// this does nothing.
    pub fn reconnect(&self) {
        let mut state = self.shared.lock();
        let contact = self.client(&mut state).contact;
        match contact {
            Contact::Silent => state.lose(self.session),
            Contact::Disconnected if !state.sessions.contains(&self.session) => state.lose(self.session),
            Contact::Disconnected => {
                self.client(&mut state).contact = Contact::Connected;
                let granted = self.client(&mut state).granted();
                state.queue_event(self.session, ClientEvent::Connected(granted));
            }
            Contact::Connected | Contact::Lost | Contact::Closed => {}
        }
        let is_new = contact == Contact::Disconnected;
        self.shared.deliver(state);
        if is_new {
            self.link().begin_pings();
        }
    }

    /// Sets what the server grants at the next [`reconnect`](SimulatedClient::reconnect).
    ///
    /// The interval between pings follows from the new values at once.
    pub fn grant(&self, granted: Granted) {
        let mut state = self.shared.lock();
        let client = self.client(&mut state);
        (client.session_timeout, client.report_delay) = (granted.session_timeout, granted.report_delay);
    }

    /// Expires the session on the server, which deletes its ephemeral znodes.
    ///
    /// The client learns of the expiry at once if it is connected and nothing is swallowed; otherwise, at its next
    /// contact. Its sink then gets `SessionLost`, and its calls fail with `SessionExpired`.
    pub fn expire(&self) {
        let mut state = self.shared.lock();
        state.expire(self.session);
        self.shared.deliver(state);
    }

    /// Expires the session behind a partition, without notifying the client.
    ///
    /// The session's ephemeral znodes are deleted. Submitted calls in flight fail with `ConnectionLoss`, and so do
    /// later calls until [`reconnect`](SimulatedClient::reconnect) or
    /// [`report_expiry`](SimulatedClient::report_expiry). While packets are swallowed, later calls block instead.
    pub fn expire_silently(&self) {
        let mut state = self.shared.lock();
        state.end_session(self.session);
        let client = self.client(&mut state);
        if client.contact == Contact::Connected {
            client.contact = Contact::Silent;
            client.connection += 1;
        }
        self.shared.deliver(state);
    }

    /// Makes the client give up its session: the sink gets `SessionLost`.
    ///
    /// The session and its znodes remain on the server. Does nothing if the client knows that its session has ended.
    pub fn give_up(&self) {
        let mut state = self.shared.lock();
        state.lose(self.session);
        self.shared.deliver(state);
    }

    /// Notifies the client that its session has expired: the sink gets `SessionLost`.
    ///
    /// Does nothing if the session is live or the client already knows that it has ended.
    pub fn report_expiry(&self) {
        let mut state = self.shared.lock();
        if !state.sessions.contains(&self.session) {
            state.lose(self.session);
        }
        self.shared.deliver(state);
    }

    /// Silently swallows everything that either side sends, as a network partition does.
    ///
    /// Calls block; requests do not reach the server; replies and events do not reach the client. This lasts until
    /// [`release`](SimulatedClient::release) or [`disconnect`](SimulatedClient::disconnect), or until the client learns
    /// that its session is lost. If the client knows that it is not connected, this does nothing.
    pub fn swallow(&self) {
        self.client(&mut self.shared.lock()).swallow();
    }

    /// Ends [`swallow`](SimulatedClient::swallow): the held replies and events arrive, and the blocked requests reach
    /// the server.
    ///
    /// Replies and events arrive in the order of the connection. If the session has
    /// [expired](SimulatedClient::expire) in the meantime, the sink gets `SessionLost` and the calls fail. After
    /// [`expire_silently`](SimulatedClient::expire_silently), the calls only fail, with `ConnectionLoss`.
    pub fn release(&self) {
        let mut state = self.shared.lock();
        let client = self.client(&mut state);
        let connected = client.contact == Contact::Connected;
        client.swallowed = false;
        for event in std::mem::take(&mut client.held) {
            state.queue_event(self.session, event);
        }
        if connected && !state.sessions.contains(&self.session) {
            state.lose(self.session);
        }
        self.shared.deliver(state);
    }

    /// Delays every later call by this much, as a distant server does.
    ///
    /// Half of the delay passes before the call takes effect, the other half before the reply arrives. An ordered
    /// client makes one call after the other, and delivers an event after the replies ahead of it. The delay is in real
    /// time, even on a [`VirtualClock`](super::VirtualClock), which waits for the call, but for at most two seconds.
    /// [`Duration::ZERO`] ends the delay.
    pub fn delay(&self, delay: Duration) {
        self.client(&mut self.shared.lock()).delay = delay;
    }

    /// Gives the client an identity.
    ///
    /// ACLs may name the identity. In the ACL of a znode that the client creates, the scheme `auth` stands for all
    /// identities of the client.
    pub fn authenticate(&self, scheme: &str, id: &str) {
        let identity = Identity { scheme: scheme.to_owned(), id: id.to_owned() };
        self.client(&mut self.shared.lock()).identities.push(identity);
    }
}

/// Faults in chosen calls.
///
/// A fault happens, or a closure runs, when the call reaches the server. A call that fails for lack of
/// contact leaves its fault and its closure to the next call.
impl SimulatedClient {
    /// Makes the next call of this operation fail with this error.
    ///
    /// Each use schedules the failure of one more call. Only the call fails: an error such as `SessionExpired` does not
    /// end the session on the server. But a [`Session`](crate::Session) on the client ends at a `SessionExpired`.
    pub fn fail_next(&self, operation: SimOperation, when: Effect, error: ZkError) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Fail(error) }));
    }

    /// Makes the `nth` future call of this operation fail; the next call is the first.
    ///
    /// This replaces any fault already scheduled for that call.
    pub fn fail_nth(&self, operation: SimOperation, nth: u64, when: Effect, error: ZkError) {
        self.plan(operation, |plan| plan.fail_nth(nth, Fault { when, kind: FaultKind::Fail(error) }));
    }

    /// Cuts the connection in the next call of this operation.
    ///
    /// The cut works like [`disconnect`](SimulatedClient::disconnect), and the call fails with `ConnectionLoss`. After
    /// the effect of a [`Close`](SimOperation::Close), there is nothing to cut. Repeated uses add up, as for
    /// [`fail_next`](SimulatedClient::fail_next).
    pub fn cut_next(&self, operation: SimOperation, when: Effect) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Cut }));
    }

    /// Starts to [`swallow`](SimulatedClient::swallow) at the next call of this operation.
    ///
    /// With [`Effect::Before`] the call's request is swallowed. With [`Effect::After`] its reply is swallowed, and the
    /// log shows the call as executed. Repeated uses add up, as for
    /// [`fail_next`](SimulatedClient::fail_next).
    pub fn swallow_next(&self, operation: SimOperation, when: Effect) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Swallow }));
    }

    /// Makes a server hold back the request of the next call of this operation.
    ///
    /// The operation must be a write. The request reaches a server, but the call fails with `ConnectionLoss`. No event
    /// is reported, and the client's watches stay.
    ///
    /// The server holds the request back until [`pass_on`](SimulatedClient::pass_on), as a paused server
    /// does. In the meantime, another server executes later calls, which overtake the request.
    pub fn hold_back_next(&self, operation: SimOperation) {
        let fault = Fault { when: Effect::Before, kind: FaultKind::HoldBack };
        self.plan(operation, |plan| plan.fail_next(fault));
    }

    /// Executes the requests that a server has [held back](SimulatedClient::hold_back_next).
    ///
    /// This is as if the paused server continued and resumed the session. If the session has ended, the
    /// server refuses the requests and nothing happens.
    pub fn pass_on(&self) {
        let mut state = self.shared.lock();
        self.link().execute_held_back(&mut state);
        self.shared.deliver(state);
    }

    /// Makes this client's server diverge from the others: from now on, it shows this znode as it is now, even if the
    /// znode is deleted.
    ///
    /// Only the reads of this client show it. Writes are answered by the leader, which has deleted the znode.
    pub fn keep_showing(&self, path: &str) {
        let mut state = self.shared.lock();
        let tree = state.tree.clone();
        self.client(&mut state).kept.insert(path.to_owned(), tree);
    }

    /// Makes this client's server diverge from the others: from now on, it does not show the znode at this path.
    ///
    /// Only the reads of this client miss it. Writes are answered by the leader, which has the znode.
    pub fn never_show(&self, path: &str) {
        self.client(&mut self.shared.lock()).hidden.insert(path.to_owned());
    }

    /// Runs the closure in the next call of this operation, just before the call's effect or fault.
    ///
    /// The closure runs on the thread that executes the call. Each call runs one of the scheduled closures.
    ///
    /// The closure may use every method of the simulation, and other sessions. It must not wait for calls of this
    /// client's session, because they come after this call.
    pub fn before_next(&self, operation: SimOperation, stop_point: impl FnOnce() + Send + 'static) {
        self.plan(operation, |plan| plan.before.push_back(Box::new(stop_point)));
    }

    /// Runs the closure just after the effect of the next call of this operation.
    ///
    /// A call counts even if the server answers it with an error, but not if the server does not execute it.
    ///
    /// The closure runs after the effect and its events, and before the reply or the fault; but
    /// [swallowing](SimulatedClient::swallow_next) starts before the closure runs. If the closure cuts the connection
    /// or expires the session, the reply is lost. Otherwise this works like
    /// [`before_next`](SimulatedClient::before_next).
    pub fn after_next(&self, operation: SimOperation, stop_point: impl FnOnce() + Send + 'static) {
        self.plan(operation, |plan| plan.after.push_back(Box::new(stop_point)));
    }

    /// Returns the number of scheduled faults and closures that no call has used yet.
    ///
    /// If any are left when a test ends, the test did not test what it meant to.
    #[must_use]
    pub fn pending_faults(&self) -> usize {
        self.client(&mut self.shared.lock()).script.pending()
    }

    fn plan(&self, operation: SimOperation, change: impl FnOnce(&mut Plan)) {
        change(self.client(&mut self.shared.lock()).script.plan(operation));
    }
}

impl Client {
    /// Starts to swallow if the client is connected or believes that it is.
    pub(super) fn swallow(&mut self) {
        self.swallowed = matches!(self.contact, Contact::Connected | Contact::Silent);
    }
}

impl State {
    /// Cuts the client's connection, if it has one or believes that it does, and notifies it.
    pub(super) fn cut(&mut self, session: i64) {
        if matches!(self.client(session).contact, Contact::Connected | Contact::Silent) {
            self.hang_up(session);
            self.client(session).contact = Contact::Disconnected;
            self.queue_event(session, ClientEvent::Disconnected);
        }
    }

    /// Ends the client's connection. Its watches, replies in transit and swallowed messages are lost.
    pub(super) fn hang_up(&mut self, session: i64) {
        self.watches.drop_session(session);
        let client = self.client(session);
        client.connection += 1;
        client.swallowed = false;
        client.held.clear();
        client.outbox.lose_the_rest();
    }

    /// Notifies the client that its session is lost for good, unless it knows that its session has ended.
    fn lose(&mut self, session: i64) {
        if !self.client(session).contact.has_ended() {
            self.hang_up(session);
            self.queue_event(session, ClientEvent::SessionLost);
            self.client(session).contact = Contact::Lost;
        }
    }

    /// Ends a session on the server and notifies its client if it can be reached.
    pub(super) fn expire(&mut self, session: i64) {
        self.end_session(session);
        let reached = |client: &Client| client.contact == Contact::Connected && !client.swallowed;
        if self.clients.get(&session).is_some_and(reached) {
            self.lose(session);
        }
    }
}
