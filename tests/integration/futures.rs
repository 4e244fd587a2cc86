//! Tests of tasks that wait for locks on a real server, under several executors.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use zookeeper_recipes_lock::locks::{ReadWriteLock, Semaphore};
use zookeeper_recipes_lock::{BlockingWriteLock, LossReason};

use crate::fixtures::{LONG, Observer, connect, session, unique_dir};
use crate::support::server;

const TASKS: usize = 8;
const ATTEMPTS: usize = 12;

/// The shared state of a test's tasks, which contend for one lock.
struct Contest {
    lock: BlockingWriteLock,
    dir: String,
    owners: AtomicUsize,
    acquired: AtomicUsize,
}

impl Contest {
    fn new(name: &str) -> Arc<Contest> {
        let dir = unique_dir(name);
        let lock = BlockingWriteLock::new(&session(server::shared()), &dir).unwrap();
        Arc::new(Contest { lock, dir, owners: AtomicUsize::new(0), acquired: AtomicUsize::new(0) })
    }

    /// Waits for the lock repeatedly. Each wait but the last races with a timer, which may win.
    async fn contend<T: Future>(self: Arc<Contest>, task: usize, timer: impl Fn(Duration) -> T) {
        for attempt in 0..ATTEMPTS {
            let limit = Duration::from_millis(((7 * task + 11 * attempt) % 40) as u64);
            let guard = match attempt + 1 == ATTEMPTS {
                true => Some(self.lock.lock_async().await.unwrap()),
                false => first_of(self.lock.lock_async(), timer(limit)).await.map(Result::unwrap),
            };
            if let Some(guard) = guard {
                assert!(guard.is_owner());
                assert_eq!(self.owners.fetch_add(1, Ordering::SeqCst), 0, "two owners at once");
                timer(Duration::from_millis(1)).await;
                self.owners.fetch_sub(1, Ordering::SeqCst);
                self.acquired.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn check(&self) {
        assert!(self.acquired.load(Ordering::SeqCst) >= TASKS);
        Observer::at(server::shared()).await_children(&self.dir, 0);
    }
}

/// Returns the output of the future, unless the timer ends first.
async fn first_of<F: Future, T: Future>(future: F, timer: T) -> Option<F::Output> {
    let (mut future, mut timer) = (pin!(future), pin!(timer));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => timer.as_mut().poll(context).map(|_| None),
    })
    .await
}

/// A minimal executor, which shows that locks need no runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn contend_under_tokio(name: &str, runtime: &mut tokio::runtime::Builder) {
    let contest = Contest::new(name);
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(async {
        let contend = |task| tokio::spawn(Arc::clone(&contest).contend(task, tokio::time::sleep));
        let tasks: Vec<_> = (0..TASKS).map(contend).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    contest.check();
}

#[test]
fn tasks_of_a_tokio_runtime_with_one_thread_exclude_each_other() {
    contend_under_tokio("tokio-one", &mut tokio::runtime::Builder::new_current_thread());
}

#[test]
fn tasks_of_a_tokio_runtime_with_several_threads_exclude_each_other() {
    contend_under_tokio("tokio-several", tokio::runtime::Builder::new_multi_thread().worker_threads(2));
}

#[test]
fn tasks_of_smol_exclude_each_other() {
    let contest = Contest::new("smol");
    let contend = |task| smol::spawn(Arc::clone(&contest).contend(task, smol::Timer::after));
    let tasks: Vec<_> = (0..TASKS).map(contend).collect();
    for task in tasks {
        smol::block_on(task);
    }
    contest.check();
}

#[test]
fn locks_are_awaited_without_a_runtime() {
    let session = session(server::shared());
    let (lock, jobs) = (unique_dir("bare-lock"), unique_dir("bare-semaphore"));
    let lock = ReadWriteLock::new(&session, &lock).unwrap();
    let semaphore = Semaphore::new(&session, &jobs, 1).unwrap();
    block_on(async {
        let readers = (lock.read_async().await.unwrap(), lock.read_async().await.unwrap());
        assert!(readers.0.is_owner() && readers.1.is_owner());
        drop(readers);
        let writer = lock.write_async().await.unwrap();
        let permit = semaphore.acquire_async().await.unwrap();
        assert!(writer.is_owner() && permit.is_owner());
        drop(permit);
        assert!(semaphore.acquire_async().await.unwrap().is_owner());
    });
}

#[test]
fn deletion_of_the_owners_znode_completes_its_future() {
    let session = connect(&server::shared().connect_string(), LONG);
    let lock = BlockingWriteLock::new(&session, &unique_dir("awaited-loss")).unwrap();
    let guard = block_on(lock.lock_async()).unwrap();
    Observer::at(server::shared()).delete(guard.id());
    assert_eq!(block_on(guard.lost_async()), LossReason::NodeDeleted);
}
