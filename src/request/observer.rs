//! [`Observer`]: receives the events of a request, for its lock.

use crate::error::{LockError, LossReason};

/// What happens to a request, as reported to its lock.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Acquired,
    /// Another client asks the holder to release the lock.
    RevocationRequested,
    /// Ended by its own process while it held the lock.
    Released,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Ended without being withdrawn, while it did not hold the lock, with the error for all who wait
    /// for it.
    Dropped(LossReason, LockError),
}

/// Receives a request's events.
pub(crate) trait Observer: Send + Sync {
    /// Takes up an event, in order. Called under the request's lock: it must neither block nor call
    /// other code.
    fn post(&self, event: Event);

    /// Whether a posted event waits for [`deliver`](Observer::deliver).
    fn has_callbacks(&self) -> bool {
        false
    }

    /// Makes the callbacks for the posted events, outside every lock.
    fn deliver(&self) {}
}
