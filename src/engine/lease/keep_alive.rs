//! The requests that keep a lease from ending, and the times at which they are due.
//!
//! A *keep-alive* is two writes, one after the other: the first confirms a pair by its time, the second proves
//! it for owners by cause. A *touch* is two reads, sent together, which make such a pair and cost no
//! transaction. Where the client reports its pings, none of them is due while no lock is held, and none after a
//! reconnect: the lease lapses, and the first write of the next request proves it again, because that write
//! confirms the last pings that are old enough.
//!
//! While a lock is held,
//! - a touch is due one period D after the last one was sent;
//! - a keep-alive is due when a pair is known, because it was answered a report delay R ago, whose older
//!   request was sent D or more after that of the pair that is proven.
//!
//! So each keep-alive proves the touch that was sent D after the touch before. But for
//! round trips, the proof is R old when it is made, and R + D when the next keep-alive is made. Of its span S (the
//! session timeout T without the margin) remains at least
//!
//! > F = S − R − D, so D = S − R − F.
//!
//! Fewer writes cannot keep F. A write confirms a pair that is at least R old, and the next write proves that
//! pair. When the third write is made, the age of that proof is R and the time since the first write, which
//! must not exceed R + D. So there are two writes in each D, wherever they are. One after the other they need a
//! single touch.
//!
//! F is the longest outage that an owner survives, the way to a server included. Subtract up to three round trips
//! (of the touch and of the two writes), and the delays of two timers. Where the answer to a touch takes longer
//! than T/64, a keep-alive does not wait for it, and proves an older pair. A large F needs frequent writes. This
//! F leaves more than half of T where a report is early enough for that, and a quarter of S − R for the
//! keep-alives where it is not. [`SessionBuilder::survived_outage`](crate::SessionBuilder::survived_outage) sets
//! another F.
//!
//! | T in ticks (R is 1.1 of them) | F | D |
//! |---|---|---|
//! | 2 | 0.31 T | T / 10 |
//! | 3 | 0.45 T | T / 7 |
//! | 5 | 0.56 T | T / 5 |
//! | 10 | 0.56 T | T / 3 |
//! | 20 | 0.56 T | T / 3 |
//!
//! The writes and the pairs of other requests count as well. If such a write has confirmed a newer pair, it puts a
//! keep-alive off or takes the place of its first write.
//!
//! A lock that was just taken is held for D/2 before anything is sent for it. On a session that had owned nothing
//! it has less than F until the first touch is proven: only the client's pings make pairs until then. With a ping
//! in each sixth of T, the proof of a pair is up to R + T/3 old when the next one is confirmed, so at least
//! S − R − T/3 − D/2 remains. A lease that lasts on from before is older. With less than T/8 of it left, a write
//! extends it before a lock is taken, and if there is not enough for D/2, another one follows at once.

use std::time::Duration;

use super::Lease;
use super::evidence::{RoundTrip, newest};
use crate::time::Moment;

/// The part of the session timeout for which an owner's lease lasts after its connection is lost:
/// more than half, so that half is left for the outage and the rest for finding a server.
const OUTAGE: (u32, u32) = (9, 16);

/// The largest part of what a proof leaves after the report delay that is kept for outages. The
/// rest is for the keep-alives.
const MAX_OUTAGE_OF_SPARE: (u32, u32) = (3, 4);

/// The least part of the session timeout that is kept for outages, as a divisor. Less would hardly save
/// writes, and cost the lock at the loss of any connection.
const MIN_OUTAGE_DIVISOR: u32 = 8;

/// The least part of the session timeout between two keep-alives, as a divisor.
const MIN_PERIOD_DIVISOR: u32 = 64;

/// The part of the session timeout by which a lease is renewed before it must be, on a connection
/// that wants to be left alone, as a divisor.
const SLACK_DIVISOR: u32 = 16;

