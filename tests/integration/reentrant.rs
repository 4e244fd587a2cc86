//! Tests of reentrant locks on a real server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use zookeeper_recipes_lock::locks::ReentrantLock;
use zookeeper_recipes_lock::{BlockingWriteLock, Session};

use crate::fixtures::{Observer, session, unique_dir};
use crate::support::server;

fn reentrant(session: &Session, dir: &str) -> ReentrantLock {
    ReentrantLock::new(BlockingWriteLock::new(session, dir).unwrap())
}

/// Locks to this depth. Returns the number of other threads at the innermost level.
fn descend(lock: &ReentrantLock, depth: usize, inside: &AtomicUsize) -> usize {
    let guard = lock.lock().unwrap();
    assert!(guard.is_owner());
    if depth > 0 {
        return descend(lock, depth - 1, inside);
    }
    let before = inside.fetch_add(1, Ordering::SeqCst);
    thread::yield_now();
    inside.fetch_sub(1, Ordering::SeqCst);
    before
}

#[test]
fn threads_and_sessions_exclude_each_other_at_every_depth() {
    let dir = unique_dir("reentrant");
    let sessions = [session(server::shared()), session(server::shared())];
    let locks = sessions.each_ref().map(|session| reentrant(session, &dir));
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..6 {
            let (lock, inside) = (&locks[number % 2], &inside);
            scope.spawn(move || {
                for round in 0..10 {
                    assert_eq!(descend(lock, round % 4, inside), 0, "two owners at once");
                }
            });
        }
    });
    Observer::at(server::shared()).await_children(&dir, 0);
}

#[test]
fn all_holds_share_one_znode_until_the_last_ends() {
    let dir = unique_dir("reentrant-holds");
    let observer = Observer::at(server::shared());
    let session = session(server::shared());
    let lock = reentrant(&session, &dir);
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    assert_eq!(observer.children(&dir).len(), 1);
    assert_eq!(outer.fencing_token().unwrap(), inner.fencing_token().unwrap());
    outer.unlock().unwrap();
    assert!(inner.is_owner() && observer.exists(inner.id()));
    inner.unlock().unwrap();
    assert!(observer.children(&dir).is_empty());
}
