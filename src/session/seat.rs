//! [`Seat`]: what a session and the lock of a request share about it.

use std::sync::{Arc, OnceLock};

use super::ownership::Ownership;
use crate::engine::lease::Holding;
use crate::engine::{Ending, ParticipantId, RequestEvent, RequestSpec};
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// Receives the events of a request that are [for its lock](RequestEvent::is_for_lock).
pub(crate) trait Observer: Send + Sync {
    /// Takes up an event, in order. Called under the mutex of the session: it must neither block nor
    /// call other code.
    fn post(&self, event: &RequestEvent);

    /// Returns whether a posted event waits for [`deliver`](Observer::deliver).
    fn has_callbacks(&self) -> bool {
        false
    }

    /// Makes the callbacks for the posted events, outside every lock.
    fn deliver(&self) {}
}

/// The driver fills it in, under its mutex; any thread reads it without one.
pub(crate) struct Seat {
    pub(crate) id: ParticipantId,
    pub(crate) spec: Arc<RequestSpec>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) made: Moment,
    pub(crate) ownership: Ownership,
    /// The moment that its hold does not outlast, if that is limited; known from the acquisition on.
    pub(crate) limit: OnceLock<Moment>,
    pub(crate) znode: OnceLock<ZNodePath>,
    pub(crate) fencing_token: OnceLock<i64>,
    pub(crate) ending: OnceLock<Ending>,
}

impl Seat {
    /// Takes up the hold of the request. Returns when it has ended for a reader, who has seen that before.
    #[must_use]
    pub(super) fn hold(&self, held: Option<Holding>) -> Option<Moment> {
        if let Some(limit) = held.and_then(|held| held.limit) {
            let _ = self.limit.set(limit);
        }
        self.ownership.set(held.map(|held| held.until))
    }

    /// Returns whether a hold that has ended then has come to its limit.
    pub(crate) fn has_reached_limit(&self, ended: Moment) -> bool {
        self.limit.get().is_some_and(|limit| *limit <= ended)
    }

    /// Returns how the request has ended, if it has.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// The znode's path for a message; the directory's until the znode is known.
    pub(crate) fn name(&self) -> &ZNodePath {
        self.znode.get().unwrap_or(&self.spec.dir)
    }
}
