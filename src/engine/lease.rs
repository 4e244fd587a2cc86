//! The lease: how long the server provably keeps the session, and with it every lock that this process owns.
//!
//! Three things together prove that a session lives, if its server has to report to the leader. `docs/design.md`
//! explains why, under "The lease".
//! - E1: a *pair* of requests was answered.
//! - E2: a *write* was sent at least a report delay after the pair was answered, and was answered as well.
//! - E3, only while a lock is held: *another write* was sent after the answer to that write, and was answered
//!   as well.
//!
//! In the files of this module, a *request* is whatever the client sends to a server, even a ping.
//! `docs/design.md` calls that a *message*.
//! [`evidence`] records what the answers prove. [`keep_alive`] says when requests are due to keep a lease
//! from ending.
//!
//! A write may confirm only those pairs that were answered at least a report delay before it was sent. So a
//! pair can be forgotten once a newer pair has reached that age. A session that never writes therefore keeps
//! only a handful of pairs.
//!
//! The lease consists of *epochs*. A disconnect closes the present epoch. An owner keeps the epoch under which it
//! acquired the lock until its znode has been seen on the next connection. A hold with a *limit* never
//! outlasts that limit, however long the session provably lives.

mod evidence;
mod keep_alive;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub(crate) use self::evidence::Sending;
use self::evidence::{RoundTrip, Written};
pub(crate) use self::keep_alive::longest_outage;
use super::border::ParticipantId;
use crate::client::Granted;
use crate::time::Moment;

/// The fraction of the session timeout by which a lease is shortened to allow for clock drift, as a divisor.
const MARGIN_DIVISOR: u32 = 32;

/// The fraction of the session timeout that is reserved for the write that extends a lease, as a divisor. A
/// lock is taken only if the lease can be extended at least this long before it ends.
const RESERVE_DIVISOR: u32 = 32;

/// The fraction of the session timeout that should be left of a lease when a lock is taken, as a divisor. If
/// less is left, and a write can extend the lease, the session makes that write before it takes the lock. The
/// write would be due soon anyway, and may take a long time.
const FRESH_DIVISOR: u32 = 8;

/// The session's lease: its present epoch, the owners, and the evidence that may extend the epoch or begin another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    /// The shortest session timeout that any server has granted since the session was created, and the report
    /// delay of the present connection.
    granted: Granted,
    epoch: EpochNumber,
    /// The end of the present epoch; `None` while nothing is proven under it.
    end: Option<Moment>,
    owners: BTreeMap<ParticipantId, Holding>,
    /// The limits of the holds that have one, the earliest first.
    limits: BTreeSet<(Moment, ParticipantId)>,
    /// The owners whose hold has changed, in the order of the changes.
    changes: VecDeque<ParticipantId>,
    connection: ConnectionNumber,
    /// Whether the client has reported what the server of the present connection grants. Until then, answers prove
    /// nothing, because that server may grant a shorter session timeout than the last one.
    is_connected: bool,
    /// A moment after which the session was opened, or resumed, on this connection. It proves nothing until a write on
    /// the connection is answered.
    taken_up_after: Option<Moment>,
    /// The last request that was answered on this connection. The next answered request makes a pair with it.
    last: Option<RoundTrip>,
    /// Pairs of answered requests that no write has confirmed yet, oldest first.
    unconfirmed: VecDeque<RoundTrip>,
    /// The last write that was answered on this connection.
    last_write: Option<Written>,
    /// The time at which the last *followed* write was sent. A write is followed if another write was sent
    /// after its answer, and was answered as well.
    followed_write: Option<Moment>,
    /// The time at which the last touch on this connection was sent.
    touched: Option<Moment>,
    /// The time of the last sign of life from the ensemble.
    last_contact: Moment,
    /// Whether the lease has ended for good, with the session.
    over: bool,
    /// The time since which some lock has been held without a break, if one is held now.
    owned_since: Moment,
    /// Whether a write has been answered, on this connection or an earlier one.
    was_proven: bool,
    /// The longest outage that an owner is to survive, or `None` for the default.
    survived_outage: Option<Duration>,
}

