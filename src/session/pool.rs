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
//!
//! Wakers of tasks are the only jobs with a bound, because there may be as many as there are tasks:
//! [`PROMPT_WAKERS`] of them run at once, and [`MAX_WAKERS`] if they block. Listeners and hooks need none: each has its
//! own queue, so it occupies one thread at most.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use super::timer::Timer;
use crate::lock_order::{Mutex, MutexGuard, rank::POOL};
use crate::logging;
use crate::panics::contain;
use crate::time::{Clock, Job, Moment, Priority, Repetition, SystemClock, wake};

/// How long an idle thread waits for a job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// The delay before the pool tries again to start a thread.
const START_RETRY: Duration = Duration::from_millis(100);

/// How many wakers run at once without delay.
const PROMPT_WAKERS: usize = 64;

/// How many wakers run at once at most. Beyond [`PROMPT_WAKERS`], another one begins whenever the longest waiting task has
/// waited for [`WAKER_PATIENCE`].
const MAX_WAKERS: usize = 256;

const WAKER_PATIENCE: Duration = Duration::from_millis(100);

/// The pause between two log lines about slow wakers.
const LOG_PAUSE: Duration = Duration::from_secs(60);

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
    wakers: Wakers,
}

/// The tasks to wake. While there are some, threads are at work on them.
#[derive(Default)]
struct Wakers {
    waiting: VecDeque<(Moment, Waker)>,
    /// The number of threads that wake tasks.
    at_work: usize,
    /// Whether the timer will check if another thread is needed.
    is_check_set: bool,
    /// Limits the log lines about slow wakers.
    log: Repetition,
}

impl Wakers {
    /// Counts the threads that begin to wake tasks now, and returns their number.
    fn begin(&mut self, most: usize) -> usize {
        let more = most.saturating_sub(self.at_work).min(self.waiting.len());
        self.at_work += more;
        more
    }

    /// Takes a task to wake. If there is none, the calling thread no longer counts as at work.
    fn next(&mut self) -> Option<Waker> {
        let next = self.waiting.pop_front().map(|(_, waker)| waker);
        if next.is_none() {
            self.at_work -= 1;
        }
        next
    }

    /// Returns whether the timer must be set to check.
    fn needs_check(&mut self, most: usize) -> bool {
        let may_need_more = !self.waiting.is_empty() && self.at_work >= most;
        may_need_more && !mem::replace(&mut self.is_check_set, true)
    }
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

    /// Wakes tasks. Their wakers may block the calling thread, among others.
    pub(crate) fn wake(&self, wakers: Vec<Waker>) {
        let now = SystemClock.now();
        let (more, needs_check) = {
            let mut queue = self.shared.queue.lock();
            // After the shutdown, no timer checks.
            let most = if queue.closed { MAX_WAKERS } else { PROMPT_WAKERS };
            let wakers_of_pool = &mut queue.wakers;
            wakers_of_pool.waiting.extend(wakers.into_iter().map(|waker| (now, waker)));
            (wakers_of_pool.begin(most), wakers_of_pool.needs_check(most))
        };
        if needs_check {
            self.shared.set_check();
        }
        for _ in 1..more {
            self.shared.submit_wake_up();
        }
        if more > 0 {
            self.shared.wake_tasks();
        }
    }

