//! The lease: until when the server provably keeps the session, and with it every lock that this
//! process owns.
//!
//! The leader of the ensemble ends a session one session timeout after its last *news* of the
//! session. For a client on a follower, the leader gets news in only two ways:
//! - when the session is opened, and when the client reconnects: the follower asks the leader;
//! - from the reports of the follower, which name the sessions that were active since the last
//!   report. They are sent every half tick. An observer that is connected to a follower reports to
//!   the follower, so its reports take two half ticks.
//!
//! So an answer proves less than it seems, even the answer to a request that goes through the
//! leader: if the follower dies before its next report, the leader counts from the last report. Two
//! things together prove that the session lives until one session timeout after a moment:
//! - *Two requests*, one after the other, the older sent at that moment, and both answered. Any
//!   request marks the session as active, a ping as well; of two, at least one is in the next
//!   report (a mark that races with a report can be lost).
//! - *A write*, sent on the same connection a full report delay after those two were answered, and
//!   answered itself. It passes through the leader on the same path as the earlier report. A
//!   read would prove nothing: a server that has lost its leader answers reads for a while after
//!   the new leader has ended the session.
//!
//! That the report left before the write was answered is a matter of time: where the link from the
//! leader stalls and then dies, it may not have arrived. While a lock is held, *another write* is to
//! follow, sent after the first was answered: it travels behind the report. Nobody waits for it. For a
//! lock to be taken the first one is enough.
//!
//! A reconnect alone proves nothing for the same reason. It counts once the first write on that
//! connection has been answered. The report delay that counts is that of the current connection. The
//! session timeout that counts is the shortest that any server has granted since the creation: a new
//! leader knows the session with the one of its creation, and a server that was left may still
//! report it with its own.
//!
//! When a write is sent, it is decided what it confirms: the pairs that were answered at least a report
//! delay before. So a pair can be forgotten once a newer one is as old, and a session that never writes
//! keeps a handful of them.
//!
//! It consists of *epochs*: a disconnect closes the present one for extension, an owner keeps the one
//! under which it acquired until its znode was seen on the next connection, and an epoch that has ended
//! stays ended. The lease of a session that owns nothing may lapse: the next epoch begins with the next
//! write. A hold with a *limit* does not outlast it, whatever is proven.
//! [`evidence`] keeps what answers prove. [`keep_alive`] says when requests are due to keep a lease from ending.
//!
//! A margin covers clock drift.

mod evidence;
mod keep_alive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) use self::evidence::Sending;
use self::evidence::{RoundTrip, Written};
use super::border::ParticipantId;
use crate::client::port::Granted;
use crate::time::Moment;

/// The part of the session timeout that a lease gives away for clock drift, as a divisor.
const MARGIN_DIVISOR: u32 = 32;

/// The part of the session timeout that is reserved for the write that extends a lease, as a
/// divisor. The lease must outlast the moment at which it can be extended by this, for a lock to be
/// taken.
const RESERVE_DIVISOR: u32 = 32;

/// The part of the session timeout for which a lease should last when a lock is taken, as a divisor. One that
/// ends before is extended first, if a write can do that: the write would follow anyway, and it may take long.
const FRESH_DIVISOR: u32 = 8;

