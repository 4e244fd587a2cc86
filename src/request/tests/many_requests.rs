//! Tests of many requests on one session.

use super::*;
use crate::recipe::path::ZNodePath;

const WAITERS: usize = 200;

#[test]
fn an_owner_keeps_its_lock_while_every_worker_is_busy() {
    let zk = SimulatedZooKeeper::new();
    let timeout = Duration::from_secs(5);
    let fixture = Fixture::join_for(&zk, timeout);
    let guard = fixture.blocking().lock().unwrap();
    let (release, stuck) = crossbeam_channel::bounded::<()>(0);
    for _ in 0..100 {
        let stuck = stuck.clone();
        fixture.session.core().run_job(move |_| assert!(stuck.recv().is_err()));
    }
    let until = Instant::now() + timeout * 3 / 2;
    eventually("the session would have expired without keep-alives", || {
        assert!(guard.is_owner());
        Instant::now() >= until
    });
    drop(release);
}

#[test]
fn waiters_of_one_directory_share_a_listing_after_a_reconnect() {
    let zk = SimulatedZooKeeper::new();
    let ahead = zk.create_sequential(DIR, "x-ahead-lock-", None);
    let fixture = Fixture::join(&zk);
    let locks = waiting(&fixture);
    fixture.client.disconnect();
    zk.clear_log();
    fixture.client.reconnect();
    // The predecessors of the other waiters belong to this session and need no watch.
    eventually("the first waiter watches its predecessor and its own znode", || zk.watch_count() == 2);
    eventually("the others share the second listing", || zk.calls(SimOperation::GetChildren) == 2);
    each_acquires_after(&zk, &ahead, &locks);
    assert_eq!(zk.calls(SimOperation::GetChildren), 2);
}

#[test]
fn waiters_of_one_directory_share_a_listing_that_another_is_reading() {
    let zk = SimulatedZooKeeper::new();
    let ahead = zk.create_sequential(DIR, "x-ahead-lock-", None);
    let fixture = Fixture::join(&zk);
    let locks = waiting(&fixture);
    fixture.client.disconnect();
    zk.clear_log();
    // Let one waiter list the queue before the others have asked for a listing.
    let (release, held) = crossbeam_channel::bounded::<()>(0);
    let (begin, begun) = crossbeam_channel::bounded::<()>(0);
    fixture.client.before_next(SimOperation::GetChildren, move || {
        drop(begin);
        assert!(held.recv().is_err());
    });
    fixture.client.reconnect();
    // From now on, other waiters that ask for a listing are counted as readers of the next listing.
    assert!(begun.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
    let (core, dir) = (fixture.session.core(), ZNodePath::parse(DIR).unwrap());
    eventually("the others have asked", || core.readers(&dir) == WAITERS - 2);
    drop(release);
    eventually("every waiter has a listing", || {
        zk.calls(SimOperation::GetChildren) == 2 && core.readers(&dir) == 0
    });
    eventually("the first waiter watches its predecessor and its own znode", || zk.watch_count() == 2);
    each_acquires_after(&zk, &ahead, &locks);
}

fn waiting(fixture: &Fixture) -> Vec<(WriteLock, Receiver<Call>)> {
    let locks: Vec<_> = (0..WAITERS).map(|_| fixture.listening()).collect();
    for (lock, _) in &locks {
        assert!(!lock.lock().unwrap());
    }
    locks
}

fn each_acquires_after(zk: &SimulatedZooKeeper, ahead: &str, locks: &[(WriteLock, Receiver<Call>)]) {
    zk.delete(ahead);
    for (lock, calls) in locks {
        assert_eq!(next(calls), Call::Acquired);
        lock.unlock().unwrap();
    }
}
