//! Tests of trackers of a znode, through the znode's changes and under faults.

use std::thread;
use std::time::Duration;

use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::data::NodeTracker;
use zookeeper_recipes_lock::{Session, SessionState, Wait};

use crate::fixtures::{ErrorVariant, LONG, Observer, SHORT, connect, connect_replaced, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server::{self, Server};
use crate::support::wait::{deadline, eventually};

/// A znode that does not exist yet, and a client that can change it.
struct Fixture {
    path: String,
    observer: Observer,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let path = unique_dir(test);
        let observer = Observer::at(server::shared());
        observer.create_persistent(path.rsplit_once('/').unwrap().0);
        Fixture { path, observer }
    }

    fn tracker(&self, session: &Session) -> NodeTracker {
        NodeTracker::start(session, &self.path, Wait::forever()).unwrap()
    }

    fn create(&self, data: &str) {
        let (data, open) = (data.as_bytes(), Acl::open_unsafe());
        self.observer.zk().create(&self.path, data, &open, CreateMode::Persistent).unwrap();
    }

    fn set(&self, data: &str) {
        self.observer.zk().set_data(&self.path, data.as_bytes()).unwrap();
    }

    fn delete(&self) {
        self.observer.delete(&self.path);
    }
}

fn seen(tracker: &NodeTracker) -> Option<String> {
    tracker.current().unwrap().map(|node| String::from_utf8_lossy(&node.data).into_owned())
}

fn await_data(tracker: &NodeTracker, expected: Option<&str>) {
    eventually(&format!("{expected:?} is reported"), || seen(tracker).as_deref() == expected);
}

#[test]
fn tracker_reports_creation_change_and_deletion() {
    let fixture = Fixture::new("tracker");
    let tracker = fixture.tracker(&session(server::shared()));
    assert_eq!(seen(&tracker), None);
    for _ in 0..3 {
        fixture.create("1");
        await_data(&tracker, Some("1"));
        fixture.set("2");
        await_data(&tracker, Some("2"));
        fixture.delete();
        await_data(&tracker, None);
    }
}

#[test]
fn tracker_of_a_busy_znode_reports_its_last_state() {
    let fixture = Fixture::new("busy");
    let session = session(server::shared());
    let trackers = [fixture.tracker(&session), fixture.tracker(&session)];
    for round in 0..200 {
        fixture.create(&round.to_string());
        if round % 3 == 0 {
            fixture.set("changed");
        }
        if round < 199 {
            fixture.delete();
        }
    }
    trackers.iter().for_each(|tracker| await_data(tracker, Some("199")));
}

#[test]
fn wait_ends_on_creation_or_deletion() {
    let fixture = Fixture::new("waiting");
    let tracker = fixture.tracker(&session(server::shared()));
    assert_eq!(tracker.wait_available(Duration::from_millis(10)).unwrap(), None);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| tracker.wait_available(deadline()));
        fixture.create("1");
        assert_eq!(waiting.join().unwrap().unwrap().unwrap().data.as_ref(), b"1");
        let waiting = scope.spawn(|| tracker.wait_deleted(deadline()));
        fixture.delete();
        assert!(waiting.join().unwrap().unwrap());
    });
}

#[test]
fn changes_during_an_outage_are_reported_after_it() {
    let fixture = Fixture::new("outage");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let tracker = fixture.tracker(&far);
    let outage = |change: &dyn Fn()| {
        relay.refuse();
        eventually("the outage is noticed", || far.state() == SessionState::Suspended);
        change();
        relay.restore();
        eventually("the session is connected", || far.state() == SessionState::Connected);
    };
    outage(&|| fixture.create("1"));
    await_data(&tracker, Some("1"));
    outage(&|| fixture.set("2"));
    await_data(&tracker, Some("2"));
    outage(&|| {
        fixture.delete();
        fixture.create("3");
    });
    await_data(&tracker, Some("3"));
    outage(&|| fixture.delete());
    await_data(&tracker, None);
    fixture.create("4");
    await_data(&tracker, Some("4"));
}

#[test]
fn tracker_fails_after_its_session_ended() {
    let fixture = Fixture::new("expiry");
    fixture.create("1");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let tracker = fixture.tracker(&far);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| tracker.wait_deleted(Duration::MAX));
        relay.swallow();
        assert!(waiting.join().unwrap().unwrap_err().is_session_lost());
    });
    assert!(tracker.current().unwrap_err().is_session_lost());
    assert!(tracker.changes().recv().is_ok());
    assert!(tracker.changes().recv().is_err(), "disconnected");
}

#[test]
fn tracker_survives_the_replacement_of_its_session() {
    let fixture = Fixture::new("replacement");
    fixture.create("1");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect_replaced(&relay.connect_string(), SHORT);
    let tracker = fixture.tracker(&far);
    let states = far.subscribe();
    relay.swallow();
    while states.recv_timeout(deadline()).unwrap() != SessionState::Lost {}
    assert_eq!(seen(&tracker).as_deref(), Some("1"), "the tracker must keep the last known value");
    fixture.set("2");
    relay.restore();
    await_data(&tracker, Some("2"));
    fixture.set("3");
    await_data(&tracker, Some("3"));
    far.close();
    assert!(tracker.current().unwrap_err().is_closed());
}

#[test]
fn tracker_survives_a_restart_of_the_server() {
    let server = Server::start();
    let (session, observer) = (session(&server), Observer::at(&server));
    observer.create_persistent("/config");
    let tracker = NodeTracker::start(&session, "/config", Wait::forever()).unwrap();
    drop(observer);
    server.stop();
    eventually("the outage is noticed", || session.state() == SessionState::Suspended);
    server.restart();
    eventually("the session is connected", || session.state() == SessionState::Connected);
    let observer = Observer::at(&server);
    observer.zk().set_data("/config", b"1").unwrap();
    await_data(&tracker, Some("1"));
}

#[test]
fn dropped_trackers_leave_no_watch() {
    let server = Server::start();
    let session = session(&server);
    let observer = Observer::at(&server);
    for path in ["/first", "/second"] {
        let stays = NodeTracker::start(&session, path, Wait::forever()).unwrap();
        for _ in 0..100 {
            drop(NodeTracker::start(&session, path, Wait::forever()).unwrap());
        }
        observer.create_persistent(path);
        await_data(&stays, Some(""));
        observer.zk().set_data(path, b"1").unwrap();
        await_data(&stays, Some("1"));
        drop(stays);
        eventually("no watch is left", || server.watch_count() == 0);
    }
}
