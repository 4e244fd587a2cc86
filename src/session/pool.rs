//! [`Pool`]: the threads for everything that may block: callbacks, calls of clients that block, the log.
//!
//! A thread starts when a job finds none idle, and ends when it has been idle for a while. A call can hang
//! for as long as the network swallows packets, and a listener for as long as it likes, so no job waits for
//! a callback or for a job of the session itself, and no thread is ever joined: a session that ends
//! abandons those that are at work. Other jobs share a limit, as one connection serves them one by one.
//!
//! No job is stranded: if a thread cannot be started, the timer tries again. After the shut-down there is
//! no timer, and the submitting thread runs what no other thread will.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Condvar;

use super::timer::Timer;
use crate::lock_order::{Mutex, MutexGuard, rank::POOL};
use crate::logging;
use crate::panics::contain;
use crate::time::{Clock, Job, Priority, SystemClock};

/// The largest number of jobs that run at once, of those that share a limit.
const MAX_AT_WORK: usize = 16;

/// The time for which a thread waits for a job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The delay before a thread that could not be started is tried again.
const START_RETRY: Duration = Duration::from_millis(100);

pub(crate) struct Pool {
    shared: Arc<Crew>,
}

struct Crew {
    queue: Mutex<POOL, Backlog>,
    work: Condvar,
    timer: Timer,
    /// The number of further threads that cannot be started.
    #[cfg(test)]
    start_failures: AtomicUsize,
}

/// If more jobs could run than threads are idle, a thread is starting. Only one starts at a time, as the
/// others may finish many short jobs meanwhile.
#[derive(Default)]
struct Backlog {
    jobs: BTreeMap<Priority, VecDeque<Job>>,
    /// Without those that were abandoned.
    threads: usize,
    idle: usize,
    /// The jobs under way that share the limit.
    at_work: usize,
    is_starting: bool,
    /// The last start has failed.
    start_failed: bool,
    /// The timer is to try again.
    is_retry_set: bool,
    /// Grows when those at work are abandoned; a thread with a job from before then ends with it.
    generation: u64,
    /// Threads end as soon as they have nothing to do.
    closed: bool,
}

impl Pool {
    /// Makes one without threads. The timer must be shut down before it.
    pub(crate) fn new(timer: Timer) -> Pool {
        #[cfg(test)]
        crate::tests::begin();
        let shared = Crew {
            queue: Mutex::default(),
            work: Condvar::new(),
            timer,
            #[cfg(test)]
            start_failures: AtomicUsize::new(0),
        };
        Pool { shared: Arc::new(shared) }
    }

    /// Runs a job soon; after the [shut-down](Pool::shut_down), callbacks only.
    pub(crate) fn submit(&self, priority: Priority, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.closed && priority != Priority::Callback {
            // Outside the lock: it may hold the last handle of something.
            return drop((queue, job));
        }
        queue.jobs.entry(priority).or_default().push_back(job);
        self.shared.wake_or_start(queue);
    }

    /// Counts on none of those that are at work, as they may be stuck.
    pub(crate) fn abandon(&self) {
        let mut queue = self.shared.queue.lock();
        queue.generation += 1;
        queue.threads -= mem::take(&mut queue.at_work);
        self.shared.wake_or_start(queue);
    }

    /// Ends the threads once the jobs submitted so far are done.
    pub(crate) fn shut_down(&self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        self.shared.work.notify_all();
        // The timer has dropped the retry of a failed start.
        self.shared.wake_or_start(queue);
    }
}

