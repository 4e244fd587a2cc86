//! Tests of what happens when a directory runs out of sequence numbers. The server starts with a directory whose
//! counter is close to its end.

use std::fs;
use std::thread;
use std::time::Instant;

use zookeeper_recipes_lock::{ErrorKind, ErrorReason, WriteLock, ZNodeName};

use crate::fixtures::{Observer, session};
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

// ---- a server with a high counter

/// Starts a server with a directory in which `next` is the next sequence number.
///
/// A test cannot create two billion children. Instead, it writes into the server's log a transaction that sets the
/// counter.
fn server_that_counted_to(next: i32, dir: &str) -> Server {
    let server = Server::start();
    let observer = Observer::at(&server);
    observer.create_persistent(dir);
    // This is the next number after the last transaction in the server's own log.
    let zxid = server.zxid() + 1;
    server.stop();
    let log = server.dir().join(format!("data/version-2/log.{zxid:x}"));
    fs::write(log, log_of_a_create(zxid, &format!("{dir}/last"), next)).unwrap();
    server.restart();
    let observer = Observer::at(&server);
    observer.delete(&format!("{dir}/last"));
    // `cversion` is the number of creations plus the number of deletions, which are equal here.
    let stat = observer.zk().exists(dir).unwrap().unwrap();
    assert_eq!(stat.cversion, next.wrapping_mul(2), "the server must have read its log");
    server
}

/// Returns a transaction log in the format of ZooKeeper's `FileTxnLog`. Its only transaction is a create that
/// sets the parent's counter to `cversion`.
fn log_of_a_create(zxid: i64, path: &str, cversion: i32) -> Vec<u8> {
    const CREATE: i32 = 1;
    let mut entry = Vec::new();
    // The header: session, request, transaction, time, type.
    entry.extend(0_i64.to_be_bytes());
    entry.extend(0_i32.to_be_bytes());
    entry.extend(zxid.to_be_bytes());
    entry.extend(0_i64.to_be_bytes());
    entry.extend(CREATE.to_be_bytes());
    // The transaction: path, data, the ACL (all permissions for everyone), whether the znode is ephemeral, the
    // parent's counter.
    push_text(&mut entry, path);
    push_text(&mut entry, "");
    entry.extend(1_i32.to_be_bytes());
    entry.extend(31_i32.to_be_bytes());
    push_text(&mut entry, "world");
    push_text(&mut entry, "anyone");
    entry.push(0);
    entry.extend(cversion.to_be_bytes());

    let mut log = b"ZKLG".to_vec();
    // The format version and the id of the database.
    log.extend(2_i32.to_be_bytes());
    log.extend(0_i64.to_be_bytes());
    log.extend(i64::from(adler32(&entry)).to_be_bytes());
    log.extend(i32::try_from(entry.len()).unwrap().to_be_bytes());
    log.extend(entry);
    log.push(b'B');
    log
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(i32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
}

/// Returns the checksum of RFC 1950.
fn adler32(bytes: &[u8]) -> u32 {
    const BASE: u32 = 65_521;
    let (sum, sums) = bytes.iter().fold((1, 0), |(sum, sums), byte| {
        let sum = (sum + u32::from(*byte)) % BASE;
        (sum, (sums + sum) % BASE)
    });
    (sums << 16) | sum
}
