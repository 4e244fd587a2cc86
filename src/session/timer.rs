//! The timer thread, which runs short jobs when they are due.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::Condvar;

use super::pool::run_guarded;
use crate::lock_order::{Mutex, rank::TIMER};
use crate::logging;
use crate::time::{Clock, Job, MAX_SLEEP, Moment, SystemClock};

/// A handle to the timer thread.
#[derive(Clone)]
pub(crate) struct Timer {
    shared: Arc<Clockwork>,
}

struct Clockwork {
    schedule: Mutex<TIMER, Schedule>,
    changed: Condvar,
}

#[derive(Default)]
struct Schedule {
    /// Ordered by time, then by submission.
    entries: BTreeMap<(Moment, u64), Job>,
    submitted: u64,
    closed: bool,
}

impl Timer {
    pub(crate) fn start() -> io::Result<Timer> {
        let shared = Arc::new(Clockwork { schedule: Mutex::default(), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        thread::Builder::new().name("zk-lock-timer".to_owned()).spawn(move || of_thread.run())?;
        Ok(Timer { shared })
    }

    pub(crate) fn at(&self, due: Moment, job: Job) {
        let mut schedule = self.shared.schedule.lock();
        if schedule.closed {
            return;
        }
        let is_next = schedule.entries.first_key_value().is_none_or(|((next, _), _)| due < *next);
        schedule.submitted += 1;
        let number = schedule.submitted;
        schedule.entries.insert((due, number), job);
        if is_next {
            self.shared.changed.notify_one();
        }
    }

    pub(crate) fn shut_down(&self) {
        let dropped = {
            let mut schedule = self.shared.schedule.lock();
            schedule.closed = true;
            std::mem::take(&mut schedule.entries)
        };
        // Outside the mutex, because a job may hold the last handle to something.
        drop(dropped);
        self.shared.changed.notify_one();
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.shared.schedule.lock().entries.len();
        f.debug_struct("Timer").field("entries", &entries).finish()
    }
}

impl Clockwork {
    fn run(&self) {
        logging::never_wait_on_this_thread();
        while let Some(job) = self.next_job() {
            run_guarded(job);
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut schedule = self.schedule.lock();
        loop {
            if schedule.closed {
                return None;
            }
            let now = SystemClock.now();
            match schedule.entries.first_key_value().map(|((due, _), _)| *due) {
                None => schedule.wait(&self.changed),
                Some(due) if due <= now => return schedule.entries.pop_first().map(|(_, job)| job),
                Some(due) => {
                    schedule.wait_for(&self.changed, due.since(now).min(MAX_SLEEP));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use crossbeam_channel::unbounded;

    use crate::tests::{deadline, next};

    #[test]
    fn jobs_run_in_the_order_of_their_times_not_before() {
        let timer = Timer::start().unwrap();
        let (ran, order) = unbounded();
        let start = SystemClock.now();
        for delay in [30, 10, 20] {
            let ran = ran.clone();
            let due = start.after(Duration::from_millis(delay));
            timer.at(due, Box::new(move || ran.send((delay, SystemClock.now() >= due)).unwrap()));
        }
        let order: Vec<_> = (0..3).map(|_| next(&order)).collect();
        assert_eq!(order, [(10, true), (20, true), (30, true)]);
        timer.shut_down();
    }

    #[test]
    fn a_shut_down_drops_the_later_jobs() {
        let timer = Timer::start().unwrap();
        let (ran, order) = unbounded::<()>();
        timer.at(SystemClock.now().after(Duration::from_secs(3600)), Box::new(move || drop(ran)));
        timer.shut_down();
        assert!(order.recv_timeout(deadline()).is_err_and(|error| error.is_disconnected()));
    }
}
