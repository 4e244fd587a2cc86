//! [`Workers`]: the threads on which calls block.
//!
//! A thread is started when a job finds no idle thread, and ends after some idle time. A call can hang for as
//! long as the network swallows packets. Therefore jobs of urgency 0 never wait for another job, and threads
//! are never joined. The other jobs share a limit, because one connection serves them one by one anyway.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use log::Level;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::logging;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// How many of the jobs that share the limit may run at once.
const MAX_AT_WORK: usize = 16;

/// How long an idle thread waits for a job before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// A pool of threads. A clone is another handle to the same threads.
#[derive(Clone)]
pub(crate) struct Workers {
    crew: Arc<Crew>,
}

#[derive(Default)]
struct Crew {
    backlog: Mutex<Backlog>,
    work: Condvar,
}

#[derive(Default)]
struct Backlog {
    /// The waiting jobs by urgency.
    jobs: BTreeMap<u8, VecDeque<Job>>,
    /// The number of threads, not counting abandoned ones.
    threads: usize,
    /// The number of these threads that have no job. They may still be starting.
    free: usize,
    /// The number of running jobs that share the limit.
    at_work: usize,
    /// Incremented when threads are abandoned. A thread whose job shares the limit and is from an earlier generation
    /// ends with that job.
    generation: u64,
    /// Whether threads end as soon as they have nothing to do.
    is_closed: bool,
}

impl Workers {
    pub(crate) fn new() -> Workers {
        Workers { crew: Arc::default() }
    }

    /// Submits a job. The job is dropped if it comes after the [shutdown](Workers::shut_down), or if no thread
    /// can be started for it and no other thread is left.
    pub(crate) fn submit(&self, urgency: u8, job: Job) {
        let mut backlog = self.crew.backlog.lock();
        if backlog.is_closed {
            // Drop the job outside the lock, because it may hold the last handle to something.
            return drop((backlog, job));
        }
        backlog.jobs.entry(urgency).or_default().push_back(job);
        self.crew.wake_or_start(backlog);
    }

    /// Writes off the threads whose jobs share the limit: they may be stuck forever.
    pub(crate) fn abandon(&self) {
        let mut backlog = self.crew.backlog.lock();
        backlog.generation += 1;
        backlog.threads -= mem::take(&mut backlog.at_work);
        self.crew.wake_or_start(backlog);
    }

    /// Ends the threads once the jobs submitted so far are done.
    pub(crate) fn shut_down(&self) {
        self.crew.backlog.lock().is_closed = true;
        self.crew.work.notify_all();
    }
}

impl Crew {
    /// Wakes or starts threads for the jobs that could run.
    fn wake_or_start(self: &Arc<Self>, mut backlog: MutexGuard<'_, Backlog>) {
        let missing = backlog.runnable().saturating_sub(backlog.free);
        backlog.threads += missing;
        backlog.free += missing;
        drop(backlog);
        self.work.notify_all();
        (0..missing).for_each(|_| self.start());
    }

    fn start(self: &Arc<Self>) {
        let crew = Arc::clone(self);
        let started = thread::Builder::new().name("zk-lock-worker".to_owned()).spawn(move || crew.run());
        if let Err(error) = started {
            logging::write(
                Level::Error,
                format_args!("cannot start a thread, so calls are late or fail: {error}"),
            );
            let stranded = self.backlog.lock().lose_thread();
            // Drop the jobs outside the lock, because this fails their calls.
            drop(stranded);
        }
    }

    fn run(&self) {
        while let Some((urgency, generation, job)) = self.next_job() {
            job();
            let mut backlog = self.backlog.lock();
            if is_limited(urgency) && !backlog.rejoin(generation) {
                return;
            }
            backlog.free += 1;
        }
    }

    /// Waits for the next job. `None` ends the thread.
    fn next_job(&self) -> Option<(u8, u64, Job)> {
        let mut backlog = self.backlog.lock();
        let mut timed_out = false;
        loop {
            if let Some((urgency, job)) = backlog.pop() {
                backlog.free -= 1;
                return Some((urgency, backlog.generation, job));
            }
            if timed_out || backlog.is_closed {
                backlog.threads -= 1;
                backlog.free -= 1;
                return None;
            }
            timed_out = self.work.wait_for(&mut backlog, IDLE_TIME).timed_out();
        }
    }
}

/// Returns whether jobs of this urgency share the limit.
fn is_limited(urgency: u8) -> bool {
    urgency > 0
}

impl Backlog {
    /// Returns how many jobs could run now, given enough threads.
    fn runnable(&self) -> usize {
        let count = |limited: bool| {
            let queues = self.jobs.iter().filter(|(urgency, _)| is_limited(**urgency) == limited);
            queues.map(|(_, jobs)| jobs.len()).sum::<usize>()
        };
        count(false) + count(true).min(MAX_AT_WORK.saturating_sub(self.at_work))
    }

    /// Adjusts the counts for a thread that could not be started. Returns the jobs that no other thread will
    /// run.
    fn lose_thread(&mut self) -> BTreeMap<u8, VecDeque<Job>> {
        self.threads -= 1;
        self.free -= 1;
        if self.threads == 0 { mem::take(&mut self.jobs) } else { BTreeMap::new() }
    }

