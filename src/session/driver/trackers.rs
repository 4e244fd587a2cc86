//! Looks for users: between the engine, which says when, and a [`Tracker`], which says at what.

use std::sync::Arc;

use super::{Afterwards, Core, Driver, Origin, Task};
use crate::client::{Call, Reply, contain_call};
use crate::engine::{Looked, ParticipantId};
use crate::error::{LossReason, ZkResult};

/// Knows what to look at for a user. Its methods are called outside every lock, one at a time. They must
/// not block, as it may be on a thread of the client's.
pub(crate) trait Tracker: Send + Sync {
    /// Begins a look.
    fn look(&self) -> Step;

    /// Goes on with the outcome of the last call.
    fn go_on(&self, outcome: ZkResult<Reply>) -> Step;

    /// The session has ended.
    fn end(&self, reason: LossReason);
}

/// The next step of a look.
pub(crate) enum Step {
    Call(Call),
    Done(Looked),
}

/// A look that is to begin, or to go on with the outcome of its last call.
pub(super) struct LookOn {
    id: ParticipantId,
    tracker: Arc<dyn Tracker>,
    outcome: Option<ZkResult<Reply>>,
}

impl Core {
    /// Looks at something for a user, now and whenever it may have changed.
    pub(crate) fn track(self: &Arc<Self>, id: ParticipantId, tracker: Arc<dyn Tracker>) {
        let ended = self.feed(Origin::Other, |driver| match driver.engine.track(id) {
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
        let tracker = self.feed(Origin::Other, |driver| {
            driver.engine.untrack(id);
            driver.trackers.remove(&id)
        });
        // Outside the mutex: it may be the last handle.
        drop(tracker);
    }

    pub(super) fn look_on(self: &Arc<Self>, origin: Origin, look: LookOn) {
        let LookOn { id, tracker, outcome } = look;
        let step = contain_call("a look for a user", || {
            Ok(match outcome {
                None => tracker.look(),
                Some(outcome) => tracker.go_on(outcome),
            })
        });
        let step = step.unwrap_or_else(|error| Step::Done(Looked::Failed(error)));
        self.feed(origin, |driver| match step {
            Step::Call(call) => driver.engine.read_for(id, call),
            Step::Done(how) => driver.engine.end_look(id, how),
        });
    }
}

impl Driver {
    pub(super) fn note_look(
        &self,
        id: ParticipantId,
        outcome: Option<ZkResult<Reply>>,
        afterwards: &mut Afterwards,
    ) {
        if let Some(tracker) = self.trackers.get(&id) {
            afterwards.tasks.push(Task::LookOn(LookOn { id, tracker: Arc::clone(tracker), outcome }));
        }
    }
}
