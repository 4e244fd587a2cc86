//! [`VirtualClock`]: a clock for sessions under test, which the test advances.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::client::SimulatedClient;
use super::jobs::{self, Jobs, Parked};
use super::virtual_runtime::VirtualRuntime;
use crate::error::Result;
use crate::session::{Factory, Session, Threads};
use crate::time::{Job, Latch, Moment, Runtime, Setter};
use crate::wait::CancelToken;

/// How long [`VirtualClock::await_waiting_calls`] waits, in real time.
const MAX_AWAIT: Duration = Duration::from_secs(30);

/// A clock for sessions under test that moves only in [`advance`](VirtualClock::advance).
///
/// Leases, keep-alives, retries and deadlines follow this clock, so an hour takes milliseconds. The sessions have real
/// threads.
///
/// A clone is another handle to the same clock.
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::BlockingWriteLock;
/// use zookeeper_recipes_lock::fake::{SimulatedZooKeeper, VirtualClock};
///
/// let (zookeeper, clock) = (SimulatedZooKeeper::new(), VirtualClock::new());
/// let client = zookeeper.connect(Duration::from_secs(30));
/// let session = clock.open(client.clone())?;
/// let guard = BlockingWriteLock::new(&session, "/locks/report")?.lock()?;
///
/// clock.advance(Duration::from_secs(3600)); // the client is in contact
/// assert!(guard.is_owner());
///
/// client.swallow();
/// clock.advance(Duration::from_secs(30));
/// assert!(!guard.is_owner());
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # Deadlines
/// If the only thread of a test makes one of these calls, nobody advances the clock and the call never
/// returns:
///
/// - a call that must wait for its deadline, such as [`try_lock_for`](crate::BlockingWriteLock::try_lock_for)
///   on a lock that is held;
/// - a call to the server while packets are swallowed. This includes [`Session::close`](crate::Session::close),
///   which waits for the server's confirmation. Drop the session instead.
///
/// Make such a call on another thread. [`await_waiting_calls`](VirtualClock::await_waiting_calls) returns once that
/// call waits for its deadline.
///
/// The time of a [`Wait`](crate::Wait) starts when the wait is passed to a call. In a call that waits for
/// several locks, it starts anew for each lock.
#[derive(Clone)]
pub struct VirtualClock {
    time: Arc<Time>,
}

impl VirtualClock {
    /// Creates a clock that stands still until it is advanced.
    #[must_use]
    pub fn new() -> VirtualClock {
        let state = State { now: START, last: 0, due: BTreeMap::new() };
        let time = Time {
            state: Mutex::new(state),
            alarm_set: Condvar::new(),
            jobs: Arc::default(),
            advancing: Mutex::default(),
        };
        VirtualClock { time: Arc::new(time) }
    }

    /// Opens a session on this clock.
    ///
    /// Apart from the clock, this works like [`SimulatedClient::open_session`].
    ///
    /// # Errors
    /// The errors of [`SimulatedClient::open_session`].
    pub fn open(&self, client: Arc<SimulatedClient>) -> Result<Session> {
        client.open_session_on(|| self.runtime())
    }

    /// Opens a session on this clock, and replaces it whenever it is lost.
    ///
    /// The factory returns the client of the first session, and then one after each loss. Each must be connected, and
    /// must not have a session yet. Apart from the clock, the session behaves like one with
    /// [`SessionBuilder::replace_lost_sessions`](crate::SessionBuilder::replace_lost_sessions).
    ///
    /// [`advance`](VirtualClock::advance) does not wait for the thread that opens a replacement.
    ///
    /// # Errors
    /// The error of the factory's first call, or the errors of [`SimulatedClient::open_session`]. If the first call
    /// panics, the reason is [`NoServer`](crate::ErrorReason::NoServer).
    pub fn open_replaced(
        &self,
        factory: impl Fn() -> Result<Arc<SimulatedClient>> + Send + Sync + 'static,
    ) -> Result<Session> {
        let clock = self.clone();
        let runtime = move || Ok(clock.runtime()? as Arc<dyn Runtime>);
        let client = move |runtime: &Arc<dyn Runtime>, _: &CancelToken| {
            let client = factory()?;
            client.run_on(runtime);
            Ok(client as _)
        };
        Session::open_replaced(Factory::new(runtime, client))
    }

    pub(super) fn runtime(&self) -> Result<Arc<VirtualRuntime>> {
        Ok(Arc::new(VirtualRuntime::new(Threads::start()?, Arc::clone(&self.time))))
    }

    /// Advances the clock. Whatever falls due in the sessions happens at its time, in order.
    ///
    /// Returns when the sessions' threads are idle: their calls to the client have returned or are swallowed, and their
    /// listeners have been called. It does not wait for threads of the test or for the thread of a
    /// [`Candidate`](crate::Candidate). It waits up to two seconds for a listener that blocks.
    /// `advance(Duration::ZERO)` only waits until the threads are idle.
    pub fn advance(&self, time: Duration) {
        self.time.advance(time);
    }

