//! [`Leadership`]: what a candidate's closure knows of the leadership for as long as it lasts.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select};

use crate::error::{LossReason, Result};
use crate::locks::lock_guard::LockGuard;
use crate::request::Request;
use crate::wait::CancelToken;

/// Leadership, as a [`Candidate`](crate::Candidate) lends it to its closure. It ends when the closure returns.
///
/// Being called is no proof of leading for ever: the session may be lost at any time. Before an action that only the
/// leader may take, ask [`is_leader`](Leadership::is_leader); where the action reaches a resource outside this process, send
/// the [`fencing_token`](Leadership::fencing_token) along. `Send` and `Sync`: threads that the closure starts, in a
/// [scope](std::thread::scope), may ask too.
pub struct Leadership {
    guard: LockGuard,
    stop: CancelToken,
    stop_requested: Receiver<Infallible>,
}

impl Leadership {
    pub(crate) fn new(guard: LockGuard, stop: &CancelToken) -> Leadership {
        Leadership { guard, stop: stop.clone(), stop_requested: stop.cancelled() }
    }

    /// Returns whether this process still leads, and provably so until now. Does no I/O and waits for nothing: ask it
    /// before every action that only the leader may take.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_owner()
    }

    /// Returns whether the closure is to return: leadership is lost, the candidate is to
    /// [stop](crate::Candidate::stop), or somebody [asks](crate::Revoker) for the leadership. A closure may finish what it
    /// is about as long as it [leads](Leadership::is_leader).
    #[must_use]
    pub fn should_stop(&self) -> bool {
        !self.is_leader() || self.stop.is_cancelled() || !self.revocation().is_empty()
    }

    /// Waits for so long, or until the closure is to return, and returns whether it may go on.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn work(leadership: &zookeeper_recipes_lock::Leadership) {
    /// # fn look_after_the_cluster() {}
    /// while leadership.wait(Duration::from_secs(1)) {
    ///     look_after_the_cluster();
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn wait(&self, time: Duration) -> bool {
        if self.should_stop() {
            return false;
        }
        let mut stirs = Select::new();
        stirs.recv(self.lost());
        stirs.recv(self.revocation());
        stirs.recv(&self.stop_requested);
        // What has come is left where it is, for those who look there.
        let _ = stirs.ready_timeout(time);
        !self.should_stop()
    }

    /// Returns a channel on which the reason arrives when leadership is lost; usable in
    /// [`select!`](crossbeam_channel::select).
    #[must_use]
    pub fn lost(&self) -> &Receiver<LossReason> {
        self.guard.lost()
    }

    /// Returns a channel that is disconnected when the candidate is to stop; usable in
    /// [`select!`](crossbeam_channel::select). Nothing ever arrives.
    #[must_use]
    pub fn stop_requested(&self) -> &Receiver<Infallible> {
        &self.stop_requested
    }

    /// Returns a channel on which one message arrives when somebody asks for the leadership, as
    /// [`LockGuard::revocation`] does. Once it is taken, [`should_stop`](Leadership::should_stop) no longer counts it.
    #[must_use]
    pub fn revocation(&self) -> &Receiver<()> {
        self.guard.revocation()
    }

    /// Returns a number that grows with every later leader, as [`LockGuard::fencing_token`] does.
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
    pub(crate) fn step_down(self) -> Result<()> {
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
