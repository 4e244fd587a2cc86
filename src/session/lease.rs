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
//!   request marks the session as active; of two, at least one is in the next report (a mark that
//!   races with a report can be lost).
//! - *A write*, sent on the same connection a full report delay after those two were answered, and
//!   answered itself. It passes through the leader on the same path as the earlier report. A
//!   read would prove nothing: a server that has lost its leader answers reads for a while after
//!   the new leader has ended the session.
//!
//! A reconnect alone proves nothing for the same reason. It counts once the first write on that
//! connection has been answered. The session timeout and the report delay that count are those of
//! the current connection, since a server grants new ones on every reconnect.
//!
//! A margin covers clock drift.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::clock::Moment;
use crate::client::Granted;

/// The part of the session timeout that a lease gives away for clock drift, as a divisor.
const MARGIN_DIVISOR: u32 = 32;

/// The part of the session timeout by which a lease is renewed before it must be, as a divisor.
const SLACK_DIVISOR: u32 = 16;

/// The least part of the session timeout between two keep-alives, as a divisor.
const MIN_PERIOD_DIVISOR: u32 = 64;

/// One unbroken stretch of proof: it is extended again and again, and once it has ended it stays
/// ended.
///
/// An owner keeps the epoch under which it acquired. An epoch is closed for extension by a
/// disconnect, so that an owner's lease runs on but grows only after a look at its znode has moved
/// it to the current epoch.
#[derive(Debug)]
pub(crate) struct LeaseEpoch {
    /// Nanoseconds of the [`Moment`] at which it ends, or one of the two below, which cover no
    /// moment either.
    end: AtomicU64,
}

/// Nothing has been proven under the epoch yet.
const UNPROVEN: u64 = 0;
/// The epoch was ended ahead of its time.
const FINISHED: u64 = 1;

impl LeaseEpoch {
    fn until(end: Moment) -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(end.as_nanos()) })
    }

    fn unproven() -> Arc<LeaseEpoch> {
        Arc::new(LeaseEpoch { end: AtomicU64::new(UNPROVEN) })
    }

    pub(crate) fn covers(&self, now: Moment) -> bool {
        now.as_nanos() < self.end.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) -> Moment {
        Moment::from_nanos(self.end.load(Ordering::Acquire))
    }

    /// Extends the epoch, unless it has ended by `now`. Returns whether the proof was taken up.
    fn extend(&self, now: Moment, end: Moment) -> bool {
        self.end
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| {
                (current == UNPROVEN || now.as_nanos() < current).then_some(current.max(end.as_nanos()))
            })
            .is_ok()
    }

    /// Ends the epoch at that moment, if it does not end earlier.
    fn cap(&self, end: Moment) {
        self.end.fetch_min(end.as_nanos(), Ordering::AcqRel);
    }

    fn finish(&self) {
        self.end.store(FINISHED, Ordering::Release);
    }
}

/// The session's lease: its current epoch, what is to prove the next, and whether there can be one.
#[derive(Debug)]
pub(crate) struct Lease {
    /// What the server of the current connection grants.
    granted: Granted,
    current: Arc<LeaseEpoch>,
    /// Epochs that a disconnect has closed, while a lock may be held under one.
    broken_off: Vec<Weak<LeaseEpoch>>,
    connection: ConnectionNumber,
    /// Whether it is known what the server of the present connection grants. Until then answers
    /// prove nothing: it may grant less than the last one.
    is_connected: bool,
    /// The session was opened, or taken up again, on this connection and after this moment. Nothing
    /// is proven by that before a write on the connection is answered.
    taken_up_after: Option<Moment>,
    /// The last request that was answered on this connection; the next one makes a pair with it.
    last: Option<Exchange>,
    /// Pairs of answered requests that no write has confirmed yet, oldest first.
    unconfirmed: VecDeque<Exchange>,
    /// When the pair was answered that waits to be confirmed.
    awaiting: Option<Moment>,
    /// When the last answered write on this connection was sent.
    last_write: Option<Moment>,
    /// When there was last a sign of the other side.
    last_contact: Moment,
    over: bool,
}

/// A request and its answer, or two: the first sending and the last answer. The ensemble had it in
/// between, so what is proven counts from the sending, and the report delay from the answer.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    sent: Moment,
    answered: Moment,
}

/// When a request was sent, and on which connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    at: Moment,
    connection: ConnectionNumber,
}

/// Counts the times at which contact began or ended. Answers of different counts prove nothing
/// together: a server that lags behind may have given the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionNumber(u64);

