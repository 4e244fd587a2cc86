//! [`Runtime`]: the time, the threads, the waits and the timer of a session.
//!
//! A trait, so that a test can run a whole session on one thread and with a simulated clock.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use uuid::Uuid;

use super::clock::{Clock, MAX_SLEEP, Moment};

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

pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    fn now(&self) -> Moment;

    /// Runs a job that may block, soon, on a thread of the session's; callbacks even after
    /// [`shut_down`](Runtime::shut_down).
    fn submit(&self, priority: Priority, job: Job);

    /// Runs a job at that moment or soon after. It must be short and must not block.
    fn at(&self, moment: Moment, job: Job);

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

/// Something to wait for: a channel, which is ready when it has a message or is disconnected.
pub(crate) trait Signal {
    fn add_to<'a>(&'a self, select: &mut Select<'a>);

    /// Checks for readiness later, and on another thread, while no third one uses the channel.
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
        // A `Select` spins before it finds nothing ready, and this is asked often.
        Box::new(move || {
            !channel.is_empty()
                || match channel.try_recv() {
                    Err(error) => error.is_disconnected(),
                    Ok(_) => unreachable!("the channel was empty"),
                }
        })
    }
}

/// Returns whether one of the signals is ready.
#[cfg(any(test, feature = "test-util"))]
pub(crate) fn is_ready(signals: &[&dyn Signal]) -> bool {
    select_of(signals).try_ready().is_ok()
}

/// Returns whether a channel that carries no messages is disconnected.
pub(crate) fn is_disconnected(latch: &Receiver<Infallible>) -> bool {
    latch.try_recv() == Err(TryRecvError::Disconnected)
}

/// A selection among the signals.
pub(crate) fn select_of<'a>(signals: &[&'a dyn Signal]) -> Select<'a> {
    let mut select = Select::new();
    for signal in signals {
        signal.add_to(&mut select);
    }
    select
}

/// [Waits](Runtime::wait) by this clock.
pub(crate) fn wait_by(clock: &dyn Clock, signals: &[&dyn Signal], deadline: Option<Moment>) -> bool {
    let mut select = select_of(signals);
    // A wait may end without a ready signal: another thread was faster to take the message.
    while select.try_ready().is_err() {
        let Some(deadline) = deadline else {
            select.ready();
            continue;
        };
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return false;
        }
        let _ = select.ready_timeout(left.min(MAX_SLEEP));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use crossbeam_channel::unbounded;

    use crate::tests::{in_background, next};
    use crate::time::SystemClock;

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
        let (_open, receiver) = unbounded::<()>();
        let deadline = Moment::from_nanos(0).after(HOUR);
        let waiting = in_background(move || wait_by(&Suspended::default(), &[&receiver], Some(deadline)));
        assert!(!next(&waiting));
    }

    #[test]
    fn a_message_that_another_thread_takes_does_not_end_a_wait() {
        const TIME: Duration = Duration::from_millis(50);
        let (sender, receiver) = unbounded();
        let waits_to_the_end = || {
            let waiter = receiver.clone();
            let deadline = SystemClock.now().after(2 * TIME);
            let waiting = in_background(move || wait_by(&SystemClock, &[&waiter], Some(deadline)));
            while SystemClock.now() < deadline.before(TIME) {
                thread::sleep(TIME / 10);
                sender.send(()).unwrap();
                // The waiter is notified, but needs longer to wake up.
                let _ = receiver.try_recv();
            }
            !next(&waiting)
        };
        assert!((0..20).any(|_| waits_to_the_end()), "each message has ended a wait");
    }

    #[test]
    fn a_wait_ends_with_a_message_or_a_disconnect() {
        for deadline in [None, Some(SystemClock.now().after(HOUR))] {
            let (sender, receiver) = unbounded();
            let waiter = receiver.clone();
            let waiting = in_background(move || wait_by(&SystemClock, &[&waiter], deadline));
            sender.send(()).unwrap();
            assert!(next(&waiting));
            receiver.recv().unwrap();
            let waiting = in_background(move || wait_by(&SystemClock, &[&receiver], deadline));
            drop(sender);
            assert!(next(&waiting));
        }
    }
}
