//! Looks that nothing has brought about, now and then.
//!
//! A watch can be used up without a word: a server withholds the event from a client that may not read the znode any more
//! (CVE-2024-23944), and no event tells of a change of an ACL. So nobody relies on a watch for longer than half a minute.

use std::sync::Arc;

use super::Core;
use crate::session::participants::Wake;

impl Core {
    /// The time is drawn between half of the longest pause and the whole, so that sessions which began together do not look
    /// together.
    pub(super) fn look_routinely_later(self: &Arc<Self>) {
        let pause = self.runtime.routine_pause().mul_f64(0.5 + self.chance() / 2.0);
        self.at(self.now().after(pause), |core| {
            if core.end_reason().is_none() {
                core.look_routinely();
                core.look_routinely_later();
            }
        });
    }

    /// Has everybody look. Without contact there is nothing to see until it is back, which wakes everybody, too.
    pub(crate) fn look_routinely(&self) {
        if self.in_contact() {
            self.wake_everybody(Wake::Routine);
        }
    }
}