impl Lease {
    /// A lease without proof and without a connection; the contact counts from now.
    pub(crate) fn unproven(granted: Granted, now: Moment) -> Lease {
        Lease {
            granted,
            current: LeaseEpoch::unproven(),
            broken_off: Vec::new(),
            connection: ConnectionNumber(0),
            is_connected: false,
            taken_up_after: None,
            last: None,
            unconfirmed: VecDeque::new(),
            awaiting: None,
            last_write: None,
            last_contact: now,
            over: false,
        }
    }

    pub(crate) fn current(&self) -> &Arc<LeaseEpoch> {
        &self.current
    }

    pub(crate) fn connection(&self) -> ConnectionNumber {
        self.connection
    }

    pub(crate) fn session_timeout(&self) -> Duration {
        self.granted.session_timeout
    }

    /// Whether a write proves something only after others that came before it.
    pub(crate) fn needs_pairs(&self) -> bool {
        !self.granted.report_delay.is_zero()
    }

    /// When the session is given up unless there is a sign of the other side before.
    pub(crate) fn given_up_at(&self) -> Moment {
        self.last_contact.after(self.granted.session_timeout)
    }

    /// Until when the last answered write on this connection shows that there is contact with the
    /// ensemble. A lease needs more than that.
    pub(crate) fn last_write_holds_until(&self) -> Moment {
        self.last_write.map_or(Moment::from_nanos(0), |sent| sent.after(self.span()))
    }

    pub(crate) fn last_contact(&self) -> Moment {
        self.last_contact
    }

    /// Whether a lock may be taken under the epoch: it lasts, and can still be extended before it
    /// ends. An owner under one that cannot be would have lost the lock before it could do anything
    /// with it.
    pub(crate) fn admits_owners(&self, epoch: &LeaseEpoch, now: Moment) -> bool {
        let oldest = self.unconfirmed.front().map_or(now, |pair| pair.answered);
        epoch.covers(now) && epoch.covers(oldest.after(self.granted.report_delay))
    }

    /// When a request is due to keep the lease from ending, on a connection that wants to be left
    /// alone for `quiet`.
    pub(crate) fn keep_alive_due(&self, quiet: Duration) -> Moment {
        if let Some(awaiting) = self.awaiting {
            return awaiting.after(self.granted.report_delay);
        }
        let must = if self.has_room_to_wait() {
            self.next_due_before(self.current.end())
        } else {
            self.next_period()
        };
        must.min(self.last_contact.after(quiet.max(self.granted.session_timeout / 3)))
    }

    /// When a keep-alive is due that is to be confirmed before the lease ends at that moment.
    fn next_due_before(&self, end: Moment) -> Moment {
        end.before(self.granted.report_delay.saturating_add(self.slack()))
    }

    /// Whether a keep-alive and its confirmation, one report delay later, leave time for the next
    /// ones. If not, keep-alives come at short intervals, and each confirms an older one.
    fn has_room_to_wait(&self) -> bool {
        self.span() >= self.granted.report_delay.saturating_mul(2).saturating_add(2 * self.slack())
    }

    /// When a keep-alive is due where they cannot wait for one another. Each confirms a pair that
    /// is older than the report delay by up to a period, and what it proves must hold for a further
    /// period.
    fn next_period(&self) -> Moment {
        let (Some(write), Some(pair)) = (self.last_write, self.unconfirmed.back()) else {
            return Moment::from_nanos(0);
        };
        let spare = self.span().saturating_sub(self.granted.report_delay).saturating_sub(self.slack());
        let least = write.after(self.granted.session_timeout / MIN_PERIOD_DIVISOR);
        write.min(pair.sent).after(spare / 2).max(least)
    }

    /// How long a proof holds.
    fn span(&self) -> Duration {
        self.granted.session_timeout - self.granted.session_timeout / MARGIN_DIVISOR
    }

    fn slack(&self) -> Duration {
        self.granted.session_timeout / SLACK_DIVISOR
    }

    /// Takes note of a sign of the other side that proves nothing.
    fn contact(&mut self, now: Moment) {
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
        let is_shorter = granted.session_timeout < self.granted.session_timeout;
        self.granted = granted;
        self.contact(now);
        self.begin_connection();
        self.is_connected = true;
        self.taken_up_after = taken_up_after;
        if !is_shorter {
            return None;
        }
        let end = taken_up_after.unwrap_or(now).after(self.span());
        self.current.cap(end);
        self.broken_off.iter().filter_map(Weak::upgrade).for_each(|epoch| epoch.cap(end));
        Some(end)
    }

