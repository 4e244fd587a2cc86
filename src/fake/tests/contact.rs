use super::*;
use ClientEvent::{Disconnected, SessionLost};

fn outcome(client: &SimulatedClient) -> Result<(), ZkError> {
    client.set_data("/a", b"", None).map(drop)
}

#[test]
fn new_client_is_connected_with_its_own_session() {
    let (zookeeper, client, events) = connected();
    let other = zookeeper.connect(Duration::from_secs(9));
    assert!(other.subscribe(Arc::new(|_| {})));
    assert_ne!(client.session_id(), other.session_id());
    assert_eq!(zookeeper.sessions(), [client.session_id(), other.session_id()]);
    assert_eq!(other.granted().session_timeout, 3 * TIMEOUT / 2);
    assert_eq!(events.take(), []);
}

#[test]
fn reconnect_reports_the_new_grant() {
    let (_zookeeper, client, events) = connected();
    let less = Granted::new(TIMEOUT / 2).with_report_delay(TIMEOUT / 8);
    client.disconnect();
    client.grant(less);
    client.reconnect();
    assert_eq!(events.take(), [Disconnected, ClientEvent::Connected(less)]);
    assert_eq!(client.granted(), less);
}

#[test]
fn disconnect_drops_watches_and_keeps_the_session() {
    let (zookeeper, client, events) = connected();
    let other = zookeeper.connect(TIMEOUT);
    ephemeral(&client, "/e");
    client.get_data("/a", true).unwrap();
    client.get_children("/a", true).unwrap();
    other.get_data("/a", true).unwrap();
    client.disconnect();
    client.disconnect();
    assert_eq!(events.take(), [Disconnected]);
    assert_eq!(zookeeper.watch_count(), 1);
    assert_eq!(outcome(&client), Err(ZkError::ConnectionLoss));
    assert!(!client.subscribe(Arc::new(|_| {})));
    let events = Events::of(&client);
    zookeeper.set_data("/a", b"1");
    client.reconnect();
    client.reconnect();
    assert_eq!(events.take(), [contact()]);
    assert_eq!(zookeeper.stat("/a").unwrap().version, 1);
    assert!(zookeeper.exists("/e"));
    assert_eq!(outcome(&client), Ok(()));
}

#[test]
fn expiry_while_connected_is_reported_immediately() {
    let (zookeeper, client, events) = connected();
    let other = zookeeper.connect(TIMEOUT);
    let other_events = Events::of(&other);
    ephemeral(&client, "/e");
    ephemeral(&other, "/kept");
    client.exists("/e", true).unwrap();
    other.exists("/e", true).unwrap();
    client.expire();
    client.expire();
    assert_eq!(events.take(), [SessionLost]);
    assert_eq!(other_events.take(), [deleted("/e")]);
    assert!(!zookeeper.exists("/e") && zookeeper.exists("/kept"));
    assert_eq!(zookeeper.sessions(), [other.session_id()]);
    client.disconnect();
    client.reconnect();
    assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
    assert_eq!(events.take(), []);
}

#[test]
fn expiry_while_disconnected_is_reported_at_reconnect() {
    let (zookeeper, client, events) = connected();
    ephemeral(&client, "/e");
    client.disconnect();
    client.expire();
    assert!(!zookeeper.exists("/e"));
    assert_eq!(outcome(&client), Err(ZkError::ConnectionLoss));
    client.reconnect();
    assert_eq!(events.take(), [Disconnected, SessionLost]);
    assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
}

#[test]
fn silent_expiry_is_reported_late() {
    type Verb = fn(&SimulatedClient);
    let last_words: [(Verb, &[ClientEvent]); 3] = [
        (|client| client.report_expiry(), &[SessionLost]),
        (|client| client.reconnect(), &[SessionLost]),
        (
            |client| {
                client.disconnect();
                client.report_expiry();
            },
            &[Disconnected, SessionLost],
        ),
    ];
    for (speak, words) in last_words {
        let (zookeeper, client, events) = connected();
        ephemeral(&client, "/e");
        client.get_data("/a", true).unwrap();
        client.report_expiry();
        client.expire_silently();
        assert!(!zookeeper.exists("/e"));
        assert_eq!(zookeeper.watch_count(), 0);
        assert_eq!(outcome(&client), Err(ZkError::ConnectionLoss));
        assert_eq!(events.take(), []);
        speak(&client);
        assert_eq!(events.take(), words);
        assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
    }
}

#[test]
fn silent_expiry_while_disconnected_changes_nothing_for_the_client() {
    let (_zookeeper, client, events) = connected();
    client.disconnect();
    client.expire_silently();
    client.disconnect();
    assert_eq!(events.take(), [Disconnected]);
    client.report_expiry();
    assert_eq!(events.take(), [SessionLost]);
}

#[test]
fn session_given_up_by_the_client_lives_on_the_server() {
    let (zookeeper, client, events) = connected();
    ephemeral(&client, "/e");
    client.give_up();
    assert_eq!(events.take(), [SessionLost]);
    assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
    assert!(zookeeper.exists("/e"));
    client.expire();
    assert!(!zookeeper.exists("/e"));
    assert_eq!(events.take(), []);
}