/// The session's lease: its present epoch, the owners, and what is to prove the next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    /// The shortest session timeout that a server has granted since the creation, and the report
    /// delay of the current connection.
    granted: Granted,
    epoch: EpochNumber,
    /// The end of the present epoch; `None` while nothing is proven under it.
    end: Option<Moment>,
    owners: BTreeMap<ParticipantId, Holding>,
    /// The limits of those holds that have one, the next one first.
    limits: BTreeSet<(Moment, ParticipantId)>,
    /// The owners whose time has changed, in that order.
    changes: VecDeque<ParticipantId>,
    connection: ConnectionNumber,
    /// The grant of the present connection's server is known. Until then answers prove nothing: it may
    /// grant less than the last one.
    is_connected: bool,
    /// The session was opened, or taken up again, on this connection and after this moment. Nothing
    /// is proven by that before a write on the connection is answered.
    taken_up_after: Option<Moment>,
    /// The last request that was answered on this connection; the next one makes a pair with it.
    last: Option<RoundTrip>,
    /// Pairs of answered requests that no write has confirmed yet, oldest first.
    unconfirmed: VecDeque<RoundTrip>,
    /// The answer time of the pair that is awaiting confirmation.
    awaiting: Option<Moment>,
    /// The last write that was answered on this connection.
    last_write: Option<Written>,
    /// The sending time of the last write that was answered before another one was sent, which was
    /// answered too.
    followed_write: Option<Moment>,
    /// The sending time of the last touch on this connection.
    touched: Option<Moment>,
    /// The time of the last sign of the other side.
    last_contact: Moment,
    over: bool,
    /// The time at which the first of the present owners took its lock.
    owned_since: Moment,
    /// The lease is kept proven even while no lock is held.
    is_always_proven: bool,
    /// A write was answered, on this connection or an earlier one.
    was_proven: bool,
    /// The outage that an owner is to survive, if it is not the default.
    survived_outage: Option<Duration>,
}

/// Numbers the epochs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EpochNumber(u64);

/// The hold of an owner on its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    epoch: EpochNumber,
    pub(crate) until: Moment,
    /// The moment that it does not outlast.
    pub(crate) limit: Option<Moment>,
}

impl Holding {
    /// A hold under an epoch that ends then.
    fn under(epoch: EpochNumber, end: Moment, limit: Option<Moment>) -> Holding {
        Holding { epoch, until: end, limit }.ending_at(end)
    }

    fn ending_at(self, end: Moment) -> Holding {
        Holding { until: self.limit.map_or(end, |limit| end.min(limit)), ..self }
    }

    /// Returns whether it has ended at its limit, and not before with its lease.
    fn has_reached_limit(&self, now: Moment) -> bool {
        self.until <= now && self.limit == Some(self.until)
    }
}

/// The permission to take a lock, or the reason against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// The session is not proven alive for long enough.
    Unproven,
    /// The connection is not the present one any more.
    Outdated,
}

/// Counts the times at which contact began or ended. Answers of different counts prove nothing
/// together: a server that lags behind may have given the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionNumber(u64);

/// The end of a lease that ended ahead of its time: no reading of the clock is earlier. Not zero, which stands
/// for none (see `session/ownership.rs`).
pub(crate) const ENDED: Moment = Moment::from_nanos(1);

impl Lease {
    /// A lease without proof and without a connection; the contact counts from now. It is always
    /// kept proven.
    pub(crate) fn unproven(granted: Granted, now: Moment) -> Lease {
        Lease {
            granted,
            epoch: EpochNumber(0),
            end: None,
            owners: BTreeMap::new(),
            limits: BTreeSet::new(),
            changes: VecDeque::new(),
            connection: ConnectionNumber(0),
            is_connected: false,
            taken_up_after: None,
            last: None,
            unconfirmed: VecDeque::new(),
            awaiting: None,
            last_write: None,
            followed_write: None,
            touched: None,
            last_contact: now,
            over: false,
            owned_since: Moment::from_nanos(0),
            is_always_proven: true,
            was_proven: false,
            survived_outage: None,
        }
    }

    /// Lets the lease lapse while no lock is held.
    pub(crate) fn proven_for_owners_only(self) -> Lease {
        Lease { is_always_proven: false, ..self }
    }

    /// Sets the outage that an owner is to survive.
    pub(crate) fn set_survived_outage(&mut self, outage: Duration) {
        self.survived_outage = Some(outage);
    }

    /// Returns when the present epoch ends, or has ended; the beginning of the clock while nothing is proven.
    pub(crate) fn end(&self) -> Moment {
        self.end.unwrap_or(Moment::from_nanos(0))
    }

    /// Returns whether the present epoch has ended. While nothing is proven under it, it has not begun.
    pub(super) fn has_ended(&self, now: Moment) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    pub(crate) fn connection(&self) -> ConnectionNumber {
        self.connection
    }