    fn pop(&mut self) -> Option<(u8, Job)> {
        let is_full = self.at_work >= MAX_AT_WORK;
        let mut queues = self.jobs.iter_mut().filter(|(urgency, _)| !(is_full && is_limited(**urgency)));
        let (urgency, job) = queues.find_map(|(urgency, jobs)| Some((*urgency, jobs.pop_front()?)))?;
        self.at_work += usize::from(is_limited(urgency));
        Some((urgency, job))
    }

    /// Ends a job that shares the limit. Returns whether its thread still belongs to the pool.
    fn rejoin(&mut self, generation: u64) -> bool {
        let is_counted = self.generation == generation;
        self.at_work -= usize::from(is_counted);
        is_counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

    const LONG: Duration = Duration::from_secs(30);

    fn next<T>(receiver: &Receiver<T>) -> T {
        receiver.recv_timeout(LONG).unwrap()
    }

    fn eventually(holds: impl Fn() -> bool) {
        let until = std::time::Instant::now() + LONG;
        while !holds() {
            assert!(std::time::Instant::now() < until, "the condition must hold in time");
            thread::yield_now();
        }
    }

    /// Keeps `count` threads busy until the sender is dropped.
    fn occupy(workers: &Workers, count: usize) -> Sender<()> {
        let (release, stuck) = bounded::<()>(0);
        let (began, at_work) = unbounded();
        for _ in 0..count {
            let (stuck, began) = (stuck.clone(), began.clone());
            let job = move || {
                began.send(()).unwrap();
                let _ = stuck.recv();
            };
            workers.submit(2, Box::new(job));
        }
        (0..count).for_each(|_| next(&at_work));
        release
    }

    #[test]
    fn jobs_that_wait_for_one_another_all_run_and_their_threads_end() {
        let workers = Workers::new();
        let release = occupy(&workers, 4);
        assert_eq!(workers.crew.backlog.lock().threads, 4);
        drop(release);
        workers.shut_down();
        eventually(|| workers.crew.backlog.lock().threads == 0);
        assert_eq!(workers.crew.backlog.lock().free, 0);
    }

    #[test]
    fn no_more_run_at_once_than_the_limit_but_what_proves_the_session() {
        let workers = Workers::new();
        let release = occupy(&workers, MAX_AT_WORK);
        let (done, finished) = unbounded();
        let of_other = done.clone();
        workers.submit(1, Box::new(move || of_other.send("other").unwrap()));
        workers.submit(0, Box::new(move || done.send("session").unwrap()));
        assert_eq!(next(&finished), "session");
        assert!(finished.is_empty());
        drop(release);
        assert_eq!(next(&finished), "other");
        workers.shut_down();
    }

    #[test]
    fn urgent_jobs_come_first() {
        let workers = Workers::new();
        let release = occupy(&workers, MAX_AT_WORK);
        let order = Arc::new(Mutex::new(Vec::new()));
        for urgency in [2, 1, 2, 1] {
            let order = Arc::clone(&order);
            workers.submit(urgency, Box::new(move || order.lock().push(urgency)));
        }
        // Free one thread, which runs all the rest.
        release.send(()).unwrap();
        eventually(|| order.lock().len() == 4);
        assert_eq!(*order.lock(), [1, 1, 2, 2]);
        drop(release);
        workers.shut_down();
    }

    #[test]
    fn work_goes_on_after_stuck_threads_are_abandoned() {
        let workers = Workers::new();
        let release = occupy(&workers, MAX_AT_WORK);
        let (done, finished) = unbounded();
        workers.submit(2, Box::new(move || done.send(()).unwrap()));
        workers.abandon();
        next(&finished);
        drop(release);
        // One handle is `workers`; the other belongs to the remaining thread.
        eventually(|| Arc::strong_count(&workers.crew) == 2);
        eventually(|| workers.crew.backlog.lock().free == 1);
        let backlog = workers.crew.backlog.lock();
        assert_eq!((backlog.threads, backlog.at_work), (1, 0));
        drop(backlog);
        workers.shut_down();
    }

    #[test]
    fn jobs_from_before_the_shut_down_are_done_and_later_ones_dropped() {
        let workers = Workers::new();
        let (done, finished) = unbounded();
        for number in 0..101 {
            if number == 100 {
                workers.shut_down();
            }
            let done = done.clone();
            workers.submit(2, Box::new(move || done.send(number).unwrap()));
        }
        drop(done);
        assert_eq!(std::iter::from_fn(|| finished.recv_timeout(LONG).ok()).count(), 100);
    }

    #[test]
    fn jobs_are_dropped_when_there_is_no_thread_for_them() {
        let workers = Workers::new();
        let (done, dropped) = bounded::<()>(0);
        {
            let mut backlog = workers.crew.backlog.lock();
            backlog.jobs.entry(2).or_default().push_back(Box::new(move || drop(done)));
            (backlog.threads, backlog.free) = (1, 1);
        }
        let stranded = workers.crew.backlog.lock().lose_thread();
        drop(stranded);
        assert!(dropped.recv_timeout(LONG).is_err_and(|error| error.is_disconnected()));
        assert_eq!(workers.crew.backlog.lock().threads, 0);
    }
}
