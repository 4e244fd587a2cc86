//! Tests of readers and writers in one queue.

use super::*;
use crate::error::ErrorReason;
use crate::fake::SequenceEnd;
use crate::locks::ReadWriteLock;
use crate::recipe::NamingScheme;
use crate::tests::{await_replacement, replacing_session};

#[test]
fn readers_share_and_a_writer_owns_alone() {
    let zk = SimulatedZooKeeper::new();
    let (ours, theirs) = (Fixture::join(&zk), Fixture::join(&zk));
    let readers =
        [ours.sharing().read().unwrap(), ours.sharing().read().unwrap(), theirs.sharing().read().unwrap()];
    assert!(readers.iter().all(|reader| reader.is_owner()));
    assert!(theirs.sharing().try_write().unwrap().is_none());
    assert!(ours.sharing().try_read().unwrap().is_some());
    drop(readers);
    let writer = ours.sharing().try_write_for(deadline()).unwrap().unwrap();
    assert!(writer.is_owner());
    assert!(theirs.sharing().try_read().unwrap().is_none());
    assert!(ours.sharing().try_write().unwrap().is_none());
    writer.unlock().unwrap();
    assert!(theirs.sharing().try_read().unwrap().is_some());
}

#[test]
fn refused_try_lock_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let _reading = fixture.sharing().read().unwrap();
    let (_sender, receiver) = unbounded::<()>();
    fixture.client.before_next(SimOperation::Delete, move || {
        let _ = receiver.recv_timeout(Duration::from_millis(50));
    });
    assert!(fixture.sharing().try_write().unwrap().is_none());
    assert!(fixture.sharing().try_read().unwrap().is_some());
}

#[test]
fn unlocking_a_write_guard_waits_for_the_deletion_and_returns_its_error() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let lock = fixture.sharing();
    let (_sender, receiver) = unbounded::<()>();
    fixture.client.before_next(SimOperation::Delete, move || {
        let _ = receiver.recv_timeout(Duration::from_millis(50));
    });
    lock.write().unwrap().unlock().unwrap();
    assert!(zk.children(DIR).is_empty());
    fixture.client.fail_next(SimOperation::Delete, Effect::Before, ZkError::NoAuth);
    let error = lock.write().unwrap().unlock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("DELETE"), "{error}");
}

#[test]
fn try_lock_until_a_deadline_acquires_only_a_free_lock() {
    let zk = SimulatedZooKeeper::new();
    let lock = Fixture::join(&zk).sharing();
    let (far, near) = (Instant::now() + deadline(), Instant::now() + Duration::from_millis(10));
    let writing = lock.try_write_for(far).unwrap().unwrap();
    assert!(writing.is_owner());
    assert!(lock.try_write_for(near).unwrap().is_none());
    assert!(lock.try_read_for(near).unwrap().is_none());
    writing.unlock().unwrap();
    assert!(lock.try_read_for(far).unwrap().unwrap().is_owner());
}

#[test]
fn fencing_token_of_a_reader_is_that_of_its_znode() {
    let zk = SimulatedZooKeeper::new();
    let reading = Fixture::join(&zk).sharing().read().unwrap();
    assert_eq!(reading.fencing_token().unwrap(), zk.stat(reading.id()).unwrap().czxid);
}

#[test]
fn exclusive_lock_on_the_directory_counts_as_a_writer() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let exclusive = fixture.blocking().lock().unwrap();
    assert!(fixture.sharing().try_read().unwrap().is_none());
    exclusive.unlock().unwrap();
    let reading = fixture.sharing().read().unwrap();
    assert!(fixture.blocking().try_lock().unwrap().is_none());
    reading.unlock().unwrap();
}

#[test]
fn lock_with_a_listener_on_the_directory_counts_as_a_writer() {
    let zk = SimulatedZooKeeper::new();
    let (ours, theirs) = (Fixture::join(&zk), Fixture::join(&zk));
    let reading = ours.sharing().read().unwrap();
    let (exclusive, calls) = theirs.listening();
    assert!(!exclusive.lock().unwrap());
    let behind = ours.waiting_reader(&zk);
    reading.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
    assert!(exclusive.is_owner() && !behind.is_owner());
    exclusive.unlock().unwrap();
    eventually("the reader behind it owns", || behind.is_owner());
    assert_eq!(next(&calls), Call::Released);
}

