//! Tests of read-write locks under faults: connections that are cut or silent, sessions that end, processes
//! that are killed.

use std::thread;

use zookeeper_recipes_lock::{ErrorReason, LossReason, SessionState};

use super::{Waiting, lock_on};
use crate::child_test::ChildTest;
use crate::fixtures::{ErrorVariant, LONG, Observer, SHORT, connect, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::eventually;

#[test]
fn readers_and_writers_survive_a_reconnect() {
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
    assert!(!writer.is_owner(), "the near reader still owns");
    // The watch on this reader was on the connection that was cut.
    also.unlock().unwrap();
    writer.await_acquired();
    reconnect();
    assert!(writer.is_owner() && !reader.is_owner());
    writer.unlock();
    reader.await_acquired();
}

#[test]
fn writer_acquires_after_a_readers_session_expired() {
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
    Observer::at(server::shared()).await_children(&dir, 2);
    assert!(!writer.is_owner(), "the other reader still owns");
    kept.unlock().unwrap();
    writer.await_acquired();
    relay.restore();
    assert_eq!(lost.unlock().unwrap_err().reason(), ErrorReason::LeaseExpired);
}

#[test]
fn writer_in_a_silent_partition_stops_before_a_reader_acquires() {
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
        // If the writer owns both before and after, it also owned when the readers were asked.
        assert!(!(owned && read && writing.is_owner()), "two owners at once");
        readers.iter().all(Waiting::is_owner)
    });
    assert!(!writing.is_owner());
    relay.restore();
    assert!(
        writing.downgrade().unwrap_err().error.is_session_lost() || !far.state().eq(&SessionState::Connected)
    );
}

/// Runs this test in another process, which reads and is then killed.
#[test]
fn writer_acquires_after_the_session_of_a_killed_reader() {
    const NAME: &str = "sharing::faults::writer_acquires_after_the_session_of_a_killed_reader";
    if let Some((connect_string, dir)) = ChildTest::arguments() {
        let session = connect(&connect_string, SHORT);
        let reading = lock_on(&session, &dir).read().unwrap();
        ChildTest::send(reading.id());
        loop {
            thread::park();
        }
    }

    let dir = unique_dir("reader-killed");
    let session = session(server::shared());
    let lock = lock_on(&session, &dir);
    let mut child = ChildTest::start(NAME, &dir);
    let observer = Observer::at(server::shared());
    assert!(observer.exists(&child.receive()));
    let kept = lock.read().unwrap();
    let writer = Waiting::join(&lock, false);
    child.kill();
    kept.fencing_token().unwrap();
    assert!(kept.is_owner());
    kept.unlock().unwrap();
    writer.await_acquired();
    observer.await_children(&dir, 1);
}

#[test]
fn downgrade_with_a_lost_reply_succeeds() {
    let dir = unique_dir("downgrade-lost-reply");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let near = session(server::shared());
    let observer = Observer::at(server::shared());
    let writing = lock_on(&far, &dir).write().unwrap();
    let writer = Waiting::join(&lock_on(&near, &dir), false);
    thread::scope(|scope| {
        relay.hold_replies();
        let downgrading = scope.spawn(|| writing.downgrade());
        observer.await_children(&dir, 3);
        relay.cut();
        let reading = downgrading.join().unwrap().unwrap();
        assert!(reading.is_owner() && !writer.is_owner());
        observer.await_children(&dir, 2);
        reading.unlock().unwrap();
        writer.await_acquired();
    });
}