impl Lease {
    /// Returns when a request is due to keep the lease from ending, on a connection that wants to be left
    /// alone for `quiet`.
    pub(crate) fn keep_alive_due(&self, quiet: Duration) -> Moment {
        if !self.is_kept_proven() {
            return Moment::from_nanos(u64::MAX);
        }
        if self.last_write.is_none() {
            // Nothing is proven on this connection.
            return Moment::from_nanos(0);
        }
        if quiet.is_zero() {
            return self.next_keep_alive();
        }
        if let Some(awaiting) = self.awaiting {
            return awaiting.after(self.granted.report_delay);
        }
        let must = if self.has_room_to_wait() {
            self.next_due_before(self.end())
        } else {
            self.next_without_touches()
        };
        must.min(self.last_contact.after(quiet.max(self.granted.session_timeout / 3)))
    }

    /// Returns whether requests are due to keep the lease from ending.
    pub(crate) fn is_keep_alive_due(&mut self, quiet: Duration, now: Moment) -> bool {
        // If the connection wants to be left alone, a request made a moment ago is not repeated, only
        // confirmed later.
        let repeats = quiet.is_zero() || self.last_write.is_none();
        self.keep_alive_due(quiet) <= now && (repeats || !self.await_confirmation(now))
    }

    /// Returns whether the first write of a keep-alive left something for a second one to prove.
    pub(crate) fn is_second_write_due(&self, quiet: Duration, now: Moment) -> bool {
        !quiet.is_zero() || self.due_for_proof() <= now.after(self.least_period())
    }

    /// Returns when a touch is due. On a connection that wants to be left alone there is none.
    pub(crate) fn touch_due(&self, quiet: Duration) -> Moment {
        let is_wanted = quiet.is_zero() && self.needs_pairs() && self.is_kept_proven();
        if !is_wanted || self.last_write.is_none() {
            return Moment::from_nanos(u64::MAX);
        }
        let next = self.touched.map_or(Moment::from_nanos(0), |touched| touched.after(self.period()));
        self.sparing_short_holds(next)
    }

    /// Returns whether a touch is due, which the caller then sends.
    pub(crate) fn begin_touch(&mut self, quiet: Duration, now: Moment) -> bool {
        let is_due = self.touch_due(quiet) <= now;
        if is_due {
            self.touched = Some(now);
        }
        is_due
    }

    fn next_keep_alive(&self) -> Moment {
        let due = self.due_for_proof().max(self.last_proof().after(self.least_period()));
        self.sparing_short_holds(due)
    }

    /// Returns when the lease is to be extended: one period after the last proof, when the pair is known that was
    /// made a period after the one that is proven.
    fn due_for_proof(&self) -> Moment {
        let must = self.end().before(self.outage());
        if !self.needs_pairs() {
            return must;
        }
        let proven = self.end().before(self.span());
        let reported = self.last_write.and_then(|write| write.reported);
        let newer = || reported.iter().chain(&self.unconfirmed).filter(|pair| pair.sent > proven);
        let known_at = |pair: &RoundTrip| pair.answered.after(self.granted.report_delay);

        let next = proven.after(self.period());
        let in_time = |at: &Moment| *at <= must.after(self.least_period());
        if let Some(at) = newer().find(|pair| next <= pair.sent).map(known_at).filter(in_time) {
            return at;
        }
        // Before a newer pair is known, a write proves nothing, but makes one with the write after it.
        let first_known = newer().map(known_at).min();
        must.max(first_known.unwrap_or_else(|| self.last_proof().after(self.period() / 2)))
    }

    /// Has a lock that was just taken be held for half a period first, if its lease lasts for long enough: so a
    /// short hold sends nothing.
    fn sparing_short_holds(&self, due: Moment) -> Moment {
        let spared = self.owned_since.after(self.period() / 2);
        let may_wait = spared.after(self.outage() / 2) <= self.end();
        if may_wait { due.max(spared) } else { due }
    }

    /// Returns when the last write was sent that has proven what was reported before it; the beginning of the
    /// clock if there is none.
    fn last_proof(&self) -> Moment {
        let sent = match self.has_owners() {
            true => self.followed_write,
            false => self.last_write.map(|write| write.sent),
        };
        sent.unwrap_or(Moment::from_nanos(0))
    }

