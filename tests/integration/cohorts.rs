//! Tests of cohort locks on real servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::locks::{CohortLock, CohortOptions, Released};
use zookeeper_recipes_lock::{
    BlockingWriteLock, ErrorReason, LockOptions, LossReason, Session, SessionState,
};

use crate::child_test::ChildTest;
use crate::fixtures::{LONG, Observer, SHORT, connect, connect_replaced, next, session, unique_dir};
use crate::support::relay::Relay;
use crate::support::server;
use crate::support::wait::{deadline, eventually, scaled};

/// Options that keep an idle lock until somebody asks for it.
fn kept_long() -> CohortOptions {
    CohortOptions::new().keep_for(Duration::from_secs(3600))
}

fn lock_on(session: &Session, dir: &str, options: CohortOptions) -> CohortLock {
    CohortLock::with_options(session, dir, LockOptions::new(), options).unwrap()
}

#[test]
fn cohorts_and_plain_locks_exclude_one_another() {
    let dir = unique_dir("cohorts");
    let (inside, visits) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let visit = || {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two owners at once");
        thread::yield_now();
        inside.fetch_sub(1, Ordering::SeqCst);
        visits.fetch_add(1, Ordering::SeqCst);
    };
    let sessions = [session(server::shared()), session(server::shared())];
    let options = CohortOptions::new().max_handovers(5);
    let cohorts = [lock_on(&sessions[0], &dir, options), lock_on(&sessions[1], &dir, options)];
    let plain = BlockingWriteLock::new(&sessions[0], &dir).unwrap();
    thread::scope(|scope| {
        for number in 0..8 {
            let cohort = cohorts[number % 2].clone();
            scope.spawn(move || {
                for _ in 0..50 {
                    let guard = cohort.lock().unwrap();
                    assert!(guard.is_owner());
                    visit();
                    guard.unlock().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                plain.with_lock(|_| visit()).unwrap();
            }
        });
    });
    assert_eq!(visits.load(Ordering::SeqCst), 8 * 50 + 20);
    drop(cohorts);
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn kept_lock_has_one_znode_and_one_token_for_all_threads() {
    let (session, dir) = (session(server::shared()), unique_dir("cohort-kept"));
    let observer = Observer::at(server::shared());
    let lock = lock_on(&session, &dir, kept_long());
    let first = lock.lock().unwrap();
    let (id, token) = (first.id().to_owned(), first.fencing_token().unwrap());
    assert_eq!(first.unlock().unwrap(), Released::Kept);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let guard = lock.lock().unwrap();
                assert_eq!((guard.id(), guard.fencing_token().unwrap()), (id.as_str(), token));
            });
        }
    });
    assert_eq!(observer.children(&dir).len(), 1);
    drop(lock);
    observer.await_children(&dir, 0);
}

#[test]
fn kept_lock_goes_to_another_session_as_soon_as_it_asks() {
    let dir = unique_dir("cohort-asked");
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let (ours, theirs) = (lock_on(&ours, &dir, kept_long()), lock_on(&theirs, &dir, kept_long()));
    for _ in 0..20 {
        for lock in [&ours, &theirs] {
            let guard =
                lock.try_lock_for(deadline()).unwrap().expect("the other process must give the lock up");
            assert!(guard.is_owner());
        }
    }
}

#[test]
fn kept_lock_goes_to_clients_of_other_libraries() {
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    for prefix in ["00ff__lock__", "_c_0b2e47a1-lock-", "_c_0b2e47a1-__WRIT__", "x-72057594037927936-"] {
        let dir = unique_dir("cohort-others");
        let lock = lock_on(&session, &dir, kept_long());
        drop(lock.lock().unwrap());
        // This znode is not a request, so the lock is kept and the watch is set again.
        observer.create_persistent(&format!("{dir}/config"));
        assert_eq!(lock.lock().unwrap().unlock().unwrap(), Released::Kept);
        let path = format!("{dir}/{prefix}");
        let mode = CreateMode::EphemeralSequential;
        let other = observer.zk().create(&path, b"", &Acl::open_unsafe(), mode).unwrap();
        observer.await_children(&dir, 2);
        assert!(observer.exists(&other), "{prefix}");
        assert!(lock.try_lock().unwrap().is_none());
        observer.delete(&other);
        assert!(lock.try_lock_for(deadline()).unwrap().is_some());
    }
}

#[test]
fn idle_lock_is_released_after_its_time() {
    let (session, dir) = (session(server::shared()), unique_dir("cohort-idle"));
    let lock = lock_on(&session, &dir, CohortOptions::new());
    drop(lock.lock().unwrap());
    Observer::at(server::shared()).await_children(&dir, 0);
    assert!(lock.lock().unwrap().is_owner());
    let unkept = lock_on(&session, &unique_dir("cohort-unkept"), kept_long().keep_for(Duration::ZERO));
    assert_eq!(unkept.lock().unwrap().unlock().unwrap(), Released::Deleted);
}