    /// The session timeout that counts: the shortest that a server has granted since the creation.
    pub(crate) fn session_timeout(&self) -> Duration {
        self.granted.session_timeout
    }

    /// Returns whether a write proves something only after others that came before it.
    pub(crate) fn needs_pairs(&self) -> bool {
        !self.granted.report_delay.is_zero()
    }

    /// Returns when the session is given up unless there is a sign of the other side before.
    pub(crate) fn given_up_at(&self) -> Moment {
        self.last_contact.after(self.granted.session_timeout)
    }

    /// Returns until when the last sign of the other side shows that there is contact. Where the lease is
    /// kept proven, that is a write on the present connection, as a server that has lost its leader
    /// answers reads. A lease needs more than this.
    pub(crate) fn contact_holds_until(&self) -> Moment {
        let last_write = self.last_write.map(|write| write.sent);
        let sign = if self.is_kept_proven() { last_write } else { Some(self.last_contact) };
        sign.map_or(Moment::from_nanos(0), |sign| self.end_of_proof(sign))
    }

    /// Returns whether a lock is held.
    pub(crate) fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Returns whether writes keep the lease from ending, the first of them as soon as there is contact.
    /// Otherwise it lapses, until a request writes. The first write of a session shows that a server
    /// really serves it.
    pub(crate) fn is_kept_proven(&self) -> bool {
        self.is_always_proven || self.has_owners() || !self.was_proven
    }

    pub(crate) fn last_contact(&self) -> Moment {
        self.last_contact
    }

    // ---- owners

    /// Takes a lock that was seen to be free on that connection, if it is the present one and the epoch
    /// [admits](Lease::admits_owners) owners.
    pub(crate) fn admit(
        &mut self,
        owner: ParticipantId,
        connection: ConnectionNumber,
        now: Moment,
    ) -> Admission {
        if connection != self.connection {
            return Admission::Outdated;
        }
        if !self.admits_owners(now) {
            return Admission::Unproven;
        }
        if !self.has_owners() {
            self.owned_since = now;
        }
        self.hold(owner, Holding::under(self.epoch, self.end(), None));
        Admission::Admitted
    }

    /// Limits the hold of an owner, which does not outlast this moment.
    pub(crate) fn limit(&mut self, owner: ParticipantId, limit: Moment) {
        if let Some(held) = self.owners.get(&owner).copied() {
            self.hold(owner, Holding::under(held.epoch, held.until, Some(limit)));
        }
    }

    /// Returns the next limit of a hold, which has come if its owner is yet to be notified.
    pub(super) fn next_limit(&self) -> Option<Moment> {
        self.limits.first().map(|(limit, _)| *limit)
    }

    /// Has another request hold the lock as its owner does, within the same limit. Returns `false` if it does so no
    /// longer.
    pub(crate) fn share(&mut self, owner: ParticipantId, other: ParticipantId, now: Moment) -> bool {
        let held = self.owners.get(&owner).copied().filter(|held| now < held.until);
        held.map(|held| self.hold(other, held)).is_some()
    }

    /// Takes up that an owner's znode was seen on that connection: if it is the present one, the owner
    /// holds its lock under the present epoch from now on. Returns `false` if its lease has ended.
    pub(crate) fn renew(&mut self, owner: ParticipantId, connection: ConnectionNumber, now: Moment) -> bool {
        let Some(held) = self.owners.get(&owner) else { return true };
        if held.until <= now {
            return false;
        }
        if connection == self.connection && now < self.end() {
            self.hold(owner, Holding::under(self.epoch, self.end(), held.limit));
        }
        true
    }

    /// Returns when an owner's hold has ended, with its lease or at its limit; `None` while it lasts.
    pub(crate) fn ended_at(&self, owner: ParticipantId, now: Moment) -> Option<Moment> {
        self.owners.get(&owner).map(|held| held.until).filter(|until| *until <= now)
    }

