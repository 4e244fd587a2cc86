//! Readers and writers in one queue.

use super::*;
use crate::fake::SequenceEnd;
use crate::{NamingScheme, ReadLock, ReadWriteLock};

impl Fixture {
    pub(super) fn sharing(&self) -> ReadWriteLock {
        ReadWriteLock::with_options(&self.session, DIR, quick_retries()).unwrap()
    }

    pub(super) fn listening_to_read(&self) -> (ReadLock, Receiver<Call>) {
        let (sender, calls) = unbounded();
        (self.sharing().read_lock(RecordingListener(sender)), calls)
    }

    pub(super) fn listening_to_write(&self) -> (WriteLock, Receiver<Call>) {
        let (sender, calls) = unbounded();
        (self.sharing().write_lock(RecordingListener(sender)), calls)
    }
}

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
fn fencing_token_of_a_read_lock_is_that_of_its_znode() {
    let zk = SimulatedZooKeeper::new();
    let (reading, _calls) = Fixture::join(&zk).listening_to_read();
    assert!(matches!(reading.fencing_token(), Err(LockError::NotOwner { .. })));
    assert!(reading.lock().unwrap());
    let id = reading.id().unwrap();
    assert_eq!(reading.fencing_token().unwrap(), zk.stat(&id).unwrap().czxid);
}

#[test]
fn read_lock_calls_the_listener_set_last() {
    let zk = SimulatedZooKeeper::new();
    let (reading, first_calls) = Fixture::join(&zk).listening_to_read();
    let first = reading.lock_listener().unwrap();
    first.lock_acquired();
    assert_eq!(next(&first_calls), Call::Acquired);
    let (sender, calls) = unbounded();
    reading.set_lock_listener(RecordingListener(sender));
    assert!(reading.lock().unwrap());
    assert_eq!(next(&calls), Call::Acquired);
    assert!(first_calls.is_empty());
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
fn release_wakes_only_requests_that_can_acquire() {
    let zk = SimulatedZooKeeper::new();
    let (first, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = first.sharing().write().unwrap();
    let (reader, reader_calls) = waiting.listening_to_read();
    let (another, another_calls) = waiting.listening_to_read();
    let (second, second_calls) = waiting.listening_to_write();
    let (last, last_calls) = waiting.listening_to_read();
    assert!(!reader.lock().unwrap() && !another.lock().unwrap());
    assert!(!second.lock().unwrap() && !last.lock().unwrap());
    let looks = || zk.calls(SimOperation::GetChildren);

    zk.clear_log();
    writer.unlock().unwrap();
    assert_eq!((next(&reader_calls), next(&another_calls)), (Call::Acquired, Call::Acquired));
    assert_eq!(looks(), 2, "each of the two readers looks once");

    zk.clear_log();
    reader.unlock().unwrap();
    assert_eq!(looks(), 0, "the writer waits for the nearest reader, and the last reader for the writer");

    another.unlock().unwrap();
    assert_eq!(next(&second_calls), Call::Acquired);
    assert_eq!(looks(), 1);
    assert!(!last.is_owner());
    second.unlock().unwrap();
    assert_eq!(next(&last_calls), Call::Acquired);
}

#[test]
fn reader_keeps_waiting_when_only_the_nearest_writer_leaves() {
    let zk = SimulatedZooKeeper::new();
    let (holder, waiting) = (Fixture::join(&zk), Fixture::join(&zk));
    let writer = holder.sharing().write().unwrap();
    let (middle, _) = waiting.listening_to_write();
    let (reader, calls) = waiting.listening_to_read();
    assert!(!middle.lock().unwrap() && !reader.lock().unwrap());
    zk.clear_log();
    middle.unlock().unwrap();
    eventually("the reader watches the first writer", || zk.calls(SimOperation::GetData) == 1);
    assert!(!reader.is_owner());
    writer.unlock().unwrap();
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn readers_and_writers_are_served_in_order_across_zero() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk.set_sequence(DIR, -2);
    let fixture = Fixture::join(&zk);
    let first = fixture.sharing().write().unwrap();
    let readers = [fixture.listening_to_read(), fixture.listening_to_read()];
    let (writer, writer_calls) = fixture.listening_to_write();
    for (reader, _) in &readers {
        assert!(!reader.lock().unwrap());
    }
    assert!(!writer.lock().unwrap());
    drop(first);
    for (reader, calls) in &readers {
        assert_eq!(next(calls), Call::Acquired);
        assert!(reader.is_owner() && !writer.is_owner());
    }
    for (reader, _) in &readers {
        reader.unlock().unwrap();
    }
    assert_eq!(next(&writer_calls), Call::Acquired);
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
        let readers = [fixture.listening_to_read(), fixture.listening_to_read()];
        for (reader, _) in &readers {
            assert!(!reader.lock().unwrap());
        }
        let refusal = fixture.sharing().write().unwrap_err();
        assert!(matches!(refusal, LockError::SequenceExhausted { .. }), "{end:?}: {refusal}");
        eventually("the refused writer is gone", || zk.children(DIR).len() == 3);
        drop(first);
        for (reader, calls) in &readers {
            assert_eq!(next(calls), Call::Acquired, "{end:?}");
            assert!(reader.is_owner());
        }
    }
}

#[test]
fn listening_lock_inherits_the_options() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let acl =
        vec![Acl::new(Permissions::ALL, "world", "anyone"), Acl::new(Permissions::READ, "ip", "10.0.0.1")];
    let options = LockOptions::new().acl(acl.clone()).naming(NamingScheme::Curator).data("who");
    let lock = ReadWriteLock::with_options(&fixture.session, DIR, options).unwrap();
    let (sender, _calls) = unbounded();
    let reading = lock.read_lock(RecordingListener(sender.clone()));
    assert!(reading.lock().unwrap());
    let id = reading.id().unwrap();
    assert!(id.contains("-__READ__"), "{id}");
    assert_eq!((zk.data(&id).unwrap(), zk.acl(&id).unwrap()), (b"who".to_vec(), acl));
    reading.close();
    assert!(reading.lock().unwrap_err().is_closed());
    eventually("the znode is gone", || zk.children(DIR).is_empty());
    let writing = lock.write_lock(RecordingListener(sender));
    assert!(writing.lock().unwrap(), "closing one lock closes no other");
    assert!(writing.id().unwrap().contains("-__WRIT__"));
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
