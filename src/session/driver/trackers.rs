//! Reads of znodes for the views of an application, such as a node tracker. The engine decides when to read, and a
//! [`Tracker`] decides what to read.

use std::sync::Arc;

use super::{Afterwards, Core, Driver, Task};
use crate::client::{Reply, contain_call};
use crate::engine::{LookStep, ParticipantId, SessionEnd};
use crate::error::ZkResult;

/// Decides what to read for one view. Its methods are called outside every mutex. They must not block, because they may
/// run on a thread of the client. Each session makes one call of `look` at a time; `end` may come during such a call.
pub(crate) trait Tracker: Send + Sync {
    /// Begins a look (a series of reads) on this session, or continues it with the outcome of its last call.
    fn look(&self, core: &Arc<Core>, outcome: Option<ZkResult<Reply>>) -> LookStep;

    /// Called when the session has ended.
    fn end(&self, reason: SessionEnd);
}

impl Core {
    /// Makes a tracker look now, and again whenever its znode may have changed.
    pub(crate) fn track(self: &Arc<Self>, id: ParticipantId, tracker: Arc<dyn Tracker>) {
        let ended = self.feed(|driver| match driver.engine.track(id) {
            Some(reason) => Some((tracker, reason)),
            None => {
                driver.trackers.insert(id, tracker);
                None
            }
        });
        if let Some((tracker, reason)) = ended {
            tracker.end(reason);
        }
    }

    pub(crate) fn untrack(self: &Arc<Self>, id: ParticipantId) {
        let tracker = self.feed(|driver| {
            driver.engine.untrack(id);
            driver.trackers.remove(&id)
        });
        // Outside the mutex, because this may be the last handle.
        drop(tracker);
    }

    pub(super) fn take_look_step(
        self: &Arc<Self>,
        id: ParticipantId,
        tracker: &dyn Tracker,
        outcome: Option<ZkResult<Reply>>,
    ) {
        let step = contain_call("a read for a tracker", || Ok(tracker.look(self, outcome)));
        self.feed(|driver| driver.engine.handle_look(id, step.unwrap_or_else(LookStep::Failed)));
    }
}

impl Driver {
    pub(super) fn note_look(
        &self,
        id: ParticipantId,
        outcome: Option<ZkResult<Reply>>,
        afterwards: &mut Afterwards,
    ) {
        let tracker = self.trackers.get(&id).map(Arc::clone);
        afterwards.tasks.extend(tracker.map(|tracker| Task::Look(id, tracker, outcome)));
    }
}