    /// The report delay on the present connection is known better. What was answered before counts
    /// on: only a confirmation depends on the delay.
    pub(crate) fn set_report_delay(&mut self, report_delay: Duration) {
        self.granted.report_delay = report_delay;
    }

    /// Contact was lost: what is proven from now on belongs to a new epoch.
    pub(crate) fn disconnected(&mut self, now: Moment) {
        self.contact(now);
        self.begin_connection();
        self.is_connected = false;
        if !self.over {
            self.broken_off.retain(|epoch| epoch.strong_count() > 0);
            self.broken_off.push(Arc::downgrade(&self.current));
            self.current = LeaseEpoch::unproven();
        }
    }

    fn begin_connection(&mut self) {
        self.connection.0 += 1;
        self.taken_up_after = None;
        self.last = None;
        self.last_write = None;
        self.unconfirmed.clear();
        self.awaiting = None;
    }

    /// To be called before a request is sent.
    pub(crate) fn sending(&self, now: Moment) -> Sending {
        Sending { at: now, connection: self.connection }
    }

    /// Takes up the answer to a request that any server may have given.
    pub(crate) fn read_answered(&mut self, sending: Sending, now: Moment) {
        self.contact(now);
        if self.counts(sending) {
            self.note(Exchange { sent: sending.at, answered: now });
        }
    }

    /// Whether the answer to a request proves something: it was sent on the present connection, and
    /// it is known what the server of that grants.
    fn counts(&self, sending: Sending) -> bool {
        self.is_connected && sending.connection == self.connection
    }

    /// Takes up the answer to a request that passed through the leader.
    ///
    /// Returns whether it came too late for the owners under the current epoch. The end of the
    /// epoch is final for them; later owners get a new one.
    pub(crate) fn write_answered(&mut self, sending: Sending, now: Moment) -> bool {
        self.contact(now);
        if !self.counts(sending) {
            return false;
        }
        self.last_write = self.last_write.max(Some(sending.at));
        let proven = self.taken_up_after.take().max(self.take_confirmed(sending.at));
        self.note(Exchange { sent: sending.at, answered: now });
        proven.is_some_and(|proven| self.extend(proven, now))
    }

    /// Returns the moment since which the session is proven to be known to the leader by a write
    /// sent at `sent`.
    fn take_confirmed(&mut self, sent: Moment) -> Option<Moment> {
        if !self.needs_pairs() {
            return Some(sent);
        }
        let report_delay = self.granted.report_delay;
        let count = self.unconfirmed.partition_point(|pair| pair.answered.after(report_delay) <= sent);
        let newest = self.unconfirmed.drain(..count).max_by_key(|pair| pair.sent)?;
        self.awaiting.take_if(|awaiting| *awaiting <= newest.answered);
        Some(newest.sent)
    }

    /// Asks for a confirmation of the newest pair; `false` when a new one is needed.
    pub(crate) fn await_confirmation(&mut self, now: Moment) -> bool {
        if self.awaiting.is_some() {
            // Its time has come. A later request must not put it off, perhaps beyond the end of the
            // lease.
            return false;
        }
        let worthwhile = self.unconfirmed.back().filter(|pair| {
            let confirmed = pair.answered.after(self.granted.report_delay);
            now < confirmed && confirmed <= self.next_due_before(pair.sent.after(self.span()))
        });
        self.awaiting = worthwhile.map(|pair| pair.answered);
        self.awaiting.is_some()
    }

    /// Ends the lease and every epoch of it at once, for good.
    pub(crate) fn finish(&mut self) {
        self.over = true;
        self.current.finish();
        for epoch in self.broken_off.drain(..).filter_map(|epoch| epoch.upgrade()) {
            epoch.finish();
        }
    }

    /// Remembers a request, as a pair with the one before it. Few pairs suffice: each is to stand
    /// for those shortly after it.
    fn note(&mut self, exchange: Exchange) {
        let Some(before) = self.last.replace(exchange) else { return };
        let (sent, answered) = (before.sent.min(exchange.sent), before.answered.max(exchange.answered));
        let pair = Exchange { sent, answered };
        let spacing = self.granted.report_delay / 16;
        if self.unconfirmed.back().is_none_or(|last| last.sent.after(spacing) <= pair.sent) {
            self.unconfirmed.push_back(pair);
        }
    }

    fn extend(&mut self, proven: Moment, now: Moment) -> bool {
        let end = proven.after(self.span());
        if self.over || self.current.extend(now, end) {
            return false;
        }
        self.current = LeaseEpoch::until(end);
        true
    }
}