    /// Returns whether an owner's hold that has ended then has come to its limit.
    pub(crate) fn has_reached_limit(&self, owner: ParticipantId, ended: Moment) -> bool {
        self.owners.get(&owner).and_then(|held| held.limit).is_some_and(|limit| limit <= ended)
    }

    /// The owners whose hold has ended, and when.
    pub(super) fn ended_owners(&self, now: Moment) -> Vec<(ParticipantId, Moment)> {
        let ended = self.owners.iter().filter(|(_, held)| held.until <= now);
        ended.map(|(owner, held)| (*owner, held.until)).collect()
    }

    pub(crate) fn release(&mut self, owner: ParticipantId) {
        if let Some(held) = self.owners.remove(&owner) {
            if let Some(limit) = held.limit {
                self.limits.remove(&(limit, owner));
            }
            self.changes.push_back(owner);
        }
    }

    /// The next owner whose time has changed, and its hold now; `None` for one that has released its lock.
    pub(crate) fn next_change(&mut self) -> Option<(ParticipantId, Option<Holding>)> {
        let owner = self.changes.pop_front()?;
        Some((owner, self.owners.get(&owner).copied()))
    }

    fn hold(&mut self, owner: ParticipantId, held: Holding) {
        self.limits.extend(held.limit.map(|limit| (limit, owner)));
        if self.owners.insert(owner, held) != Some(held) {
            self.changes.push_back(owner);
        }
    }

    /// Changes until when owners hold their locks.
    fn change_owners(&mut self, until: impl Fn(&Holding) -> Moment) {
        for (owner, held) in &mut self.owners {
            let changed = held.ending_at(until(held));
            if std::mem::replace(held, changed) != changed {
                self.changes.push_back(*owner);
            }
        }
    }

    /// Returns whether a lock may be taken under the current epoch: it lasts, and can be extended before it
    /// ends, by each pair that waits to be confirmed and later by the first one that is made under
    /// the lock. Otherwise an owner would lose the lock in perfect contact. It also lasts for a while, unless no
    /// write could help.
    pub(crate) fn admits_owners(&self, now: Moment) -> bool {
        !self.is_stale(now) && self.admits_owners_until(self.end(), now)
    }

    /// Returns whether the lease ends so soon that a write is to extend it before a lock is taken. One that is always
    /// kept proven has its keep-alives.
    fn is_stale(&self, now: Moment) -> bool {
        let fresh = now.after(self.granted.session_timeout / FRESH_DIVISOR);
        let may_be_stale = !self.is_always_proven && self.end() < fresh;
        may_be_stale && self.end_after_write(now).is_some_and(|end| end >= fresh)
    }

    /// Returns whether only a missing write keeps the lease from admitting owners.
    pub(crate) fn needs_proof(&self, now: Moment) -> bool {
        let extended = self.end_after_write(now);
        !self.admits_owners(now) && extended.is_some_and(|end| self.admits_owners_until(end, now))
    }

    /// Returns when the lease ends after the answer to a write that is sent now, if that proves something.
    fn end_after_write(&self, now: Moment) -> Option<Moment> {
        let proven = self.proven_by(self.sending(now)).filter(|_| self.is_connected && !self.over);
        proven.map(|proven| self.end_of_proof(proven).max(self.end()))
    }

    fn admits_owners_until(&self, end: Moment, now: Moment) -> bool {
        let reserve = self.reserve();
        let can_follow = |answered: Moment, end: Moment| {
            answered.after(self.granted.report_delay).max(now).after(reserve) < end
        };
        let mut end = end;
        let reported = self.last_write.and_then(|write| write.reported);
        for pair in reported.iter().chain(&self.unconfirmed) {
            let extended = self.end_of_proof(pair.sent);
            if extended <= end {
                continue;
            }
            if !can_follow(pair.answered, end) {
                return false;
            }
            end = extended;
        }
        can_follow(now, end)
    }

    /// The time for a write that extends the lease.
    fn reserve(&self) -> Duration {
        self.granted.session_timeout / RESERVE_DIVISOR
    }

    /// Returns how long a proof holds.
    fn span(&self) -> Duration {
        self.granted.session_timeout - self.granted.session_timeout / MARGIN_DIVISOR
    }

