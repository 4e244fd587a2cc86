//! Tests of the futures of the other kinds of locks, and of the future that completes when a candidate ends.

use crate::error::ErrorReason;
use crossbeam_channel::unbounded;

use super::*;
use crate::Candidate;
use crate::locks::{ReadWriteLock, Semaphore};
use crate::tests::{await_replacement, in_background, replacing_session};

#[test]
fn readers_share_and_a_writer_waits() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = server.connect(LONG).open_session().unwrap();
    let lock = ReadWriteLock::new(&session, DIR).unwrap();
    let (one, other) = (block_on(lock.read_async()).unwrap(), block_on(lock.read_async()).unwrap());
    let woken = Arc::new(Woken::default());
    let mut writing = Box::pin(lock.write_async());
    assert!(poll(&mut writing, &woken).is_pending());
    drop(one);
    eventually("both requests are in the queue", || server.children(DIR).len() == 2);
    assert!(poll(&mut writing, &woken).is_pending());
    drop(other);
    assert!(block_on(writing).unwrap().is_owner());
}

#[test]
fn permit_that_is_awaited_in_either_queue_leaves_nothing_when_it_is_dropped() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = server.connect(LONG).open_session().unwrap();
    let semaphore = Semaphore::new(&session, "/jobs", 2).unwrap();
    let held = [(); 2].map(|()| block_on(semaphore.acquire_async()).unwrap());
    let woken = Arc::new(Woken::default());
    let (mut first, mut second) = (Box::pin(semaphore.acquire_async()), Box::pin(semaphore.acquire_async()));
    let waits = |queue: &str, count: usize| server.children(&format!("/jobs/{queue}")).len() == count;
    eventually("the first waits for a permit", || {
        assert!(poll(&mut first, &woken).is_pending());
        waits("leases", 3)
    });
    assert!(poll(&mut second, &woken).is_pending());
    eventually("the second waits for its turn", || waits("locks", 2));
    drop(second);
    eventually("the second request has left", || waits("locks", 1));
    drop(first);
    eventually("both requests have left", || waits("locks", 0) && waits("leases", 2));
    drop(held);
    let permit = block_on(semaphore.acquire_async()).unwrap();
    let mut lost = Box::pin(permit.lost_async());
    assert!(permit.is_owner() && poll(&mut lost, &woken).is_pending());
    server.delete(permit.id());
    assert_eq!(block_on(lost), LossReason::NodeDeleted);
}

#[test]
fn wait_for_a_permit_begins_again_on_the_session_that_replaces_a_lost_one() {
    let server = SimulatedZooKeeper::new();
    let (session, clients) = replacing_session(&server, LONG);
    let semaphore = Semaphore::new(&session, "/jobs", 1).unwrap();
    let occupied = server.create_sequential("/jobs/leases", "other-lease-", None);
    let outcome = in_background({
        let future = semaphore.acquire_async();
        move || block_on(future)
    });
    let waits = || server.children("/jobs/leases").len() == 2;
    for _ in 0..2 {
        eventually("the request waits for a permit", waits);
        await_replacement(&session, || next(&clients).expire());
    }
    eventually("the request waits for a permit", waits);
    server.delete(&occupied);
    assert!(next(&outcome).unwrap().is_owner());
}

#[test]
fn end_of_a_candidate_wakes_on_a_callback_thread() {
    begin();
    let server = SimulatedZooKeeper::new();
    let session = server.connect(LONG).open_session().unwrap();
    let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, DIR).unwrap()).unwrap();
    assert!(candidate.wait_until_leader(deadline()).is_some());
    let woken = Arc::new(Woken::default());
    let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(candidate.ended_async());
    assert!(poll(&mut ended, &woken).is_pending());
    candidate.stop();
    eventually("the task is woken", || woken.times() == 1);
    woken.assert_on_callback_threads("the end of a candidate");
    assert!(poll(&mut ended, &woken).is_ready());
    block_on(candidate.ended_async());
}

#[test]
fn end_of_a_candidate_whose_thread_panics_outside_the_closure_wakes_too() {
    let server = SimulatedZooKeeper::new();
    let (_client, runtime, session) = open_on_manual_runtime(&server, LONG);
    server.create_sequential(DIR, "x-other-lock-", None);
    let (go, may_go) = unbounded::<()>();
    // This runs on the candidate's thread, which waits to be elected.
    runtime.while_waiting(move || {
        let _ = may_go.recv_timeout(deadline());
        std::panic::resume_unwind(Box::new("on purpose"))
    });
    let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, DIR).unwrap()).unwrap();
    let woken = Arc::new(Woken::default());
    let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(candidate.ended_async());
    assert!(poll(&mut ended, &woken).is_pending());
    go.send(()).unwrap();
    eventually("the task is woken", || woken.times() == 1);
    assert!(poll(&mut ended, &woken).is_ready());
    assert!(
        matches!(candidate.error(), Some(error) if error.reason() == ErrorReason::LeaderPanicked),
        "{candidate:?}"
    );
}
