//! [`Leadership`]: one term of a candidate as the leader.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Operation, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;
use crate::wait::CancelToken;

/// One term of a [`Candidate`](crate::Candidate) as the leader.
///
/// The candidate passes the `Leadership` to its closure, and the term ends when the closure returns. A
/// running closure does not prove leadership, because the session may be lost at any time. So check
/// [`is_owner`](LockGuard::is_owner) before each action that only the leader may take. If an action changes a
/// resource outside this process, send the [`fencing_token`](LockGuard::fencing_token) along.
///
/// ```no_run
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{BlockingWriteLock, Candidate, Session};
///
/// # fn balance_shards(_token: i64) {}
/// let session = Session::connect("127.0.0.1:2181", Duration::from_secs(30))?;
/// let candidate = Candidate::start(BlockingWriteLock::new(&session, "/election")?, |leadership| {
///     let token = leadership.fencing_token()?;
///     while leadership.wait(Duration::from_secs(1)) {
///         balance_shards(token);
///     }
///     Ok(())
/// })?;
/// # drop(candidate);
/// # Ok::<(), zookeeper_recipes_lock::LockError>(())
/// ```
///
/// `Leadership` dereferences to the [`LockGuard`] of the leader's lock, which has channels for losses and revocations.
///
/// # Threads
/// `Leadership` is `Send` and `Sync`, so the closure may share it with threads of a [scope](std::thread::scope). Other
/// threads get it from [`Candidate::leadership`](crate::Candidate::leadership). Once its term has ended, a `Leadership`
/// never leads again, even if the candidate is elected again.
pub struct Leadership {
    guard: LockGuard,
    /// Cancelled by a stop or a step-down, and when the term has ended. A loss or a revocation does not cancel it.
    stop: CancelToken,
}

impl Leadership {
    pub(crate) fn new(guard: LockGuard) -> Leadership {
        Leadership { guard, stop: CancelToken::new() }
    }

    /// Returns whether the closure should return.
    ///
    /// The result becomes `true`, and stays `true`, when
    /// - the leadership is lost,
    /// - the candidate is [stopped](crate::Candidate::stop) or asked to [step down](Leadership::step_down), or
    /// - another client [asks](crate::queue::Revoker) the leader to step down.
    ///
    /// The closure may still finish its work while it [leads](LockGuard::is_owner).
    #[must_use]
    pub fn should_stop(&self) -> bool {
        !self.is_owner() || self.stop.is_cancelled() || self.request().is_revocation_requested()
    }

    /// Waits for this time; returns `false` as soon as the closure should return.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn work(leadership: &zookeeper_recipes_lock::Leadership) {
    /// # fn balance_shards() {}
    /// while leadership.wait(Duration::from_secs(1)) {
    ///     balance_shards();
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        if self.should_stop() {
            return false;
        }
        let request = self.request();
        let core = request.core();
        core.wait(&[self.guard.reported(), self.stop.latch()], Some(core.now().after(time)));
        !self.should_stop()
    }

    /// Asks the candidate to step down, without blocking.
    ///
    /// [`should_stop`](Leadership::should_stop) becomes `true`. When the closure has returned, the candidate gives up
    /// the leadership and stands again, behind the current waiters. A candidate that [keeps
    /// leading](crate::Candidate::keep_leading) gives it up immediately. Idempotent; has no effect once the leadership
    /// has ended.
    pub fn step_down(&self) {
        // In a forked child the leadership belongs to the parent, and a mutex may stay held forever.
        if self.request().check_process(Operation::UNLOCK).is_ok() {
            self.stop.cancel();
        }
    }

    /// Returns a channel that is disconnected when the candidate is stopped or asked to step down.
    ///
    /// It is also disconnected when the closure has returned. A loss or a revocation does not disconnect it: they have
    /// their own channels, [`lost`](LockGuard::lost) and [`revocation`](LockGuard::revocation). No message ever arrives
    /// on this channel. Use it in a [`select!`](crossbeam_channel::select).
    #[must_use]
    pub fn stop_requested(&self) -> &Receiver<Infallible> {
        self.stop.cancelled()
    }

    /// Releases the lock and waits for the server. Also wakes threads that are still in
    /// [`wait`](Leadership::wait).
    pub(crate) fn end(&self) -> Result<Released> {
        self.stop.cancel();
        self.guard.release()
    }
}

impl Deref for Leadership {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("id", &self.id())
            .field("is_owner", &self.is_owner())
            .finish_non_exhaustive()
    }
}
