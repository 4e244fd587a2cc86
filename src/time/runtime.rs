//! [`Runtime`]: the time, the threads, the waits and the timer of a session.
//!
//! A trait, so that a test can run a whole session on one thread and with a simulated clock.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use uuid::Uuid;

use super::latch::{Latch, park_until_set};
use super::{Clock, MAX_SLEEP, Moment};
use crate::logging;
use crate::panics::contain;

/// A piece of work for a thread of the session's.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// The purpose of a job. Of the jobs that wait for a thread, the first of these come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Priority {
    /// The proof of the session, and its end. Such a job never waits for jobs of another kind to end.
    Session,
    /// A call of the application's code. It may block for ever, and delays no other job by that.
    Callback,
    /// The work that an owner needs to keep its lock, and deletions, which let the next owner in.
    Owner,
    Other,
}

impl Priority {
    /// The [urgency](crate::client::port::Done::urgency) of a call.
    pub(crate) fn urgency(self) -> u8 {
        match self {
            Priority::Session => 0,
            Priority::Owner | Priority::Callback => 1,
            Priority::Other => 2,
        }
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn of_urgency(urgency: u8) -> Priority {
        match urgency {
            0 => Priority::Session,
            1 => Priority::Owner,
            _ => Priority::Other,
        }
    }
}

pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    fn now(&self) -> Moment;

    /// Runs a job that may block, soon, on a thread of the session's; callbacks even after
    /// [`shut_down`](Runtime::shut_down).
    fn submit(&self, priority: Priority, job: Job);

    /// Runs a job at that moment or soon after. It must be short and must not block.
    fn at(&self, moment: Moment, job: Job);

    /// Starts a thread that may wait and run the application's code. It ends with its body.
    fn spawn(&self, name: &'static str, body: Job) -> io::Result<()>;

    /// Blocks until one of the latches is set, or until the deadline. Returns `false` at the
    /// deadline if none is set.
    ///
    /// Every blocking call of the library waits here, even after
    /// [`shut_down`](Runtime::shut_down).
    fn wait(&self, latches: &[&Latch], deadline: Option<Moment>) -> bool;

    /// Ends all threads once the jobs submitted so far are done; timers are dropped.
    fn shut_down(&self);

    /// The longest time for which a session relies on its watches, without a routine look.
    fn routine_pause(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The number of calls under way at once, beyond which others wait; twice as many for owners and deletions.
    ///
    /// Over a round trip of 100 ms, a session still makes 5,000 calls in a second. And a keep-alive is behind at
    /// most the 1,000 requests that a server takes in before it throttles (`globalOutstandingLimit`), which
    /// it answers in a small part of the shortest session timeout.
    fn window(&self) -> usize {
        512
    }

    /// Makes a new GUID.
    fn new_guid(&self) -> Uuid {
        Uuid::new_v4()
    }
}

/// [Waits](Runtime::wait) by this clock.
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

/// Wakes the tasks that wait for these latches, as far as those are set. Called on a callback thread.
///
/// A waker may block. So each but the last gets a callback thread for itself.
pub(crate) fn wake_tasks<'a>(runtime: &dyn Runtime, latches: impl IntoIterator<Item = &'a Latch>) {
    let mut wakers: Vec<Waker> = latches.into_iter().flat_map(Latch::take_wakers).collect();
    let last = wakers.pop();
    for waker in wakers {
        runtime.submit(Priority::Callback, Box::new(move || wake(waker)));
    }
    if let Some(last) = last {
        wake(last);
    }
}

/// As [`wake_tasks`], for a caller on any thread, which no waker holds up.
pub(crate) fn submit_wake_up(runtime: &Arc<dyn Runtime>, latch: &Latch) {
    if latch.has_tasks_to_wake() {
        let (of_job, latch) = (Arc::clone(runtime), latch.clone());
        runtime.submit(Priority::Callback, Box::new(move || wake_tasks(&*of_job, [&latch])));
    }
}

fn wake(waker: Waker) {
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

    /// The machine is suspended for two hours right after the first reading.
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
