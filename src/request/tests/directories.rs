//! Tests of directories whose names look like requests.

use super::*;

/// Creates a lock's directory among the requests of another lock, with a request in it.
fn directory(zk: &SimulatedZooKeeper, number: i32) -> String {
    let directory = format!("{DIR}/{number:010}");
    zk.create(&directory, b"");
    zk.create_sequential(&directory, "x-other-lock-", None);
    directory
}

#[test]
fn directory_is_no_request() {
    let zk = SimulatedZooKeeper::new();
    zk.create(DIR, b"");
    let fixture = Fixture::join(&zk);
    for number in 0..3 {
        directory(&zk, number);
    }
    for attempt in 0..2 {
        let guard = fixture.blocking().try_lock().unwrap();
        // Unlock the guard instead of dropping it, because a drop does not wait for the deletion.
        assert!(guard.is_some_and(|guard| guard.unlock().is_ok()), "attempt {attempt}");
    }
    let sharing = fixture.sharing();
    let readers = [sharing.read().unwrap(), sharing.read().unwrap()];
    assert!(readers.iter().all(|reader| reader.is_owner()));
    for reader in readers {
        reader.unlock().unwrap();
    }
    assert!(sharing.try_write().unwrap().is_some());
    eventually("no watch is left", || zk.watch_count() == 0);
}

#[test]
fn waiter_passes_over_the_directories_before_and_behind_its_predecessor() {
    // The request of this client gets the number 3.
    for numbers in [[1, 3], [3, 4], [1, 2]] {
        let zk = SimulatedZooKeeper::new();
        zk.create(DIR, b"");
        let fixture = Fixture::join(&zk);
        let ahead = zk.create_sequential(DIR, "x-other-lock-", Some(7));
        numbers.iter().for_each(|number| drop(directory(&zk, *number)));
        let (lock, calls) = fixture.listening();
        assert!(!lock.lock().unwrap());
        assert!(!lock.is_owner());
        zk.delete(&ahead);
        assert_eq!(next(&calls), Call::Acquired, "{numbers:?}");
        lock.unlock().unwrap();
        eventually("no watch is left", || zk.watch_count() == 0);
    }
}

/// The znode may be a request of an unknown library.
#[test]
fn persistent_znode_without_children_counts_until_it_has_some() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    let ahead = zk.create_sequential(DIR, "backup-", None);
    let (lock, calls) = fixture.listening();
    assert!(!lock.lock().unwrap());
    zk.create(&format!("{ahead}/child"), b"");
    zk.delete(&format!("{ahead}/child"));
    fixture.session.core().look_routinely();
    assert_eq!(next(&calls), Call::Acquired);
}
