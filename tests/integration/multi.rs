//! Tests of several locks held at once, on a real server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::locks::MultiLock;
use zookeeper_recipes_lock::{BlockingWriteLock, LockOptions, LossReason};

use crate::fixtures::{Observer, next, session, unique_dir};
use crate::support::server;
use crate::support::wait::{deadline, scaled};

fn dirs(test: &str) -> [String; 3] {
    let dir = unique_dir(test);
    ["a", "b", "c"].map(|name| format!("{dir}/{name}"))
}

/// Dining philosophers: each needs two of three forks and names them in a different order.
#[test]
fn overlapping_sets_never_deadlock() {
    const ROUNDS: usize = 15;
    let dirs = dirs("philosophers");
    let pairs = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 0], [0, 2]];
    let holders = [(); 3].map(|()| AtomicUsize::new(0));
    let sessions = [session(server::shared()), session(server::shared())];
    thread::scope(|scope| {
        for (number, pair) in pairs.iter().enumerate() {
            let (dirs, holders, session) = (&dirs, &holders, &sessions[number % 2]);
            scope.spawn(move || {
                let lock = MultiLock::new(session, pair.map(|index| &dirs[index])).unwrap();
                for _ in 0..ROUNDS {
                    let guard = lock.try_lock_for(deadline()).unwrap().expect("the sets must not deadlock");
                    for index in pair {
                        assert_eq!(
                            holders[*index].fetch_add(1, Ordering::SeqCst),
                            0,
                            "two philosophers hold the same fork"
                        );
                    }
                    assert!(guard.is_owner());
                    for index in pair {
                        holders[*index].fetch_sub(1, Ordering::SeqCst);
                    }
                    if number % 2 == 0 { assert!(guard.unlock().is_ok()) } else { drop(guard) }
                }
            });
        }
    });
    let observer = Observer::at(server::shared());
    dirs.iter().for_each(|dir| observer.await_children(dir, 0));
}

#[test]
fn set_contends_with_a_lock_on_one_of_its_directories() {
    let dirs = dirs("one-of-several");
    let observer = Observer::at(server::shared());
    let (ours, theirs) = (session(server::shared()), session(server::shared()));
    let several = MultiLock::new(&ours, &dirs).unwrap();
    let one = BlockingWriteLock::new(&theirs, &dirs[1]).unwrap();
    let held = one.lock().unwrap();
    assert!(several.try_lock().unwrap().is_none());
    let start = Instant::now();
    assert!(several.try_lock_for(Duration::from_millis(200)).unwrap().is_none());
    assert!((Duration::from_millis(200)..scaled(Duration::from_secs(10))).contains(&start.elapsed()));
    observer.await_children(&dirs[0], 0);
    held.unlock().unwrap();
    let guard = several.lock().unwrap();
    assert!(one.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert!(one.try_lock().unwrap().is_some());
}

#[test]
fn multi_guard_has_its_guards_and_tokens() {
    let dirs = dirs("several-guards");
    let observer = Observer::at(server::shared());
    let session = session(server::shared());
    let options = LockOptions::new().data("who");
    let lock = MultiLock::with_options(&session, dirs.iter().rev(), options).unwrap();
    let guard = lock.lock().unwrap();
    let tokens: Vec<_> = guard.guards().iter().map(|held| held.fencing_token().unwrap()).collect();
    for ((held, token), dir) in guard.guards().iter().zip(&tokens).zip(&dirs) {
        assert!(held.id().starts_with(&format!("{dir}/x-")), "{}", held.id());
        let stat = observer.zk().exists(held.id()).unwrap().unwrap();
        assert_eq!(stat.czxid, *token);
        assert_eq!(observer.data(held.id()), b"who");
    }
    assert!(tokens.is_sorted());
    observer.delete(guard.guards()[2].id());
    assert_eq!(next(guard.lost()), LossReason::NodeDeleted);
    assert!(!guard.is_owner());
}
