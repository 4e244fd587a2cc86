//! [`Wait`]: how long a call waits for a lock, and [`CancelToken`], with which another thread ends the waiting.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select};
use parking_lot::Mutex;

/// How long a call may wait: for ever, for some time, or until another thread cancels it.
///
/// ```
/// use std::time::Duration;
/// use zookeeper_recipes_lock::{CancelToken, Wait};
///
/// let cancel = CancelToken::new();
/// let wait = Wait::timeout(Duration::from_secs(30)).cancelled_by(&cancel);
/// // On a thread of its own: lock.try_lock_with(&wait)
/// cancel.cancel();
/// assert!(wait.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Wait {
    deadline: Option<Instant>,
    cancel: Option<CancelToken>,
}

impl Wait {
    /// Waits without an end.
    #[must_use]
    pub fn forever() -> Wait {
        Wait::default()
    }

    /// Waits for this time, counted from now. One that is longer than the clock can tell is unlimited.
    #[must_use]
    pub fn timeout(timeout: Duration) -> Wait {
        Wait { deadline: Instant::now().checked_add(timeout), cancel: None }
    }

    /// Waits until this moment.
    #[must_use]
    pub fn until(deadline: Instant) -> Wait {
        Wait { deadline: Some(deadline), cancel: None }
    }

    /// Waits no longer than until this handle is pulled.
    #[must_use]
    pub fn cancelled_by(self, cancel: &CancelToken) -> Wait {
        Wait { cancel: Some(cancel.clone()), ..self }
    }

    /// Returns when the waiting ends at the latest, if it does.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the handle has been pulled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Waits for a message, with wait.
    pub(crate) fn wait_for<T>(&self, channel: &Receiver<T>) -> Waited<T> {
        self.wait_for_or(channel, &never())
    }

    /// Waits for a message, with wait, until either channel is disconnected.
    pub(crate) fn wait_for_or<T>(&self, channel: &Receiver<T>, end: &Receiver<Infallible>) -> Waited<T> {
        let cancelled = self.cancel.as_ref().map_or_else(never, CancelToken::cancelled);
        let timed_out = self.deadline.map_or_else(never, at);
        select! {
            recv(channel) -> message => message.map_or(Waited::Disconnected, Waited::Received),
            recv(end) -> _ => Waited::Disconnected,
            recv(cancelled) -> _ => Waited::Cancelled,
            recv(timed_out) -> _ => Waited::TimedOut,
        }
    }
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waited<T> {
    Received(T),
    /// Nothing will ever come.
    Disconnected,
    Cancelled,
    TimedOut,
}

/// Ends the waiting of other threads: of every call whose [`Wait`] is [`cancelled_by`](Wait::cancelled_by) it, now
/// and from now on.
///
/// Clones pull the same. What has been acquired already stays so. Origin: `cancel()` of kazoo's lock.
#[derive(Clone)]
pub struct CancelToken {
    signal: Arc<Signal>,
}

struct Signal {
    /// Dropped to cancel.
    pending: Mutex<Option<Sender<Infallible>>>,
    cancelled: Receiver<Infallible>,
}

impl CancelToken {
    /// Makes a handle that has not been pulled.
    #[must_use]
    pub fn new() -> CancelToken {
        let (pending, cancelled) = bounded(0);
        CancelToken { signal: Arc::new(Signal { pending: Mutex::new(Some(pending)), cancelled }) }
    }

    /// Cancels. Idempotent, and waits for nothing.
    pub fn cancel(&self) {
        *self.signal.pending.lock() = None;
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.signal.pending.lock().is_none()
    }

    /// Disconnected when it is cancelled.
    pub(crate) fn cancelled(&self) -> Receiver<Infallible> {
        self.signal.cancelled.clone()
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
    use crate::testing::{in_background, next};

    #[test]
    fn a_message_that_is_there_ends_every_wait() {
        let (sender, receiver) = bounded(1);
        sender.send(1).unwrap();
        assert_eq!(Wait::forever().wait_for(&receiver), Waited::Received(1));
        drop(sender);
        assert_eq!(Wait::forever().wait_for(&receiver), Waited::Disconnected);
    }

    #[test]
    fn a_deadline_ends_a_wait() {
        let (_sender, receiver) = bounded::<()>(1);
        assert_eq!(Wait::timeout(Duration::ZERO).wait_for(&receiver), Waited::TimedOut);
        assert_eq!(Wait::timeout(Duration::MAX).deadline(), None);
    }

    #[test]
    fn a_handle_pulled_before_or_meanwhile_ends_a_wait() {
        let (_sender, receiver) = bounded::<()>(1);
        let cancel = CancelToken::new();
        let wait = Wait::forever().cancelled_by(&cancel);
        let waiting = in_background({
            let (wait, receiver) = (wait.clone(), receiver.clone());
            move || wait.wait_for(&receiver)
        });
        assert!(!wait.is_cancelled());
        cancel.clone().cancel();
        assert_eq!(next(&waiting), Waited::Cancelled);
        assert_eq!(wait.wait_for(&receiver), Waited::Cancelled);
    }
}
