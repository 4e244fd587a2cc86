//! The connection of one handle's events: it knows what the handle's state means for the session, and passes events on.
//!
//! The crate calls in from its io thread and its event thread, holding locks of its own. Everything here is short and
//! calls nothing of the crate's.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use zookeeper::{WatchedEvent, WatchedEventType, ZkState};

use super::ensemble::Ensemble;
use crate::client::{ClientEvent, EventSink, Granted, ZkError, ZkResult};
use crate::logging;

/// How soon the servers are asked again of which none has answered.
const ASK_AGAIN: Duration = Duration::from_millis(100);

pub(super) struct ConnectionState {
    grants: Grants,
    state: Mutex<State>,
    /// Signalled at every change of the state.
    changed: Condvar,
}

/// What is known of that which servers grant.
pub(super) enum Grants {
    /// By the application's word.
    Fixed(Granted),
    /// By asking them after every reconnect.
    Asked(Arc<Ensemble>),
}

struct State {
    contact: Contact,
    /// All servers were asked already for the connection that comes next.
    is_asked: bool,
    /// Counts the handle's changes of state, to see whether one came in during a call.
    changes: u64,
    /// The handle has ended and does nothing any more.
    ended: bool,
    sink: Option<EventSink>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// A handle that was in use before: it has not told its state yet.
    Unknown,
    Connecting,
    /// There is a connection, and the servers are asked what they grant.
    Reached,
    Connected,
    /// Contact was lost; the handle has not begun to connect again.
    Disconnected,
    /// The session is gone, whatever the handle does now.
    Lost,
}

/// The connection's state when a call was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallEpoch {
    changes: u64,
}

impl ConnectionState {
    /// The connection of a handle that has just begun to connect, perhaps after all servers were asked.
    pub(super) fn connecting(grants: Grants, is_asked: bool) -> ConnectionState {
        ConnectionState::new(Contact::Connecting, grants, is_asked)
    }

    pub(super) fn of_a_handle_in_use(granted: Granted) -> ConnectionState {
        ConnectionState::new(Contact::Unknown, Grants::Fixed(granted), true)
    }

