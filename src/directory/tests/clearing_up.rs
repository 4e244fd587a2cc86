//! Reaping, and removing the directory.

use super::*;
use crate::{LockError, LockListener, WriteLock};

// ---- reaping

#[test]
fn reaping_takes_what_belongs_to_no_session_and_leaves_the_living() {
    let fixture = Fixture::with_directory();
    let alive = fixture.request("x-a-lock-", b"");
    let left_over = [fixture.left_over("x-b-lock-"), fixture.left_over("read-c-")];
    assert_eq!(paths(&fixture.directory.reap_all().unwrap()), left_over);
    assert_eq!(paths(&fixture.contenders()), [&alive]);
    assert_eq!(paths(&fixture.forcing().reap_all().unwrap()), [alive]);
    assert!(fixture.contenders().is_empty());
    assert!(fixture.directory.reap_all().unwrap().is_empty());
}

#[test]
fn reaping_takes_nothing_that_is_too_young() {
    let fixture = Fixture::with_directory();
    fixture.left_over("x-lock-");
    // The simulation's times lie shortly after 1970.
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    assert!(fixture.directory.reap_expired(century).unwrap().is_empty());
    assert!(fixture.directory.reap_expired(Duration::MAX).unwrap().is_empty());
    assert_eq!(fixture.directory.reap_expired(Duration::from_secs(3600)).unwrap().len(), 1);
}

#[test]
fn reaping_leaves_what_may_be_no_lock() {
    let fixture = Fixture::with_directory();
    let items = [fixture.left_over("qn-"), fixture.left_over("_c_a-lease-")];
    fixture.zk.create(&format!("{DIR}/config"), b"");
    let directory = fixture.left_over("lock-");
    fixture.zk.create(&format!("{directory}/child"), b"");
    assert!(fixture.forcing().reap_all().unwrap().is_empty());
    assert_eq!(paths(&fixture.contenders()), [&items[0], &items[1], &directory]);
    assert!(fixture.zk.exists(&format!("{DIR}/config")));
    let elsewhere = LockDirectory::new(fixture.session(), "/nowhere").unwrap();
    assert!(elsewhere.reap_all().unwrap().is_empty());
}

#[test]
fn reaping_leaves_a_request_that_was_written_or_has_gone_since() {
    let fixture = Fixture::with_directory();
    let requests =
        [fixture.left_over("x-a-lock-"), fixture.left_over("x-b-lock-"), fixture.left_over("x-c-lock-")];
    let (zk, [_, written, gone]) = (fixture.zk.clone(), requests.clone());
    fixture.client.before_next(SimOperation::Delete, move || {
        zk.set_data(&written, b"alive");
        zk.delete(&gone);
    });
    assert_eq!(paths(&fixture.directory.reap_all().unwrap()), [&requests[0]]);
    assert_eq!(paths(&fixture.contenders()), [&requests[1]]);
}

#[test]
fn reaping_needs_to_know_whom_a_request_belongs_to() {
    let fixture = Fixture::with_directory();
    let unreadable = format!("{DIR}/x-b-lock-0000000001");
    fixture.zk.create_with_acl(&unreadable, b"", &nobody_may_read());
    assert!(fixture.directory.reap_all().unwrap().is_empty(), "it may be anybody's");
    assert!(fixture.forcing().reap_expired(Duration::from_secs(1)).unwrap().is_empty(), "it may be young");
    assert_eq!(paths(&fixture.forcing().reap_all().unwrap()), [unreadable]);
}

