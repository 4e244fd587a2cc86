//! The requests that keep a lease from ending, and the times at which they are due.
//!
//! A *keep-alive* is two writes, one after the other. Where the client reports its pings, none is due
//! while no lock is held, and none after a reconnect: the lease lapses, and the first write of the
//! next request proves it again, because it confirms the last pings that are old enough.
//!
//! While a lock is held, a keep-alive is due one period P after the last write was sent that was
//! followed by another one, and after the older request of the newest pair was sent. So, but for round
//! trips,
//! - a write was sent less than P ago, and another one has been answered that was sent after it;
//! - at any time, a pair was answered whose older request was sent less than P before.
//!
//! Those writes prove the newest pair that was answered a report delay R before the first of them. By
//! the second line, its older request was sent less than R + P before that write. So the proof is never
//! older than R + 2P, and of its span S (the session timeout T without the margin) remains at least
//!
//! > F = S − R − 2P, so P = (S − R − F) / 2.
//!
//! F is the longest outage that an owner survives, the way to a server included. Subtract up to four
//! round trips (two of the keep-alive whose pair counts, two of the next one), and the delay of a
//! timer. A large F needs frequent writes. This one leaves more than half of T where a report is early
//! enough for that, and a quarter of S − R for the keep-alives where it is not:
//!
//! | T in ticks (R is 1.1 of them) | F | P |
//! |---|---|---|
//! | 2 | 0.31 T | T / 19 |
//! | 3 | 0.45 T | T / 13 |
//! | 5 | 0.56 T | T / 11 |
//! | 10 | 0.56 T | T / 7 |
//! | 20 | 0.56 T | T / 6 |
//!
//! A lock that was just taken on a session that had owned nothing has less for the first R + 2P:
//! until then only the client's pings make pairs. With a ping in each sixth of T, the proof of a
//! pair is up to R + T/3 old when the next one is confirmed, so at least S − R − T/3 − P remains.

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
            return self.next_period();
        }
        if let Some(awaiting) = self.awaiting {
            return awaiting.after(self.granted.report_delay);
        }
        let must =
            if self.has_room_to_wait() { self.next_due_before(self.end()) } else { self.next_period() };
        must.min(self.last_contact.after(quiet.max(self.granted.session_timeout / 3)))
    }

    /// Returns whether requests are due to keep the lease from ending.
    pub(crate) fn is_keep_alive_due(&mut self, quiet: Duration, now: Moment) -> bool {
        // If the connection wants to be left alone, a request made a moment ago is not repeated, only
        // confirmed later.
        let repeats = quiet.is_zero() || self.last_write.is_none();
        self.keep_alive_due(quiet) <= now && (repeats || !self.await_confirmation(now))
    }

    /// Returns when a keep-alive is due that waits for no other: one period after the last write that proved
    /// something (while a lock is held, one that another has followed), or after the newest pair, whichever is
    /// older. A lock that was just taken is held for a period first, if its lease lasts for long enough: so a
    /// short hold causes no writes.
    fn next_period(&self) -> Moment {
        let never = Moment::from_nanos(0);
        let last_write = self.last_write.map_or(never, |write| write.sent);
        let (write, touched) = match self.needs_pairs() {
            true => (self.last_proof(), self.unconfirmed.back().map(|pair| pair.sent)),
            false => (Some(last_write), Some(last_write)),
        };
        let least = last_write.after(self.granted.session_timeout / MIN_PERIOD_DIVISOR);
        let due = write.min(touched).unwrap_or(never).after(self.period()).max(least);
        let spared = self.owned_since.after(self.period());
        let may_wait = spared.after(self.outage() / 2) <= self.end();
        if may_wait { due.max(spared) } else { due }
    }

    /// Returns when the last write was sent that has proven what was reported before it.
    fn last_proof(&self) -> Option<Moment> {
        match self.has_owners() {
            true => self.followed_write,
            false => self.last_write.map(|write| write.sent),
        }
    }

    /// The time between two keep-alives, so that an owner's lease always lasts for
    /// [`outage`](Lease::outage) more.
    pub(super) fn period(&self) -> Duration {
        let spare = self.span().saturating_sub(self.granted.report_delay);
        spare.saturating_sub(self.outage()) / 2
    }

    /// Returns how long an outage an owner survives, but for the round trips of its keep-alives and of the
    /// reconnect.
    pub(super) fn outage(&self) -> Duration {
        let spare = self.span().saturating_sub(self.granted.report_delay);
        let (part, whole) = OUTAGE;
        let (part_of_spare, whole_spare) = MAX_OUTAGE_OF_SPARE;
        (self.granted.session_timeout / whole * part).min(spare / whole_spare * part_of_spare)
    }

    // ---- on a connection that wants to be left alone

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
