//! The verbs by which a test injects faults into a [`SimulatedClient`].

use std::time::Duration;

use super::access::Identity;
use super::client::SimulatedClient;
use super::faults::{Effect, Fault, FaultKind, Plan, SimOperation};
use super::state::{Client, Contact, State};
use crate::client::{ClientEvent, Granted};
use crate::error::ZkError;

/// Contact and session.
impl SimulatedClient {
    /// Cuts the connection. The sink gets `Disconnected`, calls fail with `ConnectionLoss` and
    /// without effect, replies in transit are lost, and the server drops this client's watches. The
    /// session lives.
    ///
    /// Ends [`swallow`](SimulatedClient::swallow): calls blocked there fail. Does nothing without
    /// contact.
    pub fn disconnect(&self) {
        let mut state = self.shared.lock();
        state.cut(self.session);
        self.shared.deliver(state);
    }

    /// Reconnects after [`disconnect`](SimulatedClient::disconnect), without the watches. The sink
    /// gets `Connected`, or `SessionLost` if the session has expired meanwhile. Does nothing while
    /// there is contact.
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

    /// Sets the server's grant at the next [`reconnect`](SimulatedClient::reconnect).
    pub fn grant(&self, granted: Granted) {
        let mut state = self.shared.lock();
        let client = self.client(&mut state);
        (client.session_timeout, client.report_delay) = (granted.session_timeout, granted.report_delay);
    }

    /// Sets whether the client promises that all is in order, as the crate's own connection does. The
    /// default is `true`. Takes effect only before a session is opened on the client.
    pub fn set_ordered(&self, is_ordered: bool) {
        self.client(&mut self.shared.lock()).is_ordered = is_ordered;
    }

    /// Sets whether the client sends pings and reports the answers, as the crate's own connection does.
    /// The default is `true`. Takes effect only before a session is opened on the client.
    pub fn set_reports_pings(&self, reports_pings: bool) {
        self.client(&mut self.shared.lock()).reports_pings = reports_pings;
    }

    /// Sets whether a close ends the session at the server. The default is `true`; `false` is for a
    /// handle that its owner continues to use. Takes effect only before a session is opened on the client.
    pub fn set_owns_session(&self, owns_session: bool) {
        self.client(&mut self.shared.lock()).owns_session = owns_session;
    }

    /// Sets how long the connection must be idle before this client accepts a ping. Takes effect
    /// only before a session is opened on the client.
    pub fn set_min_idle_for_ping(&self, min_idle_for_ping: Duration) {
        self.client(&mut self.shared.lock()).min_idle_for_ping = min_idle_for_ping;
    }

    /// Expires the session on the server and deletes its ephemeral znodes. The client learns of it
    /// at its next contact, which is immediately if it is connected: its sink gets `SessionLost`,
    /// and its calls fail with `SessionExpired`.
    pub fn expire(&self) {
        let mut state = self.shared.lock();
        state.expire(self.session);
        self.shared.deliver(state);
    }

    /// Expires the session behind a partition: its ephemeral znodes are deleted, and the client is
    /// not notified. Its calls fail with `ConnectionLoss` until
    /// [`reconnect`](SimulatedClient::reconnect) or
    /// [`report_expiry`](SimulatedClient::report_expiry).
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

    /// Makes the client give up its session: the sink gets `SessionLost`. The session and its
    /// znodes live on at the server.
    pub fn give_up(&self) {
        let mut state = self.shared.lock();
        state.lose(self.session);
        self.shared.deliver(state);
    }

    /// Notifies the client that its session has expired, if it has and the client does not know
    /// yet: the sink gets `SessionLost`.
    pub fn report_expiry(&self) {
        let mut state = self.shared.lock();
        let unaware = !matches!(self.client(&mut state).contact, Contact::Lost | Contact::Closed);
        if unaware && !state.sessions.contains(&self.session) {
            state.lose(self.session);
        }
        self.shared.deliver(state);
    }

    /// Silently swallows what both sides send, as a partition does: calls block, requests do not
    /// reach the server, replies and events do not reach the client.
    /// [`release`](SimulatedClient::release) and [`disconnect`](SimulatedClient::disconnect) end
    /// it. Does nothing without contact.
    pub fn swallow(&self) {
        self.client(&mut self.shared.lock()).swallow();
    }

    /// Delivers what [`swallow`](SimulatedClient::swallow) held back: first the events, then the
    /// calls. If the session has expired meanwhile, the sink gets `SessionLost` and the calls fail.
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

    /// Makes every later call take this much longer, as a server far away does: half of it before
    /// the call takes effect, half of it before the reply arrives. An ordered client makes one call after
    /// the other, and passes on an event after the replies ahead of it. It is
    /// real time, also on a [`VirtualClock`](super::VirtualClock), whose time stands still
    /// meanwhile. [`Duration::ZERO`] ends it.
    pub fn delay(&self, delay: Duration) {
        self.client(&mut self.shared.lock()).delay = delay;
    }

    /// Gives the client an identity. ACLs may name it, and the scheme `auth` is replaced by it in
    /// the ACL of a new znode.
    pub fn authenticate(&self, scheme: &str, id: &str) {
        let identity = Identity { scheme: scheme.to_owned(), id: id.to_owned() };
        self.client(&mut self.shared.lock()).identities.push(identity);
    }
}

