//! Tests of futures that complete when a lock is lost.

use super::*;
use crate::locks::MultiLock;

/// Longer than the time from an acquisition until the owner watches its znode.
const UNTIL_WATCHED: Duration = Duration::from_secs(1);

#[test]
fn loss_completes_all_futures_that_wait_and_stays_in_the_channel() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    // All futures belong to one task, so they have the same waker.
    let woken = Arc::new(Woken::default());
    let mut futures = [(); 3].map(|()| Box::pin(guard.lost_async()));
    futures.iter_mut().for_each(|future| assert!(poll(future, &woken).is_pending()));
    let [dropped, one, other] = futures;
    drop(dropped);
    fixture.client.expire();
    eventually("the task is woken for each future", || woken.times() == 2);
    woken.assert_on_callback_threads("a loss");
    for future in [one, other] {
        assert_eq!(block_on(future), LossReason::SessionLost);
    }
    assert_eq!(next(guard.lost()), LossReason::SessionLost);
    assert_eq!(block_on(guard.lost_async()), LossReason::SessionLost);
}

#[test]
fn end_of_the_lease_is_a_loss() {
    let server = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let woken = Arc::new(Woken::default());
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    client.disconnect();
    runtime.advance(LONG);
    assert!(woken.times() > 0);
    assert_eq!(poll(&mut lost, &woken), Poll::Ready(LossReason::LeaseExpired));
}

/// The timer's thread detects the end of the lease.
#[test]
fn end_of_the_lease_wakes_on_a_callback_thread() {
    begin();
    let server = SimulatedZooKeeper::new();
    let client = server.connect(Duration::from_secs(3));
    let session = client.open_session().unwrap();
    let lock = BlockingWriteLock::new(&session, DIR).unwrap();
    let guard = lock.lock().unwrap();
    let woken = Arc::new(Woken::default());
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    client.disconnect();
    eventually("the task is woken", || woken.times() > 0);
    woken.assert_on_callback_threads("the end of a lease");
    assert_eq!(block_on(lost), LossReason::LeaseExpired);
}

#[test]
fn loss_of_one_of_several_locks_completes_its_own_future_only() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let guard = MultiLock::new(&session, ["/a", "/b"]).unwrap().lock().unwrap();
    runtime.advance(UNTIL_WATCHED);
    let [one, other] = guard.guards() else { panic!("two locks") };
    let woken = Arc::new(Woken::default());
    let (mut of_one, mut of_other) = (Box::pin(one.lost_async()), Box::pin(other.lost_async()));
    assert!(poll(&mut of_one, &woken).is_pending() && poll(&mut of_other, &woken).is_pending());
    server.delete(one.id());
    assert_eq!(poll(&mut of_one, &woken), Poll::Ready(LossReason::NodeDeleted));
    assert!(poll(&mut of_other, &woken).is_pending());
    let before = woken.times();
    server.delete(other.id());
    assert_eq!(woken.times(), before + 1);
    assert_eq!(poll(&mut of_other, &woken), Poll::Ready(LossReason::NodeDeleted));
}