    /// Returns how far this clock has been advanced.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.time.now().since(START)
    }

    /// Returns the current time of this clock.
    ///
    /// It is unrelated to [`Moment::now`], which reads the system's clock.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.time.now()
    }

    /// Returns the number of calls that wait for a deadline on this clock.
    #[must_use]
    pub fn waiting_calls(&self) -> usize {
        self.time.state.lock().waiting_calls()
    }

    /// Blocks, in real time, until at least `calls` calls wait for a deadline on this clock.
    ///
    /// # Panics
    /// If fewer than `calls` calls wait after 30 seconds.
    #[allow(clippy::panic, reason = "a test waits for a call that nobody makes")]
    #[track_caller]
    pub fn await_waiting_calls(&self, calls: usize) {
        let limit = Instant::now() + MAX_AWAIT;
        let mut state = self.time.state.lock();
        while state.waiting_calls() < calls {
            if self.time.alarm_set.wait_until(&mut state, limit).timed_out() {
                panic!("only {} of {calls} calls wait for a deadline", state.waiting_calls());
            }
        }
    }
}

#[cfg(test)]
impl VirtualClock {
    /// Returns whether nothing is scheduled on this clock.
    pub(super) fn is_idle(&self) -> bool {
        self.time.state.lock().due.is_empty()
    }
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock::new()
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualClock").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

/// Large enough that moments before the start can be represented.
const START: Moment = Moment::from_nanos(1 << 60);

/// Orders what is due by its moment, then by the order in which it was scheduled.
type Key = (Moment, u64);

/// The state shared by the handles of a clock and the sessions on it.
pub(super) struct Time {
    state: Mutex<State>,
    /// Notified when a call begins to wait for a deadline.
    alarm_set: Condvar,
    pub(super) jobs: Arc<Jobs>,
    /// Held by the thread that advances the clock.
    advancing: Mutex<()>,
}

struct State {
    now: Moment,
    last: u64,
    due: BTreeMap<Key, Due>,
}

enum Due {
    Timer(Arc<Threads>, Job),
    /// Ends the wait of a job.
    AlarmOfJob(Setter),
    /// Ends the wait of another thread.
    Alarm(Setter),
}

impl Time {
    pub(super) fn now(&self) -> Moment {
        self.state.lock().now
    }

    fn advance(&self, time: Duration) {
        let this_job = jobs::park(&[]);
        let advancing = self.advancing.lock();
        let end = self.now().after(time);
        loop {
            self.jobs.await_idle();
            let Some(due) = self.next_due(end) else { break };
            match due {
                Due::Timer(threads, job) => threads.at(IMMEDIATELY, self.jobs.track(job)),
                Due::Alarm(alarm) | Due::AlarmOfJob(alarm) => drop(alarm),
            }
        }
        drop(advancing);
        this_job.into_iter().for_each(Parked::resume);
    }

    /// Removes and returns the first due item, and moves the clock to its moment. If nothing is due by `end`,
    /// moves the clock to `end`.
    fn next_due(&self, end: Moment) -> Option<Due> {
        let mut state = self.state.lock();
        let first = state.due.first_entry().filter(|first| first.key().0 <= end);
        let Some(first) = first else {
            state.now = end;
            return None;
        };
        let ((moment, _), due) = first.remove_entry();
        state.now = state.now.max(moment);
        Some(due)
    }

    /// Runs a job on the timer thread at this moment.
    pub(super) fn set_timer(&self, threads: &Arc<Threads>, moment: Moment, job: Job) {
        let mut state = self.state.lock();
        if moment > state.now {
            state.set(moment, Due::Timer(Arc::clone(threads), job));
            return;
        }
        drop(state);
        threads.at(IMMEDIATELY, self.jobs.track(job));
    }

    /// Drops the timers of a session.
    pub(super) fn drop_timers(&self, threads: &Arc<Threads>) {
        let is_dropped = |due: &Due| matches!(due, Due::Timer(owner, _) if Arc::ptr_eq(owner, threads));
        let dropped: Vec<Due> = {
            let mut state = self.state.lock();
            let keys: Vec<Key> =
                state.due.iter().filter(|(_, due)| is_dropped(due)).map(|(key, _)| *key).collect();
            keys.iter().filter_map(|key| state.due.remove(key)).collect()
        };
        // Dropped outside the lock, because a job may hold the last handle to something.
        drop(dropped);
    }

    pub(super) fn set_alarm(self: &Arc<Time>, moment: Moment) -> Alarm {
        let alarm = Setter::new();
        let rung = alarm.latch().clone();
        let due = if jobs::is_in_a_job() { Due::AlarmOfJob(alarm) } else { Due::Alarm(alarm) };
        let mut state = self.state.lock();
        // If the moment has passed, the alarm is dropped and thereby rings at once.
        let key = (moment > state.now).then(|| state.set(moment, due));
        self.alarm_set.notify_all();
        Alarm { time: Arc::clone(self), key, rung }
    }
}

impl State {
    fn set(&mut self, moment: Moment, due: Due) -> Key {
        self.last += 1;
        let key = (moment, self.last);
        self.due.insert(key, due);
        key
    }

    fn waiting_calls(&self) -> usize {
        self.due.values().filter(|due| matches!(due, Due::Alarm(_))).count()
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Time").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// A moment long past on the clock of the timer threads.
const IMMEDIATELY: Moment = Moment::from_nanos(0);

/// A deadline that a thread waits for.
pub(super) struct Alarm {
    time: Arc<Time>,
    key: Option<Key>,
    /// Set once the deadline has passed.
    pub(super) rung: Latch,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let alarm = self.time.state.lock().due.remove(&key);
            drop(alarm);
        }
    }
}
