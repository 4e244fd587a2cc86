//! Tests of wakers, which are code from the executor.

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::*;
use crate::tests::logged_down_to;

/// A waker that calls a closure.
struct Does<F: Fn() + Send + Sync + 'static>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        assert_none_held();
        (self.0)();
    }
}

fn waker(does: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(does)))
}

fn poll_with<F: Future + ?Sized>(future: &mut Pin<Box<F>>, waker: &Waker) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(waker))
}

/// A task whose waker polls its future. When the future completes, its outcome is sent to the channel.
struct PollsAtOnce(Mutex<Option<Locking>>, Sender<Result<LockGuard, LockError>>);

impl Wake for PollsAtOnce {
    fn wake(self: Arc<Self>) {
        let Some(mut future) = self.0.lock().take() else { return };
        match poll_with(&mut future, &Waker::from(Arc::clone(&self))) {
            Poll::Ready(outcome) => drop(self.1.send(outcome)),
            Poll::Pending => *self.0.lock() = Some(future),
        }
    }
}

#[test]
fn waker_may_poll_its_future() {
    let fixture = Fixture::new();
    let (sender, outcomes) = unbounded();
    for count in 2..4 {
        Arc::new(PollsAtOnce(Mutex::new(Some(fixture.future())), sender.clone())).wake();
        fixture.await_requests(count);
    }
    fixture.free();
    for _ in 0..2 {
        assert!(next(&outcomes).unwrap().is_owner());
    }
}

#[test]
fn waker_may_drop_its_future() {
    let fixture = Fixture::new();
    let task: Arc<Mutex<Option<Locking>>> = Arc::default();
    let (of_waker, (sender, woken)) = (Arc::clone(&task), unbounded());
    let drops = waker(move || {
        let future = of_waker.lock().take();
        drop(future);
        let _ = sender.send(());
    });
    let mut future = fixture.future();
    assert!(poll_with(&mut future, &drops).is_pending());
    *task.lock() = Some(future);
    fixture.await_requests(2);
    let behind = fixture.waiting(&Arc::default());
    fixture.free();
    next(&woken);
    assert!(block_on(behind).unwrap().is_owner());
}

#[test]
fn waker_that_panics_is_named_in_the_log_and_costs_no_other_task_its_wake_up() {
    let server = SimulatedZooKeeper::new();
    let (client, runtime, session) = open_on_manual_runtime(&server, LONG);
    let guard = BlockingWriteLock::new(&session, DIR).unwrap().lock().unwrap();
    let panics = waker(|| std::panic::resume_unwind(Box::new("on purpose")));
    let woken = Arc::new(Woken::default());
    let mut futures = [(); 3].map(|()| Box::pin(guard.lost_async()));
    let [first, between, last] = &mut futures;
    assert!(poll_with(first, &panics).is_pending());
    assert!(poll(between, &woken).is_pending());
    assert!(poll_with(last, &panics).is_pending());
    client.disconnect();
    let lines = logged_down_to(log::Level::Error, || runtime.advance(LONG));
    assert_eq!(woken.times(), 1);
    assert_eq!(lines, ["the waker of a future panicked: on purpose"; 2]);
}

#[test]
fn waker_that_blocks_delays_no_other_task_and_no_lock() {
    let fixture = Fixture::new();
    let guard = fixture.guard();
    let (release, stuck) = unbounded::<()>();
    let (began, at_work) = unbounded();
    let mut blocking: Vec<_> = (0..8).map(|_| Box::pin(guard.lost_async())).collect();
    for future in &mut blocking {
        let (stuck, began) = (stuck.clone(), began.clone());
        let blocks = waker(move || {
            began.send(()).unwrap();
            let _ = stuck.recv();
        });
        assert!(poll_with(future, &blocks).is_pending());
    }
    let woken = Arc::new(Woken::default());
    let mut behind = fixture.waiting(&woken);
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll(&mut lost, &woken).is_pending());
    fixture.server.delete(guard.id());
    (0..8).for_each(|_| next(&at_work));
    eventually("the other tasks are woken", || woken.times() == 2);
    assert!(matches!(poll(&mut behind, &woken), Poll::Ready(Ok(_))));
    assert!(BlockingWriteLock::new(&fixture.session, "/other").unwrap().try_lock().unwrap().is_some());
    drop(release);
}

/// The last waker of a task may own the task, so dropping the waker may drop anything that belongs to the
/// task.
#[test]
fn waker_is_dropped_under_no_mutex() {
    struct Task(Sender<()>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            assert_none_held();
            self.0.send(()).unwrap();
        }
    }

    fn task() -> (Waker, Receiver<()>) {
        let (sender, dropped) = unbounded();
        (Waker::from(Arc::new(Task(sender))), dropped)
    }

    let fixture = Fixture::new();
    let (mut future, (first, first_dropped)) = (fixture.future(), task());
    assert!(poll_with(&mut future, &first).is_pending());
    drop(first);
    let (second, second_dropped) = task();
    assert!(first_dropped.is_empty() && poll_with(&mut future, &second).is_pending());
    // The second waker has replaced the first.
    assert!(!first_dropped.is_empty());
    drop(second);
    assert!(second_dropped.is_empty());
    drop(future);
    assert!(!second_dropped.is_empty());
    let (third, third_dropped) = task();
    let guard = fixture.guard();
    let mut lost = Box::pin(guard.lost_async());
    assert!(poll_with(&mut lost, &third).is_pending());
    drop(third);
    fixture.client.expire();
    next(&third_dropped);
}

/// A lock outlives the futures that wait for it, so it must not keep their wakers.
#[test]
fn dropped_futures_leave_no_waker_behind() {
    let fixture = Fixture::new();
    let woken = Arc::new(Woken::default());
    for _ in 0..10 {
        drop(fixture.waiting(&woken));
        fixture.await_requests(1);
    }
    assert_eq!((Arc::strong_count(&woken), woken.times()), (1, 0));
    let guard = fixture.guard();
    for _ in 0..10 {
        assert!(poll(&mut Box::pin(guard.lost_async()), &woken).is_pending());
    }
    assert_eq!(Arc::strong_count(&woken), 1);
}
