//! [`Leadership`]: what a candidate's closure knows of the leadership for as long as it lasts.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::{LossReason, Result};
use crate::locks::lock_guard::LockGuard;
use crate::locks::locking::Released;
use crate::request::Request;
use crate::wait::CancelToken;

/// The leadership that a [`Candidate`](crate::Candidate) lends to its closure. It ends when the
/// closure returns.
///
/// The call of the closure alone does not prove leadership: the session may be lost at any time. Ask
/// [`is_leader`](Leadership::is_leader) before each action that only the leader may take. For an
/// action on a resource outside this process, pass the [`fencing_token`](Leadership::fencing_token)
/// along. `Send` and `Sync`: threads of a [scope](std::thread::scope) may ask too.
pub struct Leadership {
    guard: LockGuard,
    stop: CancelToken,
    stop_requested: Receiver<Infallible>,
}

impl Leadership {
    pub(crate) fn new(guard: LockGuard, stop: &CancelToken) -> Leadership {
        Leadership { guard, stop: stop.clone(), stop_requested: stop.cancelled() }
    }

    /// Returns whether this process still leads, proven up to now. Does no I/O and does not block.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_owner()
    }

    /// Returns whether the closure should return: leadership is lost, the candidate was
    /// [stopped](crate::Candidate::stop), or somebody [asks](crate::Revoker) for the leadership.
    /// Once `true` it stays `true`. A closure may finish its work as long as it
    /// [leads](Leadership::is_leader).
    #[must_use]
    pub fn should_stop(&self) -> bool {
        !self.is_leader() || self.stop.is_cancelled() || self.guard.is_revocation_requested()
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
        // The messages stay in the channels for the closure.
        core.wait(&[self.lost(), self.revocation(), &self.stop_requested], Some(core.now().after(time)));
        !self.should_stop()
    }

    /// Returns a channel on which the reason arrives when leadership is lost; for use in
    /// [`select!`](crossbeam_channel::select).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.guard.lost()
    }

    /// Returns why leadership was lost; `None` while it lasts.
    #[must_use]
    pub fn loss(&self) -> Option<LossReason> {
        self.guard.loss()
    }

    /// Returns a channel that is disconnected when the candidate is stopped; for use in
    /// [`select!`](crossbeam_channel::select). No message arrives.
    #[must_use]
    pub fn stop_requested(&self) -> &Receiver<Infallible> {
        &self.stop_requested
    }

    /// Returns a channel on which one message arrives when somebody asks for the leadership, as on
    /// [`LockGuard::revocation`].
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.guard.revocation()
    }

    /// Returns a number that grows with every later leader, as [`LockGuard::fencing_token`].
    ///
    /// # Errors
    /// As [`LockGuard::fencing_token`].
    pub fn fencing_token(&self) -> Result<i64> {
        self.guard.fencing_token()
    }

    /// Returns the full path of the leader's znode.
    #[must_use]
    pub fn id(&self) -> &str {
        self.guard.id()
    }

    pub(crate) fn request(&self) -> Arc<Request> {
        self.guard.request()
    }

    /// Releases the lock and waits for the server.
    pub(crate) fn step_down(self) -> Result<Released> {
        self.guard.unlock()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("id", &self.id())
            .field("is_leader", &self.is_leader())
            .finish_non_exhaustive()
    }
}
