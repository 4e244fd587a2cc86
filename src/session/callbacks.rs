//! The callback threads: they call the listeners, which are the application's code and may block
//! for as long as they like.
//!
//! No callback waits for another: when all threads are busy, one more starts. So a listener that
//! blocks delays only the later callbacks of the same lock, whose mailbox calls one at a time. An
//! idle thread ends after a while.
//!
//! No callback is stranded: if a thread cannot be started, the timer tries again. After the
//! shut-down there is no timer, and the submitting thread, which is then a worker as a rule, runs
//! what no other thread will.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use parking_lot::Condvar;

use super::job::run_guarded;
use super::timer::Timer;
use crate::lock_order::{Mutex, MutexGuard, rank::CALLBACKS};
use crate::logging;
use crate::time::{Clock, Job, SystemClock};

/// How long a thread waits for a callback before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// How soon a thread that could not be started is tried again.
const START_RETRY: Duration = Duration::from_millis(100);

pub(crate) struct Callbacks {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<CALLBACKS, Queue>,
    work: Condvar,
    timer: Timer,
    /// How many further threads cannot be started.
    #[cfg(test)]
    start_failures: AtomicUsize,
}

/// If more callbacks wait than threads are idle, a thread is starting. Only one starts at a time,
/// as the existing threads may finish many short callbacks meanwhile.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_starting: bool,
    /// The last start has failed.
    start_failed: bool,
    /// Threads end as soon as they have nothing to do.
    closed: bool,
}

impl Callbacks {
    /// Makes one without threads. The timer must be shut down before it.
    pub(crate) fn new(timer: Timer) -> Callbacks {
        let shared = Shared {
            queue: Mutex::default(),
            work: Condvar::new(),
            timer,
            #[cfg(test)]
            start_failures: AtomicUsize::new(0),
        };
        Callbacks { shared: Arc::new(shared) }
    }

    /// Runs a callback soon, even after the [shut-down](Callbacks::shut_down).
    pub(crate) fn submit(&self, callback: Job) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(callback);
        if queue.idle > 0 {
            self.shared.work.notify_one();
        }
        self.shared.staff(queue);
    }

    /// Ends the threads once the callbacks submitted so far have returned.
    pub(crate) fn shut_down(&self) {
        let mut queue = self.shared.queue.lock();
        queue.closed = true;
        self.shared.work.notify_all();
        // The timer has dropped the retry of a failed start.
        self.shared.staff(queue);
    }
}

