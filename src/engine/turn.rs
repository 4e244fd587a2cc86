//! The turn of a request: how it becomes the owner, and how it remains the owner.

use std::time::Duration;

use super::border::RequestEvent;
use super::commons::Commons;
use super::contender::{Contender, Next, Phase, Purpose};
use super::lease::{Admission, ConnectionNumber};
use super::sight::Sight;
use crate::recipe::revocation;

/// A new owner reads its znode this long after it has acquired the lock, or up to [`SHARED_STEP`] earlier. A
/// hold that ends before that saves the round trip. The price: if another client deletes the znode at the
/// beginning of a hold, the owner learns of it only after this delay and a round trip, unless it has already watched
/// the znode while it waited.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(100);

/// New owners first read their znodes at multiples of this step. So even thousands of short holds a second
/// wake the timer only rarely.
const SHARED_STEP: Duration = Duration::from_millis(10);

impl Contender {
    /// Takes the lock, because nobody is ahead any more. If events alone have shown this, and the lease
    /// admits owners, the request takes the lock at once. Otherwise it reads its own znode first.
    pub(super) fn take_over(&mut self, commons: &mut Commons) -> Next {
        match self.ahead.owns_by_event_on(commons.lease.connection()) {
            Some(watched_on) if commons.lease.admits_owners(commons.now) => self.acquire(commons, watched_on),
            _ => {
                // The write that serves as the proof is answered before the read.
                commons.prove_beside();
                self.look_at_own(commons, Purpose::TakeOver)
            }
        }
    }

    /// Takes the lock, which was seen to be free on `connection`, if the lease admits the request.
    pub(super) fn acquire(&mut self, commons: &mut Commons, connection: ConnectionNumber) -> Next {
        let Phase::Queued { znode, .. } = &self.phase else { return Next::Rest };
        let znode = znode.clone();
        match commons.lease.admit(self.id, connection, commons.now) {
            Admission::Admitted => self.limit_hold(commons),
            Admission::Unproven => {
                commons.await_proof(self.id);
                return Next::Stay;
            }
            // Contact has been lost since the lock was seen to be free, so the znode may be gone.
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

    /// Renews the owner's lease, because a read has shown that the owner's znode still exists.
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

    /// Notifies the owner, at most once per hold, that another client asks it to release the lock.
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
