//! The worker threads: they make the blocking ZooKeeper calls.
//!
//! A handful serves any number of locks: a waiting lock occupies none. A call can hang for as long
//! as the network swallows packets, so no thread joins a worker; a session that is lost abandons
//! those that are at work.
//!
//! When all of them are busy, a job of the session itself gets a worker beyond their number: an
//! owner in contact with a healthy server must not lose its lock because others are busy.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use super::job::run_guarded;
use crate::lock_order::{Mutex, MutexGuard, rank::WORKERS};
use crate::logging;
use crate::time::{Job, Priority};

/// How many requests of one session can be under way at once, beside its own. One connection
/// handles them one after the other, so more would not be faster.
const MAX_WORKERS: usize = 16;

/// How long a worker beyond the first waits for work before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

pub(crate) struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<WORKERS, Queue>,
    work: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: Jobs,
    /// Workers of the current generation, and how many of them wait for a job.
    workers: usize,
    idle: usize,
    /// Grows when the workers are abandoned; one of an older generation ends when it comes back.
    generation: u64,
    closed: bool,
}

/// The jobs that wait, by their priority.
#[derive(Default)]
struct Jobs(BTreeMap<Priority, VecDeque<Job>>);

impl Workers {
    /// Starts with one worker, which stays, so that work can always be done.
    pub(crate) fn start() -> io::Result<Workers> {
        #[cfg(test)]
        crate::testing::begin();
        let shared = Arc::new(Shared { queue: Mutex::default(), work: Condvar::new() });
        shared.queue.lock().workers = 1;
        shared.spawn(0)?;
        Ok(Workers { shared })
    }

    pub(crate) fn submit(&self, priority: Priority, job: Job) {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            // Dropped outside the lock: it may hold the last handle of something.
            drop(queue);
            return drop(job);
        }
        queue.jobs.push(priority, job);
        self.shared.staff(queue, priority);
    }

    pub(crate) fn abandon(&self) {
        let (generation, workers) = {
            let mut queue = self.shared.queue.lock();
            queue.generation += 1;
            queue.workers = queue.jobs.len().clamp(1, MAX_WORKERS);
            queue.idle = 0;
            (queue.generation, queue.workers)
        };
        self.shared.work.notify_all();
        for _ in 0..workers {
            self.shared.add_worker(generation);
        }
    }

    pub(crate) fn shut_down(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (workers, idle, jobs) = {
            let queue = self.shared.queue.lock();
            (queue.workers, queue.idle, queue.jobs.len())
        };
        f.debug_struct("Workers")
            .field("workers", &workers)
            .field("idle", &idle)
            .field("jobs", &jobs)
            .finish()
    }
}

impl Shared {
    /// Wakes or starts a worker for the newest job, which has this priority.
    fn staff(self: &Arc<Self>, mut queue: MutexGuard<'_, WORKERS, Queue>, priority: Priority) {
        if queue.jobs.len() <= queue.idle {
            self.work.notify_one();
        } else if queue.workers < MAX_WORKERS || priority == Priority::Session {
            queue.workers += 1;
            let generation = queue.generation;
            drop(queue);
            self.add_worker(generation);
        }
    }

    fn add_worker(self: &Arc<Self>, generation: u64) {
        if let Err(error) = self.spawn(generation) {
            logging::warn!("a further worker thread could not be started, the others take its work: {error}");
            self.queue.lock().retire(generation);
        }
    }

    fn spawn(self: &Arc<Self>, generation: u64) -> io::Result<()> {
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name("zk-lock-worker".to_owned());
        thread.spawn(move || shared.run(generation)).map(drop)
    }

    fn run(&self, generation: u64) {
        while let Some((priority, job)) = self.next_job(generation) {
            match priority {
                // Not counted meanwhile, so that another worker may take the place.
                Priority::Session => {
                    self.queue.lock().retire(generation);
                    run_guarded(job);
                    self.queue.lock().come_back(generation);
                }
                Priority::Owner | Priority::Other => run_guarded(job),
            }
        }
    }

    /// Waits for the next job; `None` ends the worker.
    fn next_job(&self, generation: u64) -> Option<(Priority, Job)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.generation != generation {
                return None;
            }
            if let Some(job) = queue.next_job() {
                return Some(job);
            }
            if queue.closed || queue.workers > MAX_WORKERS {
                queue.retire(generation);
                return None;
            }
            queue.idle += 1;
            let timed_out = queue.wait_for(&self.work, IDLE_TIME).timed_out();
            if queue.generation != generation {
                return None;
            }
            queue.idle -= 1;
            if timed_out && queue.jobs.len() == 0 && queue.workers > 1 {
                queue.retire(generation);
                return None;
            }
        }
    }
}

impl Jobs {
    fn push(&mut self, priority: Priority, job: Job) {
        self.0.entry(priority).or_default().push_back(job);
    }

    /// Takes the first job of those with this priority or a higher one.
    fn pop(&mut self, lowest: Priority) -> Option<(Priority, Job)> {
        self.0.range_mut(..=lowest).find_map(|(priority, jobs)| Some((*priority, jobs.pop_front()?)))
    }

    fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }
}