impl Crew {
    /// Wakes or starts a thread if a job could run.
    fn wake_or_start(self: &Arc<Self>, mut queue: MutexGuard<'_, POOL, Backlog>) {
        let runnable = queue.runnable();
        if runnable > 0 && queue.idle > 0 {
            self.work.notify_one();
        }
        if runnable <= queue.idle || queue.is_starting {
            return;
        }
        queue.is_starting = true;
        queue.threads += 1;
        drop(queue);
        if let Err(error) = self.spawn() {
            self.start_failed(&error);
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        #[cfg(test)]
        if self.is_start_refused() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let shared = Arc::clone(self);
        thread::Builder::new().name("zk-lock-worker".to_owned()).spawn(move || shared.run()).map(drop)
    }

    fn start_failed(self: &Arc<Self>, error: &io::Error) {
        let (is_news, is_last_resort, is_retry_set) = {
            let mut queue = self.queue.lock();
            let is_last_resort = queue.closed && queue.threads == 1;
            if !is_last_resort {
                queue.is_starting = false;
                queue.threads -= 1;
            }
            let is_news = !mem::replace(&mut queue.start_failed, true);
            (is_news, is_last_resort, mem::replace(&mut queue.is_retry_set, true))
        };
        if is_news {
            logging::error!("calls and listeners are late, as a thread could not be started: {error}");
        }
        if is_last_resort {
            return self.run();
        }
        if is_retry_set {
            return;
        }
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
        let mut goes_on = true;
        while let Some((priority, generation, job)) = goes_on.then(|| self.next_job()).flatten() {
            match is_limited(priority) {
                // A logger that blocks must not hold up the jobs that share the limit.
                true => logging::deferring(|| run_guarded(job)),
                false => run_guarded(job),
            }
            goes_on = !is_limited(priority) || self.queue.lock().rejoin(generation);
        }
    }

    /// Waits for the next job; `None` ends the thread.
    fn next_job(self: &Arc<Self>) -> Option<(Priority, u64, Job)> {
        let mut queue = self.queue.lock();
        let mut timed_out = false;
        loop {
            if let Some((priority, job)) = queue.pop() {
                let generation = queue.generation;
                self.wake_or_start(queue);
                return Some((priority, generation, job));
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

/// Returns whether the job shares the limit.
fn is_limited(priority: Priority) -> bool {
    matches!(priority, Priority::Owner | Priority::Other)
}

impl Backlog {
    /// Returns how many jobs could run if there were threads.
    fn runnable(&self) -> usize {
        let count = |limited: bool| {
            let queues = self.jobs.iter().filter(|(priority, _)| is_limited(**priority) == limited);
            queues.map(|(_, jobs)| jobs.len()).sum::<usize>()
        };
        count(false) + count(true).min(MAX_AT_WORK - self.at_work)
    }

    fn pop(&mut self) -> Option<(Priority, Job)> {
        let is_full = self.at_work == MAX_AT_WORK;
        let mut queues = self.jobs.iter_mut().filter(|(priority, _)| !(is_full && is_limited(**priority)));
        let (priority, job) = queues.find_map(|(priority, jobs)| Some((*priority, jobs.pop_front()?)))?;
        self.at_work += usize::from(is_limited(priority));
        Some((priority, job))
    }

    /// A job that shares the limit is done. Returns whether its thread is still counted on.
    fn rejoin(&mut self, generation: u64) -> bool {
        let is_counted = self.generation == generation;
        self.at_work -= usize::from(is_counted);
        is_counted
    }
}

/// Runs a job; a panic in it must not cost the thread.
pub(super) fn run_guarded(job: Job) {
    if let Err(message) = contain(job) {
        logging::error!("a job of the session panicked; the thread goes on: {message}");
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, idle, at_work) = {
            let queue = self.shared.queue.lock();
            (queue.threads, queue.idle, queue.at_work)
        };
        f.debug_struct("Pool")
            .field("threads", &threads)
            .field("idle", &idle)
            .field("at_work", &at_work)
            .finish()
    }
}

#[cfg(test)]
impl Crew {
    fn is_start_refused(&self) -> bool {
        let one_less = |failures: usize| failures.checked_sub(1);
        self.start_failures.fetch_update(SeqCst, SeqCst, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use crossbeam_channel::{Sender, bounded, unbounded};

    use crate::tests::{deadline, eventually, next};

    fn pool() -> Pool {
        Pool::new(Timer::start().unwrap())
    }

    fn shut_down(pool: &Pool) {
        pool.shared.timer.shut_down();
        pool.shut_down();
    }

    fn all_end(pool: &Pool) {
        eventually("all threads end", || pool.shared.queue.lock().threads == 0);
    }

    /// Occupies threads with calls until the sender is dropped.
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
    fn no_more_calls_run_at_once_than_the_limit() {
        let pool = pool();
        let release = occupy(&pool, MAX_AT_WORK);
        let (done, finished) = unbounded();
        pool.submit(Priority::Other, Box::new(move || done.send(()).unwrap()));
        assert_eq!(pool.shared.queue.lock().runnable(), 0);
        assert_eq!(pool.shared.queue.lock().threads, MAX_AT_WORK);
        drop(release);
        next(&finished);
        shut_down(&pool);
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
    fn job_of_the_session_runs_while_all_others_are_stuck() {
        let pool = pool();
        let release = occupy(&pool, MAX_AT_WORK);
        let (done, finished) = unbounded();
        for round in 0..3 {
            let done = done.clone();
            pool.submit(Priority::Session, Box::new(move || done.send(round).unwrap()));
            assert_eq!(next(&finished), round);
        }
        drop(release);
        shut_down(&pool);
    }

    #[test]
    fn jobs_of_owners_come_before_those_of_others() {
        let pool = pool();
        let release = occupy(&pool, MAX_AT_WORK);
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for priority in [Priority::Other, Priority::Owner, Priority::Other, Priority::Owner] {
            let order = Arc::clone(&order);
            pool.submit(priority, Box::new(move || order.lock().push(priority)));
        }
        // One thread alone does the rest.
        release.send(()).unwrap();
        eventually("the jobs are done", || order.lock().len() >= 4);
        assert!(order.lock().is_sorted(), "{order:?}");
        drop(release);
        shut_down(&pool);
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
        assert_eq!(pool.shared.queue.lock().at_work, 0);
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn work_goes_on_after_stuck_threads_are_abandoned() {
        let pool = pool();
        let release = occupy(&pool, MAX_AT_WORK);
        let (done, finished) = unbounded();
        pool.submit(Priority::Other, Box::new(move || done.send(()).unwrap()));
        pool.abandon();
        next(&finished);
        eventually("the new one is idle", || pool.shared.queue.lock().idle == 1);
        assert_eq!(pool.shared.queue.lock().threads, 1);
        drop(release);
        // The pool has a handle, and the thread that is left.
        eventually("the stuck ones end", || Arc::strong_count(&pool.shared) == 2);
        let queue = pool.shared.queue.lock();
        assert_eq!((queue.threads, queue.at_work), (1, 0));
        drop(queue);
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
        let pool = pool();
        pool.shared.start_failures.store(3, SeqCst);
        let (done, finished) = unbounded();
        pool.submit(Priority::Session, Box::new(move || done.send(()).unwrap()));
        next(&finished);
        assert_eq!(pool.shared.start_failures.load(SeqCst), 0);
        shut_down(&pool);
    }

    #[test]
    fn one_retry_is_set_however_many_jobs_wait_for_a_thread() {
        let pool = pool();
        pool.shared.start_failures.store(usize::MAX, SeqCst);
        let (done, finished) = unbounded();
        for number in 0..50 {
            let done = done.clone();
            pool.submit(Priority::Session, Box::new(move || done.send(number).unwrap()));
        }
        let retries = format!("{:?}", pool.shared.timer);
        // None at the moment of a retry.
        assert!(retries.contains("entries: 1 ") || retries.contains("entries: 0 "), "{retries}");
        pool.shared.start_failures.store(0, SeqCst);
        // Two threads may finish in another order than they began in.
        let numbers: BTreeSet<i32> = (0..50).map(|_| next(&finished)).collect();
        assert_eq!(numbers.len(), 50);
        shut_down(&pool);
    }

    #[test]
    fn callbacks_run_after_the_shut_down_without_a_thread() {
        let pool = pool();
        pool.shared.start_failures.store(usize::MAX, SeqCst);
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
