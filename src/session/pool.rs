//! [`Pool`]: threads for jobs that may block, or must not run on the caller's thread.
//!
//! A thread is started when a job finds no idle one, and ends when it has been idle for a while. A listener may block
//! forever. So no job waits for another job as long as threads can be started, and no thread is ever joined.
//!
//! With one exception, every job that is submitted before the shutdown runs, and so does every callback. If a thread
//! cannot be started, the timer tries again. After the shutdown there is no timer, so the thread that submits a
//! callback, or that shuts the pool down, tries once more. If that fails and the pool has no thread at all, it runs the
//! jobs itself. If the pool has a thread, the jobs wait for that thread or for another submission, because the
//! submitting thread may be one that must not block. This is the exception: they never run if the application's code
//! blocks the pool's thread forever and nothing else is submitted.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use super::timer::Timer;
use crate::lock_order::{Mutex, MutexGuard, rank::POOL};
use crate::logging;
use crate::panics::contain;
use crate::time::{Clock, Job, Priority, SystemClock};

/// How long an idle thread waits for a job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The delay before the pool tries again to start a thread.
const START_RETRY: Duration = Duration::from_millis(100);

pub(crate) struct Pool {
    shared: Arc<Crew>,
}

struct Crew {
    queue: Mutex<POOL, Backlog>,
    work: Condvar,
    timer: Timer,
    start: Start,
}

/// Starts a thread, or fails.
type Start = Box<dyn Fn(Job) -> io::Result<()> + Send + Sync>;

/// The queue of jobs. While there are more jobs than idle threads, a thread is being started or, until the shutdown,
/// the timer is about to try again. Only one thread is started at a time, because the existing threads may finish many
/// short jobs in the meantime.
#[derive(Default)]
struct Backlog {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_starting: bool,
    /// Whether the last start failed.
    start_failed: bool,
    /// Whether the timer will try again. After its shutdown, the timer drops the attempt, and this stays set.
    is_retry_set: bool,
    /// Whether threads end as soon as they have nothing to do.
    closed: bool,
}

impl Pool {
    /// Creates a pool without threads. The timer must be shut down before the pool.
    pub(crate) fn new(timer: Timer) -> Pool {
        Pool::with_start(timer, Box::new(start_thread))
    }

    fn with_start(timer: Timer, start: Start) -> Pool {
        let shared = Crew { queue: Mutex::default(), work: Condvar::new(), timer, start };
        Pool { shared: Arc::new(shared) }
    }

    /// Runs a job soon. Of the jobs that are submitted after the [shutdown](Pool::shut_down), only callbacks are run.
    pub(crate) fn submit(&self, priority: Priority, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.closed && priority != Priority::Callback {
            // The job is dropped outside the mutex, because it may hold the last handle to something.
            return drop((queue, job));
        }
        queue.jobs.push_back(job);
        self.shared.wake_or_start(queue);
    }

    /// Ends the threads once the jobs submitted so far are done.
    pub(crate) fn shut_down(&self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        self.shared.work.notify_all();
        // If an earlier start failed, the timer no longer retries it, so it is retried here.
        self.shared.wake_or_start(queue);
    }
}

impl Crew {
    /// Wakes an idle thread if a job waits, and starts a thread if more jobs wait than threads are idle.
    fn wake_or_start(self: &Arc<Self>, mut queue: MutexGuard<'_, POOL, Backlog>) {
        let waiting = queue.jobs.len();
        if waiting > 0 && queue.idle > 0 {
            self.work.notify_one();
        }
        if waiting <= queue.idle || queue.is_starting {
            return;
        }
        queue.is_starting = true;
        queue.threads += 1;
        drop(queue);
        let shared = Arc::clone(self);
        if let Err(error) = (self.start)(Box::new(move || shared.run())) {
            self.start_failed(&error);
        }
    }

