//! The turn of a request: to own the lock, and to keep it.

use std::time::Duration;

use super::border::RequestEvent;
use super::commons::Commons;
use super::contender::{Contender, Next, Phase, Purpose};
use super::lease::{Admission, ConnectionNumber};
use super::sight::Sight;
use crate::recipe::revocation;

/// About how long, and no longer, a lock must be held before its znode is looked at. This saves a
/// short hold a round trip. A deletion by another client is noticed after this delay plus one server
/// notification.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// The interval between the times that requests share, so that thousands of them a second that end
/// before their time cost the timer few wake-ups.
const SHARED_STEP: Duration = Duration::from_millis(10);

impl Contender {
    /// Nobody is ahead any more: owns the lock, if events have shown all that decides, or looks at its own znode.
    pub(super) fn take_over(&mut self, commons: &mut Commons) -> Next {
        match self.ahead.owns_by_event_on(commons.lease.connection()) {
            Some(watched_on) if commons.lease.admits_owners(commons.now) => self.acquire(commons, watched_on),
            _ => {
                // Its reply comes before that to the look, if the client is ordered.
                commons.prove_beside();
                self.look_at_own(commons, Purpose::TakeOver)
            }
        }
    }

    /// Takes the lock, which was seen to be free on that connection.
    pub(super) fn acquire(&mut self, commons: &mut Commons, connection: ConnectionNumber) -> Next {
        let Phase::Queued { znode, .. } = &self.phase else { return Next::Rest };
        let znode = znode.clone();
        match commons.lease.admit(self.id, connection, commons.now) {
            Admission::Admitted => self.limit_hold(commons),
            Admission::Unproven => {
                commons.await_proof(self.id);
                return Next::Stay;
            }
            // Contact was lost since: the listing may be older, and the znode gone.
            Admission::Outdated => return Next::Again,
        }
        commons.own_queues.note_owner(&znode);
        self.keep_own_watch(commons, &znode, connection);
        self.phase = Phase::Owner { znode, revocation_reported: false };
        self.listing = None;
        self.unreadable = 0;
        let waited = commons.now.since(std::mem::replace(&mut self.since, commons.now));
        self.report(commons, RequestEvent::Acquired { waited });
        commons.alarms.set(self.id, commons.now.after(OWN_WATCH_DELAY).rounded_down(SHARED_STEP));
        Next::Rest
    }

    fn limit_hold(&self, commons: &mut Commons) {
        if let Some(max_hold) = self.spec.max_hold {
            commons.lease.limit(self.id, commons.now.after(max_hold));
        }
    }

    /// Takes up the watch on an owner's znode, which still exists: the owner goes on under the present epoch of
    /// the lease.
    pub(super) fn keep_owning(
        &mut self,
        commons: &mut Commons,
        connection: ConnectionNumber,
        sight: &Sight,
    ) -> Next {
        if let Some(ended) = commons.lease.ended_at(self.id, commons.now) {
            return self.lose_hold(commons, ended);
        }
        commons.lease.renew(self.id, connection, commons.now);
        if let Sight::Watched { data, version, .. } = sight {
            if revocation::is_requested(data, *version) {
                self.report_revocation(commons);
            }
        }
        Next::Rest
    }

    /// Notifies the owner, once, that another client asks for the lock.
    fn report_revocation(&mut self, commons: &mut Commons) {
        let Phase::Owner { revocation_reported, .. } = &mut self.phase else { return };
        if !std::mem::replace(revocation_reported, true) {
            self.report(commons, RequestEvent::RevocationRequested);
        }
    }

    pub(super) fn is_revocation_requested(&self) -> bool {
        matches!(self.phase, Phase::Owner { revocation_reported: true, .. })
    }
}
