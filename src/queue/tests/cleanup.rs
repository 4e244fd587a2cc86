//! Tests of reaping, and of removing the directory.

use super::*;
use crate::{ErrorReason, LockListener, WriteLock};

// ---- reaping

#[test]
fn reaping_deletes_persistent_requests_and_keeps_ephemeral_ones() {
    let fixture = Fixture::with_directory();
    let alive = fixture.request("x-a-lock-", b"");
    let persistent = [fixture.persistent_request("x-b-lock-"), fixture.persistent_request("read-c-")];
    assert_eq!(paths(&fixture.directory.expired(Duration::ZERO).unwrap()), persistent);
    assert_eq!(paths(&fixture.directory.reap_expired(Duration::ZERO).unwrap()), persistent);
    assert!(fixture.directory.expired(Duration::ZERO).unwrap().is_empty());
    assert_eq!(paths(&fixture.contenders()), [&alive]);
    assert_eq!(paths(&fixture.forcing().reap_expired(Duration::ZERO).unwrap()), [alive]);
    assert!(fixture.contenders().is_empty());
    assert!(fixture.directory.reap_expired(Duration::ZERO).unwrap().is_empty());
}

#[test]
fn reaping_keeps_requests_that_are_young_by_the_servers_clock() {
    // The clock of this machine is half a century ahead.
    let fixture = Fixture::with_directory();
    let hours = |hours: u64| Duration::from_secs(3600 * hours);
    let old = fixture.persistent_request("x-lock-");
    fixture.zk.advance_clock(hours(2));
    let young = fixture.persistent_request("x-lock-");
    assert!(fixture.directory.reap_expired(hours(3)).unwrap().is_empty());
    assert!(fixture.directory.reap_expired(Duration::MAX).unwrap().is_empty());
    assert_eq!(paths(&fixture.directory.reap_expired(hours(1)).unwrap()), [old]);
    assert_eq!(fixture.zk.children(DIR), [young.rsplit('/').next().unwrap()], "no clock znode is left");
}

