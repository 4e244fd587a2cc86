//! [`Threads`]: the runtime of a session in use.

use std::io;
use std::sync::Arc;
use std::thread;

use super::callbacks::Callbacks;
use super::timer::Timer;
use super::workers::Workers;
use crate::error::{LockError, Result};
use crate::time::{Clock, Job, Moment, Priority, Runtime, Signal, SystemClock, wait_by};

/// The runtime of a session in use: a few workers, one timer thread, and threads for callbacks
/// while there are any.
#[derive(Debug)]
pub(crate) struct Threads {
    workers: Workers,
    callbacks: Callbacks,
    timer: Timer,
}

impl Threads {
    pub(crate) fn start() -> Result<Arc<Threads>> {
        let workers = Workers::start().map_err(LockError::thread)?;
        match Timer::start() {
            Ok(timer) => {
                let callbacks = Callbacks::new(timer.clone());
                Ok(Arc::new(Threads { workers, callbacks, timer }))
            }
            Err(error) => {
                workers.shut_down();
                Err(LockError::thread(error))
            }
        }
    }
}

impl Runtime for Threads {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn submit(&self, priority: Priority, job: Job) {
        self.workers.submit(priority, job);
    }

    fn at(&self, moment: Moment, job: Job) {
        self.timer.at(moment, job);
    }

    fn submit_callback(&self, callback: Job) {
        self.callbacks.submit(callback);
    }

    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()> {
        thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
    }

    fn wait(&self, signals: &[&dyn Signal], deadline: Option<Moment>) -> bool {
        wait_by(&SystemClock, signals, deadline)
    }

    fn abandon(&self) {
        self.workers.abandon();
    }

    fn shut_down(&self) {
        // The timer before the callbacks, which it may start late.
        self.timer.shut_down();
        self.workers.shut_down();
        self.callbacks.shut_down();
    }
}
