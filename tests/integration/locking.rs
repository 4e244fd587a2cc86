//! Tests of blocking locks on a healthy server.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::client::{Acl, CreateMode};
use zookeeper_recipes_lock::{
    BlockingWriteLock, CancelToken, ErrorReason, LockGuard, LockOptions, LossReason, Session, SessionState,
    Wait, WriteLock,
};

use crate::fixtures::{ErrorVariant, Observer, session, unique_dir};
use crate::support::server::{self, Server};
use crate::support::wait::{eventually, scaled};

/// Counts the holders, and records the highest count.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    most: AtomicUsize,
    visits: AtomicUsize,
}

impl Room {
    fn visit(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        thread::yield_now();
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn assert_visited_one_by_one(&self, visits: usize) {
        assert_eq!(self.most.load(Ordering::SeqCst), 1, "two owners at once");
        assert_eq!(self.visits.load(Ordering::SeqCst), visits);
    }
}

#[test]
fn threads_of_one_session_exclude_each_other() {
    let session = session(server::shared());
    let dir = unique_dir("threads");
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let room = Room::default();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let guard = lock.lock().unwrap();
                    assert!(guard.is_owner());
                    room.visit();
                }
            });
        }
    });
    room.assert_visited_one_by_one(160);
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn sessions_exclude_each_other() {
    let dir = unique_dir("sessions");
    let room = Room::default();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let session = session(server::shared());
                let lock = BlockingWriteLock::new(&session, &dir).unwrap();
                for _ in 0..10 {
                    lock.with_lock(|_| room.visit()).unwrap();
                }
            });
        }
    });
    room.assert_visited_one_by_one(80);
}

#[test]
fn waiters_acquire_in_the_order_of_their_requests() {
    let session = session(server::shared());
    let dir = unique_dir("fifo");
    let observer = Observer::at(server::shared());
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let order = Mutex::new(Vec::new());
    let first = lock.lock().unwrap();
    thread::scope(|scope| {
        for number in 0..10 {
            let (lock, order) = (&lock, &order);
            scope.spawn(move || {
                let _guard = lock.lock().unwrap();
                order.lock().unwrap().push(number);
            });
            observer.await_children(&dir, number + 2);
        }
        drop(first);
    });
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[test]
fn try_lock_acquires_only_a_free_lock() {
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let dir = unique_dir("try");
    let ours = BlockingWriteLock::new(&ours, &dir).unwrap();
    let theirs = BlockingWriteLock::new(&theirs, &dir).unwrap();
    let guard = ours.try_lock().unwrap().expect("the lock is free");
    assert!(theirs.try_lock().unwrap().is_none());
    assert!(ours.try_lock().unwrap().is_none(), "the lock is not reentrant");
    Observer::at(server::shared()).await_children(&dir, 1);
    guard.unlock().unwrap();
    assert!(theirs.try_lock().unwrap().is_some());
}

#[test]
fn timed_out_attempt_ends_in_time_and_leaves_no_znode() {
    let session = session(server::shared());
    let dir = unique_dir("timed");
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let guard = lock.lock().unwrap();
    let start = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(200)).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(start.elapsed() < scaled(Duration::from_secs(10)));
    Observer::at(server::shared()).await_children(&dir, 1);
    drop(guard);
    assert!(lock.try_lock_for(scaled(Duration::from_secs(30))).unwrap().is_some());
    assert!(lock.try_lock_for(Duration::MAX).unwrap().is_some());
}

#[test]
fn waiter_cancelled_by_another_thread_leaves_the_queue() {
    let session = session(server::shared());
    let dir = unique_dir("cancelled");
    let observer = Observer::at(server::shared());
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let _guard = lock.lock().unwrap();
    let cancel = CancelToken::new();
    let wait = Wait::forever().cancelled_by(&cancel);
    thread::scope(|scope| {
        let waiters = [(); 2].map(|()| scope.spawn(|| lock.try_lock_for(&wait).map(|guard| guard.is_some())));
        observer.await_children(&dir, 3);
        cancel.cancel();
        for waiter in waiters {
            assert!(
                matches!(waiter.join().unwrap(), Err(ref error) if error.reason() == ErrorReason::Cancelled)
            );
        }
    });
    observer.await_children(&dir, 1);
}

