//! Tests of waiters that know that only one request is ahead.

use super::*;

impl Fixture {
    /// Opens a session whose calls are answered at once, on the thread that makes them.
    fn at_once(zk: &SimulatedZooKeeper) -> Fixture {
        let (client, _runtime, session) = open_on_manual_runtime(zk, LONG);
        Fixture { client, session }
    }

    fn calls(&self, zk: &SimulatedZooKeeper, operation: SimOperation) -> usize {
        let ours = |call: &&crate::fake::Call| call.session == self.client.session_id();
        zk.log().iter().filter(ours).filter(|call| call.operation == operation).count()
    }
}

/// Creates a request of another client.
fn other(zk: &SimulatedZooKeeper) -> String {
    zk.create_sequential(DIR, "x-other-lock-", None)
}

/// Returns a lock that waits, and the calls of its listener.
fn waiter(fixture: &Fixture) -> (WriteLock, Receiver<Call>) {
    let (lock, calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    (lock, calls)
}

/// Returns a server with the lock directory.
fn server() -> SimulatedZooKeeper {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    zk
}

#[test]
fn next_in_line_owns_when_its_predecessor_is_deleted_without_a_listing() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let ahead = other(&zk);
    let (lock, calls) = waiter(&fixture);
    assert_eq!(fixture.calls(&zk, SimOperation::GetData), 2, "the predecessor and its own znode");
    zk.clear_log();
    zk.delete(&ahead);
    // This thread handles the event and makes the request the owner.
    assert!(lock.is_owner());
    assert!(zk.log().is_empty());
    assert_eq!(next(&calls), Call::Acquired);
}

#[test]
fn third_in_line_lists_when_the_first_leaves_and_owns_without_a_call_when_the_second_does() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let (first, second) = (other(&zk), other(&zk));
    let (lock, _calls) = waiter(&fixture);
    zk.clear_log();
    zk.delete(&first);
    assert!(!lock.is_owner());
    assert_eq!(fixture.calls(&zk, SimOperation::GetChildren), 1);
    assert_eq!(fixture.calls(&zk, SimOperation::GetData), 0, "all watches are still set");
    zk.clear_log();
    zk.delete(&second);
    assert!(lock.is_owner());
    assert!(zk.log().is_empty());
}

#[test]
fn third_in_line_waits_for_the_first_when_the_second_leaves() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let (first, second) = (other(&zk), other(&zk));
    let (lock, _calls) = waiter(&fixture);
    zk.delete(&second);
    assert!(!lock.is_owner());
    zk.delete(&first);
    assert!(lock.is_owner());
}

#[test]
fn only_the_next_two_look_at_the_queue_when_an_owner_leaves() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let first = other(&zk);
    let sessions: Vec<_> = (0..8).map(|_| Fixture::at_once(&zk)).collect();
    let waiters: Vec<_> = sessions.iter().chain([&fixture]).map(waiter).collect();
    zk.clear_log();
    zk.delete(&first);
    assert!(waiters[0].0.is_owner());
    assert_eq!(zk.calls(SimOperation::GetChildren), 1);
    assert_eq!(zk.calls(SimOperation::GetData), 0);
}

#[test]
fn write_to_the_only_predecessor_is_no_release() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let ahead = other(&zk);
    let (lock, _calls) = waiter(&fixture);
    zk.set_data(&ahead, b"unlock");
    assert!(!lock.is_owner());
    zk.delete(&ahead);
    assert!(lock.is_owner());
}

#[test]
fn waiter_whose_znode_was_deleted_does_not_own() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let ahead = other(&zk);
    let (lock, calls) = waiter(&fixture);
    zk.delete(&lock.id().unwrap());
    zk.delete(&ahead);
    assert!(!lock.is_owner());
    assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn waiter_whose_znode_was_deleted_during_an_outage_does_not_own() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let ahead = other(&zk);
    let (lock, calls) = waiter(&fixture);
    fixture.client.disconnect();
    zk.delete(&ahead);
    zk.delete(&lock.id().unwrap());
    fixture.client.reconnect();
    assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn waiter_that_reconnects_looks_at_what_it_has_watched_and_lists_only_if_something_has_left() {
    // Whether the first and the second in line leave during the outage.
    for left in [[false, false], [true, false], [false, true], [true, true]] {
        let zk = server();
        let fixture = Fixture::at_once(&zk);
        let ahead = [other(&zk), other(&zk)];
        let (lock, _calls) = waiter(&fixture);
        fixture.client.disconnect();
        let (leaving, staying): (Vec<_>, Vec<_>) = ahead.iter().zip(left).partition(|(_, leaves)| *leaves);
        leaving.iter().for_each(|(path, _)| zk.delete(path));
        zk.clear_log();
        fixture.client.reconnect();
        let listings = usize::from(left.contains(&true));
        eventually("the waiter has looked", || {
            fixture.calls(&zk, SimOperation::GetChildren) >= listings
                && (lock.is_owner() || fixture.calls(&zk, SimOperation::GetData) >= 3)
        });
        assert_eq!(lock.is_owner(), staying.is_empty(), "{left:?}");
        staying.iter().for_each(|(path, _)| zk.delete(path));
        eventually("the waiter owns", || lock.is_owner());
        if !left.contains(&true) {
            // As without a reconnect, the waiter lists only once: when it becomes the next in line.
            assert_eq!(fixture.calls(&zk, SimOperation::GetChildren), 1);
        }
    }
}

