//! The read-write lock beside requests of other libraries, by the names that those make.

use zookeeper::{Acl, CreateMode};
use zookeeper_recipes_lock::{LockOptions, NamingScheme, ReadWriteLock, WriteLock};

use super::{Waiting, lock_on};
use crate::fixtures::{Onlooker, session, unique_dir};
use crate::support::server;
use crate::support::wait::{deadline, eventually};

/// Each scheme, with names of a reader and of a writer as its library makes them, up to the number.
const SCHEMES: [(NamingScheme, &str, &str); 3] = [
    (NamingScheme::Recipe, "read-", "write-"),
    (NamingScheme::Curator, "_c_0b2e4f8a-__READ__", "_c_0b2e4f8a-__WRIT__"),
    (NamingScheme::Kazoo, "00ff17__rlock__", "00ff17__lock__"),
];

/// Another library's request of this name.
fn foreign(onlooker: &Onlooker, dir: &str, prefix: &str) -> String {
    onlooker.create_persistent(dir);
    let path = format!("{dir}/{prefix}");
    let acl = Acl::open_unsafe().clone();
    onlooker.zk().create(&path, Vec::new(), acl, CreateMode::EphemeralSequential).unwrap()
}

#[test]
fn requests_bear_the_names_of_their_scheme() {
    let session = session(server::shared());
    let dir = unique_dir("scheme");
    let markers = ["read-", "write-", "-__READ__", "-__WRIT__", "__rlock__", "__lock__"];
    for (position, (scheme, ..)) in SCHEMES.into_iter().enumerate() {
        let lock = ReadWriteLock::with_options(&session, &dir, LockOptions::new().naming(scheme)).unwrap();
        let writing = lock.write().unwrap();
        assert!(writing.id().contains(markers[2 * position + 1]), "{}", writing.id());
        let reading = writing.downgrade().unwrap();
        assert!(reading.id().contains(markers[2 * position]), "{}", reading.id());
    }
}

#[test]
fn readers_share_with_other_libraries_readers_and_wait_for_their_writers() {
    let session = session(server::shared());
    let onlooker = Onlooker::at(server::shared());
    for (scheme, reader, writer) in SCHEMES {
        let dir = unique_dir("foreign-shared");
        let lock = ReadWriteLock::with_options(&session, &dir, LockOptions::new().naming(scheme)).unwrap();
        let theirs = foreign(&onlooker, &dir, reader);
        assert!(lock.try_read().unwrap().is_some(), "{scheme:?}");
        assert!(lock.try_write().unwrap().is_none(), "{scheme:?}");
        onlooker.delete(&theirs);
        let theirs = foreign(&onlooker, &dir, writer);
        assert!(lock.try_read().unwrap().is_none(), "{scheme:?}");
        onlooker.delete(&theirs);
        assert!(lock.try_write_for(deadline()).unwrap().is_some(), "{scheme:?}");
    }
}

#[test]
fn whatever_is_not_known_as_a_reader_is_waited_for() {
    let session = session(server::shared());
    let onlooker = Onlooker::at(server::shared());
    let dir = unique_dir("foreign-unknown");
    let lock = lock_on(&session, &dir);
    for name in ["x-72057594037927936-", "_c_0b2e-lock-", "_c_0b2e-__READ__", "00ff__rlock__", "00ff__lock__"]
    {
        let theirs = foreign(&onlooker, &dir, name);
        assert!(lock.try_read().unwrap().is_none(), "{name}");
        onlooker.delete(&theirs);
        assert!(lock.try_read_for(deadline()).unwrap().is_some(), "{name}");
        onlooker.await_children(&dir, 0);
    }
    onlooker.create_persistent(&format!("{dir}/config"));
    assert!(lock.try_read().unwrap().is_some());
}

#[test]
fn an_exclusive_lock_on_the_directory_counts_as_a_writer() {
    let session = session(server::shared());
    let dir = unique_dir("exclusive-shared");
    let (shared, exclusive) = (lock_on(&session, &dir), WriteLock::new(&session, &dir).unwrap());
    let reading = shared.read().unwrap();
    assert!(!exclusive.lock().unwrap());
    let behind = Waiting::join(&shared, true);
    assert!(!behind.is_owner());
    reading.unlock().unwrap();
    eventually("the exclusive lock is owned", || exclusive.is_owner());
    assert!(!behind.is_owner());
    exclusive.unlock().unwrap();
    behind.await_acquired();
}
