//! [`Wait`]: how long a call waits, and [`CancelToken`], with which another thread ends the wait.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, at, bounded, never, select};
use parking_lot::Mutex;

/// How long a call waits: for ever, until a deadline, or until another thread cancels it.
///
/// Calls take `impl Into<Wait>`, so a [`Duration`] or an [`Instant`] will do.
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
    token: Option<CancelToken>,
}

impl Wait {
    /// Waits without a time limit.
    #[must_use]
    pub fn forever() -> Wait {
        Wait::default()
    }

    /// Waits for this time from now. A time beyond the range of the clock is unlimited.
    #[must_use]
    pub fn timeout(timeout: Duration) -> Wait {
        Wait { deadline: Instant::now().checked_add(timeout), token: None }
    }

    /// Waits until this moment.
    #[must_use]
    pub fn until(deadline: Instant) -> Wait {
        Wait { deadline: Some(deadline), token: None }
    }

    /// Waits at most until the token is cancelled.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Wait {
        Wait { token: Some(token.clone()), ..self }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.token.as_ref().is_some_and(CancelToken::is_cancelled)
    }

    /// Waits for a message.
    pub(crate) fn wait_for<T>(&self, channel: &Receiver<T>) -> Waited<T> {
        self.wait_for_or(channel, [&never(), &never()])
    }

    /// Waits for a message, at most until the channel or one of the others is disconnected.
    pub(crate) fn wait_for_or<T>(
        &self,
        channel: &Receiver<T>,
        [end, other_end]: [&Receiver<Infallible>; 2],
    ) -> Waited<T> {
        let cancelled = self.token.as_ref().map_or_else(never, CancelToken::cancelled);
        let timed_out = self.deadline.map_or_else(never, at);
        select! {
            recv(channel) -> message => message.map_or(Waited::Disconnected, Waited::Received),
            recv(end) -> _ => Waited::Disconnected,
            recv(other_end) -> _ => Waited::Disconnected,
            recv(cancelled) -> _ => Waited::Cancelled,
            recv(timed_out) -> _ => Waited::TimedOut,
        }
    }
}

impl From<Duration> for Wait {
    fn from(timeout: Duration) -> Wait {
        Wait::timeout(timeout)
    }
}

impl From<Instant> for Wait {
    fn from(deadline: Instant) -> Wait {
        Wait::until(deadline)
    }
}

impl From<&Wait> for Wait {
    fn from(wait: &Wait) -> Wait {
        wait.clone()
    }
}

/// What ended a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waited<T> {
    Received(T),
    /// No message can arrive any more.
    Disconnected,
    Cancelled,
    TimedOut,
}

/// Cancels the calls of other threads whose [`Wait`] is [`cancelled_by`](Wait::cancelled_by) it:
/// those that wait and those to come.
///
/// Clones share the state. A lock that is already acquired stays acquired. Origin: `cancel()` of
/// kazoo's lock.
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
    /// Makes a token that is not cancelled.
    #[must_use]
    pub fn new() -> CancelToken {
        let (pending, cancelled) = bounded(0);
        CancelToken { signal: Arc::new(Signal { pending: Mutex::new(Some(pending)), cancelled }) }
    }

    /// Cancels. Idempotent; does not block.
    pub fn cancel(&self) {
        *self.signal.pending.lock() = None;
    }

    /// Returns whether [`cancel`](CancelToken::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.signal.pending.lock().is_none()
    }

    /// A channel that is disconnected when the token is cancelled.
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
    fn a_message_or_a_disconnect_ends_a_wait() {
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
        assert_eq!(Wait::timeout(Duration::MAX).deadline, None);
    }

    #[test]
    fn cancelling_ends_a_wait_and_those_to_come() {
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