/// Numbers the epochs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EpochNumber(u64);

/// An owner's hold on its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    epoch: EpochNumber,
    pub(crate) until: Moment,
    /// The latest moment at which the hold can end, however long the session provably lives.
    pub(crate) limit: Option<Moment>,
}

impl Holding {
    /// Returns a hold under an epoch that ends at `end`.
    fn under(epoch: EpochNumber, end: Moment, limit: Option<Moment>) -> Holding {
        Holding { epoch, until: end, limit }.ending_at(end)
    }

    fn ending_at(self, end: Moment) -> Holding {
        Holding { until: self.limit.map_or(end, |limit| end.min(limit)), ..self }
    }

    /// Returns whether the hold has ended at its limit, and not earlier with its lease.
    fn has_reached_limit(&self, now: Moment) -> bool {
        self.until <= now && self.limit == Some(self.until)
    }
}

/// The permission to take a lock, or the reason why it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    Admitted,
    /// The session is not proven to live for long enough.
    Unproven,
    /// The lock was seen to be free on an earlier connection.
    Outdated,
}

/// Numbers a session's periods with and without contact. Answers from different periods prove nothing
/// together, because a server that lags behind may have given the later answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionNumber(u64);

/// The end of a lease that was cut short. The clock never shows an earlier time. The value is not zero,
/// because zero means that there is no lease (see `session/ownership.rs`).
pub(crate) const ENDED: Moment = Moment::from_nanos(1);