impl Queue {
    /// Takes the next job for a worker. One beyond their number takes jobs of the session only.
    fn next_job(&mut self) -> Option<(Priority, Job)> {
        let lowest = if self.workers > MAX_WORKERS { Priority::Session } else { Priority::Other };
        self.jobs.pop(lowest)
    }

    fn come_back(&mut self, generation: u64) {
        if self.generation == generation {
            self.workers += 1;
        }
    }

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

    use crate::testing::{deadline, eventually, next};

    #[test]
    fn jobs_that_wait_for_one_another_all_run() {
        let workers = Workers::start().unwrap();
        let (meet, met) = bounded::<()>(0);
        let (done, finished) = unbounded();
        for _ in 0..4 {
            let (met, done) = (met.clone(), done.clone());
            workers.submit(Priority::Other, Box::new(move || done.send(met.recv().is_err()).unwrap()));
        }
        // All four run at once before the first can end.
        drop(meet);
        for _ in 0..4 {
            assert!(next(&finished));
        }
        workers.shut_down();
    }

    #[test]
    fn a_job_that_panics_costs_no_worker() {
        let workers = Workers::start().unwrap();
        let (done, finished) = unbounded();
        workers.submit(Priority::Other, Box::new(|| panic!("on purpose")));
        workers.submit(Priority::Other, Box::new(move || done.send(()).unwrap()));
        next(&finished);
        workers.shut_down();
    }

    #[test]
    fn work_goes_on_after_stuck_workers_are_abandoned() {
        let workers = Workers::start().unwrap();
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..MAX_WORKERS {
            let (stuck, began) = (stuck.clone(), began.clone());
            workers.submit(
                Priority::Other,
                Box::new(move || {
                    began.send(()).unwrap();
                    let _ = stuck.recv();
                }),
            );
        }
        for _ in 0..MAX_WORKERS {
            next(&at_work);
        }
        let (done, finished) = unbounded();
        workers.submit(Priority::Other, Box::new(move || done.send(()).unwrap()));
        workers.abandon();
        next(&finished);
        drop(release);
        workers.shut_down();
    }

    #[test]
    fn abandoned_workers_end_and_leave_the_counts() {
        let workers = Workers::start().unwrap();
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..3 {
            let (stuck, began) = (stuck.clone(), began.clone());
            workers.submit(
                Priority::Other,
                Box::new(move || {
                    began.send(()).unwrap();
                    let _ = stuck.recv();
                }),
            );
        }
        for _ in 0..3 {
            next(&at_work);
        }
        workers.abandon();
        assert_eq!(workers.shared.queue.lock().workers, 1);
        drop(release);
        // The new worker has a handle, and this test one.
        eventually("the stuck ones end", || Arc::strong_count(&workers.shared) == 2);
        eventually("the new one is idle", || workers.shared.queue.lock().idle == 1);
        assert_eq!(workers.shared.queue.lock().workers, 1);
        workers.abandon();
        eventually("the idle one ends", || Arc::strong_count(&workers.shared) == 2);
        workers.shut_down();
        eventually("none is left", || Arc::strong_count(&workers.shared) == 1);
        let queue = workers.shared.queue.lock();
        assert_eq!((queue.workers, queue.idle), (0, 0));
    }

    #[test]
    fn a_job_of_the_session_runs_while_all_workers_are_busy() {
        let workers = Workers::start().unwrap();
        let (release, stuck) = bounded::<()>(0);
        for _ in 0..2 * MAX_WORKERS {
            let stuck = stuck.clone();
            workers.submit(Priority::Other, Box::new(move || assert!(stuck.recv().is_err())));
        }
        let (done, finished) = unbounded();
        for round in 0..3 {
            let done = done.clone();
            workers.submit(Priority::Session, Box::new(move || done.send(round).unwrap()));
            assert_eq!(next(&finished), round);
        }
        eventually("the workers have come so far", || workers.shared.queue.lock().workers <= MAX_WORKERS);
        drop(release);
        workers.shut_down();
    }

    #[test]
    fn jobs_of_owners_come_before_those_of_others() {
        let workers = Workers::start().unwrap();
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..MAX_WORKERS {
            let (stuck, began) = (stuck.clone(), began.clone());
            workers.submit(
                Priority::Other,
                Box::new(move || {
                    began.send(()).unwrap();
                    let _ = stuck.recv();
                }),
            );
        }
        for _ in 0..MAX_WORKERS {
            next(&at_work);
        }
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        for priority in [Priority::Other, Priority::Owner, Priority::Other, Priority::Owner] {
            let order = Arc::clone(&order);
            workers.submit(priority, Box::new(move || order.lock().push(priority)));
        }
        // One worker alone does the rest.
        release.send(()).unwrap();
        eventually("the workers have come so far", || order.lock().len() >= 4);
        assert!(order.lock().is_sorted(), "{order:?}");
        drop(release);
        workers.shut_down();
    }

    #[test]
    fn jobs_submitted_before_the_shut_down_are_done() {
        let workers = Workers::start().unwrap();
        let (done, finished) = unbounded();
        for _ in 0..100 {
            let done = done.clone();
            workers.submit(Priority::Other, Box::new(move || done.send(()).unwrap()));
        }
        workers.shut_down();
        drop(done);
        let mut count = 0;
        while finished.recv_timeout(deadline()).is_ok() {
            count += 1;
        }
        assert_eq!(count, 100);
    }
}
