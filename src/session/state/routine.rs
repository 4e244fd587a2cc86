//! Routine looks: every participant looks again now and then, without an event.
//!
//! A watch can be used up silently: a server withholds the event from a client that may not read
//! the znode any more (CVE-2024-23944), and a change of an ACL fires no watch. So no participant
//! relies on a watch for longer than half a minute.
//!
//! A client may want its connection to be left alone for a while, to check its own health. Its
//! looks come together with the next keep-alive, at most a session timeout later.

use std::sync::Arc;

use super::Core;
use crate::session::registry::Notification;

impl Core {
    /// The pause is drawn between half of the longest one and the whole, so that sessions which
    /// began together do not look together.
    pub(super) fn look_routinely_later(self: &Arc<Self>) {
        let pause = self.runtime.routine_pause().mul_f64(0.5 + self.random_unit() / 2.0);
        self.at(self.now().after(pause), |core| {
            if core.end_reason().is_some() {
                return;
            }
            if core.min_idle_for_ping.is_zero() {
                core.look_routinely();
            } else {
                core.look_beside_keep_alive();
            }
            core.look_routinely_later();
        });
    }

    /// Looks together with the next keep-alive. None may come for long where other requests keep
    /// the session alive: then it looks after a session timeout.
    fn look_beside_keep_alive(self: &Arc<Self>) {
        let latest = self.now().after(self.session_timeout());
        self.status.lock().routine_look_due = true;
        self.at(latest, |core| core.look_if_due());
    }

    pub(super) fn look_if_due(&self) {
        if self.status.lock().routine_look_due {
            self.look_routinely();
        }
    }

    /// Wakes every participant to look. Without contact it does nothing: the reconnect wakes them.
    pub(crate) fn look_routinely(&self) {
        self.status.lock().routine_look_due = false;
        if self.in_contact() {
            self.notify_all_participants(Notification::Routine);
        }
    }
}
