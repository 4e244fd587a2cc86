//! How long an outage owners survive: if nothing delays a session, its owners' lease always lasts for about the
//! time that docs/faults.md promises.

use std::time::Duration;

use super::holds::Hold;
use super::world::World;
use crate::time::Moment;

/// What the lease is shortened by to allow for clocks of different speeds, as a divisor of the session timeout.
const MARGIN_DIVISOR: u32 = 32;

/// How much less than promised may remain, as a divisor of the session timeout: timers and round trips.
const SLACK_DIVISOR: u32 = 20;

/// How long a session must have owned something, in quarters of the session timeout: less remains of a lease that
/// is left over from before, until the first keep-alive.
const SETTLED: u32 = 3;

impl World {
    /// Returns a description of an owner that would not survive an outage of the promised length.
    pub(super) fn check_outages(&self) -> Option<String> {
        if !self.profile.is_prompt() {
            return None;
        }
        let holds: Vec<Hold> = self.state().holds.values().cloned().collect();
        let now = self.now();
        let mut remaining = std::collections::BTreeMap::new();
        // A hold with a limit may end soon, whatever is left of the lease.
        for hold in holds.iter().filter(|hold| hold.is_owner() && !hold.has_limit()) {
            let core = std::sync::Arc::as_ptr(hold.request.core());
            let client = self.state().clients.iter().position(|client| client.core.as_ptr() == core);
            remaining.extend(client.map(|client| (client, hold.request.lease_remaining())));
        }
        let mut state = self.state();
        for (number, client) in state.clients.iter_mut().enumerate() {
            let Some(remaining) = remaining.get(&number) else {
                client.owns_since = None;
                continue;
            };
            let since: Moment = *client.owns_since.get_or_insert(now);
            let timeout = client.session_timeout;
            let promised = client.survived_outage() - timeout / SLACK_DIVISOR;
            let is_settled = since.after(timeout / 4 * SETTLED) <= now;
            if is_settled && *remaining < promised {
                return Some(format!(
                    "client {number} owns, and would not survive an outage of {promised:?}"
                ));
            }
        }
        None
    }
}

impl super::world::ClientState {
    /// Returns how long an outage an owner survives, with the report delay that the client assumes.
    fn survived_outage(&mut self) -> Duration {
        let timeout = self.session_timeout;
        let report_delay = self.endpoint().map(|endpoint| endpoint.report_delay()).unwrap_or_default();
        let spare = (timeout - timeout / MARGIN_DIVISOR).saturating_sub(report_delay);
        (timeout / 16 * 9).min(spare / 4 * 3)
    }
}
