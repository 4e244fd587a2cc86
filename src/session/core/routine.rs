//! Routine looks: every participant looks again now and then, without an event.
//!
//! A watch can be used up silently: a server withholds the event from a client that may not read
//! the znode any more (CVE-2024-23944), and a change of an ACL fires no watch. So no participant
//! relies on a watch for longer than half a minute.

use std::sync::Arc;

use super::Core;
use crate::session::participants::Wake;

impl Core {
    /// The pause is drawn between half of the longest one and the whole, so that sessions which
    /// began together do not look together.
    pub(super) fn look_routinely_later(self: &Arc<Self>) {
        let pause = self.runtime.routine_pause().mul_f64(0.5 + self.chance() / 2.0);
        self.at(self.now().after(pause), |core| {
            if core.end_reason().is_none() {
                core.look_routinely();
                core.look_routinely_later();
            }
        });
    }

    /// Wakes every participant to look. Without contact it does nothing: the reconnect wakes them.
    pub(crate) fn look_routinely(&self) {
        if self.in_contact() {
            self.wake_everybody(Wake::Routine);
        }
    }
}
