//! [`ConnectionState`]: interprets the states of a handle for the session and forwards the handle's events.
//!
//! The crate `zookeeper` calls the functions whose names begin with `on` from its I/O thread and its event thread,
//! while it holds its own locks. So they are short and call nothing in that crate.

use std::thread;
use std::time::{Duration, Instant};

use log::Level;
use parking_lot::Mutex;
use zookeeper::{WatchedEvent, WatchedEventType, ZkState};

use zookeeper_recipes_lock::client::port::{ClientEvent, EventSink, Granted};
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandleContact {
    /// The handle was already in use and has not reported its state yet.
    Unknown,
    Connecting,
    Connected,
    /// Contact was lost, and the handle has not started to reconnect.
    Disconnected,
    /// The session is lost, whatever the handle does from now on.
    Lost,
}

impl ConnectionState {
    /// Creates the state of a handle that was already in use.
    pub(super) fn new(granted: Granted) -> ConnectionState {
        let state = HandleState { contact: HandleContact::Unknown, changes: 0, sink: None };
        ConnectionState { granted, state: Mutex::new(state) }
    }

    pub(super) fn subscribe(&self, sink: EventSink) -> bool {
        let mut state = self.state.lock();
        if state.contact == HandleContact::Lost {
            sink(ClientEvent::SessionLost);
        }
        state.sink = Some(sink);
        state.contact == HandleContact::Connected
    }

    /// Stops delivering events and fails every call.
    pub(super) fn detach(&self) {
        let mut state = self.state.lock();
        state.contact = HandleContact::Lost;
        let sink = state.sink.take();
        drop(state);
        drop(sink);
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
        let sink = self.state.lock().sink.clone();
        if let (true, Some(path), Some(sink)) = (is_change, event.path, sink) {
            sink(ClientEvent::NodeChanged { path, is_deleted });
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
            self.emit(ClientEvent::Connected(granted));
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
            HandleContact::Lost => self.emit(ClientEvent::SessionLost),
            _ if had_contact => self.emit(ClientEvent::Disconnected),
            _ => {}
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

    fn in_use() -> ConnectionState {
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
        let (connection, events) = connection(in_use());
        let states = [ZkState::NotConnected, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected];
        for state in [ZkState::Connected].into_iter().chain(states) {
            connection.on_state(state);
        }
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected, connected()]);
    }

    #[test]
    fn silently_opened_new_session_is_a_lost_session() {
        let (connection, events) = connection(in_use());
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
        let (connection, _events) = connection(in_use());
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
        let (connection, events) = connection(in_use());
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
        let (connection, events) = connection(in_use());
        let result = lose_reply(&connection, || {
            connection.on_state(ZkState::Connecting);
            Err(ZkError::ConnectionLoss)
        });
        assert_eq!(result, Err(ZkError::ConnectionLoss));
        assert_eq!(received(&events), [connected(), ClientEvent::Disconnected]);
    }

    #[test]
    fn reported_connection_loss_is_temporary() {
        let (connection, _events) = connection(in_use());
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
        let (connection, events) = connection(in_use());
        let before = connection.before_call().unwrap();
        connection.after_call::<()>(before, Err(ZkError::NoNode)).unwrap_err();
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn answer_from_before_a_disconnect_proves_no_contact() {
        let (connection, events) = connection(in_use());
        let before = connection.before_call().unwrap();
        connection.on_state(ZkState::Connecting);
        connection.after_call(before, Ok(())).unwrap();
        assert_eq!(received(&events), [ClientEvent::Disconnected]);
    }

    #[test]
    fn disconnect_is_reported_of_a_handle_whose_contact_was_unknown() {
        let (connection, events) = connection(in_use());
        connection.on_state(ZkState::Connecting);
        assert_eq!(received(&events), [ClientEvent::Disconnected]);
        connection.on_state(ZkState::Connected);
        assert_eq!(received(&events), [connected()]);
    }

    #[test]
    fn closed_handle_is_a_lost_session() {
        let (connection, events) = connection(in_use());
        connection.on_state(ZkState::Closed);
        assert_eq!(received(&events), [ClientEvent::SessionLost]);
    }

    #[test]
    fn late_subscriber_is_notified_of_a_loss() {
        let connection = Arc::new(in_use());
        connection.on_state(ZkState::Closed);
        let (events, late) = unbounded();
        assert!(!connection.subscribe(Arc::new(move |event| drop(events.send(event)))));
        assert_eq!(received(&late), [ClientEvent::SessionLost]);
    }
}