#[test]
fn busy_cohort_lets_another_session_in() {
    let dir = unique_dir("cohort-busy");
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let busy = lock_on(&ours, &dir, kept_long().max_handovers(10));
    let other = BlockingWriteLock::new(&theirs, &dir).unwrap();
    let stop = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while stop.load(Ordering::SeqCst) == 0 {
                    drop(busy.lock().unwrap());
                }
            });
        }
        for _ in 0..10 {
            let guard = other.try_lock_for(deadline()).unwrap();
            stop.store(usize::from(guard.is_none()), Ordering::SeqCst);
            assert!(guard.expect("every thread must get its turn").is_owner());
        }
        stop.store(1, Ordering::SeqCst);
    });
}

#[test]
fn deadlines_of_threads_hold_and_the_others_wait_on() {
    let dir = unique_dir("cohort-deadlines");
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let observer = Observer::at(server::shared());
    let lock = lock_on(&ours, &dir, kept_long());
    let guard = BlockingWriteLock::new(&theirs, &dir).unwrap().lock().unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        let first =
            scope.spawn(|| lock.try_lock_for(scaled(Duration::from_secs(3))).map(|guard| guard.is_some()));
        observer.await_children(&dir, 2);
        let second = scope.spawn(|| lock.try_lock_for(deadline()).map(|guard| guard.is_some()));
        assert!(!first.join().unwrap().unwrap());
        assert!(begun.elapsed() < deadline() / 2);
        drop(guard);
        assert!(second.join().unwrap().unwrap());
    });
}

#[test]
fn directory_deleted_under_a_kept_lock_is_created_again() {
    let (session, dir) = (session(server::shared()), unique_dir("cohort-deleted"));
    let observer = Observer::at(server::shared());
    let lock = lock_on(&session, &dir, kept_long());
    let guard = lock.lock().unwrap();
    let lost = guard.lost().clone();
    observer.delete(guard.id());
    assert_eq!(next(&lost), LossReason::NodeDeleted);
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::NodeDeleted));
    observer.delete(&dir);
    let guard = lock.lock().unwrap();
    assert!(guard.is_owner());
    let id = guard.id().to_owned();
    drop(guard);
    // Wait, because the owner does not watch its znode until a moment after the acquisition.
    thread::sleep(Duration::from_millis(300));
    observer.delete(&id);
    observer.delete(&dir);
    eventually("the lock is acquired anew", || lock.lock().unwrap().id() != id);
}

#[test]
fn kept_lock_survives_a_reconnect_and_hears_of_requests_afterwards() {
    let dir = unique_dir("cohort-reconnect");
    let relay = Relay::to(server::shared().connect_string());
    let far = connect(&relay.connect_string(), LONG);
    let lock = lock_on(&far, &dir, kept_long());
    let guard = lock.lock().unwrap();
    let id = guard.id().to_owned();
    drop(guard);
    let states = far.subscribe();
    relay.cut();
    while next(&states) != SessionState::Connected {}
    let guard = lock.lock().unwrap();
    assert!(guard.is_owner() && guard.id() == id);
    drop(guard);
    let near = session(server::shared());
    let other = BlockingWriteLock::new(&near, &dir).unwrap();
    assert!(other.try_lock_for(deadline()).unwrap().is_some());
}

#[test]
fn lost_session_ends_a_kept_lock_and_the_next_session_acquires_it_again() {
    let dir = unique_dir("cohort-lost");
    let relay = Relay::to(server::shared().connect_string());
    let replaced = connect_replaced(&relay.connect_string(), SHORT);
    let lock = lock_on(&replaced, &dir, kept_long());
    let guard = lock.lock().unwrap();
    let lost = guard.lost().clone();
    relay.refuse();
    assert_eq!(next(&lost), LossReason::LeaseExpired);
    assert!(!guard.is_owner());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock().map(|guard| guard.is_owner()));
        relay.restore();
        assert!(waiting.join().unwrap().unwrap());
    });
    assert_eq!(guard.unlock().unwrap_err().reason(), ErrorReason::LeaseExpired);
}

#[test]
fn lock_kept_by_a_killed_process_is_acquired_after_its_session() {
    const NAME: &str = "cohorts::lock_kept_by_a_killed_process_is_acquired_after_its_session";
    if let Some((connect_string, dir)) = ChildTest::arguments() {
        let session = connect(&connect_string, SHORT);
        let lock = lock_on(&session, &dir, kept_long());
        let guard = lock.lock().unwrap();
        let id = guard.id().to_owned();
        assert_eq!(guard.unlock().unwrap(), Released::Kept);
        ChildTest::send(&id);
        loop {
            thread::park();
        }
    }

    let dir = unique_dir("cohort-killed");
    let session = session(server::shared());
    let observer = Observer::at(server::shared());
    let lock = lock_on(&session, &dir, kept_long());
    let mut child = ChildTest::start(NAME, &dir);
    let id = child.receive();
    child.kill();
    assert!(lock.try_lock().unwrap().is_none(), "the session of the child must still hold the lock");
    assert!(observer.exists(&id));
    assert!(lock.try_lock_for(deadline()).unwrap().is_some());
}
