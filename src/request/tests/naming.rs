//! Tests of the names of requests, for each kind of lock.

use super::*;
use crate::Candidate;
use crate::error::ErrorReason;
use crate::locks::{
    CohortLock, CohortOptions, MultiLock, NamedLocks, ReadWriteLock, ReentrantLock, Semaphore,
};
use crate::recipe::NamingScheme;
use crate::recipe::path::ZNodePath;

/// Each scheme, with the start and the end of its exclusive requests' names before the number.
const SCHEMES: [(NamingScheme, &str, &str); 4] = [
    (NamingScheme::Recipe, "x-", "-lock-"),
    (NamingScheme::Curator, "_c_", "-lock-"),
    (NamingScheme::CuratorLatch, "_c_", "-latch-"),
    (NamingScheme::Kazoo, "", "__lock__"),
];

/// Checks the one request in a directory.
fn check_name(zk: &SimulatedZooKeeper, dir: &str, (scheme, start, end): (NamingScheme, &str, &str)) {
    let children = zk.children(dir);
    let [name] = &children[..] else { panic!("{scheme:?}: {children:?}") };
    let before = name.trim_end_matches(|last: char| last.is_ascii_digit());
    assert!(before.starts_with(start) && before.ends_with(end), "{scheme:?}: {name}");
    let guid = &before[start.len()..before.len() - end.len()];
    assert_eq!(guid.contains('-'), scheme != NamingScheme::Kazoo, "{name}");
    assert_eq!(guid.len(), if scheme == NamingScheme::Kazoo { 32 } else { 36 }, "{name}");
}

#[test]
fn requests_of_every_exclusive_lock_are_named_by_the_scheme() {
    for names in SCHEMES {
        let zk = SimulatedZooKeeper::new();
        let Fixture { session, .. } = Fixture::join(&zk);
        let options = || quick_retries().naming(names.0);
        let blocking = || BlockingWriteLock::with_options(&session, DIR, options()).unwrap();

        let guard = blocking().lock().unwrap();
        check_name(&zk, DIR, names);
        guard.unlock().unwrap();

        let listening = WriteLock::with_options(&session, DIR, options(), RecordingListener(unbounded().0));
        let listening = listening.unwrap();
        assert!(listening.lock().unwrap());
        check_name(&zk, DIR, names);
        listening.unlock().unwrap();

        let reentrant = ReentrantLock::new(blocking());
        let guard = reentrant.lock().unwrap();
        check_name(&zk, DIR, names);
        guard.unlock().unwrap();

        let dirs = [DIR, "/locks/other"];
        let guard = MultiLock::with_options(&session, dirs, options()).unwrap().lock().unwrap();
        for dir in dirs {
            check_name(&zk, dir, names);
        }
        guard.unlock().unwrap();

        let locks = NamedLocks::with_options(&session, "/named", options()).unwrap();
        let guard = locks.get("one").unwrap().lock().unwrap();
        check_name(&zk, "/named/one", names);
        guard.unlock().unwrap();
        let guard = locks.cohort("two", CohortOptions::new()).unwrap().lock().unwrap();
        check_name(&zk, "/named/two", names);
        guard.unlock().unwrap();

        let cohort = CohortLock::with_options(&session, DIR, options(), CohortOptions::new()).unwrap();
        let guard = cohort.lock().unwrap();
        check_name(&zk, DIR, names);
        drop((guard, cohort));
        eventually("the cohort's request is gone", || zk.children(DIR).is_empty());

        let (leading, leads) = unbounded();
        let (end, ended) = unbounded::<()>();
        let candidate = Candidate::start(blocking(), move |_| {
            let _ = leading.send(());
            let _ = ended.recv();
            Ok(())
        });
        let candidate = candidate.unwrap();
        next(&leads);
        check_name(&zk, DIR, names);
        candidate.stop();
        drop(end);
    }
}

#[test]
fn read_write_lock_refuses_a_scheme_without_readers() {
    let fixture = Fixture::join(&SimulatedZooKeeper::new());
    let options = LockOptions::new().naming(NamingScheme::CuratorLatch);
    let refusal = ReadWriteLock::with_options(&fixture.session, DIR, options).unwrap_err();
    assert_eq!(refusal.reason(), ErrorReason::InvalidArgument);
    assert!(refusal.to_string().contains("naming scheme"), "{refusal}");
}

