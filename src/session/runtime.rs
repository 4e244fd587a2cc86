//! [`Runtime`]: the time, the threads, the waits and the timer of a session.
//!
//! A trait, so that a test can run a whole session on one thread and with a simulated clock.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use uuid::Uuid;

use super::callbacks::Callbacks;
use super::clock::{Clock, Moment, SystemClock};
use super::job::Job;
use super::timer::Timer;
use super::workers::Workers;
use crate::error::{LockError, Result};

/// Which of the jobs that wait for a worker comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// What the session lives by: its proof, and its end. Such a job never waits for jobs of
    /// another kind to end.
    Session,
    /// What an owner needs to keep its lock.
    Owner,
    Other,
}

pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    fn now(&self) -> Moment;

    /// Runs a job that may block, soon, on a thread of the session's.
    fn submit(&self, priority: Priority, job: Job);

    /// Runs a job at that moment or soon after. It must be short and must not block.
    fn at(&self, moment: Moment, job: Job);

    /// Runs a callback of the application's, soon, on a thread where it delays nothing else while
    /// it blocks; even after [`shut_down`](Runtime::shut_down).
    fn submit_callback(&self, callback: Job);

    /// Starts a thread that may wait and run the application's code. It ends with its body.
    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()>;

    /// Blocks until one of the signals is ready, or until the deadline. Returns `false` at the
    /// deadline if none is ready.
    ///
    /// Every blocking call of the library waits here, even after
    /// [`shut_down`](Runtime::shut_down).
    fn wait(&self, signals: &[&dyn Signal], deadline: Option<Moment>) -> bool;

    /// Abandons the workers that are busy now, as they may be stuck for ever, and starts others.
    fn abandon(&self);

    /// Ends all threads once the jobs submitted so far are done; timers are dropped.
    fn shut_down(&self);

    /// The longest time for which a session relies on its watches, without a routine look.
    fn routine_pause(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Makes a new GUID.
    fn new_guid(&self) -> Uuid {
        Uuid::new_v4()
    }
}

/// Something to wait for: a channel, which is ready when it has a message or is disconnected.
pub(crate) trait Signal {
    fn add_to<'a>(&'a self, select: &mut Select<'a>);

    /// Checks for readiness later, and on another thread.
    #[cfg(test)]
    fn readiness(&self) -> Box<dyn Fn() -> bool + Send>;
}

impl<T: Send + 'static> Signal for Receiver<T> {
    fn add_to<'a>(&'a self, select: &mut Select<'a>) {
        select.recv(self);
    }

    #[cfg(test)]
    fn readiness(&self) -> Box<dyn Fn() -> bool + Send> {
        let channel = self.clone();
        Box::new(move || is_ready(&[&channel]))
    }
}

/// Whether one of the signals is ready.
#[cfg(test)]
pub(crate) fn is_ready(signals: &[&dyn Signal]) -> bool {
    select_of(signals).try_ready().is_ok()
}

/// Whether a channel that carries no messages is disconnected.
pub(crate) fn is_disconnected(latch: &Receiver<Infallible>) -> bool {
    latch.try_recv() == Err(TryRecvError::Disconnected)
}

fn select_of<'a>(signals: &[&'a dyn Signal]) -> Select<'a> {
    let mut select = Select::new();
    for signal in signals {
        signal.add_to(&mut select);
    }
    select
}

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
        let mut select = select_of(signals);
        match deadline {
            Some(deadline) => select.ready_timeout(deadline.since(self.now())).is_ok(),
            None => {
                select.ready();
                true
            }
        }
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