#[test]
fn timed_out_waiter_does_not_block_the_next() {
    let session = session(server::shared());
    let dir = unique_dir("gives-up");
    let observer = Observer::at(server::shared());
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let first = lock.lock().unwrap();
    let middle = WriteLock::new(&session, &dir).unwrap();
    assert!(!middle.lock().unwrap());
    thread::scope(|scope| {
        let last = scope.spawn(|| lock.lock().map(drop));
        observer.await_children(&dir, 3);
        middle.unlock().unwrap();
        observer.await_children(&dir, 2);
        assert!(!last.is_finished(), "the first guard must still hold the lock");
        drop(first);
        last.join().unwrap().unwrap();
    });
}

#[test]
fn panic_under_the_lock_releases_it() {
    let session = session(server::shared());
    let dir = unique_dir("panic");
    let lock = Arc::new(BlockingWriteLock::new(&session, &dir).unwrap());
    let of_thread = Arc::clone(&lock);
    let panicked = thread::spawn(move || of_thread.with_lock(|_| panic!("on purpose")).is_ok()).join();
    assert!(panicked.is_err());
    assert!(lock.try_lock_for(scaled(Duration::from_secs(30))).unwrap().is_some());
}

/// When the values of a thread are dropped, the library's own values of that thread may already be gone.
#[test]
fn lock_may_be_used_when_the_values_of_a_thread_are_dropped() {
    struct UsesLock(BlockingWriteLock, Option<LockGuard>);
    impl Drop for UsesLock {
        fn drop(&mut self) {
            drop(self.1.take());
            drop(self.0.try_lock_for(scaled(Duration::from_secs(30))).unwrap().expect("it was released"));
        }
    }
    thread_local!(static KEPT: RefCell<Option<UsesLock>> = const { RefCell::new(None) });
    let session = session(server::shared());
    let dir = unique_dir("thread-local");
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let of_thread = BlockingWriteLock::new(&session, &dir).unwrap();
    let thread = thread::spawn(move || {
        // The library creates its values of this thread later, so they are dropped earlier.
        KEPT.with_borrow_mut(|kept| assert!(kept.is_none()));
        let guard = of_thread.lock().unwrap();
        KEPT.set(Some(UsesLock(of_thread, Some(guard))));
    });
    thread.join().unwrap();
    assert!(lock.try_lock_for(scaled(Duration::from_secs(30))).unwrap().is_some());
}

#[test]
fn guard_has_id_data_and_ownership() {
    let session = session(server::shared());
    let dir = unique_dir("guard");
    let observer = Observer::at(server::shared());
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    let guard = lock.lock().unwrap();
    assert!(guard.is_owner());
    assert!(guard.id().starts_with(&format!("{dir}/x-")), "{}", guard.id());
    assert!(observer.exists(guard.id()));
    let stat = observer.zk().exists(guard.id()).unwrap().unwrap();
    assert_eq!(Some(stat.ephemeral_owner), session.id());
    assert_eq!(guard.fencing_token().unwrap(), stat.czxid);
    let who = String::from_utf8(observer.data(guard.id())).unwrap();
    assert!(who.ends_with(&format!("/{}", std::process::id())), "{who}");
    let id = guard.id().to_owned();
    guard.unlock().unwrap();
    assert!(!observer.exists(&id), "unlock must delete the znode before it returns");
}

#[test]
fn request_has_the_data_option() {
    let session = session(server::shared());
    let dir = unique_dir("data");
    let options = LockOptions::new().data(b"nightly backup \xff\x00");
    let lock = BlockingWriteLock::with_options(&session, &dir, options).unwrap();
    let guard = lock.lock().unwrap();
    assert_eq!(Observer::at(server::shared()).data(guard.id()), b"nightly backup \xff\x00");
    let too_much = LockOptions::new().data(vec![0; 1024 * 1024 + 1]);
    let refused = BlockingWriteLock::with_options(&session, &dir, too_much).unwrap().lock();
    assert_eq!(refused.unwrap_err().reason(), ErrorReason::CallTooLong);
}

#[test]
fn largest_accepted_data_is_stored() {
    let session = session(server::shared());
    let dir = unique_dir("large");
    let lock_with = |size| {
        let options = LockOptions::new().data(vec![7; size]);
        let lock = BlockingWriteLock::with_options(&session, &dir, options).unwrap();
        lock.lock().ok().map(|guard| (size, guard))
    };
    let (size, guard) = (0..1024).rev().map(|kib| kib * 1024).find_map(lock_with).unwrap();
    assert_eq!(size, 1022 * 1024, "a KiB is the servers' own, and the call needs less than another");
    assert_eq!(Observer::at(server::shared()).data(guard.id()).len(), size);
}