/// Otherwise there could be two owners: a request of each scheme must wait for a request of every other
/// scheme.
#[test]
fn requests_of_all_schemes_exclude_one_another() {
    let zk = SimulatedZooKeeper::new();
    let fixture = Fixture::join(&zk);
    for (first, ..) in SCHEMES {
        for (second, ..) in SCHEMES {
            let lock = |scheme| {
                BlockingWriteLock::with_options(&fixture.session, DIR, quick_retries().naming(scheme))
                    .unwrap()
            };
            let held = lock(first).lock().unwrap();
            assert!(lock(second).try_lock().unwrap().is_none(), "{first:?} {second:?}");
            held.unlock().unwrap();
        }
    }
}

#[test]
fn request_that_does_not_count_an_owner_and_comes_later_is_mentioned() {
    let dir = ZNodePath::parse(DIR).unwrap();
    for (prefix, is_mentioned) in [("_c_0b2e-0b2e-lock-", false), ("_c_0b2e-latch-", true)] {
        let zk = SimulatedZooKeeper::new();
        let (client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
        let fixture = Fixture { client, session };
        let core = fixture.session.core();
        let held = fixture.blocking().lock().unwrap();
        zk.create_sequential(DIR, prefix, Some(7));
        core.look_routinely();
        // The log mentions each directory only once.
        assert_eq!(core.mentions_first(&dir), !is_mentioned, "{prefix}");
        held.unlock().unwrap();
    }
}

/// The log mentions each directory only once, so this can be asked only once.
fn is_mentioned(session: &Session, dir: &str) -> bool {
    !session.core().mentions_first(&ZNodePath::parse(dir).unwrap())
}

#[test]
fn semaphore_on_the_path_of_a_lock_is_mentioned_on_both_sides() {
    let zk = SimulatedZooKeeper::new();
    let (_semaphores, _runtime, semaphores) = open_on_manual_runtime(&zk, LONG);
    let (_locks, _runtime, locks) = open_on_manual_runtime(&zk, LONG);
    let permit = Semaphore::new(&semaphores, DIR, 1).unwrap().acquire().unwrap();
    let held = BlockingWriteLock::new(&locks, DIR).unwrap().lock().unwrap();
    assert!(is_mentioned(&locks, DIR), "a lock sees the semaphore when it joins");
    semaphores.core().look_routinely();
    assert!(is_mentioned(&semaphores, DIR), "the holder of a permit sees the lock in a routine look");
    drop((permit, held));
}

#[test]
fn semaphore_that_comes_while_a_lock_is_held_is_mentioned() {
    let zk = SimulatedZooKeeper::new();
    let (_client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let held = ReadWriteLock::new(&session, DIR).unwrap().read().unwrap();
    let other = Fixture::join(&zk);
    let permit = Semaphore::new(&other.session, DIR, 1).unwrap().acquire().unwrap();
    session.core().look_routinely();
    assert!(is_mentioned(&session, DIR));
    drop((permit, held));
}

#[test]
fn locks_and_semaphores_in_parents_and_children_are_not_mentioned() {
    let zk = SimulatedZooKeeper::new();
    let (_client, _runtime, session) = open_on_manual_runtime(&zk, LONG);
    let lock = |dir| BlockingWriteLock::new(&session, dir).unwrap().lock().unwrap();
    let locks = [lock("/locks"), lock("/locks/leases"), lock(DIR)];
    let shared = ReadWriteLock::new(&session, DIR).unwrap();
    let permit = Semaphore::new(&session, "/locks/it/pool", 1).unwrap().acquire().unwrap();
    assert!(shared.try_read().unwrap().is_none());
    session.core().look_routinely();
    for dir in ["/locks", "/locks/leases", DIR, "/locks/it/pool", "/locks/it/pool/leases"] {
        assert!(!is_mentioned(&session, dir), "{dir}");
    }
    drop((locks, permit));
}
