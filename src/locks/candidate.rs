//! [`Candidate`]: stands for election again and again, and runs a closure whenever it leads.
//!
//! Origin: Curator's `LeaderSelector`.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::error::{ErrorKind, ErrorReason, LockError, Result};
use crate::lock_order::{Mutex, rank::CANDIDATE};
use crate::locks::blocking_write_lock::BlockingWriteLock;
use crate::locks::leadership::Leadership;
use crate::locks::lock_guard::LockGuard;
use crate::logging;
use crate::panics::contain;
use crate::process::Process;
use crate::time::{Latch, Runtime, Setter, submit_wake_up, until};
use crate::wait::{CancelToken, Wait, Waited};

/// The minimum interval between joins.
const MIN_REJOIN_INTERVAL: Duration = Duration::from_secs(1);

/// How long a leader without a closure waits at a time. Any value works, because the leader is woken when it must stop.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A participant in a leader election that runs a closure whenever it leads.
///
/// The candidate stands for election on its own thread until it is dropped or stopped. When it is elected, it passes
/// the [`Leadership`] to the closure, and leads until the closure returns. Nothing can stop the closure from
/// outside, so it should return soon after [`should_stop`](Leadership::should_stop) becomes `true`. The
/// candidate then steps down and stands again, behind the current waiters.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, LockOptions, Session};
///
/// # fn balance_shards(_token: i64) {}
/// let session = Session::builder("zk1:2181,zk2:2181,zk3:2181").replace_lost_sessions(true).connect()?;
/// // The data shows who leads.
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
/// // At the end of the process. Closing the session lets another candidate lead, so the closure must have ended.
/// candidate.stop();
/// if candidate.wait(Duration::from_secs(5)) {
///     session.close();
/// }
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// # At the end of the process
/// [`stop`](Candidate::stop) does not stop the closure, and [`Session::close`](crate::Session::close) does not wait for
/// it: the next leader would begin while the closure still works. So close the session only after
/// [`wait`](Candidate::wait) has returned `true`. Otherwise leave the session open. The process then leads until it
/// exits, which ends the closure, and another candidate leads when the session has timed out.
///
/// # When the closure returns
/// - After `Ok`, the candidate stands again.
/// - After an error, the candidate logs it at `warn` and stands again.
/// - After a panic, the candidate ends with [`LeaderPanicked`](crate::ErrorReason::LeaderPanicked), because the
///   closure's state may be inconsistent.
/// - After a [`stop`](Candidate::stop), the candidate ends.
///
/// The candidate joins the queue at most once a second, so a closure that fails immediately does not keep the servers
/// busy.
///
/// # When the session is lost
/// **By default, the first loss of the session ends the candidate permanently**, with
/// [`SessionLost`](crate::ErrorReason::SessionLost) and a log line at `warn`. [`ended`](Candidate::ended)
/// signals the end. The application then connects a new session, sets up again whatever relied on the old
/// one, and starts another candidate.
///
/// On a session that [replaces itself](crate::SessionBuilder::replace_lost_sessions), the candidate stands again after
/// each loss. That suits daemons that use the session for nothing else.
///
/// # Threads
/// `Candidate` is `Send` and `Sync`. Dropping a `Candidate` stops it without blocking.
#[doc(alias = "LeaderLatch")]
#[doc(alias = "LeaderSelector")]
#[doc(alias = "election")]
#[must_use = "the candidate stops at once when it is not kept"]
pub struct Candidate {
    shared: Arc<Standing>,
    process: Process,
    runtime: Arc<dyn Runtime>,
    /// The latch is set when the candidate has ended. The channel is for the application; it is disconnected
    /// just before the latch is set.
    ended: (Latch, Receiver<Infallible>),
}

/// The state that a candidate shares with its thread.
struct Standing {
    dir: String,
    stop: CancelToken,
    /// The current leadership.
    leading: Mutex<CANDIDATE, Option<Arc<Leadership>>>,
    /// Set when the next leadership begins.
    next_leadership: Mutex<CANDIDATE, Setter>,
    /// The error that ended the candidate, unless a stop ended it.
    error: OnceLock<LockError>,
}

type Lead = dyn FnMut(&Leadership) -> std::result::Result<(), Box<dyn Error + Send + Sync>> + Send;

