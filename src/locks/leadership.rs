//! [`Leadership`]: what a candidate's closure knows of the leadership for as long as it lasts.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{Operation, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;
use crate::wait::CancelToken;

/// The leadership that a [`Candidate`](crate::Candidate) lends to its closure. It ends when the
/// closure returns.
///
/// The call of the closure alone does not prove leadership: the session may be lost at any time.
/// Ask [`is_owner`](LockGuard::is_owner) before each action that only the leader may take. For
/// an action on a resource outside this process, pass the
/// [`fencing_token`](LockGuard::fencing_token) along. `Send` and `Sync`: threads of a
/// [scope](std::thread::scope) may ask too.
///
/// It derefs to the [`LockGuard`] of the leader's lock, with its channels for a loss and a
/// revocation.
///
/// Other threads get it by [`Candidate::leadership`](crate::Candidate::leadership). One that is kept beyond its end leads no
/// more, whether or not the candidate is elected again.
pub struct Leadership {
    guard: LockGuard,
    /// Cancelled when this leadership is to end.
    stop: CancelToken,
}

impl Leadership {
    pub(crate) fn new(guard: LockGuard) -> Leadership {
        Leadership { guard, stop: CancelToken::new() }
    }

    /// Returns whether the closure should return: leadership is lost, the candidate was
    /// [stopped](crate::Candidate::stop), is to [step down](Leadership::step_down), or somebody [asks](crate::queue::Revoker) for the leadership.
    /// Once `true` it stays `true`. A closure may finish its work as long as it
    /// [leads](LockGuard::is_owner).
    #[must_use]
    pub fn should_stop(&self) -> bool {
        !self.is_owner() || self.stop.is_cancelled() || self.request().is_revocation_requested()
    }

    /// Waits for this time, or until the closure should return. Returns whether it may continue.
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

    /// Asks the candidate to step down, as a revocation does, without blocking:
    /// [`should_stop`](Leadership::should_stop) becomes `true`. When the closure has returned, the candidate gives the
    /// leadership up and stands again, behind those who wait. A candidate that
    /// [keeps leading](crate::Candidate::keep_leading) has a closure that returns at once. Idempotent; of no effect once the
    /// leadership has ended.
    pub fn step_down(&self) {
        // In a forked child the leadership is the parent's, and a mutex may stay held for ever.
        if self.request().check_process(Operation::UNLOCK).is_ok() {
            self.stop.cancel();
        }
    }

    /// Returns a channel that is disconnected when the candidate is stopped or is to step down, and at the end of the
    /// term; for use in [`select!`](crossbeam_channel::select). No message arrives.
    #[must_use]
    pub fn stop_requested(&self) -> &Receiver<Infallible> {
        self.stop.cancelled()
    }

    /// Releases the lock and waits for the server. Ends the waits of those who have kept the leadership.
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
