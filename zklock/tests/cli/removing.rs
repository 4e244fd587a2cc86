//! `zklock revoke` and `zklock reap`.

use std::thread;

use zookeeper_recipes_lock::LossReason;
use zookeeper_recipes_lock::client::CreateMode;
use zookeeper_recipes_lock::locks::{ReadWriteLock, Semaphore};

use crate::program::{Fixture, zklock};
use crate::support::wait::deadline;

// ---- revoke

#[test]
fn holder_is_asked() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let ended = fixture.zklock(&["revoke"]);
    ended.assert_succeeded();
    assert!(ended.out.starts_with("asked ") && ended.out.lines().count() == 1, "{ended:?}");
    guard.revocation().recv_timeout(deadline()).unwrap();
    assert!(guard.is_owner());
}

#[test]
fn all_readers_are_asked() {
    let fixture = Fixture::new();
    let lock = ReadWriteLock::new(&fixture.session, &fixture.dir).unwrap();
    let readers = [lock.read().unwrap(), lock.read().unwrap()];
    let ended = fixture.zklock(&["revoke"]);
    ended.assert_succeeded();
    assert_eq!(ended.out.lines().filter(|line| line.starts_with("asked ")).count(), 2, "{ended:?}");
    for reader in &readers {
        reader.revocation().recv_timeout(deadline()).unwrap();
    }
}

#[test]
fn of_a_semaphore_the_holder_of_the_oldest_permit_is_asked() {
    let fixture = Fixture::new();
    let semaphore = Semaphore::new(&fixture.session, &fixture.dir, 2).unwrap();
    let [oldest, other] = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    let ended = zklock(fixture.server, &["revoke", &format!("{}/leases", fixture.dir)]);
    ended.assert_succeeded();
    assert!(ended.out.starts_with("asked ") && ended.out.lines().count() == 1, "{ended:?}");
    oldest.revocation().recv_timeout(deadline()).unwrap();
    assert!(other.revocation().is_empty());
}

#[test]
fn holder_that_does_not_release_loses_the_lock() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let ended = fixture.zklock(&["revoke", "--force-after", "200ms"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.starts_with("deleted "), "{ended:?}");
    assert_eq!(guard.lost().recv_timeout(deadline()), Ok(LossReason::NodeDeleted));
}

#[test]
fn holder_that_releases_is_not_forced() {
    let fixture = Fixture::new();
    let guard = fixture.hold();
    let holder = thread::spawn(move || {
        guard.revocation().recv_timeout(deadline()).unwrap();
        guard.unlock().unwrap();
    });
    let ended = fixture.zklock(&["revoke", "--force-after", "10m"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.out.starts_with("released "), "{ended:?}");
    holder.join().unwrap();
}

#[test]
fn free_lock_needs_no_revocation() {
    let fixture = Fixture::new();
    fixture.create_dir();
    fixture.hold().unlock().unwrap();
    let ended = fixture.zklock(&["revoke"]);
    ended.assert_succeeded();
    assert_eq!(ended.out, format!("nobody holds {}\n", fixture.dir));
}

#[test]
fn persistent_request_is_not_revoked() {
    let fixture = Fixture::new();
    let path = fixture.create("x-left-lock-0000000001", b"", CreateMode::Persistent);
    fixture.zklock(&["revoke", "--force-after", "0s"]).assert_removed_nothing();
    assert!(fixture.exists(&path));
}

impl crate::program::Ended {
    fn assert_removed_nothing(&self) {
        assert_eq!((self.code, self.out.as_str()), (65, ""), "{self:?}");
        assert!(self.err.contains("zklock reap"), "{self:?}");
    }
}

// ---- reap

#[test]
fn reaping_without_yes_only_shows() {
    let fixture = Fixture::new();
    let path = fixture.create("x-left-lock-0000000001", b"old", CreateMode::Persistent);
    let ended = fixture.zklock(&["reap", "--older-than", "0s"]);
    ended.assert_failed(0, "--yes");
    assert!(ended.out.starts_with("would delete ") && ended.out.contains(&path), "{ended:?}");
    assert!(fixture.exists(&path));
}

#[test]
fn reaping_deletes_old_persistent_requests_alone() {
    let fixture = Fixture::new();
    let path = fixture.create("x-left-lock-0000000001", b"old", CreateMode::Persistent);
    let alive = fixture.create("x-alive-lock-0000000002", b"", CreateMode::Ephemeral);
    let ended = fixture.zklock(&["reap", "--older-than", "1d", "--yes"]);
    ended.assert_succeeded();
    assert!(ended.out.starts_with("no persistent request"), "{ended:?}");
    let ended = fixture.zklock(&["reap", "--older-than", "0s", "--yes"]);
    ended.assert_succeeded();
    assert!(ended.out.starts_with("deleted ") && ended.out.contains(&path), "{ended:?}");
    assert_eq!(ended.out.lines().count(), 1);
    assert!(!fixture.exists(&path) && fixture.exists(&alive));
}
