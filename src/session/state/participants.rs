//! The participants of a session: joining it, leaving it, notifying them, and the deletions that
//! outlive their requests.

use std::sync::{Arc, Weak};

use crossbeam_channel::Sender;

use super::Core;
use crate::engine::ParticipantId;
use crate::error::ZkResult;
use crate::lock_order;
use crate::session::registry::{Notification, Participant};
use crate::session::removal::{Removal, Target};

/// The deletions that a session has left.
pub(super) enum Orphans {
    Kept(Vec<Target>),
    PassedOn(Weak<Core>),
}

impl Core {
    /// Adds a participant, which is notified at once if the session has ended meanwhile.
    pub(crate) fn join(&self, id: ParticipantId, participant: Arc<dyn Participant>) {
        self.registry.add(id, Arc::clone(&participant));
        if let Some(reason) = self.end_reason() {
            participant.notify(Notification::SessionEnded(reason));
        }
    }

    pub(crate) fn leave(self: &Arc<Self>, id: ParticipantId) {
        self.registry.remove(id);
        let is_lingering = self.status.lock().is_lingering();
        if is_lingering && self.registry.is_empty() {
            self.finish();
        }
    }

    /// Deletes a znode of this session, trying again until it is gone or the session has ended. The
    /// first outcome is sent to `first`.
    pub(crate) fn remove(self: &Arc<Self>, target: Target, first: Option<Sender<ZkResult<()>>>) {
        Removal::start(self, target, first);
    }

    /// Leaves a deletion to the session that follows, if there is one. A call that was under way at
    /// the end of this session may return after the next has begun.
    pub(in crate::session) fn leave_behind(&self, target: Target) {
        let successor = match &mut *self.orphans.lock() {
            Orphans::Kept(targets) => return targets.push(target),
            Orphans::PassedOn(successor) => successor.upgrade(),
        };
        if let Some(successor) = successor {
            successor.remove(target, None);
        }
    }

    /// Passes the deletions that are left to the session that follows, and those to come.
    pub(in crate::session) fn pass_orphans_to(&self, successor: &Arc<Core>) {
        let passed_on = Orphans::PassedOn(Arc::downgrade(successor));
        let former = std::mem::replace(&mut *self.orphans.lock(), passed_on);
        let Orphans::Kept(targets) = former else { return };
        for target in targets {
            successor.remove(target, None);
        }
    }

    pub(super) fn notify_all_participants(&self, why: Notification) {
        lock_order::assert_none_held();
        for participant in self.registry.everybody() {
            participant.notify(why);
        }
    }
}
