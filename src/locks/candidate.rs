//! [`Candidate`]: stands for election repeatedly, and runs a closure whenever it leads.
//!
//! Origin: Curator's `LeaderSelector`.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use parking_lot::Mutex;

use crate::error::{ErrorKind, ErrorReason, LockError, Result};
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::leadership::Leadership;
use crate::locks::lock_guard::LockGuard;
use crate::logging;
use crate::panics::contain;
use crate::process::Process;
use crate::time::{Latch, Runtime, Setter, submit_wake_up, until};
use crate::wait::{CancelToken, Wait, Waited};

/// Minimum interval between joins.
const MIN_REJOIN_INTERVAL: Duration = Duration::from_secs(1);

/// A leader without a closure is woken when it must stop. This limit makes no difference.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Stands for election on its own thread until it is dropped, and runs a closure there whenever
/// it leads.
///
/// The closure receives the [`Leadership`] and leads until it returns. It should return soon when
/// [`should_stop`](Leadership::should_stop) is `true`, as nothing can stop it from outside. Then
/// the candidate steps down and stands again, behind those who wait.
///
/// | the closure | the candidate |
/// |---|---|
/// | returns `Ok` | stands again |
/// | returns an error | logs it at `warn` and stands again |
/// | panics | ends with [`LeaderPanicked`](crate::ErrorReason::LeaderPanicked), as the closure's state may be inconsistent |
/// | returns after a [`stop`](Candidate::stop) | ends |
///
/// It joins the queue at most once a second, so a closure that fails at once does not keep the
/// servers busy.
///
/// # Which session
/// **By default, the first loss of the session ends the candidate for good**, with
/// [`SessionLost`](crate::ErrorReason::SessionLost) and a line at `warn`. The application then sets up again
/// what relied on the session, and starts another candidate. [`ended`](Candidate::ended) is the signal.
///
/// On a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions), the candidate
/// stands again after each loss. This is for daemons that use the session for nothing else.
///
/// `Send` and `Sync`. Dropping it stops it without blocking.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, LockOptions, Session};
///
/// # fn balance_shards(_token: i64) {}
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181").replace_lost_sessions(true).connect()?;
/// // The data show who leads.
/// let options = LockOptions::new().data("10.0.0.7:8080");
/// let election = BlockingWriteLock::with_options(&session, "/election", options)?;
/// let candidate = Candidate::start(election, |leadership| {
///     let token = leadership.fencing_token()?;
///     while leadership.wait(Duration::from_secs(1)) {
///         balance_shards(token);
///     }
///     Ok(())
/// })?;
///
/// // At the end of the process:
/// candidate.stop();
/// candidate.wait(Duration::from_secs(5));
/// session.close();
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
#[must_use = "the candidate ends at once when it is not kept"]
pub struct Candidate {
    shared: Arc<Standing>,
    process: Process,
    runtime: Arc<dyn Runtime>,
    /// The channel for the application; disconnected before the latch is set.
    ended: (Latch, Receiver<Infallible>),
}

/// The state that a candidate shares with its thread.
struct Standing {
    dir: String,
    stop: CancelToken,
    /// The present leadership.
    leading: Mutex<Option<Arc<Leadership>>>,
    /// Set when the next leadership begins.
    next_leadership: Mutex<Setter>,
    /// The error by which it ended by itself.
    error: OnceLock<LockError>,
}

type Lead = dyn FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send;

impl Candidate {
    /// Stands for election on the directory of this lock, with its options.
    ///
    /// # Errors
    /// [`Thread`](crate::ErrorReason::Thread). [`error`](Candidate::error) returns later errors.
    pub fn start(
        election: BlockingWriteLock,
        lead: impl FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send + 'static,
    ) -> Result<Candidate> {
        let shared = Arc::new(Standing {
            dir: election.dir().to_owned(),
            stop: CancelToken::new(),
            leading: Mutex::new(None),
            next_leadership: Mutex::new(Setter::new()),
            error: OnceLock::new(),
        });
        let (running, of_application) = bounded(0);
        let end = Setter::new();
        let ended = (end.latch().clone(), of_application);
        let mut campaign = Campaign { shared: Arc::clone(&shared), election, lead: Box::new(lead) };
        let of_thread = Arc::clone(&shared);
        let core = campaign.election.core();
        let (process, runtime) = (core.process(), Arc::clone(core.runtime()));
        let (of_tasks, waking) = (end.latch().clone(), Arc::clone(&runtime));
        let body = Box::new(move || {
            // Whatever happens to it, those who wait for its end are woken.
            let outcome = contain(|| campaign.run())
                .unwrap_or_else(|message| Err(LockError::leader_panicked(&of_thread.dir, &message)));
            // Before the end is visible, as it holds the application's values.
            if let Err(message) = contain(|| drop(campaign)) {
                logging::error!("the closure of a candidate panicked when it was dropped: {message}");
            }
            if let Err(error) = outcome {
                logging::warn!("{}", how_it_ends(&of_thread.dir, &error));
                // Nobody else sets it.
                let _ = of_thread.error.set(error);
            }
            drop((running, end));
            submit_wake_up(&waking, &of_tasks);
        });
        runtime.spawn("zk-lock-leader", body).map_err(LockError::thread)?;
        Ok(Candidate { shared, process, runtime, ended })
    }

