//! Reaping, and removing the directory.

use super::*;
use crate::{LockError, LockListener, WriteLock};

// ---- reaping

#[test]
fn reaping_takes_what_belongs_to_no_session_and_leaves_the_living() {
    let place = Place::with_directory();
    let alive = place.request("x-a-lock-", b"");
    let left_over = [place.left_over("x-b-lock-"), place.left_over("read-c-")];
    assert_eq!(paths(&place.directory.reap_all().unwrap()), left_over);
    assert_eq!(paths(&place.contenders()), [&alive]);
    assert_eq!(paths(&place.forcing().reap_all().unwrap()), [alive]);
    assert!(place.contenders().is_empty());
    assert!(place.directory.reap_all().unwrap().is_empty());
}

#[test]
fn reaping_takes_nothing_that_is_too_young() {
    let place = Place::with_directory();
    place.left_over("x-lock-");
    // The simulation's times lie shortly after 1970.
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    assert!(place.directory.reap_expired(century).unwrap().is_empty());
    assert!(place.directory.reap_expired(Duration::MAX).unwrap().is_empty());
    assert_eq!(place.directory.reap_expired(Duration::from_secs(3600)).unwrap().len(), 1);
}

#[test]
fn reaping_leaves_what_may_be_no_lock() {
    let place = Place::with_directory();
    let items = [place.left_over("qn-"), place.left_over("_c_a-lease-")];
    place.zk.create(&format!("{DIR}/config"), b"");
    let directory = place.left_over("lock-");
    place.zk.create(&format!("{directory}/child"), b"");
    assert!(place.forcing().reap_all().unwrap().is_empty());
    assert_eq!(paths(&place.contenders()), [&items[0], &items[1], &directory]);
    assert!(place.zk.exists(&format!("{DIR}/config")));
    let elsewhere = LockDirectory::new(place.session(), "/nowhere").unwrap();
    assert!(elsewhere.reap_all().unwrap().is_empty());
}

#[test]
fn reaping_leaves_a_request_that_was_written_or_has_gone_since() {
    let place = Place::with_directory();
    let requests = [place.left_over("x-a-lock-"), place.left_over("x-b-lock-"), place.left_over("x-c-lock-")];
    let (zk, [_, written, gone]) = (place.zk.clone(), requests.clone());
    place.client.before_next(SimOperation::Delete, move || {
        zk.set_data(&written, b"alive");
        zk.delete(&gone);
    });
    assert_eq!(paths(&place.directory.reap_all().unwrap()), [&requests[0]]);
    assert_eq!(paths(&place.contenders()), [&requests[1]]);
}

#[test]
fn reaping_needs_to_know_whom_a_request_belongs_to() {
    let place = Place::with_directory();
    let unreadable = format!("{DIR}/x-b-lock-0000000001");
    place.zk.create_with_acl(&unreadable, b"", &nobody_may_read());
    assert!(place.directory.reap_all().unwrap().is_empty(), "it may be anybody's");
    assert!(place.forcing().reap_expired(Duration::from_secs(1)).unwrap().is_empty(), "it may be young");
    assert_eq!(paths(&place.forcing().reap_all().unwrap()), [unreadable]);
}