impl Candidate {
    /// Starts a candidate that runs `lead` whenever it is elected.
    ///
    /// The election uses the directory and the options of the lock `election`.
    ///
    /// # Errors
    /// [`Thread`](crate::ErrorReason::Thread): no thread could be started. [`error`](Candidate::error) returns later
    /// errors.
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
            // Panics are caught, so that whoever waits for the end is always woken.
            let outcome = contain(|| campaign.run())
                .unwrap_or_else(|message| Err(LockError::leader_panicked(&of_thread.dir, &message)));
            // Logged first, because the campaign may hold the last handle to its session, whose end waits for the
            // logger.
            if let Err(error) = &outcome {
                logging::warn!("{}", how_it_ends(&of_thread.dir, error));
            }
            // The campaign holds values that belong to the application, so it is dropped before the end is reported.
            if let Err(message) = contain(|| drop(campaign)) {
                logging::error!("the closure of a candidate panicked when it was dropped: {message}");
            }
            if let Err(error) = outcome {
                // Cannot fail: only this thread sets the error.
                let _ = of_thread.error.set(error);
            }
            drop((running, end));
            submit_wake_up(&waking, &of_tasks);
        });
        runtime.spawn("zk-lock-leader", body).map_err(LockError::thread)?;
        Ok(Candidate { shared, process, runtime, ended })
    }

    /// Starts a candidate without a closure, which leads for as long as it can.
    ///
    /// Once elected, it leads until it is stopped, loses the leadership, or is asked to step down: by another client,
    /// or by [`Leadership::step_down`]. Unless it was stopped, it then stands again.
    ///
    /// Use this in an application that checks [`is_leader`](Candidate::is_leader) before each action. Curator
    /// calls this a `LeaderLatch`.
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
    /// The same as [`start`](Candidate::start).
    pub fn keep_leading(election: BlockingWriteLock) -> Result<Candidate> {
        Candidate::start(election, |leadership| {
            while leadership.wait(LOOK_AGAIN) {}
            Ok(())
        })
    }

    /// Blocks until this candidate leads, and returns the leadership.
    ///
    /// Returns `None` when the candidate has ended or the wait is over, and immediately in a forked child.
    pub fn wait_until_leader(&self, wait: impl Into<Wait>) -> Option<Arc<Leadership>> {
        let wait = wait.into();
        // The process is checked before the mutex is taken: in a forked child, the thread that holds the mutex may not
        // exist.
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

    /// Returns the current leadership, or `None` while this candidate does not lead.
    ///
    /// Use it for the fencing token, the lease, or a [`commit`](crate::LockGuard::commit). Does no I/O and does not
    /// block. Returns `None` in a forked child.
    ///
    /// The leadership belongs to one term, and is not valid in a later one. Drop the `Leadership` when the
    /// term is over, because it keeps the session open. The caller and the closure share the channels for
    /// losses and revocations: each message reaches only one of the two.
    ///
    /// To wait for the end of a term, use [`stop_requested`](Leadership::stop_requested). The channel for
    /// losses is not enough: if the term ends because the closure returns, no loss is reported, and
    /// [`lost_async`](crate::LockGuard::lost_async) never completes.
    #[must_use]
    pub fn leadership(&self) -> Option<Arc<Leadership>> {
        // The process is checked before the mutex is taken: in a forked child, the thread that holds the mutex may not
        // exist.
        let leading = if self.process.is_current() { self.shared.leading.lock().clone() } else { None };
        leading.filter(|leadership| leadership.is_owner())
    }

    /// Returns whether this candidate provably leads at this moment.
    ///
    /// Does no I/O and does not block. Always `false` in a forked child.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.leadership().is_some()
    }

    /// Stops the candidate without blocking.
    ///
    /// A waiting candidate leaves the queue. A leader steps down when its closure has returned. Idempotent.
    pub fn stop(&self) {
        // In a forked child the candidate belongs to the parent, and a mutex may stay held forever.
        if self.process.is_current() {
            self.shared.stop.cancel();
            let leading = self.shared.leading.lock().clone();
            leading.iter().for_each(|leadership| leadership.step_down());
        }
    }

    /// Blocks until the candidate has ended; returns `false` if the wait ends first.
    ///
    /// If it returns `false`, the closure may still be working, so do not [close](crate::Session::close) the session.
    ///
    /// After a [`stop`](Candidate::stop), a leader ends once its closure has returned and its znode is deleted. During
    /// an outage, or while the servers throttle, it does not wait for the deletion. A waiting candidate ends
    /// immediately, and its znode is deleted in the background. A candidate also ends after an
    /// [error](Candidate::error), which is logged. In a forked child, the call returns `false` immediately.
    #[must_use = "if the wait has ended first, the closure may still be working, and the session must stay open"]
    pub fn wait(&self, wait: impl Into<Wait>) -> bool {
        self.process.is_current() && wait.into().wait_for(&*self.runtime, &[&self.ended.0]) == Waited::Set
    }

    /// Returns a channel that is disconnected when the candidate has ended.
    ///
    /// No message arrives. Use it in a [`select!`](crossbeam_channel::select). In a forked child, the channel stays as it
    /// was at the fork.
    #[must_use]
    pub fn ended(&self) -> &Receiver<Infallible> {
        &self.ended.1
    }

    /// Waits in a task until the candidate has ended.
    ///
    /// Works in any async runtime: a callback thread of the session wakes the task. Any number of futures may wait, and
    /// each may be dropped at any time. A future that nobody polls holds nothing. In a forked child the future completes immediately.
    pub async fn ended_async(&self) {
        let ended = &self.ended.0;
        until(self.process, [ended], || ended.is_set().then_some(())).await;
    }

    /// Returns the error that ended the candidate.
    ///
    /// Returns `None` while the candidate runs, and if a [`stop`](Candidate::stop) ended it. If the closure of a
    /// stopped leader panics, or the server refuses to delete the leader's znode, that error ends the candidate. The
    /// possible reasons are:
    /// - [`SessionLost`](crate::ErrorReason::SessionLost): the session was lost, and is not replaced.
    /// - [`Closed`](crate::ErrorReason::Closed): the session or the lock was closed.
    /// - [`LeaderPanicked`](crate::ErrorReason::LeaderPanicked): the closure panicked.
    /// - [`AccessDenied`](crate::ErrorReason::AccessDenied),
    ///   [`SequenceExhausted`](crate::ErrorReason::SequenceExhausted), or another permanent error.
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

