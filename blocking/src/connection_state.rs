//! [`ConnectionState`]: interprets the states of a handle for the session and forwards the handle's events.
//!
//! The crate `zookeeper` calls [`on_state`](ConnectionState::on_state) and [`on_watch`](ConnectionState::on_watch) from
//! its I/O thread and its event thread, while it holds its own locks. So they are short and call nothing in that crate.
//!
//! # Order
//! The event of a change may come before the reply to a call that took effect earlier. So while a call is under way,
//! events are held back, in their order. They are passed on when the outcome of the call has been. A loss of contact is
//! passed on at once, before the call fails because of it. What is held back is then dropped, because the session reads
//! everything again.

use std::collections::VecDeque;
use std::mem;
use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::Mutex;
use zookeeper::{WatchedEvent, WatchedEventType, ZkState};

use zookeeper_recipes_lock::client::seam::{ClientEvent, EventSink, Granted, Moment};
use zookeeper_recipes_lock::client::{ZkError, ZkResult};

use crate::logging;

/// The pause before a handle that has lost a reply without a reason is asked again.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct ConnectionState {
    /// What the servers grant, according to the application.
    pub(super) granted: Granted,
    state: Mutex<HandleState>,
}

struct HandleState {
    contact: HandleContact,
    /// The number of the handle's state changes. It shows whether the state changed during a call.
    changes: u64,
    sink: Option<EventSink>,
    /// A call is under way, or its outcome is being passed on.
    is_calling: bool,
    /// The events that wait for the end of the call.
    held_back: VecDeque<ClientEvent>,
    is_detached: bool,
    /// Called when the session is lost.
    when_lost: Option<Box<dyn FnOnce() + Send>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleContact {
    /// The handle has not reported its state yet, or has done so before anybody listened.
    Unknown,
    Connecting,
    Connected,
    /// Contact was lost, and the handle has not started to reconnect.
    Disconnected,
    /// The session is lost, whatever the handle does from now on.
    Lost,
}

impl ConnectionState {
    pub(super) fn new(granted: Granted) -> ConnectionState {
        let state = HandleState {
            contact: HandleContact::Unknown,
            changes: 0,
            sink: None,
            is_calling: false,
            held_back: VecDeque::new(),
            is_detached: false,
            when_lost: None,
        };
        ConnectionState { granted, state: Mutex::new(state) }
    }

    /// Sets what to do when the session is lost. If it is lost already, does it now.
    pub(super) fn when_lost(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.when_lost = Some(Box::new(then));
        if state.contact == HandleContact::Lost {
            state.end();
        }
    }

    pub(super) fn subscribe(&self, sink: EventSink) -> bool {
        let mut state = self.state.lock();
        if state.contact == HandleContact::Lost {
            sink(ClientEvent::SessionLost);
        }
        state.sink = Some(sink);
        state.contact == HandleContact::Connected
    }

    /// Stops delivering events and fails every call. Returns `false` if this was done before.
    pub(super) fn detach(&self) -> bool {
        let mut state = self.state.lock();
        state.contact = HandleContact::Lost;
        state.held_back.clear();
        let is_first = !mem::replace(&mut state.is_detached, true);
        let (sink, when_lost) = (state.sink.take(), state.when_lost.take());
        drop(state);
        // Dropped outside the lock, because each may hold the last handle to something.
        drop((sink, when_lost));
        is_first
    }

    /// Handles a state change of the handle, on its I/O thread.
    #[allow(deprecated, reason = "the crate reports a loss of contact and an expiry with a deprecated state")]
    pub(super) fn on_state(&self, new: ZkState) {
        let mut state = self.state.lock();
        state.changes += 1;
        match new {
            ZkState::Connected => state.connected(self.granted),
            ZkState::Connecting => state.change_to(HandleContact::Connecting),
            // After `Connecting`, this state means that the session has expired and that the crate continues
            // with a new session. The crate also reports this state when a server hangs up in the middle of
            // its answer to the connect request. That is rare, so we assume the worse case.
            ZkState::NotConnected if state.contact == HandleContact::Connecting => {
                state.change_to(HandleContact::Lost)
            }
            ZkState::NotConnected => state.change_to(HandleContact::Disconnected),
            ZkState::Closed | ZkState::AuthFailed => state.change_to(HandleContact::Lost),
            // Read-only contact is useless to a lock. The handle never requests it, so it never occurs.
            ZkState::ConnectedReadOnly | ZkState::Associating => state.change_to(HandleContact::Disconnected),
        }
    }

