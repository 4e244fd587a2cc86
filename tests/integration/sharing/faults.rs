//! The read-write lock under faults: connections cut and silent, sessions that end, processes that are killed.

use std::sync::Arc;
use std::thread;

use zookeeper::ZooKeeper;
use zookeeper_recipes_lock::{LossReason, Session, SessionState};

use super::{Waiting, lock_on};
use crate::fixtures::{ErrorVariant, LONG, Onlooker, SHORT, connect, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::eventually;
use crate::twin::Twin;

#[test]
fn readers_and_writers_hold_and_wait_on_through_a_reconnect() {
    let dir = unique_dir("shared-reconnect");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let near = session(server::shared());
    let (far_lock, near_lock) = (lock_on(&far, &dir), lock_on(&near, &dir));
    let reconnect = || {
        let states = far.subscribe();
        relay.cut();
        while next(&states) != SessionState::Connected {}
    };
    let reading = far_lock.read().unwrap();
    let also = near_lock.read().unwrap();
    let writer = Waiting::join(&far_lock, false);
    let reader = Waiting::join(&far_lock, true);
    reconnect();
    assert!(reading.is_owner() && !writer.is_owner() && !reader.is_owner());
    reading.unlock().unwrap();
    assert!(!writer.is_owner(), "the near one still reads");
    // The watch on it was set on the connection that was cut.
    also.unlock().unwrap();
    writer.await_acquired();
    reconnect();
    assert!(writer.is_owner() && !reader.is_owner());
    writer.unlock();
    reader.await_acquired();
}

#[test]
fn a_reader_whose_session_expires_is_told_and_lets_the_writer_in() {
    let dir = unique_dir("reader-expires");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let near = session(server::shared());
    let near_lock = lock_on(&near, &dir);
    let lost = lock_on(&far, &dir).read().unwrap();
    let kept = near_lock.read().unwrap();
    let writer = Waiting::join(&near_lock, false);
    relay.swallow();
    assert_eq!(next(lost.lost()), LossReason::LeaseExpired);
    assert!(!lost.is_owner() && kept.is_owner());
    Onlooker::at(server::shared()).await_children(&dir, 2);
    assert!(!writer.is_owner(), "the other one still reads");
    kept.unlock().unwrap();
    writer.await_acquired();
    relay.restore();
    assert!(lost.unlock().unwrap_err().is_session_lost());
}

#[test]
fn a_writer_in_a_silent_partition_stops_owning_before_a_reader_begins() {
    let dir = unique_dir("writer-expires");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), SHORT);
    let near = session(server::shared());
    let writing = lock_on(&far, &dir).write().unwrap();
    let readers = [(); 3].map(|()| Waiting::join(&lock_on(&near, &dir), true));
    relay.swallow();
    eventually("the readers read", || {
        let owned = writing.is_owner();
        let read = readers.iter().any(Waiting::is_owner);
        // In this order: what was true of the writer before was true of no reader then.
        assert!(!(owned && read && writing.is_owner()), "both at once");
        readers.iter().all(Waiting::is_owner)
    });
    assert!(!writing.is_owner());
    relay.restore();
    assert!(
        writing.downgrade().unwrap_err().error.is_session_lost() || !far.state().eq(&SessionState::Connected)
    );
}

/// Runs itself in a process of its own, which reads and is then killed.
#[test]
fn a_reader_that_is_killed_lets_the_writer_in_after_its_session_and_disturbs_no_other_reader() {
    const NAME: &str = "sharing::faults::a_reader_that_is_killed_lets_the_writer_in_after_its_session_and_disturbs_no_other_reader";
    if let Some((connect_string, dir)) = Twin::place() {
        let session = connect(&connect_string, SHORT);
        let reading = lock_on(&session, &dir).read().unwrap();
        Twin::say(reading.id());
        loop {
            thread::park();
        }
    }

    let dir = unique_dir("reader-killed");
    let session = session(server::shared());
    let lock = lock_on(&session, &dir);
    let mut twin = Twin::start(NAME, &dir);
    let onlooker = Onlooker::at(server::shared());
    assert!(onlooker.exists(&twin.hear()));
    let kept = lock.read().unwrap();
    let writer = Waiting::join(&lock, false);
    twin.kill();
    kept.fencing_token().unwrap();
    assert!(kept.is_owner());
    kept.unlock().unwrap();
    writer.await_acquired();
    onlooker.await_children(&dir, 1);
}

#[test]
fn a_downgrade_whose_reply_is_lost_is_made_all_the_same() {
    let dir = unique_dir("downgrade-lost-reply");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let near = session(server::shared());
    let onlooker = Onlooker::at(server::shared());
    let writing = lock_on(&far, &dir).write().unwrap();
    let writer = Waiting::join(&lock_on(&near, &dir), false);
    thread::scope(|scope| {
        relay.hold_replies();
        let downgrading = scope.spawn(|| writing.downgrade());
        onlooker.await_children(&dir, 3);
        relay.cut();
        let reading = downgrading.join().unwrap().unwrap();
        assert!(reading.is_owner() && !writer.is_owner());
        onlooker.await_children(&dir, 2);
        reading.unlock().unwrap();
        writer.await_acquired();
    });
}

#[test]
fn a_downgrade_under_way_when_the_session_is_closed_leaves_nothing_on_the_applications_handle() {
    let dir = unique_dir("downgrade-closed");
    let relay = Relay::to(server::shared().connect_string());
    let handle = Arc::new(ZooKeeper::connect(&relay.connect_string(), LONG, |_| {}).unwrap());
    let session = Session::from_zookeeper(Arc::clone(&handle), LONG).unwrap();
    let writing = lock_on(&session, &dir).write().unwrap();
    relay.swallow();
    thread::scope(|scope| {
        let downgrading = scope.spawn(|| writing.downgrade().map(drop));
        eventually("the create is on its way", || relay.bytes_held() > 0);
        session.close();
        let failed = downgrading.join().unwrap().unwrap_err();
        assert!(failed.error.is_closed(), "{failed}");
    });
    relay.restore();
    // The reader's znode is created before the writer's is deleted.
    Onlooker::at(server::shared()).await_children(&dir, 0);
    assert!(handle.exists("/", false).is_ok(), "the handle is the application's");
}