    /// Ends the threads once the jobs submitted so far are done.
    pub(crate) fn shut_down(&self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        // From now on, no timer checks if tasks wait for too long.
        for _ in 0..queue.wakers.begin(MAX_WAKERS) {
            let shared = Arc::clone(&self.shared);
            queue.jobs.push_back(Box::new(move || shared.wake_tasks()));
        }
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

    // ---- wakers

    fn wake_tasks(&self) {
        loop {
            let Some(waker) = self.queue.lock().wakers.next() else { return };
            wake(waker);
        }
    }

    fn submit_wake_up(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        self.submit(Box::new(move || shared.wake_tasks()));
    }

    fn submit(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        self.wake_or_start(queue);
    }

    fn set_check(self: &Arc<Self>) {
        let shared = Arc::clone(self);
        let at = SystemClock.now().after(WAKER_PATIENCE);
        self.timer.at(at, Box::new(move || shared.check_wakers()));
    }

    /// Starts another thread if tasks wait for too long.
    fn check_wakers(self: &Arc<Self>) {
        let now = SystemClock.now();
        let (more, needs_check, line) = {
            let mut queue = self.queue.lock();
            let wakers = &mut queue.wakers;
            wakers.is_check_set = false;
            let is_late = |(since, _): &(Moment, Waker)| now.since(*since) >= WAKER_PATIENCE;
            let is_late = wakers.waiting.front().is_some_and(is_late);
            let most = if is_late { wakers.at_work + 1 } else { wakers.at_work };
            let more = wakers.begin(most.min(MAX_WAKERS));
            let is_news = is_late && !wakers.log.is_repeated(now, LOG_PAUSE);
            let line = is_news.then(|| slow_wakers(wakers.at_work, wakers.waiting.len()));
            (more, wakers.needs_check(PROMPT_WAKERS), line)
        };
        if needs_check {
            self.set_check();
        }
        for _ in 0..more {
            self.submit_wake_up();
        }
        // The timer's thread must not wait for the logger.
        if let Some(line) = line {
            self.submit(Box::new(move || logging::warn!("{line}")));
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

fn slow_wakers(at_work: usize, waiting: usize) -> String {
    format!(
        "the wakers of tasks are slow: {at_work} of at most {MAX_WAKERS} are at work, each on a thread, and {waiting} tasks \
         wait to be woken"
    )
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

    use std::task::Wake;
    use std::time::Instant;

    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    use crate::lock_order::assert_none_held;
    use crate::tests::{begin, deadline, eventually, logged_down_to, next};

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

    /// A waker that reports that it has begun, and waits until the channel is disconnected.
    struct Blocks(Sender<()>, Receiver<()>);

    impl Wake for Blocks {
        fn wake(self: Arc<Self>) {
            assert_none_held();
            let _ = self.0.send(());
            let _ = self.1.recv();
        }
    }

    /// Wakes this many tasks, each from a callback of its own. The wakers block until the sender is dropped. Each sends a
    /// message to the receiver when it begins.
    fn wake_blocking(pool: &Arc<Pool>, tasks: usize) -> (Sender<()>, Receiver<()>) {
        let (release, blocked) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..tasks {
            let waker = Waker::from(Arc::new(Blocks(began.clone(), blocked.clone())));
            let of_job = Arc::clone(pool);
            pool.submit(Priority::Callback, Box::new(move || of_job.wake(vec![waker])));
        }
        (release, at_work)
    }

    #[test]
    fn wakers_that_block_occupy_a_bounded_number_of_threads() {
        let pool = Arc::new(pool());
        let tasks = MAX_WAKERS + 100;
        let begun = Instant::now();
        let (release, woken) = wake_blocking(&pool, tasks);
        (0..PROMPT_WAKERS).for_each(|_| next(&woken));
        // Each further one begins after a pause.
        (0..3).for_each(|_| next(&woken));
        assert!(begun.elapsed() >= 3 * WAKER_PATIENCE);
        let at_work = |pool: &Pool| pool.shared.queue.lock().wakers.at_work;
        let (began, elapsed) = (at_work(&pool), begun.elapsed().as_millis());
        let later = usize::try_from(elapsed / WAKER_PATIENCE.as_millis()).unwrap();
        assert!(began <= PROMPT_WAKERS + later, "{began} after {elapsed} ms");
        // Besides these, some threads have run the callbacks.
        assert!(pool.shared.queue.lock().threads < MAX_WAKERS);
        // As if much time had passed.
        let more = pool.shared.queue.lock().wakers.begin(MAX_WAKERS);
        (0..more).for_each(|_| pool.shared.submit_wake_up());
        (0..more).for_each(|_| next(&woken));
        (0..3).for_each(|_| pool.shared.check_wakers());
        assert_eq!(at_work(&pool), MAX_WAKERS);
        drop(release);
        (0..tasks - MAX_WAKERS).for_each(|_| next(&woken));
        eventually("all tasks are woken", || at_work(&pool) == 0);
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn wakers_that_block_delay_no_callback_and_other_tasks_for_a_moment_only() {
        let pool = Arc::new(pool());
        let (release, at_work) = wake_blocking(&pool, PROMPT_WAKERS);
        (0..PROMPT_WAKERS).for_each(|_| next(&at_work));
        let lines = logged_down_to(log::Level::Warn, || {
            let (done, finished) = unbounded();
            let other = done.clone();
            pool.submit(Priority::Callback, Box::new(move || other.send("a callback").unwrap()));
            assert_eq!(next(&finished), "a callback");
            let (second_release, second) = wake_blocking(&pool, 1);
            next(&second);
            drop((second_release, done));
        });
        // Another thread writes the line.
        let expected = "the wakers of tasks are slow: 65 of at most 256 are at work";
        assert!(lines.iter().all(|line| line.starts_with(expected)), "{lines:?}");
        drop(release);
        shut_down(&pool);
        all_end(&pool);
    }

    #[test]
    fn all_tasks_are_woken_even_if_their_wakers_block_when_the_pool_is_shut_down() {
        let pool = Arc::new(pool());
        let (release, woken) = wake_blocking(&pool, MAX_WAKERS - 10);
        (0..PROMPT_WAKERS).for_each(|_| next(&woken));
        shut_down(&pool);
        (PROMPT_WAKERS..MAX_WAKERS - 10).for_each(|_| next(&woken));
        let (second_release, woken) = wake_blocking(&pool, 10);
        (0..10).for_each(|_| next(&woken));
        drop((release, second_release));
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
