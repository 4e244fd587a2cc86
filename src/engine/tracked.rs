//! [`Tracked`]: something on the server that is looked at again whenever it may have changed, for a user
//! and not for a request.
//!
//! The steps of a look are up to its tracker (`tracking/`), which makes one call after the other. The engine
//! says when to look, and knows which watches stand: those of a look serve until the next one, which ends
//! those that it does not need.

use std::sync::Arc;
use std::time::Duration;

use super::calls::Pending;
use super::contender::Activity;
use super::{Effect, Engine, ParticipantId};
use crate::client::{Ask, Call, Reply};
use crate::error::{LossReason, ZkError, ZkResult};
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The delay before a failed look is repeated in contact.
const RETRY: Duration = Duration::from_millis(500);

/// The interval at which a refused look is repeated: a change of an ACL fires no watch.
const REFUSED_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tracked {
    activity: Activity,
    /// The paths on which the present look has registered, or the last one.
    paths: Vec<ZNodePath>,
    /// The paths of the look before, while a look is under way.
    former: Vec<ZNodePath>,
}

/// The outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// It has left a watch on everything that may outdate it.
    Seen,
    /// Something changed meanwhile, so that no watch was left.
    Changed,
    Failed(ZkError),
}

impl Engine {
    /// Begins to track. Returns why the session has ended, if it has.
    pub(crate) fn track(&mut self, id: ParticipantId) -> Option<LossReason> {
        let reason = self.life.end_reason();
        if reason.is_none() {
            self.tracked.insert(id, Tracked::default());
            self.look_at_tracked(id);
        }
        reason
    }

    /// Ends the tracking, with its watches.
    pub(crate) fn untrack(&mut self, id: ParticipantId) {
        let Some(Tracked { paths, former, .. }) = self.tracked.remove(&id) else { return };
        self.alarms.clear(id);
        for path in paths.iter().chain(&former) {
            self.unwatch(path, id);
        }
    }

    /// Asks for a look, or for one more after that which is under way.
    pub(super) fn look_at_tracked(&mut self, id: ParticipantId) {
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        if tracked.activity != Activity::Idle {
            tracked.activity = Activity::Woken;
            return;
        }
        tracked.activity = Activity::UnderWay;
        tracked.former = std::mem::take(&mut tracked.paths);
        self.effects.push_back(Effect::Look(id));
    }

    pub(super) fn look_at_all_tracked(&mut self) {
        let all: Vec<ParticipantId> = self.tracked.keys().copied().collect();
        all.into_iter().for_each(|id| self.look_at_tracked(id));
    }

    /// Makes the next call of a look. One that leaves a watch is registered for before, so that no event
    /// is missed.
    pub(crate) fn read_for(&mut self, id: ParticipantId, call: Call) {
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        let watched = call.watched_path().map(|path| ZNodePath::from_server(Arc::clone(path)));
        if let Some(path) = &watched {
            if !tracked.paths.contains(path) {
                tracked.paths.push(path.clone());
            }
            self.watchers.add(path, id);
        }
        self.submit(Ask { call, read: Ok }, Priority::Other, Pending::ReadFor(id, watched));
    }

    pub(super) fn read_for_tracked(
        &mut self,
        id: ParticipantId,
        watched: Option<ZNodePath>,
        outcome: ZkResult<Reply>,
    ) {
        if self.tracked.contains_key(&id) {
            self.effects.push_back(Effect::ReadFor(id, outcome));
        } else if let Some(path) = watched {
            self.remove_stray_watch(&path, id);
        }
    }

    /// Takes up the end of a look.
    pub(crate) fn looked_at_tracked(&mut self, id: ParticipantId, how: Looked) {
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        let again = std::mem::replace(&mut tracked.activity, Activity::Idle) == Activity::Woken
            || how == Looked::Changed;
        let mut former = std::mem::take(&mut tracked.former);
        former.retain(|path| !tracked.paths.contains(path));
        for path in &former {
            self.unwatch(path, id);
        }
        match how {
            Looked::Seen | Looked::Changed => {}
            // The end of the session ends the tracking, and gives the reason.
            Looked::Failed(ZkError::SessionExpired) => {}
            // Without contact there is nothing to see: the reconnect wakes everybody.
            Looked::Failed(error) if error.is_transient() => {
                if self.in_contact() {
                    self.alarms.set(id, self.now.after(RETRY));
                }
            }
            Looked::Failed(_) => self.alarms.set(id, self.now.after(REFUSED_LOOK)),
        }
        if again {
            self.look_at_tracked(id);
        }
    }

    /// The session has ended.
    pub(super) fn end_tracking(&mut self, reason: LossReason) {
        let all: Vec<ParticipantId> = self.tracked.keys().copied().collect();
        for id in all {
            self.untrack(id);
            self.effects.push_back(Effect::Untracked(id, reason));
        }
    }
}
