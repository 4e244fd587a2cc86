//! Tests of read-write locks together with requests of other libraries, which are recognized by their names.

use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::locks::ReadWriteLock;
use zookeeper_recipes_lock::recipe::NamingScheme;
use zookeeper_recipes_lock::{LockOptions, WriteLock};

use super::{Waiting, lock_on};
use crate::fixtures::{Observer, session, unique_dir};
use crate::support::server;
use crate::support::wait::{deadline, eventually};

/// The schemes, each with the prefixes of its readers' and writers' names.
const SCHEMES: [(NamingScheme, &str, &str); 3] = [
    (NamingScheme::Recipe, "read-", "write-"),
    (NamingScheme::Curator, "_c_0b2e4f8a-__READ__", "_c_0b2e4f8a-__WRIT__"),
    (NamingScheme::Kazoo, "00ff17__rlock__", "00ff17__lock__"),
];

/// Creates a request of another library with this prefix.
fn request_of_another_library(observer: &Observer, dir: &str, prefix: &str) -> String {
    observer.create_persistent(dir);
    let path = format!("{dir}/{prefix}");
    observer.zk().create(&path, b"", &Acl::open_unsafe(), CreateMode::EphemeralSequential).unwrap()
}

#[test]
fn requests_have_the_names_of_their_scheme() {
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
fn readers_share_with_readers_of_other_libraries_and_wait_for_their_writers() {
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    for (scheme, reader, writer) in SCHEMES {
        let dir = unique_dir("peer-shared");
        let lock = ReadWriteLock::with_options(&session, &dir, LockOptions::new().naming(scheme)).unwrap();
        let theirs = request_of_another_library(&observer, &dir, reader);
        assert!(lock.try_read().unwrap().is_some(), "{scheme:?}");
        assert!(lock.try_write().unwrap().is_none(), "{scheme:?}");
        observer.delete(&theirs);
        let theirs = request_of_another_library(&observer, &dir, writer);
        assert!(lock.try_read().unwrap().is_none(), "{scheme:?}");
        observer.delete(&theirs);
        assert!(lock.try_write_for(deadline()).unwrap().is_some(), "{scheme:?}");
    }
}

#[test]
fn requests_of_unknown_kind_count_as_writers() {
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    let dir = unique_dir("peer-unknown");
    let lock = lock_on(&session, &dir);
    for name in ["x-72057594037927936-", "_c_0b2e-lock-", "_c_0b2e-__READ__", "00ff__rlock__", "00ff__lock__"]
    {
        let theirs = request_of_another_library(&observer, &dir, name);
        assert!(lock.try_read().unwrap().is_none(), "{name}");
        observer.delete(&theirs);
        assert!(lock.try_read_for(deadline()).unwrap().is_some(), "{name}");
        observer.await_children(&dir, 0);
    }
    observer.create_persistent(&format!("{dir}/config"));
    assert!(lock.try_read().unwrap().is_some());
}

#[test]
fn exclusive_lock_on_the_directory_counts_as_a_writer() {
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
