//! Tests of locks that are found by the names of resources, on a real server.

use std::time::{Duration, Instant};

use zookeeper_recipes_lock::locks::NamedLocks;
use zookeeper_recipes_lock::{BlockingWriteLock, ErrorReason, LockOptions};

use crate::fixtures::{ErrorVariant, Observer, session, unique_dir};
use crate::support::server;
use crate::support::wait::deadline;

/// Returns the names of different resources, many of which are difficult to map to a path.
fn awkward_names() -> Vec<String> {
    let words = [
        "reports/daily",
        "reports%2Fdaily",
        "/",
        "//",
        "a/",
        ".",
        "..",
        "%",
        "%2F",
        " ",
        "zookeeper",
        "Größe",
        "🦀",
    ];
    let characters =
        (0..=0x2ff_u32).chain([0xd7ff, 0xe000, 0xf8ff, 0xf900, 0xffef, 0xfff0, 0xffff, 0x1_0000, 0x10_ffff]);
    let characters =
        characters.filter_map(char::from_u32).filter(|character| !['/', '.', '%', ' '].contains(character));
    words.into_iter().map(str::to_owned).chain(characters.map(String::from)).collect()
}

#[test]
fn every_name_is_a_separate_lock() {
    let root = unique_dir("resources");
    let observer = Observer::at(server::shared());
    let session = session(server::shared());
    let locks = NamedLocks::new(&session, &root).unwrap();
    let names = awkward_names();
    let guards: Vec<_> = names
        .iter()
        .map(|name| {
            locks
                .get(name)
                .unwrap()
                .try_lock()
                .unwrap()
                .unwrap_or_else(|| panic!("{name:?} shares the lock of another name"))
        })
        .collect();
    assert_eq!(observer.children(&root).len(), names.len());
    for (name, guard) in names.iter().zip(&guards) {
        assert!(guard.is_owner(), "{name:?}");
        assert_eq!(guard.id().rsplit_once('/').unwrap().0, locks.dir(name).unwrap());
    }
    for name in ["reports/daily", "🦀", "\0"] {
        assert!(locks.get(name).unwrap().try_lock().unwrap().is_none(), "the lock of {name:?} must be held");
    }
}

#[test]
fn same_name_is_the_same_lock_in_every_session() {
    let root = unique_dir("resource");
    let observer = Observer::at(server::shared());
    let (our_session, their_session) = (session(server::shared()), session(server::shared()));
    let options = LockOptions::new().data("worker-7");
    let ours = NamedLocks::with_options(&our_session, &root, options).unwrap();
    let theirs = NamedLocks::new(&their_session, &root).unwrap();
    let guard = ours.get("reports/daily").unwrap().lock().unwrap();
    assert_eq!(observer.data(guard.id()), b"worker-7");
    assert!(theirs.get("reports/daily").unwrap().try_lock().unwrap().is_none());
    assert!(theirs.get("reports/daily").unwrap().try_lock_for(Duration::from_millis(50)).unwrap().is_none());
    let soon = Instant::now() + Duration::from_millis(50);
    assert!(theirs.get("reports/daily").unwrap().try_lock_for(soon).unwrap().is_none());
    assert!(Instant::now() >= soon);
    assert!(theirs.get("reports").unwrap().try_lock().unwrap().is_some());
    assert!(theirs.get("reports/daily").unwrap().try_lock().unwrap().is_none());
    let by_path = BlockingWriteLock::new(&their_session, &format!("{root}/reports%2Fdaily")).unwrap();
    assert!(by_path.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    // The request that timed out is being deleted in the background.
    assert!(by_path.try_lock_for(deadline()).unwrap().is_some());
}

#[test]
fn invalid_names_are_refused_before_anything_is_sent() {
    let root = unique_dir("refused");
    let session = session(server::shared());
    let locks = NamedLocks::new(&session, &root).unwrap();
    assert!(locks.get("").unwrap_err().is_invalid_argument());
    assert!(
        locks.get(&"/".repeat(2000)).unwrap_err().is_invalid_argument(),
        "the name must be too long after escaping"
    );
    assert!(NamedLocks::new(&session, "/").unwrap_err().is_invalid_argument());
    let too_much = LockOptions::new().data(vec![0; 1 << 20]);
    let too_much = NamedLocks::with_options(&session, &root, too_much).unwrap().get("a").unwrap();
    assert_eq!(too_much.lock().unwrap_err().reason(), ErrorReason::CallTooLong);
    assert!(!Observer::at(server::shared()).exists(&root));
}
