//! The worker threads: they make the blocking ZooKeeper calls and call the listeners.
//!
//! A handful serves any number of locks: a waiting lock occupies none. A call can hang for as long as the network
//! swallows packets, so nobody ever joins a worker; a session that is lost abandons those that are at work.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::job::{Job, run_guarded};

/// How many requests of one session can be under way at once. One connection handles them one after the other, so more
/// would not be faster.
const MOST_WORKERS: usize = 16;

/// How long a worker beyond the first waits for work before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is a worker of some session.
pub(crate) fn is_worker() -> bool {
    IS_WORKER.get()
}

pub(crate) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Workers of the current generation, and how many of them wait for a job.
    workers: usize,
    idle: usize,
    /// Grows when the workers are abandoned; one of an older generation ends when it comes back.
    generation: u64,
    closed: bool,
}

impl Workers {
    /// Starts with one worker, which stays, so that work can always be done.
    pub(crate) fn start() -> io::Result<Workers> {
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new() });
        shared.queue.lock().workers = 1;
        shared.spawn(0)?;
        Ok(Workers { shared })
    }

    pub(crate) fn submit(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return;
        }
        queue.jobs.push_back(job);
        if queue.jobs.len() <= queue.idle {
            self.shared.work.notify_one();
        } else if queue.workers < MOST_WORKERS {
            queue.workers += 1;
            let generation = queue.generation;
            drop(queue);
            self.add_worker(generation);
        }
    }

    fn add_worker(&self, generation: u64) {
        if let Err(error) = self.shared.spawn(generation) {
            log::warn!("a further worker thread could not be started, the others take its work: {error}");
            self.shared.queue.lock().retire(generation);
        }
    }

    pub(crate) fn abandon(&self) {
        let (generation, workers) = {
            let mut queue = self.shared.queue.lock();
            queue.generation += 1;
            queue.workers = queue.jobs.len().clamp(1, MOST_WORKERS);
            queue.idle = 0;
            (queue.generation, queue.workers)
        };
        self.shared.work.notify_all();
        for _ in 0..workers {
            self.add_worker(generation);
        }
    }

    pub(crate) fn shut_down(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue.lock();
        f.debug_struct("Workers")
            .field("workers", &queue.workers)
            .field("idle", &queue.idle)
            .field("jobs", &queue.jobs.len())
            .finish()
    }
}

impl Shared {
    fn spawn(self: &Arc<Self>, generation: u64) -> io::Result<()> {
        let shared = Arc::clone(self);
        thread::Builder::new().name("zk-lock-worker".to_owned()).spawn(move || {
            IS_WORKER.set(true);
            while let Some(job) = shared.next_job(generation) {
                run_guarded(job);
            }
        })?;
        Ok(())
    }

    /// Waits for the next job; `None` ends the worker.
    fn next_job(&self, generation: u64) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.generation != generation {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                queue.retire(generation);
                return None;
            }
            queue.idle += 1;
            let timed_out = self.work.wait_for(&mut queue, IDLE_TIME).timed_out();
            if queue.generation != generation {
                return None;
            }
            queue.idle -= 1;
            if timed_out && queue.jobs.is_empty() && queue.workers > 1 {
                queue.retire(generation);
                return None;
            }
        }
    }
}

impl Queue {
    fn retire(&mut self, generation: u64) {
        if self.generation == generation {
            self.workers -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{bounded, unbounded};

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn jobs_that_wait_for_one_another_all_run() {
        let workers = Workers::start().unwrap();
        let (meet, met) = bounded::<()>(0);
        let (done, finished) = unbounded();
        for _ in 0..4 {
            let (met, done) = (met.clone(), done.clone());
            workers.submit(Box::new(move || done.send(met.recv().is_err()).unwrap()));
        }
        // All four are at work at once before the first can end.
        drop(meet);
        for _ in 0..4 {
            assert!(finished.recv_timeout(PATIENCE).unwrap());
        }
        workers.shut_down();
    }

    #[test]
    fn a_job_that_panics_costs_no_worker() {
        let workers = Workers::start().unwrap();
        let (done, finished) = unbounded();
        workers.submit(Box::new(|| panic!("on purpose")));
        workers.submit(Box::new(move || done.send(is_worker()).unwrap()));
        assert!(finished.recv_timeout(PATIENCE).unwrap());
        assert!(!is_worker());
        workers.shut_down();
    }

    #[test]
    fn work_goes_on_after_stuck_workers_are_abandoned() {
        let workers = Workers::start().unwrap();
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..MOST_WORKERS {
            let (stuck, began) = (stuck.clone(), began.clone());
            workers.submit(Box::new(move || {
                began.send(()).unwrap();
                let _ = stuck.recv();
            }));
        }
        for _ in 0..MOST_WORKERS {
            at_work.recv_timeout(PATIENCE).unwrap();
        }
        let (done, finished) = unbounded();
        workers.submit(Box::new(move || done.send(()).unwrap()));
        workers.abandon();
        finished.recv_timeout(PATIENCE).unwrap();
        drop(release);
        workers.shut_down();
    }

    #[test]
    fn jobs_submitted_before_the_shut_down_are_done() {
        let workers = Workers::start().unwrap();
        let (done, finished) = unbounded();
        for _ in 0..100 {
            let done = done.clone();
            workers.submit(Box::new(move || done.send(()).unwrap()));
        }
        workers.shut_down();
        drop(done);
        let mut count = 0;
        while finished.recv_timeout(PATIENCE).is_ok() {
            count += 1;
        }
        assert_eq!(count, 100);
    }
}