    /// Handles a watch event, on the handle's event thread.
    pub(super) fn on_watch(&self, event: WatchedEvent) {
        let is_change = matches!(
            event.event_type,
            WatchedEventType::NodeCreated
                | WatchedEventType::NodeDeleted
                | WatchedEventType::NodeDataChanged
                | WatchedEventType::NodeChildrenChanged
        );
        let is_deleted = event.event_type == WatchedEventType::NodeDeleted;
        if let (true, Some(path)) = (is_change, event.path) {
            self.state.lock().report(ClientEvent::NodeChanged { path, is_deleted });
        }
    }

    /// Holds events back from now on.
    pub(super) fn begin_call(&self) {
        self.state.lock().is_calling = true;
    }

    /// Passes on what was held back since [`begin_call`](ConnectionState::begin_call).
    pub(super) fn end_call(&self) {
        let mut state = self.state.lock();
        state.is_calling = false;
        while let Some(event) = state.held_back.pop_front() {
            state.emit(event);
        }
    }

    /// Reports a request that was sent at `sent` and answered since then, if contact has lasted since `changes_before`.
    pub(super) fn on_ping_answered(&self, changes_before: u64, sent: Moment) {
        let mut state = self.state.lock();
        if state.contact == HandleContact::Connected && state.changes == changes_before {
            state.report(ClientEvent::PingAnswered { sent });
        }
    }

    /// Returns the number of state changes so far, to pass to [`after_call`](ConnectionState::after_call).
    pub(super) fn before_call(&self) -> ZkResult<u64> {
        let state = self.state.lock();
        match state.contact {
            HandleContact::Lost => Err(ZkError::SessionExpired),
            _ => Ok(state.changes),
        }
    }

    /// Handles the loss of a call's reply, before [`after_call`](ConnectionState::after_call).
    ///
    /// The crate reports a loss of contact before it fails the pending calls. If it did not report one, either it could
    /// not write a request because the server reads nothing at the moment, or its I/O thread has died. In the first
    /// case, the session may be alive. So this function asks again until the handle answers or reports a change. If it
    /// does neither for a session timeout, no ping has reached the servers for so long, and the session has expired.
    /// The session gives up by then, too, if no other call was answered.
    pub(super) fn explain_loss(&self, changes_before: u64, ask: impl Fn() -> ZkResult<()>) {
        let began = Instant::now();
        while self.is_unexplained(changes_before) && ask() == Err(ZkError::ConnectionLoss) {
            if began.elapsed() >= self.granted.session_timeout {
                if self.give_up(changes_before) {
                    logging::write(Level::Warn, format_args!("the ZooKeeper client's io thread has ended"));
                }
                return;
            }
            thread::sleep(PAUSE);
        }
    }

    fn is_unexplained(&self, changes_before: u64) -> bool {
        self.state.lock().is_unexplained(changes_before)
    }

    /// Ends the session, unless the handle has reported a change. Returns whether it has ended the session.
    fn give_up(&self, changes_before: u64) -> bool {
        let mut state = self.state.lock();
        let gives_up = state.is_unexplained(changes_before);
        if gives_up {
            state.change_to(HandleContact::Lost);
        }
        gives_up
    }

    /// Interprets the result of a call in view of the state changes since `changes_before`.
    pub(super) fn after_call<T>(&self, changes_before: u64, result: ZkResult<T>) -> ZkResult<T> {
        let mut state = self.state.lock();
        if state.contact == HandleContact::Lost {
            return Err(ZkError::SessionExpired);
        }
        let unchanged = state.changes == changes_before;
        match (&result, state.contact) {
            (Err(ZkError::SessionExpired), _) => state.change_to(HandleContact::Lost),
            (Err(ZkError::ConnectionLoss), _) => {}
            // A reply proves contact, even if the handle reported it before anybody subscribed.
            (_, HandleContact::Unknown | HandleContact::Connecting) if unchanged => {
                state.connected(self.granted)
            }
            _ => {}
        }
        result
    }
}

impl HandleState {
    fn is_unexplained(&self, changes_before: u64) -> bool {
        self.contact == HandleContact::Connected && self.changes == changes_before
    }