    /// Takes note of a sign of the other side that proves nothing.
    fn note_sign_of_life(&mut self, now: Moment) {
        self.last_contact = self.last_contact.max(now);
    }

    /// Contact has begun, with a server that grants this. The session was opened, or taken up
    /// again, after `taken_up_after`; `None` when that was some time ago.
    ///
    /// Returns the moment at which the epochs of before end now, if that may be earlier: a shorter
    /// session timeout counts from the moment at which the server granted it.
    pub(crate) fn connected(
        &mut self,
        granted: Granted,
        taken_up_after: Option<Moment>,
        now: Moment,
    ) -> Option<Moment> {
        self.note_sign_of_life(now);
        let epochs_end = self.taken_up(granted.session_timeout, taken_up_after.unwrap_or(now));
        self.granted.report_delay = granted.report_delay;
        self.begin_connection();
        self.is_connected = true;
        self.taken_up_after = taken_up_after;
        epochs_end
    }

    /// A server that grants this session timeout has taken up the session after that moment. A
    /// longer one than before does not count: the leader may change, and then it goes by an earlier
    /// one.
    ///
    /// It is no sign of life: each connect request renews the session, and where no server lets the client
    /// in after that, a session that counted it would keep its znodes for ever.
    ///
    /// Returns the moment at which the epochs of before end now, if that may be earlier.
    pub(crate) fn taken_up(&mut self, session_timeout: Duration, after: Moment) -> Option<Moment> {
        if session_timeout >= self.granted.session_timeout {
            return None;
        }
        self.granted.session_timeout = session_timeout;
        let end = self.end_of_proof(after);
        self.end = self.end.map(|before| before.min(end));
        self.change_owners(|held| held.until.min(end));
        Some(end)
    }

    /// Returns until when a proof holds that counts from that moment.
    fn end_of_proof(&self, proven: Moment) -> Moment {
        proven.after(self.span())
    }

    /// The report delay on the present connection is known better. Earlier answers still count: only a
    /// confirmation depends on the delay.
    pub(crate) fn set_report_delay(&mut self, report_delay: Duration) {
        self.granted.report_delay = report_delay;
    }

    /// Contact was lost: what is proven from now on belongs to a new epoch.
    pub(crate) fn disconnected(&mut self, now: Moment) {
        // Silence may have ended the connection. Without reports of pings, there may have been contact
        // that nobody has noticed.
        if self.is_always_proven {
            self.note_sign_of_life(now);
        }
        self.begin_connection();
        self.is_connected = false;
        if !self.over {
            self.begin_epoch(None);
        }
    }

    fn begin_epoch(&mut self, end: Option<Moment>) {
        self.epoch.0 += 1;
        self.end = end;
    }

    fn begin_connection(&mut self) {
        self.connection.0 += 1;
        self.taken_up_after = None;
        self.last = None;
        self.last_write = None;
        self.followed_write = None;
        self.touched = None;
        self.unconfirmed.clear();
        self.awaiting = None;
    }

    /// Ends the lease and every epoch of it at once, for good. A hold that has come to its limit has ended before.
    pub(crate) fn finish(&mut self, now: Moment) {
        self.over = true;
        self.end = Some(ENDED);
        self.change_owners(|held| if held.has_reached_limit(now) { held.until } else { ENDED });
    }

    /// Extends the present epoch as far as that moment proves, or begins another one. Returns whether the
    /// present one had ended while there were owners, who may have lost their locks.
    fn extend(&mut self, proven: Moment, now: Moment) -> bool {
        let proven_until = self.end_of_proof(proven);
        if self.over {
            return false;
        }
        if self.end.is_some_and(|end| end <= now) {
            self.begin_epoch(Some(proven_until));
            return self.has_owners();
        }
        let (epoch, end) = (self.epoch, self.end().max(proven_until));
        if self.end.replace(end) != Some(end) {
            self.change_owners(|held| if held.epoch == epoch { end } else { held.until });
        }
        false
    }
}