#[test]
fn fencing_tokens_grow_from_owner_to_owner() {
    let dir = unique_dir("fencing");
    let mut last = 0;
    for _ in 0..5 {
        let session = session(server::shared());
        let lock = BlockingWriteLock::new(&session, &dir).unwrap();
        let guard = lock.lock().unwrap();
        let token = guard.fencing_token().unwrap();
        assert!(token > last);
        last = token;
        guard.unlock().unwrap();
        // In a new directory, the sequence numbers start over, but the tokens keep growing.
        Observer::at(server::shared()).delete(&dir);
    }
}

#[test]
fn with_lock_returns_the_result() {
    let session = session(server::shared());
    let lock = BlockingWriteLock::new(&session, &unique_dir("with")).unwrap();
    let sum = lock.with_lock(|guard| if guard.is_owner() { 40 + 2 } else { 0 }).unwrap();
    assert_eq!(sum, 42);
    assert!(lock.try_lock().unwrap().is_some());
}

/// Returns the znodes below this directory that are watched, each with the number of sessions that watch it.
/// Asserts that nobody watches the directory itself.
fn watched_below(server: &Server, dir: &str) -> BTreeMap<String, usize> {
    let watches = server.four_letter("wchp");
    assert!(!watches.lines().any(|line| line == dir), "{watches}");
    let (mut watched, mut path) = (BTreeMap::new(), "");
    for line in watches.lines() {
        if line.starts_with('/') {
            path = line;
        } else if !line.is_empty() && path.starts_with(&format!("{dir}/")) {
            *watched.entry(path.to_owned()).or_insert(0) += 1;
        }
    }
    watched
}

#[test]
fn waiters_of_many_sessions_are_woken_one_at_a_time() {
    let server = Server::start();
    let sessions: Vec<Session> = (0..20).map(|_| session(&server)).collect();
    let dir = unique_dir("herd");
    let guard = BlockingWriteLock::new(&session(&server), &dir).unwrap().lock().unwrap();
    let waiters = waiters(&sessions, &dir);
    let owners = guard.id().to_owned();
    // Each znode is watched by its own session and by the next two requests behind it.
    let watched = || watched_below(&server, &dir);
    eventually("all watches are set", || watched().values().sum::<usize>() == 21 + 20 + 19);
    assert_eq!(watched()[&owners], 3);
    assert!(watched().values().all(|sessions| *sessions <= 3));
    guard.unlock().unwrap();
    eventually("the first waiter owns the lock", || waiters[0].is_owner());
    assert!(!waiters[1..].iter().any(|lock| lock.is_owner()));
    let left = watched();
    assert!(!left.contains_key(&owners));
    assert_eq!(left.values().sum::<usize>(), 20 + 19 + 18, "only the watches on the released znode may fire");
}

#[test]
fn waiters_of_one_session_share_one_watch_and_are_woken_one_at_a_time() {
    let server = Server::start();
    let dir = unique_dir("herd");
    let guard = BlockingWriteLock::new(&session(&server), &dir).unwrap().lock().unwrap();
    let waiters = waiters(&vec![session(&server); 200], &dir);
    let of_the_next = waiters[0].id().unwrap();
    let watched = || watched_below(&server, &dir).into_keys().collect::<BTreeSet<_>>();
    let expected = BTreeSet::from([guard.id().to_owned(), of_the_next]);
    eventually("the next in line watches the owner's znode and its own", || watched() == expected);
    guard.unlock().unwrap();
    for (turn, waiter) in waiters.iter().enumerate() {
        eventually("the next waiter owns the lock", || waiter.is_owner());
        assert!(!waiters[turn + 1..].iter().any(|lock| lock.is_owner()));
        waiter.unlock().unwrap();
    }
    eventually("no watch is left", || server.watch_count() == 0);
}

fn waiters(sessions: &[Session], dir: &str) -> Vec<WriteLock> {
    let join = |session| {
        let lock = WriteLock::new(session, dir).unwrap();
        assert!(!lock.lock().unwrap());
        lock
    };
    sessions.iter().map(join).collect()
}

#[test]
fn locks_on_different_directories_are_independent() {
    let session = session(server::shared());
    let dir = unique_dir("apart");
    let one = BlockingWriteLock::new(&session, &format!("{dir}/one")).unwrap().lock().unwrap();
    let two = BlockingWriteLock::new(&session, &format!("{dir}/two")).unwrap().lock().unwrap();
    assert!(one.is_owner() && two.is_owner());
}