    fn connected(&mut self, granted: Granted) {
        if !matches!(self.contact, HandleContact::Lost | HandleContact::Connected) {
            self.contact = HandleContact::Connected;
            self.report(ClientEvent::Connected(granted));
        }
    }

    /// Changes to any state other than `Connected`.
    fn change_to(&mut self, next: HandleContact) {
        let before = self.contact;
        if before == HandleContact::Lost {
            return;
        }
        self.contact = next;
        let had_contact = matches!(before, HandleContact::Connected | HandleContact::Unknown);
        match next {
            HandleContact::Lost => {
                self.held_back.clear();
                self.emit(ClientEvent::SessionLost);
                self.end();
            }
            _ if had_contact => {
                // If the session has not been told of this contact, it need not be told of its loss either.
                let is_known = !self.held_back.iter().any(|event| matches!(event, ClientEvent::Connected(_)));
                self.held_back.clear();
                if is_known {
                    self.emit(ClientEvent::Disconnected);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        if let Some(then) = self.when_lost.take() {
            then();
        }
    }

    /// Passes an event on, or holds it back.
    fn report(&mut self, event: ClientEvent) {
        match self.is_calling {
            true => self.held_back.push_back(event),
            false => self.emit(event),
        }
    }

    /// Passes an event to the sink. The caller holds the lock, which keeps events in order. This is allowed
    /// because the sink never blocks and makes calls only on other threads.
    fn emit(&self, event: ClientEvent) {
        if let Some(sink) = &self.sink {
            sink(event);
        }
    }
}

#[cfg(test)]
#[allow(deprecated, reason = "the crate's own states")]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;

    use crossbeam_channel::{Receiver, unbounded};

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn granted() -> Granted {
        Granted::new(TIMEOUT).with_report_delay(Duration::ZERO)
    }

    fn connected() -> ClientEvent {
        ClientEvent::Connected(granted())
    }

    fn new() -> ConnectionState {
        ConnectionState::new(granted())
    }

    fn connection(connection: ConnectionState) -> (Arc<ConnectionState>, Receiver<ClientEvent>) {
        let connection = Arc::new(connection);
        let (events, received) = unbounded();
        connection.subscribe(Arc::new(move |event| drop(events.send(event))));
        (connection, received)
    }

    fn received(events: &Receiver<ClientEvent>) -> Vec<ClientEvent> {
        events.try_iter().collect()
    }

    #[test]
    fn disconnect_and_reconnect_are_reported_once_each() {
        let (connection, events) = connection(new());
        let states = [ZkState::NotConnected, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected];
        for state in [ZkState::Connected].into_iter().chain(states) {
            connection.on_state(state);
        }
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected, connected()]);
    }

    #[test]
    fn silently_opened_new_session_is_a_lost_session() {
        let (connection, events) = connection(new());
        for state in [ZkState::Connected, ZkState::Connecting, ZkState::NotConnected] {
            connection.on_state(state);
        }
        for state in [ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected, ClientEvent::SessionLost]);
        assert_eq!(connection.before_call().unwrap_err(), ZkError::SessionExpired);
    }