    /// The time between two touches, and between the keep-alives that prove them, so that an owner's lease
    /// always lasts for [`outage`](Lease::outage) more.
    pub(super) fn period(&self) -> Duration {
        self.spare().saturating_sub(self.outage()).max(self.least_period())
    }

    pub(super) fn least_period(&self) -> Duration {
        self.granted.session_timeout / MIN_PERIOD_DIVISOR
    }

    /// What a proof leaves after the report delay.
    fn spare(&self) -> Duration {
        self.span().saturating_sub(self.granted.report_delay)
    }

    /// Returns how long an outage an owner survives, but for the round trips of its keep-alives and of the
    /// reconnect.
    pub(super) fn outage(&self) -> Duration {
        let (part, whole) = OUTAGE;
        let (part_of_spare, whole_spare) = MAX_OUTAGE_OF_SPARE;
        let least = self.granted.session_timeout / MIN_OUTAGE_DIVISOR;
        let wanted = self.survived_outage.unwrap_or(self.granted.session_timeout / whole * part);
        wanted.max(least).min(self.spare() / whole_spare * part_of_spare)
    }

    // ---- on a connection that wants to be left alone

    /// Returns when a keep-alive is due that waits for no other, and makes the pairs itself: half a period after
    /// the last write that proved something, or after the newest pair, whichever is older.
    fn next_without_touches(&self) -> Moment {
        let never = Moment::from_nanos(0);
        let last_write = self.last_write.map_or(never, |write| write.sent);
        let newest_pair = self.unconfirmed.back().map_or(never, |pair| pair.sent);
        let due = self.last_proof().min(newest_pair).after(self.period() / 2);
        self.sparing_short_holds(due.max(last_write.after(self.least_period())))
    }

    /// Returns when a keep-alive is due that is to be confirmed before the lease ends at that moment.
    fn next_due_before(&self, end: Moment) -> Moment {
        end.before(self.granted.report_delay.saturating_add(self.slack()))
    }

    /// Returns whether a keep-alive and its confirmation, one report delay later, leave time for the next
    /// ones. If not, keep-alives come at short intervals, and each confirms an older one.
    fn has_room_to_wait(&self) -> bool {
        self.span() >= self.granted.report_delay.saturating_mul(2).saturating_add(2 * self.slack())
    }

    fn slack(&self) -> Duration {
        self.granted.session_timeout / SLACK_DIVISOR
    }

    /// Asks for a confirmation of the newest pair that can be confirmed before the lease ends;
    /// `false` when a keep-alive is needed now. If none can be, and none can be confirmed now, the
    /// lease cannot be saved, and the newest pair counts for the next one.
    pub(super) fn await_confirmation(&mut self, now: Moment) -> bool {
        if self.awaiting.is_some() {
            // Its time has come. A later request must not put it off, perhaps beyond the end of the
            // lease.
            return false;
        }
        let end = self.end();
        let confirmed_at = |pair: &RoundTrip| pair.answered.after(self.granted.report_delay);
        let is_worthwhile = |pair: &&RoundTrip| {
            let confirmed = confirmed_at(pair);
            now < confirmed && confirmed <= self.next_due_before(pair.sent.after(self.span()))
        };
        let in_time = |pair: &&RoundTrip| confirmed_at(pair).after(self.reserve()) < end;
        let mut newest_first = self.unconfirmed.iter().rev().filter(is_worthwhile);
        // What the last write has reported is proven by the next one, with owners, too.
        let reported = self.last_write.and_then(|write| write.reported);
        let helps_now =
            || newest(self.confirmable(now), reported).is_some_and(|pair| self.end_of_proof(pair.sent) > end);
        let awaited = match now < end {
            true => {
                newest_first.clone().find(in_time).or_else(|| newest_first.next().filter(|_| !helps_now()))
            }
            false => newest_first.next(),
        };
        self.awaiting = awaited.map(|pair| pair.answered);
        self.awaiting.is_some()
    }
}
