//! [`Seat`]: what a session and the lock of a request share about it.

use std::sync::{Arc, OnceLock};

use super::ownership::Ownership;
use crate::engine::{ParticipantId, RequestSpec};
use crate::error::{LockError, LossReason};
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// An event of a request, as reported to its lock.
#[derive(Clone, Debug)]
pub(crate) enum RequestEvent {
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
    /// Takes up an event, in order. Called under the mutex of the session: it must neither block nor
    /// call other code.
    fn post(&self, event: RequestEvent);

    /// Returns whether a posted event waits for [`deliver`](Observer::deliver).
    fn has_callbacks(&self) -> bool {
        false
    }

    /// Makes the callbacks for the posted events, outside every lock.
    fn deliver(&self) {}
}

/// The end of a request.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Withdrawn,
    /// Taken away while it held the lock.
    Lost(LossReason),
    /// Taken out of the queue, with the error for all who wait for it.
    Dropped(LossReason, Box<LockError>),
}

/// The driver fills it in, under its mutex; any thread reads it without one.
pub(crate) struct Seat {
    pub(crate) id: ParticipantId,
    pub(crate) spec: Arc<RequestSpec>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) made: Moment,
    pub(crate) ownership: Ownership,
    pub(crate) znode: OnceLock<ZNodePath>,
    pub(crate) fencing_token: OnceLock<i64>,
    pub(crate) outcome: OnceLock<Outcome>,
}

impl Seat {
    /// Returns how the request has ended, if it has.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// The znode's path for a message; the directory's until the znode is known.
    pub(crate) fn name(&self) -> &ZNodePath {
        self.znode.get().unwrap_or(&self.spec.dir)
    }
}
