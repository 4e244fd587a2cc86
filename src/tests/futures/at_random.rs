//! Tests of futures that are dropped at random moments.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::tests::in_background;

/// Tasks on several threads give up at random moments.
#[test]
fn one_owner_at_a_time_and_nothing_left_when_futures_are_dropped_at_random() {
    begin();
    let server = SimulatedZooKeeper::new();
    server.create(DIR, b"");
    let owners = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let (server, owners) = (server.clone(), Arc::clone(&owners));
            in_background(move || {
                let session = server.connect(LONG).open_session().unwrap();
                let lock = BlockingWriteLock::new(&session, DIR).unwrap();
                let mut random = fastrand::Rng::with_seed(seed);
                let acquired = (1..=200).filter(|number| match number % 20 {
                    0 => owns(&owners, block_on(lock.lock_async())),
                    _ => acquires(&lock, &owners, &mut random),
                });
                let acquired = acquired.count();
                drop(lock);
                session.close();
                acquired
            })
        })
        .collect();
    let acquired: usize = threads.iter().map(next).sum();
    assert!(acquired >= 40, "{acquired}");
    eventually("nothing is left", || server.children(DIR).is_empty() && server.watch_count() == 0);
}

fn owns(owners: &AtomicUsize, guard: Result<LockGuard, LockError>) -> bool {
    let guard = guard.unwrap();
    assert!(guard.is_owner());
    assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two owners at once");
    thread::yield_now();
    owners.fetch_sub(1, Ordering::SeqCst);
    true
}

/// Polls a future a few times. Returns whether it has acquired the lock.
fn acquires(lock: &BlockingWriteLock, owners: &AtomicUsize, random: &mut fastrand::Rng) -> bool {
    let woken = Arc::new(Woken::default());
    let mut future: Locking = Box::pin(lock.lock_async());
    for _ in 0..random.usize(0..60) {
        if let Poll::Ready(guard) = poll(&mut future, &woken) {
            return owns(owners, guard);
        }
        // Let other threads and the server run in between.
        thread::yield_now();
        if random.u8(0..16) == 0 {
            future = Box::pin(lock.lock_async());
        }
    }
    false
}
