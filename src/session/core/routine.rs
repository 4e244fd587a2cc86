//! Routine looks: every participant looks again now and then, without an event.
//!
//! A watch can be used up silently: a server withholds the event from a client that may not read
//! the znode any more (CVE-2024-23944), and a change of an ACL fires no watch. So no participant
//! relies on a watch for longer than half a minute, or a session timeout if that is longer.
//!
//! A client may want its connection to be left alone for a while, to check its own health. Its
//! looks come together with the next keep-alive.

use std::sync::Arc;

use super::Core;
use crate::session::participants::Wake;

impl Core {
    /// The pause is drawn between half of the longest one and the whole, so that sessions which
    /// began together do not look together.
    pub(super) fn look_routinely_later(self: &Arc<Self>) {
        let pause = self.runtime.routine_pause().mul_f64(0.5 + self.chance() / 2.0);
        self.at(self.now().after(pause), |core| {
            if core.end_reason().is_some() {
                return;
            }
            if core.may_look_now() {
                core.look_routinely();
            }
            core.look_routinely_later();
        });
    }

    /// A look is due. It may come now where no quiet is wanted, or where no keep-alive has come for a
    /// session timeout, as other requests keep the session alive.
    fn may_look_now(&self) -> bool {
        let now = self.now();
        let mut status = self.status.lock();
        let due_since = *status.routine_look_due.get_or_insert(now);
        self.quiet_time.is_zero() || due_since.after(status.lease.session_timeout()) <= now
    }

    /// Makes a look that is due beside a keep-alive.
    pub(super) fn look_if_due(&self) {
        if self.status.lock().routine_look_due.is_some() {
            self.look_routinely();
        }
    }

    /// Wakes every participant to look. Without contact it does nothing: the reconnect wakes them.
    pub(crate) fn look_routinely(&self) {
        self.status.lock().routine_look_due = None;
        if self.in_contact() {
            self.wake_everybody(Wake::Routine);
        }
    }
}