impl Shared {
    /// Starts a thread if more callbacks wait than threads are idle.
    fn staff(self: &Arc<Self>, mut queue: MutexGuard<'_, CALLBACKS, Queue>) {
        if queue.jobs.len() <= queue.idle || queue.is_starting {
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
        thread::Builder::new().name("zk-lock-callback".to_owned()).spawn(move || shared.run()).map(drop)
    }

    fn start_failed(self: &Arc<Self>, error: &io::Error) {
        let (is_news, is_last_resort) = {
            let mut queue = self.queue.lock();
            let is_last_resort = queue.closed && queue.threads == 1;
            if !is_last_resort {
                queue.is_starting = false;
                queue.threads -= 1;
            }
            (!mem::replace(&mut queue.start_failed, true), is_last_resort)
        };
        if is_news {
            logging::error!("a listener is called late, as a thread could not be started: {error}");
        }
        if is_last_resort {
            return self.run();
        }
        let shared = Arc::clone(self);
        let retry = move || shared.staff(shared.queue.lock());
        self.timer.at(SystemClock.now().after(START_RETRY), Box::new(retry));
    }

    fn run(self: &Arc<Self>) {
        {
            let mut queue = self.queue.lock();
            (queue.is_starting, queue.start_failed) = (false, false);
        }
        while let Some(callback) = self.next_callback() {
            run_guarded(callback);
        }
    }

    /// Waits for the next callback; `None` ends the thread.
    fn next_callback(self: &Arc<Self>) -> Option<Job> {
        let mut queue = self.queue.lock();
        let mut timed_out = false;
        loop {
            if let Some(callback) = queue.jobs.pop_front() {
                self.staff(queue);
                return Some(callback);
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

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (threads, idle, jobs) = {
            let queue = self.shared.queue.lock();
            (queue.threads, queue.idle, queue.jobs.len())
        };
        f.debug_struct("Callbacks")
            .field("threads", &threads)
            .field("idle", &idle)
            .field("jobs", &jobs)
            .finish()
    }
}

#[cfg(test)]
impl Shared {
    fn is_start_refused(&self) -> bool {
        let one_less = |failures: usize| failures.checked_sub(1);
        self.start_failures.fetch_update(SeqCst, SeqCst, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{bounded, unbounded};

    use crate::testing::{eventually, next};

    fn callbacks() -> Callbacks {
        Callbacks::new(Timer::start().unwrap())
    }

    fn shut_down(callbacks: &Callbacks) {
        callbacks.shared.timer.shut_down();
        callbacks.shut_down();
    }

    #[test]
    fn a_callback_that_blocks_delays_no_other() {
        let callbacks = callbacks();
        let (release, blocked) = bounded::<()>(0);
        for _ in 0..50 {
            let blocked = blocked.clone();
            callbacks.submit(Box::new(move || assert!(blocked.recv().is_err())));
        }
        let (done, finished) = unbounded();
        callbacks.submit(Box::new(move || done.send(()).unwrap()));
        next(&finished);
        drop(release);
        shut_down(&callbacks);
        eventually("all threads end", || callbacks.shared.queue.lock().threads == 0);
    }

    #[test]
    fn an_idle_thread_is_used_again() {
        let callbacks = callbacks();
        let (done, finished) = unbounded();
        let mut threads = Vec::new();
        for _ in 0..10 {
            let done = done.clone();
            callbacks.submit(Box::new(move || done.send(thread::current().id()).unwrap()));
            threads.push(next(&finished));
            eventually("the thread is idle", || callbacks.shared.queue.lock().idle == 1);
        }
        assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "{threads:?}");
        shut_down(&callbacks);
    }

    #[test]
    fn a_callback_that_panics_costs_no_thread() {
        let callbacks = callbacks();
        let (done, finished) = unbounded();
        callbacks.submit(Box::new(|| panic!("on purpose")));
        eventually("the thread is idle", || callbacks.shared.queue.lock().idle == 1);
        callbacks.submit(Box::new(move || done.send(()).unwrap()));
        next(&finished);
        assert_eq!(callbacks.shared.queue.lock().threads, 1);
        shut_down(&callbacks);
    }

    #[test]
    fn callbacks_run_after_the_shut_down() {
        let callbacks = callbacks();
        shut_down(&callbacks);
        for _ in 0..3 {
            let (done, finished) = unbounded();
            callbacks.submit(Box::new(move || done.send(()).unwrap()));
            next(&finished);
        }
        eventually("all threads end", || callbacks.shared.queue.lock().threads == 0);
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_tried_again() {
        let callbacks = callbacks();
        callbacks.shared.start_failures.store(3, SeqCst);
        let (done, finished) = unbounded();
        callbacks.submit(Box::new(move || done.send(()).unwrap()));
        next(&finished);
        assert_eq!(callbacks.shared.start_failures.load(SeqCst), 0);
        shut_down(&callbacks);
    }

    #[test]
    fn callbacks_run_after_the_shut_down_without_a_thread() {
        let callbacks = callbacks();
        callbacks.shared.start_failures.store(usize::MAX, SeqCst);
        let (done, finished) = unbounded();
        for number in 0..3 {
            let done = done.clone();
            callbacks.submit(Box::new(move || done.send(number).unwrap()));
        }
        shut_down(&callbacks);
        callbacks.submit(Box::new(move || done.send(3).unwrap()));
        assert_eq!((0..4).map(|_| next(&finished)).collect::<Vec<_>>(), [0, 1, 2, 3]);
        eventually("no thread is counted", || callbacks.shared.queue.lock().threads == 0);
    }
}