/// Faults of chosen calls.
///
/// A call meets its fault or its stop point when it reaches the server. Calls that fail for lack of
/// contact leave both to the next call.
impl SimulatedClient {
    /// Makes the next call of this operation fail with this error. Repeated requests apply to one
    /// later call each. Only the call fails: an error such as `SessionExpired` does not end the
    /// session.
    pub fn fail_next(&self, operation: SimOperation, when: Effect, error: ZkError) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Fail(error) }));
    }

    /// Makes the `nth` future call of this operation fail, counting the next call as the first.
    /// Replaces a fault that was set for that call.
    pub fn fail_nth(&self, operation: SimOperation, nth: u64, when: Effect, error: ZkError) {
        self.plan(operation, |plan| plan.fail_nth(nth, Fault { when, kind: FaultKind::Fail(error) }));
    }

    /// Cuts the connection in the next call of this operation, as
    /// [`disconnect`](SimulatedClient::disconnect) does; the call fails with `ConnectionLoss`.
    /// Queued as in [`fail_next`](SimulatedClient::fail_next).
    pub fn cut_next(&self, operation: SimOperation, when: Effect) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Cut }));
    }

    /// Starts to [`swallow`](SimulatedClient::swallow) with the request of the next call of this
    /// operation, or with its reply; in the second case the log shows the call as executed. Queued
    /// as in [`fail_next`](SimulatedClient::fail_next).
    pub fn swallow_next(&self, operation: SimOperation, when: Effect) {
        self.plan(operation, |plan| plan.fail_next(Fault { when, kind: FaultKind::Swallow }));
    }

    /// Lets the next call of this operation, a write, fail with `ConnectionLoss` although its request has
    /// reached a server. That server holds the request back until
    /// [`pass_on`](SimulatedClient::pass_on), as one that is paused does. Later calls are executed by
    /// another server meanwhile, and overtake it.
    pub fn hold_back_next(&self, operation: SimOperation) {
        let fault = Fault { when: Effect::Before, kind: FaultKind::HoldBack };
        self.plan(operation, |plan| plan.fail_next(fault));
    }

    /// Executes the requests that a server has [held back](SimulatedClient::hold_back_next): it continues,
    /// and takes the session up again. Nothing happens if the session has ended, as the server refuses
    /// them then.
    pub fn pass_on(&self) {
        let mut state = self.shared.lock();
        self.link().execute_held_back(&mut state);
        self.shared.deliver(state);
    }

    /// Runs the closure in the next call of this operation, on the thread that executes it, just before the
    /// call takes effect or meets its fault. Each call runs one of the queued closures.
    ///
    /// The closure may use every verb, and other sessions. What it [submits](crate::client::port::ZooKeeperClient::submit)
    /// to this client comes after the call, so it must not wait for that, unless the client is not
    /// [ordered](SimulatedClient::set_ordered).
    pub fn before_next(&self, operation: SimOperation, stop_point: impl FnOnce() + Send + 'static) {
        self.plan(operation, |plan| plan.before.push_back(Box::new(stop_point)));
    }

    /// Runs the closure in the next call of this operation that takes effect, on the thread that
    /// executes it, after the effect and its events and before the reply or the fault. Otherwise as
    /// [`before_next`](SimulatedClient::before_next). If the closure cuts the connection or ends
    /// the session, the reply is lost.
    pub fn after_next(&self, operation: SimOperation, stop_point: impl FnOnce() + Send + 'static) {
        self.plan(operation, |plan| plan.after.push_back(Box::new(stop_point)));
    }

    /// Returns the number of faults and stop points that no call has met yet. A test that ends with
    /// some has not tested them.
    #[must_use]
    pub fn pending_faults(&self) -> usize {
        self.client(&mut self.shared.lock()).script.pending()
    }

    fn plan(&self, operation: SimOperation, change: impl FnOnce(&mut Plan)) {
        change(self.client(&mut self.shared.lock()).script.plan(operation));
    }
}

impl Client {
    /// Starts to swallow, if there is contact or the client believes so.
    pub(super) fn swallow(&mut self) {
        self.swallowed = matches!(self.contact, Contact::Connected | Contact::Silent);
    }
}

impl State {
    /// Cuts the client's connection, if it has one or believes so, and notifies it.
    pub(super) fn cut(&mut self, session: i64) {
        if matches!(self.client(session).contact, Contact::Connected | Contact::Silent) {
            self.hang_up(session);
            self.client(session).contact = Contact::Disconnected;
            self.queue_event(session, ClientEvent::Disconnected);
        }
    }

    /// Ends the client's connection. Its watches, the replies in transit and swallowed messages are
    /// lost.
    pub(super) fn hang_up(&mut self, session: i64) {
        self.watches.drop_session(session);
        let client = self.client(session);
        client.connection += 1;
        client.swallowed = false;
        client.held.clear();
        client.outbox.lose_the_rest();
    }

    /// Notifies the client that its session cannot come back.
    fn lose(&mut self, session: i64) {
        self.hang_up(session);
        self.client(session).contact = Contact::Lost;
        self.queue_event(session, ClientEvent::SessionLost);
    }

    /// Ends a session on the server and notifies its client, if it can be reached.
    pub(super) fn expire(&mut self, session: i64) {
        self.end_session(session);
        let reached = |client: &Client| client.contact == Contact::Connected && !client.swallowed;
        if self.clients.get(&session).is_some_and(reached) {
            self.lose(session);
        }
    }
}