    fn start_failed(self: &Arc<Self>, error: &io::Error) {
        let (is_first_failure, is_last_resort, is_retry_set) = {
            let mut queue = self.queue.lock();
            let is_last_resort = queue.closed && queue.threads == 1;
            if !is_last_resort {
                queue.is_starting = false;
                queue.threads -= 1;
            }
            let is_first_failure = !mem::replace(&mut queue.start_failed, true);
            (is_first_failure, is_last_resort, mem::replace(&mut queue.is_retry_set, true))
        };
        if !is_last_resort && !is_retry_set {
            self.set_retry();
        }
        if is_first_failure {
            logging::error!("listeners are late, because a thread could not be started: {error}");
        }
        if is_last_resort {
            self.run();
        }
    }

    fn set_retry(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let retry = move || {
            let mut queue = shared.queue.lock();
            queue.is_retry_set = false;
            shared.wake_or_start(queue);
        };
        self.timer.at(SystemClock.now().after(START_RETRY), Box::new(retry));
    }

    fn run(self: &Arc<Self>) {
        {
            let mut queue = self.queue.lock();
            (queue.is_starting, queue.start_failed) = (false, false);
        }
        while let Some(job) = self.next_job() {
            run_guarded(job);
        }
    }

    /// Waits for the next job. Returns `None` when the thread must end.
    fn next_job(self: &Arc<Self>) -> Option<Job> {
        let mut queue = self.queue.lock();
        let mut timed_out = false;
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                self.wake_or_start(queue);
                return Some(job);
            }
            if timed_out || queue.closed {
                queue.threads -= 1;
                return None;
            }
            queue.idle += 1;
            timed_out = queue.wait_for(&self.work, IDLE_TIME).timed_out();
            queue.idle -= 1;
        }
    }
}

fn start_thread(body: Job) -> io::Result<()> {
    thread::Builder::new().name("zk-lock-worker".to_owned()).spawn(body).map(drop)
}

