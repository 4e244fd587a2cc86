//! The callback threads: they call the listeners, which are the application's code and may block
//! for as long as they like.
//!
//! No callback waits for another: when all threads are busy, one more starts. So a listener that
//! blocks delays only the later callbacks of the same lock, whose mailbox calls one at a time. An
//! idle thread ends after a while.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use super::job::{Job, run_guarded};
use crate::lock_order::{Mutex, MutexGuard, rank::CALLBACKS};
use crate::logging;

/// How long a thread waits for a callback before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Callbacks {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<CALLBACKS, Queue>,
    work: Condvar,
}

/// If more callbacks wait than threads are idle, a thread is starting. Only one starts at a time,
/// as the existing threads may finish many short callbacks meanwhile.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    is_starting: bool,
    /// Threads end as soon as they have nothing to do.
    closed: bool,
}

impl Callbacks {
    /// Makes one without threads.
    pub(crate) fn new() -> Callbacks {
        Callbacks { shared: Arc::new(Shared { queue: Mutex::default(), work: Condvar::new() }) }
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
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
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
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("zk-lock-callback".to_owned());
        if let Err(error) = thread.spawn(move || shared.run()) {
            logging::error!("a listener is called late, as a thread could not be started: {error}");
            let mut queue = self.queue.lock();
            queue.is_starting = false;
            queue.threads -= 1;
        }
    }

    fn run(self: Arc<Self>) {
        self.queue.lock().is_starting = false;
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
mod tests {
    use super::*;

    use crossbeam_channel::{bounded, unbounded};

    use crate::testing::{eventually, next};

    #[test]
    fn a_callback_that_blocks_delays_no_other() {
        let callbacks = Callbacks::new();
        let (release, blocked) = bounded::<()>(0);
        for _ in 0..50 {
            let blocked = blocked.clone();
            callbacks.submit(Box::new(move || assert!(blocked.recv().is_err())));
        }
        let (done, finished) = unbounded();
        callbacks.submit(Box::new(move || done.send(()).unwrap()));
        next(&finished);
        drop(release);
        callbacks.shut_down();
        eventually("all threads end", || callbacks.shared.queue.lock().threads == 0);
    }

    #[test]
    fn an_idle_thread_is_used_again() {
        let callbacks = Callbacks::new();
        let (done, finished) = unbounded();
        let mut threads = Vec::new();
        for _ in 0..10 {
            let done = done.clone();
            callbacks.submit(Box::new(move || done.send(thread::current().id()).unwrap()));
            threads.push(next(&finished));
            eventually("the thread is idle", || callbacks.shared.queue.lock().idle == 1);
        }
        assert!(threads.windows(2).all(|pair| pair[0] == pair[1]), "{threads:?}");
        callbacks.shut_down();
    }

    #[test]
    fn a_callback_that_panics_costs_no_thread() {
        let callbacks = Callbacks::new();
        let (done, finished) = unbounded();
        callbacks.submit(Box::new(|| panic!("on purpose")));
        eventually("the thread is idle", || callbacks.shared.queue.lock().idle == 1);
        callbacks.submit(Box::new(move || done.send(()).unwrap()));
        next(&finished);
        assert_eq!(callbacks.shared.queue.lock().threads, 1);
        callbacks.shut_down();
    }

    #[test]
    fn callbacks_run_after_the_shut_down() {
        let callbacks = Callbacks::new();
        callbacks.shut_down();
        for _ in 0..3 {
            let (done, finished) = unbounded();
            callbacks.submit(Box::new(move || done.send(()).unwrap()));
            next(&finished);
        }
        eventually("all threads end", || callbacks.shared.queue.lock().threads == 0);
    }
}
