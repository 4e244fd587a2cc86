//! Tests of what happens when a directory runs out of sequence numbers. The server starts with a directory whose
//! counter is close to its end.

use std::thread;
use std::time::Instant;

use zookeeper_recipes_lock::{ErrorKind, ErrorReason, WriteLock, ZNodeName};

use crate::fixtures::{Observer, session};
use crate::support::counter;
use crate::support::server::Server;
use crate::support::wait::deadline;

#[test]
fn at_most_one_owner_at_the_end_of_the_counter() {
    let dir = "/counter-end";
    let server = server_that_counted_to(i32::MAX - 4, dir);
    let session = session(&server);
    let locks: Vec<WriteLock> = (0..16).map(|_| WriteLock::new(&session, dir).unwrap()).collect();
    let (mut numbers, mut owned_beyond) = (Vec::new(), 0);
    let begun = Instant::now();
    for round in 0.. {
        // The first request joins alone, so it may already own the lock when the others join.
        numbers.extend(join_at_once(&locks[..1]));
        numbers.extend(join_at_once(&locks));
        let owner = assert_one_owner_at_most(&locks);
        owned_beyond += usize::from(owner.is_some_and(|owner| is_beyond_the_order(&owner)));
        if round >= 10 && owned_beyond >= 5 && are_mixed(&numbers) {
            break;
        }
        assert!(begun.elapsed() < deadline(), "{owned_beyond} owners, numbers: {numbers:?}");
        for lock in locks.iter().filter(|lock| lock.is_owner()) {
            lock.unlock().unwrap();
        }
    }
    println!("{owned_beyond} owners, numbers: {numbers:?}");
    assert!(numbers.contains(&(i32::MAX - 1)), "the next-to-last number must be assigned");

    for lock in &locks {
        lock.unlock().unwrap();
    }
    let observer = Observer::at(&server);
    observer.await_children(dir, 0);
    assert!(locks[0].lock().unwrap(), "a lone request must own the lock");
    locks[0].unlock().unwrap();
    observer.delete(dir);
    assert!(locks[0].lock().unwrap());
    assert_eq!(number_of(&locks[0].id().unwrap()), 0, "a new directory must count from 0");
}

/// Makes all locks without a request join the queue at once. Returns the numbers of their requests, including
/// requests that failed.
fn join_at_once(locks: &[WriteLock]) -> Vec<i32> {
    thread::scope(|scope| {
        let idle = locks.iter().filter(|lock| lock.id().is_none());
        let joining: Vec<_> = idle.map(|lock| scope.spawn(|| join(lock, locks))).collect();
        joining.into_iter().filter_map(|joined| joined.join().unwrap()).collect()
    })
}

fn join(lock: &WriteLock, all: &[WriteLock]) -> Option<i32> {
    match lock.lock() {
        Ok(is_owner) => {
            if is_owner {
                assert_one_owner_at_most(all);
            }
            lock.id().map(|id| number_of(&id))
        }
        Err(error) if error.reason() == ErrorReason::SequenceExhausted => {
            assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
            error.path().map(number_of)
        }
        Err(error) => panic!("{error}"),
    }
}

/// Asserts that at most one of the locks is owned. Returns the owner's znode.
#[track_caller]
fn assert_one_owner_at_most(locks: &[WriteLock]) -> Option<String> {
    let mut owners: Vec<_> =
        locks.iter().filter(|lock| lock.is_owner()).filter_map(|lock| lock.id()).collect();
    assert!(owners.len() <= 1, "{owners:?} own the lock at the same time");
    owners.pop()
}

fn is_beyond_the_order(path: &str) -> bool {
    let number = number_of(path);
    number == i32::MAX || number < 0
}

/// Returns whether the server assigned the last number more than once and also assigned wrapped numbers.
fn are_mixed(numbers: &[i32]) -> bool {
    let wrapped = numbers.iter().any(|number| *number < 0);
    wrapped && numbers.iter().filter(|number| **number == i32::MAX).count() > 1
}

fn number_of(path: &str) -> i32 {
    ZNodeName::new(path).sequence().unwrap()
}

/// Starts a server with a directory in which `next` is the next sequence number.
fn server_that_counted_to(next: i32, dir: &str) -> Server {
    let server = Server::start();
    Observer::at(&server).create_persistent(dir);
    counter::advance(&server, dir, next);
    let observer = Observer::at(&server);
    observer.delete(&format!("{dir}/last"));
    // `cversion` is the number of creations plus the number of deletions, which are equal here.
    let stat = observer.zk().exists(dir).unwrap().unwrap();
    assert_eq!(stat.cversion, next.wrapping_mul(2), "the server must have read its log");
    server
}