#[test]
fn children_without_a_sequence_number_are_ignored() {
    let session = session(server::shared());
    let dir = unique_dir("other-children");
    let observer = Observer::at(server::shared());
    observer.create_persistent(&format!("{dir}/config"));
    observer.create_persistent(&format!("{dir}/a-1"));
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn lock_waits_for_requests_of_other_libraries() {
    let session = session(server::shared());
    let dir = unique_dir("peers");
    let observer = Observer::at(server::shared());
    let lock = BlockingWriteLock::new(&session, &dir).unwrap();
    observer.create_persistent(&dir);
    for prefix in ["_c_0b2e-lock-", "00ff__lock__", "x-72057594037927936-", "write-"] {
        let (path, mode) = (format!("{dir}/{prefix}"), CreateMode::EphemeralSequential);
        let theirs = observer.zk().create(&path, b"", &Acl::open_unsafe(), mode).unwrap();
        assert!(lock.try_lock().unwrap().is_none(), "{prefix}");
        observer.delete(&theirs);
        assert!(lock.try_lock_for(scaled(Duration::from_secs(30))).unwrap().is_some(), "{prefix}");
        eventually("our request is deleted", || observer.children(&dir).is_empty());
    }
}

#[test]
fn invalid_path_is_refused_before_anything_is_sent() {
    let session = session(server::shared());
    for path in ["", "relative", "/", "/a/", "/a//b", "/a/../b", "/a\0b", "/a\u{1}"] {
        for error in [
            BlockingWriteLock::new(&session, path).map(drop).unwrap_err(),
            WriteLock::new(&session, path).map(drop).unwrap_err(),
        ] {
            assert_eq!(error.reason(), ErrorReason::InvalidArgument, "{path:?}: {error}");
        }
    }
}

#[test]
fn lock_on_a_closed_session_fails() {
    let session = session(server::shared());
    let lock = BlockingWriteLock::new(&session, &unique_dir("closed")).unwrap();
    let guard = lock.lock().unwrap();
    let token = guard.fencing_token().unwrap();
    session.close();
    session.close();
    assert!(!guard.is_owner());
    assert!(lock.lock().unwrap_err().is_closed());
    assert!(lock.try_lock().unwrap_err().is_closed());
    assert_eq!(guard.fencing_token().unwrap(), token, "the guard must remember its token");
    assert!(guard.unlock().unwrap_err().is_closed());
}

#[test]
fn waiters_that_give_up_leave_no_watch() {
    let server = Server::start();
    let (of_owner, of_waiter) = (session(&server), session(&server));
    let guard = BlockingWriteLock::new(&of_owner, "/locks/a").unwrap().lock().unwrap();
    let waiter = BlockingWriteLock::new(&of_waiter, "/locks/a").unwrap();
    for _ in 0..5 {
        assert!(waiter.try_lock_for(scaled(Duration::from_millis(100))).unwrap().is_none());
    }
    // Only the owner's watch on its own znode remains.
    eventually("the waiters' watches are removed", || server.watch_count() <= 1);
    guard.unlock().unwrap();
    waiter.lock().unwrap().unlock().unwrap();
    eventually("no watch is left", || server.watch_count() == 0);
}

#[test]
fn hold_ends_at_its_limit_and_another_session_acquires() {
    let server = server::shared();
    let (near, far) = (session(server), session(server));
    let dir = unique_dir("limited");
    let limit = Duration::from_secs(1);
    let limited = LockOptions::new().max_hold(limit);
    let lock = BlockingWriteLock::with_options(&near, &dir, limited).unwrap();
    let begun = Instant::now();
    let guard = lock.lock().unwrap();
    assert!(guard.is_owner() && guard.lease_remaining() <= limit);
    let next = BlockingWriteLock::new(&far, &dir).unwrap().lock().unwrap();
    assert!(!guard.is_owner() && next.is_owner(), "two owners at once");
    assert!(begun.elapsed() >= limit);
    assert_eq!(guard.loss(), Some(LossReason::HeldTooLong));
    eventually("the loss is reported", || guard.lost().try_recv() == Ok(LossReason::HeldTooLong));
    assert!(matches!(guard.unlock(), Err(ref error) if error.reason() == ErrorReason::HeldTooLong));
    assert_eq!(near.state(), SessionState::Connected);
    next.unlock().unwrap();
    assert!(lock.try_lock().unwrap().is_some());
}