    /// Stands for election without a closure: the candidate leads from its election until it is
    /// stopped, until the leadership is lost, or until somebody asks for it. Then it stands again,
    /// unless it was stopped.
    ///
    /// For applications that ask [`is_leader`](Candidate::is_leader) before each action. Origin:
    /// Curator's `LeaderLatch`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Session};
    /// # let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
    /// # fn balance_shards(_token: i64) {}
    /// let candidate = Candidate::keep_leading(BlockingWriteLock::new(&session, "/election")?)?;
    /// if let Some(leadership) = candidate.wait_until_leader(Duration::from_secs(60)) {
    ///     balance_shards(leadership.fencing_token()?);
    /// }
    /// # Ok::<(), zookeeper_recipes_lock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// As [`start`](Candidate::start).
    pub fn keep_leading(election: BlockingWriteLock) -> Result<Candidate> {
        Candidate::start(election, |leadership| {
            while leadership.wait(LOOK_AGAIN) {}
            Ok(())
        })
    }

    /// Blocks until this candidate leads, has ended, or the wait ends. Returns the leadership if it leads. Returns `None`
    /// at once in a forked child.
    pub fn wait_until_leader(&self, wait: impl Into<Wait>) -> Option<Arc<Leadership>> {
        let wait = wait.into();
        // The process before the mutex, whose holder may not exist in a forked child.
        while self.process.is_current() {
            let next = self.shared.next_leadership.lock().latch().clone();
            if let Some(leadership) = self.leadership() {
                return Some(leadership);
            }
            let ended = &self.ended.0;
            if wait.wait_for(&*self.runtime, &[&next, ended]) != Waited::Set || ended.is_set() {
                return self.leadership();
            }
        }
        None
    }

    /// Returns the present leadership, for its fencing token, its lease, its loss and
    /// [`commit`](crate::LockGuard::commit); `None` while this candidate does not lead, and in a forked child. Does no I/O
    /// and does not block.
    ///
    /// It is that of this term: it does not lead in a later one. Its channels for a loss and a revocation are those that the
    /// closure has, and each message arrives once. Drop it when the term is over, since it keeps the session open.
    ///
    /// A term that ends without a loss, because the closure has returned, sends no message for a loss, and
    /// [`lost_async`](crate::LockGuard::lost_async) does not complete then. [`stop_requested`](Leadership::stop_requested) ends
    /// with every term.
    #[must_use]
    pub fn leadership(&self) -> Option<Arc<Leadership>> {
        // The process before the mutex, whose holder may not exist in a forked child.
        let leading = if self.process.is_current() { self.shared.leading.lock().clone() } else { None };
        leading.filter(|leadership| leadership.is_owner())
    }

