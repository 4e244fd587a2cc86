//! Deadlines, and cancellation from another thread.
//!
//! The primary type in this module is [`Wait`], which says how long a call waits. With a [`CancelToken`], another
//! thread can end the wait.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never};
use parking_lot::Mutex;

use crate::lock_order::{assert_none_held, unwind_safe};
use crate::process::Process;
use crate::time::{Clock, Latch, Moment, Runtime, Setter, SystemClock, wait_by};

/// The limit on how long a call waits.
///
/// It is a deadline, a cancellation by another thread, both, or neither. Calls take `impl Into<Wait>`, so you can also
/// pass a [`Duration`] or an [`Instant`].
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{CancelToken, Wait};
///
/// let token = CancelToken::new();
/// let wait = Wait::timeout(Duration::from_secs(30)).cancelled_by(&token);
/// // On another thread: lock.try_lock_for(wait)
/// token.cancel();
/// assert!(token.is_cancelled());
/// # drop(wait);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Wait {
    deadline: Option<Instant>,
    /// The time that was left until the deadline when the deadline was set.
    timeout: Option<Duration>,
    token: Option<CancelToken>,
    /// A deadline on the clock of the session, for a wait that the library itself begins.
    moment: Option<Moment>,
}

impl Wait {
    /// Waits without a time limit.
    #[must_use]
    pub fn forever() -> Wait {
        Wait::default()
    }

    /// Waits for this time from now, or without a limit if the clock cannot represent the deadline.
    #[must_use]
    pub fn timeout(timeout: Duration) -> Wait {
        let deadline = Instant::now().checked_add(timeout);
        Wait { deadline, timeout: deadline.map(|_| timeout), ..Wait::default() }
    }

    /// Ends the wait early when the token is cancelled. Replaces an earlier token.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Wait {
        Wait { token: Some(token.clone()), ..self }
    }

    /// Returns the latch that is set when the wait is cancelled, if it can be cancelled.
    pub(crate) fn cancelled(&self) -> Option<&Latch> {
        self.token.as_ref().map(CancelToken::latch)
    }

    /// Returns a channel that is disconnected when the wait is cancelled.
    pub(crate) fn cancellation(&self) -> Receiver<Infallible> {
        self.token.as_ref().map_or_else(never, |token| token.cancelled().clone())
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns, for messages, how long a wait that began at `begun` was allowed to take. Returns the time since `begun`
    /// if the wait has no limit.
    pub(crate) fn time_allowed(&self, begun: Instant) -> Duration {
        let until = || self.deadline.unwrap_or_else(Instant::now).saturating_duration_since(begun);
        self.timeout.unwrap_or_else(until)
    }

    /// Pauses for this time, or until the wait ends if that comes first. Returns whether the wait is over.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let now = Instant::now();
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(now));
        let end = SystemClock.now().after(duration.min(left));
        wait_by(&SystemClock, self.cancelled().as_slice(), Some(end)) || left <= duration
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.token.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Waits until this moment of the runtime's clock.
    pub(crate) fn until_moment(moment: Moment) -> Wait {
        Wait { moment: Some(moment), ..Wait::default() }
    }

    /// Returns the deadline on the runtime's clock.
    pub(crate) fn moment(&self, runtime: &dyn Runtime) -> Option<Moment> {
        let of_deadline =
            |deadline: Instant| runtime.now().after(deadline.saturating_duration_since(Instant::now()));
        self.moment.or_else(|| self.deadline.map(of_deadline))
    }

    /// Waits until one of the latches is set.
    pub(crate) fn wait_for(&self, runtime: &dyn Runtime, latches: &[&Latch]) -> Waited {
        self.wait_until(runtime, latches, self.moment(runtime))
    }

    /// Like [`wait_for`](Wait::wait_for), but calls `remark` once if the wait takes longer than `after`.
    pub(crate) fn wait_for_or_remark(
        &self,
        runtime: &dyn Runtime,
        latches: &[&Latch],
        (after, remark): (Duration, impl FnOnce()),
    ) -> Waited {
        let deadline = self.moment(runtime);
        let of_remark = runtime.now().after(after);
        if deadline.is_none_or(|deadline| of_remark < deadline) {
            let waited = self.wait_until(runtime, latches, Some(of_remark));
            if waited != Waited::TimedOut {
                return waited;
            }
            remark();
        }
        self.wait_until(runtime, latches, deadline)
    }

    fn wait_until(&self, runtime: &dyn Runtime, latches: &[&Latch], deadline: Option<Moment>) -> Waited {
        assert_none_held();
        let all: Vec<&Latch> = latches.iter().copied().chain(self.cancelled()).collect();
        let is_one_set = runtime.wait(&all, deadline);
        if latches.iter().any(|latch| latch.is_set()) {
            Waited::Set
        } else if is_one_set {
            Waited::Cancelled
        } else {
            Waited::TimedOut
        }
    }
}