#[test]
fn age_without_the_right_to_write_is_an_error() {
    let fixture = Fixture::new();
    fixture.zk.create_with_acl(DIR, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    assert!(fixture.directory.expired(Duration::from_secs(1)).unwrap().is_empty(), "there is no request");
    fixture.persistent_request("x-lock-");
    assert_eq!(fixture.directory.expired(Duration::ZERO).unwrap().len(), 1, "any age will do");
    assert!(fixture.directory.expired(Duration::from_secs(1)).unwrap_err().is_access_denied());
}

#[test]
fn reaping_keeps_children_of_unknown_kind() {
    let fixture = Fixture::with_directory();
    let items = [fixture.persistent_request("qn-"), fixture.persistent_request("_c_a-task-")];
    fixture.zk.create(&format!("{DIR}/config"), b"");
    let directory = fixture.persistent_request("lock-");
    fixture.zk.create(&format!("{directory}/child"), b"");
    assert!(fixture.forcing().reap_expired(Duration::ZERO).unwrap().is_empty());
    assert_eq!(paths(&fixture.contenders()), [&items[0], &items[1]]);
    assert!(fixture.zk.exists(&directory));
    assert!(fixture.zk.exists(&format!("{DIR}/config")));
    let elsewhere = LockDirectory::new(fixture.session(), "/nowhere").unwrap();
    assert!(elsewhere.reap_expired(Duration::ZERO).unwrap().is_empty());
}

#[test]
fn reaping_keeps_a_request_written_since_it_was_read() {
    let fixture = Fixture::with_directory();
    let requests = [
        fixture.persistent_request("x-a-lock-"),
        fixture.persistent_request("x-b-lock-"),
        fixture.persistent_request("x-c-lock-"),
    ];
    let (zk, [_, written, gone]) = (fixture.zk.clone(), requests.clone());
    fixture.client.before_next(SimOperation::Delete, move || {
        zk.set_data(&written, b"alive");
        zk.delete(&gone);
    });
    assert_eq!(paths(&fixture.directory.reap_expired(Duration::ZERO).unwrap()), [&requests[0]]);
    assert_eq!(paths(&fixture.contenders()), [&requests[1]]);
}

#[test]
fn reaping_keeps_a_request_of_a_directory_that_was_created_anew() {
    let fixture = Fixture::with_directory();
    let requests = [fixture.persistent_request("x-a-lock-"), fixture.persistent_request("x-b-lock-")];
    let (zk, [first, second]) = (fixture.zk.clone(), requests.clone());
    fixture.client.before_next(SimOperation::Delete, move || {
        [first.as_str(), &second, DIR].into_iter().for_each(|path| zk.delete(path));
        zk.create(DIR, b"");
        zk.create_sequential(DIR, "x-a-lock-", Some(OTHER_SESSION));
    });
    assert!(fixture.directory.reap_expired(Duration::ZERO).unwrap().is_empty());
    assert_eq!(paths(&fixture.contenders()), [&requests[0]], "it belongs to a live session");
}

#[test]
fn reaping_keeps_a_request_of_unknown_session_or_age() {
    let fixture = Fixture::with_directory();
    let unreadable = format!("{DIR}/x-b-lock-0000000001");
    fixture.zk.create_with_acl(&unreadable, b"", &nobody_may_read());
    assert!(fixture.directory.reap_expired(Duration::ZERO).unwrap().is_empty(), "its session may be alive");
    assert!(fixture.forcing().reap_expired(Duration::from_secs(1)).unwrap().is_empty(), "it may be young");
    assert_eq!(paths(&fixture.forcing().reap_expired(Duration::ZERO).unwrap()), [unreadable]);
}

#[test]
fn refused_deletion_is_an_error_that_names_the_permission() {
    let fixture = Fixture::new();
    fixture.zk.create_with_acl(DIR, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    fixture.persistent_request("x-lock-");
    let error = fixture.directory.reap_expired(Duration::ZERO).unwrap_err();
    assert!(error.is_access_denied() && error.to_string().contains("DELETE"), "{error}");
}

struct NeverAcquires;

impl LockListener for NeverAcquires {
    fn lock_acquired(&self) {
        panic!("acquired while the queue is cleared");
    }
    fn lock_released(&self) {}
}

#[test]
fn no_reaped_request_acquires_first() {
    let fixture = Fixture::with_directory();
    let ahead = fixture.request("x-lock-", b"");
    let locks: Vec<WriteLock> = (0..20)
        .map(|_| {
            let lock = WriteLock::with_listener(fixture.session(), DIR, NeverAcquires).unwrap();
            assert!(!lock.lock().unwrap());
            lock
        })
        .collect();
    let reaped = fixture.forcing().reap_expired(Duration::ZERO).unwrap();
    assert_eq!(reaped.len(), 21);
    assert_eq!(reaped[0].path, ahead);
    eventually("every lock has noticed", || locks.iter().all(|lock| lock.id().is_none()));
    let log = fixture.zk.log();
    // A lock that loses its znode tries to delete it once more.
    let deleted =
        log.iter().filter(|call| call.operation == SimOperation::Delete && call.outcome == Some(Ok(())));
    let deleted: Vec<_> = deleted.map(|call| call.path.as_str()).collect();
    let from_the_back: Vec<_> = reaped.iter().rev().map(|request| request.path.as_str()).collect();
    assert_eq!(deleted, from_the_back);
}

#[test]
fn request_that_joins_during_reaping_stays_and_acquires() {
    let fixture = Fixture::with_directory();
    (0..10).for_each(|_| drop(fixture.persistent_request("x-lock-")));
    let session = fixture.zk.connect(LONG).open_session().unwrap();
    let lock = Arc::new(WriteLock::new(&session, DIR).unwrap());
    let joining = Arc::clone(&lock);
    fixture.client.before_next(SimOperation::Delete, move || drop(joining.lock()));
    assert_eq!(fixture.forcing().reap_expired(Duration::ZERO).unwrap().len(), 10);
    eventually("the new request owns the lock", || lock.is_owner());
}

// ---- the directory itself

#[test]
fn empty_directory_is_removed_and_created_again_by_the_next_lock() {
    let fixture = Fixture::with_directory();
    assert!(fixture.directory.remove_if_empty().unwrap());
    assert!(!fixture.zk.exists(DIR));
    assert!(!fixture.directory.remove_if_empty().unwrap(), "it does not exist");
    let lock = WriteLock::new(fixture.session(), DIR).unwrap();
    assert!(lock.lock().unwrap());
    assert!(!fixture.directory.remove_if_empty().unwrap(), "it has a request");
    assert!(lock.is_owner());
}

#[test]
fn removal_is_safe_for_a_request_that_joins_meanwhile() {
    // The request arrives just before the deletion, or just after it.
    for operation in [SimOperation::Delete, SimOperation::Create] {
        let fixture = Fixture::with_directory();
        let client = fixture.zk.connect(LONG);
        let session = client.open_session().unwrap();
        let lock = Arc::new(WriteLock::new(&session, DIR).unwrap());
        let (directory, joining) = (fixture.directory.clone(), Arc::clone(&lock));
        match operation {
            SimOperation::Delete => {
                fixture.client.before_next(operation, move || assert!(joining.lock().unwrap()));
                assert!(!directory.remove_if_empty().unwrap());
            }
            _ => {
                client.before_next(operation, move || assert!(directory.remove_if_empty().unwrap()));
                assert!(lock.lock().unwrap());
            }
        }
        assert!(lock.is_owner());
        assert!(fixture.zk.exists(&lock.id().unwrap()));
    }
}

#[test]
fn znode_that_is_no_lock_directory_is_not_removed() {
    let fixture = Fixture::new();
    fixture.zk.create(DIR, b"precious");
    let error = fixture.directory.remove_if_empty().unwrap_err();
    assert_eq!((error.reason(), error.path()), (ErrorReason::NotALock, Some(DIR)), "{error}");
    let ephemeral = fixture.zk.create_sequential("/elsewhere", "e", Some(OTHER_SESSION));
    let directory = LockDirectory::new(fixture.session(), &ephemeral).unwrap();
    assert!(matches!(directory.remove_if_empty(), Err(ref error) if error.reason() == ErrorReason::NotALock));
    assert!(fixture.zk.exists(DIR) && fixture.zk.exists(&ephemeral));
}

#[test]
fn directory_written_before_the_deletion_is_not_removed() {
    let fixture = Fixture::with_directory();
    let zk = fixture.zk.clone();
    fixture.client.before_next(SimOperation::Delete, move || zk.set_data(DIR, b"precious"));
    assert!(
        matches!(fixture.directory.remove_if_empty(), Err(ref error) if error.reason() == ErrorReason::NotALock)
    );
    assert!(fixture.zk.exists(DIR));
}

#[test]
fn request_that_only_the_connected_server_shows_is_not_reaped() {
    let fixture = Fixture::with_directory();
    let (first, second) = (fixture.persistent_request("x-a-lock-"), fixture.persistent_request("x-b-lock-"));
    fixture.client.keep_showing(&first);
    fixture.zk.delete(&first);
    let error = fixture.directory.reap_expired(Duration::ZERO).unwrap_err();
    assert_eq!((error.reason(), error.path()), (ErrorReason::ServerDiverged, Some(&*first)), "{error}");
    assert!(!fixture.zk.exists(&second), "it comes later in the queue, so it is deleted first");
}