#[test]
fn waiter_that_no_longer_watches_its_own_znode_lists_the_queue_after_a_reconnect() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let first = other(&zk);
    // This request is a writer: it may become a reader, and another request then has its number.
    zk.create_sequential(DIR, "write-other-lock-", None);
    let (lock, calls) = waiter(&fixture);
    // Now nobody is between the two, but the deletion of the writer would prove nothing.
    zk.delete(&first);
    fixture.client.disconnect();
    zk.delete(&lock.id().unwrap());
    fixture.client.reconnect();
    assert_eq!(next(&calls), Call::Dropped(LossReason::NodeDeleted));
}

#[test]
fn waiter_whose_znode_cannot_be_read_lists_the_queue() {
    let zk = server();
    let fixture = Fixture::join(&zk);
    let ahead = other(&zk);
    let options = quick_retries().acl([Acl::new(Permissions::DELETE, "world", "anyone")]);
    let lock = BlockingWriteLock::with_options(&fixture.session, DIR, options).unwrap();
    let acquired = in_background(move || lock.lock().map(drop));
    eventually("both reads were made", || fixture.calls(&zk, SimOperation::GetData) == 2);
    zk.clear_log();
    zk.delete(&ahead);
    next(&acquired).unwrap();
    assert_eq!(fixture.calls(&zk, SimOperation::GetData), 1, "its own znode, which cannot be watched");
}

#[test]
fn writer_that_becomes_a_reader_stays_ahead() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let writer = zk.create_sequential(DIR, "write-other-lock-", None);
    let (lock, _calls) = waiter(&fixture);
    let reader = writer.replace("write-other", "read-other");
    zk.create(&reader, b"");
    zk.delete(&writer);
    assert!(!lock.is_owner());
    zk.delete(&reader);
    assert!(lock.is_owner());
}

#[test]
fn waiter_that_gives_up_leaves_no_watch() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let _others = [other(&zk), other(&zk), other(&zk)];
    let (lock, calls) = waiter(&fixture);
    assert_eq!(zk.watch_count(), 3, "on the next two ahead and on its own znode");
    lock.unlock().unwrap();
    eventually("no watch is left", || zk.watch_count() == 0);
    assert!(calls.is_empty());
}

#[test]
fn znode_of_an_owner_is_watched_from_the_beginning() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let ahead = other(&zk);
    let (lock, calls) = waiter(&fixture);
    zk.delete(&ahead);
    assert_eq!(next(&calls), Call::Acquired);
    zk.delete(&lock.id().unwrap());
    assert_eq!(next(&calls), Call::Lost(LossReason::NodeDeleted));
}

#[test]
fn reader_behind_a_deleted_request_of_its_session_acquires_beside_other_readers() {
    // With three requests ahead, the exclusive request is not next in line, so it does not watch its own znode.
    for (at_once, ahead) in [(true, 1), (false, 1), (true, 3), (false, 3)] {
        let zk = server();
        let fixture = if at_once { Fixture::at_once(&zk) } else { Fixture::join(&zk) };
        (0..ahead).for_each(|_| drop(zk.create_sequential(DIR, "read-other-", None)));
        let (exclusive, calls) = waiter(&fixture);
        // The reader must not have to wait for the routine look of the exclusive request, half a minute later.
        let reader = fixture.waiting_reader(&zk);
        zk.delete(&exclusive.id().unwrap());
        eventually("the reader owns", || reader.is_owner());
        assert!(!exclusive.is_owner());
        drop(calls);
    }
}

#[test]
fn watch_on_the_predecessor_stands_when_a_reply_shows_that_the_one_before_has_left() {
    let zk = server();
    zk.set_read_checks(ReadChecks::Events);
    let fixture = Fixture::at_once(&zk);
    let _first = other(&zk);
    let (second, _calls) = waiter(&fixture);
    let nearest = other(&zk);
    let (lock, _calls) = waiter(&fixture);
    // The reconnect makes the waiter list the queue, from which it learns of both requests ahead.
    fixture.client.disconnect();
    fixture.client.reconnect();
    eventually("the watches are set", || zk.watch_count() == 4);
    // Without READ, the server withholds the event of the deletion.
    zk.set_acl(&second.id().unwrap(), &[Acl::new(Permissions::DELETE, "world", "anyone")]);
    zk.clear_log();
    second.unlock().unwrap();
    eventually("the queue was listed", || fixture.calls(&zk, SimOperation::GetChildren) > 0);
    let listings = fixture.calls(&zk, SimOperation::GetChildren);
    zk.delete(&nearest);
    eventually("the queue was listed again", || fixture.calls(&zk, SimOperation::GetChildren) > listings);
    let looks = zk.log().into_iter().filter(|call| call.operation == SimOperation::GetData);
    assert_eq!(
        looks.filter(|call| call.path == nearest).count(),
        0,
        "the watch on the nearest was still set"
    );
    drop(lock);
}

#[test]
fn refused_deletion_leaves_the_watch_on_the_second_in_line() {
    let zk = server();
    let fixture = Fixture::at_once(&zk);
    let (owner, _owners_calls) = fixture.listening();
    assert!(owner.lock().unwrap());
    let between = other(&zk);
    let (lock, _calls) = waiter(&fixture);
    // The reconnect makes the waiter list the queue. The waiter then watches the request in between and,
    // ahead of that, its own session's owner.
    fixture.client.disconnect();
    fixture.client.reconnect();
    let path = owner.id().unwrap();
    fixture.client.fail_next(SimOperation::Delete, Effect::Before, ZkError::NoAuth);
    assert!(owner.unlock().is_err());
    zk.delete(&path);
    zk.clear_log();
    zk.delete(&between);
    assert!(lock.is_owner());
    // The deletion is tried again after half a second.
    let looks = operations(&zk).into_iter().filter(|operation| *operation != SimOperation::Delete);
    assert_eq!(looks.collect::<Vec<_>>(), []);
}