    #[test]
    fn result_of_a_call_on_another_session_is_discarded() {
        let (connection, _events) = connection(new());
        connection.on_state(ZkState::Connected);
        let before = connection.before_call().unwrap();
        for state in [ZkState::Connecting, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(connection.after_call(before, Ok(())), Err(ZkError::SessionExpired));
    }

    /// Loses the reply to a call without a report. Returns the result of the call.
    fn lose_reply(connection: &ConnectionState, ask: impl Fn() -> ZkResult<()>) -> ZkResult<()> {
        connection.on_state(ZkState::Connected);
        let before = connection.before_call().unwrap();
        connection.explain_loss(before, ask);
        connection.after_call(before, Err(ZkError::ConnectionLoss))
    }

    #[test]
    fn unreported_connection_loss_that_lasts_for_a_session_timeout_means_a_dead_io_thread() {
        let timeout = Duration::from_millis(300);
        let (connection, events) = connection(ConnectionState::new(Granted::new(timeout)));
        let began = Instant::now();
        let result = lose_reply(&connection, || Err(ZkError::ConnectionLoss));
        assert_eq!(result, Err(ZkError::SessionExpired));
        assert!(began.elapsed() >= timeout);
        assert_eq!(received(&events).last(), Some(&ClientEvent::SessionLost));
    }

    #[test]
    fn session_whose_handle_answers_again_after_an_unreported_connection_loss_goes_on() {
        let (connection, events) = connection(new());
        let asked = Cell::new(0);
        let result = lose_reply(&connection, || {
            asked.set(asked.get() + 1);
            if asked.get() < 3 { Err(ZkError::ConnectionLoss) } else { Err(ZkError::NoAuth) }
        });
        assert_eq!((result, asked.get()), (Err(ZkError::ConnectionLoss), 3));
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn report_that_follows_an_unreported_connection_loss_counts() {
        let (connection, events) = connection(new());
        let result = lose_reply(&connection, || {
            connection.on_state(ZkState::Connecting);
            Err(ZkError::ConnectionLoss)
        });
        assert_eq!(result, Err(ZkError::ConnectionLoss));
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected]);
    }

    #[test]
    fn reported_connection_loss_is_temporary() {
        let (connection, _events) = connection(new());
        connection.on_state(ZkState::Connected);
        let before = connection.before_call().unwrap();
        connection.on_state(ZkState::Connecting);
        connection.on_state(ZkState::Connected);
        assert_eq!(
            connection.after_call::<()>(before, Err(ZkError::ConnectionLoss)),
            Err(ZkError::ConnectionLoss)
        );
    }