impl Lease {
    /// Returns a lease without a proof or a connection. It must be kept proven even while no lock is held.
    /// The time without contact counts from `now`.
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
            last_write: None,
            followed_write: None,
            touched: None,
            last_contact: now,
            over: false,
            owned_since: Moment::from_nanos(0),
            was_proven: false,
            survived_outage: None,
        }
    }

    /// Sets the longest outage that an owner survives.
    pub(crate) fn set_survived_outage(&mut self, outage: Duration) {
        self.survived_outage = Some(outage);
    }

    /// Returns when the present epoch ends or ended. While nothing is proven under it, returns the beginning
    /// of the clock.
    pub(crate) fn end(&self) -> Moment {
        self.end.unwrap_or(Moment::from_nanos(0))
    }

    /// Returns whether the present epoch has ended. Returns `false` while nothing is proven under it, because
    /// it has not begun.
    pub(super) fn has_ended(&self, now: Moment) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    pub(crate) fn connection(&self) -> ConnectionNumber {
        self.connection
    }

    /// Returns the session timeout that counts: the shortest that any server has granted since the session was created.
    pub(crate) fn session_timeout(&self) -> Duration {
        self.granted.session_timeout
    }

    /// Returns whether a write proves nothing without an earlier pair of requests.
    pub(crate) fn needs_pairs(&self) -> bool {
        !self.granted.report_delay.is_zero()
    }

    /// Returns when the session is given up, unless a sign of life from the ensemble comes first.
    pub(crate) fn given_up_at(&self) -> Moment {
        self.last_contact.after(self.granted.session_timeout)
    }

    /// Returns the time until which the last sign of life counts as contact. If the lease is kept proven,
    /// only an answered write on the present connection counts as a sign of life, because a server that has
    /// lost its leader still answers reads. A lease needs more evidence than contact does.
    pub(crate) fn contact_holds_until(&self) -> Moment {
        let last_write = self.last_write.map(|write| write.sent);
        let sign = if self.is_kept_proven() { last_write } else { Some(self.last_contact) };
        sign.map_or(Moment::from_nanos(0), |sign| self.end_of_proof(sign))
    }

    /// Returns whether a lock is held.
    pub(crate) fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Returns whether the session makes writes to keep the lease from ending, the first one as soon as there is
    /// contact. If it does not, the lease lapses until the session writes for another reason. Every session makes at
    /// least one such write, to learn that a server really serves it.
    pub(crate) fn is_kept_proven(&self) -> bool {
        self.has_owners() || !self.was_proven
    }

    pub(crate) fn last_contact(&self) -> Moment {
        self.last_contact
    }

    // ---- owners

    /// Takes a lock that was seen to be free on `connection`, if that is still the present connection and the epoch
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

    /// Limits the hold of an owner: it ends at `limit` at the latest.
    pub(crate) fn limit(&mut self, owner: ParticipantId, limit: Moment) {
        if let Some(held) = self.owners.get(&owner).copied() {
            self.hold(owner, Holding::under(held.epoch, held.until, Some(limit)));
        }
    }

    /// Returns the earliest limit of a hold. The limit lies in the past if its owner is yet to be notified.
    pub(super) fn next_limit(&self) -> Option<Moment> {
        self.limits.first().map(|(limit, _)| *limit)
    }

    /// Lets another request hold the lock together with its owner, within the same limit. Returns `false` if the owner
    /// no longer holds it.
    pub(crate) fn share(&mut self, owner: ParticipantId, other: ParticipantId, now: Moment) -> bool {
        let held = self.owners.get(&owner).copied().filter(|held| now < held.until);
        held.map(|held| self.hold(other, held)).is_some()
    }

    /// Notes that an owner's znode was seen on `connection`. If that is the present connection, the owner holds its
    /// lock under the present epoch from now on, provided that this epoch is proven and has not ended. Returns `false`
    /// if the owner's hold has ended.
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

    /// Returns when an owner's hold ended, either with its lease or at its limit. Returns `None` while the
    /// hold lasts.
    pub(crate) fn ended_at(&self, owner: ParticipantId, now: Moment) -> Option<Moment> {
        self.owners.get(&owner).map(|held| held.until).filter(|until| *until <= now)
    }

    /// Returns whether an owner's hold that ended at `ended` had reached its limit.
    pub(crate) fn has_reached_limit(&self, owner: ParticipantId, ended: Moment) -> bool {
        self.owners.get(&owner).and_then(|held| held.limit).is_some_and(|limit| limit <= ended)
    }

    /// Returns the owners whose hold has ended, each with the time at which it ended.
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

    /// Returns the next owner whose hold has changed, with its present hold. The hold is `None` if the owner
    /// has released its lock.
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

    /// Changes the time until which each owner holds its lock.
    fn change_owners(&mut self, until: impl Fn(&Holding) -> Moment) {
        for (owner, held) in &mut self.owners {
            let changed = held.ending_at(until(held));
            if std::mem::replace(held, changed) != changed {
                self.changes.push_back(*owner);
            }
        }
    }

    /// Returns whether a lock may be taken under the present epoch. Two conditions must hold:
    /// - Writes can confirm each waiting pair in turn, and then the first pair made under the lock, always early enough
    ///   to extend the epoch. Otherwise an owner would lose the lock even with perfect contact.
    /// - The epoch is not about to end, or no write could extend it now.
    pub(crate) fn admits_owners(&self, now: Moment) -> bool {
        !self.is_stale(now) && self.admits_owners_until(self.end(), now)
    }

    /// Returns whether the lease ends so soon that a write must extend it before a lock is taken, provided that the
    /// write can extend it far enough.
    fn is_stale(&self, now: Moment) -> bool {
        let can_become = |fresh: Moment| self.end_after_write(now).is_some_and(|end| end >= fresh);
        let fresh = now.after(self.granted.session_timeout / FRESH_DIVISOR);
        // An owner can extend the lease only by two writes, one after the other (E3).
        let two_round_trips = 2 * self.last_latency();
        let fresh_if_slow = now.after(two_round_trips).after(self.least_period());
        // The write takes a round trip, and the request needs another to look again. If the lease then were as
        // short as before, the request would be put off again and again.
        self.end() < fresh && can_become(fresh)
            || self.end() < fresh_if_slow && can_become(fresh_if_slow.after(two_round_trips))
    }

    /// Returns how long the answer to the last write on this connection took, or to the last request if that took
    /// longer.
    fn last_latency(&self) -> Duration {
        let write = self.last_write.map(|write| write.latency);
        let request = self.last.map(|request| request.answered.since(request.sent));
        write.max(request).unwrap_or(Duration::ZERO)
    }

    /// Returns whether the lease does not admit owners now, but would after one more write.
    pub(crate) fn needs_proof(&self, now: Moment) -> bool {
        let extended = self.end_after_write(now);
        !self.admits_owners(now) && extended.is_some_and(|end| self.admits_owners_until(end, now))
    }

    /// Returns when the lease would end once a write that is sent now has been answered, or `None` if that write would
    /// prove nothing.
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

    /// Returns the time that is reserved for a write that extends the lease.
    fn reserve(&self) -> Duration {
        self.granted.session_timeout / RESERVE_DIVISOR
    }

    fn span(&self) -> Duration {
        span(self.granted.session_timeout)
    }

    /// Notes a sign of life from the ensemble. By itself, it proves nothing.
    fn note_sign_of_life(&mut self, now: Moment) {
        self.last_contact = self.last_contact.max(now);
    }

    /// Begins contact with a server that grants `granted`. The session was opened, or resumed, after `taken_up_after`,
    /// which is `None` if no recent moment is known.
    ///
    /// If the grant shortens earlier epochs, returns the latest time at which they can now end. A shorter
    /// session timeout counts from the earliest moment at which the server can have granted it.
    pub(crate) fn on_connected(
        &mut self,
        granted: Granted,
        taken_up_after: Option<Moment>,
        now: Moment,
    ) -> Option<Moment> {
        self.note_sign_of_life(now);
        let epochs_end = self.on_taken_up(granted.session_timeout, taken_up_after.unwrap_or(now));
        self.granted.report_delay = granted.report_delay;
        self.begin_connection();
        self.is_connected = true;
        self.taken_up_after = taken_up_after;
        epochs_end
    }

    /// Notes that a server has resumed the session after this moment, and grants this session timeout. A
    /// timeout that is longer than an earlier one does not count, because a new leader may use the earlier
    /// one.
    ///
    /// This does not count as a sign of life. Otherwise the session might keep its znodes forever without
    /// ever being served, because each connect request renews it at the servers.
    ///
    /// If the grant shortens earlier epochs, returns the latest time at which they can now end.
    pub(crate) fn on_taken_up(&mut self, session_timeout: Duration, after: Moment) -> Option<Moment> {
        if session_timeout >= self.granted.session_timeout {
            return None;
        }
        self.granted.session_timeout = session_timeout;
        let end = self.end_of_proof(after);
        self.end = self.end.map(|before| before.min(end));
        self.change_owners(|held| held.until.min(end));
        Some(end)
    }

    /// Returns the end of a proof that counts from this moment.
    fn end_of_proof(&self, proven: Moment) -> Moment {
        proven.after(self.span())
    }

    /// Corrects the report delay of the present connection. Earlier answers still count, because only a confirmation
    /// depends on the delay.
    pub(crate) fn set_report_delay(&mut self, report_delay: Duration) {
        self.granted.report_delay = report_delay;
    }

    /// Ends contact. Whatever is proven from now on belongs to a new epoch.
    pub(crate) fn on_disconnected(&mut self) {
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
    }

    /// Ends the lease at once and for good, with every epoch. A hold that has already reached its limit keeps
    /// that end.
    pub(crate) fn finish(&mut self, now: Moment) {
        self.over = true;
        self.end = Some(ENDED);
        self.change_owners(|held| if held.has_reached_limit(now) { held.until } else { ENDED });
    }

    /// Extends the present epoch by a proof that counts from `proven`. If the epoch has ended, begins another
    /// epoch. Returns whether the epoch had ended while there were owners. They may have lost their locks.
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

/// Returns S, how long a proof holds: the session timeout less the margin.
fn span(session_timeout: Duration) -> Duration {
    session_timeout - session_timeout / MARGIN_DIVISOR
}
