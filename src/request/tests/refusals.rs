//! Tests of calls that the server refuses.

use crate::error::ErrorReason;
use std::error::Error;

use super::*;

#[test]
fn a_refused_create_names_the_permission() {
    let zk = SimulatedZooKeeper::new();
    zk.create_with_acl(DIR, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    let error = Fixture::join(&zk).blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("CREATE"), "{error}");
}

#[test]
fn denied_access_names_the_znode_whose_acl_the_server_checks() {
    let open = || vec![Acl::new(Permissions::ALL, "world", "anyone")];
    let only = |permissions| vec![Acl::new(permissions, "world", "anyone")];
    let without_delete = Permissions::READ | Permissions::WRITE | Permissions::CREATE;
    // A request is created in the directory, a missing directory in its parent, and a missing parent in its own.
    for (dir, acl, operation, named) in [
        ("/locks", open(), "lock '/locks/it'", "the ACL of '/locks/it' must grant this client CREATE"),
        ("/locks", only(Permissions::READ), "create '/locks/it'", "the ACL of its parent '/locks'"),
    ] {
        let zk = SimulatedZooKeeper::new();
        zk.create_with_acl(dir, b"", &acl);
        if acl == open() {
            zk.create_with_acl(DIR, b"", &only(Permissions::READ));
        }
        let error = Fixture::join(&zk).blocking().lock().unwrap_err();
        let message = error.to_string();
        assert!(error.is_access_denied() && message.starts_with(operation), "{message}");
        assert!(message.contains(named), "{message}");
    }
    let zk = SimulatedZooKeeper::new();
    zk.create_with_acl("/locks", b"", &only(Permissions::READ));
    let session = Fixture::join(&zk).session;
    let support = ProtocolSupport::with_options(&session, quick_retries()).unwrap();
    let message = support.ensure_path_exists("/locks/a/b").unwrap_err().to_string();
    assert!(message.starts_with("create '/locks/a'") && message.contains("parent '/locks'"), "{message}");

    let zk = SimulatedZooKeeper::new();
    zk.create_with_acl(DIR, b"", &only(without_delete));
    let guard = Fixture::join(&zk).blocking().lock().unwrap();
    let znode = guard.id().to_owned();
    let error = guard.unlock().unwrap_err();
    assert_eq!((error.is_access_denied(), error.path()), (true, Some(&*znode)));
    assert!(
        error.to_string().contains("the ACL of its parent '/locks/it' must grant this client DELETE"),
        "{error}"
    );
}

#[test]
fn a_refused_listing_leaves_no_znode() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permissions::CREATE | Permissions::DELETE;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let fixture = Fixture::join(&zk);
    let error = fixture.blocking().lock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("READ"), "{error}");
    eventually("no znode is left", || zk.children(DIR).is_empty());
    let (lock, calls) = fixture.listening();
    assert!(lock.lock().unwrap_err().is_access_denied());
    assert_eq!(next(&calls), Call::Dropped(LossReason::Failed));
}

#[test]
fn refused_deletion_is_returned_and_retried_until_it_succeeds() {
    let refusals = [ZkError::NoAuth, ZkError::NotEmpty, ZkError::Throttled];
    let zk = SimulatedZooKeeper::new();
    for refusal in refusals {
        let fixture = Fixture::join(&zk);
        for _ in 0..2 {
            fixture.client.fail_next(SimOperation::Delete, Effect::Before, refusal);
        }
        let error = fixture.blocking().lock().unwrap().unlock().unwrap_err();
        assert!(error.source().is_some_and(|source| source.to_string() == refusal.to_string()), "{error}");
        let others = Fixture::join(&zk).blocking();
        assert!(others.try_lock_for(deadline()).unwrap().is_some(), "{refusal:?}");
        assert_eq!(fixture.client.pending_faults(), 0, "{refusal:?}");
        eventually("no deletion is pending", || fixture.session.core().census().0 == 0);
    }
}

#[test]
fn refused_deletion_is_retried_in_its_time_whatever_reconnects_come() {
    let zk = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&zk, LONG);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    for _ in 0..4 {
        client.fail_next(SimOperation::Delete, Effect::Before, ZkError::NoAuth);
    }
    drop(guard);
    // The delays double.
    for (refusals, half_seconds) in [(1, 1), (2, 2), (3, 4), (4, 8)] {
        for _ in 0..half_seconds {
            assert_eq!(client.pending_faults(), 4 - refusals);
            client.disconnect();
            client.reconnect();
            assert_eq!(client.pending_faults(), 4 - refusals);
            assert_eq!(zk.children(DIR).len(), 1);
            runtime.advance(Duration::from_millis(500));
        }
    }
    assert!(zk.children(DIR).is_empty());
}

#[test]
fn server_that_shows_a_znode_after_the_leader_said_that_there_is_none_is_logged_and_blocks_nobody_here() {
    let zk = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let (id, path, other) = (guard.id().to_owned(), guard.id().to_owned(), zk.clone());
    client.keep_showing(&id);
    client.before_next(SimOperation::Delete, move || other.delete(&path));
    let lines = logged_down_to(log::Level::Warn, || drop(guard));
    let is_named = lines.iter().all(|line| line.contains(&id) && line.contains("still shows this znode"));
    assert!(lines.len() == 1 && is_named, "{lines:?}");
    assert!(lock.lock().unwrap().is_owner(), "the leader's answer counts");
}