    #[test]
    fn answer_proves_contact_reported_before_subscribing() {
        let (connection, events) = connection(new());
        let before = connection.before_call().unwrap();
        connection.after_call::<()>(before, Err(ZkError::NoNode)).unwrap_err();
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn answer_from_before_a_disconnect_proves_no_contact() {
        let (connection, events) = connection(new());
        let before = connection.before_call().unwrap();
        connection.on_state(ZkState::Connecting);
        connection.after_call(before, Ok(())).unwrap();
        assert_eq!(received(&events), [ClientEvent::Disconnected]);
    }

    #[test]
    fn disconnect_is_reported_of_a_handle_whose_contact_was_unknown() {
        let (connection, events) = connection(new());
        connection.on_state(ZkState::Connecting);
        assert_eq!(received(&events), [ClientEvent::Disconnected]);
        connection.on_state(ZkState::Connected);
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn closed_handle_is_a_lost_session() {
        let (connection, events) = connection(new());
        connection.on_state(ZkState::Closed);
        assert_eq!(received(&events), [ClientEvent::SessionLost]);
    }

    #[test]
    fn late_subscriber_is_notified_of_a_loss() {
        let connection = Arc::new(new());
        connection.on_state(ZkState::Closed);
        let (events, late) = unbounded();
        assert!(!connection.subscribe(Arc::new(move |event| drop(events.send(event)))));
        assert_eq!(received(&late), [ClientEvent::SessionLost]);
    }

    fn deletion(path: &str) -> WatchedEvent {
        WatchedEvent {
            event_type: WatchedEventType::NodeDeleted,
            keeper_state: zookeeper::KeeperState::SyncConnected,
            path: Some(path.to_owned()),
        }
    }

    fn deleted(path: &str) -> ClientEvent {
        ClientEvent::NodeChanged { path: path.to_owned(), is_deleted: true }
    }

    #[test]
    fn events_during_a_call_are_passed_on_after_it_and_in_their_order() {
        let (connection, events) = connection(new());
        connection.on_state(ZkState::Connected);
        assert_eq!(received(&events), [connected()]);
        connection.begin_call();
        connection.on_watch(deletion("/a"));
        connection.on_watch(deletion("/b"));
        assert_eq!(received(&events), []);
        connection.end_call();
        assert_eq!(received(&events), [deleted("/a"), deleted("/b")]);
        connection.on_watch(deletion("/c"));
        assert_eq!(received(&events), [deleted("/c")]);
    }

    #[test]
    fn loss_of_contact_is_passed_on_during_a_call_and_drops_what_was_held_back() {
        let (connection, events) = connection(new());
        connection.on_state(ZkState::Connected);
        connection.begin_call();
        connection.on_watch(deletion("/a"));
        connection.on_state(ZkState::NotConnected);
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected]);
        // The next connection comes and goes during the same call, so the session never learns of it.
        for state in [ZkState::Connecting, ZkState::Connected, ZkState::NotConnected] {
            connection.on_state(state);
        }
        for state in [ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(received(&events), []);
        connection.end_call();
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn ping_counts_only_if_contact_has_lasted() {
        let (connection, events) = connection(new());
        connection.on_state(ZkState::Connected);
        let (before, sent) = (connection.before_call().unwrap(), Moment::now());
        connection.on_ping_answered(before, sent);
        assert_eq!(received(&events), [connected(), ClientEvent::PingAnswered { sent }]);
        for state in [ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        connection.on_ping_answered(before, sent);
        assert_eq!(received(&events), [ClientEvent::Disconnected, connected()]);
    }

    #[test]
    fn loss_is_told_once() {
        let (told, losses) = unbounded();
        let connection = Arc::new(new());
        connection.when_lost(move || told.send(()).unwrap());
        connection.on_state(ZkState::Closed);
        assert!(connection.detach() && !connection.detach());
        assert_eq!(losses.try_iter().count(), 1);
    }

    /// What a session is told.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Told {
        /// The reply to a call that took effect at this point of the server's history.
        Reply(u32),
        Change(u32),
        Disconnected,
        Connected,
    }

    /// The threads of the handle overtake each other in every way: changes and calls take effect in one order at the
    /// server, and the event thread passes a change on at any time after it.
    #[test]
    fn session_never_learns_of_a_change_before_the_replies_that_precede_it() {
        for seed in 1..2000_u64 {
            let mut random = seed;
            let mut one_of = |count: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % count
            };
            let connection = Arc::new(new());
            let (told, tells) = unbounded();
            let events = told.clone();
            connection.subscribe(Arc::new(move |event| {
                let told = match event {
                    ClientEvent::NodeChanged { path, .. } => Told::Change(path.parse().unwrap()),
                    ClientEvent::Disconnected => Told::Disconnected,
                    ClientEvent::Connected(_) => Told::Connected,
                    _ => return,
                };
                events.send(told).unwrap();
            }));
            connection.on_state(ZkState::Connected);
            let (mut history, mut fired, mut call) = (0, VecDeque::new(), None);
            for _ in 0..200 {
                match (one_of(12), call) {
                    (0..3, None) => {
                        connection.begin_call();
                        call = Some(None);
                    }
                    (0..3, Some(None)) => {
                        history += 1;
                        call = Some(Some(history));
                    }
                    (0..3, Some(Some(effect))) => {
                        told.send(Told::Reply(effect)).unwrap();
                        connection.end_call();
                        call = None;
                    }
                    (3..6, _) => {
                        history += 1;
                        fired.push_back(history);
                    }
                    (6..11, _) => {
                        if let Some(change) = fired.pop_front() {
                            connection.on_watch(deletion(&u32::to_string(&change)));
                        }
                    }
                    _ => {
                        // The watches of the connection are lost with it.
                        fired.clear();
                        for state in [ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
                            connection.on_state(state);
                        }
                    }
                }
            }
            check_order(&tells.try_iter().collect::<Vec<_>>());
        }
    }

    fn check_order(told: &[Told]) {
        let (mut has_contact, mut last_change) = (false, 0);
        for one in told {
            match *one {
                // A reply that comes after the loss of its connection proves nothing.
                Told::Reply(effect) if has_contact => {
                    assert!(
                        effect > last_change,
                        "{effect} is answered after the event of {last_change}: {told:?}"
                    );
                }
                Told::Reply(_) => {}
                Told::Change(change) => {
                    assert!(has_contact && change > last_change, "{change} out of order: {told:?}");
                    last_change = change;
                }
                Told::Disconnected => {
                    assert!(has_contact, "two losses in a row: {told:?}");
                    has_contact = false;
                }
                Told::Connected => {
                    assert!(!has_contact, "two contacts in a row: {told:?}");
                    has_contact = true;
                }
            }
        }
    }
}
