//! [`Runtime`]: the time, the threads, the waits and the timer of a session.
//!
//! It is a trait so that a test can run a whole session on one thread with a simulated clock.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use uuid::Uuid;
use zookeeper_connection::support;

use super::latch::{Latch, park_until_set};
use super::{Clock, MAX_SLEEP, Moment};
use crate::logging;
use crate::panics::contain;

/// A piece of work for a thread of the session.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The purpose of a job, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Priority {
    /// The proof that the session is alive, and the end of the session. Such a job never waits for jobs with another
    /// purpose.
    Session,
    /// A call of the application's code. It may block forever without delaying any other job.
    Callback,
    /// What an owner needs to keep its lock, and deletions, which let the next owner in.
    Owner,
    Other,
}

impl Priority {
    /// Returns the [urgency](crate::client::Done::urgency) of a call.
    pub(crate) fn urgency(self) -> u8 {
        match self {
            Priority::Session => 0,
            Priority::Owner | Priority::Callback => 1,
            Priority::Other => 2,
        }
    }
}

pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    fn now(&self) -> Moment;

    /// Runs a job soon, on a thread of the session. The job may block. Runs callbacks even after
    /// [`shut_down`](Runtime::shut_down).
    fn submit(&self, priority: Priority, job: Job);

    /// Wakes tasks. Called on a callback thread. A waker may block, and must not hold up the others.
    fn wake(&self, mut wakers: Vec<Waker>) {
        let last = wakers.pop();
        for waker in wakers {
            self.submit(Priority::Callback, Box::new(move || wake(waker)));
        }
        last.into_iter().for_each(wake);
    }

    /// Runs a job at `moment` or soon after. The job must be short, and must not block.
    fn at(&self, moment: Moment, job: Job);

    /// Starts a thread that may wait and may run the application's code. The thread ends when `body` returns.
    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()>;

    /// Blocks until one of the latches is set, or until the deadline. Returns whether one of them is set.
    ///
    /// Every blocking call on a session waits here, even after [`shut_down`](Runtime::shut_down).
    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool;

    /// Ends the threads of [`submit`](Runtime::submit) once the jobs that were submitted so far are done. Ends the
    /// timer, and drops its jobs.
    fn shut_down(&self);

    /// Returns the longest time for which a session relies on its watches. After that, it reads the znodes again.
    fn routine_pause(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Returns how many calls may be under way at once. Calls of owners, and deletions, may be sent until twice as many
    /// calls are under way. Calls that prove that the session is alive are always sent.
    ///
    /// With this number, a session still makes 5,000 calls a second if a round trip takes 100 ms. A keep-alive waits
    /// for at most about 1,000 requests, which is also the number that a server accepts before it throttles
    /// (`globalOutstandingLimit`). A server answers 1,000 requests in a small part of the shortest session timeout.
    fn window(&self) -> usize {
        512
    }

    /// Makes a new GUID.
    fn new_guid(&self) -> Uuid {
        support::new_guid()
    }
}

/// Waits as [`Runtime::wait`] does, using this clock.
pub(crate) fn wait_by(clock: &dyn Clock, latches: &[&Latch], deadline: Option<Moment>) -> bool {
    park_until_set(latches, || {
        let Some(deadline) = deadline else {
            thread::park();
            return true;
        };
        let left = deadline.since(clock.now());
        if !left.is_zero() {
            thread::park_timeout(left.min(MAX_SLEEP));
        }
        !left.is_zero()
    })
}

/// Wakes the tasks that wait for these latches. Skips latches that are not set. Called on a callback thread.
pub(crate) fn wake_tasks<'a>(runtime: &dyn Runtime, latches: impl IntoIterator<Item = &'a Latch>) {
    let wakers: Vec<Waker> = latches.into_iter().flat_map(Latch::take_wakers).collect();
    if !wakers.is_empty() {
        runtime.wake(wakers);
    }
}

/// Does what [`wake_tasks`] does, but on a callback thread, so no waker can hold up the calling thread.
pub(crate) fn submit_wake_up(runtime: &Arc<dyn Runtime>, latch: &Latch) {
    if latch.has_tasks_to_wake() {
        let (of_job, latch) = (Arc::clone(runtime), latch.clone());
        runtime.submit(Priority::Callback, Box::new(move || wake_tasks(&*of_job, [&latch])));
    }
}

/// Wakes a task. A panic of the waker is only logged.
pub(crate) fn wake(waker: Waker) {
    if let Err(message) = contain(|| waker.wake()) {
        logging::error!("the waker of a future panicked: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::tests::{in_background, next};
    use crate::time::{Setter, SystemClock};

    const HOUR: Duration = Duration::from_secs(3600);

    /// A clock of a machine that is suspended for two hours right after the first reading.
    #[derive(Debug, Default)]
    struct Suspended(AtomicBool);

    impl Clock for Suspended {
        fn now(&self) -> Moment {
            let begun = Moment::from_nanos(0);
            if self.0.swap(true, Ordering::SeqCst) { begun.after(2 * HOUR) } else { begun }
        }
    }

    #[test]
    fn a_deadline_that_passes_while_the_machine_is_suspended_ends_a_wait() {
        let deadline = Moment::from_nanos(0).after(HOUR);
        let wait = move || wait_by(&Suspended::default(), &[&Latch::never()], Some(deadline));
        assert!(!next(&in_background(wait)));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_not_before() {
        let deadline = SystemClock.now().after(Duration::from_millis(20));
        assert!(!wait_by(&SystemClock, &[&Latch::never()], Some(deadline)));
        assert!(SystemClock.now() >= deadline);
    }

    #[test]
    fn a_wait_ends_when_a_latch_is_set() {
        for deadline in [None, Some(SystemClock.now().after(HOUR))] {
            let setter = Setter::new();
            let latch = setter.latch().clone();
            let waiting = in_background(move || wait_by(&SystemClock, &[&latch], deadline));
            setter.set();
            assert!(next(&waiting));
        }
    }
}