#[test]
fn deletion_whose_reply_was_lost_is_retried_with_the_reconnect() {
    let zk = SimulatedZooKeeper::new();
    let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    client.disconnect();
    drop(guard);
    assert_eq!(zk.children(DIR).len(), 1);
    client.reconnect();
    assert!(zk.children(DIR).is_empty());
}

#[test]
fn throttled_request_is_retried_as_the_policy_says() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for failures in [9, 10] {
        for _ in 0..failures {
            fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::Throttled);
        }
        match (failures, fixture.blocking().lock()) {
            (9, Ok(guard)) => assert_eq!(guard.unlock().unwrap(), Released::Deleted),
            (10, Err(error)) if error.reason() == ErrorReason::Refused => {}
            (_, outcome) => panic!("{failures} failures: {outcome:?}"),
        }
        assert_eq!(fixture.client.pending_faults(), 0);
    }
}

#[test]
fn queued_request_continues_when_its_looks_are_throttled() {
    for operation in [SimOperation::GetChildren, SimOperation::GetData] {
        let zk = SimulatedZooKeeper::new();
        let first = zk.create_sequential(DIR, "x-first-lock-", None);
        let predecessor = zk.create_sequential(DIR, "x-second-lock-", None);
        let fixture = Fixture::join(&zk);
        let (lock, calls) = fixture.listening();
        fixture.client.fail_next(operation, Effect::Before, ZkError::Throttled);
        assert!(!lock.lock().unwrap(), "{operation:?}");
        fixture.client.fail_next(operation, Effect::Before, ZkError::Throttled);
        zk.delete(&predecessor);
        eventually("the fault occurs", || fixture.client.pending_faults() == 0);
        zk.delete(&first);
        assert_eq!(next(&calls), Call::Acquired, "{operation:?}");
        assert!(lock.is_owner() && calls.is_empty(), "{operation:?}");
    }
}

#[test]
fn unlock_fails_when_the_deletion_is_refused() {
    let zk = SimulatedZooKeeper::new();
    let acl = Permissions::CREATE | Permissions::READ;
    zk.create_with_acl(DIR, b"", &[Acl::new(acl, "world", "anyone")]);
    let fixture = Fixture::join(&zk);
    let error = fixture.blocking().lock().unwrap().unlock().unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("DELETE"), "{error}");
    fixture.session.close();
    assert!(zk.children(DIR).is_empty(), "the znode is deleted with the session");
}

#[test]
fn waiter_acquires_when_another_client_deletes_what_its_session_may_not_delete() {
    let zk = SimulatedZooKeeper::new();
    // No time passes, so nothing is retried.
    let (_client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let lock = || WriteLock::new(&session, DIR).unwrap();
    let (holder, waiter) = (lock(), lock());
    assert!(holder.lock().unwrap());
    assert!(!waiter.lock().unwrap());
    let id = holder.id().unwrap();
    zk.set_acl(DIR, &[Acl::new(Permissions::READ, "world", "anyone")]);
    assert!(holder.unlock().unwrap_err().is_access_denied());
    assert!(!waiter.is_owner());
    zk.delete(&id);
    eventually("the waiter acquires", || waiter.is_owner());
}

#[test]
fn look_at_an_unreadable_znode_that_goes_leaves_no_watch() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    zk.create(DIR, b"");
    let ahead = zk.create_sequential(DIR, "x-other-lock-", None);
    zk.set_acl(&ahead, &[Acl::new(Permissions::DELETE, "world", "anyone")]);
    let server = zk.clone();
    fixture.client.before_next(SimOperation::Exists, move || server.delete(&ahead));
    fixture.blocking().lock().unwrap().unlock().unwrap();
    assert_eq!(fixture.client.pending_faults(), 0);
    eventually("no watch is left", || zk.watch_count() == 0);
}

#[test]
fn all_who_wait_for_a_refused_request_get_the_same_error() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    let (lock, _calls) = fixture.listening();
    let lock = Arc::new(lock);
    let (other, second) = (Arc::clone(&lock), unbounded());
    // The second thread calls while the first thread's request is being created.
    fixture.client.before_next(SimOperation::Create, move || {
        let request = other.request().unwrap();
        eventually("the first thread waits", || request.is_awaited());
        let (holders, waits) = (Arc::strong_count(&request), Arc::clone(&other));
        let waiter = in_background(move || waits.lock().map_err(|error| error.to_string()));
        eventually("the second thread waits for the same request", || Arc::strong_count(&request) > holders);
        second.0.send(waiter).unwrap();
    });
    fixture.client.fail_next(SimOperation::Create, Effect::Before, ZkError::NoAuth);
    let error = lock.lock().unwrap_err();
    assert!(error.is_access_denied(), "{error}");
    let waiter = next(&second.1);
    assert_eq!(next(&waiter), Err(error.to_string()));
}

#[test]
fn owner_whose_look_is_refused_keeps_its_lock_and_looks_again() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let lock = fixture.blocking();
    let result = lock.with_lock(|guard| {
        fixture.client.fail_next(SimOperation::GetData, Effect::Before, ZkError::Other(-200));
        eventually("the look is refused", || fixture.client.pending_faults() == 0);
        zk.clear_log();
        eventually("the owner looks again", || zk.calls(SimOperation::GetData) > 0);
        guard.is_owner()
    });
    assert!(result.unwrap());
}
