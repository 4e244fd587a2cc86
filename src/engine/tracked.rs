//! [`Tracked`]: a subject on the server that a user tracks. Its tracker looks again whenever the subject may have
//! changed.
//!
//! The tracker (`tracking/`) decides what a look reads, one call after another. The engine says when to look,
//! and knows which watches are set. The watches of a look stay until the end of the next look, which removes
//! the ones that it does not need.

use std::sync::Arc;
use std::time::Duration;

use super::border::{Effect, LookStep, ParticipantId};
use super::calls::Pending;
use super::commons::Commons;
use super::contender::Activity;
use super::life::SessionEnd;
use crate::client::{Ask, Call};
use crate::error::ZkError;
use crate::recipe::path::ZNodePath;
use crate::time::Priority;

/// The delay before a failed look is repeated during contact.
const RETRY: Duration = Duration::from_millis(500);

/// The interval at which a refused look is repeated, because a change of an ACL fires no watch.
const REFUSED_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tracked {
    id: ParticipantId,
    activity: Activity,
    /// The paths that the present look watches. If no look is under way, the paths that the last one watches.
    paths: Vec<ZNodePath>,
    /// While a look is under way, the paths that the previous look watches.
    former: Vec<ZNodePath>,
}

impl Tracked {
    pub(super) fn new(id: ParticipantId) -> Tracked {
        Tracked { id, activity: Activity::Idle, paths: Vec::new(), former: Vec::new() }
    }

    /// Begins a look now or, if one is under way, another one after it.
    pub(super) fn wake(&mut self, commons: &mut Commons) {
        if self.activity != Activity::Idle {
            self.activity = Activity::Woken;
            return;
        }
        self.activity = Activity::UnderWay;
        self.former = std::mem::take(&mut self.paths);
        commons.effects.push_back(Effect::BeginLook(self.id));
    }

    /// Takes the next step of a look.
    pub(super) fn handle_look(&mut self, commons: &mut Commons, step: LookStep) {
        let has_changed = step == LookStep::Changed;
        let pause = match step {
            LookStep::Call(call) => return self.read(commons, call),
            LookStep::Seen | LookStep::Changed => None,
            // The end of the session ends the tracking, and gives the reason.
            LookStep::Failed(ZkError::SessionExpired) => None,
            // Without contact there is nothing to see: the reconnect wakes everybody.
            LookStep::Failed(error) if error.is_transient() => commons.in_contact().then_some(RETRY),
            LookStep::Failed(_) => Some(REFUSED_LOOK),
        };
        if let Some(pause) = pause {
            commons.alarms.set(self.id, commons.now.after(pause));
        }
        self.end_former_watches(commons);
        let was_woken = std::mem::take(&mut self.activity) == Activity::Woken;
        if was_woken || has_changed {
            self.wake(commons);
        }
    }

    /// Makes the next call of a look. If the call leaves a watch, registers for its event first, so that no
    /// event is missed.
    fn read(&mut self, commons: &mut Commons, call: Call) {
        let watched = call.watched_path().map(|path| ZNodePath::from_server(Arc::clone(path)));
        if let Some(path) = &watched {
            if !self.paths.contains(path) {
                self.paths.push(path.clone());
            }
            commons.watchers.add(path, self.id);
        }
        commons.submit(Ask { call, read: Ok }, Priority::Other, Pending::Tracked(self.id, watched));
    }

    /// Ends the watches of the previous look that the present look did not need.
    fn end_former_watches(&mut self, commons: &mut Commons) {
        for path in std::mem::take(&mut self.former) {
            if !self.paths.contains(&path) {
                commons.unwatch(&path, self.id);
            }
        }
    }

    /// Ends the tracking and its watches.
    pub(super) fn end(self, commons: &mut Commons) {
        commons.alarms.clear(self.id);
        for path in self.paths.iter().chain(&self.former) {
            commons.unwatch(path, self.id);
        }
    }

    /// Ends the tracking because the session has ended.
    pub(super) fn lose(self, commons: &mut Commons, reason: SessionEnd) {
        let id = self.id;
        self.end(commons);
        commons.effects.push_back(Effect::Untracked(id, reason));
    }
}
