//! The deletions that a session leaves to the next one.

use std::sync::{Arc, Weak};

use super::Core;
use crate::engine::Target;
use crate::recipe::path::ZNodePath;

pub(super) enum Orphans {
    Kept(Vec<Target>),
    PassedOn(Weak<Core>),
}

impl Core {
    /// Deletes a znode, and retries until the znode is gone or the session has ended.
    pub(crate) fn remove(self: &Arc<Self>, path: ZNodePath) {
        self.feed(|driver| driver.engine.remove(path));
    }

    fn delete_left_behind(self: &Arc<Self>, left: Target) {
        self.feed(|driver| driver.engine.delete_left_behind(left));
    }

    /// Leaves a deletion to the next session, if there is one. The next session may already have begun, because a call
    /// that was pending at the end of this session may return late.
    pub(super) fn leave_behind(&self, target: Target) {
        let successor = match &mut *self.orphans.lock() {
            Orphans::Kept(targets) => return targets.push(target),
            Orphans::PassedOn(successor) => successor.upgrade(),
        };
        if let Some(successor) = successor {
            successor.delete_left_behind(target);
        }
    }

    /// Passes the remaining deletions, and all later ones, on to the next session.
    pub(in crate::session) fn pass_orphans_to(&self, successor: &Arc<Core>) {
        let passed_on = Orphans::PassedOn(Arc::downgrade(successor));
        let former = std::mem::replace(&mut *self.orphans.lock(), passed_on);
        let Orphans::Kept(targets) = former else { return };
        for target in targets {
            successor.delete_left_behind(target);
        }
    }
}
