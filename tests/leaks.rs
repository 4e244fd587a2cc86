//! Tests that no thread, znode or watch is left when everything has been dropped. This is a separate binary
//! because it inspects the whole process.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the failure report"
)]

mod support;

use std::alloc::System;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::leaks::{assert_no_threads, threads_named};
use support::relay::Relay;
use support::server::{Server, ServerOptions};
use support::wait::{deadline, eventually, holds_within};
use zookeeper_recipes_lock::data::NodeTracker;
use zookeeper_recipes_lock::locks::{Permit, Semaphore};
use zookeeper_recipes_lock::queue::{LockDirectory, Revocation, Revoker};
use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Leadership, Session, Wait, WriteLock};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const LONG: Duration = Duration::from_secs(30);

/// The session timeout where memory is counted: a session's timer keeps scheduled jobs until they are due,
/// for up to a session timeout.
const BRIEF: Duration = Duration::from_secs(10);

/// The number of repetitions of calls that must leave nothing behind.
const TIMES: usize = 1000;

/// The number of rounds of such calls. Only growth in every round counts as a leak.
const ROUNDS: usize = 3;

/// How many bytes the memory may grow by, regardless of the number of calls, for example because of queues.
const CONSTANT: usize = 24 << 10;

/// This is a single test, so no threads of other tests run at the same time.
#[test]
fn nothing_is_left_after_everything_is_dropped() {
    // Without this flag, the server would delete the empty directories of the locks after a while.
    let jvm_flags = vec![format!("-Dznode.container.checkIntervalMs={}", i32::MAX)];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    let znodes = server.metric("znode_count");
    closed_session_keeps_no_descriptor(&server);
    waiting_locks_and_trackers_need_two_threads(&server);
    timed_out_attempts_leave_no_watch(&server);
    permits_leave_nothing(&server);
    timed_out_attempts_on_a_full_semaphore_leave_nothing(&server);
    session_lost_in_silence_leaves_no_thread(&server);
    dropped_candidate_leaves_no_thread(&server);
    revocation_leaves_no_thread(&server);
    failed_connect_leaves_no_thread(&server);
    attempts_without_a_wait_cost_no_other_lock_and_no_memory(&server);
    // These are the directories of the three locks, the semaphore's three directories, and their common
    // parent.
    eventually("only directories are left", || server.metric("znode_count") == znodes + 7);
    eventually("no session is left", || server.session_count() == 0);
    eventually("no watch is left", || server.watch_count() == 0);
}

fn waiting_locks_and_trackers_need_two_threads(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let locks: Vec<WriteLock> = (0..1000)
        .map(|_| {
            let lock = WriteLock::new(&session, "/leaks/queue").unwrap();
            lock.lock().unwrap();
            lock
        })
        .collect();
    assert!(locks[0].is_owner());
    let directory = LockDirectory::new(&session, "/leaks/queue").unwrap();
    let (leader, queue) =
        (directory.watch_leader(Wait::forever()).unwrap(), directory.watch_queue(Wait::forever()).unwrap());
    let trackers: Vec<NodeTracker> = (0..1000)
        .map(|number| NodeTracker::start(&session, &format!("/leaks/{number}"), Wait::forever()).unwrap())
        .collect();
    assert_two_threads();
    drop(locks);
    // Each of the trackers keeps the session open.
    drop((session, directory, leader, queue));
    drop(trackers);
    assert_no_threads("zk-");
}

/// Asserts that only the threads of the socket and of the clock are left. Other threads end after some idle
/// time.
fn assert_two_threads() {
    eventually("two threads are left", || threads_named("zk-").len() == 2);
}

fn timed_out_attempts_leave_no_watch(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
    let guard = lock.lock().unwrap();
    for _ in 0..100 {
        assert!(lock.try_lock_for(Duration::from_millis(1)).unwrap().is_none());
    }
    eventually("the attempts' znodes are gone", || server.metric("ephemerals_count") == 1);
    // This is the watch on the owner's znode. The owner and the waiters share it, because there is one watch
    // for each path and session.
    eventually("one watch is left", || server.watch_count() <= 1);
    guard.unlock().unwrap();
}

