//! [`Seat`]: the state of one request, shared by the session and the lock.

use std::sync::{Arc, OnceLock};

use super::ownership::Ownership;
use crate::engine::lease::Holding;
use crate::engine::{Ending, ParticipantId, RequestEvent, RequestSpec};
use crate::recipe::path::ZNodePath;
use crate::time::Moment;

/// Receives the events of a request that are [for its lock](RequestEvent::is_for_lock).
pub(crate) trait Observer: Send + Sync {
    /// Takes an event. Events arrive in order. Called under the mutex of the session, so it must neither block nor call
    /// other code.
    fn post(&self, event: &RequestEvent);

    /// Returns whether a posted event waits for [`advance`](Observer::advance).
    fn has_steps(&self) -> bool {
        false
    }

    /// Takes the library's own next steps after the posted events. Called outside every mutex, on any thread, soon after
    /// the events. So this must neither block nor call the application.
    fn advance(&self) {}

    /// Returns whether a posted event waits for [`deliver`](Observer::deliver).
    fn has_callbacks(&self) -> bool {
        false
    }

    /// Makes the callbacks for the posted events. Called outside every mutex.
    fn deliver(&self) {}
}

/// The state of one request. Any thread reads it without a mutex. The driver writes it under its mutex, with two
/// exceptions: a reader of the ownership may end the hold, and a thread that has read the fencing token may set it.
pub(crate) struct Seat {
    pub(crate) id: ParticipantId,
    pub(crate) spec: Arc<RequestSpec>,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) made: Moment,
    pub(crate) ownership: Ownership,
    /// The moment at which the hold ends at the latest, if it has a limit. Set when the lock is acquired.
    pub(crate) limit: OnceLock<Moment>,
    pub(crate) znode: OnceLock<ZNodePath>,
    pub(crate) fencing_token: OnceLock<i64>,
    pub(crate) ending: OnceLock<Ending>,
}

impl Seat {
    /// Sets the hold of the request. If a reader has already seen the end of the hold, returns when the hold ended.
    #[must_use]
    pub(super) fn hold(&self, held: Option<Holding>) -> Option<Moment> {
        if let Some(limit) = held.and_then(|held| held.limit) {
            let _ = self.limit.set(limit);
        }
        self.ownership.set(held.map(|held| held.until))
    }

    /// Returns whether a hold that ended at this moment had reached its limit.
    pub(crate) fn has_reached_limit(&self, ended: Moment) -> bool {
        self.limit.get().is_some_and(|limit| *limit <= ended)
    }

    /// Returns how the request ended, if it has.
    pub(crate) fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// The path of the znode or, until the znode is known, of the directory. For messages.
    pub(crate) fn name(&self) -> &ZNodePath {
        self.znode.get().unwrap_or(&self.spec.dir)
    }
}
