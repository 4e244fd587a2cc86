//! Futures that wait on one session, in several queues, measured in a separate process: how fast they join, the
//! threads of the process, and the memory of each future.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use zookeeper_recipes_lock::data::RecoverableZooKeeper;
use zookeeper_recipes_lock::{BlockingWriteLock, LockError, LockGuard, LockOptions, RetryPolicy, Session};

use crate::footprint::Size;
use crate::measure::{Plan, measure_in_child};
use crate::support::server::{Server, ServerOptions};
use crate::table::{print_numbers, print_title};
use crate::{DATA, ROOT, SESSION_TIMEOUT};

/// The argument that makes this program the measured process.
pub(crate) const CHILD: &str = "--futures-of";

/// The number of waiters in one directory.
const EACH: usize = 100;
/// These futures are created first, so shared buffers and threads have reached their final size.
const WARM_UP: usize = 1;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The end of the session names all its znodes in a single transaction.
const JUTE_MAX_BUFFER: usize = 64 * 1024 * 1024;

const AIM_KIB: f64 = 4.0;

type Waiting = Pin<Box<dyn Future<Output = Result<LockGuard, LockError>>>>;

pub(crate) fn run(plan: &Plan) {
    let jvm_flags = vec![format!("-Djute.maxbuffer={JUTE_MAX_BUFFER}")];
    let server = Server::with(ServerOptions { jvm_flags, ..ServerOptions::default() });
    let dirs = if plan.is_quick { 10 } else { 1_000 };
    let [kib, threads, seconds] = measure_in_child(&[CHILD, &server.connect_string(), &dirs.to_string()]);
    print_title(&format!("{} futures waiting on one session, in {dirs} directories", dirs * EACH), "");
    print_numbers("resident KiB for each future", &[kib], "< 4", |kib| kib < AIM_KIB);
    print_numbers("threads of the process", &[threads], "-", |_| true);
    print_numbers("seconds until all have joined", &[seconds], "-", |_| true);
}

/// Takes the role of the measured process: prints the growth in KiB per future, the threads of the process
/// while all futures wait, and the time until they did.
pub(crate) fn child(connect_string: &str, dirs: &str) {
    let dirs: usize = dirs.parse().expect("a number");
    let connect = || {
        let builder = Session::builder(connect_string).session_timeout(SESSION_TIMEOUT);
        builder.jute_max_buffer(JUTE_MAX_BUFFER).connect().expect("the server is up")
    };
    let (holder, waiter) = (connect(), connect());
    let locks = |session: &Session| -> Vec<BlockingWriteLock> {
        let lock = |number| {
            let (dir, options) = (format!("{ROOT}/futures/{number}"), LockOptions::new().data(DATA));
            BlockingWriteLock::with_options(session, &dir, options).expect("the path is valid")
        };
        (0..dirs).map(lock).collect()
    };
    let guards: Vec<_> = locks(&holder).iter().map(|lock| lock.lock().expect("the lock is free")).collect();
    let locks = locks(&waiter);

    let warm_up = join(&locks, WARM_UP);
    await_all(&waiter, &locks, WARM_UP);
    let (before, begun) = (Size::now(), Instant::now());
    let futures = join(&locks, EACH - WARM_UP);
    await_all(&waiter, &locks, EACH);
    let (joining, after) = (begun.elapsed(), Size::now());
    let kib = (after.resident_kib - before.resident_kib) / futures.len() as f64;
    println!("{kib} {} {}", after.threads, joining.as_secs_f64());
    waiter.close();
    drop((warm_up, futures, guards));
}

/// Polls new futures once, which makes them join. The queues take turns.
fn join(locks: &[BlockingWriteLock], each: usize) -> Vec<Waiting> {
    let begin = |lock: &BlockingWriteLock| {
        let mut future: Waiting = Box::pin(lock.lock_async());
        // No future should be woken while it is measured.
        assert!(
            future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "the lock is held"
        );
        future
    };
    (0..each).flat_map(|_| locks.iter().map(begin)).collect()
}

/// Waits until each queue has this many requests besides the owner's and all of them know their place.
fn await_all(session: &Session, locks: &[BlockingWriteLock], each: usize) {
    let observer = RecoverableZooKeeper::new(session, RetryPolicy::default());
    for lock in locks {
        while observer.get_children(lock.dir()).expect("the server answers").len() < each + 1 {
            thread::sleep(LOOK_AGAIN);
        }
    }
    // This attempt lists its queue after the others have done so.
    assert!(
        locks.iter().all(|lock| lock.try_lock().expect("the server answers").is_none()),
        "the lock is held"
    );
}