/// Runs a job. A panic in the job does not end the thread.
pub(super) fn run_guarded(job: Job) {
    if let Err(message) = contain(job) {
        logging::error!("a job of the session panicked; the thread goes on: {message}");
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, idle) = {
            let queue = self.shared.queue.lock();
            (queue.threads, queue.idle)
        };
        f.debug_struct("Pool").field("threads", &threads).field("idle", &idle).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use crossbeam_channel::{Sender, bounded, unbounded};

    use crate::tests::{begin, deadline, eventually, next};

    fn pool() -> Pool {
        begin();
        Pool::new(Timer::start().unwrap())
    }

    /// A pool whose first `count` attempts to start a thread fail.
    fn pool_with_failures(count: usize) -> (Pool, Arc<AtomicUsize>) {
        begin();
        let failures = Arc::new(AtomicUsize::new(count));
        let left = Arc::clone(&failures);
        let start = move |body| {
            let one_less = |failures: usize| failures.checked_sub(1);
            match left.fetch_update(SeqCst, SeqCst, one_less) {
                Ok(_) => Err(io::ErrorKind::WouldBlock.into()),
                Err(_) => start_thread(body),
            }
        };
        (Pool::with_start(Timer::start().unwrap(), Box::new(start)), failures)
    }

    fn shut_down(pool: &Pool) {
        pool.shared.timer.shut_down();
        pool.shut_down();
    }

    fn all_end(pool: &Pool) {
        eventually("all threads end", || pool.shared.queue.lock().threads == 0);
    }

    /// Occupies `count` threads until the returned sender is dropped.
    fn occupy(pool: &Pool, count: usize) -> Sender<()> {
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..count {
            let (stuck, began) = (stuck.clone(), began.clone());
            pool.submit(
                Priority::Other,
                Box::new(move || {
                    began.send(()).unwrap();
                    let _ = stuck.recv();
                }),
            );
        }
        (0..count).for_each(|_| next(&at_work));
        release
    }

    #[test]
    fn jobs_that_wait_for_one_another_all_run() {
        let pool = pool();
        drop(occupy(&pool, 4));
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn callback_that_blocks_delays_no_other_and_no_call() {
        let pool = pool();
        let (release, blocked) = bounded::<()>(0);
        for _ in 0..50 {
            let blocked = blocked.clone();
            pool.submit(Priority::Callback, Box::new(move || assert!(blocked.recv().is_err())));
        }
        let (done, finished) = unbounded();
        let other = done.clone();
        pool.submit(Priority::Callback, Box::new(move || done.send(()).unwrap()));
        pool.submit(Priority::Other, Box::new(move || other.send(()).unwrap()));
        next(&finished);
        next(&finished);
        drop(release);
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn idle_thread_is_used_again() {
        let pool = pool();
        let (done, finished) = unbounded();
        let mut threads = Vec::new();
        for _ in 0..10 {
            let done = done.clone();
            pool.submit(Priority::Callback, Box::new(move || done.send(thread::current().id()).unwrap()));
            threads.push(next(&finished));
            eventually("the thread is idle", || pool.shared.queue.lock().idle == 1);
        }
        assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "{threads:?}");
        shut_down(&pool);
    }

    #[test]
    fn job_that_panics_costs_no_thread() {
        let pool = pool();
        pool.submit(Priority::Other, Box::new(|| panic!("on purpose")));
        eventually("the thread is idle", || pool.shared.queue.lock().idle == 1);
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn jobs_submitted_before_the_shut_down_are_done_and_later_ones_dropped() {
        let pool = pool();
        let (done, finished) = unbounded();
        for number in 0..101 {
            if number == 100 {
                shut_down(&pool);
            }
            let done = done.clone();
            pool.submit(Priority::Other, Box::new(move || done.send(number).unwrap()));
        }
        drop(done);
        let count = std::iter::from_fn(|| finished.recv_timeout(deadline()).ok()).count();
        assert_eq!(count, 100);
    }

    #[test]
    fn callbacks_run_after_the_shut_down() {
        let pool = pool();
        shut_down(&pool);
        for _ in 0..3 {
            let (done, finished) = unbounded();
            pool.submit(Priority::Callback, Box::new(move || done.send(()).unwrap()));
            next(&finished);
        }
        all_end(&pool);
    }

    #[test]
    fn thread_that_cannot_be_started_is_tried_again() {
        let (pool, failures) = pool_with_failures(3);
        let (done, finished) = unbounded();
        pool.submit(Priority::Session, Box::new(move || done.send(()).unwrap()));
        next(&finished);
        assert_eq!(failures.load(SeqCst), 0);
        shut_down(&pool);
    }

    #[test]
    fn one_retry_is_set_however_many_jobs_wait_for_a_thread() {
        let (pool, failures) = pool_with_failures(usize::MAX);
        let (done, finished) = unbounded();
        for number in 0..50 {
            let done = done.clone();
            pool.submit(Priority::Session, Box::new(move || done.send(number).unwrap()));
        }
        let retries = format!("{:?}", pool.shared.timer);
        // There is no entry while a thread is being started.
        assert!(retries.contains("entries: 1 ") || retries.contains("entries: 0 "), "{retries}");
        failures.store(0, SeqCst);
        // Two threads may finish in a different order than they started.
        let numbers: BTreeSet<i32> = (0..50).map(|_| next(&finished)).collect();
        assert_eq!(numbers.len(), 50);
        shut_down(&pool);
    }

    #[test]
    fn callbacks_run_after_the_shut_down_without_a_thread() {
        let (pool, _failures) = pool_with_failures(usize::MAX);
        let (done, finished) = unbounded();
        for number in 0..3 {
            let done = done.clone();
            pool.submit(Priority::Callback, Box::new(move || done.send(number).unwrap()));
        }
        shut_down(&pool);
        pool.submit(Priority::Callback, Box::new(move || done.send(3).unwrap()));
        assert_eq!((0..4).map(|_| next(&finished)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        eventually("no thread is counted", || pool.shared.queue.lock().threads == 0);
    }
}