    fn new(contact: Contact, grants: Grants, is_asked: bool) -> ConnectionState {
        let state = State { contact, is_asked, changes: 0, ended: false, sink: None };
        ConnectionState { grants, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn granted(&self) -> Granted {
        match &self.grants {
            Grants::Fixed(granted) => *granted,
            Grants::Asked(ensemble) => ensemble.granted(),
        }
    }

    pub(super) fn subscribe(&self, sink: EventSink) -> bool {
        let mut state = self.state.lock();
        if state.contact == Contact::Lost {
            sink(ClientEvent::SessionLost);
        }
        state.sink = Some(sink);
        state.contact == Contact::Connected
    }

    /// Tells nothing any more, and fails every call.
    pub(super) fn detach(&self) {
        let mut state = self.state.lock();
        state.contact = Contact::Lost;
        let sink = state.sink.take();
        drop(state);
        drop(sink);
        self.changed.notify_all();
    }

    /// A change of the handle's state, on its io thread.
    #[allow(deprecated, reason = "the crate reports a loss of contact and an expiry with a deprecated state")]
    pub(super) fn on_state(self: &Arc<Self>, new: ZkState) {
        let mut state = self.state.lock();
        state.changes += 1;
        self.changed.notify_all();
        state.ended |= new == ZkState::Closed;
        match new {
            ZkState::Connected => self.reached(&mut state),
            ZkState::Connecting => state.change_to(Contact::Connecting),
            // Reported after `Connecting`, this is how the crate says that the session has expired and that it goes on
            // with a new one. It says the same when a server hangs up in the middle of its answer to the connect
            // request, which is rare, and taken for the worse.
            ZkState::NotConnected if state.contact == Contact::Connecting => state.change_to(Contact::Lost),
            ZkState::NotConnected => state.change_to(Contact::Disconnected),
            ZkState::Closed | ZkState::AuthFailed => state.change_to(Contact::Lost),
            // No contact that a lock could use. Not asked for, so never seen.
            ZkState::ConnectedReadOnly | ZkState::Associating => state.change_to(Contact::Disconnected),
        }
    }

    /// There is a connection. The session hears of it when it is known what servers grant now.
    fn reached(self: &Arc<Self>, state: &mut State) {
        match &self.grants {
            Grants::Asked(ensemble) if !state.is_asked => {
                state.change_to(Contact::Reached);
                self.ask(Arc::clone(ensemble), state.changes);
            }
            _ => state.connected(self.granted()),
        }
        state.is_asked = false;
    }

    /// Asks the servers, on a thread for as long as it takes, what they grant.
    fn ask(self: &Arc<Self>, ensemble: Arc<Ensemble>, attempt: u64) {
        let connection = Arc::downgrade(self);
        let thread = thread::Builder::new().name("zk-lock-ask".to_owned());
        // Without a thread the session hears of no contact, and ends with its lease. Nothing is logged here, under the locks
        // of the crate's.
        let _ = thread.spawn(move || {
            loop {
                let answers = ensemble.ask(Instant::now() + ensemble.granted().session_timeout / 4);
                let Some(connection) = connection.upgrade() else { return };
                match answers {
                    Ok(_) => return connection.learnt(attempt, ensemble.granted()),
                    Err(_) if connection.stays_reached(attempt) => {}
                    Err(_) => return,
                }
            }
        });
    }

    /// What servers grant is known, if that is still of interest.
    fn learnt(&self, attempt: u64, granted: Granted) {
        let mut state = self.state.lock();
        if state.changes == attempt && state.contact == Contact::Reached {
            state.connected(granted);
        }
    }

    /// Waits for a moment; returns whether the handle has this connection then.
    fn stays_reached(&self, attempt: u64) -> bool {
        let mut state = self.state.lock();
        if state.changes == attempt && state.contact == Contact::Reached {
            self.changed.wait_for(&mut state, ASK_AGAIN);
        }
        state.changes == attempt && state.contact == Contact::Reached
    }

    /// A watch event, on the handle's event thread.
    pub(super) fn on_watch(&self, event: WatchedEvent) {
        let is_change = matches!(
            event.event_type,
            WatchedEventType::NodeCreated
                | WatchedEventType::NodeDeleted
                | WatchedEventType::NodeDataChanged
                | WatchedEventType::NodeChildrenChanged
        );
        let sink = self.state.lock().sink.clone();
        if let (true, Some(path), Some(sink)) = (is_change, event.path, sink) {
            sink(ClientEvent::NodeChanged { path });
        }
    }

    /// Whether the handle itself has ended, after which it keeps no session alive.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    pub(super) fn before_call(&self) -> ZkResult<CallEpoch> {
        let state = self.state.lock();
        match state.contact {
            Contact::Lost => Err(ZkError::SessionExpired),
            _ => Ok(CallEpoch { changes: state.changes }),
        }
    }

    /// Says what the result of a call means, given what happened meanwhile.
    pub(super) fn after_call<T>(self: &Arc<Self>, before: CallEpoch, result: ZkResult<T>) -> ZkResult<T> {
        let mut state = self.state.lock();
        if state.contact == Contact::Lost {
            return Err(ZkError::SessionExpired);
        }
        let unchanged = state.changes == before.changes;
        match (&result, state.contact) {
            (Err(ZkError::SessionExpired), _) => state.change_to(Contact::Lost),
            // The crate tells a loss of contact before it fails the calls under way. If it did not, its io thread is gone.
            (Err(ZkError::ConnectionLoss), Contact::Connected | Contact::Reached) if unchanged => {
                state.change_to(Contact::Lost);
                drop(state);
                logging::warn!("the ZooKeeper client's io thread has ended");
                return Err(ZkError::SessionExpired);
            }
            (Err(ZkError::ConnectionLoss), _) => {}
            // An answer: there is contact, although the handle's own word came before anybody listened.
            (_, Contact::Unknown | Contact::Connecting) if unchanged => self.reached(&mut state),
            _ => {}
        }
        result
    }
}

impl State {
    fn connected(&mut self, granted: Granted) {
        if !matches!(self.contact, Contact::Lost | Contact::Connected) {
            self.contact = Contact::Connected;
            self.tell(ClientEvent::Connected(granted));
        }
    }

    /// Changes to anything but `Connected`.
    fn change_to(&mut self, next: Contact) {
        let before = self.contact;
        if before == Contact::Lost {
            return;
        }
        self.contact = next;
        let had_contact = matches!(before, Contact::Connected | Contact::Unknown);
        match next {
            Contact::Lost => self.tell(ClientEvent::SessionLost),
            _ if had_contact => self.tell(ClientEvent::Disconnected),
            _ => {}
        }
    }

    /// The sink never blocks and never calls back, so it may be called under the lock, which keeps events in order.
    fn tell(&self, event: ClientEvent) {
        if let Some(sink) = &self.sink {
            sink(event);
        }
    }
}

#[cfg(test)]
#[allow(deprecated, reason = "the crate's own states")]
mod tests {
    use super::*;
    use crate::client::connect_string::ConnectString;
    use crossbeam_channel::{Receiver, unbounded};

    const TIMEOUT: Duration = Duration::from_secs(30);

    const CONNECTED: ClientEvent =
        ClientEvent::Connected(Granted { session_timeout: TIMEOUT, report_delay: Duration::ZERO });

    fn granted() -> Granted {
        Granted::new(TIMEOUT).with_report_delay(Duration::ZERO)
    }

    fn connecting() -> ConnectionState {
        ConnectionState::connecting(Grants::Fixed(granted()), true)
    }

    fn in_use() -> ConnectionState {
        ConnectionState::of_a_handle_in_use(granted())
    }

    fn connection(connection: ConnectionState) -> (Arc<ConnectionState>, Receiver<ClientEvent>) {
        let connection = Arc::new(connection);
        let (events, received) = unbounded();
        connection.subscribe(Arc::new(move |event| drop(events.send(event))));
        (connection, received)
    }