impl From<Duration> for Wait {
    fn from(timeout: Duration) -> Wait {
        Wait::timeout(timeout)
    }
}

/// Waits until this moment.
impl From<Instant> for Wait {
    fn from(deadline: Instant) -> Wait {
        Wait { deadline: Some(deadline), ..Wait::default() }
    }
}

impl From<&Wait> for Wait {
    fn from(wait: &Wait) -> Wait {
        wait.clone()
    }
}

/// How a wait has ended. If several variants apply, the first of them is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// One of the latches is set.
    Set,
    Cancelled,
    TimedOut,
}

/// Cancels calls that other threads make.
///
/// A token cancels every call whose [`Wait`] is [`cancelled_by`](Wait::cancelled_by) the token, both the calls that are
/// waiting now and later calls. A lock that is already acquired stays acquired. Clones share their state.
///
/// Origin: `cancel()` of kazoo's lock.
#[derive(Clone)]
pub struct CancelToken {
    signal: Arc<Cancellation>,
}

unwind_safe!(CancelToken);

struct Cancellation {
    setter: Setter,
    /// The sender of the application's channel, which is dropped to cancel.
    open: Mutex<Option<Sender<Infallible>>>,
    cancelled: Receiver<Infallible>,
    process: Process,
    /// What a forked child uses instead. The child must not lock the parent's mutexes, because the thread that holds
    /// one may not exist in the child.
    in_child: OnceLock<Box<Cancellation>>,
}

impl Cancellation {
    fn new() -> Cancellation {
        let (open, cancelled) = bounded(0);
        let (setter, open) = (Setter::new(), Mutex::new(Some(open)));
        Cancellation { setter, open, cancelled, process: Process::current(), in_child: OnceLock::new() }
    }

    fn cancel(&self) {
        self.setter.set();
        *self.open.lock() = None;
    }

    /// Returns what the calling process uses. A child begins with the state at the fork.
    fn of_this_process(&self) -> &Cancellation {
        if self.process.is_current() {
            return self;
        }
        let of_child = self.in_child.get_or_init(|| {
            let of_child = Cancellation::new();
            if self.setter.latch().is_set() {
                of_child.cancel();
            }
            Box::new(of_child)
        });
        of_child.of_this_process()
    }
}

impl CancelToken {
    /// Creates a token that is not cancelled.
    #[must_use]
    pub fn new() -> CancelToken {
        CancelToken { signal: Arc::new(Cancellation::new()) }
    }

    /// Cancels the calls. Idempotent; does not block. In a forked child, cancels only the calls of the child. A channel that
    /// was cloned from [`cancelled`](CancelToken::cancelled) before the fork is not disconnected.
    pub fn cancel(&self) {
        self.signal.of_this_process().cancel();
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.latch().is_set()
    }

    pub(crate) fn latch(&self) -> &Latch {
        self.signal.of_this_process().setter.latch()
    }

    /// Returns a channel that is disconnected when the token is cancelled.
    ///
    /// Use it in a [`select!`](crate::crossbeam_channel::select).
    ///
    /// ```no_run
    /// # use zookeeper_recipes_lock::{CancelToken, LockGuard, crossbeam_channel};
    /// use zookeeper_recipes_lock::crossbeam_channel::{Receiver, select};
    ///
    /// /// Works until the lock is lost, its release is requested, or the daemon shuts down.
    /// fn work(guard: &LockGuard, shutdown: &CancelToken, jobs: &Receiver<String>) {
    ///     loop {
    ///         select! {
    ///             recv(jobs) -> job => println!("{job:?}"),
    ///             recv(guard.lost()) -> _ => return,
    ///             recv(guard.revocation()) -> _ => return,
    ///             recv(shutdown.cancelled()) -> _ => return,
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn cancelled(&self) -> &Receiver<Infallible> {
        &self.signal.of_this_process().cancelled
    }
}