/// The part of a candidate that runs on its thread.
struct Campaign {
    shared: Arc<Standing>,
    election: BlockingWriteLock,
    lead: Box<Lead>,
}

/// Returns whether an `unlock` that failed for this reason means that the server will not delete the znode.
fn is_refusal(reason: ErrorReason) -> bool {
    matches!(reason, ErrorReason::AccessDenied | ErrorReason::Server(_))
}

impl Campaign {
    /// Alternately stands for election and leads, until it is stopped.
    fn run(&mut self) -> Result<()> {
        let stop = self.shared.stop.clone();
        loop {
            let earliest = self.election.core().now().after(MIN_REJOIN_INTERVAL);
            match self.election.try_lock_for(Wait::forever().cancelled_by(&stop)) {
                Ok(Some(guard)) => self.lead(guard)?,
                // The candidate was stopped: nothing else ends a wait without a deadline.
                Ok(None) => return Ok(()),
                Err(error) if error.reason() == ErrorReason::Cancelled => return Ok(()),
                Err(_) if stop.is_cancelled() => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::Retry | ErrorKind::LockAgain) => {
                    logging::warn!("{error}");
                }
                Err(error) => return Err(error),
            }
            // If the session has ended, the next attempt returns the reason.
            let core = self.election.core();
            core.wait(&[stop.latch(), core.ended()], Some(earliest));
        }
    }

    /// Leads until the closure returns, and steps down.
    fn lead(&mut self, guard: LockGuard) -> Result<()> {
        let leadership = Arc::new(Leadership::new(guard));
        *self.shared.leading.lock() = Some(Arc::clone(&leadership));
        // A `stop` that came before this point did not see the leadership.
        if self.shared.stop.is_cancelled() {
            leadership.step_down();
        }
        *self.shared.next_leadership.lock() = Setter::new();
        // The error is formatted inside `contain`, because formatting also runs application code.
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
            // A znode that cannot be deleted blocks everybody, including this candidate.
            Err(error) if is_refusal(error.reason()) => Err(error),
            // The next attempt reports a loss of the session.
            _ => Ok(()),
        }
    }
}

/// The log line for a candidate that ended with an error.
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