    fn told(events: &Receiver<ClientEvent>) -> Vec<ClientEvent> {
        events.try_iter().collect()
    }

    #[test]
    fn a_disconnect_and_a_reconnect_are_told_once_each() {
        let (connection, events) = connection(connecting());
        for state in [ZkState::Connected, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(told(&events), [CONNECTED, ClientEvent::Disconnected, CONNECTED]);
    }

    #[test]
    fn a_silent_new_session_is_a_lost_session() {
        let (connection, events) = connection(connecting());
        for state in [ZkState::Connected, ZkState::Connecting, ZkState::NotConnected] {
            connection.on_state(state);
        }
        for state in [ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(told(&events), [CONNECTED, ClientEvent::Disconnected, ClientEvent::SessionLost]);
        assert_eq!(connection.before_call().unwrap_err(), ZkError::SessionExpired);
    }

    #[test]
    fn what_a_call_brought_from_another_session_does_not_count() {
        let (connection, _events) = connection(connecting());
        connection.on_state(ZkState::Connected);
        let before = connection.before_call().unwrap();
        for state in [ZkState::Connecting, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        assert_eq!(connection.after_call(before, Ok(())), Err(ZkError::SessionExpired));
    }

    #[test]
    fn a_loss_that_the_handle_did_not_tell_means_that_its_thread_is_gone() {
        let (connection, events) = connection(connecting());
        connection.on_state(ZkState::Connected);
        let before = connection.before_call().unwrap();
        let result = connection.after_call::<()>(before, Err(ZkError::ConnectionLoss));
        assert_eq!(result, Err(ZkError::SessionExpired));
        assert_eq!(told(&events).last(), Some(&ClientEvent::SessionLost));
    }

    #[test]
    fn a_loss_that_the_handle_told_is_a_passing_one() {
        let (connection, _events) = connection(connecting());
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
    fn an_answer_is_contact_even_if_the_handle_said_so_before_anybody_listened() {
        for start in [in_use(), connecting()] {
            let (connection, events) = connection(start);
            let before = connection.before_call().unwrap();
            connection.after_call::<()>(before, Err(ZkError::NoNode)).unwrap_err();
            assert_eq!(told(&events), [CONNECTED]);
        }
    }

    #[test]
    fn an_answer_from_before_a_disconnect_is_no_contact() {
        let (connection, events) = connection(in_use());
        let before = connection.before_call().unwrap();
        connection.on_state(ZkState::Connecting);
        connection.after_call(before, Ok(())).unwrap();
        assert_eq!(told(&events), [ClientEvent::Disconnected]);
    }

    #[test]
    fn a_handle_that_still_connects_loses_no_contact_and_one_in_use_may() {
        for (start, expected) in [(connecting(), vec![]), (in_use(), vec![ClientEvent::Disconnected])] {
            let (connection, events) = connection(start);
            connection.on_state(ZkState::Connecting);
            assert_eq!(told(&events), expected);
            connection.on_state(ZkState::Connected);
            assert_eq!(told(&events), [CONNECTED]);
        }
    }

    #[test]
    fn a_closed_handle_is_a_lost_session() {
        let (connection, events) = connection(in_use());
        connection.on_state(ZkState::Closed);
        assert_eq!(told(&events), [ClientEvent::SessionLost]);
    }

    #[test]
    fn a_late_subscriber_hears_of_a_loss() {
        let connection = Arc::new(connecting());
        connection.on_state(ZkState::Closed);
        let (events, received) = unbounded();
        assert!(!connection.subscribe(Arc::new(move |event| drop(events.send(event)))));
        assert_eq!(told(&received), [ClientEvent::SessionLost]);
    }

    /// Servers that cannot be reached, and granted this when they could.
    fn asked() -> (Arc<ConnectionState>, Receiver<ClientEvent>) {
        let servers = ConnectString::parse("127.0.0.1:1").unwrap();
        let ensemble = Ensemble::new(servers, TIMEOUT);
        connection(ConnectionState::connecting(Grants::Asked(Arc::new(ensemble)), true))
    }

    #[test]
    fn a_reconnect_is_told_when_the_servers_have_said_what_they_grant() {
        let (connection, events) = asked();
        connection.on_state(ZkState::Connected);
        for state in [ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            connection.on_state(state);
        }
        let told = told(&events);
        assert!(matches!(told[..], [ClientEvent::Connected(_), ClientEvent::Disconnected]), "{told:?}");
        let changes = connection.state.lock().changes;
        connection.learnt(changes - 1, granted());
        assert!(events.is_empty(), "that was asked for an older connection");
        connection.learnt(changes, granted());
        assert_eq!(events.try_recv(), Ok(CONNECTED));
    }

    #[test]
    fn a_connection_that_is_lost_before_the_servers_have_answered_is_not_told() {
        let (connection, events) = asked();
        for state in [ZkState::Connected, ZkState::Connecting, ZkState::Connected, ZkState::Connecting] {
            connection.on_state(state);
        }
        let told = told(&events);
        assert!(matches!(told[..], [ClientEvent::Connected(_), ClientEvent::Disconnected]), "{told:?}");
    }
}