    /// Returns whether this candidate leads, proven up to now. Does no I/O and does not block.
    /// Always `false` in a forked child.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership().is_some()
    }

    /// Stops the candidate without blocking: it leaves the queue, or steps down when its closure
    /// has returned. Idempotent.
    pub fn stop(&self) {
        // In a forked child the candidate is the parent's, and a mutex may stay held for ever.
        if self.process.is_current() {
            self.shared.stop.cancel();
            let leading = self.shared.leading.lock().clone();
            leading.iter().for_each(|leadership| leadership.step_down());
        }
    }

    /// Blocks until the candidate has ended, or the wait times out or is cancelled. Returns whether it
    /// has ended.
    ///
    /// After a [`stop`](Candidate::stop) a leader ends once its closure has returned and the znode is
    /// deleted. One that waits ends at once, and its znode is deleted in the background. It ends by
    /// itself after an [error](Candidate::error). Returns `false` at once in a forked child.
    pub fn wait(&self, wait: impl Into<Wait>) -> bool {
        self.process.is_current() && wait.into().wait_for(&*self.runtime, &[&self.ended.0]) == Waited::Set
    }

    /// Returns a channel that is disconnected when the candidate has ended; for use in
    /// [`select!`](crossbeam_channel::select). No message arrives.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Infallible> {
        &self.ended.1
    }

    /// Waits until the candidate has ended, in a task of an async runtime. A callback thread of the session
    /// wakes the task. In a forked child it completes at once.
    pub async fn ended_async(&self) {
        let ended = &self.ended.0;
        until(self.process, [ended], || ended.is_set().then_some(())).await;
    }

    /// Returns why the candidate ended by itself; `None` while it runs, and after a
    /// [`stop`](Candidate::stop).
    ///
    /// - [`SessionLost`](crate::ErrorReason::SessionLost) on a session that is not replaced;
    ///   [`Closed`](crate::ErrorReason::Closed) if the session or the lock was closed.
    /// - [`LeaderPanicked`](crate::ErrorReason::LeaderPanicked).
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied),
    ///   [`SequenceExhausted`](crate::ErrorReason::SequenceExhausted), or another permanent refusal of the
    ///   server.
    #[must_use]
    pub fn error(&self) -> Option<&LockError> {
        self.shared.error.get()
    }

    /// Returns the directory of the election.
    #[must_use]
    pub fn dir(&self) -> &str {
        &self.shared.dir
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate")
            .field("dir", &self.dir())
            .field("is_leader", &self.is_leader())
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}

/// The thread's side of a candidate.
struct Campaign {
    shared: Arc<Standing>,
    election: BlockingWriteLock,
    lead: Box<Lead>,
}

/// Returns whether the server refused to delete a znode.
fn is_refusal(reason: ErrorReason) -> bool {
    matches!(reason, ErrorReason::AccessDenied | ErrorReason::Server(_) | ErrorReason::Refused)
}

impl Campaign {
    /// Stands and leads in turn until it is stopped.
    fn run(&mut self) -> Result<()> {
        let stop = self.shared.stop.clone();
        loop {
            let earliest = self.election.core().now().after(MIN_REJOIN_INTERVAL);
            match self.election.try_lock_for(Wait::forever().cancelled_by(&stop)) {
                Ok(Some(guard)) => self.lead(guard)?,
                // Stopped: this wait ends in no other way.
                Ok(None) => return Ok(()),
                Err(error) if error.reason() == ErrorReason::Cancelled => return Ok(()),
                Err(_) if stop.is_cancelled() => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Retry => logging::warn!("{error}"),
                Err(error) => return Err(error),
            }
            // The next attempt says why a session has ended.
            let core = self.election.core();
            core.wait(&[stop.latch(), core.ended()], Some(earliest));
        }
    }

    /// Leads until the closure returns, and steps down.
    fn lead(&mut self, guard: LockGuard) -> Result<()> {
        let leadership = Arc::new(Leadership::new(guard));
        *self.shared.leading.lock() = Some(Arc::clone(&leadership));
        // One that was stopped before has not found this leadership.
        if self.shared.stop.is_cancelled() {
            leadership.step_down();
        }
        *self.shared.next_leadership.lock() = Setter::new();
        // The error is formatted within, as that is the application's code too.
        let outcome = contain(|| (self.lead)(&leadership).map_err(|error| error.to_string()));
        *self.shared.leading.lock() = None;
        let stepped_down = leadership.end();
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => logging::warn!("the leader of '{}' steps down: {error}", self.shared.dir),
            Err(message) => {
                return Err(LockError::leader_panicked(&self.shared.dir, &message));
            }
        }
        match stepped_down {
            // A znode that cannot be deleted blocks everybody, this candidate included.
            Err(error) if is_refusal(error.reason()) => Err(error),
            // The next attempt reports a loss of the session.
            _ => Ok(()),
        }
    }
}

/// The line of the log about a candidate that ends by itself.
fn how_it_ends(dir: &str, error: &LockError) -> String {
    let remedy = if error.is_session_lost() {
        "; it does not stand again: start another one, or let the session replace itself (replace_lost_sessions)"
    } else {
        ""
    };
    format!("the candidate for '{dir}' ends: {error}{remedy}")
}

#[cfg(test)]
mod tests;
