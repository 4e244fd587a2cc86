use crossbeam_channel::RecvTimeoutError;

use super::*;

#[test]
fn a_data_watch_fires_once_on_set_delete_and_creation() {
    let (zookeeper, client, events) = connected();
    client.get_data("/a", true).unwrap();
    zookeeper.set_data("/a", b"1");
    assert_eq!(events.take(), [changed("/a")]);
    zookeeper.set_data("/a", b"2");
    assert_eq!(events.take(), []);
    client.exists("/a", true).unwrap();
    zookeeper.delete("/a");
    assert_eq!(events.take(), [deleted("/a")]);
    client.exists("/a", true).unwrap();
    zookeeper.create("/a", b"");
    assert_eq!(events.take(), [changed("/a")]);
    assert_eq!(zookeeper.watch_count(), 0);
}

#[test]
fn a_child_watch_fires_once_on_children_and_own_deletion() {
    let (zookeeper, client, events) = connected();
    client.get_children("/a", true).unwrap();
    zookeeper.set_data("/a", b"1");
    assert_eq!(events.take(), []);
    zookeeper.create("/a/b", b"");
    zookeeper.create("/a/c", b"");
    assert_eq!(events.take(), [changed("/a")]);
    client.get_children("/a", true).unwrap();
    zookeeper.set_data("/a/b", b"1");
    assert_eq!(events.take(), []);
    zookeeper.delete("/a/b");
    assert_eq!(events.take(), [changed("/a")]);
    zookeeper.delete("/a/c");
    client.get_children("/a", true).unwrap();
    zookeeper.delete("/a");
    assert_eq!(events.take(), [deleted("/a")]);
    assert_eq!(zookeeper.watch_count(), 0);
}

#[test]
fn deletion_sends_one_event_per_path() {
    let (zookeeper, client, events) = connected();
    zookeeper.create("/a/b", b"");
    for _ in 0..2 {
        client.get_data("/a/b", true).unwrap();
        client.exists("/a/b", true).unwrap();
        client.get_children("/a/b", true).unwrap();
        client.get_children("/a", true).unwrap();
    }
    assert_eq!(zookeeper.watch_count(), 3);
    zookeeper.delete("/a/b");
    assert_eq!(events.take(), [deleted("/a/b"), changed("/a")]);
    assert_eq!(zookeeper.watch_count(), 0);
}

#[test]
fn every_watching_client_is_notified() {
    let (zookeeper, first, first_events) = connected();
    let second = zookeeper.connect(TIMEOUT);
    let second_events = Events::of(&second);
    first.get_data("/a", true).unwrap();
    second.get_data("/a", true).unwrap();
    first.delete("/a", None).unwrap();
    assert_eq!(first_events.take(), [deleted("/a")]);
    assert_eq!(second_events.take(), [deleted("/a")]);
}

#[test]
fn read_sets_no_watch_unasked_or_on_a_missing_znode() {
    let (zookeeper, client, _) = connected();
    client.get_data("/a", false).unwrap();
    client.get_children("/a", false).unwrap();
    client.exists("/a", false).unwrap();
    assert!(client.get_data("/b", true).is_err());
    assert!(client.get_children("/b", true).is_err());
    assert_eq!(zookeeper.watch_count(), 0);
    client.exists("/b", true).unwrap();
    assert_eq!(zookeeper.watch_count(), 1);
}

#[test]
fn sink_runs_with_no_lock_held() {
    let (zookeeper, client, _) = connected();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (sink_seen, server) = (Arc::clone(&seen), zookeeper.clone());
    client.subscribe(Arc::new(move |event| {
        if event == deleted("/a") {
            // The event of this creation is delivered after the current event.
            server.create("/b", b"");
        }
        sink_seen.lock().push((event, server.children("/")));
    }));
    client.exists("/a", true).unwrap();
    client.exists("/b", true).unwrap();
    zookeeper.delete("/a");
    let names = vec!["b".to_owned()];
    assert_eq!(*seen.lock(), [(deleted("/a"), names.clone()), (changed("/b"), names)]);
}

#[test]
fn panicking_sink_blocks_no_other_thread() {
    let (zookeeper, client, _) = connected();
    client.subscribe(Arc::new(|_| panic!("in the sink")));
    client.exists("/a", true).unwrap();
    let writer = zookeeper.clone();
    let written = in_background(move || writer.delete("/a"));
    assert_eq!(written.recv_timeout(deadline()), Err(RecvTimeoutError::Disconnected), "the sink panics");
    let events = Events::of(&client);
    client.disconnect();
    assert_eq!(events.take(), [ClientEvent::Disconnected]);
}
