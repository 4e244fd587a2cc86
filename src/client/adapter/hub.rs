//! The hub of one handle's events: it knows what the handle's state means for the session, and passes events on.
//!
//! The crate calls in from its io thread and its event thread, holding locks of its own. Everything here is short and
//! calls nothing of the crate's.

use parking_lot::Mutex;
use zookeeper::{WatchedEvent, WatchedEventType, ZkError, ZkResult, ZkState};

use crate::client::{ClientEvent, EventSink};

#[derive(Default)]
pub(super) struct Hub {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    contact: Contact,
    /// Counts the handle's changes of state, to see whether one came in during a call.
    changes: u64,
    /// The handle has ended and does nothing any more.
    ended: bool,
    sink: Option<EventSink>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Contact {
    /// A handle that was in use before: it has not told its state yet.
    #[default]
    Unknown,
    Connecting,
    Connected,
    /// Contact was lost; the handle has not begun to connect again.
    Disconnected,
    /// The session is gone, whatever the handle does now.
    Lost,
}

/// The hub's state when a call was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct BeforeCall {
    changes: u64,
}

impl Hub {
    /// The hub of a handle that has just begun to connect.
    pub(super) fn connecting() -> Hub {
        let state = State { contact: Contact::Connecting, ..State::default() };
        Hub { state: Mutex::new(state) }
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
    }

    /// A change of the handle's state, on its io thread.
    #[allow(deprecated, reason = "the crate reports a loss of contact and an expiry with a deprecated state")]
    pub(super) fn on_state(&self, new: ZkState) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.ended |= new == ZkState::Closed;
        let next = match new {
            ZkState::Connected => Contact::Connected,
            ZkState::Connecting => Contact::Connecting,
            // Reported after `Connecting`, this is how the crate says that the session has expired and that it goes on
            // with a new one. It says the same when a server hangs up in the middle of its answer to the connect
            // request, which is rare, and taken for the worse.
            ZkState::NotConnected if state.contact == Contact::Connecting => Contact::Lost,
            ZkState::NotConnected => Contact::Disconnected,
            ZkState::Closed | ZkState::AuthFailed => Contact::Lost,
            // No contact that a lock could use. Not asked for, so never seen.
            ZkState::ConnectedReadOnly | ZkState::Associating => Contact::Disconnected,
        };
        state.change_to(next);
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

    pub(super) fn before_call(&self) -> ZkResult<BeforeCall> {
        let state = self.state.lock();
        match state.contact {
            Contact::Lost => Err(ZkError::SessionExpired),
            _ => Ok(BeforeCall { changes: state.changes }),
        }
    }

    /// Says what the result of a call means, given what happened meanwhile.
    pub(super) fn after_call<T>(&self, before: BeforeCall, result: ZkResult<T>) -> ZkResult<T> {
        let mut state = self.state.lock();
        if state.contact == Contact::Lost {
            return Err(ZkError::SessionExpired);
        }
        let unchanged = state.changes == before.changes;
        match (&result, state.contact) {
            (Err(ZkError::SessionExpired), _) => state.change_to(Contact::Lost),
            // The crate tells a loss of contact before it fails the calls under way. If it did not, its io thread is gone.
            (Err(ZkError::ConnectionLoss), Contact::Connected) if unchanged => {
                log::warn!("the ZooKeeper client's io thread has ended");
                state.change_to(Contact::Lost);
                return Err(ZkError::SessionExpired);
            }
            (Err(ZkError::ConnectionLoss), _) => {}
            // An answer: there is contact, although the handle's own word came before anybody listened.
            (_, Contact::Unknown | Contact::Connecting) if unchanged => state.change_to(Contact::Connected),
            _ => {}
        }
        result
    }
}