#[test]
fn a_refused_deletion_is_an_error_that_names_the_permission() {
    let place = Place::new();
    place.zk.create_with_acl(DIR, b"", &[Acl::new(Permission::READ, "world", "anyone")]);
    place.left_over("x-lock-");
    let error = place.directory.reap_all().unwrap_err();
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
fn nobody_who_is_reaped_acquires_the_lock_before() {
    let place = Place::with_directory();
    let ahead = place.request("x-lock-", b"");
    let locks: Vec<WriteLock> = (0..20)
        .map(|_| {
            let lock = WriteLock::with_listener(place.session(), DIR, None, NeverAcquires).unwrap();
            assert!(!lock.lock().unwrap());
            lock
        })
        .collect();
    let reaped = place.forcing().reap_all().unwrap();
    assert_eq!(reaped.len(), 21);
    assert_eq!(reaped[0].path(), ahead);
    eventually("everybody has heard of it", || locks.iter().all(|lock| lock.id().is_none()));
    let log = place.zk.log();
    // Each lock, told of it, makes sure of its znode's end.
    let deleted =
        log.iter().filter(|call| call.operation == SimOperation::Delete && call.outcome == Some(Ok(())));
    let deleted: Vec<_> = deleted.map(|call| call.path.as_str()).collect();
    let from_the_back: Vec<_> = reaped.iter().rev().map(LockInfo::path).collect();
    assert_eq!(deleted, from_the_back);
}

#[test]
fn who_joins_while_the_queue_is_reaped_stays_and_acquires() {
    let place = Place::with_directory();
    (0..10).for_each(|_| drop(place.left_over("x-lock-")));
    let lock = Arc::new(WriteLock::new(place.session(), DIR, None).unwrap());
    let joining = Arc::clone(&lock);
    place.client.before_next(SimOperation::Delete, move || drop(joining.lock()));
    assert_eq!(place.forcing().reap_all().unwrap().len(), 10);
    eventually("the newcomer owns the lock", || lock.is_owner());
}

// ---- the directory itself

#[test]
fn an_empty_directory_is_removed_and_made_again_by_the_next_lock() {
    let place = Place::with_directory();
    assert!(place.directory.remove_if_empty().unwrap());
    assert!(!place.zk.exists(DIR));
    assert!(!place.directory.remove_if_empty().unwrap(), "there is none");
    let lock = WriteLock::new(place.session(), DIR, None).unwrap();
    assert!(lock.lock().unwrap());
    assert!(!place.directory.remove_if_empty().unwrap(), "somebody is in it");
    assert!(lock.is_owner());
}

#[test]
fn a_newcomer_at_the_moment_of_the_removal_loses_nothing() {
    // He comes before the deletion, or finds it done.
    for operation in [SimOperation::Delete, SimOperation::Create] {
        let place = Place::with_directory();
        let lock = Arc::new(WriteLock::new(place.session(), DIR, None).unwrap());
        let (directory, newcomer) = (place.directory.clone(), Arc::clone(&lock));
        match operation {
            SimOperation::Delete => {
                place.client.before_next(operation, move || assert!(newcomer.lock().unwrap()));
                assert!(!directory.remove_if_empty().unwrap());
            }
            _ => {
                place.client.before_next(operation, move || assert!(directory.remove_if_empty().unwrap()));
                assert!(lock.lock().unwrap());
            }
        }
        assert!(lock.is_owner());
        assert!(place.zk.exists(&lock.id().unwrap()));
    }
}

#[test]
fn a_znode_that_is_no_lock_directory_is_not_removed() {
    let place = Place::new();
    place.zk.create(DIR, b"precious");
    let error = place.directory.remove_if_empty().unwrap_err();
    assert!(matches!(&error, LockError::NotALockDirectory { path } if path == DIR), "{error}");
    let ephemeral = place.zk.create_sequential("/elsewhere", "e", Some(STRANGER));
    let directory = LockDirectory::new(place.session(), &ephemeral).unwrap();
    assert!(matches!(directory.remove_if_empty(), Err(LockError::NotALockDirectory { .. })));
    assert!(place.zk.exists(DIR) && place.zk.exists(&ephemeral));
}

#[test]
fn a_directory_that_is_written_at_the_last_moment_is_not_removed() {
    let place = Place::with_directory();
    let zk = place.zk.clone();
    place.client.before_next(SimOperation::Delete, move || zk.set_data(DIR, b"precious"));
    assert!(matches!(place.directory.remove_if_empty(), Err(LockError::NotALockDirectory { .. })));
    assert!(place.zk.exists(DIR));
}