impl Default for CancelToken {
    fn default() -> CancelToken {
        CancelToken::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Threads;
    use crate::tests::{ManualRuntime, in_background, next};

    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn a_latch_that_is_set_ends_a_wait() {
        let runtime = ManualRuntime::default();
        let setter = Setter::new();
        setter.set();
        assert_eq!(Wait::forever().wait_for(&runtime, &[setter.latch()]), Waited::Set);
        assert_eq!(runtime.elapsed(), Duration::ZERO);
    }

    #[test]
    fn a_deadline_ends_a_wait_at_that_moment() {
        let runtime = ManualRuntime::default();
        let never = Latch::never();
        assert_eq!(Wait::timeout(Duration::ZERO).wait_for(&runtime, &[&never]), Waited::TimedOut);
        assert_eq!(Wait::timeout(Duration::MAX).deadline, None);
        let deadline = runtime.now().after(SHORT);
        assert_eq!(Wait::until_moment(deadline).wait_for(&runtime, &[&never]), Waited::TimedOut);
        assert_eq!(runtime.now(), deadline);
    }

    #[test]
    fn a_latch_that_is_set_before_the_deadline_ends_a_wait_at_once() {
        let runtime = ManualRuntime::default();
        let setter = Setter::new();
        let latch = setter.latch().clone();
        let (arrival, deadline) = (runtime.now().after(SHORT), runtime.now().after(2 * SHORT));
        runtime.at(arrival, Box::new(move || setter.set()));
        assert_eq!(Wait::until_moment(deadline).wait_for(&runtime, &[&latch]), Waited::Set);
        assert_eq!(runtime.now(), arrival);
    }

    #[test]
    fn a_latch_takes_precedence_over_a_cancellation_and_that_over_the_deadline() {
        let runtime = ManualRuntime::default();
        let setter = Setter::new();
        let cancel = CancelToken::new();
        let wait = Wait::until_moment(runtime.now()).cancelled_by(&cancel);
        let outcome = || wait.wait_for(&runtime, &[&Latch::never(), setter.latch()]);
        assert_eq!(outcome(), Waited::TimedOut);
        cancel.cancel();
        assert_eq!(outcome(), Waited::Cancelled);
        setter.set();
        assert_eq!(outcome(), Waited::Set);
    }

    #[test]
    fn a_real_wait_times_out_and_not_before_its_time() {
        let threads = Threads::start().unwrap();
        let wait = Wait::timeout(SHORT);
        let begun = Instant::now();
        assert_eq!(wait.wait_for(&*threads, &[]), Waited::TimedOut);
        assert!(begun.elapsed() >= SHORT);
        threads.shut_down();
        assert_eq!(wait.wait_for(&*threads, &[]), Waited::TimedOut, "even after the shutdown");
    }

    #[test]
    fn a_pause_ends_with_the_wait() {
        let cancel = CancelToken::new();
        assert!(!Wait::forever().cancelled_by(&cancel).pause(SHORT));
        assert!(!Wait::timeout(Duration::from_secs(3600)).pause(SHORT));
        let begun = Instant::now();
        let long = Duration::from_secs(3600);
        assert!(Wait::timeout(SHORT).pause(long));
        assert!(begun.elapsed() >= SHORT);
        cancel.cancel();
        assert!(Wait::forever().cancelled_by(&cancel).pause(long));
        assert!(begun.elapsed() < long);
    }

    #[test]
    fn cancelling_is_a_signal_of_a_select() {
        let token = CancelToken::new();
        let waiting = in_background({
            let token = token.clone();
            move || crossbeam_channel::select! { recv(token.cancelled()) -> signal => signal.is_err() }
        });
        token.cancel();
        assert!(next(&waiting));
    }

    #[test]
    fn cancelling_ends_a_wait_and_those_to_come() {
        let threads = Threads::start().unwrap();
        let cancel = CancelToken::new();
        let wait = Wait::forever().cancelled_by(&cancel);
        let waiting = in_background({
            let (wait, threads) = (wait.clone(), Arc::clone(&threads));
            move || wait.wait_for(&*threads, &[])
        });
        assert!(!wait.is_cancelled());
        cancel.clone().cancel();
        assert_eq!(next(&waiting), Waited::Cancelled);
        assert_eq!(wait.wait_for(&*threads, &[]), Waited::Cancelled);
        threads.shut_down();
    }
}