#[test]
fn a_refused_deletion_is_an_error_that_names_the_permission() {
    let fixture = Fixture::new();
    fixture.zk.create_with_acl(DIR, b"", &[Acl::new(Permissions::READ, "world", "anyone")]);
    fixture.left_over("x-lock-");
    let error = fixture.directory.reap_all().unwrap_err();
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
    let fixture = Fixture::with_directory();
    let ahead = fixture.request("x-lock-", b"");
    let locks: Vec<WriteLock> = (0..20)
        .map(|_| {
            let lock = WriteLock::with_listener(fixture.session(), DIR, NeverAcquires).unwrap();
            assert!(!lock.lock().unwrap());
            lock
        })
        .collect();
    let reaped = fixture.forcing().reap_all().unwrap();
    assert_eq!(reaped.len(), 21);
    assert_eq!(reaped[0].path(), ahead);
    eventually("everybody has heard of it", || locks.iter().all(|lock| lock.id().is_none()));
    let log = fixture.zk.log();
    // Each lock, told of it, makes sure of its znode's end.
    let deleted =
        log.iter().filter(|call| call.operation == SimOperation::Delete && call.outcome == Some(Ok(())));
    let deleted: Vec<_> = deleted.map(|call| call.path.as_str()).collect();
    let from_the_back: Vec<_> = reaped.iter().rev().map(LockInfo::path).collect();
    assert_eq!(deleted, from_the_back);
}

#[test]
fn who_joins_while_the_queue_is_reaped_stays_and_acquires() {
    let fixture = Fixture::with_directory();
    (0..10).for_each(|_| drop(fixture.left_over("x-lock-")));
    let lock = Arc::new(WriteLock::new(fixture.session(), DIR).unwrap());
    let joining = Arc::clone(&lock);
    fixture.client.before_next(SimOperation::Delete, move || drop(joining.lock()));
    assert_eq!(fixture.forcing().reap_all().unwrap().len(), 10);
    eventually("the newcomer owns the lock", || lock.is_owner());
}

// ---- the directory itself

#[test]
fn an_empty_directory_is_removed_and_made_again_by_the_next_lock() {
    let fixture = Fixture::with_directory();
    assert!(fixture.directory.remove_if_empty().unwrap());
    assert!(!fixture.zk.exists(DIR));
    assert!(!fixture.directory.remove_if_empty().unwrap(), "there is none");
    let lock = WriteLock::new(fixture.session(), DIR).unwrap();
    assert!(lock.lock().unwrap());
    assert!(!fixture.directory.remove_if_empty().unwrap(), "somebody is in it");
    assert!(lock.is_owner());
}

#[test]
fn a_newcomer_at_the_moment_of_the_removal_loses_nothing() {
    // He comes before the deletion, or finds it done.
    for operation in [SimOperation::Delete, SimOperation::Create] {
        let fixture = Fixture::with_directory();
        let lock = Arc::new(WriteLock::new(fixture.session(), DIR).unwrap());
        let (directory, newcomer) = (fixture.directory.clone(), Arc::clone(&lock));
        match operation {
            SimOperation::Delete => {
                fixture.client.before_next(operation, move || assert!(newcomer.lock().unwrap()));
                assert!(!directory.remove_if_empty().unwrap());
            }
            _ => {
                fixture.client.before_next(operation, move || assert!(directory.remove_if_empty().unwrap()));
                assert!(lock.lock().unwrap());
            }
        }
        assert!(lock.is_owner());
        assert!(fixture.zk.exists(&lock.id().unwrap()));
    }
}

#[test]
fn a_znode_that_is_no_lock_directory_is_not_removed() {
    let fixture = Fixture::new();
    fixture.zk.create(DIR, b"precious");
    let error = fixture.directory.remove_if_empty().unwrap_err();
    assert!(matches!(&error, LockError::NotALockDirectory { path } if path == DIR), "{error}");
    let ephemeral = fixture.zk.create_sequential("/elsewhere", "e", Some(STRANGER));
    let directory = LockDirectory::new(fixture.session(), &ephemeral).unwrap();
    assert!(matches!(directory.remove_if_empty(), Err(LockError::NotALockDirectory { .. })));
    assert!(fixture.zk.exists(DIR) && fixture.zk.exists(&ephemeral));
}

#[test]
fn a_directory_that_is_written_at_the_last_moment_is_not_removed() {
    let fixture = Fixture::with_directory();
    let zk = fixture.zk.clone();
    fixture.client.before_next(SimOperation::Delete, move || zk.set_data(DIR, b"precious"));
    assert!(matches!(fixture.directory.remove_if_empty(), Err(LockError::NotALockDirectory { .. })));
    assert!(fixture.zk.exists(DIR));
}