fn permits_leave_nothing(server: &Server) {
    let session = Session::connect(&server.connect_string(), BRIEF).unwrap();
    let semaphore = Semaphore::new(&session, "/leaks/semaphore", 3).unwrap();
    assert_no_growth(server, 0, || {
        semaphore.acquire().unwrap().release().unwrap();
    });
    eventually("no watch is left", || server.watch_count() == 0);
    drop((session, semaphore));
    assert_no_threads("zk-");
}

fn timed_out_attempts_on_a_full_semaphore_leave_nothing(server: &Server) {
    let connect = || {
        let session = Session::connect(&server.connect_string(), BRIEF).unwrap();
        Semaphore::new(&session, "/leaks/semaphore", 3).unwrap()
    };
    let (holder, semaphore) = (connect(), connect());
    let held: Vec<Permit> = (0..3).map(|_| holder.acquire().unwrap()).collect();
    let attempt = || assert!(semaphore.try_acquire_for(Duration::from_millis(4)).unwrap().is_none());
    assert_no_growth(server, 3, attempt);
    // Behind another waiter, the attempts wait for their turn.
    let first = connect();
    let waiter = thread::spawn(move || first.acquire().map(drop));
    eventually("another waiter is ahead", || server.metric("ephemerals_count") == 5);
    assert_no_growth(server, 5, attempt);
    // These are the holders' watches on the permits and the turn, and the waiter's watch.
    eventually("no watch of an attempt is left", || server.watch_count() <= 5);
    drop(held);
    waiter.join().unwrap().unwrap();
    drop((holder, semaphore));
    assert_no_threads("zk-");
}

/// Repeats a call while others have this many ephemeral znodes, and checks that the memory in use does not grow with
/// the number of calls.
fn assert_no_growth(server: &Server, ephemerals: usize, call: impl Fn()) {
    // Deletions finish in the background.
    let await_deletions = || {
        eventually("the znodes of the calls are gone", || server.metric("ephemerals_count") == ephemerals);
    };
    // Make only a few calls first, because their deletions also free memory later.
    (0..10).for_each(|_| call());
    await_deletions();
    // On a busy machine, queues may grow for many calls at once, and then keep their capacity. A leak grows
    // in every round.
    for _ in 0..ROUNDS {
        let region = Region::new(ALLOCATOR);
        (0..TIMES).for_each(|_| call());
        await_deletions();
        let freed = || {
            let change = region.change();
            change.bytes_allocated <= change.bytes_deallocated + CONSTANT
        };
        if holds_within(LONG + LONG / 2, freed) {
            return;
        }
        println!("more memory is in use: {:?}", region.change());
    }
    panic!("the memory of the calls is not freed");
}

fn session_lost_in_silence_leaves_no_thread(server: &Server) {
    let relay = Relay::to(server.connect_string());
    let session = Session::connect(&relay.connect_string(), Duration::from_secs(2)).unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
    let guard = lock.lock().unwrap();
    relay.swallow();
    guard.lost().recv_timeout(deadline()).unwrap();
    drop(guard);
    drop(lock);
    drop(session);
    // A stuck call keeps its thread until the network reports the loss.
    relay.cut();
    assert_no_threads("zk-");
}

fn dropped_candidate_leaves_no_thread(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let candidates: Vec<Candidate> = (0..3)
        .map(|_| {
            let lock = BlockingWriteLock::new(&session, "/leaks/queue").unwrap();
            let lead = |leadership: &Leadership| {
                while leadership.wait(LONG) {}
                Ok(())
            };
            Candidate::start(lock, lead).unwrap()
        })
        .collect();
    eventually("there is a leader", || candidates.iter().any(Candidate::is_leader));
    drop(session);
    drop(candidates);
    assert_no_threads("zk-");
}

