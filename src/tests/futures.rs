//! Tests of locks that tasks wait for: what must hold whenever a future is polled, woken or dropped.

mod at_random;
mod ends;
mod kinds;
mod late;
mod losses;
mod steps;
mod wakers;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fake::{SimulatedClient, SimulatedZooKeeper};
use crate::lock_order::assert_none_held;
use crate::tests::{begin, deadline, eventually, next, open_on_manual_runtime};
use crate::{BlockingWriteLock, LockError, LockGuard, LossReason, Session};

const LONG: Duration = Duration::from_secs(30);
const DIR: &str = "/lock";

type Locking = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>> + Send>>;

/// A waker that records the thread of each wake-up.
#[derive(Default)]
struct Woken(Mutex<Vec<Option<String>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        assert_none_held();
        self.0.lock().push(thread::current().name().map(str::to_owned));
    }
}

impl Woken {
    fn times(&self) -> usize {
        self.0.lock().len()
    }

    fn assert_on_callback_threads(&self, what: &str) {
        let threads = self.0.lock();
        let is_callback = |thread: &Option<String>| thread.as_deref() == Some("zk-lock-worker");
        assert!(!threads.is_empty() && threads.iter().all(is_callback), "{what}: {threads:?}");
    }
}

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>, woken: &Arc<Woken>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(woken))))
}

/// Runs a future on this thread. Polls the future only when it is woken.
#[track_caller]
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, begun) = (pin!(future), Instant::now());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left =
            deadline().checked_sub(begun.elapsed()).expect("the future must be woken and complete in time");
        thread::park_timeout(left);
    }
}

/// A lock on a session with threads, behind a request of another client.
struct Fixture {
    server: SimulatedZooKeeper,
    client: Arc<SimulatedClient>,
    session: Session,
    lock: BlockingWriteLock,
    ahead: String,
}

impl Fixture {
    fn new() -> Fixture {
        begin();
        let server = SimulatedZooKeeper::new();
        let ahead = server.create_sequential(DIR, "x-other-lock-", None);
        let client = server.connect(LONG);
        let session = client.open_session().unwrap();
        let lock = BlockingWriteLock::new(&session, DIR).unwrap();
        Fixture { server, client, session, lock, ahead }
    }

    fn future(&self) -> Locking {
        Box::pin(self.lock.lock_async())
    }

    /// Returns a future whose request is in the queue.
    fn waiting(&self, woken: &Arc<Woken>) -> Locking {
        let before = self.requests();
        let mut future = self.future();
        assert!(poll(&mut future, woken).is_pending());
        self.await_requests(before + 1);
        future
    }

    fn requests(&self) -> usize {
        self.server.children(DIR).len()
    }

    fn await_requests(&self, count: usize) {
        eventually(&format!("{count} requests"), || self.requests() == count);
    }

    fn free(&self) {
        self.server.delete(&self.ahead);
    }

    fn guard(&self) -> LockGuard {
        self.free();
        block_on(self.lock.lock_async()).unwrap()
    }
}