#[test]
fn close_ends_the_session_once() {
    let (zookeeper, client, events) = connected();
    ephemeral(&client, "/e");
    client.get_data("/a", true).unwrap();
    client.close();
    client.close();
    assert!(!zookeeper.exists("/e"));
    assert!(zookeeper.sessions().is_empty());
    assert_eq!(zookeeper.watch_count(), 0);
    assert_eq!(zookeeper.calls(SimOperation::Close), 1);
    assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
    client.expire();
    client.disconnect();
    client.reconnect();
    client.report_expiry();
    assert_eq!(events.take(), []);
    assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
}

#[test]
fn nothing_follows_the_end_of_a_session() {
    type Verb = fn(&SimulatedClient);
    let ends: [(Verb, &[ClientEvent]); 5] = [
        (|client| client.expire(), &[SessionLost]),
        (|client| client.give_up(), &[SessionLost]),
        (
            |client| {
                client.expire_silently();
                client.report_expiry();
            },
            &[SessionLost],
        ),
        (|client| client.close(), &[]),
        (
            |client| {
                client.disconnect();
                client.close();
            },
            &[Disconnected],
        ),
    ];
    let verbs: [Verb; 11] = [
        |client| client.disconnect(),
        |client| client.reconnect(),
        |client| client.expire(),
        |client| client.expire_silently(),
        |client| client.give_up(),
        |client| client.report_expiry(),
        |client| client.swallow(),
        |client| client.release(),
        |client| client.pass_on(),
        |client| client.close(),
        |client| client.grant(Granted::new(TIMEOUT)),
    ];
    for (number, (end, last_words)) in ends.into_iter().enumerate() {
        for first in verbs {
            for second in verbs {
                let (zookeeper, client, events) = connected();
                client.hold_back_next(SimOperation::SetData);
                assert_eq!(outcome(&client), Err(ZkError::ConnectionLoss));
                client.get_data("/a", true).unwrap();
                end(&client);
                assert_eq!(events.take(), last_words);
                let contact = client.client(&mut client.shared.lock()).contact;
                let later = Events::of(&client);
                first(&client);
                second(&client);
                zookeeper.set_data("/a", b"later");
                assert_eq!([events.take(), later.take()], [[], []], "end {number}");
                assert_eq!(client.client(&mut client.shared.lock()).contact, contact, "end {number}");
                assert_eq!(outcome(&client), Err(ZkError::SessionExpired), "end {number}");
            }
        }
    }
}

#[test]
fn close_lost_before_the_server_leaves_the_session_to_expire() {
    let without_contact: [fn(&SimulatedClient); 3] = [
        |client| client.disconnect(),
        |client| client.cut_next(SimOperation::Close, Effect::Before),
        |client| client.fail_next(SimOperation::Close, Effect::Before, ZkError::ConnectionLoss),
    ];
    for lose in without_contact {
        let (zookeeper, client, _) = connected();
        ephemeral(&client, "/e");
        lose(&client);
        client.close();
        assert_eq!(outcome(&client), Err(ZkError::SessionExpired));
        assert!(zookeeper.exists("/e"));
        client.expire();
        assert!(!zookeeper.exists("/e"));
    }
}

#[test]
fn close_with_a_lost_reply_ends_the_session() {
    let (zookeeper, client, events) = connected();
    client.cut_next(SimOperation::Close, Effect::After);
    client.close();
    assert!(zookeeper.sessions().is_empty());
    assert_eq!(events.take(), []);
}

#[test]
fn close_drops_the_sink() {
    let (_zookeeper, client, _) = connected();
    let held = Arc::new(());
    let weak = Arc::downgrade(&held);
    client.subscribe(Arc::new(move |_| drop(Arc::clone(&held))));
    client.close();
    assert!(weak.upgrade().is_none());
}

#[test]
fn dropped_client_counts_as_crashed() {
    let (zookeeper, client, _) = connected();
    ephemeral(&client, "/e");
    client.get_data("/a", true).unwrap();
    let session = client.session_id();
    drop(client);
    assert_eq!(zookeeper.watch_count(), 0);
    assert!(zookeeper.exists("/e"));
    zookeeper.expire_session(session);
    assert!(!zookeeper.exists("/e") && zookeeper.sessions().is_empty());
}

#[test]
fn drop_of_a_sink_may_call_the_client() {
    struct Closes(Arc<SimulatedClient>);
    impl Drop for Closes {
        fn drop(&mut self) {
            let _ = self.0.exists("/a", false);
            self.0.close();
        }
    }
    let (zookeeper, client, _) = connected();
    let other = zookeeper.connect(TIMEOUT);
    let (first, second) = (Closes(Arc::clone(&other)), Closes(Arc::clone(&client)));
    client.subscribe(Arc::new(move |_| assert!(first.0.session_id() > 0)));
    client.subscribe(Arc::new(move |_| assert!(second.0.session_id() > 0)));
    assert_eq!(zookeeper.sessions(), [client.session_id()]);
    client.close();
    assert!(zookeeper.sessions().is_empty());
}