fn revocation_leaves_no_thread(server: &Server) {
    let session = Session::connect(&server.connect_string(), LONG).unwrap();
    let guard = BlockingWriteLock::new(&session, "/leaks/queue").unwrap().lock().unwrap();
    let revoker = Revoker::new(&session);
    assert_eq!(revoker.force_revocation_after(guard.id(), Duration::ZERO).unwrap(), Revocation::Forced);
    drop((guard, revoker, session));
    assert_no_threads("zk-");
}

/// This must hold even if a lock or a guard lives on.
fn closed_session_keeps_no_descriptor(server: &Server) {
    let descriptors = || fs::read_dir("/proc/self/fd").map(Iterator::count);
    let Ok(before) = descriptors() else { return };
    let held: Vec<_> = (0..5)
        .map(|_| {
            let session = Session::connect(&server.connect_string(), LONG).unwrap();
            let guard = BlockingWriteLock::new(&session, "/leaks/queue").unwrap().lock().unwrap();
            session.close();
            guard
        })
        .collect();
    eventually("all descriptors are closed", || descriptors().is_ok_and(|count| count <= before));
    drop(held);
    assert_no_threads("zk-");
}

fn failed_connect_leaves_no_thread(server: &Server) {
    let relay = Relay::to(server.connect_string());
    relay.refuse();
    Session::connect(&relay.connect_string(), Duration::from_secs(1)).unwrap_err();
    relay.restore();
    relay.swallow();
    Session::connect(&relay.connect_string(), Duration::from_secs(1)).unwrap_err();
    relay.cut();
    assert_no_threads("zk-");
}

/// Threads that try without waiting make requests faster than a server answers them. The keep-alives of
/// another lock on their session must not queue up behind all of these requests, and nothing may pile up.
fn attempts_without_a_wait_cost_no_other_lock_and_no_memory(server: &Server) {
    /// This is long enough for a busy machine, because only the server determines how late a keep-alive is.
    const TIMEOUT: Duration = Duration::from_secs(12);
    /// A window of calls keeps the growth at 2 MB. Without a window it was 5 MB when the lock was lost.
    const MEMORY: usize = 4 << 20;
    // Half a second is the server's tick.
    let builder = || Session::builder(server.connect_string()).max_tick(Duration::from_millis(500));
    let connect = || builder().session_timeout(TIMEOUT).connect().unwrap();
    let (busy, session) = (connect(), connect());
    let _taken = BlockingWriteLock::new(&busy, "/leaks/taken").unwrap().lock().unwrap();
    let held = BlockingWriteLock::new(&session, "/leaks/own").unwrap().lock().unwrap();
    let lock = BlockingWriteLock::new(&session, "/leaks/taken").unwrap();
    let (stop, region) = (AtomicBool::new(false), Region::new(ALLOCATOR));
    let (least, most) = thread::scope(|scope| {
        for wait in [Duration::ZERO; 2].into_iter().chain([Duration::from_millis(1); 8]) {
            let (lock, stop) = (&lock, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(lock.try_lock_for(wait).unwrap().is_none(), "the lock must be held");
                }
            });
        }
        // Wait until the lease has settled: just after an acquisition, the lease is proven by earlier pings.
        let begun = Instant::now();
        let (settled, end) = (begun + TIMEOUT / 2, begun + TIMEOUT * 5 / 4);
        let (mut least, mut most) = (TIMEOUT, 0);
        while Instant::now() < end && held.is_owner() {
            if settled < Instant::now() {
                least = least.min(held.lease_remaining());
            }
            let change = region.change();
            most = most.max(change.bytes_allocated.saturating_sub(change.bytes_deallocated));
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        (least, most)
    });
    println!("at least {least:?} of the lease, {most} bytes more at most");
    assert!(held.is_owner(), "{:?}", held.loss());
    // In contact, at least 9/16 of the session timeout is left, minus a round trip. The margin below that is
    // for a slow machine.
    assert!(least > TIMEOUT / 3, "{least:?}");
    assert!(most < MEMORY, "{most} bytes");
}
