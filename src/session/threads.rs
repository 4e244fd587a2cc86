//! [`Threads`]: the runtime of a session outside of tests.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use super::pool::{Pool, run_guarded};
use super::timer::Timer;
use crate::error::{LockError, Result};
use crate::process::Process;
use crate::time::{Clock, Job, Latch, Moment, Priority, Runtime, SystemClock, wait_by, wake};

/// A runtime with one timer thread, and more threads while something may block.
///
/// A forked child has none of these threads, and their mutexes may stay held forever. In such a child, the submitting
/// thread runs the jobs, and timers never fire.
pub(crate) struct Threads {
    pool: Pool,
    timer: Timer,
    process: Process,
}

impl Threads {
    pub(crate) fn start() -> Result<Arc<Threads>> {
        let timer = Timer::start().map_err(LockError::thread)?;
        Ok(Arc::new(Threads { pool: Pool::new(timer.clone()), timer, process: Process::current() }))
    }
}

impl Runtime for Threads {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        match self.process.is_current() {
            true => self.pool.submit(priority, job),
            false => run_guarded(job),
        }
    }

    fn wake(&self, wakers: Vec<Waker>) {
        match self.process.is_current() {
            true => self.pool.wake(wakers),
            false => wakers.into_iter().for_each(wake),
        }
    }

    fn at(&self, moment: Moment, job: Job) {
        if self.process.is_current() {
            self.timer.at(moment, job);
        }
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }

    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool {
        wait_by(&SystemClock, latches, deadline)
    }

    fn shut_down(&self) {
        if !self.process.is_current() {
            return;
        }
        // The timer is shut down first, because it may be about to start a thread of the pool.
        self.timer.shut_down();
        self.pool.shut_down();
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut threads = f.debug_struct("Threads");
        if self.process.is_current() {
            threads.field("pool", &self.pool).field("timer", &self.timer);
        }
        threads.finish_non_exhaustive()
    }
}