impl State {
    fn change_to(&mut self, next: Contact) {
        let before = std::mem::replace(&mut self.contact, next);
        if before == Contact::Lost {
            self.contact = Contact::Lost;
            return;
        }
        let had_contact = matches!(before, Contact::Connected | Contact::Unknown);
        match next {
            Contact::Lost => self.tell(ClientEvent::SessionLost),
            Contact::Connected if before != Contact::Connected => self.tell(ClientEvent::Connected),
            Contact::Connecting | Contact::Disconnected if had_contact => {
                self.tell(ClientEvent::Disconnected)
            }
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
    use crossbeam_channel::{Receiver, unbounded};
    use std::sync::Arc;

    fn hub(hub: Hub) -> (Hub, Receiver<ClientEvent>) {
        let (events, received) = unbounded();
        hub.subscribe(Arc::new(move |event| drop(events.send(event))));
        (hub, received)
    }

    fn told(events: &Receiver<ClientEvent>) -> Vec<ClientEvent> {
        events.try_iter().collect()
    }

    #[test]
    fn a_disconnect_and_a_reconnect_are_told_once_each() {
        let (hub, events) = hub(Hub::connecting());
        for state in [ZkState::Connected, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            hub.on_state(state);
        }
        assert_eq!(
            told(&events),
            [ClientEvent::Connected, ClientEvent::Disconnected, ClientEvent::Connected]
        );
    }

    #[test]
    fn a_silent_new_session_is_a_lost_session() {
        let (hub, events) = hub(Hub::connecting());
        for state in [ZkState::Connected, ZkState::Connecting, ZkState::NotConnected] {
            hub.on_state(state);
        }
        for state in [ZkState::Connecting, ZkState::Connected] {
            hub.on_state(state);
        }
        assert_eq!(
            told(&events),
            [ClientEvent::Connected, ClientEvent::Disconnected, ClientEvent::SessionLost]
        );
        assert_eq!(hub.before_call().unwrap_err(), ZkError::SessionExpired);
    }

    #[test]
    fn what_a_call_brought_from_another_session_does_not_count() {
        let (hub, _events) = hub(Hub::connecting());
        hub.on_state(ZkState::Connected);
        let before = hub.before_call().unwrap();
        for state in [ZkState::Connecting, ZkState::NotConnected, ZkState::Connecting, ZkState::Connected] {
            hub.on_state(state);
        }
        assert_eq!(hub.after_call(before, Ok(())), Err(ZkError::SessionExpired));
    }

    #[test]
    fn a_loss_that_the_handle_did_not_tell_means_that_its_thread_is_gone() {
        let (hub, events) = hub(Hub::connecting());
        hub.on_state(ZkState::Connected);
        let before = hub.before_call().unwrap();
        let result = hub.after_call::<()>(before, Err(ZkError::ConnectionLoss));
        assert_eq!(result, Err(ZkError::SessionExpired));
        assert_eq!(told(&events).last(), Some(&ClientEvent::SessionLost));
    }

    #[test]
    fn a_loss_that_the_handle_told_is_a_passing_one() {
        let (hub, _events) = hub(Hub::connecting());
        hub.on_state(ZkState::Connected);
        let before = hub.before_call().unwrap();
        hub.on_state(ZkState::Connecting);
        hub.on_state(ZkState::Connected);
        assert_eq!(hub.after_call::<()>(before, Err(ZkError::ConnectionLoss)), Err(ZkError::ConnectionLoss));
    }

    #[test]
    fn an_answer_is_contact_even_if_the_handle_said_so_before_anybody_listened() {
        for start in [Hub::default(), Hub::connecting()] {
            let (hub, events) = hub(start);
            let before = hub.before_call().unwrap();
            hub.after_call::<()>(before, Err(ZkError::NoNode)).unwrap_err();
            assert_eq!(told(&events), [ClientEvent::Connected]);
        }
    }

    #[test]
    fn an_answer_from_before_a_disconnect_is_no_contact() {
        let (hub, events) = hub(Hub::default());
        let before = hub.before_call().unwrap();
        hub.on_state(ZkState::Connecting);
        hub.after_call(before, Ok(())).unwrap();
        assert_eq!(told(&events), [ClientEvent::Disconnected]);
    }

    #[test]
    fn a_handle_that_still_connects_loses_no_contact_and_one_in_use_may() {
        for (start, expected) in
            [(Hub::connecting(), vec![]), (Hub::default(), vec![ClientEvent::Disconnected])]
        {
            let (hub, events) = hub(start);
            hub.on_state(ZkState::Connecting);
            assert_eq!(told(&events), expected);
            hub.on_state(ZkState::Connected);
            assert_eq!(told(&events), [ClientEvent::Connected]);
        }
    }

    #[test]
    fn a_closed_handle_is_a_lost_session() {
        let (hub, events) = hub(Hub::default());
        hub.on_state(ZkState::Closed);
        assert_eq!(told(&events), [ClientEvent::SessionLost]);
    }

    #[test]
    fn a_late_subscriber_hears_of_a_loss() {
        let hub = Hub::connecting();
        hub.on_state(ZkState::Closed);
        let (events, received) = unbounded();
        assert!(!hub.subscribe(Arc::new(move |event| drop(events.send(event)))));
        assert_eq!(told(&received), [ClientEvent::SessionLost]);
    }
}