#[test]
fn release_wakes_only_requests_that_can_acquire() {
    let zk = SimulatedZooKeeper::new();
    let (first, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = first.sharing().write().unwrap();
    let (reader, another) = (waiting.waiting_reader(&zk), waiting.waiting_reader(&zk));
    let (second, last) = (waiting.waiting_writer(&zk), waiting.waiting_reader(&zk));
    let looks = || zk.calls(SimOperation::GetChildren);

    zk.clear_log();
    writer.unlock().unwrap();
    let (reader, another) = (reader.outcome().unwrap(), another.outcome().unwrap());
    assert_eq!(looks(), 2, "each of the two readers looks once");

    zk.clear_log();
    reader.unlock().unwrap();
    assert_eq!(looks(), 0, "the writer waits for the nearest reader, and the last reader for the writer");

    another.unlock().unwrap();
    let second = second.outcome().unwrap();
    assert_eq!(looks(), 1);
    assert!(!last.is_owner());
    second.unlock().unwrap();
    eventually("the last reader owns", || last.is_owner());
}

#[test]
fn reader_keeps_waiting_when_only_the_nearest_writer_leaves() {
    let zk = SimulatedZooKeeper::new();
    let (holder, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = holder.sharing().write().unwrap();
    let middle = waiting.waiting_writer(&zk);
    let reader = waiting.waiting_reader(&zk);
    zk.clear_log();
    drop(middle);
    eventually("the reader watches the first writer", || zk.calls(SimOperation::GetData) == 1);
    assert!(!reader.is_owner());
    writer.unlock().unwrap();
    eventually("the reader owns", || reader.is_owner());
}

#[test]
fn readers_and_writers_are_served_in_order_across_zero() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.set_sequence(DIR, -2);
    let fixture = Fixture::join(&zk);
    let first = fixture.sharing().write().unwrap();
    let readers = [fixture.waiting_reader(&zk), fixture.waiting_reader(&zk)];
    let writer = fixture.waiting_writer(&zk);
    drop(first);
    for reader in &readers {
        eventually("a reader owns", || reader.is_owner());
        assert!(!writer.is_owner());
    }
    drop(readers);
    eventually("the writer owns", || writer.is_owner());
}

#[test]
fn readers_share_at_the_end_of_the_counter_and_writers_are_refused() {
    for end in [SequenceEnd::Wraps, SequenceEnd::Sticks, SequenceEnd::Mixes] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        zk.set_sequence(DIR, i32::MAX - 1);
        zk.set_sequence_end(end);
        let fixture = Fixture::join(&zk);
        let first = fixture.sharing().write().unwrap();
        let readers = [fixture.waiting_reader(&zk), fixture.waiting_reader(&zk)];
        let refusal = fixture.sharing().write().unwrap_err();
        assert_eq!(refusal.reason(), ErrorReason::SequenceExhausted, "{end:?}: {refusal}");
        eventually("the refused writer is gone", || zk.children(DIR).len() == 3);
        drop(first);
        for reader in &readers {
            eventually(&format!("a reader owns, {end:?}"), || reader.is_owner());
        }
    }
}

#[test]
fn readers_and_writers_have_the_options_of_the_lock() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let acl =
        vec![Acl::new(Permissions::ALL, "world", "anyone"), Acl::new(Permissions::READ, "ip", "10.0.0.1")];
    let options = LockOptions::new().acl(acl.clone()).naming(NamingScheme::Curator).data("who");
    let lock = ReadWriteLock::with_options(&fixture.session, DIR, options).unwrap();
    let check = |id: &str, marker: &str| {
        assert!(id.contains(marker), "{id}");
        assert_eq!((zk.data(id).unwrap(), zk.acl(id).unwrap()), (b"who".to_vec(), acl.clone()));
    };
    let reading = lock.read().unwrap();
    check(reading.id(), "-__READ__");
    reading.unlock().unwrap();
    check(lock.write().unwrap().id(), "-__WRIT__");
}

#[test]
fn reader_that_has_lost_the_lock_learns_it_at_the_release_and_reads_again() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let deleted = fixture.sharing().read().unwrap();
    zk.delete(deleted.id());
    assert_eq!(next(deleted.lost()), LossReason::NodeDeleted);
    let error = deleted.unlock().unwrap_err();
    assert_eq!(error.reason(), ErrorReason::NodeDeleted, "{error}");
    let expired = fixture.sharing().read().unwrap();
    fixture.client.expire();
    assert_eq!(next(expired.lost()), LossReason::SessionLost);
    assert!(expired.unlock().unwrap_err().is_session_lost());
    assert!(Fixture::join(&zk).sharing().read().unwrap().is_owner(), "on another session");
}

#[test]
fn release_of_a_reader_is_pending_during_an_outage() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let reading = fixture.sharing().read().unwrap();
    fixture.client.disconnect();
    assert_eq!(reading.unlock().unwrap(), Released::Pending);
    fixture.client.reconnect();
    eventually("the znode is deleted", || zk.children(DIR).is_empty());
}

/// The reader waits behind a writer when its session is lost.
#[test]
fn reader_that_waits_outlives_its_session_where_that_is_replaced() {
    let zk = SimulatedZooKeeper::new();
    let ahead = zk.create_sequential(DIR, "write-other-", None);
    let (session, clients) = replacing_session(&zk, LONG);
    let fixture = Fixture { client: next(&clients), session };
    let reader = fixture.waiting_reader(&zk);
    await_replacement(&fixture.session, || fixture.client.expire());
    assert!(!reader.is_owner());
    zk.delete(&ahead);
    eventually("the reader owns on the next session", || reader.is_owner());
}

#[test]
fn closed_lock_makes_no_request_and_keeps_its_guards() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let lock = fixture.sharing();
    let held = lock.read().unwrap();
    lock.close();
    for error in [lock.read().unwrap_err(), lock.try_read().unwrap_err(), lock.try_write().unwrap_err()] {
        assert!(error.is_closed() && error.to_string().contains(DIR), "{error}");
    }
    assert_eq!(zk.children(DIR).len(), 1);
    assert!(held.is_owner(), "the guard stays");
    held.unlock().unwrap();
}
